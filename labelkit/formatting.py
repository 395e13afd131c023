"""Percent, with one decimal wherever a person reads it."""

from __future__ import annotations


class Percent(float):
    """A share times 100. Its text has one decimal, ``97.1``; a program reads the number as it is."""

    __slots__ = ()

    def __str__(self) -> str:
        """Return one decimal."""
        return f"{self:.1f}"


def percent(share: float) -> Percent:
    """Return a share in percent: 0.97149 is shown as ``97.1``."""
    return Percent(100 * share)


def percent_range(low: float, high: float) -> str:
    """Return an interval of shares in percent, ``81.2 - 84.0``."""
    return f"{percent(low)} - {percent(high)}"

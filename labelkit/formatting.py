"""Percentages with one decimal in everything that people read."""

from __future__ import annotations


class Percent(float):
    """Percentage that prints with one decimal, ``97.1``, and keeps its full precision as a number."""

    __slots__ = ()

    def __str__(self) -> str:
        """Return the number with one decimal."""
        return f"{self:.1f}"


def percent(share: float) -> Percent:
    """Convert a fraction to a percentage: 0.97149 prints as ``97.1``."""
    return Percent(100 * share)


def percent_range(low: float, high: float) -> str:
    """Format an interval of fractions in percent: ``81.2 - 84.0``."""
    return f"{percent(low)} - {percent(high)}"

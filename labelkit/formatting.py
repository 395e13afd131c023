"""Percentages with one decimal in everything that people read."""

import unicodedata


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


def is_shown(character: str) -> bool:
    """Return whether a character can be shown: printable, a space of any width, or a joiner within words and emoji."""
    return character.isprintable() or unicodedata.category(character) == "Zs" or character in "\u200c\u200d"

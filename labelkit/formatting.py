"""Format percentages with one decimal and lists of limited length for all output that people read."""

import unicodedata
from collections.abc import Iterable

addresses_of_copies: dict[str, str] = {}
"""Local folders with copies of remote files, and the URLs that are shown instead."""


class Percent(float):
    """Percentage that prints with one decimal, such as ``97.1``, but keeps its full precision."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"{self:.1f}"


def percent(fraction: float) -> Percent:
    """Convert a fraction to a percentage; 0.97149 prints as ``97.1``."""
    return Percent(100 * fraction)


def percent_range(low: float, high: float) -> str:
    """Format a range of fractions in percent, such as ``81.2 - 84.0``."""
    return f"{percent(low)} - {percent(high)}"


def join_first_few(texts: Iterable[str], limit: int = 3, separator: str = ", ") -> str:
    """Join the first few texts, and append the number of the others: ``a, b and 7 more``, or ``a; b; and 7 more``."""
    listed = list(texts)
    shown, more = separator.join(listed[:limit]), len(listed) - limit
    return shown if more <= 0 else f"{shown}{' ' if separator == ', ' else separator}and {more:,} more"


def to_one_line(error: BaseException, limit: int = 300) -> str:
    """Return an error message as one line of limited length."""
    return " ".join(str(error).split())[:limit] or type(error).__name__


def is_displayable(character: str) -> bool:
    """Return whether a character can be displayed: printable, a space of any width, or a zero-width joiner."""
    return character.isprintable() or unicodedata.category(character) == "Zs" or character in "\u200c\u200d"

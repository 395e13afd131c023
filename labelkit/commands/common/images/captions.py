"""Lines of text below pictures, as wide as their place."""

from __future__ import annotations

from collections.abc import Callable


def shortened(line: str, width_of: Callable[[str], float], room: float) -> str:
    """Return a line without its middle, if it is too wide: its begin (a rank), and more of its end (a file name).

    Args:
        line: may hold anything; what cannot be printed becomes ``?``.
        width_of: measures a text.
        room: largest width, in the same unit.
    """
    line = "".join(character if character.isprintable() else "?" for character in line)
    # no letter is narrower than a unit, and long names take long to measure
    kept, shown = min(len(line), int(room)), line
    while kept and width_of(shown) > room:
        kept -= 1
        begin = kept // 3
        shown = f"{line[:begin]}…{line[len(line) - (kept - begin) :]}"
    return shown

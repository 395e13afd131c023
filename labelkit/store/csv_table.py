"""Tables as CSV, as commands write and print them; ``export`` alone writes its own, in pieces."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

ESCAPED_COLUMN = "path_escaped"
r"""Header of a column of names where a backslash is ``\\``, a carriage return ``\r``, other bytes ``\udcXX``."""
_ESCAPE = re.compile(r"\\(?:(\\)|(r)|u(dc[89a-f][0-9a-f]))?")


def csv_text(columns: Sequence[object], rows: Iterable[Iterable[object]]) -> str:
    """Return a table with a header; lines end with a line feed, and cells are quoted where they must be."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return buffer.getvalue()


def csv_bytes(columns: Sequence[object], rows: Iterable[Iterable[object]]) -> bytes:
    """Return the same in UTF-8; bytes of a file name that are no text become backslash escapes."""
    return csv_text(columns, rows).encode("utf-8", "backslashreplace")


def needs_escape(name: str) -> bool:
    """Return whether a name cannot stand in a CSV file as it is."""
    # The csv module does not put a lone carriage return between quotes.
    return "\r" in name or any("\udc80" <= character <= "\udcff" for character in name)


def escape_name(name: str) -> str:
    """Return a name as text that can be encoded, such that ``unescape_name`` gives it back."""
    plain = name.replace("\\", "\\\\").replace("\r", "\\r")
    return plain.encode("utf-8", "backslashreplace").decode()


def unescape_name(text: str) -> str:
    r"""Return the name that ``escape_name`` was given.

    Raises:
        ValueError: a backslash is not doubled and does not begin ``\r`` or ``\udcXX``.
    """

    def plain(match: re.Match[str]) -> str:
        doubled, carriage_return, byte = match.groups()
        if doubled or carriage_return:
            return "\\" if doubled else "\r"
        if byte is None:
            raise ValueError(f"a backslash that is not doubled and not of \\r or \\udcXX in {text!r}")
        return chr(int(byte, 16))

    return _ESCAPE.sub(plain, text)

"""Format CSV tables that commands write or print, except ``export``, whose writer works in chunks."""

import csv
import io
import re
from collections.abc import Iterable, Sequence

ESCAPED_COLUMN = "path_escaped"
r"""Header of a column of escaped names: ``\\`` for a backslash, ``\r``, and ``\udcXX`` for bytes not in UTF-8."""
_ESCAPE = re.compile(r"\\(?:(\\)|(r)|u(dc[89a-f][0-9a-f]))?")


def csv_text(columns: Sequence[object], rows: Iterable[Iterable[object]]) -> str:
    """Format a table with a header as CSV text, with line feeds and minimal quoting."""
    buffer = io.StringIO(newline="")
    minimal = csv.writer(buffer, lineterminator="\n")
    # the csv module does not quote a lone carriage return
    quoted = csv.writer(buffer, lineterminator="\n", quoting=csv.QUOTE_ALL)
    for row in (columns, *rows):
        cells = list(row)
        (quoted if any("\r" in str(cell) for cell in cells) else minimal).writerow(cells)
    return buffer.getvalue()


def csv_bytes(columns: Sequence[object], rows: Iterable[Iterable[object]]) -> bytes:
    """Format a table as CSV in UTF-8; bytes of file names that are not UTF-8 become backslash escapes."""
    return csv_text(columns, rows).encode("utf-8", "backslashreplace")


def needs_escape(name: str) -> bool:
    """Return whether a name must be escaped before it is written to a CSV file."""
    # the csv module does not quote a lone carriage return
    return "\r" in name or any("\udc80" <= character <= "\udcff" for character in name)


def escape_name(name: str) -> str:
    """Escape a name so that it can be encoded as text and restored by ``unescape_name``."""
    plain = name.replace("\\", "\\\\").replace("\r", "\\r")
    return plain.encode("utf-8", "backslashreplace").decode()


def unescape_name(text: str) -> str:
    r"""Restore a name from the output of ``escape_name``; ``ValueError`` for an invalid escape sequence."""

    def plain(match: re.Match[str]) -> str:
        doubled, carriage_return, byte = match.groups()
        if doubled or carriage_return:
            return "\\" if doubled else "\r"
        if byte is None:
            raise ValueError(f"a backslash must be doubled, or part of \\r or \\udcXX, got {text!r}")
        return chr(int(byte, 16))

    return _ESCAPE.sub(plain, text)

"""Markdown from values: pages, tables, text whose signs mean nothing."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_ESCAPED = str.maketrans({sign: f"\\{sign}" for sign in "\\*_[]"} | {"<": "&lt;", ">": "&gt;", "|": "&#124;"})
_OPTION = re.compile(r"(?<![\w`-])--[a-z0-9]+(?:-[a-z0-9]+)*")


@dataclass(frozen=True)
class Page:
    """One generated page.

    Attributes:
        path: below ``docs/``, ends in ``.md``.
        title: what the navigation says.
        content: Markdown.
    """

    path: str
    title: str
    content: str


def text(words: str) -> str:
    """Return plain text as Markdown: code in backticks and options become code, every other sign stays as it is."""
    parts = re.split(r"(``.+?``|`[^`]+`)", words)
    return "".join(_code(part) if part.startswith("`") else _plain(part) for part in parts)


def code(words: str) -> str:
    """Return code in a line or in a cell of a table; nothing stays nothing."""
    return f"`{words}`" if words else ""


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> str:
    """Return a table; cells are Markdown.

    Args:
        columns: headings.
        rows: cells, as many per row as headings.
        right: headings of the columns that stand right, such as numbers.

    Raises:
        ValueError: a row has another number of cells.
    """
    lines = [columns, ["--:" if column in right else "---" for column in columns], *rows]
    for line in lines:
        if len(line) != len(columns):
            raise ValueError(f"{len(line)} cells for {len(columns)} columns: {line}")
    return "".join(f"| {' | '.join(' '.join(cell.split()) for cell in line)} |\n" for line in lines)


def facts(named: Mapping[str, str]) -> str:
    """Return a list of named facts; values are Markdown, empty ones are left out."""
    return "".join(f"- **{name}:** {value}\n" for name, value in named.items() if value)


def block(words: str, language: str = "text") -> str:
    """Return lines as a block of code; in text, the backticks around names are left out."""
    shown = words.replace("``", "") if language == "text" else words
    return f"```{language}\n{shown.rstrip()}\n```\n"


def page(*parts: str) -> str:
    """Join parts of a page with an empty line between them; empty parts are left out."""
    return "\n\n".join(part.strip("\n") for part in parts if part.strip()) + "\n"


def _code(part: str) -> str:
    return f"`{part.strip('`')}`"


def _plain(part: str) -> str:
    pieces = re.split(f"({_OPTION.pattern})", part)
    return "".join(code(piece) if _OPTION.fullmatch(piece) else piece.translate(_ESCAPED) for piece in pieces)

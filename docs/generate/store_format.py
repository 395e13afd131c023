"""The page of the file format: the words of ``docs/inside/file_format.txt``, the constants of the reader."""

import inspect
import re
from pathlib import Path

from labelkit.store import schema

from generate.markdown import Page, block, code, page, table, text

WORDS = Path(__file__).resolve().parents[1] / "inside" / "file_format.txt"
_HEADING = re.compile(r"([A-Z][a-z]+(?: [a-z]+)*)(?:, ``|:(?! ``))")
_COLUMNS: dict[str, schema.Columns] = {
    "a store": schema.STORE_COLUMNS,
    "a result": schema.RESULT_COLUMNS,
    "a file of patches": schema.PATCH_COLUMNS,
    "matches": {**schema.MATCHED_IMAGE_COLUMNS, **schema.MATCH_COLUMNS},
}


def format_page() -> Page:
    """Return the page."""
    parts = []
    for paragraph in WORDS.read_text().strip().split("\n\n"):
        heading = _HEADING.match(paragraph)
        if heading:
            parts.append(f"## {heading[1]}")
        if paragraph.startswith("    "):
            parts.append(block(inspect.cleandoc("\n" + paragraph)))
        else:
            parts.append(text(" ".join(paragraph.split())))
    return Page("reference/file-format.md", "File format", page("# File format", *parts, _checked()))


def _checked() -> str:
    """Return the tables that a reader checks a file against."""
    kinds = ", ".join(map(code, schema.FORMATS))
    parts = [
        "## What a reader checks",
        f"Formats of version {schema.FORMAT_VERSION}: {kinds}. Axes with the same letter have the same length; "
        "a number is a fixed length. Types are NumPy type codes (kind and bytes per value); `S` is a string of any "
        "fixed length.",
    ]
    for owner, columns in _COLUMNS.items():
        rows = [
            [code(name), code(f"({', '.join(column.axes)})"), " ".join(map(code, column.types))]
            for name, column in columns.items()
        ]
        parts += [f"### Columns of {owner}", table(["Column", "Shape", "Types"], rows)]
    return page(*parts)

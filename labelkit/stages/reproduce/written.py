"""A table that was run, as people put it into a text: Markdown, CSV and LaTeX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labelkit.store.csv_table import csv_text

_ESCAPED = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def written_tables(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of ``table.md``, ``table.csv`` and ``table.tex``, by these names.

    A line of the table is a row, a column a value: published, measured as mean and deviation over seeds. A number that
    is not there is a dash, in CSV nothing. CSV has a line for each value, with all digits and the seeds.

    Args:
        record: what ``table.json`` holds.
    """
    names = list(dict.fromkeys(value["name"] for row in record["rows"] for value in row["values"]))
    published = [
        name for name in names if any(_found(row, name).get("published") is not None for row in record["rows"])
    ]
    return {
        "table.md": _markdown(record, names, published),
        "table.csv": _csv(record),
        "table.tex": _latex(record, names, published),
    }


def _found(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return next((value for value in row["values"] if value["name"] == name), {})


def _number(value: Mapping[str, Any], key: str) -> str:
    """A percentage with one decimal, any other number with four digits; empty where there is none."""
    number = value.get(key)
    if number is None:
        return ""
    return f"{number:.4g}" if value.get("unit") == "number" else f"{number:.1f}"


def _cells(row: Mapping[str, Any], names: Sequence[str], published: Sequence[str]) -> list[str]:
    cells: list[str] = []
    for name in names:
        value = _found(row, name)
        cells += [_number(value, "published")] if name in published else []
        deviation = _number(value, "deviation")
        cells.append(_number(value, "mean") + (f" ± {deviation}" if deviation else ""))
    return cells


def _headings(names: Sequence[str], published: Sequence[str]) -> list[str]:
    return [heading for name in names for heading in ([f"{name}, published", name] if name in published else [name])]


def _caption(record: Mapping[str, Any]) -> str:
    seeds = record["seeds"]
    return (
        f"{record['source']}, {record['place']}: {record['title']} ({record['unit']}, {seeds} seed{'s' * (seeds > 1)})"
    )


def _markdown(record: Mapping[str, Any], names: Sequence[str], published: Sequence[str]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") or "-" for cell in cells) + " |"

    headings = ["", *_headings(names, published)]
    rows = [line([row["name"], *_cells(row, names, published)]) for row in record["rows"]]
    ruler = "|" + "|".join([" --- ", *(" ---: " for _ in headings[1:])]) + "|"
    head = "| " + " | ".join(headings) + " |"
    return "\n".join([f"{_caption(record)}", "", head, ruler, *rows, "", f"`{record['command']}`", ""])


def _latex(record: Mapping[str, Any], names: Sequence[str], published: Sequence[str]) -> str:
    def line(cells: Sequence[str]) -> str:
        return " & ".join(cell or "--" for cell in cells) + r" \\"

    headings = _headings(names, published)
    rows = [
        line([_escaped(row["name"]), *(cell.replace("±", r"$\pm$") for cell in _cells(row, names, published))])
        for row in record["rows"]
    ]
    return "\n".join(
        [
            f"% {record['command']}".replace("\n", " "),
            f"% {_caption(record)}".replace("\n", " "),
            rf"\begin{{tabular}}{{l{'r' * len(headings)}}}",
            r"\hline",
            " & ".join(["", *map(_escaped, headings)]) + r" \\",
            r"\hline",
            *rows,
            r"\hline",
            r"\end{tabular}",
            "",
        ]
    )


def _escaped(text: str) -> str:
    return "".join(_ESCAPED.get(sign, sign) for sign in text)


def _csv(record: Mapping[str, Any]) -> str:
    lines: list[list[object]] = []
    for row in record["rows"]:
        for value in row["values"]:
            seeds = " ".join(repr(one) for one in value["seeds"])
            numbers = [value["published"], value["mean"], value["deviation"]]
            told = ("" if one is None else one for one in numbers)
            lines.append([row["name"], value["name"], *told, seeds, row["state"]])
    return csv_text(["row", "value", "published", "mean", "deviation", "seeds", "state"], lines)

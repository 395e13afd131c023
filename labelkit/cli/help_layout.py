"""Lay out the help of a command: usage, text, and one framed table of options per panel.

The tables are those of Typer, whose own layout loads all of rich and takes longer than everything else that help needs.
Characters are taken to be one column wide, which holds for the words of this package.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TextIO

_DEFAULT_WIDTH = 80
_FORCING = ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS")
_WORD = re.compile(r"\s*\S+\s*")
_ROUND, _ASCII = "╭─╮│╰╯", "+-+|++"

Style = tuple[bool, bool, int]
"""Bold, dim, and the number of a color of terminals (0: none)."""

_PLAIN: Style = (False, False, 0)
_DIM: Style = (False, True, 0)
_BOLD: Style = (True, False, 0)
_OPTION: Style = (True, False, 36)
_SWITCH: Style = (True, False, 32)
_NEGATIVE: Style = (True, False, 35)
_KIND: Style = (True, False, 33)
_YELLOW: Style = (False, False, 33)

_HIGHLIGHTS = (
    (re.compile(r"(?:^|\W)(-\w+)(?![a-zA-Z0-9])"), _SWITCH),
    (re.compile(r"(?:^|\W)(--[\w\-]+)(?![a-zA-Z0-9])"), _OPTION),
    (re.compile(r"(<[^>]+>)"), _KIND),
    (re.compile(r"(Usage: )"), _YELLOW),
)
_NEGATIVE_HIGHLIGHTS = ((re.compile(r"(?:^|\W)(--[\w\-]+)(?![a-zA-Z0-9])"), _NEGATIVE),)
_KIND_HIGHLIGHTS = (
    (re.compile(r"^(\[|<)"), _DIM),
    (re.compile(r"(\|)"), _DIM),
    (re.compile(r"(\]|>)(?:\.\.\.)?$"), _DIM),
)
_COLUMNS: tuple[tuple[Style, Sequence[tuple[re.Pattern[str], Style]], bool], ...] = (
    (_PLAIN, _HIGHLIGHTS, False),
    (_PLAIN, _HIGHLIGHTS, False),
    (_PLAIN, _NEGATIVE_HIGHLIGHTS, False),
    (_PLAIN, (), False),
    (_KIND, _KIND_HIGHLIGHTS, True),
    (_PLAIN, _HIGHLIGHTS, False),
)


@dataclass(frozen=True)
class OptionRow:
    """What help says of one option.

    Attributes:
        text: what it does, with bounds and default.
        long: its names, ``--out`` or ``--index,--store``; empty for what is given without one.
        short: ``-k``, or what stands for a value that is given without an option.
        negative: ``--no-strict`` of a switch.
        kind: the word for its value.
    """

    text: str
    long: str = ""
    short: str = ""
    negative: str = ""
    kind: str = ""


@dataclass(frozen=True)
class Paper:
    """What help is written on.

    Attributes:
        width: columns.
        styled: whether it shows bold and dim text.
        colored: whether it shows colors, too.
        lines: whether it shows characters that draw frames.
    """

    width: int
    styled: bool = False
    colored: bool = False
    lines: bool = True

    @classmethod
    def of(cls, stream: TextIO) -> Paper:
        """Look at a stream and the environment; what ``NO_COLOR``, ``COLUMNS`` and others say is kept."""
        dumb = os.environ.get("TERM", "").lower() in {"dumb", "unknown"}
        forced = any(os.environ.get(name) for name in _FORCING)
        # terminals of Windows may show the codes of styles as text
        styled = (forced or stream.isatty()) and not dumb and os.name != "nt"
        return cls(
            width=_width(dumb and (forced or stream.isatty())),
            styled=styled,
            colored=styled and not os.environ.get("NO_COLOR"),
            lines=(stream.encoding or "utf-8").lower().startswith("utf"),
        )


def _width(dumb: bool) -> int:
    for name in ("TERMINAL_WIDTH", "COLUMNS"):
        told = os.environ.get(name, "")
        if told.isdigit() and int(told):
            return int(told)
    if not dumb:
        for stream in (sys.__stdin__, sys.__stdout__, sys.__stderr__):
            try:
                found = os.get_terminal_size(stream.fileno()).columns if stream is not None else 0
            except (OSError, ValueError):  # closed, or no terminal
                continue
            if found:
                return found
    return _DEFAULT_WIDTH


def lay_out(
    usage: str,
    text: str,
    panels: Iterable[tuple[str, Sequence[OptionRow]]],
    paper: Paper,
    *,
    commands: Iterable[tuple[str, Sequence[tuple[str, str]]]] = (),
    below: str = "",
) -> str:
    """Return the help of a command or group.

    Args:
        usage: what follows ``Usage:``.
        text: paragraphs, with an empty line between two.
        panels: titles, and the options below each.
        paper: what it is written on.
        commands: of a group, titles, and below each the names of commands and what they do.
        below: what stands under the panels.
    """
    first, _, rest = text.partition("\n\n")
    blank = " " * paper.width
    lines = [blank, *_paragraph(f"Usage: {usage}", _BOLD, paper), blank]
    lines += _paragraph(first.replace("\n", " "), _PLAIN, paper)
    if rest:
        lines += [blank, *_paragraph(rest, _DIM, paper)]
    lines.append(blank)
    for title, options in panels:
        lines += _panel(title, _option_lines(options, paper), paper)
    named = list(commands)
    widest = max((len(name) for _, rows in named for name, _ in rows), default=0)
    for title, rows in named:
        lines += _panel(title, _command_lines(rows, widest, paper), paper)
    if below:
        lines += [blank, *_paragraph(below, _PLAIN, paper), blank]
    return "".join(f"{line}\n" for line in lines)


def _paragraph(text: str, style: Style, paper: Paper) -> list[str]:
    width = max(1, paper.width - 2)
    return [
        f" {line} "
        for part in text.split("\n")
        for line in _cell(part, width, paper, style=style, highlights=_HIGHLIGHTS, fold=True)
    ]


def _panel(title: str, inner: Iterable[str], paper: Paper) -> list[str]:
    corner, dash, corner_right, side, below, below_right = tuple(_ROUND if paper.lines else _ASCII)
    edge = _styled(side, _DIM, paper)
    name = _shortened(f" {title} ", max(0, paper.width - 4))
    return [
        _styled(f"{corner}{dash}{name}".ljust(paper.width - 1, dash) + corner_right, _DIM, paper),
        *(f"{edge} {line} {edge}" for line in inner),
        _styled(below + dash * (paper.width - 2) + below_right, _DIM, paper),
    ]


def _option_lines(rows: Sequence[OptionRow], paper: Paper) -> Iterator[str]:
    columns: list[tuple[str, ...]] = [(row.long, row.short, row.negative, "", row.kind, row.text) for row in rows]
    longest = [max(len(cells[number]) for cells in columns) for number in range(5)]
    widths = _column_widths(longest, paper.width - 4)
    for cells in columns:
        drawn = [
            _cell(cells[number], widths[number], paper, style=style, highlights=highlights, fold=fold)
            for number, (style, highlights, fold) in enumerate(_COLUMNS)
        ]
        yield from _side_by_side(drawn, widths)


def _command_lines(rows: Sequence[tuple[str, str]], widest: int, paper: Paper) -> Iterator[str]:
    widths = [widest, max(1, paper.width - 4 - widest - 2)]
    for name, text in rows:
        drawn = [_cell(name, widest, paper, style=_OPTION), _cell(text, widths[1], paper, highlights=_HIGHLIGHTS)]
        yield from _side_by_side(drawn, widths)


def _side_by_side(cells: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterator[str]:
    for number in range(max(len(cell) for cell in cells)):
        yield "  ".join(
            cell[number] if number < len(cell) else " " * width for cell, width in zip(cells, widths, strict=True)
        )


def _column_widths(longest: Sequence[int], total: int) -> list[int]:
    """Return the widths of columns of which the last takes what the others leave, two columns apart.

    Where the others leave little, the widest of all columns shrink until the next is as wide.
    """
    gaps = [1, *[2] * (len(longest) - 1), 1]
    widths = [min(total, max(1, width + gap)) for width, gap in zip(longest, gaps, strict=False)] + [total]
    while (excess := sum(widths) - total) > 0:
        widest = max(widths)
        step = min(excess, widest - max((width for width in widths if width != widest), default=0))
        chosen = [number for number, width in enumerate(widths) if width == widest]
        for done, number in enumerate(chosen):
            taken = min(step, round(excess / (len(chosen) - done)))
            widths[number] -= taken
            excess -= taken
    return [max(0, width - gap) for width, gap in zip(widths, gaps, strict=True)]


def _cell(
    text: str,
    width: int,
    paper: Paper,
    *,
    style: Style = _PLAIN,
    highlights: Sequence[tuple[re.Pattern[str], Style]] = (),
    fold: bool = False,
) -> list[str]:
    """Return a text as lines of this width; a word that is longer is folded, or shortened to end in an ellipsis."""
    starts = [0, *_breaks(text, width, fold=fold), len(text)]
    styles = _styles_of(text, style, highlights) if paper.styled else []
    lines = []
    for begin, end in pairwise(starts):
        line = text[begin:end]
        if len(line) > width:
            line = line[: max(len(line.rstrip()), width)]
        line = line[:width] if fold else _shortened(line, width)
        padded = line.ljust(width)
        if styles:
            those = styles[begin : begin + len(line)]
            padded = _runs(line, those, paper) + padded[len(line) :]
        lines.append(padded)
    return lines


def _breaks(text: str, width: int, *, fold: bool) -> list[int]:
    """Return where to break a text so that its lines fit."""
    if len(text) <= width:
        return []
    found: list[int] = []
    used = 0
    for match in _WORD.finditer(text):
        start, word = match.start(), match[0]
        length = len(word.rstrip())
        if length <= width - used:
            used += len(word)
        elif length > width and fold:
            pieces = [word[at : at + max(1, width)] for at in range(0, len(word), max(1, width))]
            for piece in pieces:
                if start:
                    found.append(start)
                start += len(piece)
            used = len(pieces[-1])
        elif start:
            found.append(start)
            used = len(word)
        else:
            used = len(word)
    return found


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def _styles_of(text: str, style: Style, highlights: Sequence[tuple[re.Pattern[str], Style]]) -> list[Style]:
    styles = [style] * len(text)
    for pattern, (bold, dim, color) in highlights:
        for match in pattern.finditer(text):
            for number in range(*match.span(1)):
                before = styles[number]
                styles[number] = (before[0] or bold, before[1] or dim, color or before[2])
    return styles


def _runs(text: str, styles: Sequence[Style], paper: Paper) -> str:
    parts, begin = [], 0
    for number in range(1, len(text) + 1):
        if number == len(text) or styles[number] != styles[begin]:
            parts.append(_styled(text[begin:number], styles[begin], paper))
            begin = number
    return "".join(parts)


def _styled(text: str, style: Style, paper: Paper) -> str:
    bold, dim, color = style
    codes = ["1"] * bold + ["2"] * dim + ([str(color)] if color and paper.colored else [])
    return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if codes and paper.styled and text else text

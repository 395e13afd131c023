"""Draw rows of images with a line or two below each, such as a query and its hits, as one picture."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from labelkit.store.commit import commit_bytes

_CELL, _GAP, _TEXT = 112, 8, 30


@dataclass(frozen=True)
class Picture:
    """One cell of a contact sheet.

    Attributes:
        pixels: (h, w, c) uint8 with c = 1 or 3; ``None`` draws an empty frame.
        lines: at most two short lines below it.
        marked: draw a frame around it.
        right: draw a green frame (right) or a red one (wrong) around it.
        framed: draw any frame; without one and without pixels, the lines stand in its place as a heading.
    """

    pixels: NDArray[np.uint8] | None
    lines: tuple[str, ...]
    marked: bool = False
    right: bool | None = None
    framed: bool = True


def write_contact_sheet(path: Path, rows: Sequence[Sequence[Picture]]) -> Path:
    """Write a PNG with one row of pictures per entry.

    Raises:
        ValueError: there is nothing to draw.
        ResourceError: it cannot be written.
    """
    columns = max((len(row) for row in rows), default=0)
    if columns == 0:
        raise ValueError("there is nothing to draw")
    sheet_width = _GAP + columns * (_CELL + _GAP)
    sheet_height = _GAP + len(rows) * (_CELL + _TEXT + _GAP)
    sheet = Image.new("RGB", (sheet_width, sheet_height), "white")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(size=11)
    for r, row in enumerate(rows):
        for c, picture in enumerate(row):
            left, top = _GAP + c * (_CELL + _GAP), _GAP + r * (_CELL + _TEXT + _GAP)
            if picture.pixels is not None:
                sheet.paste(_fit(picture.pixels), (left, top))
            text_top = top + _CELL + 2
            if picture.framed:
                color, width = _frame(picture)
                draw.rectangle((left - 1, top - 1, left + _CELL, top + _CELL), outline=color, width=width)
            elif picture.pixels is None:
                text_top = top + _CELL // 2 - 13
            for i, line in enumerate(picture.lines[:2]):
                draw.text((left, text_top + 13 * i), _shorten(draw, line, font), fill="black", font=font)
    buffer = io.BytesIO()
    sheet.save(buffer, format="PNG")
    commit_bytes(path, buffer.getvalue())
    return path


def _frame(picture: Picture) -> tuple[str, int]:
    """Color and width of the frame."""
    if picture.right is not None:
        return ("#2e8b57", 2) if picture.right else ("#d00000", 3)
    return ("#d2691e", 3) if picture.marked else ("#cccccc", 1)


def _fit(pixels: NDArray[np.uint8]) -> Image.Image:
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).convert("RGB")
    scale = _CELL / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    # small images keep their pixels visible
    resized = image.resize(size, Image.Resampling.NEAREST if scale > 2 else Image.Resampling.LANCZOS)
    cell = Image.new("RGB", (_CELL, _CELL), "white")
    cell.paste(resized, ((_CELL - size[0]) // 2, (_CELL - size[1]) // 2))
    return cell


def _shorten(draw: ImageDraw.ImageDraw, line: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    # a line end in a file name cannot be drawn, and other control characters mean nothing here
    line = "".join(character if character.isprintable() else "?" for character in line)
    while len(line) > 4 and draw.textlength(line, font=font) > _CELL:
        line = "…" + line[2:]
    return line

"""Draw contact sheets: a PNG with rows of captioned images, such as a query and its hits."""

import io
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from labelkit.commands.common.outputs import PNG_MARK
from labelkit.store.commit import commit_bytes


def shorten_middle(line: str, measure_width: Callable[[str], float], max_width: float) -> str:
    """If a line is too wide, replace its middle with "…", so that its start (a rank) and end (a file name) remain.

    Args:
        line: text; unprintable characters are replaced with ``?``.
        measure_width: function that returns the width of a text.
        max_width: maximum width, in the same unit.
    """
    # compose letters and combining marks, as in file names on macOS, into the single characters that fonts have
    line = unicodedata.normalize("NFC", line)
    line = "".join(character if character.isprintable() else "?" for character in line)
    # measuring very long names is slow, and unnecessary, since no character is narrower than one unit
    kept, shown = min(len(line), int(max_width)), line
    while kept and measure_width(shown) > max_width:
        kept -= 1
        begin = kept // 3
        shown = f"{line[:begin]}…{line[len(line) - (kept - begin) :]}"
    return shown


def load_caption_font() -> ImageFont.FreeTypeFont:
    """Load the font for captions: matplotlib's DejaVu Sans, since Pillow's default font has only ASCII letters."""
    found = find_spec("matplotlib")  # importing it takes a while
    assert found is not None
    assert found.origin is not None
    path = Path(found.origin).parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf"
    return ImageFont.truetype(path, size=10)


IMAGES_PER_LINE = 10
"""Default number of images per line."""

_CELL, _GAP, _TEXT = 112, 8, 30
# Maximum width of a caption, which keeps neighboring captions apart.
_CAPTION = _CELL - _GAP
_FRAMES = {"query": "#1f5fbf", "right": "#2e8b57", "wrong": "#c62828", "plain": "#cccccc"}


@dataclass(frozen=True)
class SheetCell:
    """Cell of a contact sheet: an image with a colored frame and lines of text.

    Attributes:
        pixels: (h, w, c) uint8 with c = 1 or 3; ``None`` draws an empty frame.
        lines: caption below the image, at most two short lines.
        frame: ``query`` is blue, ``right`` green, ``wrong`` (another class) red; with ``none`` and no pixels, the cell
            is a heading, with the lines in place of an image.
    """

    pixels: NDArray[np.uint8] | None
    lines: tuple[str, ...]
    frame: Literal["query", "right", "wrong", "plain", "none"] = "plain"


def write_contact_sheet(path: Path, rows: Sequence[Sequence[SheetCell]]) -> Path:
    """Write a PNG contact sheet from rows of cells.

    Raises:
        ValueError: there is nothing to draw.
        ResourceError: the file cannot be written.
    """
    columns = max((len(row) for row in rows), default=0)
    if columns == 0:
        raise ValueError("there is nothing to draw")
    width = _GAP + columns * (_CELL + _GAP)
    height = _GAP + len(rows) * (_CELL + _TEXT + _GAP)
    sheet = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(sheet)
    font = load_caption_font()
    for r, row in enumerate(rows):
        for c, picture in enumerate(row):
            left, top = _GAP + c * (_CELL + _GAP), _GAP + r * (_CELL + _TEXT + _GAP)
            if picture.pixels is not None:
                sheet.paste(_fit(picture.pixels), (left, top))
            text_top = top + _CELL + 2
            if picture.frame != "none":
                box, color = (left - 1, top - 1, left + _CELL, top + _CELL), _FRAMES[picture.frame]
                draw.rectangle(box, outline=color, width=1 if picture.frame == "plain" else 3)
            elif picture.pixels is None:
                text_top = top + _CELL // 2 - 13
            for i, line in enumerate(picture.lines[:2]):
                draw.text(
                    (left, text_top + 13 * i), shorten_middle(line, font.getlength, _CAPTION), fill="black", font=font
                )
    write_png(path, sheet)
    return path


def draw_box(pixels: NDArray[np.uint8], box: Sequence[float]) -> NDArray[np.uint8]:
    """Return a color copy of an image (h, w, c), enlarged if it is small, with a box drawn around a region.

    The box is (left, top, right, bottom) in pixels of the original image.
    """
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).convert("RGB")
    scale = max(1, -(-4 * _CELL // max(image.size)))
    image = image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)
    width = max(1, round(2 * max(image.size) / _CELL))
    left, top, right, bottom = (scale * edge for edge in box)
    # around the region, not over it
    edges = (left - width, top - width, right + width - 1, bottom + width - 1)
    ImageDraw.Draw(image).rectangle(edges, outline=_FRAMES["wrong"], width=width)
    return np.asarray(image, dtype=np.uint8)


def _fit(pixels: NDArray[np.uint8]) -> Image.Image:
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).convert("RGB")
    scale = _CELL / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    # keep the pixels of small images visible
    resized = image.resize(size, Image.Resampling.NEAREST if scale > 2 else Image.Resampling.LANCZOS)
    cell = Image.new("RGB", (_CELL, _CELL), "white")
    cell.paste(resized, ((_CELL - size[0]) // 2, (_CELL - size[1]) // 2))
    return cell


def write_png(path: Path, picture: Image.Image) -> None:
    """Write an image as a PNG that is marked as created by labelkit; identical images produce identical files.

    Raises:
        ResourceError: the file cannot be written.
    """
    notes = PngInfo()
    notes.add_text("Software", PNG_MARK)
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", pnginfo=notes)
    commit_bytes(path, buffer.getvalue())

"""Captions of sheets and panels stay apart, and both ends of a long one are kept."""

from pathlib import Path

import numpy as np
import pytest
from labelkit.commands.common.images.contact_sheet import (
    SheetCell,
    load_caption_font,
    shorten_middle,
    write_contact_sheet,
)
from PIL import Image

CELL, GAP = 112, 8
CAPTIONS = {
    "a path": "train/Balinese_character01/0108_01_of_the_second_drawer.png",
    "wide letters": "W" * 200 + ".png",
    "no spaces": "m" * 20,
    "as wide as it gets": "\U0001f600" * 60,
    "a line end": "a\nb" * 30,
}


def dark_columns(path: Path) -> np.ndarray:
    """Columns of the sheet in which something is written below the pictures, in the first row."""
    with Image.open(path) as sheet:
        pixels = np.asarray(sheet.convert("L"))
    return np.flatnonzero((pixels[GAP + CELL + 2 : GAP + CELL + 30] < 128).any(axis=0))


@pytest.mark.parametrize("caption", CAPTIONS.values(), ids=CAPTIONS.keys())
def test_captions_of_neighbors_stand_at_least_twice_the_gap_apart(tmp_path: Path, caption: str) -> None:
    white = np.full((4, 4, 3), 255, dtype=np.uint8)
    write_contact_sheet(tmp_path / "s.png", [[SheetCell(white, (caption, caption), "none")] * 3])

    written = dark_columns(tmp_path / "s.png")

    for cell in range(3):
        left = GAP + cell * (CELL + GAP)
        mine = written[(written >= left - GAP // 2) & (written < left + CELL + GAP // 2)]
        assert len(mine)
        # a glyph may begin or end one pixel beside its place
        assert left - 1 <= mine.min()
        assert mine.max() <= left + CELL - GAP + 1


def test_a_long_caption_keeps_its_rank_and_its_score() -> None:
    font = load_caption_font()
    short = shorten_middle("12. Balinese_character01_of_someone 0.987", font.getlength, 104)
    assert short.startswith("12. ")
    assert short.endswith(" 0.987")
    assert shorten_middle("12. ant 0.987", font.getlength, 104) == "12. ant 0.987"
    assert shorten_middle("a\nb", len, 3) == "a?b"
    assert shorten_middle("abcdef", len, 4) == "a…ef"


def test_letters_with_marks_are_drawn() -> None:
    font = load_caption_font()
    drawn = {letter: bytes(font.getmask(letter)) for letter in "uüéłß\ufffe"}
    assert len(set(drawn.values())) == len(drawn)  # what a font lacks is the same box each time
    assert shorten_middle("Ku\u0308che", len, 9) == "Küche"

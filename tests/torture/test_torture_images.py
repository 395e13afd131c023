"""Odd images and names: embedded as what they show, or skipped with a reason; none is lost."""

import os
from pathlib import Path

import numpy as np
from labelkit.cli.main import main
from labelkit.store.embeddings import open_store
from torture_images import SIDE, Odd, encode, odd_files, picture, put_special
from torture_tally import Tally, sized

ROW = "g  odd images and names: embedded rightly or skipped with a reason"


def _embed(folder: Path, out: Path) -> None:
    words = ("--dataset", str(folder), "--backbone", "pixels", "--image-size", str(SIDE), "--max-bad", "0.99")
    assert main(["embed", *words, "--batch-size", "8", "--threads", "1", "--out", str(out), "-q"]) == 0


def _seen(row: np.ndarray) -> np.ndarray:
    """The middle of each corner, (4, 3), in steps of 255."""
    image = 255 * row.reshape(3, SIDE, SIDE)
    quarter, width = SIDE // 4, 2
    places = [(quarter + SIDE // 2 * (i // 2), quarter + SIDE // 2 * (i % 2)) for i in range(4)]
    return np.array([image[:, y - 1 : y - 1 + width, x - 1 : x - 1 + width].mean(axis=(1, 2)) for y, x in places])


def _check(odd: Odd, rows: dict[bytes, np.ndarray], skipped: dict[bytes, str]) -> None:
    assert (odd.name in rows) != (odd.name in skipped), "listed twice or not at all"
    if odd.name in skipped:
        assert odd.corners is None or odd.may_be_skipped, skipped[odd.name]
        assert skipped[odd.name].strip()
    else:
        assert odd.corners is not None, "embedded"
        if not odd.any_color:
            off = np.abs(_seen(rows[odd.name]) - np.array(odd.corners)).max()
            assert off <= odd.tolerance, f"off by {off:.0f} of 255"


@sized(sample=30, full=1_000)
def test_odd_images_are_embedded_rightly_or_named_with_a_reason(tmp_path: Path, tally: Tally, count: int) -> None:
    files = odd_files()
    assert len(files) >= 195
    files = files[:: -(-len(files) // count)]
    folder = tmp_path / "images"
    folder.mkdir()
    for odd in files:
        with open(os.fsencode(folder) + b"/" + odd.name, "xb") as file:  # noqa: PTH123 - a name in bytes
            file.write(odd.data)
    special = put_special(folder)
    (folder / "beside.png").symlink_to(tmp_path / "beside.png")
    (tmp_path / "beside.png").write_bytes(encode(picture(), "PNG"))
    _embed(folder, tmp_path / "s.h5")
    store = open_store(tmp_path / "s.h5")
    rows = dict(zip(map(os.fsencode, store.sample_ids), np.asarray(store.embeddings), strict=True))
    skipped = {os.fsencode(name): reason for name, reason in store.skipped}
    expected = [*files, *(Odd(name, b"", None) for name in special), Odd(b"beside.png", b"")]
    for odd in expected:
        with tally.attempt(odd.name):
            _check(odd, rows, skipped)
    assert len(rows) + len(skipped) == len(expected)
    assert rows.keys() | skipped.keys() == {odd.name for odd in expected}

"""The same images in two folders, made and listed in other orders: the same bytes."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.cli.main import main
from PIL import Image
from torture_tally import Tally, sized, tree

ROW = "h  same images in other folders, listed in other orders: same bytes"

NAMES = ["a", "B", "b", "ä", "a\u0308", "10", "9", "-x", "z z", os.fsdecode(b"\xff")]
PIXELS = ("--backbone", "pixels", "--image-size", "8")
DENSE = ("--backbone", "vit_nano_p8_32", "--random-weights", "--dense")


class _Shuffled:
    """What ``os.scandir`` gives, in another order."""

    def __init__(self, entries: Iterator[Any], chance: random.Random) -> None:
        self._entries = list(entries)
        chance.shuffle(self._entries)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._entries)

    def __enter__(self) -> _Shuffled:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def _shuffle(monkeypatch: pytest.MonkeyPatch, chance: random.Random) -> None:
    scandir: Callable[..., Any] = os.scandir
    listdir: Callable[..., list[Any]] = os.listdir

    def shuffled(*args: Any) -> list[Any]:
        names = listdir(*args)
        chance.shuffle(names)
        return names

    monkeypatch.setattr(os, "scandir", lambda *args: _Shuffled(scandir(*args), chance))
    monkeypatch.setattr(os, "listdir", shuffled)


def _make(folder: Path, chance: random.Random) -> Path:
    """Make the images in an order by chance; a value depends on the name alone."""
    places = [(kind, name) for kind in ("ant", "bee") for name in NAMES]
    chance.shuffle(places)
    for kind, name in places:
        (folder / kind).mkdir(parents=True, exist_ok=True)
        values = np.random.default_rng([len(kind), *os.fsencode(name), ord(kind[0])]).integers(0, 256, (8, 8, 3))
        Image.fromarray(values.astype(np.uint8)).save(folder / kind / f"{name}.png")
        times = chance.randrange(1 << 30), chance.randrange(1 << 30)
        os.utime(folder / kind / f"{name}.png", times)
    return folder


def _commands(photos: Path, options: tuple[str, ...], out: Path) -> None:
    out.mkdir()
    store = str(out / "s.h5")
    images = ("--dataset", str(photos), "--label-split", "gcd")
    words = (*images, *options, "--batch-size", "4", "--part-rows", "8", "--threads", "1")
    assert main(["embed", *words, "--out", store, "-q"]) == 0
    assert main(["cluster", "k-means", "--index", store, "--num-clusters", "3", "-q"]) == 0


@pytest.mark.slow
@sized(sample=1, full=20)
@pytest.mark.parametrize("options", [PIXELS, DENSE], ids=["rows", "patches"])
def test_folder_and_order_of_the_listing_change_no_byte(
    tmp_path: Path, tally: Tally, options: tuple[str, ...], count: int
) -> None:
    _commands(_make(tmp_path / "photos", random.Random(0)), options, tmp_path / "whole")
    expected = tree(tmp_path / "whole")
    assert len(expected) >= 2
    for number in range(count):
        chance = random.Random(number)
        with tally.attempt(f"order {number}"), pytest.MonkeyPatch.context() as patch:
            folder = _make(tmp_path / f"elsewhere {number}" / "deeper" / "photos", chance)
            _shuffle(patch, chance)
            _commands(folder, options, tmp_path / f"out {number}")
            assert tree(tmp_path / f"out {number}") == expected

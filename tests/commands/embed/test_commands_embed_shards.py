"""Stores of images in archives."""

import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from labelkit.commands.embed.embed import _restore_listing
from labelkit.data.registry import load_dataset
from labelkit.errors import DatasetError


def packed(photos: Path, folder: Path, count: int) -> str:
    """Spread photos over archives; returns the pattern."""
    files = sorted(path for path in photos.rglob("*") if path.is_file())
    for number in range(count):
        with tarfile.open(folder / f"s-{number}.tar", "w") as archive:
            for path in files[number::count]:
                archive.add(path, path.relative_to(photos))
    return str(folder / f"s-{{0..{count - 1}}}.tar")


def test_a_run_that_goes_on_has_the_images_that_it_began_with(photos: Path, tmp_path: Path) -> None:
    found = load_dataset(packed(photos, tmp_path, 2), data_root=tmp_path)
    plan: Any = SimpleNamespace(sample_ids=found.sample_ids[::2], base_rows=0, labels=None, splits=None)
    fewer = _restore_listing(found, plan)
    assert fewer.sample_ids == found.sample_ids[::2]
    assert fewer.source.read(1).sha256 == found.source.read(2).sha256
    plan.sample_ids = (*found.sample_ids[:2], "zz/gone.png")
    with pytest.raises(DatasetError, match=r"1 images have disappeared since this run began, first: 'zz/gone.png'"):
        _restore_listing(found, plan)

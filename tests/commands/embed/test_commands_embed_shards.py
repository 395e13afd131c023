"""Stores of images in archives."""

from __future__ import annotations

import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from labelkit.commands.embed.embed import _listed_as
from labelkit.data.registry import load_dataset
from labelkit.errors import DatasetError
from labelkit.store.embeddings import open_store
from tests.running import Labelkit


def packed(photos: Path, folder: Path, count: int) -> str:
    """Spread photos over archives; returns the pattern."""
    files = sorted(path for path in photos.rglob("*") if path.is_file())
    for number in range(count):
        with tarfile.open(folder / f"s-{number}.tar", "w") as archive:
            for path in files[number::count]:
                archive.add(path, path.relative_to(photos))
    return str(folder / f"s-{{0..{count - 1}}}.tar")


@pytest.mark.slow
def test_a_store_is_that_of_the_folder_however_images_are_spread(
    labelkit: Labelkit, photos: Path, tmp_path: Path
) -> None:
    network = ("--backbone", "vit_nano_p8_32", "--random-weights", "--image-size", 32, "--device", "cpu")
    assert labelkit("embed", "--dataset", photos, *network, "--out", tmp_path / "folder.h5").code == 0
    pattern = packed(photos, tmp_path, 3)
    answer = labelkit("embed", "--dataset", pattern, *network, "--out", tmp_path / "tars.h5", "--num-workers", 2)
    assert answer.code == 0, answer.err
    one, other = open_store(tmp_path / "folder.h5"), open_store(tmp_path / "tars.h5")
    assert one.sample_ids == other.sample_ids
    assert one.class_names == other.class_names
    for name in ("embeddings", "labels", "splits", "sha256"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    # what shows images finds them in the archives
    assert (
        labelkit("retrieve", "--index", tmp_path / "tars.h5", "--query-rows", 0, "--sheet", tmp_path / "s.png").code
        == 0
    )
    assert labelkit("report", "--index", tmp_path / "tars.h5", "--out", tmp_path / "page.html").code == 0
    assert "data:image" in (tmp_path / "page.html").read_text()


def test_a_run_that_goes_on_has_the_images_that_it_began_with(photos: Path, tmp_path: Path) -> None:
    found = load_dataset(packed(photos, tmp_path, 2), data_root=tmp_path)
    plan: Any = SimpleNamespace(sample_ids=found.sample_ids[::2], labels=None, splits=None)
    fewer = _listed_as(found, plan)
    assert fewer.sample_ids == found.sample_ids[::2]
    assert fewer.source.read(1).sha256 == found.source.read(2).sha256
    plan.sample_ids = (*found.sample_ids[:2], "zz/gone.png")
    with pytest.raises(DatasetError, match=r"1 images are gone since this run began, first: 'zz/gone.png'"):
        _listed_as(found, plan)

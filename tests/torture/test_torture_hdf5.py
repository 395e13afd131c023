"""HDF5 files that were changed, or made to do harm: refused, by a process that stays alive, small and on time."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from labelkit.store.hdf5.writing import Image
from store_samples import contents_of, make_plan, make_store
from torture_crafted import ADDITIONS, CHANGES, crafted
from torture_processes import Canary, Worker
from torture_tally import Tally, sized

ROW = "e  HDF5 files mutated and crafted: deaths, hangs, looks outside, memory"

MEMORY_MIB = 512
SECONDS = 8.0


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("store") / "s.h5", make_plan(dim=40), bad={1: "broken"}).path


@pytest.fixture(scope="module")
def canary(tmp_path_factory: pytest.TempPathFactory) -> Canary:
    return Canary(tmp_path_factory.mktemp("outside") / "canary")


@pytest.fixture(scope="module")
def opener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    folder = tmp_path_factory.mktemp("empty")
    with Worker("open", folder) as worker:
        yield worker
    assert list(folder.iterdir()) == []


def _check(answer: dict[str, Any], canary: Canary, size: int) -> None:
    """What holds for every file, whatever is in it."""
    assert not str(answer["error"]).startswith("a bug"), answer
    assert answer["seconds"] < SECONDS
    assert max(answer["peak_mib"].values()) < MEMORY_MIB + 2 * (size >> 20)
    assert not canary.touched(), "a file outside was opened"


@pytest.mark.parametrize("name", [*ADDITIONS, *CHANGES])
def test_what_a_store_must_not_hold_is_refused(
    tmp_path: Path, store: Path, opener: Worker, canary: Canary, name: str
) -> None:
    path = tmp_path / "s.h5"
    message = crafted(name, store.read_bytes(), path, str(canary.path))
    canary.touched()  # making the file may look at it
    answer = opener.begin(kind="store", path=str(path))
    _check(answer, canary, path.stat().st_size)
    assert answer["error"] is not None
    assert message in answer["message"]


@sized(sample=0, full=1)
def test_every_crafted_file_is_refused(
    tmp_path: Path, store: Path, opener: Worker, canary: Canary, tally: Tally, count: int
) -> None:
    for name in [*ADDITIONS, *CHANGES] * count:
        with tally.attempt(name):
            test_what_a_store_must_not_hold_is_refused(tmp_path, store, opener, canary, name)


def _old_format(data: bytes, path: Path, canary: Canary) -> bytes:
    """The same in the first format of HDF5, whose structure has no checksums: a change goes deeper there."""
    path.write_bytes(data)
    contents = contents_of(path)
    with h5py.File(path, "w", libver="earliest") as file:
        for name, array in contents.datasets.items():
            dtype = h5py.string_dtype("utf-8", array.dtype.itemsize) if array.dtype.kind == "S" else array.dtype
            file.create_dataset(
                name, data=array.astype(dtype), chunks=tuple(min(2, length) for length in array.shape) or None
            )
        for name, values in contents.attributes.items():
            for key, value in values.items():
                raw = np.array(value.encode() or b"\0") if isinstance(value, str) else np.array(value, "<i8")
                file.require_group(name or "/").attrs.create(key, raw)
        digest = Image(contents).content_digest
        file.attrs.create("content_digest", np.bytes_(digest))
    return path.read_bytes()


def _packed_result(data: bytes, path: Path, canary: Canary) -> bytes:
    """A result in compressed chunks, which other programs may write."""
    with h5py.File(path, "w", libver="earliest") as file:
        for name, value in {
            "format": b"labelkit.result", "format_version": b"1.0", "requires": b"", "kind": b"x", "params": b"{}",
            "store_digest": b"f" * 64, "stage": b"x", "created_by": b"x",
        }.items():  # fmt: skip
            file.attrs[name] = np.bytes_(value)
        file.attrs["n"] = np.int64(3000)
        for name, values in {
            "cluster_ids": np.arange(3000) % 5,
            "confidence": np.linspace(0, 1, 3000, dtype="<f4"),
        }.items():
            file.create_dataset(name, data=values, chunks=(500,), compression="gzip", shuffle=True, fletcher32=True)
    return path.read_bytes()


def _with_ways_out(data: bytes, path: Path, canary: Canary) -> bytes:
    """A store with links and storage outside, whose changes may hide what they are."""
    path.write_bytes(data)
    with h5py.File(path, "r+", libver="earliest") as file:
        for name in ("external link", "outside storage", "virtual"):
            ADDITIONS[name][0](file, str(canary.path))
    return path.read_bytes()


BASES = {
    "a store": lambda data, path, canary: data,
    "a store in the first format": _old_format,
    "a compressed result": _packed_result,
    "a store with ways out": _with_ways_out,
}


@sized(sample=16, full=2_500)
@pytest.mark.parametrize("base", BASES)
def test_a_mutated_file_is_refused_or_read(
    tmp_path: Path, store: Path, opener: Worker, canary: Canary, tally: Tally, base: str, count: int
) -> None:
    own = tmp_path / "s.h5"
    shutil.copy(store, own)
    kind = "result" if base == "a compressed result" else "store"
    path = tmp_path / ("s.h5.results/r.h5" if kind == "result" else "m.h5")
    path.parent.mkdir(exist_ok=True)
    unchanged = BASES[base](store.read_bytes(), path, canary)
    (tmp_path / "base").write_bytes(unchanged)
    canary.touched()
    read = 0
    for seed in range(count):
        with tally.attempt(f"{base}, seed {seed}"):
            answer = opener.begin(kind=kind, path=str(path), store=str(own), base=str(tmp_path / "base"), seed=seed)
            read += answer["error"] is None
            _check(answer, canary, len(unchanged))
    # changes between the objects of a file are none
    assert read < count / 2

"""One bit of a file changes: what a reader gets is the same, or the change is found."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from labelkit.commands.store_files.packing import pack_store
from labelkit.errors import LabelkitError
from labelkit.store.array_files import read_matches
from labelkit.store.embeddings import open_store
from labelkit.store.patches import open_patches, patches_folder
from labelkit.store.results import read_result, write_result
from labelkit.training.checkpoint import CheckpointWriter, load_checkpoint
from patch_samples import make_both, make_patch_plan
from store_samples import contents_of, make_store
from torture_samples import save_step, some_matches
from torture_tally import Tally, sized

ROW = "d  single bits flipped: stores, results, patches, matches, checkpoints"

Read = Callable[[], object]


def _digest(value: object) -> str:
    """Identify whatever a reader gives, values of arrays included."""
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        text = f"{value.dtype} {value.shape} {hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()}"
    elif isinstance(value, dict):
        text = ",".join(f"{key}:{_digest(entry)}" for key, entry in sorted(value.items()))
    elif isinstance(value, (list, tuple)):
        text = ",".join(_digest(entry) for entry in value)
    else:
        text = repr(value)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _fields(value: object) -> dict[str, object]:
    names = (name for name in dir(value) if not name.startswith("_"))
    found = {name: getattr(value, name) for name in names}
    return {name: entry for name, entry in found.items() if not callable(entry)}


def _read_store(path: Path) -> Read:
    def read() -> object:
        store = open_store(path)
        hidden = {"path": "", "shards": "", "model": repr(store.model)}  # objects, of which repr tells the place
        return {
            **_fields(store),
            **hidden,
            "lazy_embeddings": store.lazy_embeddings[:],
            "sample_ids": [*store.sample_ids],
        }

    return read


def _store(folder: Path) -> tuple[list[Path], Read]:
    path = make_store(folder / "s.h5", bad={1: "broken"}).path
    return [path], _read_store(path)


def _store_with_block_digests(folder: Path) -> tuple[list[Path], Read]:
    path = make_store(folder / "s.h5", bad={1: "broken"}).path
    path.write_bytes(contents_of(path).sealed(24).to_bytes())
    with h5py.File(path) as file:
        assert file["digests/embeddings"].attrs["block_rows"] == 2
    return [path], _read_store(path)


def _store_in_shards(folder: Path) -> tuple[list[Path], Read]:
    store = make_store(folder / "one.h5", bad={1: "broken"})
    pack_store(store, folder / "s.h5", shards=3)
    return [folder / "s.h5", *sorted((folder / "s.h5.shards").iterdir())], _read_store(folder / "s.h5")


def _result(folder: Path) -> tuple[list[Path], Read]:
    store = make_store(folder / "s.h5")
    arrays: dict[str, Any] = {
        "pseudo_labels": np.arange(store.n) % 2,
        "confidence": np.linspace(0, 1, store.n, dtype=np.float32),
        "centroids": np.eye(2, 3, dtype=np.float32),
        "names": ["cat", "d\u00f6g"],
        "new_classes": np.array([False, True]),
        "metrics": {"accuracy": 0.5},
    }
    path = write_result(store, "r", kind="classes", arrays=arrays, params={"seed": 3}, stage="x")

    def read() -> object:
        return {**_fields(read_result(store, "r")), "path": ""}

    return [path], read


def _patches(folder: Path) -> tuple[list[Path], Read]:
    plan = make_patch_plan()
    make_both(folder / "s.h5", plan)
    store = open_store(folder / "s.h5")
    files = sorted(patches_folder(store.path).iterdir())

    def read() -> object:
        patches = open_patches(store)
        patches.verify()
        images = [patches.get_image(row) for row in range(store.n)]
        return [[image.features, image.cells, image.region, image.grid] for image in images]

    return files, read


def _matches(folder: Path) -> tuple[list[Path], Read]:
    path = some_matches(folder / "m.h5")

    def read() -> object:
        found = read_matches(path)
        return {**_fields(found), "matches": vars(found.matches)}

    return [path], read


def _checkpoint(folder: Path) -> tuple[list[Path], Read]:
    writer = CheckpointWriter(folder / "checkpoints")
    # two and three differ in one bit, so that one flip makes the name of one that of the other
    for step in (2, 3):
        save_step(writer, step)
    named = folder / "checkpoints" / "step-00000003"

    def read() -> object:
        loaded = load_checkpoint(folder)
        assert loaded is not None
        if loaded.warnings:
            raise _ToldError
        tensors = [loaded.tensors(name) for name in sorted(loaded.state["files"])]
        return [loaded.folder.name, loaded.state, tensors]

    return [*sorted(named.iterdir()), folder / "checkpoints" / "last.json"], read


class _ToldError(Exception):
    """The damage was said in a warning, and another checkpoint taken."""


SUBJECTS = {
    "store": _store,
    "store with block digests": _store_with_block_digests,
    "store in shards": _store_in_shards,
    "result": _result,
    "patches": _patches,
    "matches": _matches,
    "checkpoint": _checkpoint,
}


@sized(sample=12, full=1_700)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_flipped_bit_is_found_or_changes_nothing(tmp_path: Path, tally: Tally, subject: str, count: int) -> None:
    files, read = SUBJECTS[subject](tmp_path)
    expected = _digest(read())
    contents = [path.read_bytes() for path in files]
    ends = np.cumsum([8 * len(content) for content in contents])
    rng = np.random.default_rng(len(subject))
    found = 0
    for bit in rng.choice(int(ends[-1]), size=count, replace=int(ends[-1]) < count).tolist():
        number = int(np.searchsorted(ends, bit, side="right"))
        place = bit - int(ends[number]) + 8 * len(contents[number])
        changed = bytearray(contents[number])
        changed[place // 8] ^= 1 << (place % 8)
        files[number].write_bytes(changed)
        with tally.attempt(f"bit {place} of {files[number].name}"):
            try:
                now = _digest(read())
            except (LabelkitError, _ToldError):
                found += 1
            else:
                assert now == expected, "other content was used"
        files[number].write_bytes(contents[number])
    # Most bytes of these files carry content; the rest is room between objects.
    assert found > count / 3

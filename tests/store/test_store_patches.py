"""Patches beside a store: the documented format read and written, damage and mismatches found, kills survived."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from labelkit.errors import (
    Damaged,
    Mismatch,
    NotAStore,
    OutputExistsError,
    Refused,
    ResourceError,
    StoreError,
    VersionError,
)
from labelkit.store import parts as run_folder
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.patch_writing import PatchRun
from labelkit.store.patches import compute_cell_boxes, open_patches, patches_folder
from patch_samples import BAD, bytes_of_all, make_both, make_patch_plan, piece_of
from store_samples import MODEL, make_plan, make_store
from tests.running import flip_bit

GRIDS = np.array([[2, 3], [1, 1], [3, 1], [2, 2], [1, 4], [2, 1], [1, 2]])


def canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def content_digest(path: Path) -> str:
    """The content digest by the words of docs/inside/file_format.txt, for files without block digests."""
    lines = []

    def line(kind: str, name: str, value: np.ndarray, dtype: np.dtype[Any]) -> None:
        shape = "x".join(map(str, value.shape)) or "scalar"
        lines.append(f"{kind} {name} {dtype.str} {shape} {hashlib.sha256(value.tobytes()).hexdigest()}\n".encode())

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            line("D", name, np.asarray(item[()]).astype(item.dtype.str), item.dtype)
        else:
            lines.append(f"G {name}\n".encode())
        for key in item.attrs:
            if (name, key) != ("/", "content_digest"):
                dtype = item.attrs.get_id(key).dtype
                line("A", f"{name}@{key}", np.asarray(item.attrs[key]).astype(dtype.str), dtype)

    with h5py.File(path) as file:
        visit("/", file)
        file.visititems(lambda name, item: visit(f"/{name}", item))
    return hashlib.sha256(b"".join(sorted(lines))).hexdigest()


def write_golden(store: EmbeddingStore, change: Callable[[dict[str, Any]], None] | None = None) -> np.ndarray:
    """A set of two files with grids of several sizes, written by h5py alone from the words of the format."""
    folder = patches_folder(store.path)
    folder.mkdir()
    counts = GRIDS.prod(axis=1)
    features = np.arange(counts.sum() * 2, dtype="<f2").reshape(-1, 2) / 4
    files, first = [], 0
    for number, (start, stop) in enumerate([(0, 4), (4, 7)]):
        offsets = np.concatenate([[0], np.cumsum(counts[start:stop])]).astype("<u8")
        total = int(offsets[-1])
        arrays: dict[str, Any] = {
            "patches": features[first : first + total],
            "patch_offsets": offsets,
            "grids": GRIDS[start:stop].astype("<u2"),
            "regions": np.array([[0, 1, 12, 9]] * (stop - start), dtype="<f4"),
        }
        attributes: dict[str, Any] = {
            "format": "labelkit.store",
            "format_version": "1.0",
            "requires": "",
            "kind": "patches",
            "store_digest": store.content_digest,
            "plan_digest": "p" * 64,
            "row_start": start,
            "row_stop": stop,
        }
        if change is not None:
            change({"number": number, "arrays": arrays, "attributes": attributes})
        name = f"SET-{number:05d}-of-00002.h5"
        write_file(folder / name, arrays, attributes)
        digest = content_digest(folder / name)
        with h5py.File(folder / name, "r+") as file:
            file.attrs["content_digest"] = np.bytes_(digest)
        files.append({"name": name, "row_start": start, "row_stop": stop, "patches": total, "content_digest": digest})
        first += total
    listed = {
        "format": "labelkit.patches",
        "format_version": "1.0",
        "store_digest": store.content_digest,
        "plan_digest": "p" * 64,
        "recipe": {"layer": "last"},
        "dim": 2,
        "dtype": "float16",
        "rows": 7,
        "patches": first,
        "files": files,
    }
    write_set(folder, listed)
    return features


def write_file(path: Path, arrays: dict[str, Any], attributes: dict[str, Any]) -> None:
    with h5py.File(path, "w", libver=("v108", "v108")) as file:
        for name, value in arrays.items():
            file.create_dataset(name, data=value)
        model = file.create_group("model")
        preprocess = canonical(MODEL.preprocess)
        texts = {
            "name": MODEL.name,
            "weights_fingerprint": MODEL.weights_fingerprint,
            "weights_file_sha256": MODEL.weights_file_sha256,
            "source": MODEL.source,
            "layer": "last",
            "pooling": "none",
            "preprocess": preprocess,
            "preprocess_digest": hashlib.sha256(preprocess.encode()).hexdigest(),
            "numerics": canonical(MODEL.numerics),
        }
        for name, text in texts.items():
            model.attrs[name] = np.bytes_(text)
        for name, value in {**attributes, "content_digest": "0" * 64}.items():
            file.attrs[name] = np.bytes_(value) if isinstance(value, str) else np.int64(value)


def write_set(folder: Path, listed: dict[str, Any]) -> None:
    digest = hashlib.sha256(canonical(listed).encode()).hexdigest()
    (folder / "SET.json").write_text(canonical({**listed, "sha256": digest}))


@pytest.fixture
def store(tmp_path: Path) -> EmbeddingStore:
    return make_store(tmp_path / "s.h5", bad=BAD)


def test_a_set_written_by_h5py_alone_is_read(store: EmbeddingStore) -> None:
    features = write_golden(store)
    patches = open_patches(store)
    offsets = np.concatenate([[0], np.cumsum(GRIDS.prod(axis=1))])

    assert (patches.n, patches.dim, patches.dtype, patches.layer) == (7, 2, "float16", "last")
    assert patches.num_patches == len(features)
    assert patches.offsets().tolist() == offsets.tolist()
    for row, grid in enumerate(GRIDS.tolist()):
        image = patches.get_image(row)
        assert image.grid == tuple(grid)
        assert image.region == (0, 1, 12, 9)
        np.testing.assert_array_equal(image.features, features[offsets[row] : offsets[row + 1]])
        assert image.cells.tolist() == [[r, c] for r in range(grid[0]) for c in range(grid[1])]


def test_boxes_of_patches_divide_their_region() -> None:
    boxes = compute_cell_boxes(np.array([[0, 0], [1, 2]]), (2, 3), (0.0, 1.0, 12.0, 9.0))
    assert boxes.tolist() == [[0, 1, 4, 5], [8, 5, 12, 9]]


@pytest.mark.slow
@pytest.mark.parametrize("max_bytes", [1, 20, 40, 1 << 20])
def test_blocks_are_all_patches_in_order_whatever_their_size(store: EmbeddingStore, max_bytes: int) -> None:
    features = write_golden(store)
    blocks = list(open_patches(store).iterate_blocks(max_bytes))

    np.testing.assert_array_equal(np.concatenate([block.features for block in blocks]), features)
    rows = np.concatenate([block.image_rows for block in blocks])
    assert rows.tolist() == np.repeat(np.arange(7), GRIDS.prod(axis=1)).tolist()
    assert [block.start for block in blocks] == np.cumsum([0, *(len(b.features) for b in blocks)])[:-1].tolist()
    for block in blocks:
        assert block.features.nbytes <= max_bytes or len(set(block.image_rows.tolist())) == 1


def _requires(parts: dict[str, Any]) -> None:
    parts["attributes"]["requires"] = "holograms"


def _no_regions(parts: dict[str, Any]) -> None:
    del parts["arrays"]["regions"]


def _wide(parts: dict[str, Any]) -> None:
    parts["arrays"]["patches"] = np.repeat(parts["arrays"]["patches"], 2, axis=1)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (_requires, VersionError, "holograms"),
        (_no_regions, Refused, "is missing"),
        (_wide, Mismatch, "4 rows"),
    ],
)
def test_what_a_file_must_not_hold_is_refused(
    store: EmbeddingStore, change: Callable[..., None], error: type[StoreError], message: str
) -> None:
    write_golden(store, change)
    with pytest.raises(error, match=message):
        list(open_patches(store).iterate_blocks())


def test_a_store_without_patches_says_how_to_get_them(store: EmbeddingStore) -> None:
    with pytest.raises(NotAStore, match=r"has no patches.*--dense"):
        open_patches(store)


def test_patches_of_another_store_are_refused(store: EmbeddingStore, tmp_path: Path) -> None:
    write_golden(store)
    other = make_store(tmp_path / "other.h5", make_plan(metric="l2"), bad=BAD)
    shutil.copytree(patches_folder(store.path), patches_folder(other.path))
    with pytest.raises(Mismatch, match="belong to a different version of"):
        open_patches(other)


def test_changed_bits_are_found(store: EmbeddingStore) -> None:
    write_golden(store)
    path = patches_folder(store.path) / "SET-00000-of-00002.h5"
    flip_bit(path, "patches", 3)
    with pytest.raises(Damaged, match="digest differs"):
        open_patches(store).get_image(0)
    assert open_patches(store).get_image(5).grid == (2, 1)


@pytest.mark.parametrize(
    ("text", "error"),
    [("", Damaged), ("[]", NotAStore), ('{"format":"labelkit.patches","format_version":"2.0"}', VersionError)],
)
def test_a_list_of_files_that_is_none_is_refused(store: EmbeddingStore, text: str, error: type[StoreError]) -> None:
    write_golden(store)
    (patches_folder(store.path) / "SET.json").write_text(text)
    with pytest.raises(error):
        open_patches(store)


def test_the_same_run_again_does_nothing_and_another_is_refused(tmp_path: Path) -> None:
    make_both(tmp_path / "s.h5", make_patch_plan())
    before = bytes_of_all(tmp_path / "s.h5")
    make_both(tmp_path / "s.h5", make_patch_plan())
    assert bytes_of_all(tmp_path / "s.h5") == before
    with pytest.raises(OutputExistsError, match=r"other options.*--overwrite"):
        PatchRun.open(tmp_path / "s.h5", make_patch_plan(dtype="float32"))
    make_both(tmp_path / "s.h5", make_patch_plan(set_bytes=1 << 20), overwrite=True)
    assert open_patches(open_store(tmp_path / "s.h5")).num_patches == 7 * 6


def test_too_little_space_is_told_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder.shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(ResourceError, match="the patches"):
        PatchRun.open(tmp_path / "s.h5", make_patch_plan())
    assert list(tmp_path.iterdir()) == []


def test_numbers_too_large_for_half_precision_name_image_and_option(tmp_path: Path) -> None:
    plan = make_patch_plan()
    run = PatchRun.open(tmp_path / "s.h5", plan)
    piece = piece_of(plan, 0)
    piece[1][0, 2, 1] = 1e6
    with pytest.raises(StoreError, match=r"a/0\.png: patches is too large for float16.*--patch-dtype float32"):
        run.write_chunk(0, *piece)


def test_files_of_an_earlier_run_stay_until_the_new_ones_are_whole(tmp_path: Path) -> None:
    make_both(tmp_path / "s.h5", make_patch_plan())
    before = bytes_of_all(tmp_path / "s.h5")
    other = make_patch_plan(dtype="float32")
    run = PatchRun.open(tmp_path / "s.h5", other, overwrite=True)
    run.write_chunk(0, *piece_of(other, 0))
    assert bytes_of_all(tmp_path / "s.h5") == before
    make_both(tmp_path / "s.h5", make_patch_plan())
    assert bytes_of_all(tmp_path / "s.h5") == before

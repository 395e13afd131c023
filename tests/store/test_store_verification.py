"""Every fault of every file is named, and nothing else."""

import hashlib
import os
from pathlib import Path

import h5py
import numpy as np
import pytest
from labelkit.commands.store_files.packing import pack_store
from labelkit.commands.store_files.verify import verify_file, verify_images, verify_patches, verify_results
from labelkit.errors import Damaged, Mismatch, NotAStore, StoreError
from labelkit.store.patch_writing import PatchRun
from labelkit.store.patches import patches_folder
from labelkit.store.plans import PatchPlan
from labelkit.store.schema import encode_name
from store_samples import contents_of, make_plan, make_store, write_clusters
from tests.running import flip_bit

FORMATS = Path(__file__).parents[1] / "data" / "formats"


def write_patches(store):
    # pieces of two rows, a file for each
    plan = PatchPlan(make_plan(part_rows=2), layer="last", grid=(2, 2), dim=2, set_bytes=1)
    store = make_store(store.path, plan.rows, overwrite=True)
    run = PatchRun.open(store.path, plan)
    for number, (_, start, stop) in enumerate(plan.chunks):
        rows = np.arange(start, stop)
        run.write_chunk(number, rows, np.ones((len(rows), 4, 2)), np.tile([0, 0, 8, 8], (len(rows), 1)))
    run.publish(store)
    return store


def faults(checked):
    return [(type(fault), fault.where) for one in checked for fault in one.faults]


def kinds(checked):
    return [one.kind for one in checked]


@pytest.mark.parametrize(
    ("name", "kind"), [("store-1.0.h5", "store"), ("matches-1.0.h5", "matches"), ("result-1.0.h5", "result")]
)
def test_golden_files_are_whole(name, kind):
    (found,) = verify_file(FORMATS / name, (seen := []).append)
    assert (found.kind, found.where, found.faults) == (kind, str(FORMATS / name), [])
    with h5py.File(FORMATS / name) as file:
        sizes = []
        file.visititems(lambda _, item: sizes.append(item.nbytes) if isinstance(item, h5py.Dataset) else None)
    assert (found.blocks, found.num_bytes, sum(seen)) == (len(sizes), sum(sizes), sum(sizes))


def test_all_damaged_datasets_are_named_not_only_the_first(store):
    store.path.write_bytes(contents_of(store.path).sealed(24).to_bytes())
    flip_bit(store.path, "embeddings", 12)
    flip_bit(store.path, "embeddings", 7 * 12)
    flip_bit(store.path, "labels", 8 * 4)
    place = str(store.path)
    assert sorted(faults(verify_file(store.path)), key=str) == [
        (Damaged, f"{place}:/embeddings rows 0-1"),
        (Damaged, f"{place}:/labels rows 3-5"),
    ]


def test_faults_of_several_results_are_all_named(store):
    paths = {name: write_clusters(store, name) for name in ("a", "b", "c")}
    flip_bit(paths["a"], "cluster_ids")
    paths["c"].write_bytes(b"nothing")
    assert faults(verify_file(store.path)) == [(Damaged, str(paths["a"])), (NotAStore, str(paths["c"]))]
    assert faults(verify_results(paths["a"].parent)) == [(Damaged, str(paths["a"])), (NotAStore, str(paths["c"]))]
    assert faults(verify_file(paths["b"])) == []


def test_packed_results_are_checked_one_by_one(store, tmp_path):
    write_clusters(store, "a")
    write_clusters(store, "b")
    pack_store(store, tmp_path / "all.h5")
    flip_bit(tmp_path / "all.h5", "results/a/cluster_ids")
    checked = verify_file(tmp_path / "all.h5")
    assert kinds(checked) == ["store", "result", "result"]
    assert faults(checked) == [(Damaged, f"{tmp_path / 'all.h5'}:/results/a")]


def test_a_result_that_exists_twice_is_a_fault(store, tmp_path):
    write_clusters(store)
    pack_store(store, tmp_path / "all.h5")
    folder = tmp_path / "all.h5.results"
    folder.mkdir()
    contents = contents_of(tmp_path / "s.h5.results" / "first.h5")
    contents.set_attributes("", stage="another")
    (folder / "first.h5").write_bytes(contents.sealed().to_bytes())
    (found,) = faults(verify_file(tmp_path / "all.h5"))
    assert found == (StoreError, str(folder / "first.h5"))


@pytest.mark.slow
def test_stale_results_are_named(store):
    path = write_clusters(store)
    make_store(store.path, make_plan(metric="l2"), overwrite=True)
    for checked in (verify_file(store.path), verify_file(path), verify_results(path.parent)):
        assert faults(checked) == [(Mismatch, str(path))]


def test_files_are_checked_also_where_set_json_is_damaged(store):
    store = write_patches(store)
    folder = patches_folder(store.path)
    text = (folder / "SET.json").read_text()
    (folder / "SET.json").write_text(text.replace('"dim":2', '"dim":3'))
    flip_bit(folder / "SET-00002-of-00004.h5", "patches")
    assert faults(verify_patches(folder)) == [
        (Damaged, str(folder / "SET.json")),
        (Damaged, str(folder / "SET-00002-of-00004.h5")),
    ]


@pytest.fixture
def images(tmp_path):
    """Three files, and what was noted about them."""
    root = tmp_path / "images"
    names = ["a/0.png", "b/\udcff.png", "c.png"]
    for name in names:
        path = root / os.fsdecode(encode_name(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_name(name) * 3)
    digests = [hashlib.sha256(encode_name(name) * 3).digest() for name in names]
    return root, names, np.frombuffer(b"".join(digests), np.uint8).reshape(3, 32)


def test_images_that_are_as_they_were_are_the_same(images):
    assert verify_images(*images) == []


def test_missing_and_changed_images_are_told_apart(images):
    root = images[0]
    (root / "a" / "0.png").unlink()
    (root / "b" / "\udcff.png").write_bytes(b"longer than it was before")
    flip_bit(root / "c.png", 0)
    assert verify_images(*images) == [
        ("a/0.png", "is missing"),
        ("b/\udcff.png", "SHA-256 differs"),
        ("c.png", "SHA-256 differs"),
    ]

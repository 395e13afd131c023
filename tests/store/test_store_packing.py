"""A store and its results in one file: read like those beside it, the same bytes, nothing lost on the way."""

import hashlib
import shutil

import numpy as np
import pytest
from full_disk import full_disk
from labelkit.commands.store_files.packing import pack_store
from labelkit.errors import Damaged, OutputExistsError, ResourceError, StoreError
from labelkit.store.embeddings import open_store
from labelkit.store.results import list_results, read_result
from store_samples import contents_of, make_plan, make_store, write_clusters
from tests.running import flip_bit

IDS = [0, 1, 0, 1, -1, 0, 0, 1]


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_packed_file_is_the_store_with_its_results(store, tmp_path):
    write_clusters(store)
    write_clusters(store, "second", params={"note": "x" * 20_000})
    made = pack_store(store, tmp_path / "all.h5")

    packed = open_store(tmp_path / "all.h5")
    assert made.packed_results == packed.packed_results == ("first", "second")
    assert list_results(packed) == ["first", "second"]
    assert packed.content_digest == made.content_digest == store.content_digest
    np.testing.assert_array_equal(packed.embeddings, store.embeddings)
    for name in ("first", "second"):
        mine, its = read_result(store, name), read_result(packed, name)
        assert its.where == f"{tmp_path / 'all.h5'}:/results/{name}"
        assert (its.content_digest, its.params) == (mine.content_digest, mine.params)
        assert its.arrays["cluster_ids"].tolist() == IDS


def test_new_results_lie_beside_a_packed_store_and_go_into_the_next(store, tmp_path):
    write_clusters(store)
    pack_store(store, tmp_path / "all.h5")
    before = sha256(tmp_path / "all.h5")
    packed = open_store(tmp_path / "all.h5")
    assert write_clusters(packed, "new") == tmp_path / "all.h5.results" / "new.h5"
    assert list_results(packed) == ["first", "new"]
    assert sha256(tmp_path / "all.h5") == before
    assert pack_store(packed, tmp_path / "more.h5").packed_results == ("first", "new")


def test_a_packed_result_is_never_replaced(store, tmp_path):
    write_clusters(store)
    pack_store(store, tmp_path / "all.h5")
    packed = open_store(tmp_path / "all.h5")
    assert write_clusters(packed) == packed.path
    for overwrite in (False, True):
        with pytest.raises(OutputExistsError, match=r"other content\. Pass another --result\. A packed") as caught:
            write_clusters(packed, params={"seed": 4}, overwrite=overwrite)
        assert caught.value.where == f"{packed.path}:/results/first"
    assert not (tmp_path / "all.h5.results").exists()


def test_a_name_that_exists_twice_is_an_error_unless_the_content_is_the_same(store, tmp_path):
    write_clusters(store)
    pack_store(store, tmp_path / "all.h5")
    shutil.copytree(tmp_path / "s.h5.results", tmp_path / "all.h5.results")
    packed = open_store(tmp_path / "all.h5")
    assert read_result(packed, "first").arrays["cluster_ids"].tolist() == IDS
    write_clusters(store, arrays={"cluster_ids": np.zeros(8, int)}, overwrite=True)
    shutil.copy(tmp_path / "s.h5.results" / "first.h5", tmp_path / "all.h5.results" / "first.h5")
    with pytest.raises(StoreError, match="differs from the result of the same name"):
        read_result(packed, "first")


def test_results_of_other_content_are_not_packed(store, tmp_path):
    write_clusters(store)
    write_clusters(store, "other")
    changed = make_store(store.path, make_plan(metric="l2"), overwrite=True)
    with pytest.raises(StoreError, match="was created from another version of"):
        pack_store(changed, tmp_path / "all.h5")
    assert not (tmp_path / "all.h5").exists()


def test_what_is_there_is_kept_unless_it_is_to_be_replaced(store, tmp_path):
    write_clusters(store)
    out = tmp_path / "all.h5"
    pack_store(store, out)
    before = out.read_bytes()
    write_clusters(store, "second")
    with pytest.raises(OutputExistsError):
        pack_store(store, out)
    assert out.read_bytes() == before
    assert pack_store(store, out, overwrite=True).packed_results == ("first", "second")


def test_damaged_rows_are_found_while_they_are_copied(tmp_path):
    path = tmp_path / "s.h5"
    # large enough not to be read at once
    make_store(path, make_plan(dim=4096))
    path.write_bytes(contents_of(path).sealed(32768).to_bytes())
    flip_bit(path, "embeddings", 5 * 16384)
    with pytest.raises(Damaged) as caught:
        pack_store(open_store(path), tmp_path / "all.h5")
    assert caught.value.where == f"{path}:/embeddings rows 4-5"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["s.h5"]


def test_a_full_disk_leaves_nothing(store, tmp_path):
    with full_disk(3000), pytest.raises(ResourceError, match="larger than this system allows"):
        pack_store(store, tmp_path / "all.h5")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["s.h5"]

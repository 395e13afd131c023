"""Reading stores: as labelkit, and as anyone with h5py."""

from dataclasses import replace

import numpy as np
import pytest
from labelkit.errors import Mismatch, NotAStore
from labelkit.store.embeddings import open_store
from store_samples import MODEL, make_plan, make_store, rows_of


def test_what_was_written_is_read(tmp_path):
    # all else is that of the store of format 1.0, see test_store_formats.py
    store = make_store(tmp_path / "s.h5", bad={1: "broken\nimage"})
    expected = np.concatenate([rows_of(make_plan(), [row])["embeddings"] for row in (0, 2, 3, 4, 5, 6, 7)])
    np.testing.assert_array_equal(store.embeddings, expected)
    assert store.skipped == [("a/1.png", "broken image")]
    assert store.plan_digest == make_plan().digest()


def test_types_are_those_of_the_format(tmp_path):
    store = make_store(tmp_path / "s.h5", make_plan(dtype="float16"))
    types = [store.embeddings, store.extras["logits"], store.labels, store.splits, store.file_sizes, store.image_sizes]
    assert [array.dtype.str for array in types] == ["<f2", "<f4", "<i8", "<i2", "<u8", "<u4"]


def test_labels_and_splits_may_be_absent(tmp_path):
    bare = {"labels": None, "labeled": None, "class_names": (), "old_classes": None, "splits": None, "split_names": ()}
    store = make_store(tmp_path / "s.h5", make_plan(**bare, extras={}))
    assert store.labels is store.labeled is store.old_classes is store.splits is None
    assert (store.class_names, store.split_names, store.skipped, store.extras) == ((), (), [], {})
    assert store.rows(None).tolist() == list(range(8))


def test_rows_of_a_split_are_in_order(tmp_path):
    store = make_store(tmp_path / "s.h5")
    assert store.rows("train").tolist() == [0, 2, 4, 7]
    assert store.rows("test").tolist() == [1, 3, 5]
    with pytest.raises(Mismatch, match="its splits: train, test"):
        store.rows("val")


def test_a_replaced_store_stays_whole_for_its_readers(tmp_path):
    old = make_store(tmp_path / "s.h5", make_plan(dim=2000))
    make_store(tmp_path / "s.h5", make_plan(dim=10), overwrite=True)
    assert old.embeddings.shape == (8, 2000)
    assert open_store(tmp_path / "s.h5").dim == 10


def test_models_differ_in_what_changes_embeddings():
    other = replace(
        MODEL,
        name="n",
        source="s",
        numerics={},
        weights_file_sha256="",
        layer="head",
        preprocess={"mean": [0.5], "crop": 3},
    )
    assert MODEL.differences(MODEL) == []
    assert MODEL.differences(replace(MODEL, name="n", source="s", numerics={}, weights_file_sha256="")) == []
    assert MODEL.differences(other) == ["layer", "preprocess.crop", "preprocess.resize", "preprocess.std"]


def test_stores_differ_in_length_too(tmp_path):
    left = make_store(tmp_path / "a.h5")
    right = make_store(tmp_path / "b.h5", make_plan(dim=4))
    assert left.differences(left) == []
    assert left.differences(right) == [f"dim ({left.dim} and 4)"]


@pytest.mark.parametrize("name", ["missing.h5", "folder"])
def test_what_is_not_a_file_is_named(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(NotAStore) as caught:
        open_store(tmp_path / name)
    assert caught.value.where == str(tmp_path / name)

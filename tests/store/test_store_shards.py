"""Stores in shards: the same content as in one file, read by the same code, and damage is named by its file."""

import pickle
import resource

import h5py
import labelkit
import numpy as np
import pytest
from full_disk import full_disk
from labelkit.commands.store_files.packing import pack_store
from labelkit.commands.store_files.verify import verify_file
from labelkit.errors import ResourceError, StoreError
from labelkit.store import schema
from labelkit.store.embeddings import open_store
from labelkit.store.reader import VIRTUAL_NAME, reopen_column, shards_folder
from labelkit.store.writer import FileContents, shard_ranges
from labelkit.store.writing import EmbeddingRun
from store_samples import make_plan, make_store, write_part
from tests.running import flip_bit
from tests.tiers import quick_every

BAD = {1: "broken", 4: "empty"}


def shard_paths(out):
    return sorted(path for path in shards_folder(out).iterdir() if path.name != VIRTUAL_NAME)


@pytest.mark.parametrize("shards", quick_every(3, [1, 3, 99]))
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_store_in_shards_holds_what_one_file_holds(tmp_path, shards, dtype):
    one = make_store(tmp_path / "one.h5", make_plan(dtype=dtype), bad=BAD)
    many = make_store(tmp_path / "many.h5", make_plan(dtype=dtype), shards=shards, bad=BAD)
    assert many.content_digest == one.content_digest
    assert many.num_shards == {1: 1, 3: 3, 99: 6}[shards]
    np.testing.assert_array_equal(many.embeddings, one.embeddings)
    np.testing.assert_array_equal(many.extras["logits"], one.extras["logits"])
    assert many.embeddings.dtype == one.embeddings.dtype
    for name in ("sample_ids", "skipped", "class_names", "split_names", "model", "plan_digest", "created_by"):
        assert getattr(many, name) == getattr(one, name)
    for name in ("labels", "labeled", "splits", "sha256", "file_sizes", "image_sizes"):
        np.testing.assert_array_equal(getattr(many, name), getattr(one, name))
    with h5py.File(many.path) as file:  # no rows to be taken for all of them
        assert (file.attrs["requires"], "embeddings" in file, "logits" in file) == (b"sharded", False, False)
    assert EmbeddingRun.open(many.path, make_plan(dtype=dtype)).already_done  # shards are no part of the plan


def test_others_read_all_shards_by_one_file_and_see_which_are_lost(tmp_path):
    one = make_store(tmp_path / "one.h5")
    make_store(tmp_path / "many.h5", shards=3)
    for folder in (tmp_path, tmp_path / "moved"):
        with h5py.File(folder / "many.h5.shards" / "all.h5") as file:
            np.testing.assert_array_equal(file["embeddings"][:], one.embeddings)
            np.testing.assert_array_equal(file["logits"][:], one.extras["logits"])
        if folder == tmp_path:
            (tmp_path / "moved").mkdir()
            (tmp_path / "many.h5.shards").rename(tmp_path / "moved" / "many.h5.shards")
    lost = shard_paths(tmp_path / "moved" / "many.h5")[0]
    lost.unlink()
    with h5py.File(lost.with_name("all.h5")) as file:
        is_lost = np.isnan(file["embeddings"][:]).all(axis=1)
    assert is_lost[0]
    assert not is_lost[-1]


def test_rows_in_shards_are_read_by_slices_and_places(tmp_path, monkeypatch):
    one = make_store(tmp_path / "one.h5").embeddings
    make_store(tmp_path / "many.h5", shards=3)
    monkeypatch.chdir(tmp_path)
    lazy = open_store("many.h5").lazy_embeddings
    raw = pickle.dumps(lazy)
    monkeypatch.chdir("/")  # where other processes may be
    sent = pickle.loads(raw)
    monkeypatch.chdir(tmp_path)
    places = np.array([[len(one) - 1, 0], [1, 0]])
    for rows in (lazy, sent):
        assert (len(rows), rows.shape, rows.dtype) == (len(one), one.shape, one.dtype)
        for where in (slice(None), slice(1, 3), slice(2, 2), places, places[0]):
            np.testing.assert_array_equal(rows[where], one[where])


def test_rows_of_a_store_that_was_replaced_are_not_read_elsewhere(tmp_path):
    sent = pickle.dumps(make_store(tmp_path / "s.h5", shards=3).lazy_embeddings)
    reopen_column.cache_clear()
    make_store(tmp_path / "s.h5", make_plan(dtype="float16"), overwrite=True, shards=3)
    with pytest.raises(StoreError, match="replaced by another store"):
        pickle.loads(sent)


def test_pack_splits_a_store_and_puts_it_together_with_the_same_bytes(tmp_path):
    one = make_store(tmp_path / "one.h5", bad=BAD)
    split = pack_store(one, tmp_path / "split.h5", shards=3)
    assert (split.num_shards, split.content_digest) == (3, one.content_digest)
    many = open_store(tmp_path / "split.h5")
    np.testing.assert_array_equal(many.embeddings, one.embeddings)
    assert pack_store(many, tmp_path / "again.h5").num_shards == 0
    assert (tmp_path / "again.h5").read_bytes() == (tmp_path / "one.h5").read_bytes()


def test_pack_splits_rows_of_several_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(schema, "BLOCK_BYTES", 4 * 3 * 2)  # two rows per digest
    one = make_store(tmp_path / "one.h5")
    pack_store(one, tmp_path / "split.h5", shards=3)
    many = open_store(tmp_path / "split.h5")
    assert many.content_digest == one.content_digest
    np.testing.assert_array_equal(many.embeddings, one.embeddings)
    pack_store(many, tmp_path / "other.h5", shards=5)
    np.testing.assert_array_equal(open_store(tmp_path / "other.h5").embeddings, one.embeddings)


@pytest.mark.slow
def test_a_table_of_many_shards_is_a_dataset_that_is_packed_away(tmp_path):
    names = [f"{number:03d}.png" for number in range(200)]
    columns = {"labels": None, "labeled": None, "class_names": (), "old_classes": None, "splits": None}
    one = make_store(tmp_path / "one.h5", make_plan(sample_ids=names, split_names=(), part_rows=200, **columns))
    pack_store(one, tmp_path / "many.h5", shards=1000)
    with h5py.File(tmp_path / "many.h5") as file:
        assert "shards" not in file.attrs
        assert file["shards"].shape == ()
    many = open_store(tmp_path / "many.h5")
    assert (many.num_shards, many.content_digest) == (200, one.content_digest)
    np.testing.assert_array_equal(many.embeddings, one.embeddings)
    pack_store(many, tmp_path / "again.h5")
    assert (tmp_path / "again.h5").read_bytes() == (tmp_path / "one.h5").read_bytes()


def test_a_store_without_images_can_be_split(tmp_path):
    source = tmp_path / "rows.npy"
    np.save(source, np.arange(12, dtype=np.float32).reshape(4, 3) + 1)
    labelkit.import_(source=source, out=tmp_path / "one.h5")
    labelkit.import_(source=source, out=tmp_path / "many.h5", shards=2)
    one, many = open_store(tmp_path / "one.h5"), open_store(tmp_path / "many.h5")
    assert (many.content_digest, many.has_images, many.num_shards) == (one.content_digest, False, 2)
    np.testing.assert_array_equal(many.embeddings, np.load(source))


@pytest.mark.parametrize("rows", [1, 7, 16, 1000])
@pytest.mark.parametrize("count", [1, 3, 16])
def test_small_stores_are_split_as_asked_into_equal_shards(rows, count):
    borders = shard_ranges(rows, count)
    assert len(borders) == min(count, rows)
    assert [row for start, stop in borders for row in range(start, stop)] == list(range(rows))
    sizes = [stop - start for start, stop in borders]
    assert max(sizes) - min(sizes) <= 1


def test_a_replaced_store_takes_its_shards_along(tmp_path):
    make_store(tmp_path / "s.h5", shards=3)
    old = shard_paths(tmp_path / "s.h5")
    other = make_plan(labels=None, labeled=None, class_names=(), old_classes=None)
    new = make_store(tmp_path / "s.h5", other, overwrite=True, shards=3)
    assert not set(old) & set(shard_paths(tmp_path / "s.h5"))
    assert len(shard_paths(tmp_path / "s.h5")) == 3
    assert new.labels is None
    make_store(tmp_path / "s.h5", overwrite=True)
    assert not shards_folder(tmp_path / "s.h5").exists()


@pytest.mark.parametrize("failing", range(4))
def test_a_full_disk_leaves_no_shard_and_the_run_goes_on(tmp_path, monkeypatch, failing):
    out = tmp_path / "s.h5"
    run = EmbeddingRun.open(out, make_plan())
    for part in run.pending_parts():
        write_part(run, part)
    real, count = FileContents.write, iter(range(10))

    def full(image, file):
        with full_disk(500 if next(count) == failing else resource.RLIM_INFINITY):
            return real(image, file)

    with monkeypatch.context() as patch:
        patch.setattr(FileContents, "write", full)
        with pytest.raises(ResourceError, match="larger than this system allows"):
            run.publish(0.5, 3)
    assert not out.exists()
    assert not shards_folder(out).exists()
    EmbeddingRun.open(out, make_plan()).publish(0.5, 3)
    np.testing.assert_array_equal(open_store(out).embeddings, make_store(tmp_path / "one.h5").embeddings)


def test_shards_that_a_kill_left_are_written_again(tmp_path):
    out = tmp_path / "s.h5"
    make_store(out, shards=3)
    whole = {path.name: path.read_bytes() for path in shard_paths(out)}
    out.unlink()
    shard_paths(out)[0].write_bytes(b"torn")
    shard_paths(out)[2].unlink()
    make_store(out, shards=3)
    assert {path.name: path.read_bytes() for path in shard_paths(out)} == whole


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path / "s.h5", make_plan(splits=None, split_names=()), shards=4).path


def test_verify_finds_nothing_wrong_with_a_whole_store(store):
    [found] = verify_file(store)
    assert found.faults == []
    assert found.num_bytes > 8 * 3 * 4
    [shard] = verify_file(shard_paths(store)[0])
    assert (shard.kind, shard.faults) == ("shard", [])


def test_a_link_to_a_store_finds_its_shards(store):
    (store.parent / "links").mkdir()
    link = store.parent / "links" / "latest.h5"
    link.symlink_to(store)
    np.testing.assert_array_equal(open_store(link).embeddings, open_store(store).embeddings)


def test_a_flipped_bit_of_the_table_is_found(store):
    at = store.read_bytes().index(b'"frame"')
    for offset in (at, at + 20, at + 60):
        data = store.read_bytes()
        flip_bit(store, offset)
        with pytest.raises(StoreError):
            open_store(store)
        store.write_bytes(data)

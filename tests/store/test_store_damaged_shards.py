"""Shards that are lost or damaged are named, with the command that makes them again."""

import os

import pytest
from labelkit.commands.store_files.verify import verify_file
from labelkit.errors import Damaged
from labelkit.store.embeddings import open_store
from shard_samples import flip, make_sharded, rows_offset, shard_paths
from store_samples import make_plan


@pytest.fixture
def store(tmp_path):
    return make_sharded(tmp_path / "s.h5", make_plan(splits=None, split_names=()), shards=4).path


SPOILED = {
    "lost": (lambda path: path.unlink(), "the shard does not exist (it contains rows 4-5)"),
    "cut": (lambda path: os.truncate(path, path.stat().st_size - 1), "expected"),
    "grown": (lambda path: path.write_bytes(path.read_bytes() + b"\0"), "expected"),
    "rows": (lambda path: flip(path, rows_offset(path)), "content digest differs"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPOILED)
def test_a_damaged_shard_is_named(store, kind):
    spoil, problem = SPOILED[kind]
    path = shard_paths(store)[2]
    spoil(path)
    with pytest.raises(Damaged) as caught:
        _ = open_store(store).embeddings
    assert caught.value.where == str(path)
    assert problem in caught.value.problem
    assert "labelkit embed" in caught.value.remedy


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPOILED)
def test_verify_names_all_damaged_shards_and_only_these(store, kind):
    paths = shard_paths(store)
    SPOILED[kind][0](paths[2])
    paths[0].unlink()
    [found] = verify_file(store)
    assert [fault.where for fault in found.faults] == [str(paths[0]), str(paths[2])]


def test_verify_finds_nothing_wrong_with_a_whole_store(store):
    [found] = verify_file(store)
    assert found.faults == []
    assert found.num_bytes > 8 * 3 * 4
    [shard] = verify_file(shard_paths(store)[0])
    assert (shard.kind, shard.faults) == ("shard", [])

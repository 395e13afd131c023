"""Shards that are lost or damaged: named, left out, and made again."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest
from labelkit.errors import Damaged, Mismatch, OutputExistsError, StoreError
from labelkit.store import schema
from labelkit.store.embeddings import open_store
from labelkit.store.reuse import copy_rows, match_rows
from labelkit.store.shard_writing import Sharding
from labelkit.store.shards import shards_folder
from labelkit.store.verification import verify_file
from labelkit.store.writing import EmbeddingRun
from shard_samples import BAD, PAGE_DIM, flip, make_sharded, rows_offset, shard_paths
from store_samples import make_plan, make_store, write_part


@pytest.fixture
def mapped(monkeypatch):
    """Shards of any size fill whole pages, as those of large stores do."""
    monkeypatch.setattr(schema, "UNALIGNED_BYTES", 0)
    monkeypatch.setattr(schema, "COPIED_BYTES", 0)


# ---- damage


@pytest.fixture
def store(tmp_path):
    return make_sharded(tmp_path / "s.h5", make_plan(splits=None, split_names=()), sharding=Sharding(count=4)).path


def other_model(path):
    source = path.parent.parent / "other" / "s.h5"
    source.parent.mkdir()
    make_sharded(source, make_plan(dtype="float32", created_by="labelkit 9.9"), sharding=Sharding(count=4))
    shutil.copyfile(shard_paths(source)[2], path)


SPOILED = {
    "lost": (lambda path: path.unlink(), "there is no such shard (rows 4-5 are in it)"),
    "cut": (lambda path: os.truncate(path, path.stat().st_size - 1), "expected"),
    "grown": (lambda path: path.write_bytes(path.read_bytes() + b"\0"), "expected"),
    "of another model": (other_model, "its header differs"),
    "header": (lambda path: flip(path, 100), "its header differs"),
    "rows": (lambda path: flip(path, rows_offset(path)), "digest of embeddings differs"),
}


@pytest.mark.parametrize("kind", SPOILED)
def test_a_damaged_shard_is_named(store, kind):
    spoil, problem = SPOILED[kind]
    path = shard_paths(store)[2]
    spoil(path)
    with pytest.raises(Damaged) as caught:
        _ = open_store(store).embeddings
    assert caught.value.where == str(path)
    assert problem in caught.value.problem
    assert "--skip-damaged" in caught.value.remedy


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


@pytest.mark.parametrize("kind", SPOILED)
def test_the_rest_of_a_damaged_store_can_be_read(store, kind):
    whole = np.array(open_store(store).embeddings)
    path = shard_paths(store)[2]
    SPOILED[kind][0](path)
    rest = open_store(store, skip_damaged=True)
    assert rest.sound.tolist() == [True] * 4 + [False] * 2 + [True] * 2
    assert [fault.where for fault in rest.damaged] == [str(path)]
    np.testing.assert_array_equal(rest.embeddings[rest.sound], whole[rest.sound])
    assert not rest.embeddings[4:6].any()


def test_the_rest_of_a_mapped_store_can_be_read(tmp_path, mapped):
    plan = make_plan(dim=PAGE_DIM, extras={})
    whole = make_sharded(tmp_path / "s.h5", plan, sharding=Sharding(count=4))
    expected = np.array(whole.embeddings)
    shard_paths(whole.path)[1].unlink()
    rest = open_store(whole.path, skip_damaged=True)
    np.testing.assert_array_equal(rest.embeddings[rest.sound], expected[rest.sound])
    assert not rest.embeddings[2:4].any()
    assert rest.sound.sum() == 6


def test_several_damaged_shards_are_one_error(store):
    paths = shard_paths(store)
    for number in (1, 3):
        paths[number].unlink()
    with pytest.raises(Damaged) as caught:
        open_store(store)
    assert caught.value.where == str(paths[1])
    assert paths[3].name in caught.value.problem


def test_a_store_whose_shards_are_all_lost_cannot_be_skipped(store):
    shutil.rmtree(shards_folder(store))
    with pytest.raises(Damaged):
        open_store(store, skip_damaged=True)


def test_rows_of_a_lost_shard_are_not_reused(store):
    whole = open_store(store)
    digests = [row.tobytes() for row in whole.sha256]
    shard_paths(store)[2].unlink()
    rest = open_store(store, skip_damaged=True)
    assert (match_rows([rest], whole.sample_ids, digests)[:, 0] >= 0).tolist() == rest.sound.tolist()
    with pytest.raises(Damaged):
        copy_rows([rest], np.array([[0, 4]]), [])


def test_numbers_that_are_not_finite_are_found(tmp_path, monkeypatch):
    from labelkit.store import writing

    monkeypatch.setattr(writing, "cast_finite", lambda values, kind, *rest: values.astype(kind))
    run = EmbeddingRun.open(tmp_path / "s.h5", make_plan(extras={}))
    monkeypatch.setattr("store_samples.rows_of", _with_nan(monkeypatch))
    for part in run.pending_parts():
        write_part(run, part)
    run.publish(0.5, Sharding(count=4))
    with pytest.raises(StoreError, match="not finite"):
        _ = open_store(tmp_path / "s.h5").embeddings
    rest = open_store(tmp_path / "s.h5", skip_damaged=True)
    assert [fault.where for fault in rest.damaged] == [str(shard_paths(tmp_path / "s.h5")[1])]


def _with_nan(monkeypatch):
    import store_samples

    original = store_samples.rows_of

    def rows(plan, positions):
        found = original(plan, positions)
        found["embeddings"] = np.where(np.array(positions)[:, None] == 3, np.nan, found["embeddings"])
        return found

    return rows


# ---- repair


def repaired(out, plan, **changes):
    """Give the same run again; returns which parts were made."""
    run = EmbeddingRun.open(out, plan)
    parts = run.pending_parts()
    for part in parts:
        write_part(run, part, changes.get("bad"))
    run.publish(0.5, changes.get("sharding"))
    return parts, run.warnings


@pytest.mark.parametrize("kind", SPOILED)
@pytest.mark.parametrize("bad", [{}, BAD])
def test_the_same_run_again_makes_the_rows_of_a_damaged_shard_alone(tmp_path, kind, bad):
    plan = make_plan(part_rows=2)
    out = make_sharded(tmp_path / "s.h5", plan, sharding=Sharding(count=3), bad=bad).path
    whole = {path.name: path.read_bytes() for path in [out, *shard_paths(out)]}
    path = shard_paths(out)[2]
    SPOILED[kind][0](path)
    parts, warnings = repaired(out, plan, bad=bad)
    # rows 5 to 7 are images 5 to 7; without images 1 and 4, rows 4 and 5 are images 6 and 7
    assert parts == ([3] if bad else [2, 3])
    assert len(warnings) == 1
    assert warnings[0].startswith(str(path))
    assert {path.name: path.read_bytes() for path in [out, *shard_paths(out)]} == whole
    assert not out.with_name("s.h5.run").exists()
    assert EmbeddingRun.open(out, plan).already_done


def test_a_repair_that_was_killed_goes_on(tmp_path):
    plan = make_plan(part_rows=2)
    out = make_sharded(tmp_path / "s.h5", plan, sharding=Sharding(count=2)).path
    whole = {path.name: path.read_bytes() for path in [out, *shard_paths(out)]}
    shard_paths(out)[1].unlink()
    run = EmbeddingRun.open(out, plan)
    assert run.pending_parts() == [2, 3]
    write_part(run, 2)
    assert repaired(out, plan, sharding=Sharding(count=2))[0] == [3]
    assert {path.name: path.read_bytes() for path in [out, *shard_paths(out)]} == whole


def test_rows_that_come_out_other_than_they_were_do_not_replace_a_store(tmp_path, store):
    shard_paths(store)[2].unlink()
    plan = make_plan(splits=None, split_names=())
    with pytest.raises(Mismatch, match="not those that were lost"):
        repaired(store, plan, bad={5: "broken now"})
    assert len(shard_paths(store)) == 3
    assert open_store(store, skip_damaged=True).sound.sum() == 6


def test_a_damaged_store_of_another_plan_is_not_repaired(store):
    shard_paths(store)[2].unlink()
    with pytest.raises(OutputExistsError, match="cannot be used"):
        EmbeddingRun.open(store, make_plan(metric="l2"))


def test_a_store_in_one_file_is_not_repaired(tmp_path):
    path = make_store(tmp_path / "s.h5").path
    flip(path, rows_offset(path))
    with pytest.raises(OutputExistsError, match="cannot be used"):
        EmbeddingRun.open(path, make_plan())

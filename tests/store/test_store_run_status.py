"""How far an unfinished store is, read from its run folder without changing it."""

import json

import pytest
from labelkit.commands.store_files.status import read_embedding_status
from labelkit.errors import Damaged, Mismatch
from labelkit.store.writing import EmbeddingRun
from store_samples import NOT_UTF8, make_plan, make_store, write_part
from tests.running import flip_bit


@pytest.fixture
def run(tmp_path):
    """Eight images in four parts of two."""
    return EmbeddingRun.open(tmp_path / "s.h5", make_plan(part_rows=2))


def part(run, number):
    return run.out.with_name(run.out.name + ".run") / "parts" / f"{number:06d}.h5"


def test_where_nothing_runs_there_is_no_status(tmp_path):
    assert read_embedding_status(tmp_path / "s.h5") == (None, [])
    make_store(tmp_path / "s.h5")
    assert read_embedding_status(tmp_path / "s.h5") == (None, [])


def test_parts_rows_and_skipped_images_are_counted(run):
    write_part(run, 0, {1: "truncated"})
    write_part(run, 3, {7: "too large"})
    seen = []
    status, damaged = read_embedding_status(run.out, seen.append)
    assert (status["parts"]["done"], status["images"]["done"]) == (2, 2)
    skipped = [("a/1.png", "truncated"), (NOT_UTF8, "too large")]
    assert status["skipped"] == [{"image": name, "reason": reason} for name, reason in skipped]
    assert status["bytes"] == sum(part(run, number).stat().st_size for number in (0, 3))
    assert (status["damaged"], damaged, seen) == ([], [], [1, 1])


def test_damaged_parts_are_named_and_left_as_they_are(run):
    for number in range(3):
        write_part(run, number)
    flip_bit(part(run, 1), 2000)
    data = part(run, 1).read_bytes()
    part(run, 2).replace(part(run, 3))
    status, damaged = read_embedding_status(run.out)
    assert (status["parts"]["done"], status["images"]["done"]) == (1, 2)
    assert [fault["part"] for fault in status["damaged"]] == ["000001.h5", "000003.h5"]
    assert [type(fault) for fault in damaged] == [Damaged, Mismatch]
    assert part(run, 1).read_bytes() == data
    assert run.pending_parts() == [1, 2, 3]


@pytest.mark.parametrize(
    "change",
    [{"part_rows": 0}, {"part_rows": "2"}, {"files": None}, {"files": {"count": 10**18}}],
)
def test_a_plan_that_is_none_is_an_error(run, change):
    path = part(run, 0).parents[1] / "plan.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(Damaged) as caught:
        read_embedding_status(run.out)
    assert caught.value.where == str(path)

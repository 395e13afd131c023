"""How far an unfinished store is, read from its run folder without changing it."""

import json

import pytest
from labelkit.commands.store_files.status import read_embedding_status
from labelkit.errors import Damaged, Mismatch
from labelkit.store.writing import EmbeddingRun
from store_samples import make_plan, make_store, write_part


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


def test_a_part_in_the_place_of_another_is_damaged(run):
    write_part(run, 2)
    part(run, 2).replace(part(run, 3))
    status, damaged = read_embedding_status(run.out)
    assert [(fault["part"], type(error)) for fault, error in zip(status["damaged"], damaged, strict=True)] == [
        ("000003.h5", Mismatch)
    ]
    assert run.pending_parts() == [0, 1, 2, 3]


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

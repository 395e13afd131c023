import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from labelkit.errors import CheckpointDamaged, ResourceError
from labelkit.training.checkpoint import (
    MODEL,
    STATE,
    TRAINING,
    CheckpointWriter,
    load_checkpoint,
    rank_file_name,
    read_last_pointer,
    verify_checkpoint,
)
from tests.running import flip_bit
from tests.tiers import quick_every
from torch import Tensor
from torture_faults import Killed, fail, moments_of

FILES = [MODEL, TRAINING, rank_file_name(0), STATE]


def _tensors(step: int) -> dict[str, dict[str, Tensor]]:
    shared = torch.arange(6.0).reshape(2, 3) + step
    return {
        "model": {"w": shared, "tied": shared, "transposed": shared.T, "half": shared.bfloat16(), "none": shared[:0]},
        "training": {"optimizer.0/w/exp_avg": shared * 2, "optimizer.0/w/step": torch.tensor(float(step))},
        "per_rank": {"torch": torch.arange(5, dtype=torch.uint8)},
    }


def _save(writer: CheckpointWriter, step: int, **state: Any) -> Path:
    return writer.save(step, **_tensors(step), state={"epoch": 0, **state}, metadata={"labelkit": "1"})


@pytest.fixture
def writer(tmp_path: Path) -> CheckpointWriter:
    return CheckpointWriter(tmp_path / "run" / "checkpoints")


@pytest.fixture
def run(writer: CheckpointWriter) -> Path:
    return writer.folder.parent


def _names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def test_tensors_and_state_come_back_exactly(writer: CheckpointWriter, run: Path) -> None:
    _save(writer, 7, counters={"a": [1, 2.5, None, True, "x"]}, tiny=5e-324, third=1 / 3)
    loaded = load_checkpoint(run)
    assert loaded.warnings == ()
    for name, wanted in (("model", MODEL), ("training", TRAINING), ("per_rank", rank_file_name(0))):
        tensors = loaded.tensors(wanted)
        expected = _tensors(7)[name]
        assert tensors.keys() == expected.keys()
        for key, value in expected.items():
            assert tensors[key].dtype == value.dtype
            assert torch.equal(tensors[key], value)
    state = loaded.state
    assert (state["step"], state["epoch"], state["tiny"], state["third"]) == (7, 0, 5e-324, 1 / 3)
    assert state["counters"] == {"a": [1, 2.5, None, True, "x"]}


def test_one_checkpoint_can_be_named(writer: CheckpointWriter) -> None:
    old = _save(writer, 1)
    _save(writer, 2)
    assert load_checkpoint(old).state["step"] == 1


def test_every_process_writes_its_file_and_the_main_one_seals_them(tmp_path: Path) -> None:
    barriers: list[int] = []

    def other_rank() -> None:
        barriers.append(0)
        if len(barriers) == 1:  # the folder is there, rank 1 writes next to rank 0
            other = CheckpointWriter(tmp_path, rank=1)
            other._write(tmp_path / "step-00000001", **_tensors(1), state={"step": 1}, metadata={})

    main = CheckpointWriter(tmp_path, rank=0, barrier=other_rank)
    folder = _save(main, 1)
    assert set(verify_checkpoint(folder)["files"]) == {MODEL, TRAINING, rank_file_name(0), rank_file_name(1)}


@pytest.mark.parametrize("name", [*FILES, None])
def test_a_last_checkpoint_that_is_damaged_or_vanished_is_passed_over_with_a_warning(
    writer: CheckpointWriter, run: Path, name: str | None
) -> None:
    _save(writer, 1)
    last = _save(writer, 2)
    if name is None:
        shutil.rmtree(last)
    else:
        flip_bit(last / name, -1)
    loaded = load_checkpoint(run)
    assert loaded.state["step"] == 1
    (warning,) = loaded.warnings
    assert f"step-00000002/{name or ''}".rstrip("/") in warning


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_noticed(writer: CheckpointWriter, name: str) -> None:
    path = _save(writer, 1) / name
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CheckpointDamaged, match=name):
        verify_checkpoint(path.parent)


def test_none_that_verifies_is_an_error_and_never_a_new_start(writer: CheckpointWriter, run: Path) -> None:
    for step in (1, 2):
        flip_bit(_save(writer, step) / MODEL, -1)
    with pytest.raises(CheckpointDamaged, match=r"no checkpoint is intact: .*step-00000002.*step-00000001") as caught:
        load_checkpoint(run)
    assert caught.value.exit_code == 3


def test_a_torn_pointer_costs_a_warning(writer: CheckpointWriter, run: Path) -> None:
    _save(writer, 1)
    _save(writer, 2)
    (writer.folder / "last.json").write_text('{"checkp')
    loaded = load_checkpoint(run)
    assert loaded.state["step"] == 2
    assert "last.json" in loaded.warnings[0]


def test_a_pointer_out_of_the_folder_is_not_followed(writer: CheckpointWriter) -> None:
    _save(writer, 1)
    (writer.folder / "last.json").write_text('{"checkpoint": "../elsewhere", "state_sha256": ""}')
    assert read_last_pointer(writer.folder) is None


def _run_with_two(folder: Path) -> CheckpointWriter:
    writer = CheckpointWriter(folder / "checkpoints")
    _save(writer, 0)
    _save(writer, 1, mark="old")
    return writer


@pytest.mark.parametrize("step", quick_every(2, [2, 1]))
def test_a_kill_at_any_disk_call_leaves_a_checkpoint_in_force(tmp_path: Path, step: int) -> None:
    """Step 1 is saved again, as by a resume at the end of an epoch; step 2 is new."""
    writer = _run_with_two(tmp_path / "count")
    moments = moments_of(lambda: _save(writer, step, mark="new"), "kill")
    marks = []
    for at in moments:
        writer = _run_with_two(tmp_path / f"{at}")
        assert fail(lambda writer=writer: _save(writer, step, mark="new"), at, "kill") is Killed
        loaded = load_checkpoint(writer.folder.parent)
        assert loaded.warnings == ()
        assert torch.equal(loaded.tensors(MODEL)["w"], _tensors(loaded.state["step"])["model"]["w"])
        marks.append(loaded.state["mark"])
        # and the next process goes on as if nothing had happened
        _save(writer, step, mark="newer")
        assert load_checkpoint(writer.folder.parent).state["mark"] == "newer"
        assert not [name for name in _names(writer.folder.parent) if name.startswith(".")]
    switch = marks.index("new")
    assert marks == ["old"] * switch + ["new"] * (len(moments) - switch)


@pytest.mark.parametrize("name", ["fsync", "mkdir"])
def test_a_full_disk_is_an_error_that_leaves_the_last_checkpoint(
    writer: CheckpointWriter, run: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    _save(writer, 1)

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(os, name, full)
        with pytest.raises(ResourceError, match="disk is full") as caught:
            _save(writer, 2)
    assert caught.value.exit_code == 5
    assert _names(run) == ["last.json", "step-00000001"]
    assert load_checkpoint(run).state["step"] == 1


def test_the_last_two_are_kept(writer: CheckpointWriter, run: Path) -> None:
    for step in (1, 2, 3, 4, 5):
        _save(writer, step)
    assert _names(run) == ["last.json", "step-00000004", "step-00000005"]


def test_the_last_sound_one_stays_while_training_may_go_wrong(writer: CheckpointWriter, run: Path) -> None:
    for step in range(10, 60, 10):
        writer.kept_step = 20 if step >= 20 else 0
        _save(writer, step)
    assert _names(run) == ["last.json", *(f"step-{step:08d}" for step in (20, 40, 50))]


def test_checkpoints_of_a_future_that_was_given_up_do_not_push_out_good_ones(
    writer: CheckpointWriter, run: Path
) -> None:
    _save(writer, 1)
    flip_bit(_save(writer, 9) / MODEL, -1)
    _save(writer, 2)  # resumed from step 1
    assert _names(run) == ["last.json", "step-00000001", "step-00000002"]


def test_left_overs_of_a_killed_process_are_removed(writer: CheckpointWriter, run: Path) -> None:
    _save(writer, 1)
    for name in (".tmp-2-abcd", ".trash-step-00000000-abcd"):
        (writer.folder / name).mkdir()
        (writer.folder / name / "x").touch()
    (writer.folder / ".tmp-99-beef").touch()
    _save(writer, 2)
    assert _names(run) == ["last.json", "step-00000001", "step-00000002"]


def test_a_pointer_to_another_checkpoint_than_it_was_written_for_is_told(writer: CheckpointWriter, run: Path) -> None:
    for step in (2, 3):
        _save(writer, step)
    path = writer.folder / "last.json"
    path.write_text(path.read_text().replace("step-00000003", "step-00000002"))
    loaded = load_checkpoint(run)
    assert loaded.folder.name == "step-00000003"
    assert "was written for another checkpoint" in loaded.warnings[0]

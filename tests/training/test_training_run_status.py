"""Run folders as they are found: finished, stopped, damaged, in use; and a checkpoint of a past format."""

import fcntl
import hashlib
import json
import math
import shutil
from pathlib import Path

import torch
from labelkit.errors import CheckpointDamaged, CheckpointError
from labelkit.training.checkpoint import MODEL, TRAINING, CheckpointWriter, load_checkpoint, rank_file_name
from labelkit.training.run_status import inspect_checkpoint, inspect_run

GOLDEN = Path(__file__).parents[1] / "data" / "formats" / "checkpoints-1.0"


def make_run(tmp_path: Path, steps: tuple[int, ...] = (2, 4)) -> Path:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("# labelkit train softmax --config config.yaml\nepochs: 8\nlr: 0.1\n")
    lines = [json.dumps({"epoch": step // 2 - 1, "step": step, "loss": 1 / step}) + "\n" for step in steps]
    (run / "metrics.jsonl").write_text("".join(lines))
    writer = CheckpointWriter(run / "checkpoints")
    for number, step in enumerate(steps, start=1):
        writer.save(
            step,
            model={"w": torch.full((2,), float(step))},
            training={},
            per_rank={"g": torch.zeros(1)},
            state={"epoch": step // 2, "metrics_bytes": len("".join(lines[:number]))},
            metadata={},
        )
    return run


def wheres(faults: list[CheckpointError]) -> list[str]:
    return [fault.where for fault in faults]


def test_a_checkpoint_of_format_1_0_is_read() -> None:
    found = load_checkpoint(GOLDEN)
    assert found.folder == GOLDEN / "step-00000003"
    assert found.warnings == ()
    state = {key: found.state[key] for key in ("step", "epoch", "step_in_epoch", "best", "metrics")}
    assert state == {"step": 3, "epoch": 1, "step_in_epoch": 1, "best": math.inf, "metrics": {"loss": 0.5}}
    model = found.tensors(MODEL)
    assert model["student.weight"].tolist() == [[1, -0.5], [0.25, 0]]
    assert model["steps"].item() == 3
    assert found.tensors(TRAINING)["optimizer.0/student.weight/exp_avg"].tolist() == [[0.125] * 2] * 2
    assert found.tensors(rank_file_name(0))["torch"].tolist() == [0, 1, 2, 3]


def test_a_torn_last_line_is_passed_over(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 2, "st')
    status = inspect_run(run)
    assert status.last_record == {"epoch": 1, "step": 4, "loss": 0.25}
    assert status.faults == []


def test_every_damaged_file_of_every_checkpoint_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    first, second = (run / "checkpoints" / f"step-0000000{step}" for step in (2, 4))
    (first / "state.json").write_bytes((first / "state.json").read_bytes().replace(b'"epoch":1', b'"epoch":2'))
    (second / "model.safetensors").write_bytes(b"")
    (second / "training.safetensors").unlink()
    status = inspect_run(run)
    assert wheres(status.checkpoints[0].faults) == [str(first / "state.json")]
    assert wheres(status.checkpoints[1].faults) == [
        str(second / "model.safetensors"),
        str(second / "training.safetensors"),
    ]
    assert all(type(fault) is CheckpointDamaged for found in status.checkpoints for fault in found.faults)


def test_pointers_that_name_no_or_another_checkpoint_are_faults(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    folder = run / "checkpoints"
    pointer = json.loads((folder / "last.json").read_text())
    (folder / "last.json").write_text(json.dumps({**pointer, "state_sha256": "0" * 64}))
    assert wheres(inspect_run(run).faults) == [str(folder / "last.json")]
    for content in ('{"checkpoint":"step-00000003","state_sha256":"0"}', "{"):
        (folder / "last.json").write_text(content)
        assert wheres(inspect_run(run).faults) == [str(folder / "last.json")]


def test_metrics_that_were_cut_are_a_fault(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run / "metrics.jsonl").write_bytes((run / "metrics.jsonl").read_bytes()[:-5])
    assert wheres(inspect_run(run).faults) == [str(run / "metrics.jsonl")]


def test_a_running_training_is_seen(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with (run / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert inspect_run(run).is_running
    assert not inspect_run(run).is_running


def test_a_state_that_names_no_files_does_not_verify(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(GOLDEN / "step-00000003", tmp_path / "step-00000003"))
    state = json.loads((folder / "state.json").read_text())
    state.pop("sha256")
    for files in ({}, [], {"model.safetensors": 3}):
        changed = {**state, "files": files}
        text = json.dumps(changed, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(text.encode()).hexdigest()
        (folder / "state.json").write_text(
            json.dumps({**changed, "sha256": digest}, sort_keys=True, separators=(",", ":"))
        )
        assert wheres(inspect_checkpoint(folder).faults) == [str(folder / "state.json")]

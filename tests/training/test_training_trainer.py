import json
import math
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from labelkit.data.batch import Batch
from labelkit.errors import DivergenceError, Interrupted
from labelkit.training.checkpoint import MODEL, load_checkpoint
from labelkit.training.devices import Runtime
from labelkit.training.method import Monitor, PassSettings, StepOutput
from labelkit.training.trainer import Trainer
from tests.tiers import quick_every

MakeTrainer = Callable[..., Trainer]

# 64 images in batches of 16: 4 steps an epoch


class Killed(BaseException):
    """Stands for SIGKILL: nothing may catch it and go on."""


class CountingMonitor(Monitor):
    """Counts its calls; gives a metric; can give up."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.calls = 0
        self.fail_at = fail_at

    def __call__(self, method: Any, state: Any) -> dict[str, float]:
        self.calls += 1
        if self.calls == self.fail_at:
            raise DivergenceError("epoch", "collapsed", "")
        return {"calls": float(self.calls)}

    def extra_state(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def load_extra_state(self, state: Any) -> None:
        self.calls = state["calls"]


@pytest.fixture
def trainers(build_trainer: MakeTrainer) -> Iterator[MakeTrainer]:
    """Return a function like ``build_trainer`` that first closes the run of the trainer before."""
    made: list[Trainer] = []

    def close() -> None:
        while made:
            run = made.pop().run
            if run is not None:
                run.close()

    def make(path: Path | None = None, **options: Any) -> Trainer:
        close()
        made.append(build_trainer(path, **options))
        return made[-1]

    yield make
    close()


def _resume(trainer: Trainer) -> Trainer:
    trainer.restore(load_checkpoint(trainer.run.path))
    return trainer


def _fit_until_killed(trainer: Trainer, at: int) -> None:
    def kill(step: int) -> None:
        if step == at:
            raise Killed

    trainer.method.at_step = kill  # type: ignore[assignment] # of the toy
    with pytest.raises(Killed):
        trainer.fit()


def _step_of(path: Path) -> int:
    return load_checkpoint(path).state["step"]


def _metrics(path: Path) -> list[dict[str, Any]]:
    """Lines of ``metrics.jsonl``, keys in order, without what the clock on the wall says."""
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("seconds", None)
    return lines


def _assert_same_end(path: Path, trainer: Trainer, other_path: Path, other: Trainer) -> None:
    for name, value in trainer.method.state_dict().items():
        assert torch.equal(value, other.method.state_dict()[name]), name
    assert [list(line.items()) for line in _metrics(path)] == [list(line.items()) for line in _metrics(other_path)]
    ends = [load_checkpoint(run) for run in (path, other_path)]
    models = [
        (run / "checkpoints" / f"step-{trainer.clock.step:08d}" / MODEL).read_bytes() for run in (path, other_path)
    ]
    assert models[0] == models[1]
    for name in ends[0].state["files"]:
        first, second = ends[0].tensors(name), ends[1].tensors(name)
        assert first.keys() == second.keys()
        assert all(torch.equal(first[key], second[key]) or first[key].isnan().all() for key in first), name


@pytest.mark.slow
@pytest.mark.parametrize(("kill_at", "every_minutes", "expected"), [(6, 10.0, 4), (6, 1e-9, 6), (2, 1e-9, 2)])
def test_a_killed_run_goes_on_from_its_last_checkpoint(
    tmp_path: Path,
    trainers: MakeTrainer,
    monkeypatch: pytest.MonkeyPatch,
    kill_at: int,
    every_minutes: float,
    expected: int,
) -> None:
    monkeypatch.setattr("labelkit.training.trainer.CHECKPOINT_MINUTES", every_minutes)
    whole = trainers(tmp_path / "whole", log_every_steps=1)
    whole.fit()

    _fit_until_killed(trainers(tmp_path / "cut", log_every_steps=1), kill_at)
    resumed = _resume(trainers(tmp_path / "cut", log_every_steps=1))
    assert resumed.clock.step == expected
    resumed.fit()

    _assert_same_end(tmp_path / "whole", whole, tmp_path / "cut", resumed)


def test_a_run_killed_before_its_first_checkpoint_leaves_no_lines_behind(tmp_path: Path, trainers: MakeTrainer) -> None:
    whole = trainers(tmp_path / "whole", log_every_steps=1)
    whole.fit()

    _fit_until_killed(trainers(tmp_path / "cut", log_every_steps=1), 2)
    assert load_checkpoint(tmp_path / "cut") is None
    again = trainers(tmp_path / "cut", log_every_steps=1)
    again.fit()

    _assert_same_end(tmp_path / "whole", whole, tmp_path / "cut", again)


def test_a_resume_removes_what_a_kill_in_the_last_cleaning_left(tmp_path: Path, trainers: MakeTrainer) -> None:
    trainers(tmp_path / "run").fit()
    checkpoints = tmp_path / "run" / "checkpoints"
    whole = sorted(path.name for path in checkpoints.iterdir())
    last = sorted(checkpoints.glob("step-*"))[-1]
    for name in ("step-00000001", ".trash-step-00000002-0000", ".tmp-3-0000"):
        shutil.copytree(last, checkpoints / name)

    _resume(trainers(tmp_path / "run")).fit()

    assert sorted(path.name for path in checkpoints.iterdir()) == whole


def test_a_resumed_run_has_the_state_of_its_method_and_starts_its_epoch_but_not_itself_again(
    tmp_path: Path, trainers: MakeTrainer
) -> None:
    stopped = trainers(tmp_path / "run", monitor=CountingMonitor(), stop_after_steps=6)
    stopped.method.note = "kept"  # type: ignore[assignment] # of the toy
    stopped.fit()
    resumed = _resume(trainers(tmp_path / "run", monitor=CountingMonitor()))
    assert resumed.monitor.calls == 1  # type: ignore[union-attr] # as above
    assert resumed.method.note == "kept"
    assert int(resumed.method.updates) == 6  # type: ignore[arg-type] # of the toy
    resumed.fit()
    assert stopped.method.events == ["train", "epoch 0", "epoch 1"]
    assert resumed.method.events == ["epoch 1"]


def test_a_longer_run_goes_on_where_the_shorter_one_ended(tmp_path: Path, trainers: MakeTrainer) -> None:
    trainers(tmp_path / "run", epochs=1).fit()
    longer = _resume(trainers(tmp_path / "run", epochs=3))
    result = longer.fit()
    assert (result.finished, result.step, len(result.history)) == (True, 12, 2)


def test_the_seconds_of_a_resumed_run_are_those_of_the_whole_training(tmp_path: Path, trainers: MakeTrainer) -> None:
    before = trainers(tmp_path / "run", epochs=2, stop_after_steps=6).fit().seconds
    resumed = trainers(tmp_path / "run", epochs=2)
    checkpoint = load_checkpoint(resumed.run.path)
    assert 0 < checkpoint.state["seconds"][1] < checkpoint.state["seconds"][0] <= before
    checkpoint.state["seconds"] = [1000.0, 100.0]
    resumed.restore(checkpoint)
    assert 1000 < resumed.fit().seconds < 1100
    assert 100 < resumed.metrics["seconds"] < 200
    del checkpoint.state["seconds"]  # as in checkpoints of earlier versions
    old = trainers(tmp_path / "other", epochs=2)
    old.restore(checkpoint)
    assert 0 < old.fit().seconds < 100


def test_other_conditions_are_named_where_bits_may_differ(tmp_path: Path, trainers: MakeTrainer) -> None:
    trainers(tmp_path / "run", stop_after_steps=1).fit()
    threads = torch.get_num_threads()
    messages: list[str] = []
    try:
        torch.set_num_threads(threads + 1)
        _resume(trainers(tmp_path / "run", message=messages.append))
    finally:
        torch.set_num_threads(threads)
    assert messages == [f"resuming is not bit-exact: threads is {threads + 1}, was {threads}"]


def test_evaluations_come_every_so_many_epochs_and_at_the_end(tmp_path: Path, trainers: MakeTrainer) -> None:
    trainers(tmp_path / "run", epochs=5, eval_every_epochs=2, monitor=CountingMonitor()).fit()
    epochs = [line for line in _metrics(tmp_path / "run") if "kind" not in line]
    assert ["calls" in line for line in epochs] == [False, True, False, True, True]


def test_an_epoch_reports_the_mean_of_its_steps(tmp_path: Path, trainers: MakeTrainer) -> None:
    trainers(tmp_path / "run", epochs=1, log_every_steps=1).fit()
    *steps, epoch = _metrics(tmp_path / "run")
    assert [line["step"] for line in steps] == [1, 2, 3, 4]
    assert all(line["kind"] == "step" and line["diag/b"] == 16.0 for line in steps)
    for name in ("loss", "spread"):
        assert epoch[name] == pytest.approx(sum(line[name] for line in steps) / 4)
    assert "diag/b" not in epoch
    assert epoch["embed_norm"] > 0


def test_a_logged_loss_need_not_be_detached(trainers: MakeTrainer) -> None:
    trainer = trainers(epochs=1, log_every_steps=1)
    step = trainer.method.training_step

    def log_loss(batch: Batch) -> StepOutput:
        loss = step(batch).loss
        return StepOutput(loss, {"focal": loss})

    trainer.method.training_step = log_loss  # type: ignore[method-assign]
    metrics = trainer.fit().metrics  # a warning of torch would be an error
    assert metrics["focal"] == metrics["loss"]


def test_a_full_pass_gives_every_row_once_in_the_order_asked_for(trainers: MakeTrainer, bank: Any) -> None:
    trainer = trainers(batch_size=2)
    rows = bank.rows[[5, 0, 63, 17, 2]]
    pixels = trainer.full_pass(lambda images: images.flatten(1), rows)
    expected = (bank.gather(rows).float() / 255 - 0.5) / 0.5
    torch.testing.assert_close(pixels, expected.flatten(1))
    assert trainer.full_pass(lambda images: images.flatten(1)).shape == (64, 64)


@pytest.mark.parametrize(("drops", "warned"), [((2, 3), True), ((1, 3), False)])
def test_a_learning_rate_that_never_drops_is_warned_about(
    bank: Any, labels: Any, make_method: Callable[..., Any], drops: tuple[int, ...], warned: bool
) -> None:
    method, told = make_method(epochs=2, lr_schedule="step", lr_drop_epochs=drops), list[str]()
    Trainer(method, bank, labels, method.config, Runtime(device="cpu"), message=told.append)
    assert any("the learning rate never drops: --lr-drop-epochs starts at 2" in text for text in told) == warned


def test_bfloat16_trains(bank: Any, labels: Any, make_method: Callable[..., Any]) -> None:
    method = make_method(epochs=8, dropout=0.0, augment=False)
    trainer = Trainer(method, bank, labels, method.config, Runtime(device="cpu", precision="bf16"))
    history = trainer.fit().history
    assert history[-1]["loss"] < history[0]["loss"]
    assert method.network.first.weight.dtype == torch.float32


def test_a_pass_in_half_precision_prepares_images_in_single_precision(
    bank: Any, labels: Any, make_method: Callable[..., Any]
) -> None:
    method = make_method()
    view = replace(method.eval_view(), blur_prob=0.5, blur_kernel=3)  # some images of the batch are changed
    seen = {}
    for precision in ("float32", "bf16"):
        runtime = Runtime(device="cpu", precision=precision)
        trainer = Trainer(method, bank, labels, method.config, runtime)
        seen[precision] = trainer.full_pass(lambda images: images.flatten(1), settings=PassSettings(view=view))
    assert torch.equal(seen["bf16"], seen["float32"])


def test_a_loss_that_is_not_a_number_ends_the_run_and_keeps_the_last_checkpoint(
    tmp_path: Path, trainers: MakeTrainer
) -> None:
    trainer = trainers(tmp_path / "run")

    def poison(step: int) -> None:
        if step == 6:
            trainer.method.get_parameter("network.first.weight").data.fill_(math.nan)

    trainer.method.at_step = poison  # type: ignore[assignment] # of the toy
    with pytest.raises(DivergenceError, match=r"epoch 1, step 7: the loss is not finite \(parts: spread nan") as caught:
        trainer.fit()
    assert caught.value.exit_code == 4
    checkpoint = load_checkpoint(tmp_path / "run")
    assert checkpoint.state["step"] == 4
    assert all(value.isfinite().all() for value in checkpoint.tensors(MODEL).values())


def test_features_that_overflow_end_the_run_before_anything_is_made_of_them(trainers: MakeTrainer) -> None:
    trainer = trainers()

    with pytest.raises(DivergenceError, match="the network's outputs are not finite") as caught:
        trainer.full_pass(lambda images: images.flatten(1) / 0)

    assert "--lr" in caught.value.remedy


def test_a_monitor_that_gives_up_keeps_the_last_checkpoint(tmp_path: Path, trainers: MakeTrainer) -> None:
    with pytest.raises(DivergenceError, match="collapsed"):
        trainers(tmp_path / "run", monitor=CountingMonitor(fail_at=2)).fit()
    assert _step_of(tmp_path / "run") == 4


def _send(trainer: Trainer, number: int, at: int) -> None:
    def send(step: int) -> None:
        if step == at:
            os.kill(os.getpid(), number)

    trainer.method.at_step = send  # type: ignore[assignment] # of the toy


@pytest.mark.parametrize(("number", "exit_code"), quick_every(2, [(signal.SIGTERM, 143), (signal.SIGINT, 130)]))
@pytest.mark.parametrize("at", [1, 3])
def test_a_stop_signal_finishes_the_step_writes_a_checkpoint_and_leaves(
    tmp_path: Path, trainers: MakeTrainer, number: int, exit_code: int, at: int
) -> None:
    whole = trainers(tmp_path / "whole")
    whole.fit()
    stopped = trainers(tmp_path / "cut")
    _send(stopped, number, at)
    with pytest.raises(Interrupted) as caught:
        stopped.fit()
    assert caught.value.exit_code == exit_code
    assert _step_of(tmp_path / "cut") == at + 1
    resumed = _resume(trainers(tmp_path / "cut"))
    resumed.fit()
    _assert_same_end(tmp_path / "whole", whole, tmp_path / "cut", resumed)


def test_processes_with_gpus_ask_each_other_seldom(trainers: MakeTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    trainer = trainers(batch_size=4, epochs=2)  # 16 steps an epoch
    any_of = trainer.runtime.reduce_flags
    monkeypatch.setattr(Runtime, "has_slow_communication", True)
    trainer.runtime.reduce_flags = lambda flags: asked.append(trainer.clock.step) or any_of(flags)
    trainer.fit()
    assert asked == [8, 16, 24, 32]

"""Time the steps of every training method with the trainer against a bare loop of the same events.

The bare loop creates the same batches of views, calls the method's own loss and events, backward and optimizer, and
sets the same learning rate and seeds. It omits what the trainer adds: averaging and checking the parts of the loss,
guards, logging, signals, checkpoints, mixed precision, multiple processes, and a new state for the method at each step.
The row states whether both ended with bit-identical weights. Times are CPU times; work between epochs is not part of a
step.
"""

import itertools
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from labelkit.commands.common.training_data import prepare_data
from labelkit.data.image_bank import ImageBank
from labelkit.methods.registry import METHODS
from labelkit.options.presets import resolve_config
from labelkit.options.training import RunConfig, TrainConfig
from labelkit.progress import Task as ProgressTask
from labelkit.training.devices import Runtime, seed_step
from labelkit.training.run_dir import RunDir
from labelkit.training.trainer import Trainer

from benchmarks.measure import Row, Wanted, compare, with_check

SEEDS = {"seed": 0}
# Steps per repetition, one of which is logged: twice as often as by default.
STEPS, REPETITIONS, WARMUPS = 5, 5, 1
# Long enough for all repetitions, and realistic, because states contain the number of steps of a phase.
LENGTH = {"epochs": 200}
LENGTH_IN_STEPS = {"steps": 20_000, "eval_every_steps": 1_000}


class Turns(ProgressTask):
    """The steps of one trainer, run in blocks; each step calls ``advance`` at its end."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self._config = trainer.config
        self._ends: list[tuple[int, float]] = []

    def advance(self, n: int = 1, **info: object) -> None:
        """Record the end of a step."""
        self._ends.append((self.trainer.clock.epoch, time.process_time()))

    def run(self) -> float:
        """Run a block; return the mean seconds per step, without the first, whose start is not recorded."""
        self._ends.clear()
        stop = self.trainer.clock.step + STEPS + 1
        self.trainer.config = self._config.model_copy(update={"stop_after_steps": stop})
        self.trainer.fit()
        pairs = list(itertools.pairwise(self._ends))
        inside = [after[1] - before[1] for before, after in pairs if before[0] == after[0]]
        return sum(inside) / len(inside)


class BareTrainer(Trainer):
    """A trainer whose epochs are a bare loop."""

    def _train_epoch(self) -> bool:
        clock, config, method, optimizer = self.clock, self.config, self.method, self.optimizer
        updates, stop = self.steps_per_epoch(), config.stop_after_steps
        assert stop is not None
        assert self.progress_task is not None
        method.train()
        state = self._state(log_now=False)
        if clock.step == clock.phase_step:
            method.on_phase_start(state)
        self._set_lr(max(0, clock.step_in_epoch - 1), updates)
        method.on_epoch_start(state)
        batches = self._loader().epoch_batches(clock.epoch, start_step=clock.step_in_epoch)
        while clock.step_in_epoch < updates:
            self._set_lr(clock.step_in_epoch, updates)
            log_now = (clock.step + 1) % config.log_every_steps == 0
            now = replace(state, step=clock.step, step_in_phase=clock.step - clock.phase_step, log_now=log_now)
            seed_step(config.seed, clock.step, 0)
            method.state = now
            method.on_step_start(now)
            loss = method(next(batches)).loss
            loss.backward()
            method.on_gradients(now)
            if config.clip_grad_norm is not None:
                for some in [[one] for one in self.trained] if config.clips_each_gradient else [self.trained]:
                    torch.nn.utils.clip_grad_norm_(some, config.clip_grad_norm)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            clock.step += 1
            clock.step_in_epoch += 1
            method.on_step_end(now)
            self.means.add(loss, {})  # an epoch without a loss cannot end
            self.progress_task.advance()
            if clock.step >= stop:
                return False
        return True


def turns(kind: type[Trainer], config: RunConfig, folder: Path | None) -> Turns:
    """Build a method on the digits and its trainer, with or without a run folder."""
    assert config.command[0] == "train"
    prepared = prepare_data(config)
    method: Any = METHODS[config.command[1]].load()(config, prepared.build_data_info(0))
    bank = ImageBank(prepared.dataset, base_size=method.network.input_spec.size)
    run = None
    if folder is not None:
        run = RunDir(folder)
        run.open(resume=False, overwrite=False)
        run.begin(config.command[1], config.to_yaml_dict())
    made = Turns(kind(method, bank, prepared.labels, config, Runtime(device="cpu"), run=run))
    made.trainer.progress_task = made
    return made


def rows() -> Iterator[Row]:
    """Yield a row for each method."""
    with tempfile.TemporaryDirectory() as name:
        for method in METHODS:
            yield method_row(method, Path(name))


def method_row(name: str, folder: Path) -> Row:
    """Compare the steps of one method."""
    kind = METHODS[name].config
    length = LENGTH if issubclass(kind, TrainConfig) else LENGTH_IN_STEPS
    chosen: dict[str, object] = {"dataset": "digits", "device": "cpu", "log_every_steps": STEPS, **SEEDS, **length}
    config = resolve_config(kind, preset="digits", overrides=chosen).config
    ours, peer = turns(Trainer, config, folder / name), turns(BareTrainer, config, None)
    row = compare(
        f"training step, {name}, digits: trainer / bare loop",
        ours.run,
        peer.run,
        wanted=Wanted(">=", 0.95),
        repetitions=REPETITIONS,
        warmups=WARMUPS,
    )
    pairs = zip(ours.trainer.method.state_dict().values(), peer.trainer.method.state_dict().values(), strict=True)
    return with_check(row, "weights", all(torch.equal(first, second) for first, second in pairs))

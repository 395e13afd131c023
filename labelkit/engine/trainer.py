"""The trainer: owns the clock, the order of events, logging, checkpoints and the answer to signals."""

from __future__ import annotations

import platform
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelkit import __version__
from labelkit.config.discovery import ContrastiveTrainConfig
from labelkit.config.train import RunConfig, StepTrainConfig, TrainConfig
from labelkit.data.batch import Batch
from labelkit.data.eval_loader import EvalLoader
from labelkit.data.image_bank import ImageBank
from labelkit.data.keyed_random import keyed_generator
from labelkit.data.train_loader import TrainLoader
from labelkit.data.views.spec import Normalize
from labelkit.engine.checkpoint import (
    MODEL,
    TRAINING,
    CheckpointWriter,
    LoadedCheckpoint,
    load_model_state,
    rank_file,
)
from labelkit.engine.devices import Runtime, generator_states, restore_generators, seed_step
from labelkit.engine.guards import Guard, check_weights, dead_share, labels_matter, sample_rows, take_look, weight_norms
from labelkit.engine.method import FullPass, Method, Phase, TrainState
from labelkit.engine.optim import (
    build_optimizer,
    load_named_optimizer_state,
    named_optimizer_state,
    set_lr,
    set_weight_decay,
)
from labelkit.engine.run_dir import RunDir
from labelkit.engine.schedules import LearningRate
from labelkit.errors import ConfigError, DivergenceError, Interrupted
from labelkit.models.batch_norm import batch_statistics
from labelkit.models.weights import fingerprint
from labelkit.store.commit import canonical_json


class Monitor(Protocol):
    """Looks at the network after an epoch, with knowledge that the method must not have."""

    def __call__(self, method: Method[Any], state: TrainState) -> Mapping[str, float]:
        """Return metrics; raise ``DivergenceError`` when going on is useless."""

    def extra_state(self) -> dict[str, Any]:
        """JSON values that a resumed run needs."""

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Take back what ``extra_state`` gave."""


class Report(Protocol):
    """Shows progress to a person."""

    def advance(self, n: int = 1, **info: Any) -> None:
        """Move on by ``n`` steps; ``info`` is shown beside the bar."""


@dataclass
class Clock:
    """Where the run is.

    Attributes:
        epoch: the running epoch, from 0.
        step: optimizer updates finished.
        step_in_epoch: of these, in the running epoch.
        phase: the running phase, from 0; the last one when all are over.
        phase_epoch, phase_step: epochs and updates before that phase.
    """

    epoch: int = 0
    step: int = 0
    step_in_epoch: int = 0
    phase: int = 0
    phase_epoch: int = 0
    phase_step: int = 0


@dataclass
class FitResult:
    """What a run came to.

    Attributes:
        metrics: of the last epoch.
        step: updates in all.
        seconds: of this process, without what an earlier, interrupted one took.
        finished: False if it stopped on request before the last epoch.
        history: metrics of every epoch run by this process.
    """

    metrics: dict[str, float]
    step: int
    seconds: float
    finished: bool
    history: list[dict[str, float]] = field(default_factory=list)


class Trainer:
    """Trains one method into one run folder.

    Args:
        method: the network and its events.
        bank: the training images.
        labels: (n,) int64 training labels, -1 = unlabeled.
        config: what all methods share.
        runtime: device and processes.
        run: run folder, open; ``None`` trains without writing anything.
        monitor: looks at the network after epochs.
        report: shows progress.
        message: shows a line.
        metadata: what ``model.safetensors`` says of itself, beside version and fingerprint.
    """

    def __init__(
        self,
        method: Method[Any],
        bank: ImageBank,
        labels: NDArray[np.int64],
        config: RunConfig,
        runtime: Runtime,
        *,
        run: RunDir | None = None,
        monitor: Monitor | None = None,
        report: Report | None = None,
        message: Callable[[str], None] = lambda text: None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self.method = method
        self.bank = bank
        self.labels = labels
        self.config = config
        self.runtime = runtime
        self.run = run
        self.monitor = monitor
        self.report = report
        self.message = message
        self.metadata = dict(metadata or {})
        self.clock = Clock()
        self.best: float | None = None
        self.metrics: dict[str, float] = {}
        self.phases = method.phases(bank.rows)
        self.lr: LearningRate | None = None
        if isinstance(config, TrainConfig):
            planned = sum(phase.epochs for phase in self.phases)
            if planned != config.epochs:
                raise ValueError(f"phases have {planned} epochs where the configuration has {config.epochs}")
            self.lr = LearningRate(
                config.lr,
                config.epochs,
                config.lr_schedule,
                config.lr_final_ratio,
                config.lr_warmup_epochs,
                config.lr_drop_epochs,
                config.lr_drop_factor,
            )
        # the wrapper that averages gradients holds the same parameters, so one optimizer serves both
        self.wrapped = runtime.prepare(method)
        self.optimizer = build_optimizer(
            method.parameter_groups(),
            name=config.optimizer,
            lr=config.lr,
            momentum=config.momentum,
            nesterov=isinstance(config, StepTrainConfig) and config.nesterov,
        )
        self.trained = [p for p in method.parameters() if p.requires_grad]
        self.guard = Guard(
            config.guard, config.guard_loss_ratio, config.guard_min_spread, lambda text: self.message(text)
        )
        self._running: tuple[int, Phase, TrainLoader] | None = None
        self._signal: int | None = None
        self._checkpoint_asked = False
        self._sums: dict[str, Tensor] = {}
        self._summed = 0
        self._writer = (
            CheckpointWriter(
                run.checkpoints,
                rank=runtime.rank,
                world_size=runtime.world_size,
                share=runtime.share,
                barrier=runtime.barrier,
                keep_every_steps=config.keep_every_steps,
            )
            if run is not None
            else None
        )
        self._tensorboard = self._open_tensorboard() if config.tensorboard else None

    # ------------------------------------------------------------------ the run

    def fit(self) -> FitResult:
        """Train from where the clock stands to the end of the last phase.

        Raises:
            DivergenceError: the loss or weights are not finite, or guard or monitor gave up.
            Interrupted: a signal asked to stop; a checkpoint was written.
        """
        started = time.monotonic()
        history: list[dict[str, float]] = []
        with self._signals():
            if self.clock.step == 0:
                self._guard_start()
                if self.run is not None:
                    self.run.cut_metrics(0)  # lines of a run that was killed before its first checkpoint
                self.method.on_train_start(self._state(log_now=False))
            elif self._writer is not None and self.runtime.rank == 0:
                self._writer.kept_step = self.guard.good_step
                self._writer.prune()  # the run may have been killed while it did
            self._last_save = time.monotonic()
            while self.clock.epoch - self.clock.phase_epoch < self._phase().epochs:
                epoch_started = time.monotonic()
                if self._stop_reached() or not self._train_epoch():
                    return FitResult(self.metrics, self.clock.step, time.monotonic() - started, False, history)
                self._finish_epoch(time.monotonic() - epoch_started)
                history.append(self.metrics)
        if self._tensorboard is not None:
            self._tensorboard.close()
        return FitResult(self.metrics, self.clock.step, time.monotonic() - started, True, history)

    def _train_epoch(self) -> bool:
        """Run the rest of the running epoch; False if it stopped on request."""
        clock, config = self.clock, self.config
        loader = self._loader()
        updates = self.steps_per_epoch()
        self.method.train()
        if clock.step == clock.phase_step:
            self.method.on_phase_start(self._state(log_now=False))
        # of the step before, for a run that is resumed when only the end of the epoch is left to do
        self._set_lr(max(0, clock.step_in_epoch - 1), updates)
        self.method.on_epoch_start(self._state(log_now=False))
        accumulate = config.grad_accumulation_steps
        batches = loader.epoch(clock.epoch, start_step=clock.step_in_epoch * accumulate)
        while clock.step_in_epoch < updates:
            self._set_lr(clock.step_in_epoch, updates)
            log_now = (clock.step + 1) % config.log_every_steps == 0
            state = self._state(log_now=log_now)
            seed_step(config.seed, clock.step, self.runtime.rank)
            self.method.on_step_start(state)
            for part in range(accumulate):
                batch = next(batches)
                with self.runtime.no_sync(self.wrapped, last=part == accumulate - 1):
                    with self.runtime.autocast():
                        output = self.wrapped(batch)
                    self._watch(output.loss, output.logs)
                    self.runtime.backward(output.loss / accumulate if accumulate > 1 else output.loss)
            self.runtime.clip_and_step(self.optimizer, self.trained, config.clip_grad_norm)
            clock.step += 1
            clock.step_in_epoch += 1
            self.method.on_step_end(state)
            if log_now or clock.step == 1:
                self._log_step(output.loss, output.logs, write=log_now)
            if self.report is not None:
                self.report.advance()
            if self._stop_or_save(end_of_epoch=clock.step_in_epoch == updates):
                return False
        return True

    def _set_lr(self, step_in_epoch: int, updates: int) -> None:
        clock, config, phase = self.clock, self.config, self._phase()
        step_in_phase = clock.step - clock.phase_step - clock.step_in_epoch + step_in_epoch
        if phase.weight_decay is not None:
            set_weight_decay(self.optimizer, phase.weight_decay(step_in_phase))
        if phase.lr is not None:
            set_lr(self.optimizer, phase.lr(step_in_phase))
        elif self.lr is not None and isinstance(config, TrainConfig):
            fraction = step_in_epoch / updates if config.lr_update == "step" else 0.0
            set_lr(self.optimizer, self.lr.at(clock.epoch + fraction), clock.epoch)

    def _watch(self, loss: Tensor, logs: Mapping[str, Tensor]) -> None:
        """Add to the epoch's means; on the CPU, stop at the first loss that is not finite."""
        values = {"loss": loss.detach(), **{name: value for name, value in logs.items() if value.ndim == 0}}
        for name, value in values.items():
            if name.startswith("diag/"):
                continue
            self._sums[name] = self._sums[name] + value if name in self._sums else value.detach().clone()
        self._summed += 1
        # on a GPU a look at every step would stall it; the sum keeps any NaN until the next look
        if loss.device.type == "cpu" or (self.clock.step + 1) % self.config.log_every_steps == 0:
            self._check_finite(logs)

    def _check_finite(self, logs: Mapping[str, Tensor]) -> None:
        total = self._sums.get("loss")
        if total is None or bool(torch.isfinite(total)):
            return
        parts = ", ".join(f"{name} {float(value):.4g}" for name, value in logs.items() if value.ndim == 0)
        raise DivergenceError(
            f"epoch {self.clock.epoch}, step {self.clock.step + 1}",
            f"the loss is not finite (parts: {parts or 'none'})",
            "The last checkpoint is from before. Lower --lr, set --clip-grad-norm, or use --precision float32.",
        )

    def _check_sound(self) -> None:
        """Refuse to save what is not finite, so that the last checkpoint stays the good one."""
        self._check_finite({})
        check_weights(self.method, f"epoch {self.clock.epoch}, step {self.clock.step}")

    def _guard_start(self) -> None:
        """Look at images, labels and learning rate before the first step."""
        config, state = self.config, self._state(log_now=False)
        phase, rows = self._phase(), sample_rows(self.bank.rows, config.seed)
        lrs = [self.lr.at(epoch) for epoch in range(phase.epochs)] if self.lr is not None else []
        if phase.lr is not None:
            lrs = [phase.lr(int(step)) for step in np.linspace(0, state.phase_steps - 1, 200)]
        if labels_matter(config):
            discovers = isinstance(config, ContrastiveTrainConfig)
            self.guard.at_labels(self.labels[self.bank.rows], beside_others=discovers)
        self.guard.at_schedule(dead_share(lrs, config.lr))
        if config.guard != "none":
            self.guard.at_images(state.embed(lambda images: images.flatten(1), rows))

    def _guard_epoch(self, state: TrainState) -> dict[str, float]:
        """Look at features and weights of the network in evaluation mode; metrics for the log."""
        if self.config.guard == "none":
            return {}
        look = None
        images = self.config.batch_size * self.config.grad_accumulation_steps
        if self.guard.look_is_due(self.clock.step, images):
            look = take_look(self.method, state, sample_rows(self.bank.rows, self.config.seed))
        self.guard.at_epoch_end(look, weight_norms(self.trained), self.clock.step)
        return {} if look is None else look.metrics()

    def _finish_epoch(self, seconds: float) -> None:
        self._check_sound()
        clock = self.clock
        # sorted: a restored epoch has its sums in another order, and processes exchange them one by one
        metrics = {name: float(self.runtime.mean(value / self._summed)) for name, value in sorted(self._sums.items())}
        self._sums, self._summed = {}, 0
        metrics["lr"] = self.optimizer.param_groups[0]["lr"]
        metrics["seconds"] = seconds
        finished = clock.epoch + 1
        phase_over = finished - clock.phase_epoch == self._phase().epochs
        every = self.config.eval_every_epochs if isinstance(self.config, TrainConfig) else 1
        self.method.eval()
        state = self._state(log_now=True)
        metrics |= self._guard_epoch(state)
        metrics |= {name: float(value) for name, value in self.method.on_epoch_end(state).items()}
        if phase_over:
            metrics |= {name: float(value) for name, value in self.method.on_phase_end(state).items()}
        if self.monitor is not None and (finished % every == 0 or phase_over):
            metrics |= {name: float(value) for name, value in self.monitor(self.method, state).items()}
        if self.run is not None:
            self.run.log({"epoch": clock.epoch, "step": clock.step, **metrics})
        if self._tensorboard is not None:
            for name, value in metrics.items():
                self._tensorboard.add_scalar(f"epoch/{name}", value, clock.step)
        self._announce(metrics)
        self.metrics = metrics
        clock.epoch, clock.step_in_epoch = finished, 0
        if phase_over and self.method.phase(clock.phase + 1, self.bank.rows) is not None:
            clock.phase, clock.phase_epoch, clock.phase_step = clock.phase + 1, finished, clock.step
        value = metrics[self.method.best_metric]
        better = value == value and (self.best is None or value < self.best)
        if better:
            self.best = value
        self.save(best=better)

    def _announce(self, metrics: Mapping[str, float]) -> None:
        shown = [f"loss {metrics['loss']:.4f}"]
        for name in ("all_accuracy", "old_accuracy", "new_accuracy"):
            if name in metrics and not np.isnan(metrics[name]):
                shown.append(f"{name.removesuffix('_accuracy')} {100 * metrics[name]:.1f}")
        for name, text in (
            ("accuracy", "accuracy"),
            ("knn_accuracy", "kNN"),
            ("linear_accuracy", "linear"),
            ("recall_at_1", "R@1"),
        ):
            if name in metrics:
                shown.append(f"{text} {100 * metrics[name]:.1f}")
        if "assignment/changed" in metrics:
            shown.append(f"classes moved {int(metrics['assignment/changed'])}")
        if "nmi" in metrics:
            shown.append(f"NMI {metrics['nmi']:.3f}")
        if "used_clusters" in metrics:
            shown.append(f"clusters {int(metrics['used_clusters'])}")
        where = f"step {self.clock.step}"
        if isinstance(self.config, TrainConfig):
            where = f"epoch {self.clock.epoch + 1}/{self.config.epochs}"
        elif self.phases[0].name != self._phase().name:
            where += f" ({self._phase().name})"
        self.message(f"{where}: " + ", ".join(shown))

    def _log_step(self, loss: Tensor, logs: Mapping[str, Tensor], *, write: bool) -> None:
        values = {"loss": loss.detach(), **logs}
        means = {name: float(self.runtime.mean(value)) for name, value in values.items()}
        if write:
            self._write_step(means)
        self.guard.at_loss(means["loss"], self.clock.step)

    def _write_step(self, means: Mapping[str, float]) -> None:
        if self.run is None or not self.runtime.is_main:
            return
        lr = self.optimizer.param_groups[0]["lr"]
        self.run.log({"epoch": self.clock.epoch, "step": self.clock.step, "kind": "step", "lr": lr, **means})
        if self._tensorboard is not None:
            for name, value in means.items():
                self._tensorboard.add_scalar(f"step/{name}", value, self.clock.step)

    def _stop_or_save(self, *, end_of_epoch: bool) -> bool:
        """Write a checkpoint when one is due; True if the run is to stop here without an error."""
        due = self._checkpoint_asked or time.monotonic() - self._last_save > 60 * self.config.checkpoint_every_minutes
        # processes see signals and clocks at slightly different steps: they decide together
        asked, due = self.runtime.any_of([self._signal is not None, due])
        if asked or self._stop_reached():
            self._check_sound()
            self.save(best=False)
            if asked:
                raise Interrupted(self._signal or signal.SIGTERM)
            return True
        keep = self.config.keep_every_steps
        if due or (keep is not None and self.clock.step % keep == 0):
            self._checkpoint_asked = False
            if not end_of_epoch:  # else the epoch's own checkpoint follows at once
                self._check_sound()
                self.save(best=False)
        return False

    def _stop_reached(self) -> bool:
        return self.config.stop_after_steps is not None and self.clock.step >= self.config.stop_after_steps

    # ------------------------------------------------------------------ shared parts

    def steps_per_epoch(self, epoch: int | None = None) -> int:
        """Optimizer updates in an epoch of the running phase.

        Args:
            epoch: of the run; default: the running one.

        Raises:
            ConfigError: there are fewer images than one batch.
        """
        self._loader()  # refuses what cannot make a batch
        epoch = self.clock.epoch if epoch is None else epoch
        return self._updates(self._phase(), epoch - self.clock.phase_epoch)

    def _updates(self, phase: Phase, epoch: int) -> int:
        """Optimizer updates in an epoch of the phase."""
        updates = len(phase.sampler) // self.config.batch_size // self.config.grad_accumulation_steps
        if updates == 0:
            raise ConfigError(
                "--batch-size",
                f"{self.config.batch_size} images per step x {self.config.grad_accumulation_steps} is more than an "
                f"epoch draws ({len(self.bank.rows)})",
                "Lower --batch-size.",
            )
        return updates if phase.steps is None else max(0, min(updates, phase.steps - epoch * updates))

    def _phase_steps(self, phase: Phase) -> int:
        return sum(self._updates(phase, epoch) for epoch in range(phase.epochs))

    def total_steps(self) -> int:
        """Optimizer updates of the whole run; where phases are decided on the way, of the longest possible one."""
        planned = self.method.planned_steps()
        return sum(self._phase_steps(phase) for phase in self.phases) if planned is None else planned

    def _phase(self) -> Phase:
        return self._run_phase()[0]

    def _loader(self) -> TrainLoader:
        return self._run_phase()[1]

    def _run_phase(self) -> tuple[Phase, TrainLoader]:
        """Return the running phase and its batches."""
        clock = self.clock
        if self._running is None or self._running[0] != clock.phase:
            phase = self.method.phase(clock.phase, self.bank.rows)
            if phase is None:
                raise ValueError(f"the method has no phase {clock.phase}, where the run stands")
            self._running = (clock.phase, phase, self._loader_of(phase, clock.phase_epoch))
        return self._running[1:]

    def _loader_of(self, phase: Phase, first_epoch: int) -> TrainLoader:
        spec = self.method.network.input_spec
        return TrainLoader(
            self.bank,
            phase.views,
            phase.sampler,
            self.labels if phase.labels is None else phase.labels,
            batch_size=self.config.batch_size,
            seed=self.config.seed,
            normalize=Normalize(spec.mean, spec.std),
            num_workers=self.config.num_workers,
            rank=self.runtime.rank,
            world_size=self.runtime.world_size,
            first_epoch=first_epoch,
            pairing=phase.pairing,
        )

    def batches(self, phase: Phase, epoch: int) -> Iterator[Batch]:
        """See ``TrainState.batches``: this process's share of the batches of the phase's first epoch.

        Args:
            phase: what to make batches of; its length and learning rate are the caller's business.
            epoch: number that the random numbers of the views are looked up by.
        """
        return self._loader_of(phase, epoch).epoch(epoch)

    def average_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """See ``TrainState.average_gradients``."""
        for parameter in parameters:
            if parameter.grad is not None and self.runtime.world_size > 1:
                parameter.grad.copy_(self.runtime.combine(parameter.grad, "sum") / self.runtime.world_size)

    def _state(self, *, log_now: bool) -> TrainState:
        return TrainState(
            epoch=self.clock.epoch,
            step=self.clock.step,
            steps_per_epoch=self.steps_per_epoch(),
            log_now=log_now,
            is_main=self.runtime.is_main,
            full_pass=self.full_pass,
            generator=lambda purpose: keyed_generator(self.config.seed, purpose, self.clock.epoch),
            local_pass=self.local_pass,
            gather_rows=self.runtime.gather_rows,
            combine=self.runtime.combine,
            log=self._log_event,
            warn=self.message,
            phase=self.clock.phase,
            step_in_phase=self.clock.step - self.clock.phase_step,
            phase_steps=self._phase_steps(self._phase()),
            batches=self.batches,
            average_gradients=self.average_gradients,
            reset_optimizer=self.optimizer.state.clear,
        )

    def _log_event(self, kind: str, values: Mapping[str, float]) -> None:
        if self.run is not None and self.runtime.is_main:
            self.run.log({"epoch": self.clock.epoch, "step": self.clock.step, "kind": kind, **values})
        if self._tensorboard is not None:
            for name, value in values.items():
                self._tensorboard.add_scalar(f"{kind}/{name}", value, self.clock.step)

    def full_pass(
        self,
        network: Callable[[Tensor], Tensor],
        rows: NDArray[np.int64] | None = None,
        how: FullPass | None = None,
    ) -> Tensor:
        """See ``TrainState.embed``."""
        bank = how.bank if how is not None and how.bank is not None else self.bank
        rows = bank.rows if rows is None else rows
        values, visited = self.local_pass(network, rows, how)
        where = {int(row): position for position, row in enumerate(rows)}
        positions = torch.tensor([where[int(row)] for row in visited], dtype=torch.int64)
        return self.runtime.gather_rows(values, positions, len(rows))

    def local_pass(
        self,
        network: Callable[[Tensor], Tensor],
        rows: NDArray[np.int64] | None = None,
        how: FullPass | None = None,
    ) -> tuple[Tensor, NDArray[np.int64]]:
        """See ``TrainState.visit``."""
        how = how or FullPass()
        bank = how.bank if how.bank is not None else self.bank
        rows = bank.rows if rows is None else rows
        step = self.clock.step if how.order == "new" else 0
        if how.order != "rows":
            rows = keyed_generator(self.config.seed, "full-pass", step).permutation(rows)
        # apart from the numbers of training, or an image would be seen in the very view that it is trained in
        seed = int(keyed_generator(self.config.seed, "full-pass view", self.clock.step).integers(2**31))
        spec = self.method.network.input_spec
        loader = EvalLoader(
            bank,
            how.view or self.method.eval_view(),
            rows=rows,
            batch_size=how.batch_size or max(1, min(512, 2 * self.config.batch_size)),
            normalize=Normalize(spec.mean, spec.std),
            num_workers=self.config.num_workers,
            rank=self.runtime.rank,
            world_size=self.runtime.world_size,
            seed=None if how.view is None else seed,
            join_single=how.mode != "eval",
        )
        if how.mode == "eval":
            self.runtime.share_statistics(self.method)
        was_training = self.method.training
        self.method.train(how.mode == "train")
        statistics = batch_statistics(self.method) if how.mode == "batch-statistics" else nullcontext()
        values: list[Tensor] = []
        visited: list[NDArray[np.int64]] = []
        with torch.no_grad(), self.runtime.autocast(), statistics:
            for batch in loader:
                values.append(network(batch.images).float().cpu())
                visited.append(batch.rows)
        self.method.train(was_training)
        if not values:
            return torch.zeros((0, 0)), np.zeros(0, dtype=np.int64)
        return torch.cat(values), np.concatenate(visited)

    # ------------------------------------------------------------------ checkpoints

    def save(self, *, best: bool) -> None:
        """Commit a checkpoint of everything that a resumed run needs."""
        if self._writer is None or self.run is None:
            return
        self._writer.kept_step = self.guard.good_step
        moments, scalars = named_optimizer_state(self.optimizer, self.method)
        sums = {f"epoch_sum/{name}": value for name, value in self._sums.items()}
        state = {
            "epoch": self.clock.epoch,
            "step_in_epoch": self.clock.step_in_epoch,
            "phase": [self.clock.phase, self.clock.phase_epoch, self.clock.phase_step],
            "summed": self._summed,
            "best": self.best,
            "metrics": self.metrics,
            "optimizer_scalars": scalars,
            "scaler": self.runtime.scaler_state(),
            "method": self.method.extra_state(),
            "monitor": self.monitor.extra_state() if self.monitor is not None else {},
            "guard": self.guard.extra_state(),
            "metrics_bytes": self.run.metrics_length() if self.run.writes else 0,
            "exactness": self.exactness(),
        }
        self._writer.save(
            self.clock.step,
            model=self.method.state_dict(),
            training=moments,
            per_rank=generator_states() | sums,
            state=state,
            # one field: safetensors writes several in random order, and equal runs are to give equal bytes
            metadata={
                "labelkit": canonical_json(
                    {**self.metadata, "version": __version__, "fingerprint": fingerprint(self.method.headline())}
                )
            },
            best=best,
        )
        self._last_save = time.monotonic()

    def restore(self, checkpoint: LoadedCheckpoint) -> None:
        """Take up a run where the checkpoint left it.

        Raises:
            CheckpointMismatch: parameters differ in name or shape.
        """
        where, state = str(checkpoint.folder), checkpoint.state
        for warning in checkpoint.warnings:
            self.message(f"passed over a damaged checkpoint: {warning}")
        load_model_state(self.method, checkpoint.tensors(MODEL), where)
        load_named_optimizer_state(
            self.optimizer, self.method, checkpoint.tensors(TRAINING), state["optimizer_scalars"], where=where
        )
        # a checkpoint without phases is of a run that had one
        self.clock = Clock(state["epoch"], state["step"], state["step_in_epoch"], *state.get("phase", (0, 0, 0)))
        self._running = None
        self.best = state["best"]
        self.metrics = state["metrics"]
        self.runtime.load_scaler_state(state["scaler"])
        self.method.load_extra_state(state["method"])
        if self.monitor is not None:
            self.monitor.load_extra_state(state["monitor"])
        self.guard.load_extra_state(state.get("guard", {}))  # a checkpoint of an earlier version has none
        own = rank_file(self.runtime.rank)
        # a process that was not there before takes the main one's sums, so that all of them have the same names
        tensors = checkpoint.tensors(own if checkpoint.has(own) else rank_file(0))
        sums = {k.removeprefix("epoch_sum/"): v for k, v in tensors.items() if k.startswith("epoch_sum/")}
        self._sums = {name: value.to(self.runtime.device) for name, value in sums.items()}
        self._summed = state["summed"]
        if checkpoint.has(own):
            restore_generators({k: v for k, v in tensors.items() if not k.startswith("epoch_sum/")})
        if self.run is not None:
            self.run.cut_metrics(state["metrics_bytes"])
        now, then = self.exactness(), state["exactness"]
        for key in sorted(now.keys() | then.keys()):
            if now.get(key) != then.get(key):
                self.message(f"not bit-exact: {key} {now.get(key)}, was {then.get(key)}")

    def exactness(self) -> dict[str, Any]:
        """What must agree for a resumed run to give the same bits."""
        return {
            "labelkit": __version__,
            "torch": torch.__version__,
            "device": self.runtime.device.type,
            "machine": platform.machine(),
            "processes": self.runtime.world_size,
            "threads": torch.get_num_threads(),
        }

    # ------------------------------------------------------------------ outside world

    @contextmanager
    def _signals(self) -> Any:
        """SIGINT and SIGTERM stop after the running step; SIGUSR1 asks for a checkpoint."""

        def stop(number: int, frame: FrameType | None) -> None:
            self._signal = number

        def checkpoint(number: int, frame: FrameType | None) -> None:
            self._checkpoint_asked = True

        wanted: dict[int, Any] = {signal.SIGINT: stop, signal.SIGTERM: stop}
        if hasattr(signal, "SIGUSR1"):
            wanted[signal.SIGUSR1] = checkpoint
        try:
            before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
        except ValueError:  # not the main thread: whoever runs us there owns the signals
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _open_tensorboard(self) -> Any:
        if self.run is None or not self.runtime.is_main:
            return None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                "--tensorboard", "TensorBoard is not installed", 'Run `pip install "labelkit[tensorboard]"`.'
            ) from error
        return SummaryWriter(str(self.run.path / "tensorboard"))

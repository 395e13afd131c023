"""Trainer: the training loop, its events, passes over images, and the schedule of evaluations and checkpoints."""

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelkit import __version__
from labelkit.data.batch import Batch
from labelkit.data.image_bank import CachedViewBank, ImageBank
from labelkit.data.keyed_random import keyed_generator
from labelkit.data.loaders import EvalLoader, TrainLoader
from labelkit.data.views.spec import Normalize
from labelkit.data.workers import get_num_workers
from labelkit.errors import DivergenceError, Interrupted
from labelkit.models.batch_norm import use_batch_statistics
from labelkit.models.weights.files import fingerprint
from labelkit.options.training import RunConfig
from labelkit.progress import Task
from labelkit.store.commit import canonical_json
from labelkit.training.checkpoint import (
    MODEL,
    TRAINING,
    CheckpointWriter,
    LoadedCheckpoint,
    load_model_state,
    rank_file_name,
)
from labelkit.training.devices import Runtime, explain_nondeterminism, generator_states, restore_generators, seed_step
from labelkit.training.guards import SAMPLE_SIZE, TrainingGuard, check_weights, feature_spread
from labelkit.training.method import Method, Monitor, PassSettings, Phase, TrainState
from labelkit.training.optim import build_optimizer, load_named_optimizer_state, named_optimizer_state, set_lr
from labelkit.training.run_dir import RunDir
from labelkit.training.saving import EpochMeans, TrainingPosition, reproducibility_properties
from labelkit.training.schedules import scheduled_lr


@contextmanager
def collect_stop_signals() -> Iterator[list[int]]:
    """Context manager that catches and records SIGINT, SIGTERM and SIGHUP; it has no effect outside the main thread."""
    received: list[int] = []
    wanted = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        wanted.append(signal.SIGHUP)
    try:
        before = {number: signal.signal(number, lambda number, _: received.append(number)) for number in wanted}
    except ValueError:  # not the main thread
        before = {}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


#: Number of steps between joint decisions of processes with GPUs to stop or to save.
STEPS_PER_DECISION: Final = 8
#: Minutes after which a checkpoint is also written within an epoch.
CHECKPOINT_MINUTES: Final = 10.0


@dataclass
class FitResult:
    """Metrics, number of updates and time of a training run."""

    metrics: dict[str, float]  # metrics of the last epoch
    step: int  # number of updates in total
    seconds: float  # time of the training, with that of earlier processes up to the checkpoint resumed from
    finished: bool  # False if it stopped on request before the last epoch
    history: list[dict[str, float]] = field(default_factory=list)  # metrics of every epoch run by this process


@dataclass(eq=False)
class Trainer:
    """Training loop of one method, which writes to one run folder."""

    method: Method[Any]  # the network and its event hooks
    bank: ImageBank  # the training images
    labels: NDArray[np.int64]  # (n,) int64 training labels, -1 = unlabeled
    config: RunConfig  # options shared by all methods
    runtime: Runtime  # device and processes
    _: KW_ONLY
    run: RunDir | None = None  # open run folder; ``None`` trains without writing files
    monitor: Monitor | None = None  # evaluates the network after epochs
    progress_task: Task | None = None  # shows progress
    message: Callable[[str], None] = lambda text: None  # shows a message
    # metadata of ``model.safetensors``, in addition to version and fingerprint
    metadata: Mapping[str, str] = field(default_factory=dict)
    # cached outputs of the frozen part, if training uses them instead of images
    cached_views: CachedViewBank | None = field(default=None, init=False)
    clock: TrainingPosition = field(default_factory=TrainingPosition, init=False)  # current epoch, step and phase
    metrics: dict[str, float] = field(default_factory=dict, init=False)  # metrics of the last epoch
    means: EpochMeans = field(default_factory=EpochMeans, init=False)  # running means of the current epoch
    # seconds of earlier, interrupted processes: of the training, and of the current epoch
    seconds_before: Sequence[float] = field(default=(0.0, 0.0), init=False)
    # when training and the current epoch would have started without the interruptions
    _started: float = field(default_factory=time.monotonic, init=False)
    _epoch_started: float = field(default_factory=time.monotonic, init=False)

    def __post_init__(self) -> None:
        method, runtime, run = self.method, self.runtime, self.run
        self.phases = method.phases(self.bank.rows)
        self.config = config = self._with_workers(self.config)
        self._pass_size = max(1, min(512, 2 * config.batch_size))  # images per batch of a full pass, by default
        counted, planned = config.epoch_config, sum(phase.epochs for phase in self.phases)
        if counted is not None and planned != counted.epochs:
            raise ValueError(f"phases must have {counted.epochs} epochs in total, as configured, got {planned}")
        if config.compile:
            runtime.compile(method)
        # the wrapper that averages gradients holds the same parameters, so one optimizer serves both
        self.wrapped = runtime.prepare(method)
        self.optimizer = build_optimizer(
            method.parameter_groups(),
            name=config.optimizer,
            lr=config.lr,
            momentum=config.momentum,
            nesterov=config.uses_nesterov,
        )
        self.trained = [p for p in method.parameters() if p.requires_grad]
        self.guard = TrainingGuard(config.guard, lambda text: self.message(text))
        if counted is not None and counted.lr_schedule == "step" and counted.lr_drop_epochs[0] >= planned:
            drops = f"--lr-drop-epochs starts at {counted.lr_drop_epochs[0]}, after the last of {planned} epochs"
            self.message(f"warning: the learning rate never drops: {drops}")
        self._running: tuple[int, Phase, TrainLoader] | None = None
        self._received: list[int] = []
        self._writer: CheckpointWriter | None = None
        if run is not None:
            self._writer = CheckpointWriter(run.checkpoints, rank=runtime.rank, barrier=runtime.barrier)

    def _with_workers(self, config: RunConfig) -> RunConfig:
        """Return the options with the number of decoding processes filled in."""
        views = self.phases[0].views
        sides = [view.size for view in (views(0) if callable(views) else views)]
        # full passes have batches of twice the size and their own processes
        pixels = sum(side**2 for side in sides) + 2 * self.method.eval_view().size ** 2
        batch_bytes = config.batch_size // self.runtime.world_size * self.bank.dataset.in_channels * pixels
        images = 0 if self.bank.in_memory else len(self.bank.rows)
        workers = get_num_workers(config.num_workers, images, batch_bytes)
        return config.model_copy(update={"num_workers": workers})

    def use_cached_views(self, views: CachedViewBank) -> None:
        """Train on cached outputs of the network's frozen part instead of images."""
        self.cached_views, self._running = views, None

    # ------------------------------------------------------------------ the run

    def fit(self) -> FitResult:
        """Train from the current epoch and step to the end of the last phase.

        Raises:
            DivergenceError: the loss or weights are not finite, or the guard or monitor ended the run.
            Interrupted: a signal requested a stop; a checkpoint was written.
        """
        history: list[dict[str, float]] = []
        self._started, self._epoch_started = (time.monotonic() - before for before in self.seconds_before)
        with collect_stop_signals() as self._received, explain_nondeterminism():
            if self.clock.step == 0:
                if self.run is not None:
                    self.run.truncate_metrics(0)  # lines of a run that was killed before its first checkpoint
                self.method.on_train_start(self._state(log_now=False))
            elif self._writer is not None and self.runtime.rank == 0:
                self._writer.kept_step = self.guard.good_step
                self._writer.prune()  # the run may have been killed while pruning
            self._last_save = time.monotonic()
            while self.clock.epoch - self.clock.phase_epoch < self._phase().epochs:
                if self._stop_reached() or not self._train_epoch():
                    return FitResult(self.metrics, self.clock.step, time.monotonic() - self._started, False, history)
                self._finish_epoch()
                history.append(self.metrics)
        return FitResult(self.metrics, self.clock.step, time.monotonic() - self._started, True, history)

    def score_before_training(self) -> dict[str, float]:
        """Return the monitor's scores of the features before training, or an empty dictionary without a monitor."""
        if self.monitor is None or not self.monitor.compares_with_start:
            return {}
        self.method.eval()
        scores = self.monitor.score_before_training(self.method, self._state(log_now=False))
        return {name: float(value) for name, value in scores.items()}

    def _train_epoch(self) -> bool:
        """Run the rest of the current epoch, and return False if it stopped on request."""
        clock, config = self.clock, self.config
        loader = self._loader()
        updates = self.steps_per_epoch()
        self.method.train()
        if clock.step == clock.phase_step:
            self.method.on_phase_start(self._state(log_now=False))
        # the rate of the previous step, for a run that is resumed after the last step of an epoch
        self._set_lr(max(0, clock.step_in_epoch - 1), updates)
        self.method.on_epoch_start(self._state(log_now=False))
        batches = loader.epoch_batches(clock.epoch, start_step=clock.step_in_epoch)
        while clock.step_in_epoch < updates:
            self._set_lr(clock.step_in_epoch, updates)
            log_now = (clock.step + 1) % config.log_every_steps == 0
            self.method.state = state = self._state(log_now=log_now)
            seed_step(config.seed, clock.step, self.runtime.rank)
            self.method.on_step_start(state)
            batch = next(batches)
            with self.runtime.autocast():
                output = self.wrapped(batch)
            logs = {name: value.detach() for name, value in output.logs.items()}
            self._add_to_means(output.loss, logs)
            self.runtime.backward(output.loss)
            self.method.on_gradients(state)
            self.runtime.clip_and_step(
                self.optimizer, self.trained, config.clip_grad_norm, per_parameter=config.clips_each_gradient
            )
            clock.step += 1
            clock.step_in_epoch += 1
            self.method.on_step_end(state)
            if log_now or clock.step == 1:
                self._log_step(output.loss, logs, write=log_now)
            if self.progress_task is not None:
                self.progress_task.advance()
            if self._stop_or_save(end_of_epoch=clock.step_in_epoch == updates):
                return False
        return True

    def _set_lr(self, step_in_epoch: int, updates: int) -> None:
        clock, phase = self.clock, self._phase()
        step = clock.step - clock.phase_step - clock.step_in_epoch + step_in_epoch
        for group in self.optimizer.param_groups:
            if phase.weight_decay is not None and group.get("is_decayed", False):
                group["weight_decay"] = phase.weight_decay(step)
            if phase.betas is not None and "betas" in group:
                group["betas"] = phase.betas(step)
        if phase.lr is not None:
            set_lr(self.optimizer, phase.lr(step), clock.epoch)
        elif self.config.epoch_config is not None:  # in other runs, phases have their own learning rates
            now = scheduled_lr(self.config.epoch_config, clock.epoch + step_in_epoch / updates)
            set_lr(self.optimizer, now, clock.epoch)

    def _add_to_means(self, loss: Tensor, logs: Mapping[str, Tensor]) -> None:
        """Add the loss and logs to the epoch's means; on the CPU, stop at the first loss that is not finite."""
        self.means.add(loss, logs)
        # a check at every step would stall a GPU; the sum keeps any NaN until the next check
        if loss.device.type == "cpu" or (self.clock.step + 1) % self.config.log_every_steps == 0:
            self._check_finite(logs)

    def _check_finite(self, logs: Mapping[str, Tensor]) -> None:
        if self.means.is_finite():
            return
        parts = ", ".join(f"{name} {float(value):.4g}" for name, value in logs.items() if value.ndim == 0)
        problem = f"the loss is not finite (parts: {parts or 'none'})"
        remedy = "The last checkpoint is not affected. Lower --lr, set --clip-grad-norm, or use --precision float32."
        raise DivergenceError(f"epoch {self.clock.epoch}, step {self.clock.step + 1}", problem, remedy)

    def _check_finite_state(self) -> None:
        """Raise an error if loss or weights are not finite, so that no bad checkpoint is written."""
        self._check_finite({})
        check_weights(self.method, f"epoch {self.clock.epoch}, step {self.clock.step}")

    def _guard_epoch(self, state: TrainState) -> dict[str, float]:
        """Check the features of the network in evaluation mode if due, and return metrics for the log."""
        if not self.guard.is_feature_check_due(self.clock.step, self.config.batch_size):
            return {}
        rows = np.sort(keyed_generator(self.config.seed, "guard").permutation(self.bank.rows)[:SAMPLE_SIZE])
        spread = feature_spread(state.full_pass(self.method.network.embed, rows, PassSettings(by_network=True)))
        self.guard.check_feature_spread(spread, self.clock.step)
        return {"guard/feature_spread": spread}

    def _finish_epoch(self) -> None:
        seconds = time.monotonic() - self._epoch_started
        self._check_finite_state()
        clock = self.clock
        metrics = self.means.pop_means(self.runtime.mean)
        metrics["lr"] = self.optimizer.param_groups[0]["lr"]
        metrics["seconds"] = seconds
        finished = clock.epoch + 1
        phase_over = finished - clock.phase_epoch == self._phase().epochs
        every = 1 if self.config.epoch_config is None else self.config.epoch_config.eval_every_epochs
        self.method.eval()
        state = self._state(log_now=True)
        metrics |= self._guard_epoch(state)
        metrics |= {name: float(value) for name, value in self.method.on_epoch_end(state).items()}
        if phase_over:
            metrics |= {name: float(value) for name, value in self.method.on_phase_end(state).items()}
        if self.monitor is not None and (finished % every == 0 or phase_over):
            metrics |= {name: float(value) for name, value in self.monitor(self.method, state).items()}
            if "used_clusters" in metrics:
                self.guard.check_cluster_use(metrics["used_clusters"], self.clock.step)
        self._record(metrics)
        self._announce(metrics)
        self.metrics = metrics
        clock.epoch, clock.step_in_epoch = finished, 0
        self._epoch_started = time.monotonic()
        if phase_over and self.method.phase(clock.phase + 1, self.bank.rows) is not None:
            clock.phase, clock.phase_epoch, clock.phase_step = clock.phase + 1, finished, clock.step
        self.save()

    def _announce(self, metrics: Mapping[str, float]) -> None:
        shown = [f"loss {metrics['loss']:.4f}"]
        if self.monitor is not None:
            shown += self.monitor.describe(metrics)
        shown += self.method.describe(metrics)
        where = f"step {self.clock.step}"
        if self.config.epoch_config is not None:
            where = f"epoch {self.clock.epoch + 1}/{self.config.epoch_config.epochs}"
        elif self.phases[0].name != self._phase().name:
            where += f" ({self._phase().name})"
        self.message(f"{where}: " + ", ".join(shown))

    def _log_step(self, loss: Tensor, logs: Mapping[str, Tensor], *, write: bool) -> None:
        values = {"loss": loss.detach(), **logs}
        means = {name: float(self.runtime.mean(value)) for name, value in values.items()}
        if write:
            self._record({"kind": "step", "lr": self.optimizer.param_groups[0]["lr"], **means})
        self.guard.check_loss_explosion(means["loss"], self.clock.step)

    def _stop_or_save(self, *, end_of_epoch: bool) -> bool:
        """Write a checkpoint if one is due, and return True if the run must stop here without an error."""
        due = time.monotonic() - self._last_save > 60 * CHECKPOINT_MINUTES
        if self.runtime.has_slow_communication and self.clock.step % STEPS_PER_DECISION and not end_of_epoch:
            stop_requested = due = False  # all processes count the same steps, so none communicates alone
        else:
            # processes see signals and clocks at slightly different steps, so they decide together
            stop_requested, due = self.runtime.reduce_flags([bool(self._received), due])
        if stop_requested or self._stop_reached():
            self._check_finite_state()
            self.save()
            if stop_requested:
                raise Interrupted(self._received[-1] if self._received else signal.SIGTERM)
            return True
        if due and not end_of_epoch:  # at the end of an epoch, a checkpoint follows anyway
            self._check_finite_state()
            self.save()
        return False

    def _stop_reached(self) -> bool:
        return self.config.stop_after_steps is not None and self.clock.step >= self.config.stop_after_steps

    # ------------------------------------------------------------------ shared parts

    def steps_per_epoch(self, epoch: int | None = None) -> int:
        """Return the number of optimizer updates in an epoch of the current phase, by default the current epoch.

        Raises:
            ConfigError: there are too few images for one batch.
        """
        epoch = self.clock.epoch if epoch is None else epoch
        phase, whole = self._phase(), self._loader().steps_per_epoch
        if phase.steps is None:
            return whole
        return max(0, min(whole, phase.steps - (epoch - self.clock.phase_epoch) * whole))

    def _phase_steps(self, phase: Phase) -> int:
        steps = len(phase.sampler) // self.config.batch_size * phase.epochs
        return steps if phase.steps is None else min(steps, phase.steps)

    def total_steps(self) -> int:
        """Return the number of optimizer updates of the run, or its maximum if phases are decided during training."""
        self._loader()  # raises an error if there are too few images for a batch
        planned = self.method.max_adaptive_steps()
        return sum(self._phase_steps(phase) for phase in self.phases) if planned is None else planned

    def _phase(self) -> Phase:
        return self._current_phase_and_loader()[0]

    def _loader(self) -> TrainLoader:
        return self._current_phase_and_loader()[1]

    def _current_phase_and_loader(self) -> tuple[Phase, TrainLoader]:
        """Return the current phase and its loader."""
        clock = self.clock
        if self._running is None or self._running[0] != clock.phase:
            phase = self.method.phase(clock.phase, self.bank.rows)
            if phase is None:
                raise ValueError(f"the method has no phase {clock.phase}, which the run has reached")
            self._running = (clock.phase, phase, self._loader_of(phase, clock.phase_epoch))
        return self._running[1:]

    def _loader_of(self, phase: Phase, first_epoch: int) -> TrainLoader:
        spec = self.method.network.input_spec
        return TrainLoader(
            self.bank if self.cached_views is None else self.cached_views,
            phase.views,
            phase.sampler,
            self.labels if phase.labels is None else phase.labels,
            batch_size=self.config.batch_size,
            seed=self.config.seed,
            normalize=Normalize(spec.mean, spec.std),
            num_workers=self.config.num_workers or 0,
            rank=self.runtime.rank,
            world_size=self.runtime.world_size,
            first_epoch=first_epoch,
            pairing=phase.pairing,
        )

    def batches(self, phase: Phase, epoch: int) -> Iterator[Batch]:
        """Yield this process's share of the batches of a phase's first epoch; see ``TrainState.batches``."""
        return self._loader_of(phase, epoch).epoch_batches(epoch)

    def average_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Average the gradients of parameters over all processes; see ``TrainState.average_gradients``."""
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
            log=lambda kind, values: self._record({"kind": kind, **values}),
            warn=lambda text: self.message(f"warning: {text}"),
            phase=self.clock.phase,
            step_in_phase=self.clock.step - self.clock.phase_step,
            phase_steps=self._phase_steps(self._phase()),
            batches=self.batches,
            average_gradients=self.average_gradients,
        )

    def _record(self, values: Mapping[str, Any]) -> None:
        """Append values of the current step to the log."""
        if self.run is not None:
            self.run.log({"epoch": self.clock.epoch, "step": self.clock.step, **values})

    # ------------------------------------------------------------------ passes outside of training

    def full_pass(
        self,
        network: Callable[[Tensor], Tensor],
        rows: NDArray[np.int64] | None = None,
        settings: PassSettings | None = None,
    ) -> Tensor:
        """Run a network over images, each exactly once, and gather the results on every process.

        Args:
            network: function from images (b, c, h, w) to (b, d).
            rows: rows of the dataset; default: all readable images.
            settings: mode and order of the pass; default: evaluation, in the order of ``rows``.

        Returns:
            (len(rows), d) float32 in the order of ``rows``, on the CPU, equal on every process.

        Raises:
            DivergenceError: results are not finite.
        """
        bank = settings.bank if settings is not None and settings.bank is not None else self.bank
        rows = bank.rows if rows is None else rows
        values, visited = self.local_pass(network, rows, settings)
        where = {int(row): position for position, row in enumerate(rows)}
        positions = torch.tensor([where[int(row)] for row in visited], dtype=torch.int64)
        found = self.runtime.gather_rows(values, positions, len(rows))
        if not bool(found.isfinite().all()):
            problem = "the network's outputs are not finite"
            remedy = "Lower --lr, set --clip-grad-norm, or use --precision float32."
            raise DivergenceError(f"epoch {self.clock.epoch}, step {self.clock.step}", problem, remedy)
        return found

    def local_pass(
        self,
        network: Callable[[Tensor], Tensor],
        rows: NDArray[np.int64] | None = None,
        settings: PassSettings | None = None,
    ) -> tuple[Tensor, NDArray[np.int64]]:
        """Run a network over this process's share of the images, with the arguments of ``full_pass``.

        Returns:
            (m, d) float32 on the CPU, and their rows (m,) int64; over all processes, each row occurs once.
        """
        settings = settings or PassSettings()
        if settings.mode == "eval":
            self.runtime.share_statistics(self.method)
        was_training = self.method.training
        self.method.train(settings.mode == "train")
        statistics = use_batch_statistics(self.method) if settings.mode == "batch-statistics" else nullcontext()
        values: list[Tensor] = []
        visited: list[NDArray[np.int64]] = []
        with torch.no_grad(), statistics:
            for images, some in self._pass_batches(rows, settings):
                # only around the network: views in half precision could not be written into float32 images
                with self.runtime.autocast():
                    seen = network(images)
                values.append(seen.float().cpu())
                visited.append(some)
        self.method.train(was_training)
        if not values:
            return torch.zeros((0, 0)), np.zeros(0, dtype=np.int64)
        return torch.cat(values), np.concatenate(visited)

    def _pass_batches(
        self, rows: NDArray[np.int64] | None, settings: PassSettings
    ) -> Iterator[tuple[Tensor, NDArray[np.int64]]]:
        """Yield this process's share of the batches: images, or their cached frozen outputs, and their rows."""
        # the order does not change results
        plain = settings.mode == "eval" and settings.view is None and settings.bank is None
        if self.cached_views is None or not (settings.by_network and plain):
            yield from ((batch.images, batch.rows) for batch in self._pass_loader(rows, settings))
            return
        rows = self.bank.rows if rows is None else rows
        size = settings.batch_size or self._pass_size
        for start in range(self.runtime.rank * size, len(rows), self.runtime.world_size * size):
            some = rows[start : start + size]
            yield self.cached_views.get_unaugmented(some), some

    def _pass_loader(self, rows: NDArray[np.int64] | None, settings: PassSettings) -> EvalLoader:
        """Return this process's share of the batches."""
        bank = settings.bank if settings.bank is not None else self.bank
        rows = bank.rows if rows is None else rows
        if settings.order != "rows":
            step = self.clock.step if settings.order == "new" else 0
            rows = keyed_generator(self.config.seed, "full-pass", step).permutation(rows)
        # separate from the training seeds, or the pass would use the same views as training
        seed = int(keyed_generator(self.config.seed, "full-pass view", self.clock.step).integers(2**31))
        spec = self.method.network.input_spec
        return EvalLoader(
            bank,
            settings.view or self.method.eval_view(),
            rows=rows,
            batch_size=settings.batch_size or self._pass_size,
            normalize=Normalize(spec.mean, spec.std),
            num_workers=self.config.num_workers or 0,
            rank=self.runtime.rank,
            world_size=self.runtime.world_size,
            seed=None if settings.view is None else seed,
            epoch=settings.draw,
            join_single=settings.mode != "eval",
        )

    # ------------------------------------------------------------------ checkpoints

    def save(self) -> None:
        """Write a checkpoint of everything that a resumed run needs."""
        if self._writer is None or self.run is None:
            return
        method, runtime, clock = self.method, self.runtime, self.clock
        self._writer.kept_step = self.guard.good_step
        moments, scalars = named_optimizer_state(self.optimizer, method)
        state = {
            "epoch": clock.epoch,
            "step_in_epoch": clock.step_in_epoch,
            "phase": [clock.phase, clock.phase_epoch, clock.phase_step],
            "seconds": [time.monotonic() - since for since in (self._started, self._epoch_started)],
            "summed": self.means.count,
            "metrics": self.metrics,
            "optimizer_scalars": scalars,
            "scaler": runtime.scaler_state(),
            "method": method.extra_state(),
            "monitor": self.monitor.extra_state() if self.monitor is not None else {},
            "guard": self.guard.extra_state(),
            "metrics_bytes": self.run.metrics_length() if self.run.writes else 0,
            "exactness": reproducibility_properties(runtime),
        }
        about = {**self.metadata, "version": __version__, "fingerprint": fingerprint(method.main_network())}
        self._writer.save(
            clock.step,
            model=method.state_dict(),
            training=moments,
            per_rank=generator_states(runtime.device) | self.means.tensors(),
            state=state,
            # a single field, since safetensors writes several in random order, and equal runs must give equal bytes
            metadata={"labelkit": canonical_json(about)},
        )
        self._last_save = time.monotonic()

    def restore(self, checkpoint: LoadedCheckpoint) -> None:
        """Restore the state of the run from a checkpoint.

        Raises:
            CheckpointMismatch: parameters differ in name or shape.
        """
        where, state, runtime = str(checkpoint.folder), checkpoint.state, self.runtime
        load_model_state(self.method, checkpoint.tensors(MODEL), where)
        moments, scalars = checkpoint.tensors(TRAINING), state["optimizer_scalars"]
        load_named_optimizer_state(self.optimizer, self.method, moments, scalars, where=where)
        self.clock = TrainingPosition(state["epoch"], state["step"], state["step_in_epoch"], *state["phase"])
        self.metrics, self.means = state["metrics"], EpochMeans()
        self.seconds_before = state.get("seconds", (0.0, 0.0))  # a checkpoint of an earlier version has none
        runtime.load_scaler_state(state["scaler"])
        self.method.load_extra_state(state["method"])
        if self.monitor is not None:
            self.monitor.load_extra_state(state["monitor"])
        self.guard.load_extra_state(state["guard"])
        own = rank_file_name(runtime.rank)
        # a new process takes the main one's sums, so that all processes have sums with the same names
        tensors = checkpoint.tensors(own if own in state["files"] else rank_file_name(0))
        generators = self.means.restore(tensors, state["summed"], runtime.device)
        if own in state["files"]:
            restore_generators(generators, runtime.device)
        now, then = reproducibility_properties(runtime), state["exactness"]
        for key in sorted(now.keys() | then.keys()):
            if now.get(key) != then.get(key):
                self.message(f"resuming is not bit-exact: {key} is {now.get(key)}, was {then.get(key)}")
        if now.get("deterministic") is False:
            self.message("resuming is not bit-exact: without --deterministic, the order of GPU sums varies")
        self._running = None
        if self.run is not None:
            self.run.truncate_metrics(state["metrics_bytes"])

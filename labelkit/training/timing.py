"""When things happen in a run: phases, epochs and updates, and what the optimizer gets in each of them.

The trainer asks this while it trains, and `labelkit show schedule` without training: both get the same numbers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from labelkit.errors import ConfigError
from labelkit.options.training import RunConfig
from labelkit.training.schedules import LearningRate


@dataclass(slots=True)
class Moment:
    """A position in a run, before its first update by default.

    Attributes:
        epoch: number of the running pass, from 0.
        step: updates finished; what is asked for holds in the next one.
        steps_per_epoch: updates of the running pass.
        phase: number of the running phase, from 0.
        step_in_phase: updates finished in it.
        phase_steps: updates of all of it.
    """

    epoch: int = 0
    step: int = 0
    steps_per_epoch: int = 1
    phase: int = field(default=0, kw_only=True)
    step_in_phase: int = field(default=0, kw_only=True)
    phase_steps: int = field(default=0, kw_only=True)


Scheduled = Callable[[Moment], float]
"""A value that changes during training; not-a-number where it has no part."""


@dataclass(frozen=True, slots=True)
class RunSize:
    """Number of training images and labeled images of a run.

    Attributes:
        images: that it trains on; ``None`` = not known.
        labeled: of these, with a label; likewise.
    """

    images: int | None
    labeled: int | None = None

    def known_images(self) -> int:
        """Return the number of training images, or raise an error if it is unknown.

        Raises:
            ConfigError: their number is not known.
        """
        if self.images is None:
            problem = "the number of training images, on which the length of the run depends, is unknown"
            raise ConfigError("--images", problem, "Pass the number.")
        return self.images

    def known_labels(self) -> int:
        """Return the number of labeled images, or raise an error if it is unknown.

        Raises:
            ConfigError: their number is not known.
        """
        if self.labeled is None:
            self.known_images()
            problem = "the number of labels, on which the length of the run depends, is unknown"
            raise ConfigError("--num-labels", problem, "Pass the number.")
        return self.labeled


@dataclass(frozen=True, slots=True)
class OptimizerSchedules:
    """What the optimizer gets in a phase, as functions of its step, counted from 0.

    Attributes:
        lr: learning rate; default: the run's own.
        weight_decay: of groups of parameters with ``is_decayed``; default: as they were built.
        betas: decays of Adam's moments; default: as the optimizer was built.
    """

    lr: Callable[[int], float] | None = field(default=None, kw_only=True)
    weight_decay: Callable[[int], float] | None = field(default=None, kw_only=True)
    betas: Callable[[int], tuple[float, float]] | None = field(default=None, kw_only=True)

    def at(self, step: int, lr: float | None) -> tuple[float | None, float | None, tuple[float, float] | None]:
        """Return learning rate, weight decay and betas at a step of the phase; ``None`` keeps the initial value.

        Args:
            step: updates finished in the phase.
            lr: the run's own learning rate there, for a phase that has none.
        """
        return (
            lr if self.lr is None else self.lr(step),
            None if self.weight_decay is None else self.weight_decay(step),
            None if self.betas is None else self.betas(step),
        )


@dataclass(frozen=True, slots=True)
class Pace(OptimizerSchedules):
    """Length and optimizer schedules of a phase, known without its images.

    Attributes:
        epochs: length, >= 1.
        draws: images that an epoch draws.
        name: shown in the log.
        steps: updates of the phase; its last epoch may be cut short. Default: whole epochs.
    """

    epochs: int
    draws: int
    name: str = "train"
    steps: int | None = None


@dataclass(frozen=True, slots=True)
class PhaseLength:
    """Number of optimizer updates per epoch and in all of a phase.

    Attributes:
        whole: of an epoch that is not cut short.
        epochs: of the phase.
        steps: most updates of the phase; ``None``: whole epochs.
    """

    whole: int
    epochs: int
    steps: int | None = None

    @classmethod
    def from_config(cls, draws: int, epochs: int, steps: int | None, config: RunConfig) -> PhaseLength:
        """Compute the number of updates of a phase from its number of images and epochs.

        Args:
            draws: images that an epoch draws.
            epochs: of the phase.
            steps: most updates.
            config: says how many images an update takes.

        Raises:
            ConfigError: an epoch draws fewer.
        """
        whole = draws // config.batch_size
        if whole == 0:
            raise ConfigError(
                "--batch-size",
                f"{config.batch_size} images per step exceed the {draws} images of an epoch",
                "Lower --batch-size.",
            )
        return cls(whole, epochs, steps)

    def updates(self, epoch: int) -> int:
        """Return the number of updates in an epoch of the phase, counted from 0."""
        return self.whole if self.steps is None else max(0, min(self.whole, self.steps - epoch * self.whole))

    @property
    def total(self) -> int:
        """Return the total number of updates of the phase."""
        steps = self.whole * self.epochs
        return steps if self.steps is None else min(steps, self.steps)


class Plan:
    """Plan of all updates of a run, computed without training.

    Args:
        paces: of its phases.
        config: the options.

    Raises:
        ConfigError: an epoch draws fewer images than an update takes.
    """

    def __init__(self, paces: Sequence[Pace], config: RunConfig) -> None:
        self.paces = tuple(paces)
        self.lengths = tuple(PhaseLength.from_config(pace.draws, pace.epochs, pace.steps, config) for pace in paces)
        self.starts = (0, *accumulate(length.total for length in self.lengths))
        self._epochs = (0, *accumulate(length.epochs for length in self.lengths))
        self._rate = None if config.in_epochs is None else LearningRate.from_config(config.in_epochs)

    @property
    def steps(self) -> int:
        """Return the total number of updates."""
        return self.starts[-1]

    @property
    def epochs(self) -> int:
        """Return the total number of epochs."""
        return self._epochs[-1]

    def at(self, step: int) -> Moment:
        """Return the position of the run before an update, counted from 0.

        Raises:
            ValueError: the run has no such update.
        """
        if not 0 <= step < self.steps:
            raise ValueError(f"step must be in [0, {self.steps}), got {step}")
        phase = bisect_right(self.starts, step) - 1
        length, in_phase = self.lengths[phase], step - self.starts[phase]
        epoch = in_phase // length.whole
        return Moment(
            self._epochs[phase] + epoch,
            step,
            length.updates(epoch),
            phase=phase,
            step_in_phase=in_phase,
            phase_steps=length.total,
        )

    def optimizer(self, now: Moment) -> tuple[float | None, float | None, tuple[float, float] | None]:
        """Return the optimizer settings of the next update, as :meth:`OptimizerSchedules.at`."""
        done = now.step_in_phase % self.lengths[now.phase].whole / now.steps_per_epoch
        lr = None if self._rate is None else self._rate.within(now.epoch, done)
        return self.paces[now.phase].at(now.step_in_phase, lr)

    def epoch_starts(self) -> Iterator[int]:
        """Yield the first update of each epoch, counted from 0."""
        for length, start in zip(self.lengths, self.starts, strict=False):
            yield from range(start, start + length.total, length.whole)


GroupRates = Mapping[str, Mapping[str, float]]
"""Of each group of parameters by name: ``lr_scale`` and ``first_epoch``, as `engine.optim.group_lr` takes them."""

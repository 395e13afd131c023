"""Values that change during training, as pure functions of the clock: no state to save, none that drifts.

The ranges of the numbers are checked by the options of a run.

Departure: a warm-up of w steps begins at ``peak / (w + 1)`` and reaches the peak in the step after it; DINO's released
code begins at 0, which leaves the network unchanged, and reaches the peak in the last step of the warm-up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from labelkit.options.training import TrainConfig

BETAS = (0.9, 0.999)
"""Default decays of Adam's moments."""


@dataclass(frozen=True, slots=True)
class LearningRate:
    """Learning rate schedule with linear warm-up, then cosine, constant or step decay.

    Args:
        peak: highest value, > 0.
        epochs: length of the run.
        shape: ``cosine``, ``constant`` or ``step``.
        final_ratio: ratio of the final to the highest value (cosine), reached at ``epochs``.
        warmup_epochs: epochs w of linear growth, < ``epochs``; the value at time t is ``peak * (t + 1) / (w + 1)``.
        drop_epochs: epochs, increasing, at whose start the value is multiplied by ``drop_factor`` (step).
        drop_factor: in (0, 1).
        moves_each_step: the value also changes inside an epoch; otherwise it stays constant there.

    The cosine is ``f + 0.5 (peak - f)(1 + cos(pi (t - w) / (epochs - w)))`` with ``f = peak * final_ratio`` and t
    in epochs; t may be a fraction.
    """

    peak: float
    epochs: int
    shape: str = "cosine"
    final_ratio: float = 1e-3
    warmup_epochs: int = 0
    drop_epochs: tuple[int, ...] = ()
    drop_factor: float = 0.1
    moves_each_step: bool = False

    @classmethod
    def from_config(cls, config: TrainConfig) -> LearningRate:
        """Create the schedule from the options of a run."""
        return cls(
            config.lr,
            config.epochs,
            config.lr_schedule,
            config.lr_final_ratio,
            config.lr_warmup_epochs,
            config.lr_drop_epochs,
            config.lr_drop_factor,
            config.lr_update == "step",
        )

    def at(self, epoch: float) -> float:
        """Return the learning rate at a time in epochs; the time may be fractional."""
        if epoch < self.warmup_epochs:
            return self.peak * (epoch + 1) / (self.warmup_epochs + 1)
        if self.shape == "constant":
            return self.peak
        if self.shape == "step":
            return self.peak * self.drop_factor ** sum(drop <= epoch for drop in self.drop_epochs)
        floor = self.peak * self.final_ratio
        position = (epoch - self.warmup_epochs) / (self.epochs - self.warmup_epochs)
        return floor + 0.5 * (self.peak - floor) * (1 + math.cos(math.pi * min(position, 1.0)))

    def within(self, epoch: int, share: float) -> float:
        """Return the learning rate at a fraction, in [0, 1), of the given epoch."""
        return self.at(epoch + share if self.moves_each_step else epoch)


def sigmoid_ramp(step: float, length: float) -> float:
    """Return the ramp-up ``exp(-5 (1 - t/T)^2)``, from 0.0067 at step 0 to 1 at ``length``.

    1 throughout if the length is 0.

    Source: ``CuriousAI/mean-teacher:tensorflow/mean_teacher/model.py``.
    """
    if length <= 0:
        return 1.0
    return math.exp(-5 * (1 - min(step, length) / length) ** 2)


@dataclass(frozen=True, slots=True)
class RampedWeight:
    """Loss weight that ramps up at the start of training.

    Args:
        full: value from ``steps`` on.
        steps: length of the growth; 0: ``full`` throughout.
        shape: ``sigmoid``: by `sigmoid_ramp` (Mean Teacher); ``linear``: from 0 (MixMatch).
    """

    full: float
    steps: float
    shape: str = "linear"

    def __call__(self, step: int) -> float:
        """Return the weight at a step, counted from 0."""
        if self.shape == "sigmoid":
            return self.full * sigmoid_ramp(step, self.steps)
        return self.full * (min(step / self.steps, 1.0) if self.steps else 1.0)


def compute_max_decay(steps: int, largest: float = 0.999) -> float:
    """Return the maximum useful EMA decay for a phase: ``min(largest, max(0, 1 - 10 / steps))``.

    A mean over longer than a tenth of the phase would still mostly reflect its start. Source: snowball,
    specification 3.2 (ours).
    """
    return min(largest, max(0.0, 1 - 10 / steps))


@dataclass(frozen=True, slots=True)
class EMADecay:
    """EMA decay of a teacher: low before ``ramp_steps``, high afterward, and never above that of a plain average.

    ``min(1 - 1 / (t + 1), a(t))`` for the updates t = 1, 2, ... of the run.

    Args:
        low, high: decays in [0, 1), low <= high.
        ramp_steps: T; a is ``low`` for t < T, then ``high``.

    Source: ``CuriousAI/mean-teacher``; the dissertation's 0.99 and 0.999.
    """

    low: float
    high: float
    ramp_steps: int

    def __call__(self, step: int) -> float:
        """Return the decay at an update of the run, counted from 1."""
        return min(1 - 1 / (step + 1), self.low if step < self.ramp_steps else self.high)


@dataclass(frozen=True, slots=True)
class PhaseLearningRate:
    """Learning rate schedule of one phase as a function of its step, counted from 0.

    Args:
        peak: highest value, > 0.
        steps: length of the phase, T.
        shape: ``constant``; ``cosine``: ``0.5 peak (1 + cos(pi t / h T))``; ``fixmatch``: ``peak cos(7 pi t / 16 T)``;
            ``ramps``: sigmoid growth at the start and ``exp(-12.5 x^2)`` at the end, x from 0 to 1 (Mean Teacher).
        horizon: h >= 1, length of the cosine divided by that of the phase.
        ramp_up, ramp_down: shares of the phase that the ramps take.
    """

    peak: float
    steps: int
    shape: str = "cosine"
    horizon: float = 1.0
    ramp_up: float = 0.0
    ramp_down: float = 0.0

    def __call__(self, step: int) -> float:
        """Return the learning rate at a step."""
        share = step / self.steps
        if self.shape == "constant":
            return self.peak
        if self.shape == "cosine":
            return 0.5 * self.peak * (1 + math.cos(math.pi * min(share / self.horizon, 1.0)))
        if self.shape == "fixmatch":
            return self.peak * math.cos(7 * math.pi * share / 16)
        return self.peak * sigmoid_ramp(share, self.ramp_up) * _falling(share, self.ramp_down)


@dataclass(frozen=True, slots=True)
class AdamMoments:
    """Schedule of Adam's betas in one phase as a function of its step, counted from 0.

    They follow the ramps of the learning rate.

    Args:
        steps: length of the phase, T.
        ramp_up, ramp_down: shares of the phase in which the rate grows and falls.
        beta1_end: the first one at the end; 0.9 before the ramp, and inside it, with x as in `PhaseLearningRate`,
            ``beta1_end + (0.9 - beta1_end) exp(-12.5 x^2)``.
        beta2_start: the second one while the rate grows; then 0.999.

    Source: ``CuriousAI/mean-teacher:tensorflow/mean_teacher/model.py``, with 0.5 and 0.99.
    """

    steps: int
    ramp_up: float = 0.0
    ramp_down: float = 0.0
    beta1_end: float = BETAS[0]
    beta2_start: float = BETAS[1]

    def __call__(self, step: int) -> tuple[float, float]:
        """Return both betas at a step."""
        fallen = _falling(step / self.steps, self.ramp_down)
        second = self.beta2_start if step < self.ramp_up * self.steps else BETAS[1]
        return self.beta1_end + (BETAS[0] - self.beta1_end) * fallen, second


def _falling(share: float, length: float) -> float:
    """Return ``exp(-12.5 x^2)`` in the last ``length`` of a phase, x from 0 to 1; 1 before."""
    return math.exp(-12.5 * (max(0.0, share - (1 - length)) / length) ** 2) if length else 1.0


@dataclass(frozen=True, slots=True)
class CosineSchedule:
    """Cosine schedule between two values: ``f + 0.5 (s - f)(1 + cos(pi (t - w) / (T - w)))``.

    Args:
        start: s, at the end of the warm-up.
        end: f, reached after the last step; may be larger than ``start``.
        steps: T.
        warmup_steps: w, steps of linear growth, < T; the value at step t is ``start (t + 1) / (w + 1)``.

    Source: DINO, for learning rate, weight decay and the decay of the teacher alike; the warm-up is ours, see above.
    """

    start: float
    end: float
    steps: int
    warmup_steps: int = 0

    def __call__(self, step: int) -> float:
        """Return the value at a step, counted from 0."""
        if step < self.warmup_steps:
            return self.start * (step + 1) / (self.warmup_steps + 1)
        share = min((step - self.warmup_steps) / (self.steps - self.warmup_steps), 1.0)
        return self.end + 0.5 * (self.start - self.end) * (1 + math.cos(math.pi * share))

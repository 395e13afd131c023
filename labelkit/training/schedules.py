"""Schedules of values that change during training, as pure functions of the step, so that there is no state to save.

The ranges of the parameters are checked by the options of a run.

Departure: a warm-up of w steps starts at ``peak / (w + 1)`` and reaches the peak in the step after it; DINO's released
code starts at 0, which leaves the network unchanged, and reaches the peak in the last step of the warm-up.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from labelkit.options.training import TrainConfig

BETAS = (0.9, 0.999)
"""Default betas of Adam."""
Schedule = Callable[[int], float]
"""Function from the step to a value."""


def scheduled_lr(config: TrainConfig, time: float) -> float:
    """Return the learning rate at time t in epochs, which is rounded down unless ``lr_update`` is ``step``.

    It grows linearly for ``lr_warmup_epochs`` w, ``peak * (t + 1) / (w + 1)``. Then it is constant; or multiplied by
    ``lr_drop_factor`` at the start of each of ``lr_drop_epochs`` (``step``); or follows the cosine
    ``f + 0.5 (peak - f)(1 + cos(pi (t - w) / (epochs - w)))`` with ``f = peak * lr_final_ratio``.
    """
    now = time if config.lr_update == "step" else math.floor(time)
    peak, warmup = config.lr, config.lr_warmup_epochs
    if now < warmup:
        return peak * (now + 1) / (warmup + 1)
    if config.lr_schedule == "constant":
        return peak
    if config.lr_schedule == "step":
        return peak * config.lr_drop_factor ** sum(drop <= now for drop in config.lr_drop_epochs)
    floor = peak * config.lr_final_ratio
    position = (now - warmup) / (config.epochs - warmup)
    return floor + 0.5 * (peak - floor) * (1 + math.cos(math.pi * min(position, 1.0)))


def sigmoid_ramp(step: float, length: float) -> float:
    """Return the ramp-up factor ``exp(-5 (1 - t/T)^2)``, which grows from 0.0067 at step 0 to 1 at ``length``.

    If the length is 0, the value is always 1.

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
        steps: length of the ramp-up; 0: always ``full``.
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


def max_ema_decay(steps: int, largest: float = 0.999) -> float:
    """Return the largest useful EMA decay for a phase: ``min(largest, max(0, 1 - 10 / steps))``.

    An average over more than a tenth of the phase would still mostly reflect its start. Source: snowball,
    specification 3.2 (ours).
    """
    return min(largest, max(0.0, 1 - 10 / steps))


def ema_decay_schedule(low: float, high: float, ramp_steps: int) -> Schedule:
    """Return the schedule of a teacher's EMA decay at updates t = 1, 2, ...: ``min(1 - 1 / (t + 1), a(t))``.

    a is ``low`` for t < ``ramp_steps``, then ``high``, both in [0, 1); the decay never exceeds that of a plain average.

    Source: ``CuriousAI/mean-teacher``; the dissertation's 0.99 and 0.999.
    """
    return lambda step: min(1 - 1 / (step + 1), low if step < ramp_steps else high)


def phase_lr_schedule(
    peak: float, steps: int, shape: str = "cosine", horizon: float = 1.0, ramp_up: float = 0.0, ramp_down: float = 0.0
) -> Schedule:
    """Return the learning-rate schedule for a phase of T ``steps``, with steps t from 0 and a ``peak`` > 0.

    The shapes are ``constant``; ``cosine``: ``0.5 peak (1 + cos(pi t / h T))`` with h >= 1, the ``horizon``;
    ``fixmatch``: ``peak cos(7 pi t / 16 T)``; ``ramps``: sigmoid growth in the first fraction ``ramp_up`` of the phase,
    and ``exp(-12.5 x^2)`` in the last fraction ``ramp_down``, with x from 0 to 1 (Mean Teacher).
    """

    def rate(step: int) -> float:
        share = step / steps
        if shape == "constant":
            return peak
        if shape == "cosine":
            return 0.5 * peak * (1 + math.cos(math.pi * min(share / horizon, 1.0)))
        if shape == "fixmatch":
            return peak * math.cos(7 * math.pi * share / 16)
        return peak * sigmoid_ramp(share, ramp_up) * _ramp_down(share, ramp_down)

    return rate


def adam_beta_schedule(
    steps: int, ramp_up: float, ramp_down: float, beta1_end: float, beta2_start: float
) -> Callable[[int], tuple[float, float]]:
    """Return the schedule of Adam's betas for a phase of T ``steps``, with the ramps of `phase_lr_schedule`.

    Steps count from 0. The first beta is 0.9, and during the ramp-down ``beta1_end + (0.9 - beta1_end) exp(-12.5 x^2)``
    with x as in `phase_lr_schedule`. The second beta is ``beta2_start`` during the ramp-up, then 0.999.

    Source: ``CuriousAI/mean-teacher:tensorflow/mean_teacher/model.py``, with 0.5 and 0.99.
    """

    def betas(step: int) -> tuple[float, float]:
        first = beta1_end + (BETAS[0] - beta1_end) * _ramp_down(step / steps, ramp_down)
        return first, beta2_start if step < ramp_up * steps else BETAS[1]

    return betas


def _ramp_down(share: float, length: float) -> float:
    """Return ``exp(-12.5 x^2)`` in the last ``length`` of a phase, x from 0 to 1; 1 before."""
    return math.exp(-12.5 * (max(0.0, share - (1 - length)) / length) ** 2) if length else 1.0


def cosine_schedule(start: float, end: float, steps: int, warmup_steps: int = 0) -> Schedule:
    """Return a cosine schedule between two values, with steps t from 0.

    It is ``f + 0.5 (s - f)(1 + cos(pi (t - w) / (T - w)))``: after w ``warmup_steps`` of linear growth,
    ``start (t + 1) / (w + 1)``, it starts at s and reaches f, which may be larger, after the last of T steps.

    Source: DINO, for learning rate, weight decay and teacher decay; the warm-up is ours, see above.
    """

    def value(step: int) -> float:
        if step < warmup_steps:
            return start * (step + 1) / (warmup_steps + 1)
        share = min((step - warmup_steps) / (steps - warmup_steps), 1.0)
        return end + 0.5 * (start - end) * (1 + math.cos(math.pi * share))

    return value

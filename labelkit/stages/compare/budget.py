"""A run that fits a time: fewer epochs or steps, and everything that is counted in them shortened alike."""

from __future__ import annotations

from typing import Any

from labelkit.config.train import RunConfig, StepRunConfig, TrainConfig

_AT_LEAST_ONE = ("epochs", "steps", "later_steps", "max_steps", "num_optimizations")
_MAY_VANISH = (
    "lr_warmup_epochs", "lr_warmup_steps", "teacher_warmup_epochs", "warm_epochs", "ccl_start_epoch",
    "memory_warmup_steps", "memory_start_epochs",
)  # fmt: skip


def shortened(config: RunConfig, fraction: float) -> dict[str, Any]:
    """Return the options that make a run take this share of its time.

    Drops of the learning rate, warm-ups and phases keep their place in the run; numbers of epochs are rounded down, so
    that the run fits, but for one epoch at least. Evaluations between the epochs, which cost time and change nothing,
    are left out.

    Args:
        config: of the whole run.
        fraction: in (0, 1].
    """
    options: dict[str, Any] = {}
    if isinstance(config, TrainConfig):
        options["eval_every_epochs"] = max(1, int(config.epochs * fraction))
    if fraction >= 1:
        return options
    # 1e-9: 0.29 * 100 is a little less than 29
    for name in _AT_LEAST_ONE:
        value = getattr(config, name, None)
        if value is not None:
            options[name] = max(1, int(value * fraction + 1e-9))
    for name in _MAY_VANISH:
        value = getattr(config, name, None)
        if value is not None:
            options[name] = int(value * fraction + 1e-9)
    drops = getattr(config, "lr_drop_epochs", ())
    if drops:
        options["lr_drop_epochs"] = tuple(sorted({max(1, round(epoch * fraction)) for epoch in drops}))
    moments = getattr(config, "optimization_epochs", None)
    if moments is not None:
        options["optimization_epochs"] = tuple(epoch * fraction for epoch in moments)
    if isinstance(config, StepRunConfig):
        every = max(1, int(config.eval_every_steps * fraction + 1e-9))
        options["eval_every_steps"] = every
        if config.steps % config.eval_every_steps == 0:
            # as many blocks as before: some methods count in them
            options["steps"] = every * (config.steps // config.eval_every_steps)
    return options


def length_of(config: RunConfig) -> dict[str, int]:
    """Return the epochs or steps of a run."""
    names = ("epochs",) if isinstance(config, TrainConfig) else ("steps", "later_steps")
    return {name: value for name in names if (value := getattr(config, name, None)) is not None}


def is_shortest(config: RunConfig) -> bool:
    """Return whether nothing can be taken from a run: one epoch, or evaluations after every step."""
    return 1 in (getattr(config, "epochs", None), getattr(config, "eval_every_steps", None))

"""Options for all training methods: data, optimizer, device, run folder, and length in epochs or steps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from labelkit.options.base import RUN, RUN_ONLY, BaseConfig, field_factory, format_value
from labelkit.options.data import DataConfig
from labelkit.options.shared import DeviceOption, PrecisionOptions, ThreadsOption

LabelKind = Literal["few", "some", "all", "none"]

_OPTIMIZATION = field_factory("Optimization")


class OptimizerOptions(BaseConfig):
    """Options for the optimizer, the batch size and the random seed."""

    acts_with: ClassVar[Mapping[str, tuple[Any, ...]]] = {"momentum": ("optimizer", "sgd")}

    batch_size: int = _OPTIMIZATION(128, "Total batch size over all processes.", ge=2)
    optimizer: Literal["sgd", "adam", "adamw"] = _OPTIMIZATION("sgd", "Optimizer.")
    lr: float = _OPTIMIZATION(0.1, "Peak learning rate.", gt=0)
    momentum: float = _OPTIMIZATION(0.9, "SGD momentum.", ge=0, lt=1)
    weight_decay: float = _OPTIMIZATION(
        5e-5, "Weight decay; not applied to biases and other one-dimensional parameters.", ge=0
    )
    clip_grad_norm: float | None = _OPTIMIZATION(None, "Maximum gradient norm. Default: no clipping.", gt=0)
    seed: int = RUN(0, "Random seed for everything except the split (see --split-seed).", ge=0)


class RunConfig(ThreadsOption, PrecisionOptions, DeviceOption, OptimizerOptions, DataConfig):
    """Options shared by all methods of ``labelkit train``, except for the length of the run."""

    #: Numbers of epochs or steps to scale in a shorter run, with their minimum, in addition to those of base classes.
    scaled: ClassVar[Mapping[str, int]] = {}
    #: Options that may differ between a run and its resumption.
    resumable_fields: ClassVar[frozenset[str]] = frozenset(
        {
            "data_root", "download", "device", "num_workers", "threads",
            "log_every_steps",
            "guard", "deterministic",
            "compile",
        }
    )  # fmt: skip

    log_every_steps: int = RUN(10, "Number of steps between log entries in metrics.jsonl.", ge=1)
    deterministic: bool = RUN(
        False,
        "Use deterministic algorithms on a GPU, and fail on operations that have none. CPU runs are always "
        "deterministic.",
    )
    compile: bool = RUN(
        False,
        "Compile the backbone with torch.compile: the first step takes minutes, but later steps are faster on most "
        "GPUs. Results differ in the last digits. Not available for methods that hook into the backbone.",
    )
    guard: Literal["none", "warn", "stop"] = RUN(
        "stop",
        "What to do if training fails (exploding loss, collapsed features): stop with exit code 4, warn, or do nothing "
        "(none). Non-finite values always stop the run.",
    )
    stop_after_steps: int | None = RUN_ONLY(
        None, "Write a checkpoint and stop after this step; continue with --resume.", ge=1
    )
    out: Path | None = RUN_ONLY(None, "Run folder to create. Default: runs/METHOD-DATASET.", makes="folder")
    init_from: Path | None = RUN(None, "Initialize the weights from this run folder or weights file.")
    resume: bool = RUN_ONLY(False, "Resume the run in --out.")
    overwrite: bool = RUN_ONLY(False, "Delete an existing run in --out first.")
    dry_run: bool = RUN_ONLY(
        False, "Show the configuration, image counts, parameters, memory and time, without writing anything."
    )

    @model_validator(mode="after")
    def _check_run(self) -> RunConfig:
        if self.resume and self.overwrite:
            raise ValueError("--resume and --overwrite cannot be combined")
        return self

    # ------------------------------------------------------------------ properties for the trainer and commands

    #: What the trained network predicts: class ``names``, unnamed ``groups``, or ``nothing``.
    own_output: ClassVar[Literal["names", "groups", "nothing"]] = "nothing"

    #: Whether the labels that the method uses must belong to at least two classes.
    learns_from_labels: ClassVar[bool] = False

    #: Whether the method requires unlabeled images; without any, a run fails.
    needs_unlabeled: ClassVar[bool] = False

    #: Whether ``clip_grad_norm`` clips the gradient of each parameter separately.
    clips_each_gradient: ClassVar[bool] = False

    @property
    def epoch_config(self) -> TrainConfig | None:
        """Return this config if the length of the run is measured in epochs, otherwise ``None``."""
        return None

    @property
    def uses_nesterov(self) -> bool:
        """Return whether SGD uses Nesterov momentum."""
        return False

    @property
    def view_size(self) -> int | None:
        """Side length of a view in pixels, or ``None`` for the backbone's input size."""
        return None

    @property
    def evaluation_split(self) -> str | None:
        """Split to evaluate on: a name, ``auto``, or ``None`` for no evaluation."""
        return None

    @property
    def label_kind(self) -> LabelKind:
        """Labels that the method uses: a ``few`` per class, ``some`` (old classes), ``all`` or ``none``."""
        return "none" if self.label_split == "none" else "all"

    def length_options(self) -> dict[str, int]:
        """Return the options that set the length of the run, in epochs or in steps."""
        return {}

    def shortened_options(self, fraction: float) -> dict[str, object]:
        """Return option values that shorten a run to a fraction of its length.

        Learning-rate drops, warm-ups and phases keep their relative positions. Counts are rounded down, but a run has
        at least one epoch. Intermediate evaluations, which take time but do not affect training, are skipped.

        Args:
            fraction: fraction of the length, in (0, 1].
        """
        if fraction >= 1:
            return {}
        scaled = {name: low for base in type(self).__mro__ for name, low in vars(base).get("scaled", {}).items()}
        counts = {name: getattr(self, name) for name in scaled}
        # 1e-9, since 0.29 * 100 is slightly less than 29
        return {name: max(scaled[name], int(n * fraction + 1e-9)) for name, n in counts.items() if n is not None}


class TrainConfig(RunConfig):
    """Options for a training run whose length is measured in epochs."""

    scaled: ClassVar[Mapping[str, int]] = {"epochs": 1, "lr_warmup_epochs": 0}
    acts_with: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "lr_drop_epochs": ("lr_schedule", "step"),
        "lr_drop_factor": ("lr_schedule", "step"),
        "lr_final_ratio": ("lr_schedule", "cosine"),
    }

    epochs: int = _OPTIMIZATION(..., "Number of training epochs.", ge=1)
    lr_schedule: Literal["cosine", "constant", "step"] = _OPTIMIZATION(
        "cosine", "Learning-rate schedule. step: the rate drops at --lr-drop-epochs."
    )
    lr_drop_epochs: tuple[int, ...] = _OPTIMIZATION(
        (), "Epochs at the start of which the learning rate drops (with --lr-schedule step)."
    )
    lr_drop_factor: float = _OPTIMIZATION(
        0.1, "Factor by which to multiply the learning rate at each drop (only with --lr-schedule step).", gt=0, lt=1
    )
    lr_update: Literal["epoch", "step"] = _OPTIMIZATION("epoch", "Update the learning rate every epoch or every step.")
    lr_final_ratio: float = _OPTIMIZATION(
        1e-3, "Ratio of the final to the peak learning rate (only with --lr-schedule cosine).", ge=0, le=1
    )
    lr_warmup_epochs: int = _OPTIMIZATION(0, "Number of linear warm-up epochs.", ge=0)
    eval_every_epochs: int = RUN(1, "Number of epochs between evaluations.", ge=1)

    @model_validator(mode="after")
    def _check_schedule(self) -> TrainConfig:
        if self.lr_warmup_epochs >= self.epochs and self.lr_warmup_epochs > 0:
            raise ValueError(f"lr_warmup_epochs must be less than epochs ({self.epochs}), got {self.lr_warmup_epochs}")
        if self.lr_schedule == "step" and not self.lr_drop_epochs:
            raise ValueError("--lr-schedule step requires --lr-drop-epochs")
        if list(self.lr_drop_epochs) != sorted(set(self.lr_drop_epochs)) or any(e < 1 for e in self.lr_drop_epochs):
            raise ValueError(f"lr_drop_epochs must be positive and increasing, got {format_value(self.lr_drop_epochs)}")
        return self

    @property
    def epoch_config(self) -> TrainConfig:
        """Return this config, which measures the length of the run in epochs."""
        return self

    def length_options(self) -> dict[str, int]:
        """Return the number of epochs, keyed by option name."""
        return {"epochs": self.epochs}

    def shortened_options(self, fraction: float) -> dict[str, object]:
        """Return options with fewer epochs, all epoch counts scaled alike, and one evaluation at the end."""
        options = super().shortened_options(fraction) | {"eval_every_epochs": max(1, int(self.epochs * fraction))}
        if self.lr_drop_epochs and fraction < 1:
            drops = {max(1, round(epoch * fraction)) for epoch in self.lr_drop_epochs}
            options["lr_drop_epochs"] = tuple(sorted(drops))
        return options


class StepRunConfig(RunConfig):
    """Options for a run whose length is measured in optimizer steps."""

    scaled: ClassVar[Mapping[str, int]] = {"steps": 1}

    steps: int = _OPTIMIZATION(..., "Number of training steps.", ge=1)
    eval_every_steps: int = RUN(
        1000, "Number of steps between evaluations; each evaluation also writes a checkpoint.", ge=1
    )

    def length_options(self) -> dict[str, int]:
        """Return the number of steps, keyed by option name."""
        return {"steps": self.steps}

    def shortened_options(self, fraction: float) -> dict[str, object]:
        """Return options with fewer steps but as many evaluations, on which some methods base their schedules."""
        if fraction >= 1:
            return {}
        every = max(1, int(self.eval_every_steps * fraction + 1e-9))
        options = super().shortened_options(fraction) | {"eval_every_steps": every}
        if self.steps % self.eval_every_steps == 0:
            options["steps"] = every * (self.steps // self.eval_every_steps)
        return options


class StepTrainConfig(StepRunConfig):
    """Options for momentum and learning-rate schedule in a run whose length is measured in steps."""

    nesterov: bool = _OPTIMIZATION(False, "Use Nesterov momentum (only with --optimizer sgd).")
    lr_schedule: Literal["constant", "cosine", "fixmatch", "ramps"] = _OPTIMIZATION(
        "cosine",
        "Learning-rate schedule. cosine: decays to 0 by the end (or later, with --lr-horizon); fixmatch: the first "
        "7/16 of a half-period cosine; ramps: ramps up at the start and down at the end (Mean Teacher).",
    )

    @model_validator(mode="after")
    def _check_nesterov(self) -> StepTrainConfig:
        if self.nesterov and (self.optimizer != "sgd" or self.momentum == 0):
            raise ValueError("--nesterov requires --optimizer sgd with a --momentum above 0")
        return self

    @property
    def uses_nesterov(self) -> bool:
        """Return whether SGD uses Nesterov momentum."""
        return self.nesterov

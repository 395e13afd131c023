"""What every training method shares: data, optimizer, device, run folder; and its length in epochs or in steps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from labelkit.options.base import StageConfig, value_text
from labelkit.options.data import DataConfig
from labelkit.options.shared import DeviceOption, PrecisionOptions, ThreadsOption

LabelKind = Literal["few", "some", "all", "none"]

_OPTIMIZATION: JsonDict = {"panel": "Optimization"}
_RUN: JsonDict = {"panel": "Run"}
_RUN_ONLY: JsonDict = {"panel": "Run", "preset": False}


class UpdateOptions(StageConfig):
    """Options for the optimizer, batch size and seed."""

    batch_size: int = Field(
        128, ge=2, description="Batch size, summed over all processes.", json_schema_extra=_OPTIMIZATION
    )
    optimizer: Literal["sgd", "adam", "adamw"] = Field("sgd", description="Optimizer.", json_schema_extra=_OPTIMIZATION)
    lr: float = Field(0.1, gt=0, description="Peak learning rate.", json_schema_extra=_OPTIMIZATION)
    momentum: float = Field(0.9, ge=0, lt=1, description="SGD momentum.", json_schema_extra=_OPTIMIZATION)
    weight_decay: float = Field(
        5e-5,
        ge=0,
        description="Weight decay; biases and one-dimensional parameters are not decayed.",
        json_schema_extra=_OPTIMIZATION,
    )
    clip_grad_norm: float | None = Field(
        None, gt=0, description="Maximum gradient norm; default: no clipping.", json_schema_extra=_OPTIMIZATION
    )
    seed: int = Field(0, ge=0, description="Random seed for everything except the split.", json_schema_extra=_RUN)


class RunConfig(ThreadsOption, PrecisionOptions, DeviceOption, UpdateOptions, DataConfig):
    """Options shared by all methods of ``labelkit train``, except the length of the run."""

    constants: ClassVar[Mapping[str, object]] = {"grad_accumulation_steps": 1}
    #: They changed what is written, and when, and nothing that is trained.
    retired_fields: ClassVar[frozenset[str]] = frozenset(
        {"checkpoint_every_minutes", "keep_every_steps", "tensorboard"}
    )
    # A saved config.yaml lists the options as it always did.
    keeps_order: ClassVar[bool] = True

    #: Options that may differ between a run and its resumption.
    resumable_fields: ClassVar[frozenset[str]] = frozenset(
        {
            "data_root", "download", "device", "num_workers", "threads",
            "log_every_steps",
            "guard", "guard_loss_ratio", "guard_min_spread", "deterministic",
            "compile", "max_disk",
        }
    )  # fmt: skip

    log_every_steps: int = Field(10, ge=1, description="Steps between lines of metrics.jsonl.", json_schema_extra=_RUN)
    deterministic: bool = Field(
        False,
        description="Use deterministic algorithms on a GPU, and fail on operations without one. Runs on a CPU are "
        "always deterministic.",
        json_schema_extra=_RUN,
    )
    compile: bool = Field(
        False,
        description="Compile the backbone with torch.compile: minutes for the first step, then faster on most GPUs. "
        "Results differ in the last digits. Not for methods that hook into the backbone.",
        json_schema_extra=_RUN,
    )
    guard: Literal["none", "warn", "stop"] = Field(
        "stop",
        description="Reaction to failed training (exploding loss, collapsed features or prototypes, one dominant "
        "cluster, constant weights): stop with exit code 4, warn, or none. Non-finite values always stop the run.",
        json_schema_extra=_RUN,
    )
    guard_loss_ratio: float = Field(
        100,
        gt=1,
        description="The loss counts as exploded above this multiple of the first step's loss or of 1, whichever is "
        "larger. In all measured presets, the ratio stays below 10.",
        json_schema_extra=_RUN,
    )
    guard_min_spread: float = Field(
        1e-4,
        ge=0,
        lt=1,
        description="The features count as collapsed if their relative spread falls below this value. In measured "
        "presets, the spread stays above 0.01.",
        json_schema_extra=_RUN,
    )
    stop_after_steps: int | None = Field(
        None,
        ge=1,
        description="Write a checkpoint and stop after this step; continue with --resume.",
        json_schema_extra=_RUN_ONLY,
    )
    out: Path | None = Field(
        None,
        description="Run folder to create; default: runs/METHOD-DATASET.",
        json_schema_extra={**_RUN_ONLY, "makes": "folder"},
    )
    init_from: Path | None = Field(
        None,
        description="Initialize from the weights of this run folder or weights file.",
        json_schema_extra=_RUN,
    )
    resume: bool = Field(False, description="Resume the run in --out.", json_schema_extra=_RUN_ONLY)
    overwrite: bool = Field(False, description="Delete an existing run in --out first.", json_schema_extra=_RUN_ONLY)
    dry_run: bool = Field(
        False,
        description="Show configuration, counts, parameters, memory and time without writing anything.",
        json_schema_extra=_RUN_ONLY,
    )

    @model_validator(mode="after")
    def _check_run(self) -> RunConfig:
        if self.resume and self.overwrite:
            raise ValueError("resume and overwrite cannot be combined")
        return self

    # ------------------------------------------------------------------ facts that trainer and stages ask for

    #: What the network says by itself: ``names`` of classes, ``groups`` without a name, or ``nothing``.
    own_output: ClassVar[Literal["names", "groups", "nothing"]] = "nothing"

    #: Whether images without a label are what the method lives on, so that a run without any is refused.
    needs_unlabeled: ClassVar[bool] = False

    @property
    def in_epochs(self) -> TrainConfig | None:
        """Return this config if it counts the length of the run in epochs, else ``None``."""
        return None

    @property
    def uses_nesterov(self) -> bool:
        """Return whether SGD uses Nesterov momentum."""
        return False

    @property
    def clips_each_gradient(self) -> bool:
        """Return whether ``clip_grad_norm`` clips the gradient of each parameter separately."""
        return False

    @property
    def view_size(self) -> int | None:
        """Return the requested side of a view in pixels, or ``None`` for the backbone's."""
        return None

    @property
    def judging_split(self) -> str | None:
        """Return the split for evaluation: a name, ``auto``, or ``None`` if no image is held out."""
        return None

    @property
    def learns_from_labels(self) -> bool:
        """Return whether labels influence training, so that labels of a single class are an error."""
        return False

    @property
    def label_kind(self) -> LabelKind:
        """Return the labels that the method uses: a ``few`` per class, ``some`` of old classes, ``all`` or ``none``."""
        return "none" if self.label_split == "none" else "all"

    def length(self) -> dict[str, int]:
        """Return the options that set the length of the run, in epochs or steps."""
        return {}

    @property
    def is_shortest(self) -> bool:
        """Return whether the run cannot be shortened further."""
        return False

    def shortened(self, fraction: float) -> dict[str, object]:
        """Return the options that reduce a run to a fraction of its length.

        Drops of the learning rate, warm-ups and phases keep their place in the run. Counts are rounded down, but a run
        keeps one epoch at least. Evaluations between epochs, which cost time and change nothing, are left out.

        Args:
            fraction: in (0, 1].
        """
        return {}

    def _scaled(self, fraction: float, *names: str, least: int) -> dict[str, object]:
        """Return this share of some counts, those that are ``None`` left out; nothing if the run keeps its length."""
        if fraction >= 1:
            return {}
        counts = {name: getattr(self, name) for name in names}
        # 1e-9: 0.29 * 100 is a little less than 29
        return {name: max(least, int(n * fraction + 1e-9)) for name, n in counts.items() if n is not None}


class TrainConfig(RunConfig):
    """Options of a training run whose length is counted in epochs."""

    epochs: int = Field(..., ge=1, description="Number of training epochs.", json_schema_extra=_OPTIMIZATION)
    lr_schedule: Literal["cosine", "constant", "step"] = Field(
        "cosine",
        description="Learning-rate schedule; step: drops at --lr-drop-epochs.",
        json_schema_extra=_OPTIMIZATION,
    )
    lr_drop_epochs: tuple[int, ...] = Field(
        (),
        description="Epochs at whose start the learning rate drops (with --lr-schedule step).",
        json_schema_extra=_OPTIMIZATION,
    )
    lr_drop_factor: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="Multiply the learning rate by this factor at each drop (only with --lr-schedule step).",
        json_schema_extra=_OPTIMIZATION,
    )
    lr_update: Literal["epoch", "step"] = Field(
        "epoch", description="When to update the learning rate.", json_schema_extra=_OPTIMIZATION
    )
    lr_final_ratio: float = Field(
        1e-3,
        ge=0,
        le=1,
        description="Ratio of the final to the peak learning rate (only with --lr-schedule cosine).",
        json_schema_extra=_OPTIMIZATION,
    )
    lr_warmup_epochs: int = Field(
        0, ge=0, description="Number of linear warm-up epochs.", json_schema_extra=_OPTIMIZATION
    )
    eval_every_epochs: int = Field(1, ge=1, description="Number of epochs between evaluations.", json_schema_extra=_RUN)

    @model_validator(mode="after")
    def _check_schedule(self) -> TrainConfig:
        if self.lr_warmup_epochs >= self.epochs and self.lr_warmup_epochs > 0:
            raise ValueError(f"lr_warmup_epochs ({self.lr_warmup_epochs}) must be smaller than epochs ({self.epochs})")
        if self.lr_schedule == "step" and not self.lr_drop_epochs:
            raise ValueError("lr_schedule step requires lr_drop_epochs")
        if list(self.lr_drop_epochs) != sorted(set(self.lr_drop_epochs)) or any(e < 1 for e in self.lr_drop_epochs):
            raise ValueError(f"lr_drop_epochs must be positive and increasing, got {value_text(self.lr_drop_epochs)}")
        return self

    @property
    def in_epochs(self) -> TrainConfig:
        """Return this config, which counts the length of the run in epochs."""
        return self

    def length(self) -> dict[str, int]:
        """Return the number of epochs by option name."""
        return {"epochs": self.epochs}

    @property
    def is_shortest(self) -> bool:
        """Return whether the run has a single epoch."""
        return self.epochs == 1

    def shortened(self, fraction: float) -> dict[str, object]:
        """Return options with fewer epochs, all epoch counts scaled alike, and one evaluation at the end."""
        options = super().shortened(fraction) | {"eval_every_epochs": max(1, int(self.epochs * fraction))}
        options |= self._scaled(fraction, "epochs", least=1) | self._scaled(fraction, "lr_warmup_epochs", least=0)
        if self.lr_drop_epochs and fraction < 1:
            drops = {max(1, round(epoch * fraction)) for epoch in self.lr_drop_epochs}
            options["lr_drop_epochs"] = tuple(sorted(drops))
        return options


class StepRunConfig(RunConfig):
    """Options for the length of a run that is counted in optimizer steps."""

    steps: int = Field(..., ge=1, description="Number of training steps.", json_schema_extra=_OPTIMIZATION)
    eval_every_steps: int = Field(
        1000, ge=1, description="Steps between evaluations, which each write a checkpoint.", json_schema_extra=_RUN
    )

    def length(self) -> dict[str, int]:
        """Return the number of steps by option name."""
        return {"steps": self.steps}

    @property
    def is_shortest(self) -> bool:
        """Return whether an evaluation follows every step."""
        return self.eval_every_steps == 1

    def shortened(self, fraction: float) -> dict[str, object]:
        """Return options with fewer steps but as many evaluations, since some methods count in evaluations."""
        options = super().shortened(fraction)
        if fraction >= 1:
            return options
        every = max(1, int(self.eval_every_steps * fraction + 1e-9))
        options |= self._scaled(fraction, "steps", least=1) | {"eval_every_steps": every}
        if self.steps % self.eval_every_steps == 0:
            options["steps"] = every * (self.steps // self.eval_every_steps)
        return options


class StepTrainConfig(StepRunConfig):
    """Options for the optimizer and learning rate of a run whose length is counted in steps."""

    nesterov: bool = Field(False, description="Use Nesterov momentum (sgd).", json_schema_extra=_OPTIMIZATION)
    lr_schedule: Literal["constant", "cosine", "fixmatch", "ramps"] = Field(
        "cosine",
        description="Learning-rate schedule. cosine: falls to 0 at the end (or later, with --lr-horizon); fixmatch: "
        "the first 7/16 of a half-period cosine; ramps: rises at the start and falls at the end (Mean Teacher).",
        json_schema_extra=_OPTIMIZATION,
    )

    @model_validator(mode="after")
    def _check_nesterov(self) -> StepTrainConfig:
        if self.nesterov and (self.optimizer != "sgd" or self.momentum == 0):
            raise ValueError("nesterov requires optimizer sgd with momentum")
        return self

    @property
    def uses_nesterov(self) -> bool:
        """Return whether SGD uses Nesterov momentum."""
        return self.nesterov

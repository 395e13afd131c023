"""Options for snowball, whose set of labels doubles repeatedly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import model_validator

from labelkit.methods.few_labels.mean_teacher_options import MeanTeacherOptions, MeanTeacherRecipeOptions
from labelkit.methods.few_labels.options import MixMatchOptions, SearchOptions, TwoStreamTrainConfig
from labelkit.options.base import panel
from labelkit.options.embeddings import RowOptions

_MODEL = panel("Model")
_GROWTH = panel("Growth")
_DISCOVERY = panel("Discovery")
_STOP = panel("Stop")
_LOSS = panel("Loss")
_AVERAGES = panel("Averaged networks")
_OPTIMIZATION = panel("Optimization")


class ConfidentSearchOptions(SearchOptions):
    """Options for Snowball's search for unlabeled images near a class mean; also used by ``discover snowball``."""

    constants: ClassVar[Mapping[str, object]] = {
        "far_factor": 10,
        "far_cap": 0.5,
        "fusion_scale": False,
        "refill": False,
    }

    fusion: Literal["none", "distance", "cascade", "rank"] = _DISCOVERY(
        "none",
        "How to combine several networks. distance: mean distance; cascade: concatenated features; "
        "rank: mean rank, label by majority vote.",
    )


class SnowballConfig(
    RowOptions,
    MeanTeacherRecipeOptions,
    TwoStreamTrainConfig,
    MeanTeacherOptions,
    MixMatchOptions,
    ConfidentSearchOptions,
):
    """Options for ``labelkit train snowball``; defaults follow the dissertation where it specifies them."""

    command: ClassVar[tuple[str, ...]] = ("train", "snowball")
    scaled: ClassVar[Mapping[str, int]] = {"later_steps": 1, "max_steps": 1}
    constants: ClassVar[Mapping[str, object]] = {
        "master_on": "labeled",
        "fusion_count": 3,
        "growth_factor": 2.0,
        "master_decay": 0.999,
        "score": "distance",
        "reinit": "never",
        "anchor_fraction": 0.0,
        "val_split": None,
        "val_delta": 0.2,
        "ema_horizon": True,
        "bn_recalibration": True,
        "embed_with": "auto",
    }
    #: Options of a former third trainer.
    retired_fields: ClassVar[frozenset[str]] = frozenset(
        {"fixed_threshold", "threshold_decay", "fairness_weight", "pseudo_label_weight"}
    )

    steps: int = _OPTIMIZATION(150_000, "Number of steps in the first phase, on the initial labels.", ge=1)
    later_steps: int | None = _OPTIMIZATION(
        None, "Number of steps in each later phase; default: a third of --steps (our choice; not in the paper).", ge=1
    )
    later_lr_ratio: float = _OPTIMIZATION(
        0.5,
        "Ratio of the peak learning rate in later phases to that in the first phase (our choice; not in the paper).",
        gt=0,
    )

    dropout: float | None = _MODEL(
        None,
        "Dropout rate inside the backbone; values above 0 require a backbone with dropout layers; none: the backbone's "
        "default (convnet13: 0.5, for Mean Teacher; 0 suits mixmatch).",
        ge=0,
        lt=1,
    )

    trainer: Literal["mean-teacher", "mixmatch"] = _LOSS(
        "mean-teacher", "How the student learns in each phase; options of the other trainer have no effect."
    )
    master: bool = _AVERAGES(
        True,
        "After the first discovery, average the teacher's weights into a master. Without a master, the teacher is used "
        "for discovery and evaluation (arm B of the paper's ablation).",
    )
    generations: int = _GROWTH(
        3,
        "Number of times the labels grow from the initial ones. Each generation discards the discoveries "
        "of the generation before it.",
        ge=1,
    )
    cap: float = _GROWTH(
        16.0, "Maximum number of labels, as a multiple of the initial labels; 1: no growth, plain training.", ge=1
    )

    select: Literal["auto", "min", "far", "random", "max"] = _DISCOVERY(
        "auto",
        "Which images to take. min: the nearest to a class mean; max: the farthest; far: like max, but only among the "
        "most confident images (10 times the number to take); random: drawn at random; auto: far for mixmatch, else "
        "min.",
    )
    found_labels: Literal["assigned", "true"] = _DISCOVERY(
        "assigned",
        "Label that a discovered image gets. true: its hidden label, to measure the cost of wrong labels "
        "(dissertation, Table 2.9); the data set must have labels.",
        before="assigned",
    )

    churn: float = _STOP(
        0.01,
        "Minimum fraction of predictions that must change. If fewer change in a phase, the generation ends; if fewer "
        "change in a generation, the run ends. 0: never end for this reason.",
        ge=0,
        le=1,
    )
    max_steps: int | None = _STOP(
        None, "Maximum number of steps: a phase that would exceed the limit is not started. Default: unlimited.", ge=1
    )

    @property
    def phase_steps(self) -> int:
        """Return the number of updates of a later phase."""
        return max(1, self.steps // 3) if self.later_steps is None else self.later_steps

    @model_validator(mode="after")
    def _check_growth(self) -> SnowballConfig:
        if self.trainer == "mixmatch" and 2 * self.labeled_batch_size != self.batch_size:
            raise ValueError(
                f"labeled_batch_size {self.labeled_batch_size} must be half of batch_size {self.batch_size} (mixmatch)"
            )
        if self.max_steps is not None and self.max_steps < self.steps:
            raise ValueError(f"max_steps {self.max_steps} is less than the first phase (steps {self.steps})")
        return self

    def length(self) -> dict[str, int]:
        """Return the steps of the first phase, and those of later phases if set separately."""
        return super().length() | ({} if self.later_steps is None else {"later_steps": self.later_steps})

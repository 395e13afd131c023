"""Options of the search for rows that get a label (snowball, LMCS), in training and on a store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from labelkit.options.base import StageConfig, option

_RULE = option("Discovery")


class SearchOptions(StageConfig):
    """What both searches share."""

    constants: ClassVar[Mapping[str, object]] = {"feature_norm": "none"}

    balance: Literal["balanced", "global"] = Field(
        "balanced",
        description="balanced: each class gets a share like that of its labels. global: the best images of all "
        "classes (the literal reading); some classes may get none.",
        json_schema_extra=_RULE,
    )
    missing_class: Literal["error", "skip"] = Field(
        "error",
        description="What to do about a class without a label: stop with an error, or never name it.",
        json_schema_extra=_RULE,
    )


class GrowthOptions(StageConfig):
    """How fast the labels grow in training."""

    constants: ClassVar[Mapping[str, object]] = {"val_delta": 0.2}

    growth_factor: float = Field(
        2.0, gt=1, description="Labels after a discovery over those before.", json_schema_extra=option("Growth")
    )
    generations: int = Field(
        3,
        ge=1,
        description="How often the labels grow from the given ones. Each generation forgets what the one before "
        "discovered.",
        json_schema_extra=option("Growth"),
    )
    val_split: str | None = Field(
        None,
        description="Decide by the error on this split instead of --churn: a generation ends if it moved by at "
        "most 0.2 points. Never the split that judges.",
        json_schema_extra=option("Stop"),
    )


class ConfidentSearchOptions(SearchOptions):
    """Which unlabeled images are near the mean of a class (snowball)."""

    constants: ClassVar[Mapping[str, object]] = {"far_cap": 0.5, "fusion_scale": False, "refill": False}

    far_factor: int = Field(
        10,
        ge=1,
        description="Size of the confident set of --select far, over the number of wanted images (Sec. 2.4.1); at most "
        "half of the candidates.",
        json_schema_extra=_RULE,
    )
    fusion: Literal["none", "distance", "cascade", "rank"] = Field(
        "none",
        description="How several networks join. distance: mean distance; cascade: features side by side; rank: mean "
        "rank, label by majority.",
        json_schema_extra=_RULE,
    )


class CriticalSearchOptions(SearchOptions):
    """Which unlabeled images are near the classes and yet ambiguous (LMCS)."""

    constants: ClassVar[Mapping[str, object]] = {"delta": "auto", "confine_factor": 10, "reference": "original"}

    criterion: Literal["max_entropy", "min_entropy", "min_distance"] = Field(
        "max_entropy",
        description="Which of the confined images come first: the most or the least ambiguous, or the nearest.",
        json_schema_extra=_RULE,
    )
    confine: bool = Field(True, description="Search near the class means only (Eq. 3.9).", json_schema_extra=_RULE)
    confine_cap: float = Field(
        0.25,
        gt=0,
        le=1,
        description="With --confine: search the nearest 10 candidates for each wanted image, but at most this share.",
        json_schema_extra=_RULE,
    )
    beta: float | Literal["auto"] = Field(
        "auto",
        description="Sharpness of the weights beta/(beta + rank share) (Eq. 3.10); auto = 1 / classes with labels.",
        json_schema_extra=_RULE,
    )
    label_rule: Literal["agree", "vote", "center"] = Field(
        "agree",
        description="center: the nearest class mean; vote: the largest soft label; agree: only images where both "
        "name one class.",
        json_schema_extra=_RULE,
    )

    @model_validator(mode="after")
    def _beta_is_possible(self) -> CriticalSearchOptions:
        if self.beta != "auto" and self.beta <= 0:
            raise ValueError(f"beta must be > 0, or auto (value {self.beta})")
        return self

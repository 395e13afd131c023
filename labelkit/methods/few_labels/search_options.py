"""Options of the search for rows that get a label (snowball, LMCS), in training and on a store."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, model_validator

from labelkit.options.base import StageConfig, option

_RULE = option("Discovery")


class SearchOptions(StageConfig):
    """What both searches share."""

    balance: Literal["balanced", "global"] = Field(
        "balanced",
        description="balanced: each class gets a share like that of its labels. global: the best images of all "
        "classes (the literal reading); some classes may get none.",
        json_schema_extra=_RULE,
    )
    feature_norm: Literal["none", "l2"] = Field(
        "none", description="l2: scale the features of every image to length 1 first.", json_schema_extra=_RULE
    )
    missing_class: Literal["error", "skip"] = Field(
        "error",
        description="What to do about a class without a label: stop with an error, or never name it.",
        json_schema_extra=_RULE,
    )


class GrowthOptions(StageConfig):
    """How fast the labels grow in training."""

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
        "most --val-delta. Never the split that judges.",
        json_schema_extra=option("Stop"),
    )
    val_delta: float = Field(
        0.2,
        ge=0,
        le=100,
        description="Largest change of the error on --val-split that ends a generation, in points.",
        json_schema_extra={**option("Stop"), "before": 0.2},
    )


class ConfidentSearchOptions(SearchOptions):
    """Which unlabeled images are near the mean of a class (snowball)."""

    far_factor: int = Field(
        10,
        ge=1,
        description="Size of the confident set of --select far, over the number of wanted images (Sec. 2.4.1).",
        json_schema_extra=_RULE,
    )
    far_cap: float | None = Field(
        0.5,
        gt=0,
        le=1,
        description="Largest share of the candidates in the confident set of --select far; none: no limit.",
        json_schema_extra=_RULE,
    )
    fusion: Literal["none", "distance", "cascade", "rank"] = Field(
        "none",
        description="How several networks join. distance: mean distance; cascade: features side by side; rank: mean "
        "rank, label by majority.",
        json_schema_extra=_RULE,
    )
    fusion_scale: bool = Field(
        False,
        description="Divide the distances of each network by their median before they are joined.",
        json_schema_extra=_RULE,
    )
    refill: bool = Field(
        False,
        description="If a class has too few candidates, take the best of other classes instead (balanced).",
        json_schema_extra=_RULE,
    )


class CriticalSearchOptions(SearchOptions):
    """Which unlabeled images are near the classes and yet ambiguous (LMCS)."""

    criterion: Literal["max_entropy", "min_entropy", "min_distance"] = Field(
        "max_entropy",
        description="Which of the confined images come first: the most or the least ambiguous, or the nearest.",
        json_schema_extra=_RULE,
    )
    confine: bool = Field(True, description="Search near the class means only (Eq. 3.9).", json_schema_extra=_RULE)
    delta: str = Field(
        "auto",
        description="How near: auto (--confine-factor and --confine-cap), quantile:Q of the distances, or absolute:V.",
        json_schema_extra=_RULE,
    )
    confine_factor: int = Field(
        10, ge=1, description="--delta auto: candidates for each wanted image.", json_schema_extra=_RULE
    )
    confine_cap: float = Field(
        0.25, gt=0, le=1, description="--delta auto: largest share of the candidates.", json_schema_extra=_RULE
    )
    beta: float | Literal["auto"] = Field(
        "auto",
        description="Sharpness of the weights beta/(beta + rank share) (Eq. 3.10); auto = 1 / classes with labels.",
        json_schema_extra=_RULE,
    )
    reference: Literal["original", "all"] = Field(
        "original",
        description="Rows that class means and soft labels come from: given labels alone, or also labels found before.",
        json_schema_extra=_RULE,
    )
    label_rule: Literal["agree", "vote", "center"] = Field(
        "agree",
        description="center: the nearest class mean; vote: the largest soft label; agree: only images where both "
        "name one class.",
        json_schema_extra=_RULE,
    )

    @property
    def radius(self) -> tuple[Literal["quantile", "absolute"], float] | None:
        """``delta`` as the algorithm takes it; ``None`` = auto."""
        return _radius(self.delta)

    @model_validator(mode="after")
    def _delta_and_beta_are_possible(self) -> CriticalSearchOptions:
        found = _radius(self.delta)
        if found is not None and found[0] == "quantile" and found[1] > 1:
            raise ValueError(f"delta: a quantile is at most 1 (value {self.delta})")
        if self.beta != "auto" and self.beta <= 0:
            raise ValueError(f"beta must be > 0, or auto (value {self.beta})")
        if self.delta != "auto" and not self.confine:
            raise ValueError("--delta has no meaning with --no-confine")
        return self


def _radius(text: str) -> tuple[Literal["quantile", "absolute"], float] | None:
    if text == "auto":
        return None
    match = re.fullmatch(r"(quantile|absolute):(\d+\.?\d*(?:e-?\d+)?|\.\d+)", text)
    if match is None:
        raise ValueError(f"delta must be auto, quantile:Q or absolute:V with a number >= 0 (value {text})")
    return ("quantile" if match[1] == "quantile" else "absolute"), float(match[2])

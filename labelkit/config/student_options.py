"""Options of two students for few labels, wherever they are trained: MixMatch and FreeMatch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic.config import JsonDict

from labelkit.config.base import StageConfig

_MIXMATCH: JsonDict = {"panel": "MixMatch"}
_FREEMATCH: JsonDict = {"panel": "FreeMatch"}


class MixMatchOptions(StageConfig):
    """Loss of MixMatch; defaults are those of the released code for CIFAR-10."""

    sharpening_temperature: float = Field(
        0.5, gt=0, le=1, description="Temperature that guessed labels are sharpened with.", json_schema_extra=_MIXMATCH
    )
    mixup_alpha: float = Field(
        0.75,
        gt=0,
        description="Alpha of the distribution Beta(alpha, alpha) that the share of each blend is drawn from.",
        json_schema_extra=_MIXMATCH,
    )
    unlabeled_weight: float = Field(
        75.0,
        ge=0,
        description="Weight of the squared error on unlabeled images (75 CIFAR-10, 250 SVHN, 150 CIFAR-100).",
        json_schema_extra=_MIXMATCH,
    )
    unlabeled_ramp: float = Field(
        1 / 64,
        ge=0,
        le=1,
        description="Share of --steps in which --unlabeled-weight grows from 0 (released code: 16,384 of 1,048,576).",
        json_schema_extra=_MIXMATCH,
    )
    pairing: Literal["mixmatch", "labeled-unlabeled"] = Field(
        "mixmatch",
        description="What is blended: all rows with all; or each labeled image with an unlabeled one, without a loss "
        "on the unlabeled ones (the dissertation's Eq. 3.1 to 3.3).",
        json_schema_extra=_MIXMATCH,
    )


class FreeMatchOptions(StageConfig):
    """Loss of FreeMatch; defaults are those of the published code for CIFAR-10."""

    fixed_threshold: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Learn an unlabeled image if its class has this probability (FixMatch: 0.95); default: thresholds "
        "that follow the network's confidence and the mix of its predictions.",
        json_schema_extra=_FREEMATCH,
    )
    threshold_decay: float = Field(
        0.999,
        ge=0,
        lt=1,
        description="Decay of the averages that moving thresholds follow.",
        json_schema_extra=_FREEMATCH,
    )
    pseudo_label_weight: float = Field(
        1.0, ge=0, description="Weight of the loss on unlabeled images.", json_schema_extra=_FREEMATCH
    )
    fairness_weight: float = Field(
        0.01,
        ge=0,
        description="Weight of the published term on the mix of classes; 0 leaves it out.",
        json_schema_extra=_FREEMATCH,
    )

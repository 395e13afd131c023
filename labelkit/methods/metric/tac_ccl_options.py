"""Options for TAC-CCL."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import model_validator

from labelkit.methods.metric.options import MetricLearningConfig
from labelkit.options.base import override_default, panel

_DATA = panel("Data")
_MATCHING_IMAGES = panel("Matching images")
_OPTIMIZATION = panel("Optimization")
_MEMORY = panel("Memory")
_CENTERS = panel("Contrastive clustering")
_ATTENTION = panel("Transformed attention")


class TACCCLConfig(MetricLearningConfig):
    """Options for ``labelkit train tac-ccl``; defaults are for GoogLeNet on CUB, but without pretrained weights."""

    command: ClassVar[tuple[str, ...]] = ("train", "tac-ccl")
    #: The transforms of the second view are those of `labelkit.data.views.spec.PairTransform`.
    scaled: ClassVar[Mapping[str, int]] = {"ccl_start_epoch": 0, "memory_warmup_steps": 0}
    constants: ClassVar[Mapping[str, object]] = {
        "transforms": ("crop", "rotation", "zoom", "perspective"),
        "pair_crop_area": (0.36, 1.0),
        "pair_rotation_degrees": 30.0,
        "pair_zoom": (0.7, 1.4),
        "pair_perspective": 0.3,
        "pair_mirror": 0.5,
        "ccl_positive": "nearest",
        "tac_reduction": "mean",
        "tac_both": False,
        "ms_both": False,
        "match_share": 0.5,
        "match_align": "homography",
        "match_mask": "clip",
        "match_sigma": 1.0,
        "attention": True,
        "memory": True,
        "memory_size": None,
        "memory_mode": "replace",
        "tac_weight": 1.0,
    }

    label_split: Literal["auto", "given", "gcd", "few-labels", "class-halves", "none"] = _DATA(
        "none",
        "Which images `embed` marks as labeled (values: as in `labelkit train gcd --help`); training "
        "uses clusters, not labels.",
    )
    clip_grad_norm: float | None = _OPTIMIZATION(10.0, "Maximum gradient norm; none: no clipping.", gt=0)
    lr_schedule: Literal["cosine", "constant", "step"] = override_default(MetricLearningConfig, "lr_schedule", "step")
    lr_drop_epochs: tuple[int, ...] = override_default(MetricLearningConfig, "lr_drop_epochs", (36,))

    memory_refill: bool = _MEMORY(True, "Fill the memory with fresh embeddings at every clustering.")
    memory_warmup_steps: int | None = _MEMORY(
        None, "Number of steps before the memory is used, without --memory-refill; default: one epoch.", ge=0
    )

    ccl: bool = _CENTERS(True, "Enable the contrastive clustering loss.")
    ccl_weight: float = _CENTERS(0.1, "Weight of the contrastive clustering loss (our choice; not in the paper).", gt=0)
    ccl_start_epoch: int = _CENTERS(0, "First epoch of the contrastive clustering loss.", ge=0)

    tac: bool = _ATTENTION(
        True, "Also train on a second, transformed view, with attention-consistency and feature-similarity losses."
    )
    feature_weight: float = _ATTENTION(
        0.1, "Weight of the feature-similarity loss (our choice); large values make training collapse.", ge=0
    )

    matches: Path | None = _MATCHING_IMAGES(
        None,
        "File with matched pairs of images, from `labelkit match`: the second view may then show the matched image.",
    )

    @model_validator(mode="after")
    def _check_parts(self) -> TACCCLConfig:
        if self.matches is not None and not self.tac:
            raise ValueError("matches requires tac, which is off")
        return self

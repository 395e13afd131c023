"""Options of DINO and iBOT.

DINO: class tokens of all crops of an image, assigned as the average of the network assigns them. iBOT: DINO, and hidden
patches, assigned as the average of the network assigns them in full view.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field
from pydantic.config import JsonDict

from labelkit.methods.dense.options import SlowTargetConfig
from labelkit.options.base import with_default

_VIEWS: JsonDict = {"panel": "Views"}
_DISTILLATION: JsonDict = {"panel": "Distillation"}


class SelfDistillationConfig(SlowTargetConfig):
    """Options of DINO and iBOT, with defaults for continuing a checkpoint as in CoTAP's comparison or as described."""

    constants: ClassVar[Mapping[str, object]] = {"clip_each": True}

    branch: Literal["online", "target"] = with_default(SlowTargetConfig, "branch", "target")
    augmentation: Literal["dino", "none"] = Field(
        "dino",
        description="Color augmentation. dino: color jitter, grayscale, blur, and solarize in the second large view; "
        "none: no color change.",
        json_schema_extra=_VIEWS,
    )

    num_outputs: int = Field(
        65_536, ge=2, description="Output dimension of the class-token head.", json_schema_extra=_DISTILLATION
    )
    norm_last_layer: bool = Field(
        False,
        description="Keep each weight vector of the last layer at norm 1 (published code: off for ViT-S, on for "
        "ViT-B).",
        json_schema_extra=_DISTILLATION,
    )
    freeze_last_layer_steps: int = Field(
        0,
        ge=0,
        description="Number of initial steps with a frozen last layer; from scratch, use the steps of one epoch.",
        json_schema_extra=_DISTILLATION,
    )
    student_temperature: float = Field(
        0.1, gt=0, description="Softmax temperature of the student.", json_schema_extra=_DISTILLATION
    )
    teacher_temperature: float = Field(
        0.07, gt=0, description="Softmax temperature of the target network.", json_schema_extra=_DISTILLATION
    )
    teacher_temperature_start: float = Field(
        0.04,
        gt=0,
        description="Initial softmax temperature of the target network, with --teacher-warmup-steps.",
        json_schema_extra=_DISTILLATION,
    )
    teacher_warmup_steps: int = Field(
        0,
        ge=0,
        description="Number of warm-up steps for the target network's temperature; for training from scratch, use the "
        "steps of 30 epochs.",
        json_schema_extra=_DISTILLATION,
    )
    center_decay: float = Field(
        0.9,
        ge=0,
        lt=1,
        description="EMA decay of the center of the target network's outputs.",
        json_schema_extra=_DISTILLATION,
    )

    @property
    def clips_each_gradient(self) -> bool:
        """Return True: gradients are clipped per parameter, as in the released code."""
        return True

    def shortened(self, fraction: float) -> dict[str, object]:
        """Return options with fewer steps, and shorter warm-ups."""
        return super().shortened(fraction) | self._scaled(
            fraction, "freeze_last_layer_steps", "teacher_warmup_steps", least=0
        )


class DINOConfig(SelfDistillationConfig):
    """Options of ``labelkit train dino``."""

    command: ClassVar[tuple[str, ...]] = ("train", "dino")


class IBOTConfig(SelfDistillationConfig):
    """Options of ``labelkit train ibot``."""

    command: ClassVar[tuple[str, ...]] = ("train", "ibot")
    constants: ClassVar[Mapping[str, object]] = {
        "image_weight": 1.0,
        "patch_weight": 1.0,
        "shared_head": True,
        "num_patch_outputs": 8192,
        "mask_ratios": (0.0, 0.3),
        "mask_ratio_spreads": (0.0, 0.2),
        "mask_start_steps": 0,
        "patch_temperature_start": 0.04,
        "patch_center_decay": 0.9,
    }

    num_outputs: int = with_default(SelfDistillationConfig, "num_outputs", 8192)
    patch_temperature: float = Field(
        0.07,
        gt=0,
        description="Softmax temperature of the target network for patches; with --teacher-warmup-steps, the "
        "temperature starts at 0.04.",
        json_schema_extra={"panel": "Hidden patches"},
    )

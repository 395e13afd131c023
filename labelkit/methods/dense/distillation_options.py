"""Options of DINO and iBOT.

DINO: class tokens of all crops of an image, assigned as the average of the network assigns them. iBOT: DINO, and hidden
patches, assigned as the average of the network assigns them in full view.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from labelkit.methods.dense.options import SlowTargetConfig
from labelkit.options.base import with_default

_VIEWS: JsonDict = {"panel": "Views"}
_DISTILLATION: JsonDict = {"panel": "Distillation"}
_OPTIMIZATION: JsonDict = {"panel": "Optimization"}
_MASKS: JsonDict = {"panel": "Hidden patches"}


class SelfDistillationConfig(SlowTargetConfig):
    """What DINO and iBOT share; defaults go on from a checkpoint as in CoTAP's comparison, or as descriptions say."""

    branch: Literal["online", "target"] = with_default(SlowTargetConfig, "branch", "target")
    augmentation: Literal["dino", "none"] = Field(
        "dino",
        description="Colors. dino: jitter, gray, blur, and solarize in the second large view; none: as they are.",
        json_schema_extra=_VIEWS,
    )

    clip_each: bool = Field(
        True,
        description="--clip-grad-norm limits the gradient of each parameter (released code), not of all together.",
        json_schema_extra=_OPTIMIZATION,
    )

    num_outputs: int = Field(
        65_536, ge=2, description="Outputs that class tokens are assigned to.", json_schema_extra=_DISTILLATION
    )
    norm_last_layer: bool = Field(
        False,
        description="Hold the length of the last layer's rows at 1; released: off for ViT-S, on for ViT-B.",
        json_schema_extra=_DISTILLATION,
    )
    freeze_last_layer_steps: int = Field(
        0,
        ge=0,
        description="First steps in which the last layer stays as it is; from scratch: those of the first epoch.",
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
        description="Softmax temperature of the target network at the first step, with --teacher-warmup-steps.",
        json_schema_extra=_DISTILLATION,
    )
    teacher_warmup_steps: int = Field(
        0,
        ge=0,
        description="Steps in which the temperature of the target network grows; from scratch: those of 30 epochs.",
        json_schema_extra=_DISTILLATION,
    )
    center_decay: float = Field(
        0.9,
        ge=0,
        lt=1,
        description="Decay of the mean that the outputs of the target network are measured from.",
        json_schema_extra=_DISTILLATION,
    )

    @property
    def clips_each_gradient(self) -> bool:
        """As asked for."""
        return self.clip_each

    def shortened(self, fraction: float) -> dict[str, object]:
        """Return fewer steps, also of what they begin with."""
        return super().shortened(fraction) | self._scaled(
            fraction, "freeze_last_layer_steps", "teacher_warmup_steps", least=0
        )


class DINOConfig(SelfDistillationConfig):
    """``labelkit train dino``."""

    command: ClassVar[tuple[str, ...]] = ("train", "dino")


class IBOTConfig(SelfDistillationConfig):
    """``labelkit train ibot``."""

    command: ClassVar[tuple[str, ...]] = ("train", "ibot")

    num_outputs: int = with_default(SelfDistillationConfig, "num_outputs", 8192)
    image_weight: float = Field(
        1.0, gt=0, description="Weight of the loss of class tokens (lambda 1).", json_schema_extra=_MASKS
    )
    patch_weight: float = Field(
        1.0, gt=0, description="Weight of the loss of hidden patches (lambda 2).", json_schema_extra=_MASKS
    )
    shared_head: bool = Field(
        True,
        description="One last layer for class tokens and patches; else patches have their own, with "
        "--num-patch-outputs.",
        json_schema_extra=_MASKS,
    )
    num_patch_outputs: int = Field(
        8192,
        ge=2,
        description="Outputs that patches are assigned to, in a layer of their own.",
        json_schema_extra=_MASKS,
    )
    mask_ratios: tuple[float, ...] = Field(
        (0.0, 0.3),
        min_length=1,
        description="Largest share of hidden patches of a view; each view takes one of these at random.",
        json_schema_extra=_MASKS,
    )
    mask_ratio_spreads: tuple[float, ...] = Field(
        (0.0, 0.2),
        min_length=1,
        description="How far each of --mask-ratios moves up and down at most, at random.",
        json_schema_extra=_MASKS,
    )
    mask_start_steps: int = Field(
        0, ge=0, description="First steps in which no patch is hidden.", json_schema_extra=_MASKS
    )
    patch_temperature: float = Field(
        0.07,
        gt=0,
        description="Softmax temperature of the target network for patches.",
        json_schema_extra=_MASKS,
    )
    patch_temperature_start: float = Field(
        0.04,
        gt=0,
        description="Softmax temperature of the target network for patches at the first step, with "
        "--teacher-warmup-steps.",
        json_schema_extra=_MASKS,
    )
    patch_center_decay: float = Field(
        0.9,
        ge=0,
        lt=1,
        description="Decay of the mean that the target network's outputs for patches are measured from.",
        json_schema_extra=_MASKS,
    )

    def shortened(self, fraction: float) -> dict[str, object]:
        """Return fewer steps, also of those without hidden patches."""
        return super().shortened(fraction) | self._scaled(fraction, "mask_start_steps", least=0)

    @model_validator(mode="after")
    def _check_masks(self) -> IBOTConfig:
        if len(self.mask_ratios) != len(self.mask_ratio_spreads):
            raise ValueError(
                f"mask_ratio_spreads has {len(self.mask_ratio_spreads)} values, mask_ratios {len(self.mask_ratios)}"
            )
        for ratio, spread in zip(self.mask_ratios, self.mask_ratio_spreads, strict=True):
            if spread < 0 or not 0 <= ratio - spread <= ratio + spread < 1:
                raise ValueError(f"mask ratio {ratio} with spread {spread} leaves [0, 1)")
        if self.shared_head and self.num_patch_outputs != type(self).model_fields["num_patch_outputs"].default:
            raise ValueError("num_patch_outputs goes with shared_head off; with it, num_outputs counts for both")
        return self

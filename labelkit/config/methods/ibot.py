"""Options of iBOT: DINO, and hidden patches, assigned as the average of the network assigns them in full view."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from labelkit.config.base import with_default
from labelkit.config.self_distillation import SelfDistillationConfig

_MASKS: JsonDict = {"panel": "Hidden patches"}


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

"""Options for DINO and iBOT.

DINO: class tokens of all crops of an image are assigned as the average of the network assigns them. iBOT: DINO, and
hidden patches are assigned as the average of the network, which sees them, assigns them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from labelkit.methods.dense.options import EMATargetConfig
from labelkit.options.base import override_default, panel

_HIDDEN_PATCHES = panel("Hidden patches")
_VIEWS = panel("Views")
_DISTILLATION = panel("Distillation")


class SelfDistillationConfig(EMATargetConfig):
    """Options for DINO and iBOT; unless noted, defaults are for continuing a checkpoint as in CoTAP's comparison."""

    clips_each_gradient: ClassVar[bool] = True  # as in the released code

    scaled: ClassVar[Mapping[str, int]] = {"freeze_last_layer_steps": 0, "teacher_warmup_steps": 0}
    constants: ClassVar[Mapping[str, object]] = {"clip_each": True}

    branch: Literal["online", "target"] = override_default(EMATargetConfig, "branch", "target")
    augmentation: Literal["dino", "none"] = _VIEWS(
        "dino",
        "Color augmentation. dino: color jitter, grayscale, blur, and solarization of the second large view; none: no "
        "color change.",
    )

    num_outputs: int = _DISTILLATION(65_536, "Output dimension of the class-token head.", ge=2)
    norm_last_layer: bool = _DISTILLATION(
        False, "Keep each weight vector of the last layer at norm 1 (published code: off for ViT-S, on for ViT-B)."
    )
    freeze_last_layer_steps: int = _DISTILLATION(
        0,
        "Number of initial steps with a frozen last layer; when training from scratch, set it to the number of "
        "steps in one epoch.",
        ge=0,
    )
    student_temperature: float = _DISTILLATION(0.1, "Softmax temperature of the student.", gt=0)
    teacher_temperature: float = _DISTILLATION(0.07, "Softmax temperature of the target network.", gt=0)
    teacher_temperature_start: float = _DISTILLATION(
        0.04, "Initial softmax temperature of the target network, with --teacher-warmup-steps.", gt=0
    )
    teacher_warmup_steps: int = _DISTILLATION(
        0,
        "Number of warm-up steps for the target network's temperature; when training from scratch, set it to the "
        "number of steps in 30 epochs.",
        ge=0,
    )
    center_decay: float = _DISTILLATION(0.9, "EMA decay of the center of the target network's outputs.", ge=0, lt=1)


class DINOConfig(SelfDistillationConfig):
    """Options for ``labelkit train dino``."""

    command: ClassVar[tuple[str, ...]] = ("train", "dino")


class IBOTConfig(SelfDistillationConfig):
    """Options for ``labelkit train ibot``."""

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

    num_outputs: int = override_default(SelfDistillationConfig, "num_outputs", 8192)
    patch_temperature: float = _HIDDEN_PATCHES(
        0.07,
        "Softmax temperature of the target network for patches; with --teacher-warmup-steps, the "
        "temperature starts at 0.04.",
        gt=0,
    )

"""Options for Mean Teacher, of the supervised baseline with the same recipe, and those that snowball uses, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import model_validator

from labelkit.methods.few_labels.options import FewLabelTrainConfig, TwoStreamOptions, TwoStreamTrainConfig
from labelkit.options.backbone import PixelOptions
from labelkit.options.base import override_default, panel
from labelkit.options.embeddings import RowOptions

_LOSS = panel("Loss")
_VIEWS = panel("Views")
_AVERAGES = panel("Averaged networks")
_OPTIMIZATION = panel("Optimization")


class MeanTeacherRecipeOptions(PixelOptions):
    """Options for pixels, views and learning rate in Mean Teacher's recipe, shared by methods compared with it."""

    shift_px: float | None = _VIEWS(None, "Maximum shift in pixels; default: an eighth of the image size.", ge=0)
    noise: float = _VIEWS(0.0, "Standard deviation of the Gaussian noise added to the normalized pixels.", ge=0)
    lr_horizon: float = _OPTIMIZATION(1.0, "Length of the cosine schedule, as a multiple of the training length.", ge=1)
    lr_ramp_up: float = _OPTIMIZATION(0.0, "Fraction of training over which the learning rate ramps up.", ge=0, le=1)
    lr_ramp_down: float = _OPTIMIZATION(
        0.0, "Fraction of training over which the learning rate ramps down.", ge=0, le=1
    )
    adam_beta1_end: float = _OPTIMIZATION(
        0.9,
        "Adam's beta1 at the end of training; it falls from 0.9 along with the learning rate (only with "
        "--lr-schedule ramps).",
        ge=0,
        lt=1,
        before=0.9,
    )
    adam_beta2_start: float = _OPTIMIZATION(
        0.999,
        "Adam's beta2 while the learning rate ramps up; 0.999 afterward (only with --lr-schedule ramps).",
        ge=0,
        lt=1,
        before=0.999,
    )

    @model_validator(mode="after")
    def _check_shares(self) -> MeanTeacherRecipeOptions:
        if self.lr_ramp_up + self.lr_ramp_down > 1:
            raise ValueError("lr_ramp_up and lr_ramp_down must not sum to more than 1")
        return self


class MeanTeacherOptions(TwoStreamOptions):
    """Options for Mean Teacher's loss and the EMA decay of the teacher."""

    constants: ClassVar[Mapping[str, object]] = {"ema_ramp": "step", "head_weight": 0.01, "whitening": "none"}

    ema_decay_start: float = _AVERAGES(
        0.99,
        "EMA decay of the teacher's weights while --consistency-weight ramps up; afterward, --ema-decay applies.",
        ge=0,
        lt=1,
    )
    consistency_weight: float = _LOSS(
        100.0, "Weight of the squared difference between student and teacher predictions (paper: lambda_2).", ge=0
    )
    consistency_ramp: float = _LOSS(
        0.25, "Fraction of the first phase over which --consistency-weight ramps up.", ge=0, le=1
    )
    class_norm: Literal["labeled", "batch"] = _LOSS(
        "labeled",
        "Divisor of the summed cross-entropy: the number of labeled images, or the batch size (published "
        "code for ResNet-26).",
    )
    num_heads: Literal[1, 2] = _LOSS(
        1,
        "Number of linear classifiers. 2: one for the labels, also used for prediction, and one for the "
        "consistency loss (published code for ResNet-26).",
    )

    @model_validator(mode="after")
    def _check_decays(self) -> MeanTeacherOptions:
        ema_decay = getattr(self, "ema_decay", 1.0)  # an option of the run that these belong to
        if self.ema_decay_start > ema_decay:
            raise ValueError(f"ema_decay_start {self.ema_decay_start} is above ema_decay {ema_decay}")
        return self


class SupervisedConfig(RowOptions, MeanTeacherRecipeOptions, FewLabelTrainConfig):
    """Options for ``labelkit train supervised``, all shared with ``train mean-teacher``."""

    command: ClassVar[tuple[str, ...]] = ("train", "supervised")

    steps: int = override_default(FewLabelTrainConfig, "steps", 150_000)
    batch_size: int = _OPTIMIZATION(
        31, "Number of labeled images per step, summed over all processes. The few labeled images repeat often.", ge=2
    )


class MeanTeacherConfig(RowOptions, MeanTeacherRecipeOptions, TwoStreamTrainConfig, MeanTeacherOptions):
    """Options for ``labelkit train mean-teacher``, with defaults of the released code for ConvNet-13."""

    command: ClassVar[tuple[str, ...]] = ("train", "mean-teacher")

    steps: int = override_default(TwoStreamTrainConfig, "steps", 150_000)

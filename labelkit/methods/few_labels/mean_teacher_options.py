"""Options of Mean Teacher, of the supervised baseline that has its recipe, and of what snowball takes from both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from labelkit.methods.few_labels.options import FewLabelTrainConfig, TwoStreamOptions, TwoStreamTrainConfig
from labelkit.options.backbone import PixelOptions
from labelkit.options.base import with_default
from labelkit.options.embeddings import RowOptions

_LOSS: JsonDict = {"panel": "Loss"}
_VIEWS: JsonDict = {"panel": "Views"}
_AVERAGES: JsonDict = {"panel": "Averaged networks"}
_OPTIMIZATION: JsonDict = {"panel": "Optimization"}


class TeacherRecipe(PixelOptions):
    """Options for pixels, views and learning rate of Mean Teacher's recipe, also for methods compared with it."""

    shift_px: float | None = Field(
        None,
        ge=0,
        description="Maximum shift in pixels; default: an eighth of the image size.",
        json_schema_extra=_VIEWS,
    )
    noise: float = Field(
        0.0,
        ge=0,
        description="Standard deviation of the Gaussian noise added to the normalized pixels.",
        json_schema_extra=_VIEWS,
    )
    lr_horizon: float = Field(
        1.0,
        ge=1,
        description="Length of the cosine schedule, as a multiple of the training length.",
        json_schema_extra=_OPTIMIZATION,
    )
    lr_ramp_up: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Fraction of training over which the learning rate ramps up.",
        json_schema_extra=_OPTIMIZATION,
    )
    lr_ramp_down: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Fraction of training over which the learning rate ramps down.",
        json_schema_extra=_OPTIMIZATION,
    )
    adam_beta1_end: float = Field(
        0.9,
        ge=0,
        lt=1,
        description="Adam's beta1 at the end of training; it falls from 0.9 along with the learning rate (only with "
        "--lr-schedule ramps).",
        json_schema_extra={**_OPTIMIZATION, "before": 0.9},
    )
    adam_beta2_start: float = Field(
        0.999,
        ge=0,
        lt=1,
        description="Adam's beta2 while the learning rate ramps up; 0.999 afterward (only with --lr-schedule ramps).",
        json_schema_extra={**_OPTIMIZATION, "before": 0.999},
    )

    @property
    def pixel_changes(self) -> tuple[float | None, float]:
        """Return the maximum shift of a view and its noise, which is 0 if whitening adds the noise."""
        return self.shift_px, 0.0 if getattr(self, "whitening", "none") == "zca" else self.noise

    @property
    def rate_shape(self) -> tuple[float, float, float, float, float]:
        """Return the shape of the learning rate schedule and of Adam's betas, as set by the options."""
        return self.lr_horizon, self.lr_ramp_up, self.lr_ramp_down, self.adam_beta1_end, self.adam_beta2_start

    @model_validator(mode="after")
    def _check_shares(self) -> TeacherRecipe:
        if self.lr_ramp_up + self.lr_ramp_down > 1:
            raise ValueError("lr_ramp_up and lr_ramp_down must not sum to more than 1")
        return self


class MeanTeacherOptions(TwoStreamOptions):
    """Options for Mean Teacher's loss and its teacher's EMA decay."""

    constants: ClassVar[Mapping[str, object]] = {"ema_ramp": "step", "head_weight": 0.01}

    whitening: Literal["none", "zca"] = Field(
        "none",
        description="Whitening of the input images. zca: first normalize the contrast of each image and whiten pixels "
        "with statistics of the training images, as in the published code for CIFAR-10; --noise is added afterward. "
        "For images of up to 4,096 values.",
        json_schema_extra={**_VIEWS, "before": "none"},
    )
    ema_decay_start: float = Field(
        0.99,
        ge=0,
        lt=1,
        description="EMA decay of the teacher's weights while --consistency-weight ramps up; afterward, --ema-decay "
        "applies.",
        json_schema_extra=_AVERAGES,
    )
    consistency_weight: float = Field(
        100.0,
        ge=0,
        description="Weight of the squared difference between student and teacher predictions (paper: lambda_2).",
        json_schema_extra=_LOSS,
    )
    consistency_ramp: float = Field(
        0.25,
        ge=0,
        le=1,
        description="Fraction of the first phase over which --consistency-weight ramps up.",
        json_schema_extra=_LOSS,
    )
    class_norm: Literal["labeled", "batch"] = Field(
        "labeled",
        description="Divisor of the summed cross-entropy: the number of labeled images, or the batch size (published "
        "code for ResNet-26).",
        json_schema_extra=_LOSS,
    )
    num_heads: Literal[1, 2] = Field(
        1,
        description="Number of linear classifiers. 2: one for the labels, also used for prediction, and one for the "
        "consistency loss (published code for ResNet-26).",
        json_schema_extra=_LOSS,
    )

    @model_validator(mode="after")
    def _check_decays(self) -> MeanTeacherOptions:
        ema_decay = getattr(self, "ema_decay", 1.0)  # of the run, which these are options of
        if self.ema_decay_start > ema_decay:
            raise ValueError(f"ema_decay_start {self.ema_decay_start} is above ema_decay {ema_decay}")
        return self


class SupervisedConfig(RowOptions, TeacherRecipe, FewLabelTrainConfig):
    """Options of ``labelkit train supervised``, which are those of ``train mean-teacher``."""

    command: ClassVar[tuple[str, ...]] = ("train", "supervised")

    steps: int = with_default(FewLabelTrainConfig, "steps", 150_000)
    batch_size: int = Field(
        31,
        ge=2,
        description="Number of labeled images per step, over all processes. The few labeled images repeat often.",
        json_schema_extra={"panel": "Optimization"},
    )


class MeanTeacherConfig(RowOptions, TeacherRecipe, TwoStreamTrainConfig, MeanTeacherOptions):
    """Options of ``labelkit train mean-teacher``, with defaults of the released code for ConvNet-13."""

    command: ClassVar[tuple[str, ...]] = ("train", "mean-teacher")

    steps: int = with_default(TwoStreamTrainConfig, "steps", 150_000)

"""What methods share that train a classifier from a few labels and many images without one."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from labelkit.config.backbone import BackboneRunConfig
from labelkit.config.base import StageConfig
from labelkit.config.train import LabelKind, StepTrainConfig

_DATA: JsonDict = {"panel": "Data"}
_LOSS: JsonDict = {"panel": "Loss"}
_VIEWS: JsonDict = {"panel": "Views"}
_AVERAGES: JsonDict = {"panel": "Averaged networks"}
_OPTIMIZATION: JsonDict = {"panel": "Optimization"}


class FewLabelTrainConfig(BackboneRunConfig, StepTrainConfig):
    """Labels, views and averaged networks of a classifier for few labels."""

    full_label_split: ClassVar[Literal["gcd", "few-labels"]] = "few-labels"
    own_output: ClassVar[Literal["names", "groups", "nothing"]] = "names"
    #: Where no consistency grows, these never acted.
    retired_fields: ClassVar[frozenset[str]] = frozenset({"ema_decay_start", "ema_ramp"})

    label_split: Literal["auto", "given", "gcd", "few-labels", "class-halves", "none"] = Field(
        "auto",
        description="Which labels may be used. few-labels: --num-labels in equal parts, drawn by --label-seed; given: "
        "all labels there are; auto = few-labels with --num-labels and for named sets, given for your own folder or "
        "CSV. The other rules as for category discovery.",
        json_schema_extra=_DATA,
    )
    num_classes: int | None = Field(
        None,
        ge=2,
        description="Classes of the classifier; default: those of the data.",
        json_schema_extra=_DATA,
    )

    dropout: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="Dropout inside the backbone, above 0 only if it has any; none: its own (convnet13: 0.5, for Mean "
        "Teacher).",
        json_schema_extra={"panel": "Model"},
    )

    augmentation: Literal["none", "digits", "crop-flip"] = Field(
        "crop-flip",
        description="Training view. crop-flip: a shift in whole pixels, mirrored, reflected at the border; digits: a "
        "shift, nothing beyond the border. Sets that lose their sense in a mirror are not mirrored.",
        json_schema_extra=_VIEWS,
    )
    shift_px: float | None = Field(
        None, ge=0, description="Largest shift in pixels; default: an eighth of the side.", json_schema_extra=_VIEWS
    )
    noise: float = Field(
        0.0, ge=0, description="Standard deviation of noise on the normalized pixels.", json_schema_extra=_VIEWS
    )

    ema_decay: float = Field(
        0.999,
        ge=0,
        lt=1,
        description="Decay of the teacher's weights, of Mean Teacher's once the consistency has grown.",
        json_schema_extra=_AVERAGES,
    )
    ema_horizon: bool = Field(
        True,
        description="Limit decays to 1 - 10 / steps of the phase, such that a short run does not average its "
        "start. From 10,000 steps on this changes nothing.",
        json_schema_extra=_AVERAGES,
    )
    bn_recalibration: bool = Field(
        True,
        description="At each evaluation, first compute the statistics of batch normalization anew, from at most "
        "16,384 training images without augmentation. Otherwise an average that runs in training (Mean Teacher's) "
        "keeps its own; any other takes the student's.",
        json_schema_extra=_AVERAGES,
    )

    sync_bn: bool = Field(
        True,
        description="With several processes: batch normalization uses the images of all of them. Training then "
        "does not depend on their number.",
        json_schema_extra=_AVERAGES,
    )

    @property
    def learns_from_labels(self) -> bool:
        """Always."""
        return True

    @property
    def label_kind(self) -> LabelKind:
        """A few."""
        return "few"


class TwoStreamOptions(StageConfig):
    """A batch of labeled and of unlabeled images."""

    labeled_batch_size: int = Field(
        31,
        ge=1,
        description="Labeled images in a batch. The few labeled images repeat often; each unlabeled image comes "
        "once before any repeats.",
        json_schema_extra=_OPTIMIZATION,
    )

    @model_validator(mode="after")
    def _check_streams(self) -> TwoStreamOptions:
        batch_size = getattr(self, "batch_size", None)  # of the run, which these are options of
        if batch_size is not None and self.labeled_batch_size >= batch_size:
            raise ValueError(
                f"labeled_batch_size {self.labeled_batch_size} leaves no place for others in batch_size {batch_size}"
            )
        return self


class TwoStreamTrainConfig(FewLabelTrainConfig, TwoStreamOptions):
    """A classifier that sees labeled and unlabeled images in each batch."""

    needs_unlabeled: ClassVar[bool] = True


class MeanTeacherOptions(TwoStreamOptions):
    """Loss of Mean Teacher, and how its teacher slows down."""

    whitening: Literal["none", "zca"] = Field(
        "none",
        description="zca: first normalize the contrast of each image and whiten pixels by the training images, as the "
        "released code does for CIFAR-10; --noise comes after it. For images of up to 4,096 values.",
        json_schema_extra={**_VIEWS, "before": "none"},
    )
    ema_decay_start: float = Field(
        0.99,
        ge=0,
        lt=1,
        description="Decay of the teacher's weights while the consistency grows.",
        json_schema_extra=_AVERAGES,
    )
    ema_ramp: Literal["step", "linear"] = Field(
        "step", description="How the decay goes from --ema-decay-start to --ema-decay.", json_schema_extra=_AVERAGES
    )
    consistency_weight: float = Field(
        100.0,
        ge=0,
        description="Weight of the squared difference between the predictions of student and teacher (lambda_2).",
        json_schema_extra=_LOSS,
    )
    consistency_ramp: float = Field(
        0.25,
        ge=0,
        le=1,
        description="Share of the (first) phase in which --consistency-weight grows.",
        json_schema_extra=_LOSS,
    )
    class_norm: Literal["labeled", "batch"] = Field(
        "labeled",
        description="How to average the cross-entropy: over the labeled images, or their sum over the batch size "
        "(released code for ResNet-26).",
        json_schema_extra=_LOSS,
    )
    num_heads: Literal[1, 2] = Field(
        1,
        description="2: one linear classifier for the labels, which also predicts, one for the consistency (released "
        "code for ResNet-26).",
        json_schema_extra=_LOSS,
    )
    head_weight: float = Field(
        0.01,
        ge=0,
        description="Weight of the squared difference between the logits of two heads.",
        json_schema_extra=_LOSS,
    )

    @model_validator(mode="after")
    def _check_decays(self) -> MeanTeacherOptions:
        ema_decay = getattr(self, "ema_decay", 1.0)  # of the run, which these are options of
        if self.ema_decay_start > ema_decay:
            raise ValueError(f"ema_decay_start {self.ema_decay_start} is above ema_decay {ema_decay}")
        return self

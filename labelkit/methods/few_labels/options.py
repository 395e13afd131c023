"""Options of the methods for few labels.

What methods share that train a classifier from a few labels and many images without one.

Options of two students for few labels, wherever they are trained: MixMatch and FreeMatch.

Options of the supervised baseline for few labels.

Options of FreeMatch: pseudo-labels of sure images, learned on strongly changed ones.

Options of MixMatch: guessed labels, blended with given ones.

Options of Mean Teacher: a student that agrees with its own average.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from labelkit.options.backbone import BackboneRunConfig
from labelkit.options.base import StageConfig, with_default
from labelkit.options.embeddings import RowOptions
from labelkit.options.training import LabelKind, StepTrainConfig

_DATA: JsonDict = {"panel": "Data"}
_LOSS: JsonDict = {"panel": "Loss"}
_VIEWS: JsonDict = {"panel": "Views"}
_AVERAGES: JsonDict = {"panel": "Averaged networks"}
_OPTIMIZATION: JsonDict = {"panel": "Optimization"}


class FewLabelTrainConfig(BackboneRunConfig, StepTrainConfig):
    """Labels, views and averaged networks of a classifier for few labels."""

    full_label_split: ClassVar[Literal["gcd", "few-labels"]] = "few-labels"
    own_output: ClassVar[Literal["names", "groups", "nothing"]] = "names"
    constants: ClassVar[Mapping[str, object]] = {"sync_bn": True}
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

    constants: ClassVar[Mapping[str, object]] = {"ema_ramp": "step"}

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
        description="Decay of the teacher's weights while the consistency grows; then --ema-decay.",
        json_schema_extra=_AVERAGES,
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


_MIXMATCH: JsonDict = {"panel": "MixMatch"}
_FREEMATCH: JsonDict = {"panel": "FreeMatch"}


class MixMatchOptions(StageConfig):
    """Loss of MixMatch; defaults are those of the released code for CIFAR-10."""

    constants: ClassVar[Mapping[str, object]] = {"sharpening_temperature": 0.5, "pairing": "mixmatch"}

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


class FreeMatchOptions(StageConfig):
    """Loss of FreeMatch; defaults are those of the published code for CIFAR-10."""

    constants: ClassVar[Mapping[str, object]] = {"pseudo_label_weight": 1.0}

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
    fairness_weight: float = Field(
        0.01,
        ge=0,
        description="Weight of the published term on the mix of classes; 0 leaves it out.",
        json_schema_extra=_FREEMATCH,
    )


class SupervisedConfig(RowOptions, FewLabelTrainConfig):
    """``labelkit train supervised``; options as for ``train mean-teacher``."""

    command: ClassVar[tuple[str, ...]] = ("train", "supervised")
    has_strong_views: ClassVar[bool] = False

    steps: int = with_default(FewLabelTrainConfig, "steps", 150_000)
    batch_size: int = Field(
        31,
        ge=2,
        description="Labeled images per step, over all processes. The few labeled images repeat often.",
        json_schema_extra={"panel": "Optimization"},
    )


class FreeMatchConfig(RowOptions, TwoStreamTrainConfig, FreeMatchOptions):
    """``labelkit train freematch``; defaults are those of the published code for CIFAR-10."""

    command: ClassVar[tuple[str, ...]] = ("train", "freematch")

    steps: int = with_default(TwoStreamTrainConfig, "steps", 1_048_576)
    # The method brings its own noise.
    dropout: float | None = with_default(TwoStreamTrainConfig, "dropout", 0.0)
    labeled_batch_size: int = Field(
        64,
        ge=1,
        description="Labeled images of --batch-size (published code: 64 beside 448 others).",
        json_schema_extra=_OPTIMIZATION,
    )


class MixMatchConfig(RowOptions, TwoStreamTrainConfig, MixMatchOptions):
    """``labelkit train mixmatch``; defaults are those of the released code for CIFAR-10."""

    command: ClassVar[tuple[str, ...]] = ("train", "mixmatch")
    has_strong_views: ClassVar[bool] = False

    steps: int = with_default(TwoStreamTrainConfig, "steps", 1_048_576)
    # The method brings its own noise.
    dropout: float | None = with_default(TwoStreamTrainConfig, "dropout", 0.0)
    labeled_batch_size: int = Field(
        64,
        ge=1,
        description="Labeled images of --batch-size: half of it.",
        json_schema_extra=_OPTIMIZATION,
    )

    @model_validator(mode="after")
    def _check_halves(self) -> MixMatchConfig:
        if 2 * self.labeled_batch_size != self.batch_size:
            raise ValueError(
                f"labeled_batch_size {self.labeled_batch_size} must be half of batch_size {self.batch_size}"
            )
        return self


class MeanTeacherConfig(RowOptions, TwoStreamTrainConfig, MeanTeacherOptions):
    """``labelkit train mean-teacher``; defaults are those of the released code for ConvNet-13."""

    command: ClassVar[tuple[str, ...]] = ("train", "mean-teacher")
    has_strong_views: ClassVar[bool] = False

    steps: int = with_default(TwoStreamTrainConfig, "steps", 150_000)

"""Options for few-label methods, and for the searches that two of them share with commands."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from labelkit.options.backbone import BackboneRunConfig, PixelOptions
from labelkit.options.base import BaseConfig, field_factory, override_default
from labelkit.options.embeddings import EmbeddingInputOptions, StrongEmbeddingInputOptions
from labelkit.options.training import LabelKind, StepTrainConfig

_FREEMATCH = field_factory("FreeMatch")
_DATA = field_factory("Data")

_VIEWS = field_factory("Views")
_AVERAGES = field_factory("Averaged networks")
_OPTIMIZATION = field_factory("Optimization")
_DISCOVERY = field_factory("Discovery")
_MIXMATCH = field_factory("MixMatch")
_RUN = field_factory("Run")
_MASTER = field_factory("Master")
_GROWTH = field_factory("Growth")
_PRETEXT = field_factory("Pretext")
_STOP = field_factory("Stop")


class FewLabelTrainConfig(BackboneRunConfig, StepTrainConfig):
    """Options for labels, augmentation and EMA of a classifier trained on few labels."""

    full_label_split: ClassVar[Literal["gcd", "few-labels"]] = "few-labels"
    own_output: ClassVar[Literal["names", "groups", "nothing"]] = "names"
    learns_from_labels: ClassVar[bool] = True

    label_split: Literal["auto", "given", "gcd", "few-labels", "none"] = _DATA(
        "auto",
        "Labels that training may use. few-labels: --num-labels in total, divided equally among the classes and drawn "
        "with --label-seed; given: all existing labels; auto: few-labels with --num-labels and for registered "
        "datasets, given for your own folder or CSV. For other values, see `labelkit train gcd --help`.",
    )
    num_classes: int | None = _DATA(
        None, "Number of classifier outputs. Default: number of classes in the dataset.", ge=2
    )

    augmentation: Literal["none", "digits", "crop-flip"] = _VIEWS(
        "crop-flip",
        "Training augmentation. crop-flip: shift by whole pixels with reflected borders, flip; digits: "
        "shift with empty borders. No flips in datasets where a flip changes the class.",
    )
    ema_decay: float = _AVERAGES(
        0.999,
        "EMA decay of the teacher's weights. In Mean Teacher, it applies after --consistency-weight has ramped up.",
        ge=0,
        lt=1,
    )

    @model_validator(mode="after")
    def _check_ramps(self) -> Self:
        if self.lr_schedule == "ramps" and "lr_ramp_up" not in type(self).model_fields:
            raise ValueError("lr_schedule ramps is only for supervised, mean-teacher and snowball")
        return self

    @property
    def label_kind(self) -> LabelKind:
        """Kind of labels used: a ``few`` of each class."""
        return "few"


class TwoStreamOptions(BaseConfig):
    """Options for batches of labeled and unlabeled images."""

    labeled_batch_size: int = _OPTIMIZATION(
        31,
        "Number of labeled images in a batch. The few labeled images repeat often, whereas every unlabeled image is "
        "seen once before any is repeated.",
        ge=1,
    )

    @model_validator(mode="after")
    def _check_streams(self) -> Self:
        batch_size = getattr(self, "batch_size", None)  # a run option, which other users of this mixin lack
        if batch_size is not None and self.labeled_batch_size >= batch_size:
            raise ValueError(
                f"labeled_batch_size must be less than batch_size ({batch_size}), got {self.labeled_batch_size}"
            )
        return self


class TwoStreamTrainConfig(FewLabelTrainConfig, TwoStreamOptions):
    """Options for classifiers that train on both labeled and unlabeled images in each batch."""

    needs_unlabeled: ClassVar[bool] = True


class MixMatchOptions(BaseConfig):
    """Options for MixMatch's loss, with the defaults of the released code for CIFAR-10."""

    acts_with: ClassVar[Mapping[str, tuple[Any, ...]]] = {"unlabeled_ramp": ("unlabeled_weight",)}

    unlabeled_weight: float = _MIXMATCH(
        75.0,
        "Weight of the squared error on unlabeled images (75 for CIFAR-10, 250 for SVHN, 150 for CIFAR-100).",
        ge=0,
    )
    unlabeled_ramp: float = _MIXMATCH(
        1 / 64,
        "Fraction of --steps over which --unlabeled-weight ramps up from 0 (published code: 16,384 of 1,048,576).",
        ge=0,
        le=1,
    )


class FreeMatchConfig(StrongEmbeddingInputOptions, TwoStreamTrainConfig):
    """Options for ``labelkit train freematch``, with the defaults from the published CIFAR-10 code."""

    command: ClassVar[tuple[str, ...]] = ("train", "freematch")

    steps: int = override_default(TwoStreamTrainConfig, "steps", 1_048_576)
    labeled_batch_size: int = _OPTIMIZATION(
        64, "Number of labeled images in each batch of --batch-size images (in the published code, 64 of 512).", ge=1
    )

    fixed_threshold: float | None = _FREEMATCH(
        None,
        "Minimum confidence at which an unlabeled image is used for training (0.95 in FixMatch). Default: thresholds "
        "that adapt to the network's confidence and the distribution of its predictions.",
        ge=0,
        le=1,
    )
    threshold_decay: float = _FREEMATCH(0.999, "EMA decay of the adaptive thresholds.", ge=0, lt=1)
    fairness_weight: float = _FREEMATCH(
        0.01, "Weight of the paper's fairness loss on the class distribution; 0: off.", ge=0
    )


class HalfLabeledConfig(TwoStreamTrainConfig, MixMatchOptions):
    """Options for methods such as MixMatch, whose batches contain as many labeled as unlabeled images."""

    labeled_batch_size: int = _OPTIMIZATION(
        64, "Number of labeled images in each batch of --batch-size images. Default: half.", ge=1
    )

    @model_validator(mode="after")
    def _check_halves(self) -> Self:
        if 2 * self.labeled_batch_size != self.batch_size:
            raise ValueError(
                f"labeled_batch_size must be half of batch_size ({self.batch_size}), got {self.labeled_batch_size}"
            )
        return self


class MixMatchConfig(EmbeddingInputOptions, HalfLabeledConfig):
    """Options for ``labelkit train mixmatch``, with the defaults of the released code for CIFAR-10."""

    command: ClassVar[tuple[str, ...]] = ("train", "mixmatch")

    steps: int = override_default(TwoStreamTrainConfig, "steps", 1_048_576)


class SearchOptions(BaseConfig):
    """Options shared by Snowball's and LMCS's searches for images to label, in training and in a store."""

    balance: Literal["balanced", "global"] = _DISCOVERY(
        "balanced",
        "How to divide discovered images among classes. balanced: in proportion to their numbers of labels; global: "
        "the best images over all classes (a literal reading of the paper), so some classes may get none.",
    )


class CriticalSearchOptions(SearchOptions):
    """Options for LMCS's search for ambiguous unlabeled images near the classes; also used by ``discover lmcs``."""

    criterion: Literal["max_entropy", "min_entropy", "min_distance"] = _DISCOVERY(
        "max_entropy",
        "Candidate images to select first: the most ambiguous (max_entropy), the least ambiguous (min_entropy), or "
        "those nearest to a class mean (min_distance).",
    )
    confine: bool = _DISCOVERY(
        True,
        "Search only near the class means (dissertation, Eq. 3.9): the nearest 10 candidates per requested image, but "
        "at most a quarter of all candidates.",
    )


class LMCSConfig(EmbeddingInputOptions, HalfLabeledConfig, CriticalSearchOptions):
    """Options for ``labelkit train lmcs``; defaults follow the dissertation where it specifies them."""

    command: ClassVar[tuple[str, ...]] = ("train", "lmcs")
    scaled: ClassVar[Mapping[str, int]] = {"pretext_steps": 0}
    acts_with: ClassVar[Mapping[str, tuple[Any, ...]]] = dict.fromkeys(
        ("compose_at", "master_steps", "discrimination"), ("guide", "composed")
    )

    steps: int = _OPTIMIZATION(1_048_576, "Total number of student updates.", ge=1)
    eval_every_steps: int = _RUN(
        10_240,
        "Number of updates per block (10 epochs in the dissertation); after each block, a master network "
        "is composed and all networks are evaluated.",
        ge=1,
    )

    pretext_steps: int = _PRETEXT(
        0,
        "Number of pretraining updates, in which the network learns to predict quarter-turn rotations of all images "
        "(dissertation, Table 3.9). They do not count toward --steps, and start over if interrupted.",
        ge=0,
        before=0,
    )

    guidance_weight: float = _MASTER(
        0.2,
        "Weight, multiplied by --unlabeled-weight, of the squared difference between the student's "
        "predictions and those of the last block's master on unlabeled images (our choice; the dissertation's "
        "equations have no such term; 1 was harmful on digits).",
        ge=0,
    )
    guide: Literal["composed", "average"] = _MASTER(
        "composed",
        "Network that guides the student. composed: the composed master; average: the student's average after the "
        "last block, without composition (ablation).",
    )
    compose_at: Literal["last-stage", "pool"] = _MASTER(
        "last-stage",
        "Where to combine the three networks: before the last stage of the backbone, or at its output (works with any "
        "backbone). The dissertation does not specify a layer.",
    )
    master_steps: int | None = _MASTER(
        None,
        "Number of master updates after each block. Default: a tenth of the block (our choice; not in the paper).",
        ge=1,
    )
    discrimination: Literal["ratio", "none"] = _MASTER(
        "ratio", "Loss on the distances from the master's features to their two nearest centroids."
    )

    growth_factor: float = _GROWTH(2.0, "Factor by which the number of labels grows at each discovery.", gt=1)
    growth_limit: float = _GROWTH(
        10.0, "Maximum number of labels, as a multiple of the initial labels (R_L in the paper); 1: no growth.", ge=1
    )
    first_blocks: int = _GROWTH(30, "Number of blocks before the first discovery (our choice; not in the paper).", ge=1)
    generation_blocks: int = _GROWTH(
        15,
        "Number of blocks between discoveries. The master learns from the last discovery, the student "
        "from the discovery before it.",
        ge=1,
    )
    churn: float = _STOP(
        0.01,
        "Minimum fraction of the averaged network's predictions that must change between discoveries; if fewer "
        "change, growth ends. 0: growth never ends for this reason.",
        ge=0,
        le=1,
    )

    @property
    def steps_per_block(self) -> int:
        """Number of updates per block."""
        return min(self.eval_every_steps, self.steps)


_LOSS = field_factory("Loss")


class MeanTeacherRecipeOptions(PixelOptions):
    """Options for Mean Teacher's normalization, augmentation and schedules, also for methods compared with it."""

    acts_with: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "lr_horizon": ("lr_schedule", "cosine"),
        **dict.fromkeys(("lr_ramp_up", "lr_ramp_down", "adam_beta1_end", "adam_beta2_start"), ("lr_schedule", "ramps")),
    }

    shift_px: float | None = _VIEWS(None, "Maximum shift in pixels. Default: an eighth of the image size.", ge=0)
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
    def _check_shares(self) -> Self:
        if self.lr_ramp_up + self.lr_ramp_down > 1:
            raise ValueError("lr_ramp_up and lr_ramp_down must sum to at most 1")
        return self


class MeanTeacherOptions(TwoStreamOptions):
    """Options for Mean Teacher's loss and the EMA decay of the teacher."""

    ema_decay_start: float = _AVERAGES(
        0.99,
        "EMA decay of the teacher's weights while --consistency-weight ramps up; then --ema-decay applies.",
        ge=0,
        lt=1,
    )
    consistency_weight: float = _LOSS(
        100.0, "Weight of the squared difference between student and teacher predictions (lambda_2 in the paper).", ge=0
    )
    consistency_ramp: float = _LOSS(
        0.25, "Fraction of the first phase over which --consistency-weight ramps up.", ge=0, le=1
    )
    class_norm: Literal["labeled", "batch"] = _LOSS(
        "labeled",
        "Divisor of the summed cross-entropy. labeled: the number of labeled images; batch: the batch size (as in the "
        "published code for ResNet-26).",
    )
    num_heads: Literal[1, 2] = _LOSS(
        1,
        "Number of linear classifiers. 2: one for the labels, also used for prediction, and one for the consistency "
        "loss (as in the published code for ResNet-26).",
    )

    @model_validator(mode="after")
    def _check_decays(self) -> Self:
        ema_decay = getattr(self, "ema_decay", 1.0)  # a run option
        if self.ema_decay_start > ema_decay:
            raise ValueError(f"ema_decay_start must be at most ema_decay ({ema_decay}), got {self.ema_decay_start}")
        return self


class SupervisedConfig(EmbeddingInputOptions, MeanTeacherRecipeOptions, FewLabelTrainConfig):
    """Options for ``labelkit train supervised``, all of which ``train mean-teacher`` shares."""

    command: ClassVar[tuple[str, ...]] = ("train", "supervised")

    steps: int = override_default(FewLabelTrainConfig, "steps", 150_000)
    batch_size: int = _OPTIMIZATION(
        31, "Total number of labeled images per step over all processes. Each of these images is reused often.", ge=2
    )


class MeanTeacherConfig(EmbeddingInputOptions, MeanTeacherRecipeOptions, TwoStreamTrainConfig, MeanTeacherOptions):
    """Options for ``labelkit train mean-teacher``, with the defaults of the released code for ConvNet-13."""

    command: ClassVar[tuple[str, ...]] = ("train", "mean-teacher")

    steps: int = override_default(TwoStreamTrainConfig, "steps", 150_000)


_MODEL = field_factory("Model")


class ConfidentSearchOptions(SearchOptions):
    """Options for Snowball's search for unlabeled images near a class mean; also used by ``discover snowball``."""

    fusion: Literal["none", "distance", "cascade", "rank"] = _DISCOVERY(
        "none",
        "How to combine several networks. distance: mean distance; cascade: concatenated features; "
        "rank: mean rank, label by majority vote.",
    )


class SnowballConfig(
    EmbeddingInputOptions,
    MeanTeacherRecipeOptions,
    TwoStreamTrainConfig,
    MeanTeacherOptions,
    MixMatchOptions,
    ConfidentSearchOptions,
):
    """Options for ``labelkit train snowball``; defaults follow the dissertation where it specifies them."""

    command: ClassVar[tuple[str, ...]] = ("train", "snowball")
    scaled: ClassVar[Mapping[str, int]] = {"later_steps": 1, "max_steps": 1}
    acts_with: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **dict.fromkeys(("consistency_weight", "class_norm"), ("trainer", "mean-teacher")),
        **dict.fromkeys(("unlabeled_weight", "unlabeled_ramp"), ("trainer", "mixmatch")),
    }

    steps: int = _OPTIMIZATION(150_000, "Number of steps in the first phase, on the initial labels.", ge=1)
    later_steps: int | None = _OPTIMIZATION(
        None, "Number of steps in each later phase. Default: a third of --steps (our choice; not in the paper).", ge=1
    )
    later_lr_ratio: float = _OPTIMIZATION(
        0.5,
        "Ratio of the peak learning rate in later phases to that in the first phase (our choice; not in the paper).",
        gt=0,
    )

    dropout: float | None = _MODEL(
        None,
        "Dropout rate of the backbone; values above 0 require a backbone with dropout layers. Default: the "
        "backbone's own rate (0.5 for convnet13, as in Mean Teacher; use 0 with mixmatch).",
        ge=0,
        lt=1,
    )

    trainer: Literal["mean-teacher", "mixmatch"] = _LOSS(
        "mean-teacher", "Training method of the student in each phase; options of the other method have no effect."
    )
    master: bool = _AVERAGES(
        True,
        "After the first discovery, average the teacher's weights into a master. Without a master, the teacher is used "
        "for discovery and evaluation (arm B of the paper's ablation).",
    )
    generations: int = _GROWTH(
        3,
        "Number of generations. Each generation discards earlier discoveries and extends the initial labels again.",
        ge=1,
    )
    cap: float = _GROWTH(
        16.0, "Maximum number of labels, as a multiple of the initial labels; 1: no growth, plain training.", ge=1
    )

    select: Literal["auto", "min", "far", "random", "max"] = _DISCOVERY(
        "auto",
        "Images to select. min: the nearest to a class mean; max: the farthest; far: the farthest among the most "
        "confident images (10 candidates per image to select); random: drawn at random; auto: far for mixmatch, "
        "otherwise min.",
    )
    found_labels: Literal["assigned", "true"] = _DISCOVERY(
        "assigned",
        "Labels to give the discovered images. assigned: the labels found by discovery; true: their hidden labels "
        "(labeled datasets only), to measure the cost of wrong labels (Table 2.9 of the dissertation).",
        before="assigned",
    )

    churn: float = _STOP(
        0.01,
        "Minimum fraction of predictions that must change. If fewer change in a phase, the generation ends; if fewer "
        "change in a generation, the run ends. 0: never end for this reason.",
        ge=0,
        le=1,
    )
    max_steps: int | None = _STOP(
        None, "Maximum number of steps; a phase that would exceed it is not started. Default: unlimited.", ge=1
    )

    @property
    def later_phase_steps(self) -> int:
        """Number of updates in each phase after the first."""
        return max(1, self.steps // 3) if self.later_steps is None else self.later_steps

    @model_validator(mode="after")
    def _check_growth(self) -> Self:
        if self.trainer == "mixmatch" and 2 * self.labeled_batch_size != self.batch_size:
            raise ValueError(
                f"labeled_batch_size must be half of batch_size {self.batch_size} for mixmatch, got "
                f"{self.labeled_batch_size}"
            )
        if self.max_steps is not None and self.max_steps < self.steps:
            raise ValueError(f"max_steps must be at least the first phase's steps ({self.steps}), got {self.max_steps}")
        return self

    def length_options(self) -> dict[str, int]:
        """Return the options for the number of steps in the first phase and, if set, in later phases."""
        return super().length_options() | ({} if self.later_steps is None else {"later_steps": self.later_steps})

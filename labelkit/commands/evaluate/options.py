"""Options for ``labelkit evaluate``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from labelkit.options.base import panel
from labelkit.options.gate import GateConfig
from labelkit.options.memory import MemoryConfig, ProcessesConfig
from labelkit.options.model import ModelConfig
from labelkit.options.shared import (
    RESULT_NAME,
    BootstrapOptions,
    DatasetOptions,
    DeviceOption,
    EvalSplitOption,
    IndexOption,
    LabelsOption,
    ListingOptions,
    MaxImagesOption,
    OverwriteOption,
    PerClassOption,
    PrecisionOptions,
    ScoresOutOptions,
    SplitOption,
    ThreadsOption,
    WorkersOption,
)

_DATA = panel("Data")
_MODEL = panel("Model")
_RUN = panel("Run")
_STORE = panel("Store", preset=False)
_OUTPUT = panel("Output", preset=False)
_HEAD_LR, _TUNED_LR = 3e-3, 1e-4


class EvaluateAnswerConfig(OverwriteOption, SplitOption, GateConfig, LabelsOption, IndexOption):
    """Options for ``labelkit evaluate answer``."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "answer")

    answer: str | None = _STORE(
        None, "Result of `discover answer`. Default: the newest of answer, answer-2, ...", pattern=RESULT_NAME
    )
    plot: Path | None = _OUTPUT(None, "Also plot reliability and risk-coverage curves to this PNG.", makes="png")


class EvaluateClusteringConfig(
    BootstrapOptions,
    SplitOption,
    GateConfig,
    LabelsOption,
    IndexOption,
):
    """Options for ``labelkit evaluate clustering``."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "clustering")

    results: tuple[str, ...] = Field((), description="Comma-separated results to score. Default: all groupings.")
    rows: Literal["auto", "unlabeled", "all"] = Field(
        "auto",
        description="Images to score. unlabeled: images whose labels training could not use (as published). auto: "
        "unlabeled if training could use any labels, otherwise all.",
    )
    mapping_from: str | None = Field(
        None,
        description="Split (or all) on which clusters are matched to classes; other splits are scored with this "
        "matching. Matching on train is stricter than matching each split separately. --rows also limits the images "
        "used for matching. Default: the scored images.",
    )


class EvaluateKNNConfig(GateConfig, LabelsOption, IndexOption):
    """Options for ``labelkit evaluate knn``."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "knn")
    acts_with: ClassVar[Mapping[str, tuple[Any, ...]]] = {"seed": ("linear",)}

    k: tuple[int, ...] = Field(
        (10,),
        description="Number of neighbors, or several comma-separated numbers to evaluate (as published: "
        "10,20,100,200).",
        json_schema_extra={"short": "-k"},
    )
    temperature: float = Field(
        0.1, gt=0, description="Temperature of the votes: each neighbor has weight exp(cosine / temperature)."
    )
    gallery: str = Field("train", description="Split whose labeled images vote in kNN; all: every split.")
    queries: str = Field(
        "test",
        description="Split to classify, or all. An image never votes for itself: with the same split as --gallery, or "
        "a store without splits, this is leave-one-out evaluation.",
    )
    pca: int | None = Field(
        None,
        ge=1,
        description="Reduce the embeddings to this number of principal components, fitted on the gallery (128 as "
        "published for SeLa). Default: use the embeddings unchanged.",
    )
    linear: bool = Field(False, description="Also train a linear classifier on the gallery.")
    seed: int = Field(0, ge=0, description="Random seed for the sample order of --linear.")

    @field_validator("k")
    @classmethod
    def _at_least_one(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or min(value) < 1:
            raise ValueError("must consist of positive integers")
        return value


class EvaluateLinearConfig(GateConfig, LabelsOption, IndexOption):
    """Options for ``labelkit evaluate linear``."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "linear")
    acts_with: ClassVar[Mapping[str, tuple[Any, ...]]] = dict.fromkeys(
        ("lr", "epochs", "batch_size"), ("solver", "auto", "sgd", "adamw")
    )

    gallery: str = Field("train", description="Split on which to train the classifier.")
    queries: str = Field("test", description="Split on which to evaluate the classifier.")
    solver: Literal["auto", "lbfgs", "sgd", "adamw"] = Field(
        "auto",
        description="Training algorithm. lbfgs: logistic regression, solved to convergence; sgd, adamw: mini-batch "
        "training; auto: lbfgs for up to 20,000 images, otherwise sgd.",
    )
    rescale: bool = Field(
        True,
        description="Center the features and scale them to a mean norm of 1. --no-rescale: use them unchanged, as in "
        "most published protocols.",
    )
    max_gallery: int | None = Field(
        None, ge=1, description="Maximum number of training images, drawn with --seed. Default: all of --gallery."
    )
    lr: float | None = Field(
        None,
        gt=0,
        description="Peak learning rate (sgd and adamw only). Default: 10 for sgd and 0.01 for adamw, for features "
        "with a mean norm of 1.",
    )
    epochs: int = Field(100, ge=1, description="Number of training epochs (sgd and adamw only).")
    batch_size: int = Field(256, ge=1, description="Batch size (sgd and adamw only).")
    seed: int = Field(
        0, ge=0, description="Random seed for the sample order, the --max-gallery subset, and the held-out 20%."
    )

    @model_validator(mode="after")
    def _check_no_rescale(self) -> Self:
        if self.rescale:
            return self
        if self.solver not in ("sgd", "adamw"):
            raise ValueError("--no-rescale requires --solver sgd or adamw: lbfgs needs rescaled features")
        if self.lr is None:
            raise ValueError("--no-rescale requires --lr: the default learning rate is for rescaled features")
        return self


class EvaluateRetrievalConfig(PerClassOption, GateConfig, LabelsOption, IndexOption, MemoryConfig, ProcessesConfig):
    """Options for ``labelkit evaluate retrieval``."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "retrieval")

    k: tuple[int, ...] = Field(
        (1, 2, 4, 8),
        description="Values of K for Recall@K, comma-separated.",
        json_schema_extra={"short": "-k"},
    )
    split: tuple[str, ...] = Field(
        ("auto",),
        description="Comma-separated splits, or all, whose images are both queries and gallery. auto: the query split "
        "against the gallery split if the store has both, otherwise test if it exists, otherwise all.",
    )
    queries: str | None = _STORE(None, "Split that contains the queries, or all; replaces --split.")
    gallery: str | None = Field(None, description="Split to search, or all (with --queries or --gallery-index).")
    gallery_index: Path | None = _STORE(
        None, "Store to search, created with the same model. Default: the store that contains the queries."
    )
    at_r: bool = Field(True, description="Also compute MAP@R and R-precision.")
    nmi_seeds: int = Field(
        3, ge=0, le=100, description="Number of k-means runs for NMI, with one cluster per class; 0: no NMI."
    )
    seed: int = Field(0, ge=0, description="Random seed for the first k-means run.")

    @model_validator(mode="after")
    def _one_protocol(self) -> Self:
        if not self.k or min(self.k) < 1:
            raise ValueError("-k must consist of positive integers")
        if not self.split:
            raise ValueError("--split must not be empty: remove it to use the default")
        if self.split != ("auto",) and (self.queries is not None or self.gallery_index is not None):
            raise ValueError("--split cannot be combined with --queries or --gallery-index")
        if self.gallery is not None and self.queries is None and self.gallery_index is None:
            raise ValueError("--gallery requires --queries or --gallery-index")
        if self.queries is not None and self.gallery is None and self.gallery_index is None:
            raise ValueError("--queries requires --gallery or --gallery-index")
        return self


class EvaluateClassificationConfig(PerClassOption, BootstrapOptions, GateConfig, IndexOption):
    """Options for ``labelkit evaluate classification``."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "classification")

    split: str = Field("auto", description="Split of the store to score; auto: test if it exists, otherwise val.")


class EvaluatePresenceConfig(
    PerClassOption, ThreadsOption, DeviceOption, WorkersOption, DatasetOptions, GateConfig, ModelConfig
):
    """Options for ``labelkit evaluate presence``; defaults follow DeepCluster's code, which SeLa also follows."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "presence")

    dataset: str = _DATA("voc_2007_classes", "Multi-label dataset.")
    train: Literal["linear", "fully-connected"] = Field(
        "linear",
        description="Layers to train on the frozen network. linear: a linear classifier on its embedding; "
        "fully-connected: the two wide layers of AlexNet, reinitialized, and a classifier (fc6-8 in the paper).",
    )
    steps: int = Field(80_000, ge=1, description="Number of training steps.")
    batch_size: int = Field(16, ge=2, description="Number of images per step.")
    lr: float = Field(0.003, gt=0, description="Initial learning rate for SGD with momentum 0.9.")
    seed: int = Field(
        0,
        ge=0,
        description="Random seed for the initial weights, sample order and views, and for an untrained network.",
    )


class EvaluateProbesConfig(DeviceOption, WorkersOption, ThreadsOption, GateConfig):
    """Options for ``labelkit evaluate probes``; defaults follow SeLa's released code (eval_linear_probes.py)."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "probes")

    checkpoint: Path = _MODEL(..., "Run folder, or a checkpoint in it.")
    data_root: Path | None = _STORE(None, "Folder that contains the registered datasets. Default: as in the run.")
    split: str = Field("auto", description="Split to score; auto: test if it exists, otherwise val.")
    at: Literal["convolutions", "features"] = Field(
        "convolutions",
        description="Where to train linear classifiers. convolutions: after each convolution of a plain network; "
        "features: on the embedding of any network (settings published for ResNets: 146 epochs, lr 0.1 with drops at "
        "epochs 85 and 128, batch size 1,024, no weight decay).",
    )
    augmentation: Literal["imagenet", "crop-flip", "digits", "none"] = Field(
        "imagenet",
        description="Training augmentation. imagenet: random crop of 8 to 100% of the area, and flip (as published).",
    )
    crops: Literal["ten", "center"] = Field(
        "ten",
        description="Crops whose predictions are averaged. ten: the corners and the center of the resized center "
        "crop, and their flips in datasets where a flip preserves the class; center: only the center.",
    )
    epochs: int = Field(36, ge=1, description="Number of training epochs.")
    batch_size: int = Field(192, ge=2, description="Number of images per step.")
    lr: float = Field(0.01, gt=0, description="Initial learning rate for SGD with momentum 0.9.")
    lr_drop_epochs: tuple[int, ...] = Field(
        (10, 20, 30), description="Epochs at the start of which the learning rate is divided by 10."
    )
    weight_decay: float = Field(1e-5, ge=0, description="L2 penalty on the weights.")
    seed: int = Field(0, ge=0, description="Random seed for the initial weights, sample order and views.")

    @model_validator(mode="after")
    def _drops_increase(self) -> Self:
        if list(self.lr_drop_epochs) != sorted(set(self.lr_drop_epochs)) or any(e < 1 for e in self.lr_drop_epochs):
            raise ValueError(f"lr_drop_epochs must be positive and increasing, got {self.lr_drop_epochs}")
        return self


class DenseConfig(
    OverwriteOption,
    ThreadsOption,
    DeviceOption,
    ScoresOutOptions,
    MaxImagesOption,
    ListingOptions,
    DatasetOptions,
    GateConfig,
    ModelConfig,
):
    """Options shared by all evaluations of patch features: data, network and outputs."""

    acts_with: ClassVar[Mapping[str, tuple[Any, ...]]] = {"patch_size": ("backbone", "pixels")}

    dataset: str = _DATA(
        "scenes",
        "Dataset with masks: a registered name (see `labelkit datasets`), or a folder that contains images/ and "
        "masks/, or train/ and val/ with images/ and masks/ in each.",
    )
    patch_size: int = _MODEL(8, "Side length of a patch in pixels (with --backbone pixels).", ge=1, le=256)
    batch_size: int = _RUN(64, "Number of images per forward pass.", ge=1)
    sheet: Path | None = _OUTPUT(
        None, "Also write a PNG that shows predicted and ground-truth masks side by side.", makes="png"
    )


class EvaluateSegmentationConfig(EvalSplitOption, DenseConfig):
    """Options for ``labelkit evaluate segmentation``."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "segmentation")

    split: str = _DATA("auto", "Split on which to train the head; auto: probe if it exists, otherwise train.")
    head: Literal["linear", "fcn", "fpn", "upernet"] = Field(
        "linear",
        description="Segmentation head to train. linear: one linear layer per patch; fcn: three convolution blocks, "
        "at eight times the resolution; fpn, upernet (with --tune): heads on feature maps from four depths.",
    )
    tune: bool = Field(
        False,
        description="Fine-tune the backbone together with the head, using AdamW with weight decay 0.05; otherwise, "
        "the backbone is frozen.",
    )
    samples: int = Field(
        20_000,
        ge=1,
        description="Total number of training images drawn (as published: 118,000 for COCO-Stuff, otherwise 100,000).",
    )
    lr: tuple[float, ...] | None = Field(
        None,
        description="Learning rate for Adam. Of several comma-separated values, the best on a held-out fifth of the "
        "training images is used (as published: 3e-3, or the best of 1e-4,1e-3,3e-3,1e-2). Default: 3e-3, or 1e-4 "
        "with --tune.",
    )
    train_size: int | None = Field(
        None, ge=8, le=2048, description="Size of training crops in pixels (336 as published). Default: --image-size."
    )
    augment: bool = Field(True, description="Train on random crops (80 to 100% of the area) and flips.")
    seeds: int = Field(
        3,
        ge=1,
        le=100,
        description="Number of heads to train, with consecutive seeds starting at --seed; scores are averaged.",
    )

    @field_validator("lr")
    @classmethod
    def _positive(cls, value: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if value is not None and (not value or min(value) <= 0):
            raise ValueError("must be one or more learning rates above 0")
        return value

    @model_validator(mode="after")
    def _heads_of_depths(self) -> Self:
        if self.head in ("fpn", "upernet") and not self.tune:
            raise ValueError(f"--head {self.head} requires --tune: it is trained together with the backbone")
        if self.tune and self.backbone == "pixels":
            raise ValueError("--tune has no effect with --backbone pixels, which has no weights: remove it")
        return self

    @property
    def rates(self) -> tuple[float, ...]:
        """Learning rates to try."""
        return self.lr or (_TUNED_LR if self.tune else _HEAD_LR,)


class EvaluatePatchClustersConfig(DenseConfig):
    """Options for ``labelkit evaluate patch-clusters``."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "patch-clusters")

    split: str = _DATA("auto", "Split whose patches to cluster and score; auto: val if it exists, otherwise test.")
    num_clusters: int | None = Field(
        None,
        ge=2,
        description="Number of patch clusters. As many clusters as classes are matched one to one; with more "
        "clusters, each one is assigned the best-fitting class. Default: the number of classes.",
    )
    seeds: int = Field(
        5, ge=1, le=100, description="Number of k-means runs, with consecutive seeds from --seed; scores are averaged."
    )


class EvaluateTrackingConfig(DenseConfig):
    """Options for ``labelkit evaluate tracking``."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "tracking")

    dataset: str = _DATA("scene_videos", "Videos with object masks: scene_videos or davis_2017.")
    split: str = _DATA("auto", "Videos to evaluate on; auto: val if it exists, otherwise all.")
    radius: int = Field(12, ge=0, description="Maximum distance of label propagation, in patches; 0: unlimited.")
    temperature: float = Field(
        0.1, gt=0, description="Temperature of the label propagation: each source has weight exp(cosine / temperature)."
    )


class EvaluateDetectionConfig(
    OverwriteOption,
    ThreadsOption,
    PrecisionOptions,
    DeviceOption,
    ScoresOutOptions,
    EvalSplitOption,
    MaxImagesOption,
    ListingOptions,
    DatasetOptions,
    GateConfig,
    ModelConfig,
):
    """Options for ``labelkit evaluate detection``; defaults follow Tables V and X of the CoTAP paper where possible."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "detection")

    dataset: str = _DATA(
        "coco_2017",
        "Dataset with bounding boxes: coco_2017, or a folder that contains annotations/instances_train.json and "
        "instances_val.json, and the images in train/ and val/ (or all in images/).",
    )
    split: str = _DATA("auto", "Split to train on; auto: the train split.")
    image_size: int | None = _MODEL(
        None,
        "Length of the shorter image side in pixels; the longer side is at most 5/3 times as long. Default: 800.",
        ge=32,
        le=2048,
    )
    detector: Literal["faster-rcnn", "mask-rcnn", "cascade-mask-rcnn"] = Field(
        "cascade-mask-rcnn",
        description="Detector to train. faster-rcnn: boxes only; mask-rcnn: boxes and masks; cascade-mask-rcnn: boxes "
        "and masks, in three stages with IoU thresholds of 0.5, 0.6 and 0.7, as in the paper.",
    )
    tune: bool = Field(
        True, description="Fine-tune the backbone with the detector, as in the paper; otherwise, it is frozen."
    )
    epochs: int = Field(12, ge=1, description="Number of training epochs (default as in the paper).")
    steps: int | None = Field(None, ge=1, description="Number of training steps, instead of --epochs.")
    batch_size: int = Field(16, ge=1, description="Number of images per step (our choice; not in the paper).")
    lr: float = Field(2e-4, gt=0, description="Learning rate for AdamW (default as in the paper).")
    weight_decay: float = Field(
        0.05, ge=0, description="Weight decay for AdamW, except for biases, norms and position embeddings."
    )
    proposals: int = Field(1000, ge=1, description="Number of region proposals per image; training uses twice as many.")
    samples_per_image: int = Field(512, ge=2, description="Number of regions sampled per image to train the heads.")
    precision: Literal["float32", "bf16", "fp16"] = _RUN(
        "float32", "Floating-point precision of the backbone and the feature pyramid; heads and boxes use float32."
    )
    seeds: int = Field(
        1,
        ge=1,
        le=100,
        description="Number of detectors to train, with consecutive seeds starting at --seed; scores are averaged.",
    )

    @model_validator(mode="after")
    def _trainable(self) -> Self:
        if self.backbone == "pixels":
            raise ValueError("--backbone pixels has no feature maps for a detector: choose another backbone")
        return self

    @property
    def shorter_side(self) -> int:
        """Length of the shorter image side in pixels."""
        return self.image_size or 800

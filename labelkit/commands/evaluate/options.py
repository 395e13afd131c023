"""Options for ``labelkit evaluate``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import field_validator, model_validator

from labelkit.options.base import DATA, MODEL, OPTION, OUTPUT, RUN, STORE
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
    SplitOption,
    ThreadsOption,
    WorkersOption,
)

_HEAD_LR, _TUNED_LR = 3e-3, 1e-4


class EvaluateAnswerConfig(OverwriteOption, SplitOption, GateConfig, LabelsOption, IndexOption):
    """Options for ``labelkit evaluate answer``."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "answer")

    answer: str | None = STORE(
        None, "Result of `discover answer`. Default: the newest of answer, answer-2, ...", pattern=RESULT_NAME
    )
    plot: Path | None = OUTPUT(None, "Also plot reliability and risk-coverage curves to this PNG.", makes="png")


class EvaluateClusteringConfig(BootstrapOptions, SplitOption, GateConfig, LabelsOption, IndexOption):
    """Options for ``labelkit evaluate clustering``."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "clustering")

    results: tuple[str, ...] = OPTION((), "Comma-separated results to score. Default: all groupings.")
    rows: Literal["auto", "unlabeled", "all"] = OPTION(
        "auto",
        "Images to score. unlabeled: images whose labels were withheld from training (as published). auto: "
        "unlabeled if only some labels were withheld; otherwise all, but not for results that used labels.",
    )


class EvaluateKNNConfig(GateConfig, LabelsOption, IndexOption):
    """Options for ``labelkit evaluate knn``."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "knn")
    acts_with: ClassVar[Mapping[str, tuple[Any, ...]]] = {"seed": ("linear",)}

    k: tuple[int, ...] = OPTION(
        (10,),
        "Number of neighbors, or several comma-separated numbers to evaluate (as published: 10,20,100,200).",
        short="-k",
    )
    temperature: float = OPTION(
        0.1, "Temperature of the votes: each neighbor has weight exp(cosine / temperature).", gt=0
    )
    gallery: str = OPTION("train", "Split whose labeled images vote in kNN; all: every split.")
    queries: str = OPTION(
        "test",
        "Split to classify, or all. An image never votes for itself: with the same split as --gallery, or "
        "a store without splits, this is leave-one-out evaluation.",
    )
    pca: int | None = OPTION(
        None,
        "Reduce the embeddings to this number of principal components, fitted on the gallery (128 as "
        "published for SeLa). Default: use the embeddings unchanged.",
        ge=1,
    )
    linear: bool = OPTION(False, "Also train a linear classifier on the gallery.")
    seed: int = OPTION(0, "Random seed for the sample order of --linear.", ge=0)

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

    gallery: str = OPTION("train", "Split on which to train the classifier.")
    queries: str = OPTION("test", "Split on which to evaluate the classifier.")
    solver: Literal["auto", "lbfgs", "sgd", "adamw"] = OPTION(
        "auto",
        "Training algorithm. lbfgs: logistic regression with an L2 penalty (0.001 / 2 times the squared weights, added "
        "to the mean loss), solved to convergence; sgd, adamw: mini-batch training; auto: lbfgs for up to 20,000 "
        "images, otherwise sgd.",
    )
    rescale: bool = OPTION(
        True,
        "Center the features and scale them by one factor, to a mean square of 1 per value (lbfgs) or per image (sgd, "
        "adamw). --no-rescale (sgd, adamw): use them unchanged, as in most published protocols.",
    )
    max_gallery: int | None = OPTION(
        None, "Maximum number of training images, drawn with --seed. Default: all of --gallery.", ge=1
    )
    lr: float | None = OPTION(
        None,
        "Peak learning rate (sgd and adamw only). Default: 10 for sgd and 0.01 for adamw, for features "
        "with a mean squared norm of 1.",
        gt=0,
    )
    epochs: int = OPTION(100, "Number of training epochs (sgd and adamw only).", ge=1)
    batch_size: int = OPTION(256, "Batch size (sgd and adamw only).", ge=1)
    seed: int = OPTION(0, "Random seed for the sample order, the --max-gallery subset, and the held-out 20%.", ge=0)

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

    k: tuple[int, ...] = OPTION((1, 2, 4, 8), "Values of K for Recall@K, comma-separated.", short="-k")
    split: tuple[str, ...] = OPTION(
        ("auto",),
        "Comma-separated splits, or all, whose images are both queries and gallery. auto: the query split "
        "against the gallery split if the store has both, otherwise test if it exists, otherwise all.",
    )
    queries: str | None = STORE(None, "Split that contains the queries, or all; replaces --split.")
    gallery: str | None = OPTION(None, "Split to search, or all (with --queries or --gallery-index).")
    gallery_index: Path | None = STORE(
        None, "Store to search, created with the same model. Default: the store that contains the queries."
    )
    at_r: bool = OPTION(True, "Also compute MAP@R and R-precision.")
    nmi_seeds: int = OPTION(3, "Number of k-means runs for NMI, with one cluster per class; 0: no NMI.", ge=0, le=100)
    seed: int = OPTION(0, "Random seed for the first k-means run.", ge=0)

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

    split: str = OPTION("auto", "Split of the store to score; auto: test if it exists, otherwise val.")


class EvaluatePresenceConfig(
    PerClassOption, ThreadsOption, DeviceOption, WorkersOption, DatasetOptions, GateConfig, ModelConfig
):
    """Options for ``labelkit evaluate presence``; defaults follow DeepCluster's code, which SeLa also follows."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "presence")

    dataset: str = DATA("voc_2007_classes", "Multi-label dataset.")
    train: Literal["linear", "fully-connected"] = OPTION(
        "linear",
        "Layers to train on the frozen network. linear: a linear classifier on its embedding; "
        "fully-connected: the two wide layers of AlexNet, reinitialized, and a classifier (fc6-8 in the paper).",
    )
    steps: int = OPTION(80_000, "Number of training steps.", ge=1)
    batch_size: int = OPTION(16, "Number of images per step.", ge=2)
    lr: float = OPTION(0.003, "Initial learning rate for SGD with momentum 0.9.", gt=0)
    seed: int = OPTION(
        0, "Random seed for the initial weights, sample order and views, and for an untrained network.", ge=0
    )


class EvaluateProbesConfig(DeviceOption, WorkersOption, ThreadsOption, GateConfig):
    """Options for ``labelkit evaluate probes``; defaults follow SeLa's released code (eval_linear_probes.py)."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "probes")

    checkpoint: Path = MODEL(..., "Run folder, or a checkpoint in it.")
    data_root: Path | None = STORE(None, "Folder that contains the registered datasets. Default: as in the run.")
    split: str = OPTION("auto", "Split to score; auto: test if it exists, otherwise val.")
    at: Literal["convolutions", "features"] = OPTION(
        "convolutions",
        "Where to train linear classifiers. convolutions: after each convolution of a plain network; "
        "features: on the embedding of any network (settings published for ResNets: 146 epochs, lr 0.1 with drops at "
        "epochs 85 and 128, batch size 1,024, no weight decay).",
    )
    augmentation: Literal["imagenet", "crop-flip", "digits", "none"] = OPTION(
        "imagenet", "Training augmentation. imagenet: random crop of 8 to 100% of the area, and flip (as published)."
    )
    crops: Literal["ten", "center"] = OPTION(
        "ten",
        "Crops whose predictions are averaged. ten: the corners and the center of the resized center "
        "crop, and their flips in datasets where a flip preserves the class; center: only the center.",
    )
    epochs: int = OPTION(36, "Number of training epochs.", ge=1)
    batch_size: int = OPTION(192, "Number of images per step.", ge=2)
    lr: float = OPTION(0.01, "Initial learning rate for SGD with momentum 0.9.", gt=0)
    lr_drop_epochs: tuple[int, ...] = OPTION(
        (10, 20, 30), "Epochs at the start of which the learning rate is divided by 10."
    )
    weight_decay: float = OPTION(1e-5, "L2 penalty on the weights.", ge=0)
    seed: int = OPTION(0, "Random seed for the initial weights, sample order and views.", ge=0)


class DenseConfig(
    OverwriteOption,
    ThreadsOption,
    DeviceOption,
    MaxImagesOption,
    ListingOptions,
    DatasetOptions,
    GateConfig,
    ModelConfig,
):
    """Options shared by all evaluations of patch features: data, network and outputs."""

    acts_with: ClassVar[Mapping[str, tuple[Any, ...]]] = {"patch_size": ("backbone", "pixels")}

    dataset: str = DATA(
        "scenes",
        "Dataset with masks: a registered name (see `labelkit datasets`), or a folder that contains images/ and "
        "masks/, or train/ and val/ with images/ and masks/ in each.",
    )
    patch_size: int = MODEL(8, "Side length of a patch in pixels (with --backbone pixels).", ge=1, le=256)
    batch_size: int = RUN(64, "Number of images per forward pass.", ge=1)
    sheet: Path | None = OUTPUT(
        None, "Also write a PNG that shows predicted and ground-truth masks side by side.", makes="png"
    )


class EvaluateSegmentationConfig(EvalSplitOption, DenseConfig):
    """Options for ``labelkit evaluate segmentation``."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "segmentation")

    split: str = DATA("auto", "Split on which to train the head; auto: probe if it exists, otherwise train.")
    head: Literal["linear", "fcn", "fpn", "upernet"] = OPTION(
        "linear",
        "Segmentation head to train. linear: one linear layer per patch; fcn: three convolution blocks, "
        "at eight times the resolution; fpn, upernet (with --tune): heads on feature maps from four depths.",
    )
    tune: bool = OPTION(
        False,
        "Fine-tune the backbone together with the head, using AdamW with weight decay 0.05; otherwise, "
        "the backbone is frozen.",
    )
    samples: int = OPTION(
        20_000, "Total number of training images drawn (as published: 118,000 for COCO-Stuff, otherwise 100,000).", ge=1
    )
    lr: tuple[float, ...] | None = OPTION(
        None,
        "Learning rate for Adam. Of several comma-separated values, the best on a held-out fifth of the "
        "training images is used (as published: 3e-3, or the best of 1e-4,1e-3,3e-3,1e-2). Default: 3e-3, or 1e-4 "
        "with --tune.",
    )
    train_size: int | None = OPTION(
        None, "Size of training crops in pixels (336 as published). Default: --image-size.", ge=8, le=2048
    )
    augment: bool = OPTION(True, "Train on random crops (80 to 100% of the area) and flips.")
    seeds: int = OPTION(
        3, "Number of heads to train, with consecutive seeds starting at --seed; scores are averaged.", ge=1, le=100
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
    def learning_rates(self) -> tuple[float, ...]:
        """Learning rates to try."""
        return self.lr or (_TUNED_LR if self.tune else _HEAD_LR,)


class EvaluatePatchClustersConfig(DenseConfig):
    """Options for ``labelkit evaluate patch-clusters``."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "patch-clusters")

    split: str = DATA("auto", "Split whose patches are clustered and scored; auto: val if it exists, otherwise test.")
    num_clusters: int | None = OPTION(
        None,
        "Number of patch clusters. As many clusters as classes are matched one to one; with more "
        "clusters, each one is assigned the best-fitting class. Default: the number of classes.",
        ge=2,
    )
    seeds: int = OPTION(
        5, "Number of k-means runs, with consecutive seeds from --seed; scores are averaged.", ge=1, le=100
    )


class EvaluateTrackingConfig(DenseConfig):
    """Options for ``labelkit evaluate tracking``."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "tracking")

    dataset: str = DATA("scene_videos", "Videos with object masks: scene_videos or davis_2017.")
    split: str = DATA("auto", "Videos to evaluate on; auto: val if it exists, otherwise all.")
    radius: int = OPTION(12, "Maximum distance of label propagation, in patches; 0: unlimited.", ge=0)
    temperature: float = OPTION(
        0.1, "Temperature of the label propagation: each source has weight exp(cosine / temperature).", gt=0
    )


class EvaluateDetectionConfig(
    ThreadsOption,
    PrecisionOptions,
    DeviceOption,
    EvalSplitOption,
    MaxImagesOption,
    ListingOptions,
    DatasetOptions,
    GateConfig,
    ModelConfig,
):
    """Options for ``labelkit evaluate detection``; defaults follow Tables V and X of the CoTAP paper where possible."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "detection")

    dataset: str = DATA(
        "coco_2017",
        "Dataset with bounding boxes: coco_2017, or a folder that contains annotations/instances_train.json and "
        "instances_val.json, and the images in train/ and val/ (or all in images/).",
    )
    split: str = DATA("auto", "Split to train on; auto: the train split.")
    image_size: int | None = MODEL(
        None,
        "Length of the shorter image side in pixels; the longer side is at most 5/3 times as long. Default: 800.",
        ge=32,
        le=2048,
    )
    detector: Literal["faster-rcnn", "mask-rcnn", "cascade-mask-rcnn"] = OPTION(
        "cascade-mask-rcnn",
        "Detector to train. faster-rcnn: boxes only; mask-rcnn: boxes and masks; cascade-mask-rcnn: boxes "
        "and masks, in three stages with IoU thresholds of 0.5, 0.6 and 0.7, as in the paper.",
    )
    tune: bool = OPTION(True, "Fine-tune the backbone with the detector, as in the paper; otherwise, it is frozen.")
    epochs: int = OPTION(12, "Number of training epochs (default as in the paper).", ge=1)
    steps: int | None = OPTION(None, "Number of training steps, instead of --epochs.", ge=1)
    batch_size: int = OPTION(16, "Number of images per step (our choice; not in the paper).", ge=1)
    lr: float = OPTION(2e-4, "Learning rate for AdamW (default as in the paper).", gt=0)
    weight_decay: float = OPTION(
        0.05, "Weight decay for AdamW, except for biases, norms and position embeddings.", ge=0
    )
    proposals: int = OPTION(1000, "Number of region proposals per image; training uses twice as many.", ge=1)
    samples_per_image: int = OPTION(512, "Number of regions sampled per image to train the heads.", ge=2)
    precision: Literal["float32", "bf16", "fp16"] = RUN(
        "float32", "Floating-point precision of the backbone and the feature pyramid; heads and boxes use float32."
    )
    seeds: int = OPTION(
        1, "Number of detectors to train, with consecutive seeds starting at --seed; scores are averaged.", ge=1, le=100
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

    @property
    def longer_side(self) -> int:
        """Maximum length of the longer image side in pixels."""
        return self.shorter_side * 5 // 3

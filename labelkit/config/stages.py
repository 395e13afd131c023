"""Options of every command but ``train``."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator
from pydantic.config import JsonDict

from labelkit.config.base import StageConfig, flag
from labelkit.config.data import DataConfig
from labelkit.config.earlier import RESULT_NAME, LabelsOption, PreviousOption
from labelkit.config.gate import GateConfig
from labelkit.config.memory import MemoryConfig
from labelkit.config.model import ModelConfig

_MODEL: JsonDict = {"panel": "Model"}
_RUN: JsonDict = {"panel": "Run"}
_RUN_ONLY: JsonDict = {"panel": "Run", "preset": False}
_IMAGES: JsonDict = {"panel": "Images"}
_STORE: JsonDict = {"panel": "Store", "preset": False}
_OUTPUT: JsonDict = {"panel": "Output", "preset": False}
_FILTER: JsonDict = {"panel": "Filters", "preset": False}
_SEARCH: JsonDict = {"panel": "Search"}
_PATCHES: JsonDict = {"panel": "Patches"}


class EmbedConfig(DataConfig, ModelConfig, MemoryConfig):
    """``labelkit embed``."""

    command: ClassVar[tuple[str, ...]] = ("embed",)

    out: Path = Field(..., description="Store to write, NAME.h5.", json_schema_extra=_OUTPUT)
    stride: int = Field(1, ge=1, description="Only every so many-th of the chosen images.", json_schema_extra=_IMAGES)
    max_images: int | None = Field(
        None,
        ge=1,
        description="At most so many of them, evenly spread over the listing; default: all.",
        json_schema_extra=_IMAGES,
    )
    logits: bool = Field(
        True, description="Store the classifier's output too if the model has one.", json_schema_extra=_MODEL
    )
    dtype: Literal["float32", "float16"] = Field(
        "float32", description="Type of the stored rows.", json_schema_extra=_RUN
    )
    dense: bool = Field(
        False,
        description="Also store the features of the patches of each image (its feature map), beside the store.",
        json_schema_extra=_PATCHES,
    )
    patches_per_image: int | None = Field(
        None,
        ge=1,
        description="With --dense: so many patches of each image, drawn by chance; default: all.",
        json_schema_extra=_PATCHES,
    )
    patch_dtype: Literal["float16", "float32"] = Field(
        "float16", description="With --dense: type of the stored patches.", json_schema_extra=_PATCHES
    )
    patch_seed: int = Field(
        0, ge=0, description="Seed of the patches that --patches-per-image draws.", json_schema_extra=_PATCHES
    )
    batch_size: int = Field(256, ge=1, description="Images per forward pass.", json_schema_extra=_RUN)
    part_rows: int = Field(1024, ge=1, description="Rows committed at a time.", json_schema_extra=_RUN)
    precision: Literal["float32", "bf16", "fp16"] = Field(
        "float32", description="Compute type of the network.", json_schema_extra=_RUN
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        "auto", description="Where to compute.", json_schema_extra=_RUN
    )
    num_workers: int = Field(0, ge=0, le=256, description="Processes that decode images.", json_schema_extra=_RUN)
    threads: int | None = Field(
        None, ge=1, description="CPU threads of torch; default: its own choice.", json_schema_extra=_RUN
    )
    reuse: tuple[Path, ...] | None = Field(
        None,
        min_length=1,
        description="Stores of the same model, comma-separated: rows of image files that they hold are copied, not "
        "computed, whatever the files are called now; default: all are computed.",
        json_schema_extra=_RUN_ONLY,
    )
    overwrite: bool = Field(False, description="Replace the store in --out.", json_schema_extra=_OUTPUT)
    dry_run: bool = Field(
        False, description="Show configuration, counts, memory and time; write nothing.", json_schema_extra=_RUN_ONLY
    )

    @model_validator(mode="after")
    def _patches_need_dense(self) -> EmbedConfig:
        if self.patches_per_image is not None and not self.dense:
            raise ValueError("--patches-per-image goes with --dense")
        return self

    @model_validator(mode="after")
    def _patches_are_not_reused(self) -> EmbedConfig:
        if self.reuse is not None and self.dense:
            raise ValueError("--reuse saves nothing with --dense, which needs the network for every image")
        return self


class IndexConfig(StageConfig):
    """A command that reads a store and names its result beside it."""

    index: Path = Field(..., description="Store to read, NAME.h5.", json_schema_extra=_STORE)
    result: str | None = Field(
        None,
        pattern=RESULT_NAME,
        description="Name of the result that is written beside the store; default: that of the command.",
        json_schema_extra=_OUTPUT,
    )
    overwrite: bool = Field(False, description="Replace a result of this name.", json_schema_extra=_OUTPUT)


class ScoresConfig(IndexConfig):
    """A command that scores a store and may keep the scores beside it."""

    result: str | None = Field(
        None,
        pattern=RESULT_NAME,
        description="Also keep the scores as a result of this name beside the store; default: not kept.",
        json_schema_extra=_OUTPUT,
    )


class ClusterConfig(PreviousOption, IndexConfig, MemoryConfig):
    """What all clusterings share."""

    num_clusters: int = Field(..., ge=1, description="Groups to find.")
    split: str = Field("all", description="Rows to cluster: a split's name, or all.")
    num_inits: int = Field(10, ge=1, description="Starts; the lowest inertia wins.")
    max_iterations: int = Field(300, ge=1, description="Iterations of one start at the most.")
    tolerance: float = Field(1e-4, ge=0, description="A start ends when the centroids move less.")
    seed: int = Field(0, ge=0, description="Seed of the starts.")


class PatchClusterConfig(ClusterConfig):
    """A clustering of rows, or of patches."""

    patches: bool = Field(
        False, description="Group the patches of the images instead (of a store made with embed --dense)."
    )
    max_patches: int = Field(
        100_000, ge=1, description="With --patches: centroids come from so many, drawn by --seed; all get a group."
    )


class KMeansConfig(PatchClusterConfig):
    """``labelkit cluster k-means``."""

    command: ClassVar[tuple[str, ...]] = ("cluster", "k-means")

    normalize: bool = Field(True, description="Scale every row to length 1 first.")


class SphericalKMeansConfig(PatchClusterConfig):
    """``labelkit cluster spherical-k-means``."""

    command: ClassVar[tuple[str, ...]] = ("cluster", "spherical-k-means")


class SSKMeansConfig(LabelsOption, ClusterConfig):
    """``labelkit cluster ss-kmeans``."""

    command: ClassVar[tuple[str, ...]] = ("cluster", "ss-kmeans")

    max_iterations: int = Field(100, ge=1, description="Iterations of one start at the most (benchmark: 200).")
    normalize: bool = Field(True, description="Scale every row to length 1 first.")


class SinkhornConfig(ClusterConfig):
    """``labelkit cluster sinkhorn``."""

    command: ClassVar[tuple[str, ...]] = ("cluster", "sinkhorn")

    num_clusters: int = Field(..., ge=2, description="Groups to make.")
    temperature: float = Field(
        0.02, gt=0, description="Temperature of the cosines; the smaller, the nearer to the sizes, and the slower."
    )
    prior: str = Field(
        "uniform",
        description="Sizes of the groups: uniform; zipf:a, shares falling as 1/rank^a; or a text file of a number per "
        "group, shares that sum to 1 or sizes that sum to the rows.",
    )
    init: Literal["k-means", "random"] = Field(
        "k-means", description="First prototypes: spherical k-means, or rows drawn at random."
    )
    prototypes: str | None = Field(
        None,
        pattern=RESULT_NAME,
        description="First prototypes from this result beside the store instead; the prior then keeps its order.",
    )
    exact_balance: bool = Field(
        False, description="Meet the sizes exactly, by linear assignment in the end; at most 8,000 rows."
    )
    num_inits: int = Field(1, ge=1, description="Starts of the k-means of --init; the lowest inertia wins.")
    max_iterations: int = Field(
        100, ge=1, description="Rounds of assignment and new prototypes at the most; 1 only assigns."
    )
    tolerance: float = Field(
        1e-6, gt=0, description="Summed difference of shares reached and wanted that the last assignment may have."
    )


class DiscoverCategoriesConfig(LabelsOption, PreviousOption, IndexConfig, MemoryConfig):
    """``labelkit discover categories``."""

    command: ClassVar[tuple[str, ...]] = ("discover", "categories")

    criterion: Literal["auto", "label-free", "labeled", "heldout", "silhouette", "stability"] = Field(
        "auto",
        description="What to judge a number of classes by: labeled, heldout (both need labels), silhouette, stability; "
        "label-free: the last two; auto: all that the labels allow.",
    )
    min_classes: int | None = Field(None, ge=1, description="Fewest classes tried; default: those with labels, or 2.")
    max_classes: int | None = Field(
        None, ge=2, description="Most classes tried; default: 1,000 or a tenth of the rows, whichever is less."
    )
    search: Literal["path", "brent", "grid"] = Field(
        "path",
        description="path: k-means of every number, each started from its neighbor, on random halves of the rows; "
        "brent, grid: the published search of --criterion labeled, on all rows, over few numbers or every one.",
    )
    num_draws: int = Field(8, ge=3, description="Random halves of the rows (and of the labels) that are drawn.")
    max_rows: int = Field(
        10_000, ge=20, description="Rows used to choose the number; of more, so many are drawn. All get a class."
    )
    split: str = Field("all", description="Rows to use: a split's name, or all.")
    num_inits: int = Field(10, ge=1, description="Starts of the k-means that assigns; the lowest inertia wins.")
    seed: int = Field(0, ge=0, description="Seed of draws and starts.")
    plot: Path | None = Field(None, description="Also draw the curves to this PNG.", json_schema_extra=_OUTPUT)

    @model_validator(mode="after")
    def _published_search_has_one_criterion(self) -> DiscoverCategoriesConfig:
        if self.search != "path" and self.criterion != "labeled":
            raise ValueError(f"--search {self.search} is the published search of --criterion labeled; pass that too")
        return self


class DiscoverHeadConfig(PreviousOption, IndexConfig, MemoryConfig):
    """``labelkit discover head``."""

    command: ClassVar[tuple[str, ...]] = ("discover", "head")

    temperature: float = Field(
        0.1, gt=0, description="Softmax temperature of the confidence (the methods' student temperature)."
    )


class DiscoverAnswerConfig(LabelsOption, IndexConfig, MemoryConfig):
    """``labelkit discover answer``."""

    command: ClassVar[tuple[str, ...]] = ("discover", "answer")

    grouping: str | None = Field(
        None,
        pattern=RESULT_NAME,
        description="Result that groups the rows: one of discover head, cluster ss-kmeans, discover categories; "
        "default: the first of these that is there.",
        json_schema_extra=_STORE,
    )
    num_clusters: int | None = Field(
        None,
        ge=1,
        description="Group the rows first, into so many groups by semi-supervised k-means: the result that --grouping "
        "names, ss-kmeans by default; default: take a result that is there.",
        json_schema_extra=_STORE,
    )
    csv: Path | None = Field(
        None, description="Table to write; default: INDEX.RESULT.csv beside the store.", json_schema_extra=_OUTPUT
    )
    plot: Path | None = Field(
        None, description="Also draw the reliability of the calibration to this PNG.", json_schema_extra=_OUTPUT
    )
    min_confidence: float = Field(0.8, ge=0, le=1, description="Below this confidence an image is unsure.")
    coverage: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Conformal rule besides: unsure as well unless a single group is left when this share of the "
        "images of classes with labels is to keep its class; default: not applied.",
    )
    calibration_labels: Path | None = Field(
        None,
        description="CSV path,label, or result of `labelkit label`, of images whose label nothing was trained with: "
        "calibrate on these; default: labels of the store, hidden from repeated clusterings.",
        json_schema_extra={"panel": "Calibration"},
    )
    calibration_share: float = Field(
        0.5,
        gt=0,
        lt=1,
        description="Share of each class's labels hidden in a round; at least one, and one is kept.",
        json_schema_extra={"panel": "Calibration"},
    )
    calibration_rounds: int = Field(
        10,
        ge=1,
        description="Clusterings with some labels hidden; each also hides a fifth of the classes whole.",
        json_schema_extra={"panel": "Calibration"},
    )
    num_inits: int | None = Field(
        None,
        ge=1,
        description="Starts of each of these clusterings; default: as many as the grouping had, at least 10.",
        json_schema_extra={"panel": "Calibration"},
    )
    seed: int = Field(0, ge=0, description="Seed of what is hidden and of the starts.")


class EvaluateAnswerConfig(GateConfig, ScoresConfig):
    """``labelkit evaluate answer``."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "answer")

    answer: str = Field(
        "answer",
        pattern=RESULT_NAME,
        description="Result of discover answer to score.",
        json_schema_extra=_STORE,
    )
    split: str = Field("all", description="Rows to score: a split's name, or all.")
    bins: int = Field(10, ge=1, le=1000, description="Bins of the reliability table.")
    plot: Path | None = Field(
        None, description="Also draw reliability and risk-coverage to this PNG.", json_schema_extra=_OUTPUT
    )


class EvaluateClusteringConfig(GateConfig, LabelsOption, ScoresConfig, MemoryConfig):
    """``labelkit evaluate clustering``."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "clustering")

    results: tuple[str, ...] = Field(
        (), description="Names of the results to score, comma-separated; default: all that group rows."
    )
    split: str = Field("all", description="Rows to score: a split's name, or all.")
    rows: Literal["auto", "unlabeled", "all"] = Field(
        "auto",
        description="unlabeled: rows whose label training could not use (the published protocol); "
        "auto = unlabeled if some labels could be used, else all.",
    )
    protocol: Literal["v2", "v1", "v2b"] = Field(
        "v2", description="v2: one assignment over all rows; v1: one per group of classes; v2b: v2, mean over classes."
    )
    bootstrap: int = Field(
        1000, ge=0, description="Resamples for the 95 % intervals of the accuracies, over rows; 0: no intervals."
    )
    per_class: bool = Field(False, description="Also show the accuracy of every class.")
    seed: int = Field(0, ge=0, description="Seed of the resamples.")
    allow_stale: bool = Field(False, description="Also score results of another version of the store, marked.")


class EvaluateKNNConfig(GateConfig, LabelsOption, ScoresConfig, MemoryConfig):
    """``labelkit evaluate knn``."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "knn")

    k: tuple[int, ...] = Field(
        (10,),
        description="Neighbors that vote; several, comma-separated, are tried in turn (published: 10,20,100,200).",
        json_schema_extra={"short": "-k"},
    )
    temperature: float = Field(0.1, gt=0, description="A neighbor's vote counts exp(cosine / temperature).")
    gallery: str = Field("train", description="Split whose labels are known.")
    queries: str = Field("test", description="Split whose labels are to be found.")
    linear: bool = Field(False, description="Also train a linear classifier on the gallery.")
    linear_epochs: int = Field(100, ge=1, description="Passes of the training of --linear.")
    seed: int = Field(0, ge=0, description="Seed of the order in which --linear sees the rows.")

    @field_validator("k")
    @classmethod
    def _at_least_one(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or min(value) < 1:
            raise ValueError("must be numbers of neighbors from 1 on")
        return value


class EvaluateLinearConfig(GateConfig, LabelsOption, ScoresConfig):
    """``labelkit evaluate linear``."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "linear")

    gallery: str = Field("train", description="Split that the classifier is trained on.")
    queries: str = Field("test", description="Split that is scored.")
    solver: Literal["auto", "lbfgs", "sgd", "adamw"] = Field(
        "auto",
        description="lbfgs: logistic regression, solved to its end; sgd, adamw: passes in batches; auto = lbfgs up to "
        "20,000 rows, else sgd.",
    )
    l2: tuple[float, ...] = Field(
        (1e-3,),
        description="With lbfgs: penalty on the squared weights; of several, comma-separated, the best on a held-out "
        "fifth of the gallery is taken.",
    )
    lr: float | None = Field(
        None,
        gt=0,
        description="With sgd and adamw: highest learning rate on features of mean length 1; default: 10 and 0.01.",
    )
    epochs: int = Field(100, ge=1, description="With sgd and adamw: passes.")
    batch_size: int = Field(256, ge=1, description="With sgd and adamw: rows of a step.")
    seeds: int = Field(1, ge=1, le=100, description="With sgd and adamw: trainings, from --seed on.")
    seed: int = Field(0, ge=0, description="Seed of the order, and of the held-out fifth.")
    per_class: bool = Field(False, description="Also show the accuracy of every class.")

    @field_validator("l2")
    @classmethod
    def _penalties(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not value or min(value) < 0:
            raise ValueError("must be one penalty or several, 0 or above")
        return value


class EvaluateRetrievalConfig(GateConfig, ScoresConfig, MemoryConfig):
    """``labelkit evaluate retrieval``."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "retrieval")

    k: tuple[int, ...] = Field(
        (1, 2, 4, 8),
        description="Numbers of neighbors for Recall@K, comma-separated.",
        json_schema_extra={"short": "-k"},
    )
    split: tuple[str, ...] = Field(
        ("auto",),
        description="Splits whose rows look each other up, comma-separated, or all; auto: query against gallery if the "
        "store has these two, else test if there is one, else all.",
    )
    queries: str | None = Field(
        None, description="Instead of --split: split whose rows are looked up, or all.", json_schema_extra=_STORE
    )
    gallery: str | None = Field(
        None, description="Split whose rows are found, or all; goes with --queries or --gallery-index."
    )
    gallery_index: Path | None = Field(
        None,
        description="Store of the same model whose rows are found; default: the store itself.",
        json_schema_extra=_STORE,
    )
    at_r: bool = Field(True, description="Also MAP@R and R-precision.")
    nmi_seeds: int = Field(
        3, ge=0, le=100, description="k-means with as many groups as classes, from so many seeds; 0: no NMI."
    )
    per_class: bool = Field(False, description="Also show the means of every class.")
    max_memory: str = Field(
        "1.5GiB",
        description="Memory that the process may take in all, such as 2GiB or 500MB; a number alone is GiB.",
        json_schema_extra=_RUN,
    )
    threads: int | None = Field(
        None,
        ge=1,
        description="Blocks worked on at a time; default: OMP_NUM_THREADS, or the cores.",
        json_schema_extra=_RUN,
    )
    seed: int = Field(0, ge=0, description="First seed of k-means.")

    @model_validator(mode="after")
    def _one_protocol(self) -> EvaluateRetrievalConfig:
        if not self.k or min(self.k) < 1:
            raise ValueError("-k takes numbers of neighbors from 1 on")
        if not self.split:
            raise ValueError("--split is empty; leave it out for the default")
        if self.split != ("auto",) and (self.queries is not None or self.gallery_index is not None):
            raise ValueError("--split: rows look each other up; it has no meaning beside --queries or --gallery-index")
        if self.gallery is not None and self.queries is None and self.gallery_index is None:
            raise ValueError("--gallery goes with --queries or --gallery-index")
        if self.queries is not None and self.gallery is None and self.gallery_index is None:
            raise ValueError("--queries needs --gallery, or --gallery-index")
        return self


class EvaluateClassificationConfig(GateConfig):
    """``labelkit evaluate classification``."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "classification")

    checkpoint: Path | None = Field(
        None, description="Run folder of a trained classifier, or a checkpoint in it.", json_schema_extra=_STORE
    )
    which: Literal["last", "best"] = Field(
        "last", description="Checkpoint of a run folder: the last, or the one of lowest loss.", json_schema_extra=_STORE
    )
    data_root: Path | None = Field(
        None,
        description="With --checkpoint: folder where named sets live; default: as in training.",
        json_schema_extra=_STORE,
    )
    index: Path | None = Field(
        None,
        description="Instead of --checkpoint: a store that was embedded with a classifier's output.",
        json_schema_extra=_STORE,
    )
    result: str | None = Field(
        None,
        pattern=RESULT_NAME,
        description="With --index: also keep the scores as a result of this name; default: not kept.",
        json_schema_extra=_OUTPUT,
    )
    overwrite: bool = Field(False, description="Replace a result of this name.", json_schema_extra=_OUTPUT)
    split: str = Field("auto", description="Images to score: a split's name; auto = test, or val, if there is one.")
    groups: Literal["auto", "rank", "counts", "none"] = Field(
        "auto",
        description="Classes with many, medium and few training images. counts: above 100, 20 to 100, below 20; "
        "rank: 3, 4 and 3 of 10 or 36, 35 and 29 of 100 by their frequency, as published for CIFAR; auto: rank for 10 "
        "or 100 classes, else counts, and none if the largest class has less than twice the images of the smallest.",
    )
    seen_only: bool = Field(False, description="Never answer with a class that had no training image.")
    bootstrap: int = Field(1000, ge=0, description="Resamples for the 95 % intervals, over images; 0: no intervals.")
    seed: int = Field(0, ge=0, description="Seed of the resamples.")
    per_class: bool = Field(False, description="Also show the accuracy of every class.")
    confusion: Path | None = Field(
        None,
        description="Also write the confusion matrix to this CSV: a row per true class.",
        json_schema_extra=_OUTPUT,
    )
    batch_size: int = Field(
        256, ge=1, description="With --checkpoint: images per forward pass.", json_schema_extra=_RUN
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        "auto", description="With --checkpoint: where to compute.", json_schema_extra=_RUN
    )
    threads: int | None = Field(
        None, ge=1, description="CPU threads of torch; default: its own choice.", json_schema_extra=_RUN
    )

    @model_validator(mode="after")
    def _one_source(self) -> EvaluateClassificationConfig:
        if self.checkpoint is not None and self.index is not None:
            raise ValueError("give either --checkpoint (a run folder) or --index (a store)")
        if self.result is not None and self.checkpoint is not None:
            raise ValueError("--result goes with --index: it is written beside a store")
        if self.data_root is not None and self.index is not None:
            raise ValueError("--data-root goes with --checkpoint: a store holds all that is needed")
        return self


class PrototypesConfig(StageConfig):
    """``labelkit prototypes``."""

    command: ClassVar[tuple[str, ...]] = ("prototypes",)

    num_classes: int = Field(..., ge=2, le=100_000, description="Vectors to spread, one per class.")
    embed_dim: int = Field(..., ge=2, le=100_000, description="Dimensions of a vector.")
    method: Literal["auto", "optimize"] = Field(
        "auto",
        description="auto: the closed form where there is one (up to twice as many classes as dimensions, or two "
        "dimensions), else optimize; optimize: minimize the loss in any case.",
    )
    t: float = Field(2.0, gt=0, le=1e6, description="Sharpness of the loss (Eq. 5; 2 in the paper's code).")
    sharpest_t: float | None = Field(
        32768.0,
        gt=0,
        le=1e9,
        description="Then sharpen the loss step by step up to this, so that the largest cosine counts; "
        "none: the paper's loss alone.",
    )
    max_iterations: int = Field(200, ge=1, description="Iterations for every sharpness at the most.")
    num_inits: int = Field(1, ge=1, description="Starts; the best is taken. More help with few vectors.")
    seed: int = Field(0, ge=0, description="Seed of the start, or of rotation and order of a closed form.")
    device: Literal["cpu", "cuda"] = Field("cpu", description="Where to compute; cuda pays from about 2,000 classes.")
    cache: bool = Field(True, description="Look in the user's cache first, and keep there what was made.")
    out: Path | None = Field(
        None, description="File to write; default: prototypes-CLASSESxDIM.h5.", json_schema_extra=_OUTPUT
    )
    plot: Path | None = Field(None, description="Also draw the cosines to this PNG.", json_schema_extra=_OUTPUT)
    overwrite: bool = Field(False, description="Replace the file in --out.", json_schema_extra=_OUTPUT)


class MatchConfig(StageConfig):
    """``labelkit match``."""

    command: ClassVar[tuple[str, ...]] = ("match",)

    index: Path = Field(
        ...,
        description="Store whose embeddings say which images are worth comparing, NAME.h5.",
        json_schema_extra=_STORE,
    )
    split: str = Field("all", description="Rows to compare: a split's name, or all.", json_schema_extra=_STORE)
    dataset: str | None = Field(
        None,
        description="Where the images are, if they are no longer where embed read them.",
        json_schema_extra=_IMAGES,
    )
    data_root: Path = Field(
        Path("data"), description="Folder where named sets live (with --dataset).", json_schema_extra=_IMAGES
    )

    num_clusters: int | None = Field(
        None,
        ge=1,
        description="Compare only images of the same k-means cluster, of so many (TAC-CCL: as in training); default: "
        "all images.",
    )
    candidates: int = Field(20, ge=1, description="Compare every image with so many nearest ones.")
    partners: int = Field(2, ge=1, description="Keep so many for every image, those with most inliers.")
    shorter_side: int = Field(256, ge=32, le=2048, description="Images are resized to this, in pixels.")
    max_tilt: int = Field(
        3,
        ge=0,
        le=6,
        description="Simulated tilts, up to this power of the square root of 2; 0: none; 5 is OpenCV's default.",
    )
    max_keypoints: int = Field(2000, ge=8, description="Keypoints of an image, the strongest ones.")
    ratio: float = Field(
        0.75, gt=0, le=1, description="A match is closer than this share of the second best one's distance."
    )
    min_inliers: int = Field(15, ge=4, description="Matched keypoints that one homography must explain.")
    min_inlier_ratio: float = Field(
        0.5, gt=0, le=1, description="Share of the matched keypoints that one homography must explain."
    )
    seed: int = Field(0, ge=0, description="Seed of the clustering.")

    cache: bool = Field(
        True,
        description="Look in the user's cache first, and keep there what was found: the same command goes on where it "
        "was stopped.",
        json_schema_extra=_RUN,
    )
    threads: int | None = Field(
        None, ge=1, description="Images worked on at a time; default: one per CPU core.", json_schema_extra=_RUN
    )
    out: Path | None = Field(None, description="File to write; default: INDEX-matches.h5.", json_schema_extra=_OUTPUT)
    sheet: Path | None = Field(
        None, description="Also draw some of the matches to this PNG.", json_schema_extra=_OUTPUT
    )
    overwrite: bool = Field(False, description="Replace the file in --out.", json_schema_extra=_OUTPUT)


class DatasetsConfig(StageConfig):
    """``labelkit datasets``."""

    command: ClassVar[tuple[str, ...]] = ("datasets",)

    dataset: str | None = Field(None, description="Look at this one closely; default: all of them, briefly.")
    data_root: Path = Field(Path("data"), description="Folder where named sets live.")


class RetrieveConfig(IndexConfig, MemoryConfig):
    """``labelkit retrieve``."""

    command: ClassVar[tuple[str, ...]] = ("retrieve",)

    result: str | None = Field(
        None,
        pattern=RESULT_NAME,
        description="Also keep the hits as a result of this name beside the store; default: not kept.",
        json_schema_extra=_OUTPUT,
    )
    query: Path | None = Field(
        None,
        description="Image file, folder of images, or another store of the same model, to look up.",
        json_schema_extra=_STORE,
    )
    query_rows: tuple[int, ...] | None = Field(
        None,
        description="Instead of --query: these rows of the store, 0-based, comma-separated; needs no model.",
        json_schema_extra=_STORE,
    )
    patch: tuple[int, ...] | None = Field(
        None,
        description="Look up this patch of the query, row,column from the top left, among the patches of the index "
        "(made with embed --dense); the query is one image or one row.",
        json_schema_extra=_PATCHES,
    )
    pixel: tuple[float, ...] | None = Field(
        None,
        description="Instead of --patch: the patch at x,y, pixels of the original image.",
        json_schema_extra=_PATCHES,
    )
    own_image: bool = Field(
        False,
        description="Also find patches of the query image itself, if it is in the index.",
        json_schema_extra=_PATCHES,
    )
    k: int = Field(10, ge=1, description="Hits per query.", json_schema_extra={"short": "-k"})
    checkpoint: Path | None = Field(
        None, description="Model to embed the query with, if it is no longer where the store says."
    )
    label: tuple[str, ...] | None = Field(
        None, description="Only rows of these classes, comma-separated names.", json_schema_extra=_FILTER
    )
    split: tuple[str, ...] | None = Field(
        None, description="Only rows of these splits, comma-separated.", json_schema_extra=_FILTER
    )
    path_pattern: str | None = Field(
        None,
        description="Only images whose path in the store matches, such as 'cats/*.png'; * also matches /.",
        json_schema_extra=_FILTER,
    )
    skip_duplicates: bool = Field(
        False,
        description="Leave out duplicates of the query: the same file, or a cosine of 1 - 1e-6 or more.",
        json_schema_extra=_FILTER,
    )
    search: Literal["exact", "hnsw", "ivfpq"] = Field(
        "exact",
        description="exact: every row is compared; hnsw, ivfpq: by an index, built once and kept in the user's cache.",
        json_schema_extra=_SEARCH,
    )
    search_width: int | None = Field(
        None,
        ge=1,
        description="hnsw: candidates on the way; ivfpq: lists looked through. More find more; default: 128, 32.",
        json_schema_extra=_SEARCH,
    )
    rescore: int = Field(100, ge=1, description="ivfpq: candidates that are scored exactly.", json_schema_extra=_SEARCH)
    hnsw_links: int = Field(
        32, ge=2, le=512, description="hnsw: links per row of the graph.", json_schema_extra=_SEARCH
    )
    hnsw_build_width: int = Field(
        200,
        ge=1,
        description="hnsw: candidates while a row is linked; more take longer to build.",
        json_schema_extra=_SEARCH,
    )
    ivf_lists: int | None = Field(
        None,
        ge=1,
        description="ivfpq: lists that rows are sorted into; default: 4 sqrt(rows), at most rows / 39.",
        json_schema_extra=_SEARCH,
    )
    pq_bytes: int | None = Field(
        None,
        ge=1,
        description="ivfpq: bytes per row, a divisor of the dimensions; default: the largest up to a quarter of them.",
        json_schema_extra=_SEARCH,
    )
    csv: Path | None = Field(None, description="Also write the hits to this CSV.", json_schema_extra=_OUTPUT)
    sheet: Path | None = Field(None, description="Also draw query and hits to this PNG.", json_schema_extra=_OUTPUT)
    dataset: str | None = Field(
        None,
        description="Where the images are (for --sheet), if they are no longer where embed read them.",
        json_schema_extra=_IMAGES,
    )
    data_root: Path = Field(
        Path("data"), description="Folder where named sets live (with --dataset).", json_schema_extra=_IMAGES
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        "auto", description="Where to compute.", json_schema_extra=_RUN
    )

    @model_validator(mode="after")
    def _one_query(self) -> RetrieveConfig:
        if (self.query is None) == (self.query_rows is None):
            raise ValueError("give either --query (an image, a folder, a store) or --query-rows")
        if self.query_rows is not None and (not self.query_rows or min(self.query_rows) < 0):
            raise ValueError("--query-rows takes rows from 0 on")
        for name in ("label", "split"):
            if getattr(self, name) == ():
                raise ValueError(f"{flag(name)} is empty; leave it out for all rows")
        self._check_patch()
        return self

    def _check_patch(self) -> None:
        if self.patch is not None and self.pixel is not None:
            raise ValueError("give either --patch (row,column) or --pixel (x,y)")
        for name in ("patch", "pixel"):
            place = getattr(self, name)
            if place is not None and (len(place) != 2 or min(place) < 0):
                raise ValueError(f"{flag(name)} takes two numbers from 0 on, such as 3,4")
        if self.patch is None and self.pixel is None:
            if self.own_image:
                raise ValueError("--own-image goes with --patch or --pixel")
            return
        if self.search != "exact":
            raise ValueError("patches are searched exactly; leave out --search")
        if self.query_rows is not None and len(self.query_rows) != 1:
            raise ValueError("a patch is looked up in one image: give one of --query-rows")


class PictureConfig(StageConfig):
    """A command that draws one picture."""

    out: Path = Field(..., description="PNG to write.", json_schema_extra=_OUTPUT)
    overwrite: bool = Field(False, description="Replace the picture in --out.", json_schema_extra=_OUTPUT)


class ShowImagesConfig(PictureConfig):
    """A picture of what a run does with a few images."""

    checkpoint: Path = Field(
        ..., description="Run folder of `labelkit train`, or a checkpoint in it.", json_schema_extra=_MODEL
    )
    which: Literal["last", "best"] = Field(
        "last", description="Checkpoint of a run folder: the last, or the one of lowest loss.", json_schema_extra=_MODEL
    )
    num_images: int | None = Field(
        None,
        ge=1,
        description="Draw so many images of the set, chosen by --seed; default: 4.",
        json_schema_extra=_IMAGES,
    )
    rows: tuple[int, ...] | None = Field(
        None,
        description="Instead of --num-images: these rows of the data set, 0-based, comma-separated.",
        json_schema_extra=_IMAGES,
    )
    image: tuple[Path, ...] | None = Field(
        None, description="Instead of --num-images: these image files, comma-separated.", json_schema_extra=_IMAGES
    )
    dataset: str | None = Field(
        None,
        description="Take images of this data set; default: the run's own.",
        json_schema_extra=_IMAGES,
    )
    data_root: Path | None = Field(
        None, description="Folder where named sets live; default: the run's.", json_schema_extra=_IMAGES
    )
    split: str | None = Field(
        None, description="Part of the set: a split's name, or all; default: the run's.", json_schema_extra=_IMAGES
    )
    seed: int = Field(0, ge=0, description="Seed of the images drawn and of the views.", json_schema_extra=_RUN)
    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        "auto", description="Where to compute.", json_schema_extra=_RUN
    )

    @model_validator(mode="after")
    def _one_choice_of_images(self) -> ShowImagesConfig:
        chosen = [name for name in ("num_images", "rows", "image") if getattr(self, name) is not None]
        if len(chosen) > 1:
            named = " and ".join(flag(name) for name in chosen)
            raise ValueError(f"choose images by one of --num-images, --rows and --image, not by {named}")
        for name in ("rows", "image"):
            if getattr(self, name) == ():
                raise ValueError(f"{flag(name)} is empty; leave it out for the default")
        from_set = [flag(name) for name in ("dataset", "data_root", "split") if getattr(self, name) is not None]
        if self.image is not None and from_set:
            raise ValueError(f"{' and '.join(from_set)} has no meaning beside --image")
        return self


class ShowAttentionConfig(ShowImagesConfig):
    """``labelkit show attention``."""

    command: ClassVar[tuple[str, ...]] = ("show", "attention")

    block: tuple[int, ...] | None = Field(
        None,
        description="Blocks to look at, 0-based, comma-separated; default: those whose keys move, and the last.",
        json_schema_extra=_MODEL,
    )
    heads: bool = Field(False, description="Also draw every head by itself.", json_schema_extra=_RUN)

    @field_validator("block")
    @classmethod
    def _some_block(cls, blocks: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if blocks == ():
            raise ValueError("empty; leave it out for the default")
        return blocks


class ShowAssemblyConfig(ShowImagesConfig):
    """``labelkit show assembly``."""

    command: ClassVar[tuple[str, ...]] = ("show", "assembly")

    min_weight: float = Field(
        0.2, gt=0, lt=1, description="Moves of a larger weight are drawn as arrows.", json_schema_extra=_RUN
    )
    max_arrows: int = Field(
        12, ge=1, le=200, description="Arrows of an image at most, the heaviest.", json_schema_extra=_RUN
    )


class ShowPatchesConfig(PictureConfig):
    """``labelkit show patches``."""

    command: ClassVar[tuple[str, ...]] = ("show", "patches")

    index: Path = Field(..., description="Store made with embed --dense, NAME.h5.", json_schema_extra=_STORE)
    rows: tuple[int, ...] | None = Field(
        None, description="Rows of the store to draw, 0-based, comma-separated.", json_schema_extra=_IMAGES
    )
    num_images: int | None = Field(
        None,
        ge=1,
        le=100,
        description="Draw so many rows, chosen by --seed, instead; default: 4.",
        json_schema_extra=_IMAGES,
    )
    patch: tuple[int, ...] | None = Field(
        None,
        description="Patch of the first image that the others are compared with, row,column; default: the middle.",
        json_schema_extra=_PATCHES,
    )
    dataset: str | None = Field(
        None,
        description="Where the images are, if they are no longer where embed read them.",
        json_schema_extra=_IMAGES,
    )
    data_root: Path = Field(
        Path("data"), description="Folder where named sets live (with --dataset).", json_schema_extra=_IMAGES
    )
    seed: int = Field(0, ge=0, description="Seed of the rows drawn.", json_schema_extra=_RUN)

    @model_validator(mode="after")
    def _one_choice_of_rows(self) -> ShowPatchesConfig:
        if self.rows is not None and self.num_images is not None:
            raise ValueError("choose images by --rows or by --num-images")
        if self.rows is not None and (not self.rows or min(self.rows) < 0):
            raise ValueError("--rows takes rows of the store from 0 on")
        if self.patch is not None and (len(self.patch) != 2 or min(self.patch) < 0):
            raise ValueError("--patch takes two numbers from 0 on, such as 3,4")
        return self


class ShowPrototypesConfig(ShowImagesConfig):
    """``labelkit show prototypes``."""

    command: ClassVar[tuple[str, ...]] = ("show", "prototypes")

    num_prototypes: int = Field(
        6,
        ge=1,
        le=64,
        description="Prototypes to draw: those with most attention in these images.",
        json_schema_extra=_RUN,
    )


class ShowCurvesConfig(PictureConfig):
    """``labelkit show curves``."""

    command: ClassVar[tuple[str, ...]] = ("show", "curves")

    run: tuple[Path, ...] = Field(
        ..., min_length=1, description="Run folders of `labelkit train`, comma-separated; drawn into the same axes."
    )
    metrics: tuple[str, ...] | None = Field(
        None,
        description="Names as logged, comma-separated, patterns allowed (diag/*/update_rel); "
        "default: loss, and the accuracies if there are any.",
    )
    over: Literal["step", "epoch"] = Field("step", description="What runs to the right.")

"""Options of CoTAP: patches that group by object, from order-preserving similarities between images."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from labelkit.config.base import with_default
from labelkit.config.data import DataConfig
from labelkit.config.representation import RepresentationRunConfig
from labelkit.config.train import StepRunConfig

_DATA: JsonDict = {"panel": "Data"}
_MODEL: JsonDict = {"panel": "Model"}
_FILTER: JsonDict = {"panel": "Object-aware filter"}
_VIEWS: JsonDict = {"panel": "Views"}
_TERMS: JsonDict = {"panel": "Loss terms"}
_ASSIGNMENT: JsonDict = {"panel": "Assignments"}
_RANKING: JsonDict = {"panel": "Ranking"}
_NEIGHBORS: JsonDict = {"panel": "Neighbors"}
_OPTIMIZATION: JsonDict = {"panel": "Optimization"}

NO_DATASET = "none"


class DenseModelOptions(RepresentationRunConfig):
    """Backbone, filter and projector."""

    backbone: str = Field(
        "vit_small_patch16_224.dino",
        description="A plain ViT with a class token (`labelkit list backbones`).",
        json_schema_extra=_MODEL,
    )
    drop_path: float = Field(
        0.1, ge=0, lt=1, description="Stochastic depth of the student (DINO).", json_schema_extra=_MODEL
    )
    projector_dims: tuple[int, int] = Field(
        (2048, 256),
        description="Width of the projector's two hidden layers, and of its output.",
        json_schema_extra=_MODEL,
    )
    projector_init: Literal["scratch", "checkpoint"] = Field(
        "checkpoint",
        description="Where the projector starts: anew, or from the head in --weights or --init-from, if there is one "
        "(DINO's full checkpoint, iBOT, Mugs, Leopart, a run of cotap).",
        json_schema_extra=_MODEL,
    )
    branch: Literal["online", "target"] = Field(
        "online", description="Network that embeds after training.", json_schema_extra=_MODEL
    )
    image_features: Literal["backbone", "filtered"] = Field(
        "backbone",
        description="Features of an image: the class token before or after the filter.",
        json_schema_extra=_MODEL,
    )

    filter: bool = Field(
        True, description="Put the object-aware filter behind the backbone.", json_schema_extra=_FILTER
    )
    filter_prototypes: int = Field(64, ge=1, description="Object prototypes.", json_schema_extra=_FILTER)
    filter_kernel: int = Field(
        3, ge=1, description="Side of the object prototypes in patches, odd.", json_schema_extra=_FILTER
    )
    filter_fuse: Literal["concat", "project"] = Field(
        "concat",
        description="Features and answer of the filter side by side (paper), or mapped back to the width of the former "
        "(ours; the identity at first).",
        json_schema_extra=_FILTER,
    )
    filter_ssl_gradients: bool = Field(
        False,
        description="Let all terms move the prototypes; else only their own (the paper does not say).",
        json_schema_extra=_FILTER,
    )


class DenseViewOptions(DenseModelOptions):
    """Views."""

    num_local_views: int = Field(
        4, ge=0, description="Small views beside the two large ones.", json_schema_extra=_VIEWS
    )
    local_size: int = Field(96, ge=8, description="Side of a small view in pixels.", json_schema_extra=_VIEWS)
    global_scale: tuple[float, float] = Field(
        (0.25, 1.0), description="Share of the image in a large view (Leopart).", json_schema_extra=_VIEWS
    )
    local_scale: tuple[float, float] = Field(
        (0.05, 0.25), description="Share of the image in a small view (Leopart).", json_schema_extra=_VIEWS
    )
    min_overlap: tuple[float, float] = Field(
        (0.02, 0.01),
        description="Smallest share of the image that the two large views have in common, and that a small view "
        "shares with each.",
        json_schema_extra=_VIEWS,
    )
    min_roi_tokens: float = Field(
        1.0,
        gt=0,
        description="Overlaps with a side of fewer tokens are left out of dense terms.",
        json_schema_extra=_VIEWS,
    )
    augmentation: Literal["dino", "paper", "none"] = Field(
        "dino",
        description="Colors. dino: jitter, gray, blur, solarize; paper: without the last, which it does not name.",
        json_schema_extra=_VIEWS,
    )


class CoTAPConfig(DenseViewOptions, StepRunConfig):
    """``labelkit train cotap``; defaults are those of the paper, or as the description says."""

    command: ClassVar[tuple[str, ...]] = ("train", "cotap")

    dataset: str = Field(
        "scene_objects",
        description="Images of one object each: a registered name, a folder, or a CSV as for other methods; none: only "
        "--scene-dataset.",
        json_schema_extra=_DATA,
    )
    scene_dataset: str | None = Field(
        None,
        description="Images of several objects, for the dense terms only: likewise, or none.",
        json_schema_extra=_DATA,
    )
    scene_split: str = Field("auto", description="Part of --scene-dataset to use, as --split.", json_schema_extra=_DATA)
    object_batch_size: int | None = Field(
        None,
        ge=0,
        description="Images of --dataset in a batch; default: half of --batch-size, all of it without --scene-dataset.",
        json_schema_extra=_DATA,
    )

    steps: int = Field(100_000, ge=1, description="Updates of the student.", json_schema_extra=_OPTIMIZATION)
    batch_size: int = Field(
        256, ge=2, description="Images per step, over all processes.", json_schema_extra=_OPTIMIZATION
    )
    optimizer: Literal["sgd", "adam", "adamw"] = with_default(StepRunConfig, "optimizer", "adamw")
    lr: float = Field(
        3e-5,
        gt=0,
        description="Highest learning rate; DINO makes it proportional to the batch.",
        json_schema_extra=_OPTIMIZATION,
    )
    lr_final: float = Field(1e-6, ge=0, description="Last learning rate (cosine).", json_schema_extra=_OPTIMIZATION)
    lr_warmup_steps: int = Field(
        0, ge=0, description="Steps of linear growth at the start.", json_schema_extra=_OPTIMIZATION
    )
    head_lr_mult: float = Field(
        1.0,
        gt=0,
        description="Learning rate of filter and projector over that of the backbone.",
        json_schema_extra=_OPTIMIZATION,
    )
    weight_decay: float = Field(
        0.024,
        ge=0,
        description="Weight decay at the start; biases, one-dimensional parameters and filter prototypes have none.",
        json_schema_extra=_OPTIMIZATION,
    )
    weight_decay_final: float = Field(
        0.24, ge=0, description="Weight decay at the end (cosine).", json_schema_extra=_OPTIMIZATION
    )
    clip_grad_norm: float | None = Field(
        3.0, gt=0, description="Largest length of the gradient (DINO).", json_schema_extra=_OPTIMIZATION
    )
    ema_start: float = Field(
        0.9997, ge=0, le=1, description="Decay of the target network at the start.", json_schema_extra=_OPTIMIZATION
    )
    ema_end: float = Field(
        1.0, ge=0, le=1, description="Decay of the target network at the end (cosine).", json_schema_extra=_OPTIMIZATION
    )

    image_alignment: float = Field(
        1.0, ge=0, description="Weight of the alignment of class tokens (lambda-bar 1).", json_schema_extra=_TERMS
    )
    patch_alignment: float = Field(
        1.0, ge=0, description="Weight of the alignment of patches (lambda 1).", json_schema_extra=_TERMS
    )
    image_concentration: float = Field(
        1.0, ge=0, description="Weight of the pull toward neighbor images (lambda-bar 2).", json_schema_extra=_TERMS
    )
    patch_ranking: float = Field(
        1.0, ge=0, description="Weight of the ranking of patch similarities (lambda 2).", json_schema_extra=_TERMS
    )
    prototype_entropy: float = Field(
        1.0, ge=0, description="Weight of the loss of the filter's prototypes (lambda 3).", json_schema_extra=_TERMS
    )

    student_temperature: float = Field(
        0.1, gt=0, description="Softmax temperature of the student (DINO, Leopart).", json_schema_extra=_ASSIGNMENT
    )
    assign: Literal["feature", "prototypes"] = Field(
        "feature",
        description="What assignments are made to: the dimensions of the projection, or --num-prototypes learned rows "
        "(Leopart).",
        json_schema_extra=_ASSIGNMENT,
    )
    num_prototypes: int = Field(300, ge=2, description="Rows of prototypes.", json_schema_extra=_ASSIGNMENT)
    sk_epsilon: float = Field(0.05, gt=0, description="Entropy weight of Sinkhorn.", json_schema_extra=_ASSIGNMENT)
    sk_iterations: int = Field(3, ge=1, description="Iterations of Sinkhorn.", json_schema_extra=_ASSIGNMENT)
    sk_order: Literal["roi-first", "sk-first"] = Field(
        "roi-first",
        description="Sinkhorn on the aligned patches (paper), or on whole maps that are aligned afterwards (Leopart).",
        json_schema_extra=_ASSIGNMENT,
    )
    sk_queue: int = Field(
        0,
        ge=0,
        description="Class tokens of past batches that take part in Sinkhorn, once there are enough. For batches "
        "with fewer rows than three times the clusters.",
        json_schema_extra=_ASSIGNMENT,
    )

    roi_size: int = Field(7, ge=1, description="Cells along a side of an aligned overlap.", json_schema_extra=_RANKING)
    ranking_loss: Literal["cotap", "bce", "ap-t"] = Field(
        "cotap",
        description="By order (paper); by value; or by order for targets of --ranking-threshold and more against all "
        "others.",
        json_schema_extra=_RANKING,
    )
    ranking_threshold: float = Field(
        0.8,
        ge=0,
        le=1,
        description="Least similarity of the targets that --ranking-loss ap-t ranks above all others.",
        json_schema_extra=_RANKING,
    )
    ranking_floor: float = Field(
        -0.2, description="Targets weigh by how far they are above this (tau 1).", json_schema_extra=_RANKING
    )
    ranking_margin: float = Field(
        0.5, gt=0, description="Gap of similarities that is enough (tau 2).", json_schema_extra=_RANKING
    )
    ranking_views: Literal["aligned", "same"] = Field(
        "aligned",
        description="Compare patches of the overlap of two views, or all patches of one view that both networks see.",
        json_schema_extra=_RANKING,
    )
    ranking_targets: Literal["projector", "backbone"] = Field(
        "projector", description="Features that the target similarities are of.", json_schema_extra=_RANKING
    )
    ranking_pairs: Literal["random", "knn"] = Field(
        "random",
        description="Image pairs: at random within the batch of a process, or the most similar one there.",
        json_schema_extra=_RANKING,
    )
    ranking_subsample: int | None = Field(
        None,
        ge=2,
        description="Pairs of patches to rank, drawn anew at each step. Default: all. With fewer, top pairs are "
        "ranked too mildly.",
        json_schema_extra=_RANKING,
    )
    ranking_max_gib: float = Field(
        1.0, gt=0, description="Most memory of the ranking loss, in GiB.", json_schema_extra=_RANKING
    )
    prototype_temperature: float = Field(
        0.1, gt=0, description="Temperature of a prototype's attention over images (tau 3).", json_schema_extra=_FILTER
    )
    prototype_gather: bool = Field(
        False,
        description="Let the loss of the filter's prototypes see the images of all processes.",
        json_schema_extra=_FILTER,
    )

    num_neighbors: int = Field(
        10,
        ge=1,
        description="Neighbors that an image is pulled toward (ours; not published).",
        json_schema_extra=_NEIGHBORS,
    )
    neighbors: Path | None = Field(
        None,
        description="File of neighbors to use; it is made if it is missing. Default: in the run folder. Neighbors "
        "are found once, with the target network at the start.",
        json_schema_extra=_NEIGHBORS,
    )

    @property
    def main_dataset(self) -> str:
        """The set that a run is called after."""
        return self.dataset if self.has_objects else str(self.scene_dataset)

    @property
    def has_objects(self) -> bool:
        """Whether there are images of one object."""
        return self.dataset != NO_DATASET

    def scenes(self) -> DataConfig | None:
        """Return the options of ``scene_dataset``: all of its images, whatever the other set leaves out."""
        if self.scene_dataset is None:
            return None
        whole: dict[str, object] = {"holdout": None, "pool_splits": False, "holdout_classes": None}
        whole["max_per_class"] = None
        return self.model_copy(update={"dataset": self.scene_dataset, "split": self.scene_split, **whole})

    def shortened(self, fraction: float) -> dict[str, object]:
        """Return fewer steps, also of the warm-up."""
        return super().shortened(fraction) | self._scaled(fraction, "lr_warmup_steps", least=0)

    @property
    def objects_per_batch(self) -> int:
        """Images of ``dataset`` in a batch, over all processes."""
        if not self.has_objects:
            return 0
        if self.object_batch_size is not None:
            return self.object_batch_size
        return self.batch_size if self.scene_dataset is None else self.batch_size // 2

    @property
    def num_epochs(self) -> int:
        """Stretches between two evaluations."""
        return -(-self.steps // self.eval_every_steps)

    @model_validator(mode="after")
    def _check_terms(self) -> CoTAPConfig:
        terms = ("image_alignment", "patch_alignment", "image_concentration", "patch_ranking", "prototype_entropy")
        if not any(getattr(self, name) for name in terms):
            raise ValueError("all terms have weight 0, so there is nothing to learn")
        if self.prototype_entropy and not self.filter:
            raise ValueError("prototype_entropy needs the filter; pass prototype_entropy 0 or filter")
        if self.filter_kernel % 2 == 0:
            raise ValueError(f"filter_kernel must be odd, got {self.filter_kernel}")
        if self.image_features == "filtered" and not self.filter:
            raise ValueError("image_features filtered needs the filter")
        if self.lr_warmup_steps >= self.steps:
            raise ValueError(f"lr_warmup_steps ({self.lr_warmup_steps}) must be smaller than steps ({self.steps})")
        if min(self.projector_dims) < 2:
            raise ValueError(f"projector_dims must be at least 2, got {min(self.projector_dims)}")
        for name in ("global_scale", "local_scale"):
            low, high = getattr(self, name)
            if not 0 < low <= high <= 1:
                raise ValueError(f"{name} must be ordered in (0, 1], got {low},{high}")
        if not all(0 < share < 1 for share in self.min_overlap):
            raise ValueError("min_overlap must be shares above 0 and below 1")
        return self

    @model_validator(mode="after")
    def _check_owners(self) -> CoTAPConfig:
        owners = {"num_prototypes": ("assign", "prototypes"), "ranking_threshold": ("ranking_loss", "ap-t")}
        for name, (owner, value) in owners.items():
            if getattr(self, owner) != value and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name} has no meaning for {owner} {getattr(self, owner)}; it goes with {owner} {value}"
                )
        return self

    @model_validator(mode="after")
    def _check_data(self) -> CoTAPConfig:
        if not self.has_objects and self.scene_dataset is None:
            raise ValueError("dataset none needs a scene_dataset")
        for name in ("image_alignment", "image_concentration", "prototype_entropy"):
            if getattr(self, name) and self.objects_per_batch == 0:
                raise ValueError(
                    f"{name} {getattr(self, name):g} needs images of one object; pass {name} 0 or a dataset"
                )
        objects = self.objects_per_batch
        if objects > self.batch_size or (self.scene_dataset is None and objects != self.batch_size):
            raise ValueError(
                f"object_batch_size {objects} does not fit batch_size {self.batch_size}"
                + ("" if self.scene_dataset else " without a scene_dataset")
            )
        if self.scene_dataset is not None and objects == self.batch_size:
            raise ValueError("scene_dataset has no share of a batch; lower object_batch_size")
        return self

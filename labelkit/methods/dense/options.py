"""Options of methods whose student learns from its own moving average: networks, crops, images, schedules; CoTAP's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from labelkit.options.base import with_default
from labelkit.options.data import DataConfig
from labelkit.options.representation import RepresentationRunConfig
from labelkit.options.training import StepRunConfig

_DATA: JsonDict = {"panel": "Data"}
_MODEL: JsonDict = {"panel": "Model"}
_VIEWS: JsonDict = {"panel": "Views"}
_OPTIMIZATION: JsonDict = {"panel": "Optimization"}
_FILTER: JsonDict = {"panel": "Object-aware filter"}
_TERMS: JsonDict = {"panel": "Loss terms"}
_ASSIGNMENT: JsonDict = {"panel": "Assignments"}
_RANKING: JsonDict = {"panel": "Ranking"}
_NEIGHBORS: JsonDict = {"panel": "Neighbors"}

NO_DATASET = "none"


class SlowTargetConfig(RepresentationRunConfig, StepRunConfig):
    """Options of methods with an EMA target: networks, crops, data sets and cosine schedules."""

    constants: ClassVar[Mapping[str, object]] = {
        "scene_split": "auto",
        "object_batch_size": None,
        "head_lr_mult": 1.0,
    }

    backbone: str = Field(
        "vit_small_patch16_224.dino",
        description="A plain ViT with a class token (`labelkit list backbones`).",
        json_schema_extra=_MODEL,
    )
    drop_path: float = Field(
        0.1, ge=0, lt=1, description="Stochastic depth rate of the student (DINO).", json_schema_extra=_MODEL
    )
    projector_dims: tuple[int, int] = Field(
        (2048, 256),
        description="Width of the projector's two hidden layers, and of its output.",
        json_schema_extra=_MODEL,
    )
    projector_init: Literal["scratch", "checkpoint"] = Field(
        "checkpoint",
        description="Initialization of the projector. scratch: random; checkpoint: from the head in --weights or "
        "--init-from, if there is a head (in DINO's full checkpoint, iBOT, Mugs, Leopart, cotap runs).",
        json_schema_extra=_MODEL,
    )
    branch: Literal["online", "target"] = Field(
        "online", description="Network used for embedding after training.", json_schema_extra=_MODEL
    )

    num_local_views: int = Field(
        4, ge=0, description="Number of local crops in addition to the two global crops.", json_schema_extra=_VIEWS
    )
    local_size: int = Field(96, ge=8, description="Size of a local view in pixels.", json_schema_extra=_VIEWS)
    global_scale: tuple[float, float] = Field(
        (0.25, 1.0), description="Range of area fractions for global crops (as in Leopart).", json_schema_extra=_VIEWS
    )
    local_scale: tuple[float, float] = Field(
        (0.05, 0.25), description="Range of area fractions for local crops (as in Leopart).", json_schema_extra=_VIEWS
    )

    dataset: str = Field(
        "digits",
        description="Images with one object each: a registered name, a folder, or a CSV, as for other methods; "
        "none: use only --scene-dataset.",
        json_schema_extra=_DATA,
    )
    scene_dataset: str | None = Field(
        None,
        description="Images with several objects, specified like --dataset, or none. In cotap, only the dense loss "
        "terms use these images.",
        json_schema_extra=_DATA,
    )

    steps: int = Field(100_000, ge=1, description="Number of training steps.", json_schema_extra=_OPTIMIZATION)
    batch_size: int = Field(
        256, ge=2, description="Batch size, summed over all processes.", json_schema_extra=_OPTIMIZATION
    )
    optimizer: Literal["sgd", "adam", "adamw"] = with_default(StepRunConfig, "optimizer", "adamw")
    lr: float = Field(
        3e-5,
        gt=0,
        description="Peak learning rate (in DINO, proportional to the batch size).",
        json_schema_extra=_OPTIMIZATION,
    )
    lr_final: float = Field(
        1e-6, ge=0, description="Final learning rate of the cosine schedule.", json_schema_extra=_OPTIMIZATION
    )
    lr_warmup_steps: int = Field(
        0, ge=0, description="Number of linear warm-up steps.", json_schema_extra=_OPTIMIZATION
    )
    weight_decay: float = Field(
        0.024,
        ge=0,
        description="Weight decay at the start; biases, one-dimensional parameters and filter prototypes are not "
        "decayed.",
        json_schema_extra=_OPTIMIZATION,
    )
    weight_decay_final: float = Field(
        0.24, ge=0, description="Final weight decay of the cosine schedule.", json_schema_extra=_OPTIMIZATION
    )
    clip_grad_norm: float | None = Field(
        3.0, gt=0, description="Maximum gradient norm (DINO).", json_schema_extra=_OPTIMIZATION
    )
    ema_start: float = Field(
        0.9997, ge=0, le=1, description="EMA decay of the target network at the start.", json_schema_extra=_OPTIMIZATION
    )
    ema_end: float = Field(
        1.0,
        ge=0,
        le=1,
        description="EMA decay of the target network at the end of the cosine schedule.",
        json_schema_extra=_OPTIMIZATION,
    )

    @property
    def main_dataset(self) -> str:
        """Return the data set that a run is named after."""
        return self.dataset if self.has_objects else str(self.scene_dataset)

    @property
    def has_objects(self) -> bool:
        """Return whether images of single objects are used."""
        return self.dataset != NO_DATASET

    def scenes(self) -> DataConfig | None:
        """Return the options for all images of ``scene_dataset``, or ``None`` without one."""
        if self.scene_dataset is None:
            return None
        whole: dict[str, object] = {"holdout": None, "pool_splits": False, "holdout_classes": None}
        whole["max_per_class"] = None
        return self.model_copy(update={"dataset": self.scene_dataset, "split": "auto", **whole})

    def shortened(self, fraction: float) -> dict[str, object]:
        """Return options with fewer steps and a shorter warm-up."""
        return super().shortened(fraction) | self._scaled(fraction, "lr_warmup_steps", least=0)

    @property
    def objects_per_batch(self) -> int:
        """Return the number of images of ``dataset`` per batch of all processes: half of it with scenes (Sec. 5.1)."""
        if not self.has_objects:
            return 0
        return self.batch_size if self.scene_dataset is None else self.batch_size // 2

    @property
    def num_epochs(self) -> int:
        """Return the number of evaluation intervals of the run."""
        return -(-self.steps // self.eval_every_steps)

    @model_validator(mode="after")
    def _check_ranges(self) -> SlowTargetConfig:
        if min(self.projector_dims) < 2:
            raise ValueError(f"projector_dims must be at least 2, got {min(self.projector_dims)}")
        for name in ("global_scale", "local_scale"):
            low, high = getattr(self, name)
            if not 0 < low <= high <= 1:
                raise ValueError(f"{name} must be ordered in (0, 1], got {low},{high}")
        if self.lr_warmup_steps >= self.steps:
            raise ValueError(f"lr_warmup_steps ({self.lr_warmup_steps}) must be smaller than steps ({self.steps})")
        return self

    @model_validator(mode="after")
    def _check_shares(self) -> SlowTargetConfig:
        if not self.has_objects and self.scene_dataset is None:
            raise ValueError("dataset none requires a scene_dataset")
        return self


class CoTAPConfig(SlowTargetConfig):
    """Options of ``labelkit train cotap``, with defaults of the paper unless described otherwise."""

    command: ClassVar[tuple[str, ...]] = ("train", "cotap")
    constants: ClassVar[Mapping[str, object]] = {
        "filter_fuse": "concat",
        "filter_kernel": 3,
        "filter_ssl_gradients": False,
        "min_roi_tokens": 1.0,
        "image_features": "backbone",
        "min_overlap": (0.02, 0.01),
        "sk_epsilon": 0.05,
        "sk_iterations": 3,
        "ranking_threshold": 0.8,
        "ranking_floor": -0.2,
        "ranking_margin": 0.5,
        "prototype_temperature": 0.1,
        "assign": "feature",
        "num_prototypes": 300,
        "sk_order": "roi-first",
        "sk_queue": 0,
        "ranking_targets": "projector",
        "ranking_pairs": "random",
        "ranking_subsample": None,
        "ranking_max_gib": 1.0,
        "prototype_gather": False,
    }

    dataset: str = with_default(SlowTargetConfig, "dataset", "scene_objects")

    filter: bool = Field(True, description="Add the object-aware filter after the backbone.", json_schema_extra=_FILTER)
    filter_prototypes: int = Field(64, ge=1, description="Number of object prototypes.", json_schema_extra=_FILTER)

    augmentation: Literal["dino", "paper", "none"] = Field(
        "dino",
        description="Color augmentation. dino: color jitter, grayscale, blur, solarize; paper: the same without "
        "solarize, which the paper does not mention.",
        json_schema_extra=_VIEWS,
    )

    image_alignment: float = Field(
        1.0, ge=0, description="Weight of the class-token alignment (paper: lambda-bar 1).", json_schema_extra=_TERMS
    )
    patch_alignment: float = Field(
        1.0, ge=0, description="Weight of the patch alignment loss (paper: lambda 1).", json_schema_extra=_TERMS
    )
    image_concentration: float = Field(
        1.0,
        ge=0,
        description="Weight of the loss that pulls images toward their neighbors (paper: lambda-bar 2).",
        json_schema_extra=_TERMS,
    )
    patch_ranking: float = Field(
        1.0, ge=0, description="Weight of the patch ranking loss (paper: lambda 2).", json_schema_extra=_TERMS
    )
    prototype_entropy: float = Field(
        1.0, ge=0, description="Weight of the filter's prototype loss (paper: lambda 3).", json_schema_extra=_TERMS
    )

    student_temperature: float = Field(
        0.1, gt=0, description="Softmax temperature of the student (DINO, Leopart).", json_schema_extra=_ASSIGNMENT
    )
    roi_size: int = Field(
        7,
        ge=1,
        description="Number of cells along each side of the grid on which the overlap of two views is compared.",
        json_schema_extra=_RANKING,
    )
    ranking_loss: Literal["cotap", "bce"] = Field(
        "cotap",
        description="Ranking loss. cotap: on the order of similarities, as in the paper; bce: on their values.",
        json_schema_extra=_RANKING,
    )
    ranking_views: Literal["aligned", "same"] = Field(
        "aligned",
        description="Patches that the ranking loss compares. aligned: in the overlap of two views; same: all patches "
        "of one view that both networks see.",
        json_schema_extra=_RANKING,
    )

    num_neighbors: int = Field(
        10,
        ge=1,
        description="Number of neighbors that an image is pulled toward (our choice; not in the paper).",
        json_schema_extra=_NEIGHBORS,
    )
    neighbors: Path | None = Field(
        None,
        description="File with each image's neighbors; created if missing. Default: a file in the run folder. "
        "Neighbors are computed once, with the initial target network.",
        json_schema_extra=_NEIGHBORS,
    )

    @model_validator(mode="after")
    def _check_terms(self) -> CoTAPConfig:
        terms = ("image_alignment", "patch_alignment", "image_concentration", "patch_ranking", "prototype_entropy")
        if not any(getattr(self, name) for name in terms):
            raise ValueError("all terms have weight 0, so there is nothing to learn")
        if self.prototype_entropy and not self.filter:
            raise ValueError("prototype_entropy requires the filter: pass prototype_entropy 0, or filter")
        return self

    @model_validator(mode="after")
    def _check_data(self) -> CoTAPConfig:
        for name in ("image_alignment", "image_concentration", "prototype_entropy"):
            if getattr(self, name) and self.objects_per_batch == 0:
                raise ValueError(
                    f"{name} {getattr(self, name):g} needs images with a single object: pass {name} 0, or a dataset"
                )
        return self

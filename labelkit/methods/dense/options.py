"""Options for methods with an EMA target network: shared options, and those of CoTAP, DINO and iBOT."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from labelkit.options.base import field_factory, override_default
from labelkit.options.data import DataConfig
from labelkit.options.representation import RepresentationRunConfig
from labelkit.options.training import StepRunConfig

_DATA = field_factory("Data")
_MODEL = field_factory("Model")
_VIEWS = field_factory("Views")
_OPTIMIZATION = field_factory("Optimization")
_FILTER = field_factory("Object-aware filter")
_TERMS = field_factory("Loss terms")
_ASSIGNMENT = field_factory("Assignments")
_RANKING = field_factory("Ranking")
_NEIGHBORS = field_factory("Neighbors")

NO_DATASET = "none"


class EMATargetConfig(RepresentationRunConfig, StepRunConfig):
    """Options for methods with an EMA target network: networks, crops, datasets and cosine schedules."""

    scaled: ClassVar[Mapping[str, int]] = {"lr_warmup_steps": 0}
    acts_with: ClassVar[Mapping[str, tuple[Any, ...]]] = {"local_scale": ("num_local_views",)}

    backbone: str = _MODEL("vit_small_patch16_224.dino", "Plain ViT with a class token; see `labelkit list backbones`.")
    drop_path: float = _MODEL(0.1, "Stochastic depth rate of the student (default as in DINO).", ge=0, lt=1)
    projector_dims: tuple[int, int] = _MODEL(
        (2048, 256), "Width of the projector's two hidden layers, and its output dimension."
    )
    branch: Literal["online", "target"] = _MODEL("online", "Network used for embedding after training.")

    num_local_views: int = _VIEWS(4, "Number of local crops in addition to the two global crops.", ge=0)
    local_size: int = _VIEWS(96, "Size of a local crop in pixels.", ge=8)
    global_scale: tuple[float, float] = _VIEWS(
        (0.25, 1.0), "Range of a global crop's area, as a fraction of the image (as in Leopart)."
    )
    local_scale: tuple[float, float] = _VIEWS(
        (0.05, 0.25), "Range of a local crop's area, as a fraction of the image (as in Leopart)."
    )

    dataset: str = _DATA(
        "digits",
        "Dataset of images with a single object each: a registered name, a folder or a CSV, as for other methods; "
        "none: use only --scene-dataset.",
    )
    scene_dataset: str | None = _DATA(
        None,
        "Dataset of images with several objects, in the same form as --dataset. In cotap, only the dense loss terms "
        "use these images.",
    )

    steps: int = _OPTIMIZATION(100_000, "Number of training steps.", ge=1)
    batch_size: int = _OPTIMIZATION(256, "Total batch size over all processes.", ge=2)
    optimizer: Literal["sgd", "adam", "adamw"] = override_default(StepRunConfig, "optimizer", "adamw")
    lr: float = _OPTIMIZATION(3e-5, "Peak learning rate (in DINO, scaled with the batch size).", gt=0)
    lr_final: float = _OPTIMIZATION(1e-6, "Final learning rate of the cosine schedule.", ge=0)
    lr_warmup_steps: int = _OPTIMIZATION(0, "Number of linear warm-up steps.", ge=0)
    weight_decay: float = _OPTIMIZATION(
        0.024,
        "Initial weight decay; not applied to biases, other one-dimensional parameters or filter prototypes.",
        ge=0,
    )
    weight_decay_final: float = _OPTIMIZATION(0.24, "Final weight decay of the cosine schedule.", ge=0)
    clip_grad_norm: float | None = _OPTIMIZATION(3.0, "Maximum gradient norm (default as in DINO).", gt=0)
    ema_start: float = _OPTIMIZATION(0.9997, "Initial EMA decay of the target network.", ge=0, le=1)
    ema_end: float = _OPTIMIZATION(1.0, "Final EMA decay of the target network (cosine schedule).", ge=0, le=1)

    @property
    def main_dataset(self) -> str:
        """Dataset that the run is named after."""
        return self.dataset if self.uses_object_images else str(self.scene_dataset)

    @property
    def uses_object_images(self) -> bool:
        """Whether images of single objects are used."""
        return self.dataset != NO_DATASET

    def scene_config(self) -> DataConfig | None:
        """Return the options for loading all images of ``scene_dataset``, or ``None`` if it is not set."""
        if self.scene_dataset is None:
            return None
        whole: dict[str, object] = {"holdout": None, "pool_splits": False, "holdout_classes": None}
        whole["max_per_class"] = None
        return self.model_copy(update={"dataset": self.scene_dataset, "split": "auto", **whole})

    @property
    def objects_per_batch(self) -> int:
        """Number of images from ``dataset`` in a batch over all processes: half of the batch with scenes (Sec. 5.1)."""
        if not self.uses_object_images:
            return 0
        return self.batch_size if self.scene_dataset is None else self.batch_size // 2

    @model_validator(mode="after")
    def _check_ranges(self) -> Self:
        if min(self.projector_dims) < 2:
            raise ValueError(f"projector_dims must be at least 2, got {min(self.projector_dims)}")
        for name in ("global_scale", "local_scale"):
            low, high = getattr(self, name)
            if not 0 < low <= high <= 1:
                raise ValueError(f"{name} must be two fractions in (0, 1] in ascending order, got {low},{high}")
        if self.lr_warmup_steps >= self.steps:
            raise ValueError(f"lr_warmup_steps must be less than steps ({self.steps}), got {self.lr_warmup_steps}")
        return self

    @model_validator(mode="after")
    def _check_shares(self) -> Self:
        if not self.uses_object_images and self.scene_dataset is None:
            raise ValueError("--dataset none requires --scene-dataset")
        return self


class CoTAPConfig(EMATargetConfig):
    """Options for ``labelkit train cotap``; unless noted otherwise, defaults are those of the paper."""

    command: ClassVar[tuple[str, ...]] = ("train", "cotap")
    acts_with: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **dict.fromkeys(("ranking_loss", "ranking_views"), ("patch_ranking",)),
        **dict.fromkeys(("num_neighbors", "neighbors"), ("image_concentration",)),
    }

    dataset: str = override_default(EMATargetConfig, "dataset", "scene_objects")

    filter: bool = _FILTER(True, "Add the object-aware filter after the backbone.")
    filter_prototypes: int = _FILTER(64, "Number of object prototypes.", ge=1)

    augmentation: Literal["dino", "paper", "none"] = _VIEWS(
        "dino",
        "Color augmentation. dino: color jitter, grayscale, blur, solarization; paper: the same without solarization, "
        "which the paper does not mention.",
    )

    image_alignment: float = _TERMS(1.0, "Weight of the class-token alignment (lambda-bar_1 in the paper).", ge=0)
    patch_alignment: float = _TERMS(1.0, "Weight of the patch alignment loss (lambda_1 in the paper).", ge=0)
    image_concentration: float = _TERMS(
        1.0, "Weight of the loss that pulls images toward their neighbors (lambda-bar_2 in the paper).", ge=0
    )
    patch_ranking: float = _TERMS(1.0, "Weight of the patch ranking loss (lambda_2 in the paper).", ge=0)
    prototype_entropy: float = _TERMS(1.0, "Weight of the filter's prototype loss (lambda_3 in the paper).", ge=0)

    student_temperature: float = _ASSIGNMENT(0.1, "Student's softmax temperature (as in DINO and Leopart).", gt=0)
    roi_size: int = _RANKING(
        7, "Number of cells along each side of the grid on which the overlap of two views is compared.", ge=1
    )
    ranking_loss: Literal["cotap", "bce"] = _RANKING(
        "cotap", "Ranking loss. cotap: compares the order of similarities, as in the paper; bce: compares their values."
    )
    ranking_views: Literal["aligned", "same"] = _RANKING(
        "aligned",
        "Patches that the ranking loss compares. aligned: patches in the overlap of two views; same: all patches of "
        "one view, as seen by both networks.",
    )

    num_neighbors: int = _NEIGHBORS(
        10, "Number of neighbors toward which each image is pulled (our choice; not in the paper).", ge=1
    )
    neighbors: Path | None = _NEIGHBORS(
        None,
        "File with each image's neighbors, to share between runs that start with the same weights; created if "
        "missing. Neighbors are computed once, with the initial target network. Default: no file.",
    )

    @model_validator(mode="after")
    def _check_terms(self) -> Self:
        terms = ("image_alignment", "patch_alignment", "image_concentration", "patch_ranking", "prototype_entropy")
        if not any(getattr(self, name) for name in terms):
            raise ValueError("at least one loss term must have a weight above 0")
        if self.prototype_entropy and not self.filter:
            raise ValueError("--prototype-entropy requires --filter: pass --filter, or --prototype-entropy 0")
        return self

    @model_validator(mode="after")
    def _check_data(self) -> Self:
        for name in ("image_alignment", "image_concentration", "prototype_entropy"):
            if getattr(self, name) and self.objects_per_batch == 0:
                raise ValueError(
                    f"{name} must be 0 without images of single objects (--dataset), got {getattr(self, name):g}"
                )
        return self


_MASKED_PATCHES = field_factory("Masked patches")
_DISTILLATION = field_factory("Distillation")


class SelfDistillationConfig(EMATargetConfig):
    """Options for DINO and iBOT; unless noted, defaults are for continued training as in CoTAP's comparison."""

    clips_each_gradient: ClassVar[bool] = True  # as in the released code

    scaled: ClassVar[Mapping[str, int]] = {"freeze_last_layer_steps": 0, "teacher_warmup_steps": 0}
    acts_with: ClassVar[Mapping[str, tuple[Any, ...]]] = {"teacher_temperature_start": ("teacher_warmup_steps",)}

    branch: Literal["online", "target"] = override_default(EMATargetConfig, "branch", "target")
    augmentation: Literal["dino", "none"] = _VIEWS(
        "dino",
        "Color augmentation. dino: color jitter, grayscale, blur, and solarization of the second global crop; none: "
        "no color augmentation.",
    )

    num_outputs: int = _DISTILLATION(65_536, "Output dimension of the class-token head.", ge=2)
    norm_last_layer: bool = _DISTILLATION(
        False, "Normalize the last layer's weight vectors to unit length (published code: only for ViT-B)."
    )
    freeze_last_layer_steps: int = _DISTILLATION(
        0,
        "Number of initial steps with a frozen last layer; when training from scratch, set it to the number of "
        "steps in one epoch.",
        ge=0,
    )
    student_temperature: float = _DISTILLATION(0.1, "Softmax temperature of the student.", gt=0)
    teacher_temperature: float = _DISTILLATION(0.07, "Softmax temperature of the target network.", gt=0)
    teacher_temperature_start: float = _DISTILLATION(
        0.04, "Initial softmax temperature of the target network, with --teacher-warmup-steps.", gt=0
    )
    teacher_warmup_steps: int = _DISTILLATION(
        0,
        "Number of warm-up steps for the target network's temperature; when training from scratch, set it to the "
        "number of steps in 30 epochs.",
        ge=0,
    )
    center_decay: float = _DISTILLATION(0.9, "EMA decay of the center of the target network's outputs.", ge=0, lt=1)


class DINOConfig(SelfDistillationConfig):
    """Options for ``labelkit train dino``."""

    command: ClassVar[tuple[str, ...]] = ("train", "dino")


class IBOTConfig(SelfDistillationConfig):
    """Options for ``labelkit train ibot``."""

    command: ClassVar[tuple[str, ...]] = ("train", "ibot")

    num_outputs: int = override_default(SelfDistillationConfig, "num_outputs", 8192)
    patch_temperature: float = _MASKED_PATCHES(
        0.07,
        "Softmax temperature of the target network for patches; with --teacher-warmup-steps, the "
        "temperature starts at 0.04.",
        gt=0,
    )

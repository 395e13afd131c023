"""Options of DINO and iBOT, and what CoTAP shares with them.

What methods share whose student learns from its own moving average: the networks, crops, images and schedules.

Options of DINO: class tokens of all crops of an image, assigned as the average of the network assigns them.

Options of iBOT: DINO, and hidden patches, assigned as the average of the network assigns them in full view.
"""

from __future__ import annotations

from collections.abc import Mapping
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
_DISTILLATION: JsonDict = {"panel": "Distillation"}
_OPTIMIZATION: JsonDict = {"panel": "Optimization"}

NO_DATASET = "none"


class SlowTargetConfig(RepresentationRunConfig, StepRunConfig):
    """Two networks, crops, images of one and of several objects, and a run whose rates follow cosines."""

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

    dataset: str = Field(
        "digits",
        description="Images of one object each: a registered name, a folder, or a CSV as for other methods; none: only "
        "--scene-dataset.",
        json_schema_extra=_DATA,
    )
    scene_dataset: str | None = Field(
        None,
        description="Images of several objects: likewise, or none. In cotap only for the dense terms.",
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
        return self.model_copy(update={"dataset": self.scene_dataset, "split": "auto", **whole})

    def shortened(self, fraction: float) -> dict[str, object]:
        """Return fewer steps, also of the warm-up."""
        return super().shortened(fraction) | self._scaled(fraction, "lr_warmup_steps", least=0)

    @property
    def objects_per_batch(self) -> int:
        """Images of ``dataset`` in a batch, over all processes: half of it, all without scenes (Sec. 5.1)."""
        if not self.has_objects:
            return 0
        return self.batch_size if self.scene_dataset is None else self.batch_size // 2

    @property
    def num_epochs(self) -> int:
        """Stretches between two evaluations."""
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
            raise ValueError("dataset none needs a scene_dataset")
        return self


class SelfDistillationConfig(SlowTargetConfig):
    """What DINO and iBOT share; defaults go on from a checkpoint as in CoTAP's comparison, or as descriptions say."""

    branch: Literal["online", "target"] = with_default(SlowTargetConfig, "branch", "target")
    augmentation: Literal["dino", "none"] = Field(
        "dino",
        description="Colors. dino: jitter, gray, blur, and solarize in the second large view; none: as they are.",
        json_schema_extra=_VIEWS,
    )

    clip_each: bool = Field(
        True,
        description="--clip-grad-norm limits the gradient of each parameter (released code), not of all together.",
        json_schema_extra=_OPTIMIZATION,
    )

    num_outputs: int = Field(
        65_536, ge=2, description="Outputs that class tokens are assigned to.", json_schema_extra=_DISTILLATION
    )
    norm_last_layer: bool = Field(
        False,
        description="Hold the length of the last layer's rows at 1; released: off for ViT-S, on for ViT-B.",
        json_schema_extra=_DISTILLATION,
    )
    freeze_last_layer_steps: int = Field(
        0,
        ge=0,
        description="First steps in which the last layer stays as it is; from scratch: those of the first epoch.",
        json_schema_extra=_DISTILLATION,
    )
    student_temperature: float = Field(
        0.1, gt=0, description="Softmax temperature of the student.", json_schema_extra=_DISTILLATION
    )
    teacher_temperature: float = Field(
        0.07, gt=0, description="Softmax temperature of the target network.", json_schema_extra=_DISTILLATION
    )
    teacher_temperature_start: float = Field(
        0.04,
        gt=0,
        description="Softmax temperature of the target network at the first step, with --teacher-warmup-steps.",
        json_schema_extra=_DISTILLATION,
    )
    teacher_warmup_steps: int = Field(
        0,
        ge=0,
        description="Steps in which the temperature of the target network grows; from scratch: those of 30 epochs.",
        json_schema_extra=_DISTILLATION,
    )
    center_decay: float = Field(
        0.9,
        ge=0,
        lt=1,
        description="Decay of the mean that the outputs of the target network are measured from.",
        json_schema_extra=_DISTILLATION,
    )

    @property
    def clips_each_gradient(self) -> bool:
        """As asked for."""
        return self.clip_each

    def shortened(self, fraction: float) -> dict[str, object]:
        """Return fewer steps, also of what they begin with."""
        return super().shortened(fraction) | self._scaled(
            fraction, "freeze_last_layer_steps", "teacher_warmup_steps", least=0
        )


class DINOConfig(SelfDistillationConfig):
    """``labelkit train dino``."""

    command: ClassVar[tuple[str, ...]] = ("train", "dino")


_MASKS: JsonDict = {"panel": "Hidden patches"}


class IBOTConfig(SelfDistillationConfig):
    """``labelkit train ibot``."""

    command: ClassVar[tuple[str, ...]] = ("train", "ibot")

    num_outputs: int = with_default(SelfDistillationConfig, "num_outputs", 8192)
    image_weight: float = Field(
        1.0, gt=0, description="Weight of the loss of class tokens (lambda 1).", json_schema_extra=_MASKS
    )
    patch_weight: float = Field(
        1.0, gt=0, description="Weight of the loss of hidden patches (lambda 2).", json_schema_extra=_MASKS
    )
    shared_head: bool = Field(
        True,
        description="One last layer for class tokens and patches; else patches have their own, with "
        "--num-patch-outputs.",
        json_schema_extra=_MASKS,
    )
    num_patch_outputs: int = Field(
        8192,
        ge=2,
        description="Outputs that patches are assigned to, in a layer of their own.",
        json_schema_extra=_MASKS,
    )
    mask_ratios: tuple[float, ...] = Field(
        (0.0, 0.3),
        min_length=1,
        description="Largest share of hidden patches of a view; each view takes one of these at random.",
        json_schema_extra=_MASKS,
    )
    mask_ratio_spreads: tuple[float, ...] = Field(
        (0.0, 0.2),
        min_length=1,
        description="How far each of --mask-ratios moves up and down at most, at random.",
        json_schema_extra=_MASKS,
    )
    mask_start_steps: int = Field(
        0, ge=0, description="First steps in which no patch is hidden.", json_schema_extra=_MASKS
    )
    patch_temperature: float = Field(
        0.07,
        gt=0,
        description="Softmax temperature of the target network for patches.",
        json_schema_extra=_MASKS,
    )
    patch_temperature_start: float = Field(
        0.04,
        gt=0,
        description="Softmax temperature of the target network for patches at the first step, with "
        "--teacher-warmup-steps.",
        json_schema_extra=_MASKS,
    )
    patch_center_decay: float = Field(
        0.9,
        ge=0,
        lt=1,
        description="Decay of the mean that the target network's outputs for patches are measured from.",
        json_schema_extra=_MASKS,
    )

    def shortened(self, fraction: float) -> dict[str, object]:
        """Return fewer steps, also of those without hidden patches."""
        return super().shortened(fraction) | self._scaled(fraction, "mask_start_steps", least=0)

    @model_validator(mode="after")
    def _check_masks(self) -> IBOTConfig:
        if len(self.mask_ratios) != len(self.mask_ratio_spreads):
            raise ValueError(
                f"mask_ratio_spreads has {len(self.mask_ratio_spreads)} values, mask_ratios {len(self.mask_ratios)}"
            )
        for ratio, spread in zip(self.mask_ratios, self.mask_ratio_spreads, strict=True):
            if spread < 0 or not 0 <= ratio - spread <= ratio + spread < 1:
                raise ValueError(f"mask ratio {ratio} with spread {spread} leaves [0, 1)")
        if self.shared_head and self.num_patch_outputs != type(self).model_fields["num_patch_outputs"].default:
            raise ValueError("num_patch_outputs goes with shared_head off; with it, num_outputs counts for both")
        return self

"""Options of self-supervised learning from two views of an image: SimCLR, Barlow Twins, MoCo, SimSiam."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from labelkit.options.base import with_default
from labelkit.options.representation import RepresentationTrainConfig

_LOSS: JsonDict = {"panel": "Loss"}
_MODEL: JsonDict = {"panel": "Model"}
_VIEWS: JsonDict = {"panel": "Views"}

_PROJECTORS = {
    "simclr": (512, 128),
    "barlow-twins": (2048, 2048, 2048),
    "moco": (512, 128),
    "simsiam": (2048, 2048),
}
_OF_CROPS = ("crop", "crop_scale", "flip_prob", "jitter_prob", "gray_prob", "blur_prob")


class SiameseConfig(RepresentationTrainConfig):
    """Options of ``labelkit train siamese``, with defaults of CoTAP's Table VIII for SimCLR on CIFAR."""

    command: ClassVar[tuple[str, ...]] = ("train", "siamese")

    backbone: str = with_default(RepresentationTrainConfig, "backbone", "resnet18_3x3")
    epochs: int = with_default(RepresentationTrainConfig, "epochs", 800)
    batch_size: int = with_default(RepresentationTrainConfig, "batch_size", 512)
    lr: float = with_default(RepresentationTrainConfig, "lr", 0.06)
    weight_decay: float = Field(
        5e-4, ge=0, description="Weight decay of all parameters.", json_schema_extra={"panel": "Optimization"}
    )
    lr_final_ratio: float = with_default(RepresentationTrainConfig, "lr_final_ratio", 0.0)

    loss: Literal["simclr", "barlow-twins", "moco", "simsiam"] = Field(
        "simclr",
        description="Loss on the two views. simclr: each view must find the other view in the batch; moco: each view "
        "must find the other view, as encoded by a momentum network, among a queue of earlier images; barlow-twins: "
        "the views correlate dimension by dimension; simsiam: each view predicts the other.",
        json_schema_extra=_LOSS,
    )
    temperature: float = Field(
        0.5,
        gt=0,
        description="Softmax temperature for simclr and moco (published: 0.07 for MoCo, 0.2 for MoCo v2).",
        json_schema_extra=_LOSS,
    )
    redundancy_weight: float = Field(
        0.005,
        ge=0,
        description="Weight of correlations between different dimensions (barlow-twins).",
        json_schema_extra=_LOSS,
    )
    loss_scale: float = Field(
        0.024,
        gt=0,
        description="Factor applied to the Barlow Twins loss, a sum over all pairs of dimensions (default: as in the "
        "published code).",
        json_schema_extra={**_LOSS, "before": 1.0},
    )
    queue_size: int = Field(4096, ge=1, description="Queue size in images (moco).", json_schema_extra=_LOSS)
    ema_decay: float = Field(
        0.99,
        ge=0,
        lt=1,
        description="EMA decay of the momentum network (moco; published for ImageNet: 0.999).",
        json_schema_extra=_LOSS,
    )

    projector_dims: tuple[int, ...] | None = Field(
        None,
        min_length=1,
        description="Width of each layer of the projector; default: 512,128 for simclr and moco, 2048,2048,2048 "
        "for barlow-twins, 2048,2048 for simsiam.",
        json_schema_extra=_MODEL,
    )
    predictor_dim: int = Field(
        512, ge=1, description="Hidden width of the predictor (simsiam).", json_schema_extra=_MODEL
    )

    augmentation: Literal["crops", "digits"] = Field(
        "crops",
        description="Training augmentation. crops: random crop, flip, color jitter, grayscale and blur, as set by the "
        "options below; digits: shift, rotation and zoom.",
        json_schema_extra=_VIEWS,
    )
    crop: Literal["independent", "same", "none"] = Field(
        "independent",
        description="Crop for each view: a separate crop per view, the first view's crop for both, or the whole image.",
        json_schema_extra=_VIEWS,
    )
    crop_scale: tuple[float, float] = Field(
        (0.08, 1.0), description="Range of area fractions for crops.", json_schema_extra=_VIEWS
    )
    flip_prob: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Probability of a horizontal flip, in data sets where a flip keeps the class.",
        json_schema_extra=_VIEWS,
    )
    jitter_prob: float = Field(
        0.8,
        ge=0,
        le=1,
        description="Probability of color jitter: 0.4 of brightness, contrast and saturation, 0.1 of hue.",
        json_schema_extra=_VIEWS,
    )
    gray_prob: float = Field(
        0.2, ge=0, le=1, description="Probability of grayscale conversion.", json_schema_extra=_VIEWS
    )
    blur_prob: float = Field(0.5, ge=0, le=1, description="Probability of Gaussian blur.", json_schema_extra=_VIEWS)

    @model_validator(mode="after")
    def _check_views(self) -> SiameseConfig:
        low, high = self.crop_scale
        if not 0 < low <= high <= 1:
            raise ValueError(f"crop_scale must be ordered in (0, 1], got {low},{high}")
        if min(self.widths) < 1:
            raise ValueError(f"projector_dims must be positive, got {min(self.widths)}")
        if self.augmentation == "digits":
            for name in _OF_CROPS:
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f"{name} requires augmentation crops, not digits")
        return self

    @property
    def widths(self) -> tuple[int, ...]:
        """Return the widths of the projector's layers."""
        return _PROJECTORS[self.loss] if self.projector_dims is None else self.projector_dims

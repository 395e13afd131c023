"""Options for self-supervised learning from two views of an image: SimCLR, Barlow Twins, MoCo and SimSiam."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from labelkit.options.base import field_factory, override_default
from labelkit.options.representation import RepresentationTrainConfig

_OPTIMIZATION = field_factory("Optimization")
_LOSS = field_factory("Loss")
_MODEL = field_factory("Model")
_VIEWS = field_factory("Views")

_PROJECTORS = {
    "simclr": (512, 128),
    "barlow-twins": (2048, 2048, 2048),
    "moco": (512, 128),
    "simsiam": (2048, 2048),
}
_OF_CROPS = ("crop", "crop_scale", "flip_prob", "jitter_prob", "gray_prob", "blur_prob")


class SiameseConfig(RepresentationTrainConfig):
    """Options for ``labelkit train siamese``; defaults follow CoTAP's Table VIII for SimCLR on CIFAR."""

    command: ClassVar[tuple[str, ...]] = ("train", "siamese")
    acts_with: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "temperature": ("loss", "simclr", "moco"),
        **dict.fromkeys(("redundancy_weight", "loss_scale"), ("loss", "barlow-twins")),
        **dict.fromkeys(("queue_size", "ema_decay"), ("loss", "moco")),
        "predictor_dim": ("loss", "simsiam"),
        "crop_scale": ("crop", "independent", "same"),
    }

    backbone: str = override_default(RepresentationTrainConfig, "backbone", "resnet18_3x3")
    epochs: int = override_default(RepresentationTrainConfig, "epochs", 800)
    batch_size: int = override_default(RepresentationTrainConfig, "batch_size", 512)
    lr: float = override_default(RepresentationTrainConfig, "lr", 0.06)
    weight_decay: float = _OPTIMIZATION(5e-4, "Weight decay of all parameters.", ge=0)
    lr_final_ratio: float = override_default(RepresentationTrainConfig, "lr_final_ratio", 0.0)

    loss: Literal["simclr", "barlow-twins", "moco", "simsiam"] = _LOSS(
        "simclr",
        "Loss between the two views. simclr: each view must identify the other view in the batch; moco: each view "
        "must identify the other view, as encoded by a momentum network, in a queue of earlier images; barlow-twins: "
        "each embedding dimension must correlate with itself across views; simsiam: each view predicts the other.",
    )
    temperature: float = _LOSS(
        0.5, "Softmax temperature for simclr and moco (as published: 0.07 for MoCo, 0.2 for MoCo v2).", gt=0
    )
    redundancy_weight: float = _LOSS(0.005, "Weight of correlations between different dimensions (barlow-twins).", ge=0)
    loss_scale: float = _LOSS(
        0.024,
        "Factor applied to the Barlow Twins loss, a sum over all pairs of dimensions (default as in the published "
        "code).",
        gt=0,
        before=1.0,
    )
    queue_size: int = _LOSS(4096, "Number of images in the queue (moco).", ge=1)
    ema_decay: float = _LOSS(
        0.99, "EMA decay of the momentum network (moco; 0.999 as published for ImageNet).", ge=0, lt=1
    )

    projector_dims: tuple[int, ...] | None = _MODEL(
        None,
        "Widths of the projector's layers. Default: 512,128 for simclr and moco, 2048,2048,2048 for barlow-twins, "
        "2048,2048 for simsiam.",
        min_length=1,
    )
    predictor_dim: int = _MODEL(512, "Hidden width of the predictor (simsiam).", ge=1)

    augmentation: Literal["crops", "digits"] = _VIEWS(
        "crops",
        "Training augmentation. crops: random crop, flip, color jitter, grayscale and blur, as set by the "
        "options below; digits: shift, rotation and zoom.",
    )
    crop: Literal["independent", "same", "none"] = _VIEWS(
        "independent", "Crops for the two views. independent: one each; same: one for both; none: the whole image."
    )
    crop_scale: tuple[float, float] = _VIEWS((0.08, 1.0), "Range of the crop area, as a fraction of the image area.")
    flip_prob: float = _VIEWS(
        0.5, "Probability of a horizontal flip, in datasets where a flip preserves the class.", ge=0, le=1
    )
    jitter_prob: float = _VIEWS(
        0.8, "Probability of color jitter (strengths: brightness, contrast, saturation 0.4; hue 0.1).", ge=0, le=1
    )
    gray_prob: float = _VIEWS(0.2, "Probability of grayscale conversion.", ge=0, le=1)
    blur_prob: float = _VIEWS(0.5, "Probability of Gaussian blur.", ge=0, le=1)

    @model_validator(mode="after")
    def _check_views(self) -> Self:
        low, high = self.crop_scale
        if not 0 < low <= high <= 1:
            raise ValueError(f"crop_scale must be two fractions in (0, 1] in ascending order, got {low},{high}")
        if min(self.projector_widths) < 1:
            raise ValueError(f"projector_dims must be positive, got {min(self.projector_widths)}")
        if self.augmentation == "digits":
            for name in _OF_CROPS:
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f"{name} requires --augmentation crops")
        return self

    @property
    def projector_widths(self) -> tuple[int, ...]:
        """Widths of the projector's layers."""
        return _PROJECTORS[self.loss] if self.projector_dims is None else self.projector_dims

"""What methods of metric learning share: network, groups of a class, pair loss, pseudo-labels, monitor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator
from pydantic.config import JsonDict

from labelkit.options.backbone import BackboneTrainConfig, FreezeOptions
from labelkit.options.base import with_default

_DATA: JsonDict = {"panel": "Data"}
_MODEL: JsonDict = {"panel": "Model"}
_OPTIMIZATION: JsonDict = {"panel": "Optimization"}
_VIEWS: JsonDict = {"panel": "Views"}
_LOSS: JsonDict = {"panel": "Loss"}
_PSEUDO: JsonDict = {"panel": "Pseudo-labels"}
_MONITOR: JsonDict = {"panel": "Monitor"}


class MetricLearningConfig(FreezeOptions, BackboneTrainConfig):
    """Defaults are those of GoogLeNet on CUB: 16 classes of 5 images in a batch, Adam."""

    constants: ClassVar[Mapping[str, object]] = {
        "ms_alpha": 2.0,
        "ms_beta": 50.0,
        "ms_base": 0.5,
        "ms_epsilon": 0.1,
    }

    label_split: Literal["auto", "given", "gcd", "few-labels", "class-halves", "none"] = Field(
        "given",
        description="Which labels may be used. given: all that there are, but for those of --holdout-classes; images "
        "without one are left out where training needs it. The other rules as for category discovery.",
        json_schema_extra=_DATA,
    )

    backbone: str = Field(
        "googlenet",
        description="A convolutional backbone (`labelkit list backbones`).",
        json_schema_extra=_MODEL,
    )
    embed_dim: int = Field(512, ge=2, description="Width of the embedding, d.", json_schema_extra=_MODEL)
    pool: Literal["avg", "max", "avg+max"] = Field(
        "avg", description="How the positions of the last feature maps become one vector.", json_schema_extra=_MODEL
    )
    freeze_bn: bool = Field(
        False,
        description="Keep the running statistics of the backbone's normalization (few training images). Random weights "
        "have none worth keeping, and are refused.",
        json_schema_extra=_MODEL,
    )

    batch_size: int = Field(
        80,
        ge=2,
        description="Images per step, over all processes; a multiple of --images-per-class.",
        json_schema_extra=_OPTIMIZATION,
    )
    epochs: int = with_default(BackboneTrainConfig, "epochs", 60)
    optimizer: Literal["sgd", "adam", "adamw"] = with_default(BackboneTrainConfig, "optimizer", "adam")
    lr: float = Field(3e-5, gt=0, description="Highest learning rate of the backbone.", json_schema_extra=_OPTIMIZATION)
    weight_decay: float = Field(5e-4, ge=0, description="Weight decay.", json_schema_extra=_OPTIMIZATION)
    new_lr_scale: float = Field(
        10.0,
        gt=0,
        description="Learning rate of new layers (embedding, attention) over that of the backbone.",
        json_schema_extra=_OPTIMIZATION,
    )
    warm_epochs: int = Field(
        0, ge=0, description="Epochs at the start in which the backbone rests.", json_schema_extra=_OPTIMIZATION
    )

    images_per_class: int = Field(
        5, ge=2, description="Images of one class or cluster in a batch.", json_schema_extra=_LOSS
    )
    augmentation: Literal["none", "digits", "crop-flip", "box", "crop"] = Field(
        "box",
        description="Training view. box: a box of 16 to 100 % of the area, mirrored (released codes); crop: 227 pixels "
        "of an image whose shorter side is 256, mirrored (as the text has it); crop-flip: shift by up to 4 pixels, "
        "mirrored; digits: zoom, rotation, shift.",
        json_schema_extra=_VIEWS,
    )
    mirror: bool = Field(
        True,
        description="Mirror images at random, unless the set loses its sense in a mirror.",
        json_schema_extra=_VIEWS,
    )

    num_clusters: int = Field(
        100, ge=2, description="Clusters that stand for classes (training without labels).", json_schema_extra=_PSEUDO
    )
    refresh_epochs: int = Field(
        20, ge=1, description="Epochs between two clusterings of all images.", json_schema_extra=_PSEUDO
    )
    first_clustering: Literal["pooled", "embedding", "pixels"] = Field(
        "pooled",
        description="What the first clustering is of: the backbone's features (pretrained), the embeddings, or the "
        "images themselves, shrunk to 32 pixels where they are larger (networks from scratch).",
        json_schema_extra=_PSEUDO,
    )

    recall_ks: tuple[int, ...] = Field(
        (1, 2, 4, 8), description="K of Recall@K on held-out images.", json_schema_extra=_MONITOR
    )

    @field_validator("recall_ks")
    @classmethod
    def _positive_ks(cls, ks: tuple[int, ...]) -> tuple[int, ...]:
        if not ks or list(ks) != sorted(set(ks)) or ks[0] < 1:
            raise ValueError("must be positive and increase")
        return ks

    @model_validator(mode="after")
    def _check_statistics(self) -> MetricLearningConfig:
        if self.freeze_bn and not (self.pretrained or self.weights or self.init_from):
            raise ValueError(
                "freeze_bn keeps the running statistics of random weights, with which all features are alike: set "
                "pretrained, weights or init_from, or freeze_bn to false"
            )
        return self

    @model_validator(mode="after")
    def _check_groups(self) -> MetricLearningConfig:
        if self.batch_size % self.images_per_class:
            raise ValueError(
                f"batch_size {self.batch_size} is not a multiple of images_per_class {self.images_per_class}"
            )
        if self.batch_size < 2 * self.images_per_class:
            raise ValueError(
                f"batch_size {self.batch_size} holds one class of {self.images_per_class} images, so no negatives"
            )
        if self.warm_epochs >= self.epochs:
            raise ValueError(f"warm_epochs ({self.warm_epochs}) must be smaller than epochs ({self.epochs})")
        return self

    @property
    def has_new_layers(self) -> bool:
        """Whether layers on the backbone start from random values."""
        return True

    def shortened(self, fraction: float) -> dict[str, object]:
        """Return fewer epochs, also of those in which the backbone rests."""
        return super().shortened(fraction) | self._scaled(fraction, "warm_epochs", least=0)

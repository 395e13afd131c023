"""Options of metric learning: network, groups of a class, pseudo-labels, monitor; then those of SAN."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator
from pydantic.config import JsonDict

from labelkit.options.backbone import BackboneTrainConfig, FreezeOptions
from labelkit.options.base import with_default
from labelkit.options.embeddings import StrongRowOptions
from labelkit.options.training import LabelKind

_DATA: JsonDict = {"panel": "Data"}
_MODEL: JsonDict = {"panel": "Model"}
_OPTIMIZATION: JsonDict = {"panel": "Optimization"}
_VIEWS: JsonDict = {"panel": "Views"}
_LOSS: JsonDict = {"panel": "Loss"}
_PSEUDO: JsonDict = {"panel": "Pseudo-labels"}
_MONITOR: JsonDict = {"panel": "Monitor"}
_ASSEMBLY: JsonDict = {"panel": "Assembly"}
_MEMORY: JsonDict = {"panel": "Memory"}


class MetricLearningConfig(FreezeOptions, BackboneTrainConfig):
    """Options of metric learning, with defaults of GoogLeNet on CUB: batches of 16 classes with 5 images, Adam."""

    constants: ClassVar[Mapping[str, object]] = {
        "ms_alpha": 2.0,
        "ms_beta": 50.0,
        "ms_base": 0.5,
        "ms_epsilon": 0.1,
    }

    label_split: Literal["auto", "given", "gcd", "few-labels", "class-halves", "none"] = Field(
        "given",
        description="Which labels training may use. given: all existing labels except those of --holdout-classes; "
        "unlabeled images are left out where training needs labels. Other values: as in `labelkit train gcd --help`.",
        json_schema_extra=_DATA,
    )

    backbone: str = Field(
        "googlenet",
        description="A convolutional backbone (`labelkit list backbones`).",
        json_schema_extra=_MODEL,
    )
    embed_dim: int = Field(512, ge=2, description="Embedding dimension.", json_schema_extra=_MODEL)
    pool: Literal["avg", "max", "avg+max"] = Field(
        "avg", description="Pooling of the last feature map.", json_schema_extra=_MODEL
    )
    freeze_bn: bool = Field(
        False,
        description="Freeze the running statistics of the backbone's batch normalization (for few training "
        "images). Needs pretrained weights.",
        json_schema_extra=_MODEL,
    )

    batch_size: int = Field(
        80,
        ge=2,
        description="Number of images per step, summed over all processes; a multiple of --images-per-class.",
        json_schema_extra=_OPTIMIZATION,
    )
    epochs: int = with_default(BackboneTrainConfig, "epochs", 60)
    optimizer: Literal["sgd", "adam", "adamw"] = with_default(BackboneTrainConfig, "optimizer", "adam")
    lr: float = Field(3e-5, gt=0, description="Peak learning rate of the backbone.", json_schema_extra=_OPTIMIZATION)
    weight_decay: float = Field(5e-4, ge=0, description="Weight decay.", json_schema_extra=_OPTIMIZATION)
    new_lr_scale: float = Field(
        10.0,
        gt=0,
        description="Learning-rate multiplier for new layers (embedding, attention).",
        json_schema_extra=_OPTIMIZATION,
    )
    warm_epochs: int = Field(
        0, ge=0, description="Number of initial epochs with a frozen backbone.", json_schema_extra=_OPTIMIZATION
    )

    images_per_class: int = Field(
        5, ge=2, description="Number of images per class or cluster in a batch.", json_schema_extra=_LOSS
    )
    augmentation: Literal["none", "digits", "crop-flip", "box", "crop"] = Field(
        "box",
        description="Training augmentation. box (published code): random crop of 16 to 100 % of the area, and flip; "
        "crop (as described in the chapter): 227-pixel crop of an image whose shorter side is 256, and flip; "
        "crop-flip: shift by up to 4 pixels, and flip; digits: zoom, rotation, shift.",
        json_schema_extra=_VIEWS,
    )
    mirror: bool = Field(
        True,
        description="Flip images horizontally at random, except in sets where that changes the class.",
        json_schema_extra=_VIEWS,
    )

    num_clusters: int = Field(
        100,
        ge=2,
        description="Number of clusters that serve as classes (training without labels).",
        json_schema_extra=_PSEUDO,
    )
    refresh_epochs: int = Field(
        20, ge=1, description="Number of epochs between clusterings of all images.", json_schema_extra=_PSEUDO
    )
    first_clustering: Literal["pooled", "embedding", "pixels"] = Field(
        "pooled",
        description="What to cluster first: the backbone's features (pretrained), the embeddings, or the images "
        "themselves, shrunk to 32 pixels if larger (networks from scratch).",
        json_schema_extra=_PSEUDO,
    )

    recall_ks: tuple[int, ...] = Field(
        (1, 2, 4, 8), description="Values of K for Recall@K on held-out images.", json_schema_extra=_MONITOR
    )

    @field_validator("recall_ks")
    @classmethod
    def _positive_ks(cls, ks: tuple[int, ...]) -> tuple[int, ...]:
        if not ks or list(ks) != sorted(set(ks)) or ks[0] < 1:
            raise ValueError("must be positive and increasing")
        return ks

    @model_validator(mode="after")
    def _check_statistics(self) -> MetricLearningConfig:
        if self.freeze_bn and not (self.pretrained or self.weights or self.init_from):
            raise ValueError(
                "freeze_bn would keep the running statistics of random weights, which make all features alike: set "
                "pretrained, weights or init_from, or set freeze_bn to false"
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
                f"batch_size {self.batch_size} has only one class of {self.images_per_class} images, so no negatives"
            )
        if self.warm_epochs >= self.epochs:
            raise ValueError(f"warm_epochs ({self.warm_epochs}) must be smaller than epochs ({self.epochs})")
        return self

    @property
    def has_new_layers(self) -> bool:
        """Return whether layers on top of the backbone start from random values."""
        return True

    def shortened(self, fraction: float) -> dict[str, object]:
        """Return options with fewer epochs, including those in which the backbone is frozen."""
        return super().shortened(fraction) | self._scaled(fraction, "warm_epochs", least=0)


class SANConfig(StrongRowOptions, MetricLearningConfig):
    """Options of ``labelkit train san``, with our defaults where the chapter leaves them open."""

    command: ClassVar[tuple[str, ...]] = ("train", "san")
    constants: ClassVar[Mapping[str, object]] = {
        "san_predictor": "conv",
        "san_temperature": 1.0,
        "san_sweeps": 20,
        "san_bound": 10.0,
        "coherence_border": "zero",
        "coherence_view": "source",
        "coherence_positions": None,
        "class_temperature": 0.05,
        "memory_variance_weight": 75.0,
        "memory_decay": 0.999,
        "memory_weight": 1.0,
        "memory_start_epochs": 1,
        "san_assembly": "sinkhorn",
        "proxy_margin": 0.1,
        "proxy_alpha": 32.0,
    }
    # a row has one position, and a head no new layers on it
    row_refuses: ClassVar[tuple[str, ...]] = (
        "pool", "freeze_bn", "mirror", "embed_dim", "new_lr_scale", "warm_epochs", "first_clustering",
        "san_before", "san_width", "san_diagonal", "san_lr_scale", "entropy_weight",
        "correlation_weight", "coherence_weight", "term_ramp", "term_gradients",
    )  # fmt: skip

    mode: Literal["supervised", "unsupervised"] = Field(
        "supervised",
        description="Classes to train on: the labels, or clusters of all images (no labels are used).",
        json_schema_extra={"panel": "Data"},
    )

    san: bool = Field(
        True, description="Use the spatial assembly; --no-san: train without assembly.", json_schema_extra=_ASSEMBLY
    )
    san_before: str = Field(
        "inception5a",
        description="Backbone stage before which features are moved; a convolution wider than 1x1 or a strided "
        "pool must follow (layer4 of resnet18, block4 of smallcnn_pool).",
        json_schema_extra=_ASSEMBLY,
    )
    san_width: int = Field(64, ge=1, description="Number of channels of the predictor.", json_schema_extra=_ASSEMBLY)
    san_diagonal: float = Field(
        0.9,
        gt=0,
        lt=1,
        description="Initial weight of a feature's own position; use 0.5 when training from scratch.",
        json_schema_extra=_ASSEMBLY,
    )
    san_lr_scale: float = Field(
        30.0,
        gt=0,
        description="Learning-rate multiplier for the weight predictor; use 5 when training from scratch.",
        json_schema_extra=_ASSEMBLY,
    )
    entropy_weight: float = Field(
        0.01,
        ge=0,
        description="Weight of the entropy loss on the assembly's weights (Eq. 5.5).",
        json_schema_extra=_ASSEMBLY,
    )
    correlation_weight: float = Field(
        0.01,
        ge=0,
        description="Weight of the correlation loss on the assembly's weights (Eq. 5.6).",
        json_schema_extra=_ASSEMBLY,
    )
    coherence_weight: float = Field(
        0.01,
        ge=0,
        description="Weight of the local coherence loss on the assembly's weights (Eq. 5.8).",
        json_schema_extra=_ASSEMBLY,
    )
    term_ramp: tuple[float, float] = Field(
        (0.1, 0.5),
        description="Fractions of training at which the entropy, correlation and coherence losses start, and at "
        "which they reach full weight.",
        json_schema_extra=_ASSEMBLY,
    )
    term_gradients: Literal["predictor", "network"] = Field(
        "predictor",
        description="What the entropy, correlation and coherence losses train: only the predictor of the weights (as "
        "described in the chapter), or also the network before the predictor.",
        json_schema_extra={**_ASSEMBLY, "before": "network"},
    )

    loss: Literal["multi-similarity", "contrastive", "proxy-anchor", "cross-entropy"] = Field(
        "multi-similarity",
        description="Loss on the embeddings. contrastive: on cosines of pairs, as in XBM; proxy-anchor: one "
        "learned vector per class; cross-entropy: a classifier on the embedding, the baseline of supervised "
        "pre-training.",
        json_schema_extra=_LOSS,
    )
    proxy_lr_scale: float = Field(
        100.0,
        gt=0,
        description="Learning-rate multiplier for class vectors (proxy-anchor, cross-entropy).",
        json_schema_extra=_LOSS,
    )

    memory: Literal["momentum", "queue", "none"] = Field(
        "momentum",
        description="Also compare with embeddings from earlier steps. momentum: computed by an EMA copy of the "
        "network; queue: computed by the network itself at those steps (XBM).",
        json_schema_extra=_MEMORY,
    )
    memory_size: int | None = Field(
        None,
        ge=2,
        description="Memory size in embeddings. Default: the number of training images.",
        json_schema_extra=_MEMORY,
    )
    memory_loss: Literal["contrastive", "contrastive-bayesian"] = Field(
        "contrastive",
        description="Loss on pairs of a batch embedding and an embedding in memory. contrastive: as in XBM's code; "
        "contrastive-bayesian: as in the paper that the chapter cites.",
        json_schema_extra=_MEMORY,
    )

    @model_validator(mode="after")
    def _check_parts(self) -> SANConfig:
        if self.san and self.index is not None:
            raise ValueError(
                "--san moves features between positions, but an embedding has only one: pass --no-san with --index"
            )
        if self.mode == "unsupervised" and self.has_class_vectors:
            raise ValueError(f"loss {self.loss} needs labels: set mode supervised")
        start, end = self.term_ramp
        if not 0 <= start <= end <= 1:
            raise ValueError(f"term_ramp must be two fractions in increasing order, got {start:g},{end:g}")
        if self.memory_size is not None and self.memory_size < self.batch_size and self.memory != "none":
            raise ValueError(f"memory_size {self.memory_size} is less than batch_size {self.batch_size}")
        return self

    @property
    def learns_from_labels(self) -> bool:
        """Return whether labels are used instead of clusters."""
        return self.mode == "supervised"

    @property
    def has_class_vectors(self) -> bool:
        """Return whether the loss learns a vector for each class."""
        return self.loss in ("proxy-anchor", "cross-entropy")

    @property
    def label_kind(self) -> LabelKind:
        """Return the kind of labels used, which is ``none`` with clusters."""
        return super().label_kind if self.mode == "supervised" else "none"

    @property
    def has_new_layers(self) -> bool:
        """Return whether images are trained on, since a head on stored embeddings has no new layers."""
        return self.index is None

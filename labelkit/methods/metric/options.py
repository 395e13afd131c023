"""Options for metric learning: network, batches, pseudo-labels and monitoring; also for SAN and TAC-CCL."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import field_validator, model_validator

from labelkit.options.backbone import BackboneTrainConfig, FreezeOptions
from labelkit.options.base import field_factory, override_default
from labelkit.options.embeddings import StrongEmbeddingInputOptions
from labelkit.options.training import LabelKind

_DATA = field_factory("Data")
_MODEL = field_factory("Model")
_OPTIMIZATION = field_factory("Optimization")
_VIEWS = field_factory("Views")
_LOSS = field_factory("Loss")
_PSEUDO = field_factory("Pseudo-labels")
_MONITOR = field_factory("Monitor")
_ASSEMBLY = field_factory("Assembly")
_MEMORY = field_factory("Memory")


class MetricLearningConfig(FreezeOptions, BackboneTrainConfig):
    """Options for metric learning; defaults: GoogLeNet on CUB, Adam, batches of 16 classes with 5 images each."""

    scaled: ClassVar[Mapping[str, int]] = {"warm_epochs": 0}

    label_split: Literal["auto", "given", "gcd", "few-labels", "none"] = _DATA(
        "given",
        "Labels that training may use. given: all existing labels except those of --holdout-classes; unlabeled images "
        "are not used if training needs labels. For other values, see `labelkit train gcd --help`.",
    )

    backbone: str = _MODEL("googlenet", "Name of a convolutional backbone; see `labelkit list backbones`.")
    embed_dim: int = _MODEL(512, "Embedding dimension.", ge=2)
    pool: Literal["avg", "max", "avg+max"] = _MODEL("avg", "Pooling of the last feature map.")
    freeze_bn: bool = _MODEL(
        False,
        "Freeze the running statistics of the backbone's batch normalization (for few training images). Requires "
        "pretrained weights.",
    )

    batch_size: int = _OPTIMIZATION(
        80, "Total batch size over all processes; must be a multiple of --images-per-class.", ge=2
    )
    epochs: int = override_default(BackboneTrainConfig, "epochs", 60)
    optimizer: Literal["sgd", "adam", "adamw"] = override_default(BackboneTrainConfig, "optimizer", "adam")
    lr: float = _OPTIMIZATION(3e-5, "Peak learning rate of the backbone.", gt=0)
    weight_decay: float = _OPTIMIZATION(5e-4, "Weight decay.", ge=0)
    new_lr_scale: float = _OPTIMIZATION(10.0, "Learning-rate multiplier for new layers (embedding, attention).", gt=0)
    warm_epochs: int = _OPTIMIZATION(0, "Number of initial epochs with a frozen backbone.", ge=0)

    images_per_class: int = _LOSS(5, "Number of images per class or cluster in a batch.", ge=2)
    augmentation: Literal["none", "digits", "crop-flip", "box", "crop"] = _VIEWS(
        "box",
        "Training augmentation. box (as in the published code): random crop of 16 to 100% of the area, and flip; "
        "crop (as described in the dissertation): 227-pixel crop of an image whose shorter side is 256, and flip; "
        "crop-flip: shift by up to 4 pixels, and flip; digits: zoom, rotation, shift.",
    )
    mirror: bool = _VIEWS(True, "Flip images horizontally at random, except in datasets where that changes the class.")

    num_clusters: int = _PSEUDO(100, "Number of clusters to use as classes (when training without labels).", ge=2)
    refresh_epochs: int = _PSEUDO(20, "Number of epochs between clusterings of all images.", ge=1)
    first_clustering: Literal["pooled", "embedding", "pixels"] = _PSEUDO(
        "pooled",
        "Features for the first clustering. pooled: those of the backbone (if pretrained); embedding: the embeddings; "
        "pixels: the images themselves, downscaled to 32 pixels if larger (for networks trained from scratch).",
    )

    recall_ks: tuple[int, ...] = _MONITOR((1, 2, 4, 8), "Values of K for Recall@K on held-out images.")

    @field_validator("recall_ks")
    @classmethod
    def _positive_ks(cls, ks: tuple[int, ...]) -> tuple[int, ...]:
        if not ks or list(ks) != sorted(set(ks)) or ks[0] < 1:
            raise ValueError("must be positive and increasing")
        return ks

    @model_validator(mode="after")
    def _check_statistics(self) -> Self:
        if self.freeze_bn and not (self.pretrained or self.weights or self.init_from):
            raise ValueError(
                "--freeze-bn requires pretrained weights, since random running statistics make all features alike: "
                "pass --pretrained, --weights or --init-from, or --no-freeze-bn"
            )
        return self

    @model_validator(mode="after")
    def _check_groups(self) -> Self:
        if self.batch_size % self.images_per_class:
            raise ValueError(
                f"batch_size must be a multiple of images_per_class ({self.images_per_class}), got {self.batch_size}"
            )
        if self.batch_size < 2 * self.images_per_class:
            raise ValueError(
                f"batch_size must be at least 2 * images_per_class ({2 * self.images_per_class}), got {self.batch_size}"
            )
        if self.warm_epochs >= self.epochs:
            raise ValueError(f"warm_epochs must be less than epochs ({self.epochs}), got {self.warm_epochs}")
        return self


class SANConfig(StrongEmbeddingInputOptions, MetricLearningConfig):
    """Options for ``labelkit train san``; defaults follow the dissertation where it specifies them."""

    command: ClassVar[tuple[str, ...]] = ("train", "san")
    learns_from_labels: ClassVar[bool] = True
    acts_with: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **dict.fromkeys(("num_clusters", "refresh_epochs", "first_clustering"), ("mode", "unsupervised")),
        **dict.fromkeys(("san_before", "san_width", "san_diagonal", "san_lr_scale"), ("san",)),
        **dict.fromkeys(("entropy_weight", "correlation_weight", "coherence_weight"), ("san",)),
        **dict.fromkeys(("term_ramp", "term_gradients"), ("san",)),
        "proxy_lr_scale": ("loss", "proxy-anchor", "cross-entropy"),
        **dict.fromkeys(("memory_size", "memory_loss"), ("memory", "momentum", "queue")),
    }
    # an embedding has a single position, and a head gets no new layers
    row_excluded_options: ClassVar[tuple[str, ...]] = (
        "pool", "freeze_bn", "mirror", "embed_dim", "new_lr_scale", "warm_epochs", "first_clustering",
        "san_before", "san_width", "san_diagonal", "san_lr_scale", "entropy_weight",
        "correlation_weight", "coherence_weight", "term_ramp", "term_gradients",
    )  # fmt: skip

    mode: Literal["supervised", "unsupervised"] = _DATA(
        "supervised", "Source of the training classes. supervised: labels; unsupervised: clusters of all images."
    )

    san: bool = _ASSEMBLY(True, "Use the spatial assembly; --no-san trains without it.")
    san_before: str = _ASSEMBLY(
        "inception5a",
        "Backbone stage before which the spatial assembly is inserted. The stage must begin with a convolution larger "
        "than 1x1 or a strided pooling layer (layer4 of resnet18, block4 of smallcnn_pool).",
    )
    san_width: int = _ASSEMBLY(64, "Number of channels in the weight predictor.", ge=1)
    san_diagonal: float = _ASSEMBLY(
        0.9, "Initial weight of a feature's own position; use 0.5 when training from scratch.", gt=0, lt=1
    )
    san_lr_scale: float = _ASSEMBLY(
        30.0, "Learning-rate multiplier for the weight predictor; use 5 when training from scratch.", gt=0
    )
    entropy_weight: float = _ASSEMBLY(0.01, "Weight of the assembly's entropy loss (dissertation, Eq. 5.5).", ge=0)
    correlation_weight: float = _ASSEMBLY(
        0.01, "Weight of the assembly's correlation loss (dissertation, Eq. 5.6).", ge=0
    )
    coherence_weight: float = _ASSEMBLY(
        0.01, "Weight of the assembly's local coherence loss (dissertation, Eq. 5.8).", ge=0
    )
    term_ramp: tuple[float, float] = _ASSEMBLY(
        (0.1, 0.5),
        "Fractions of training at which the entropy, correlation and coherence losses start, and at "
        "which they reach full weight.",
    )
    term_gradients: Literal["predictor", "network"] = _ASSEMBLY(
        "predictor",
        "What the entropy, correlation and coherence losses train: only the weight predictor (as described in the "
        "dissertation), or also the layers before it.",
        before="network",
    )

    loss: Literal["multi-similarity", "contrastive", "proxy-anchor", "cross-entropy"] = _LOSS(
        "multi-similarity",
        "Loss on the embeddings. contrastive: on cosines of pairs, as in XBM; proxy-anchor: one learned vector per "
        "class; cross-entropy: a classifier on the embedding, the baseline of supervised pre-training.",
    )
    proxy_lr_scale: float = _LOSS(
        100.0, "Learning-rate multiplier for class vectors (proxy-anchor, cross-entropy).", gt=0
    )

    memory: Literal["momentum", "queue", "none"] = _MEMORY(
        "momentum",
        "Also compare with embeddings from earlier steps. momentum: computed by an EMA copy of the network; queue: "
        "computed by the network at those steps (XBM); none: no memory.",
    )
    memory_size: int | None = _MEMORY(
        None, "Number of embeddings in the memory. Default: the number of training images.", ge=2
    )
    memory_loss: Literal["contrastive", "contrastive-bayesian"] = _MEMORY(
        "contrastive",
        "Loss on pairs of embeddings from the batch and the memory. contrastive: as in XBM's code; "
        "contrastive-bayesian: as in Kan et al. (2020), which the dissertation cites.",
    )

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        if self.san and self.index is not None:
            raise ValueError(
                "--san moves features between positions, but an embedding has only one: pass --no-san with --index"
            )
        if self.mode == "unsupervised" and self.has_class_vectors:
            raise ValueError(f"--loss {self.loss} requires labels: pass --mode supervised")
        start, end = self.term_ramp
        if not 0 <= start <= end <= 1:
            raise ValueError(f"term_ramp must be two fractions in ascending order, got {start:g},{end:g}")
        if self.memory_size is not None and self.memory_size < self.batch_size and self.memory != "none":
            raise ValueError(f"memory_size must be at least batch_size ({self.batch_size}), got {self.memory_size}")
        return self

    @property
    def has_class_vectors(self) -> bool:
        """Whether the loss learns a vector for each class."""
        return self.loss in ("proxy-anchor", "cross-entropy")

    @property
    def label_kind(self) -> LabelKind:
        """Kind of labels used; ``none`` if clusters replace them."""
        return super().label_kind if self.mode == "supervised" else "none"


_MATCHING_IMAGES = field_factory("Matching images")
_CENTERS = field_factory("Contrastive clustering")
_ATTENTION = field_factory("Transformed attention")


class TACCCLConfig(MetricLearningConfig):
    """Options for ``labelkit train tac-ccl``; defaults are for GoogLeNet on CUB, but without pretrained weights."""

    command: ClassVar[tuple[str, ...]] = ("train", "tac-ccl")
    scaled: ClassVar[Mapping[str, int]] = {"ccl_start_epoch": 0, "memory_warmup_steps": 0}
    acts_with: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "memory_warmup_steps": ("memory_refill", False),
        **dict.fromkeys(("ccl_weight", "ccl_start_epoch"), ("ccl",)),
        "feature_weight": ("tac",),
    }

    label_split: Literal["auto", "given", "gcd", "few-labels", "none"] = _DATA(
        "none",
        "Images that `embed` marks as labeled (for the values, see `labelkit train gcd --help`); training uses "
        "clusters instead of labels.",
    )
    clip_grad_norm: float | None = _OPTIMIZATION(10.0, "Maximum gradient norm; none: no clipping.", gt=0)
    lr_schedule: Literal["cosine", "constant", "step"] = override_default(MetricLearningConfig, "lr_schedule", "step")
    lr_drop_epochs: tuple[int, ...] = override_default(MetricLearningConfig, "lr_drop_epochs", (36,))

    memory_refill: bool = _MEMORY(True, "Refill the memory with new embeddings at each clustering.")
    memory_warmup_steps: int | None = _MEMORY(
        None, "Number of steps before the memory is used (with --no-memory-refill). Default: one epoch.", ge=0
    )

    ccl: bool = _CENTERS(True, "Use the contrastive clustering loss.")
    ccl_weight: float = _CENTERS(0.1, "Weight of the contrastive clustering loss (our choice; not in the paper).", gt=0)
    ccl_start_epoch: int = _CENTERS(0, "First epoch of the contrastive clustering loss.", ge=0)

    tac: bool = _ATTENTION(
        True, "Also train on a second, transformed view, with attention-consistency and feature-similarity losses."
    )
    feature_weight: float = _ATTENTION(
        0.1, "Weight of the feature-similarity loss (our choice); large values cause collapse.", ge=0
    )

    matches: Path | None = _MATCHING_IMAGES(
        None, "File with matched image pairs from `labelkit match`, so that the second view may show the matched image."
    )

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        if self.matches is not None and not self.tac:
            raise ValueError("--matches requires --tac")
        return self

"""Options of SAN: spatial assembly networks for metric learning, with labels or without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from labelkit.methods.metric.options import MetricLearningConfig
from labelkit.options.embeddings import StrongRowOptions
from labelkit.options.training import LabelKind

_MODEL: JsonDict = {"panel": "Model"}
_LOSS: JsonDict = {"panel": "Loss"}
_ASSEMBLY: JsonDict = {"panel": "Assembly"}
_MEMORY: JsonDict = {"panel": "Memory"}


class SANConfig(StrongRowOptions, MetricLearningConfig):
    """``labelkit train san``; what the chapter leaves open is ours, as the specification says."""

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
        description="Classes of a batch: by the labels, or by clusters of all images (no label is used).",
        json_schema_extra={"panel": "Data"},
    )

    san: bool = Field(True, description="Assemble; --no-san is the baseline.", json_schema_extra=_ASSEMBLY)
    san_before: str = Field(
        "inception5a",
        description="Stage of the backbone before which features are moved; after it there must be a convolution wider "
        "than 1x1 or a strided pool (layer4 of resnet18, block4 of smallcnn_pool).",
        json_schema_extra=_ASSEMBLY,
    )
    san_width: int = Field(64, ge=1, description="Channels of the predictor.", json_schema_extra=_ASSEMBLY)
    san_diagonal: float = Field(
        0.9,
        gt=0,
        lt=1,
        description="Share of a feature that stays in place at first; 0.5 for networks from scratch.",
        json_schema_extra=_ASSEMBLY,
    )
    san_lr_scale: float = Field(
        30.0,
        gt=0,
        description="Learning rate of the predictor over that of the backbone; 5 for networks from scratch.",
        json_schema_extra=_ASSEMBLY,
    )
    entropy_weight: float = Field(
        0.01,
        ge=0,
        description="Loss weight of the entropy of the assembly's weights (Eq. 5.5).",
        json_schema_extra=_ASSEMBLY,
    )
    correlation_weight: float = Field(
        0.01,
        ge=0,
        description="Loss weight of the correlation of the assembly's weights (Eq. 5.6).",
        json_schema_extra=_ASSEMBLY,
    )
    coherence_weight: float = Field(
        0.01,
        ge=0,
        description="Loss weight of the local coherence of the assembly's weights (Eq. 5.8).",
        json_schema_extra=_ASSEMBLY,
    )
    term_ramp: tuple[float, float] = Field(
        (0.1, 0.5),
        description="Shares of the training at which entropy, correlation and coherence begin to count, and count in "
        "full.",
        json_schema_extra=_ASSEMBLY,
    )
    term_gradients: Literal["predictor", "network"] = Field(
        "predictor",
        description="What entropy, correlation and coherence train: the predictor of the weights (chapter), or also "
        "the network before it.",
        json_schema_extra={**_ASSEMBLY, "before": "network"},
    )

    loss: Literal["multi-similarity", "contrastive", "proxy-anchor", "cross-entropy"] = Field(
        "multi-similarity",
        description="Loss of the embeddings. contrastive: cosines of pairs, as XBM has it; proxy-anchor: one learned "
        "vector for each class; cross-entropy: a classifier on the embedding, the baseline of supervised pre-training.",
        json_schema_extra=_LOSS,
    )
    proxy_lr_scale: float = Field(
        100.0,
        gt=0,
        description="Learning rate of class vectors (proxy-anchor, cross-entropy) over that of the backbone.",
        json_schema_extra=_LOSS,
    )

    memory: Literal["momentum", "queue", "none"] = Field(
        "momentum",
        description="Also compare with embeddings of earlier steps. momentum: by a slow copy of the network; queue: by "
        "the network itself as it was then (XBM).",
        json_schema_extra=_MEMORY,
    )
    memory_size: int | None = Field(
        None, ge=2, description="Embeddings to keep. Default: the number of training images.", json_schema_extra=_MEMORY
    )
    memory_loss: Literal["contrastive", "multi-similarity", "contrastive-bayesian"] = Field(
        "contrastive",
        description="Loss of pairs with the memory. contrastive: as XBM's code; contrastive-bayesian: of the paper "
        "that the chapter cites.",
        json_schema_extra=_MEMORY,
    )

    @model_validator(mode="after")
    def _check_parts(self) -> SANConfig:
        if self.san and self.index is not None:
            raise ValueError("--san moves features between positions, and a row has one: pass --no-san with --index")
        if self.mode == "unsupervised" and self.has_class_vectors:
            raise ValueError(f"loss {self.loss} needs labels, so mode supervised")
        start, end = self.term_ramp
        if not 0 <= start <= end <= 1:
            raise ValueError(f"term_ramp must be two shares in order, got {start:g},{end:g}")
        if self.memory_size is not None and self.memory_size < self.batch_size and self.memory != "none":
            raise ValueError(f"memory_size {self.memory_size} is less than batch_size {self.batch_size}")
        return self

    @property
    def learns_from_labels(self) -> bool:
        """With clusters in place of classes, no."""
        return self.mode == "supervised"

    @property
    def has_class_vectors(self) -> bool:
        """Whether the loss learns a vector for each class."""
        return self.loss in ("proxy-anchor", "cross-entropy")

    @property
    def label_kind(self) -> LabelKind:
        """None with clusters in place of classes."""
        return super().label_kind if self.mode == "supervised" else "none"

    @property
    def has_new_layers(self) -> bool:
        """A head has none."""
        return self.index is None

"""Options for SeLa: self-labelling by balanced optimal transport."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from labelkit.options.backbone import FreezeOptions
from labelkit.options.base import field_factory, override_default
from labelkit.options.embeddings import StrongEmbeddingInputOptions
from labelkit.options.representation import RepresentationTrainConfig

_TRUTH = field_factory("Labels", preset=False)
_LABELS = field_factory("Self-labelling")
_PASS = field_factory("Label pass")
_SOLVER = field_factory("Solver")
_VIEWS = field_factory("Views")
_ROTATION = field_factory("Second stage")


class SeLaConfig(StrongEmbeddingInputOptions, FreezeOptions, RepresentationTrainConfig):
    """Options for ``labelkit train sela``; unless noted, defaults are those of the released code for ImageNet."""

    command: ClassVar[tuple[str, ...]] = ("train", "sela")
    scaled: ClassVar[Mapping[str, int]] = {"num_optimizations": 1}
    acts_with: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **dict.fromkeys(("lam", "num_optimizations", "optimization_schedule", "refresh"), ("labels_from", None)),
        **dict.fromkeys(("label_pass", "solver_tolerance", "solver_max_iterations"), ("labels_from", None)),
    }
    row_excluded_options: ClassVar[tuple[str, ...]] = ("rotation",)

    labels: Path | None = _TRUTH(
        None,
        "Labels for evaluating the run, as a CSV with a path and a label column; training does not use them. Default: "
        "the labels of the store or the images.",
    )

    epochs: int = override_default(RepresentationTrainConfig, "epochs", 400)

    num_heads: int = _LABELS(10, "Number of clustering heads.", ge=1)
    num_clusters: tuple[int, ...] = _LABELS((3000,), "Number of clusters: one number per head, or one for all heads.")
    lam: float = _LABELS(
        25.0,
        "Weight of the assignment cost relative to the entropy (lambda in the paper); good values depend on the scale "
        "of the logits.",
        gt=0,
    )
    prior: str = _LABELS(
        "uniform",
        "Fraction of images per cluster: uniform, zipf:A (the y-th fraction is proportional to y^-A), or a file of "
        "numbers (.npy or text). Larger fractions go to the clusters that are larger at the first optimization.",
    )
    num_optimizations: int = _LABELS(100, "Number of label optimizations during training.", ge=1)
    optimization_schedule: Literal["uniform", "quadratic", "official-uniform", "official-quadratic"] = _LABELS(
        "quadratic",
        "When to optimize the labels. uniform: at even intervals; quadratic: more often at the start; official-*: at "
        "the times used in the published code.",
    )
    refresh: Literal["all", "one"] = _LABELS(
        "all", "Heads to update in each optimization: all heads, or one head, in turn."
    )

    label_pass: Literal["clean", "official"] = _PASS(
        "clean",
        "How to run the network on all images before optimizing the labels. clean: without augmentation and dropout; "
        "official: as in training, updating running statistics (as in the published code).",
    )
    solver_tolerance: float = _SOLVER(1e-4, "Convergence tolerance of the solver.", gt=0)
    solver_max_iterations: int = _SOLVER(500, "Maximum number of iterations of the solver.", ge=1)

    augmentation: Literal["digits", "cifar", "imagenet", "mocov2"] = _VIEWS(
        "imagenet", "Training augmentation: one of the recipes in the published code, or digits (for images of digits)."
    )

    labels_from: Path | None = _ROTATION(
        None, "Train a new network on the final pseudo-labels of this run, which stay fixed."
    )
    rotation: bool = _ROTATION(
        False, "Also learn to predict the rotation of an image (0, 90, 180, 270 degrees) with a separate head."
    )

    @model_validator(mode="after")
    def _check_labels(self) -> Self:
        if len(self.num_clusters) not in (1, self.num_heads):
            raise ValueError(f"num_clusters must have 1 or {self.num_heads} values, got {len(self.num_clusters)}")
        if any(k < 2 for k in self.num_clusters):
            raise ValueError(f"num_clusters must be at least 2, got {min(self.num_clusters)}")
        return self

    @property
    def clusters_per_head(self) -> tuple[int, ...]:
        """Number of clusters of each head."""
        return self.num_clusters if len(self.num_clusters) > 1 else self.num_clusters * self.num_heads

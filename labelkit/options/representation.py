"""Options for all methods that learn a representation without labels, including kNN monitoring."""

from typing import Literal

from labelkit.options.backbone import BackboneRunConfig, BackboneTrainConfig, PixelOptions
from labelkit.options.base import DATA, MONITOR


class RepresentationRunConfig(PixelOptions, BackboneRunConfig):
    """Options for methods that learn a representation without labels and monitor it with kNN."""

    label_split: Literal["auto", "given", "gcd", "few-labels", "none"] = DATA(
        "none",
        "Images that `embed` marks as labeled (for the values, see `labelkit train gcd --help`); training never uses "
        "labels.",
    )

    knn_neighbors: int = MONITOR(10, "Number of neighbors for the kNN monitor.", ge=1)
    knn_temperature: float = MONITOR(
        0.1, "Temperature of the kNN votes: each neighbor has weight exp(cosine / temperature).", gt=0
    )


class RepresentationTrainConfig(RepresentationRunConfig, BackboneTrainConfig):
    """Options for unsupervised representation learning with a fixed number of epochs."""

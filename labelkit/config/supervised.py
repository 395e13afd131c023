"""What classifiers share that are trained with the label of every image."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from pydantic.config import JsonDict

from labelkit.config.backbone import BackboneTrainConfig
from labelkit.config.freezing import FreezeOptions

_DATA: JsonDict = {"panel": "Data"}
_MODEL: JsonDict = {"panel": "Model"}
_LOSS: JsonDict = {"panel": "Loss"}
_VIEWS: JsonDict = {"panel": "Views"}


class SupervisedTrainConfig(FreezeOptions, BackboneTrainConfig):
    """Embedding, long-tail options and views of a classifier."""

    own_output: ClassVar[Literal["names", "groups", "nothing"]] = "names"

    label_split: Literal["auto", "given", "gcd", "few-labels", "class-halves", "none"] = Field(
        "given",
        description="Which labels may be used. given: all that there are; images without one are left out of training. "
        "The other rules as for category discovery.",
        json_schema_extra=_DATA,
    )
    num_classes: int | None = Field(
        None,
        ge=2,
        description="Classes of the classifier; default: those of the data, also if no image of one can be used.",
        json_schema_extra=_DATA,
    )

    embed_dim: int | None = Field(
        None,
        ge=2,
        description="Width of the embedding, d: a linear layer on the backbone's features; default: these as they are.",
        json_schema_extra=_MODEL,
    )
    embedding_bn: bool = Field(
        False, description="Batch normalization of the embedding (long-tail recipe).", json_schema_extra=_MODEL
    )

    class_weights: Literal["none", "batch", "global"] = Field(
        "none",
        description="Weigh images so that classes count alike: within each batch (released code), or over the set.",
        json_schema_extra=_LOSS,
    )
    mixup_alpha: float = Field(
        0.0,
        ge=0,
        description="Mix pairs of images with a share drawn from Beta(alpha, alpha), once a step; 0: do not.",
        json_schema_extra=_LOSS,
    )

    augmentation: Literal["none", "digits", "crop-flip", "imagenet", "imagenet-jitter"] = Field(
        "imagenet",
        description="Training view. crop-flip: shift by up to 4 pixels, mirror; imagenet: a random box, mirror; "
        "imagenet-jitter: also jitter of 0.4; digits: zoom, rotation, shift. Sets that lose their sense in a mirror "
        "are not mirrored.",
        json_schema_extra=_VIEWS,
    )

    @property
    def learns_from_labels(self) -> bool:
        """Always."""
        return True

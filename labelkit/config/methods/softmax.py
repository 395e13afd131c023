"""Options of the learned softmax classifier (the paper's PSC), the baseline of DL2PA."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from pydantic.config import JsonDict

from labelkit.config.base import with_default
from labelkit.config.rows import RowOptions
from labelkit.config.supervised import SupervisedTrainConfig

_LOSS: JsonDict = {"panel": "Loss"}


class SoftmaxConfig(RowOptions, SupervisedTrainConfig):
    """``labelkit train softmax``."""

    command: ClassVar[tuple[str, ...]] = ("train", "softmax")

    epochs: int = with_default(SupervisedTrainConfig, "epochs", 250)
    uniformity_weight: float = Field(
        0.0,
        ge=0,
        description="Weight of the uniformity loss on the directions of the classifier (Table 8: 0.01).",
        json_schema_extra=_LOSS,
    )
    cosine_scale: float | None = Field(
        None,
        gt=0,
        description="Factor that turns cosines of embeddings and class vectors into logits. Default: a plain "
        "linear layer.",
        json_schema_extra=_LOSS,
    )

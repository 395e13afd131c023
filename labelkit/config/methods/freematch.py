"""Options of FreeMatch: pseudo-labels of sure images, learned on strongly changed ones."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from pydantic.config import JsonDict

from labelkit.config.base import with_default
from labelkit.config.few_labels import TwoStreamTrainConfig
from labelkit.config.rows import RowOptions
from labelkit.config.student_options import FreeMatchOptions

_OPTIMIZATION: JsonDict = {"panel": "Optimization"}


class FreeMatchConfig(RowOptions, TwoStreamTrainConfig, FreeMatchOptions):
    """``labelkit train freematch``; defaults are those of the published code for CIFAR-10."""

    command: ClassVar[tuple[str, ...]] = ("train", "freematch")

    steps: int = with_default(TwoStreamTrainConfig, "steps", 1_048_576)
    # The method brings its own noise.
    dropout: float | None = with_default(TwoStreamTrainConfig, "dropout", 0.0)
    labeled_batch_size: int = Field(
        64,
        ge=1,
        description="Labeled images of --batch-size (published code: 64 beside 448 others).",
        json_schema_extra=_OPTIMIZATION,
    )

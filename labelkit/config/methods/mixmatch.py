"""Options of MixMatch: guessed labels, blended with given ones."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from labelkit.config.base import with_default
from labelkit.config.few_labels import TwoStreamTrainConfig
from labelkit.config.rows import RowOptions
from labelkit.config.student_options import MixMatchOptions

_OPTIMIZATION: JsonDict = {"panel": "Optimization"}


class MixMatchConfig(RowOptions, TwoStreamTrainConfig, MixMatchOptions):
    """``labelkit train mixmatch``; defaults are those of the released code for CIFAR-10."""

    command: ClassVar[tuple[str, ...]] = ("train", "mixmatch")
    has_strong_views: ClassVar[bool] = False

    steps: int = with_default(TwoStreamTrainConfig, "steps", 1_048_576)
    # The method brings its own noise.
    dropout: float | None = with_default(TwoStreamTrainConfig, "dropout", 0.0)
    labeled_batch_size: int = Field(
        64,
        ge=1,
        description="Labeled images of --batch-size: half of it.",
        json_schema_extra=_OPTIMIZATION,
    )

    @model_validator(mode="after")
    def _check_halves(self) -> MixMatchConfig:
        if 2 * self.labeled_batch_size != self.batch_size:
            raise ValueError(
                f"labeled_batch_size {self.labeled_batch_size} must be half of batch_size {self.batch_size}"
            )
        return self

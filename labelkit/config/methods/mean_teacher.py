"""Options of Mean Teacher: a student that agrees with its own average."""

from __future__ import annotations

from typing import ClassVar

from labelkit.config.base import with_default
from labelkit.config.few_labels import MeanTeacherOptions, TwoStreamTrainConfig
from labelkit.config.rows import RowOptions


class MeanTeacherConfig(RowOptions, TwoStreamTrainConfig, MeanTeacherOptions):
    """``labelkit train mean-teacher``; defaults are those of the released code for ConvNet-13."""

    command: ClassVar[tuple[str, ...]] = ("train", "mean-teacher")
    has_strong_views: ClassVar[bool] = False

    steps: int = with_default(TwoStreamTrainConfig, "steps", 150_000)

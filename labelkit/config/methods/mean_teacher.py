"""Options of Mean Teacher: a student that agrees with its own average."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from labelkit.config.few_labels import MeanTeacherOptions, TwoStreamTrainConfig


class MeanTeacherConfig(TwoStreamTrainConfig, MeanTeacherOptions):
    """``labelkit train mean-teacher``; defaults are those of the released code for ConvNet-13."""

    command: ClassVar[tuple[str, ...]] = ("train", "mean-teacher")

    steps: int = Field(
        150_000, ge=1, description="Updates of the network.", json_schema_extra={"panel": "Optimization"}
    )

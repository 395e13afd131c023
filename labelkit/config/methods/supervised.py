"""Options of the supervised baseline for few labels."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from labelkit.config.base import with_default
from labelkit.config.few_labels import FewLabelTrainConfig
from labelkit.config.rows import RowOptions


class SupervisedConfig(RowOptions, FewLabelTrainConfig):
    """``labelkit train supervised``; options as for ``train mean-teacher``."""

    command: ClassVar[tuple[str, ...]] = ("train", "supervised")
    has_strong_views: ClassVar[bool] = False

    steps: int = with_default(FewLabelTrainConfig, "steps", 150_000)
    batch_size: int = Field(
        31,
        ge=2,
        description="Labeled images per step, over all processes. The few labeled images repeat often.",
        json_schema_extra={"panel": "Optimization"},
    )

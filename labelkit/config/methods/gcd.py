"""Options of GCD, the contrastive baseline under SimGCD."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from labelkit.config.discovery import ContrastiveTrainConfig
from labelkit.config.rows import RowOptions


class GCDConfig(RowOptions, ContrastiveTrainConfig):
    """``labelkit train gcd``; defaults are those of the released code."""

    command: ClassVar[tuple[str, ...]] = ("train", "gcd")

    head_dim: int = Field(
        65536,
        ge=2,
        description="Width of the contrastive space behind the projector's bottleneck.",
        json_schema_extra={"panel": "Model"},
    )

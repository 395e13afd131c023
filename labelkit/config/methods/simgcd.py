"""Options of SimGCD, the baseline under FlipClass."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from labelkit.config.discovery import DiscoveryTrainConfig
from labelkit.config.rows import RowOptions


class SimGCDConfig(RowOptions, DiscoveryTrainConfig):
    """``labelkit train simgcd``; defaults are those of the released code."""

    command: ClassVar[tuple[str, ...]] = ("train", "simgcd")

    views: Literal["simgcd", "weak-strong"] = Field(
        "simgcd",
        description="simgcd: both views from one transform; weak-strong: FlipClass's two views.",
        json_schema_extra={"panel": "Views"},
    )
    symmetric: bool = Field(
        True,
        description="Each view teaches the other; else the first teaches the second.",
        json_schema_extra={"panel": "Loss"},
    )

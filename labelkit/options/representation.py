"""What methods share that learn a representation without a label, and how they are looked at while they learn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field
from pydantic.config import JsonDict

from labelkit.options.backbone import BackboneRunConfig, BackboneTrainConfig, PixelOptions

_DATA: JsonDict = {"panel": "Data"}
_MONITOR: JsonDict = {"panel": "Monitor"}


class RepresentationRunConfig(PixelOptions, BackboneRunConfig):
    """Options of methods that learn a representation without labels, with a kNN monitor."""

    constants: ClassVar[Mapping[str, object]] = {"linear_monitor": False}

    label_split: Literal["auto", "given", "gcd", "few-labels", "class-halves", "none"] = Field(
        "none",
        description="Which images `embed` marks as labeled (values: as in `labelkit train gcd --help`); training "
        "never uses labels.",
        json_schema_extra=_DATA,
    )

    knn_neighbors: int = Field(
        10, ge=1, description="Number of neighbors of the kNN monitor.", json_schema_extra=_MONITOR
    )
    knn_temperature: float = Field(
        0.1,
        gt=0,
        description="Temperature for weighting votes: each neighbor's vote has weight exp(cosine / temperature).",
        json_schema_extra=_MONITOR,
    )


class RepresentationTrainConfig(RepresentationRunConfig, BackboneTrainConfig):
    """Options of representation learning without labels whose length is counted in epochs."""

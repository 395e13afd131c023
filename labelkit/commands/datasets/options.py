"""Options of ``labelkit datasets``."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from labelkit.options.base import option
from labelkit.options.shared import DatasetOptions


class DatasetsConfig(DatasetOptions):
    """Options of ``labelkit datasets``."""

    command: ClassVar[tuple[str, ...]] = ("datasets",)

    dataset: str | None = Field(  # type: ignore[assignment]  # all of them without one
        None, description="Data set to describe in detail; default: a summary of all.", json_schema_extra=option("Data")
    )

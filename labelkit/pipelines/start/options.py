"""Options of ``labelkit start``: from a folder of photos to a table of labels."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field, model_validator

from labelkit.options.base import option
from labelkit.options.shared import LabelColumnOption, ListingOptions, NewClassesOption


class StartConfig(LabelColumnOption, ListingOptions, NewClassesOption):
    """Options of ``labelkit start``."""

    command: ClassVar[tuple[str, ...]] = ("start",)

    photos: Path = Field(
        ..., description="Folder of photos, searched recursively.", json_schema_extra={"positional": True}
    )
    labels: tuple[Path, ...] | None = Field(
        None,
        description="CSV with columns path,label for some photos; repeatable. Labels of earlier calls and those "
        "entered in next.csv, novel.csv and check.csv are kept. Without labels, groups have no names.",
        json_schema_extra=option("Labels", preset=False),
    )
    out: Path | None = Field(
        None,
        description="Output folder; default: PHOTOS-labeled.",
        json_schema_extra=option("Output", preset=False, makes="folder"),
    )
    other_photos: bool = Field(
        False,
        description="Continue in --out although more than half of its earlier photos are missing.",
        json_schema_extra=option("Output", preset=False),
    )
    backbone: str = Field(
        "auto",
        description="Network that embeds the photos: a backbone name, or several joined as A+B; published weights are "
        "downloaded if missing. auto: the best backbone installed, without download; pixels: no network.",
    )
    num_classes: int | None = Field(None, ge=2, description="Number of classes, if you know it; default: estimated.")
    min_confidence: float = Field(0.8, ge=0, le=1, description="Confidence below which a photo is unsure, in [0, 1].")
    num_suggestions: int = Field(
        20,
        ge=1,
        description="Number of photos that next.csv suggests to label next.",
        json_schema_extra={"short": "-n"},
    )
    serve: bool = Field(
        False,
        description='After writing the tables, label in the browser. "Ask again" on the page, and Ctrl-C at the end, '
        "update all tables. Needs starlette and uvicorn.",
        json_schema_extra=option("Labels", preset=False),
    )
    seed: int = Field(0, ge=0, description="Random seed for all steps.", json_schema_extra=option("Run"))
    dry_run: bool = Field(
        False,
        description="Show the steps and the estimated time without writing anything.",
        json_schema_extra=option("Run"),
    )

    @model_validator(mode="after")
    def _column_of_a_table(self) -> StartConfig:
        if self.label_column is not None and not self.labels:
            raise ValueError("--label-column requires --labels FILE")
        return self

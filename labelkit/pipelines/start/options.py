"""Options of ``labelkit start``: from a folder of photos to a table of labels."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field, model_validator

from labelkit.options.base import option
from labelkit.options.shared import LabelColumnOption, ListingOptions, NewClassesOption


class StartConfig(LabelColumnOption, ListingOptions, NewClassesOption):
    """``labelkit start``."""

    command: ClassVar[tuple[str, ...]] = ("start",)

    photos: Path = Field(
        ..., description="Folder of photos; folders in it are searched too.", json_schema_extra={"positional": True}
    )
    labels: tuple[Path, ...] | None = Field(
        None,
        description="CSV path,label of some photos; may be given several times. Labels of earlier calls, and those "
        "filled in in next.csv, novel.csv and check.csv, are kept. Default: none, which gives groups without names.",
        json_schema_extra=option("Labels", preset=False),
    )
    out: Path | None = Field(
        None,
        description="Folder to write; default: PHOTOS-labeled.",
        json_schema_extra=option("Output", preset=False, makes="folder"),
    )
    other_photos: bool = Field(
        False,
        description="Go on in the folder of --out although fewer than half of its photos are there: they were deleted.",
        json_schema_extra=option("Output", preset=False),
    )
    backbone: str = Field(
        "auto",
        description="Network that describes the photos, by name, or several side by side, A+B: published weights are "
        "fetched if they are not here. auto: the best at hand, nothing is fetched; pixels: no network.",
    )
    num_classes: int | None = Field(None, ge=2, description="Number of classes, if you know it; default: estimated.")
    min_confidence: float = Field(0.8, ge=0, le=1, description="Below this confidence a photo is unsure.")
    num_suggestions: int = Field(
        20, ge=1, description="Photos to label next that next.csv lists.", json_schema_extra={"short": "-n"}
    )
    serve: bool = Field(
        False,
        description="Then label in the browser; when that ends (Ctrl-C), write all tables again with the labels from "
        "there. Needs starlette and uvicorn.",
        json_schema_extra=option("Labels", preset=False),
    )
    seed: int = Field(0, ge=0, description="Seed of all steps.", json_schema_extra=option("Run"))
    dry_run: bool = Field(
        False,
        description="Say what would be done and how long it takes; write nothing.",
        json_schema_extra=option("Run"),
    )

    @model_validator(mode="after")
    def _column_of_a_table(self) -> StartConfig:
        if self.label_column is not None and not self.labels:
            raise ValueError("--label-column names a column of --labels FILE")
        return self

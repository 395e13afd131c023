"""Options of growing a few labels (``discover snowball``, ``discover lmcs``) and of ``show discovered``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from labelkit.methods.few_labels.options import CriticalSearchOptions, SearchOptions
from labelkit.methods.few_labels.snowball_options import ConfidentSearchOptions
from labelkit.options.index import IndexConfig
from labelkit.options.retired import RESULT_NAME
from labelkit.options.shared import (
    STORE,
    AddedLabelsOption,
    OverwriteOption,
    SheetOption,
    SplitOption,
    StoredImagesOptions,
    TableOption,
)

_STORE: JsonDict = {"panel": "Store", "preset": False}
_OUTPUT: JsonDict = {"panel": "Output", "preset": False}
_LABELS: JsonDict = {"panel": "Labels"}
_NUMBER: JsonDict = {"panel": "Number of images"}
_RULE: JsonDict = {"panel": "Discovery"}
_IMAGES: JsonDict = {"panel": "Images"}


class DiscoverFewConfig(SearchOptions, TableOption, SplitOption, AddedLabelsOption, IndexConfig):
    """Options shared by ``labelkit discover snowball`` and ``discover lmcs``."""

    num_labels: int | None = Field(
        None,
        ge=1,
        description="Use only this many of the store's labels, equally many per class, and hide all other labels (for "
        "evaluation).",
        json_schema_extra=_LABELS,
    )
    label_seed: int = Field(0, ge=0, description="Random seed for drawing --num-labels.", json_schema_extra=_LABELS)
    count: int | Literal["double"] = Field(
        "double",
        description="Number of images to find per round. double: as many as already have a label.",
        json_schema_extra=_NUMBER,
    )
    per_class: int | None = Field(
        None,
        ge=1,
        description="Number of images to find per class and round, instead of --count.",
        json_schema_extra=_NUMBER,
    )
    missing_class: Literal["error", "skip"] = Field(
        "error",
        description="Handling of classes without a label: stop with an error, or never assign them.",
        json_schema_extra=_RULE,
    )
    rounds: int = Field(
        1,
        ge=1,
        description="Number of rounds; each round treats the images found in earlier rounds as labeled.",
        json_schema_extra=_NUMBER,
    )

    @model_validator(mode="after")
    def _one_choice_of_labels_and_number(self) -> DiscoverFewConfig:
        if self.labels is not None and self.num_labels is not None:
            raise ValueError("pass either --labels FILE or --num-labels N, not both")
        if self.count != "double" and self.count < 0:
            raise ValueError(f"count must be >= 0, or double (value {self.count})")
        if self.per_class is not None and self.count != "double":
            raise ValueError("pass either --count or --per-class, not both")
        if self.per_class is not None and self.balance == "global":
            raise ValueError("--per-class requires --balance balanced")
        return self


class DiscoverSnowballConfig(ConfidentSearchOptions, DiscoverFewConfig):
    """Options of ``labelkit discover snowball``."""

    command: ClassVar[tuple[str, ...]] = ("discover", "snowball")

    fuse_with: tuple[Path, ...] = Field(
        (),
        description="Additional stores of the same images with features from other networks, comma-separated; "
        "--fusion combines the features.",
        json_schema_extra=_STORE,
    )
    select: Literal["min", "far", "random", "max"] = Field(
        "min",
        description="Which of the images near a class to take. min: the nearest; far: the farthest within a confident "
        "set; random: drawn at random; max: the farthest.",
        json_schema_extra=_RULE,
    )
    seed: int = Field(0, ge=0, description="Random seed for --select random.", json_schema_extra=_RULE)

    @model_validator(mode="after")
    def _fusion_needs_stores(self) -> DiscoverSnowballConfig:
        if self.fuse_with and self.fusion == "none":
            raise ValueError("--fuse-with requires --fusion distance, cascade or rank")
        if not self.fuse_with and self.fusion != "none":
            raise ValueError("--fusion requires more stores: pass --fuse-with B.h5,C.h5")
        return self


class DiscoverLMCSConfig(CriticalSearchOptions, DiscoverFewConfig):
    """Options of ``labelkit discover lmcs``."""

    command: ClassVar[tuple[str, ...]] = ("discover", "lmcs")


class ShowDiscoveredConfig(OverwriteOption, StoredImagesOptions, SheetOption):
    """Options of ``labelkit show discovered``."""

    command: ClassVar[tuple[str, ...]] = ("show", "discovered")
    constants: ClassVar[Mapping[str, object]] = {
        "max_points": 5000,
    }

    index: Path | None = Field(
        None, description="Store in which the images were discovered; --map needs it.", json_schema_extra=STORE
    )
    result: str | None = Field(
        None,
        pattern=RESULT_NAME,
        description="Result from discover snowball or discover lmcs; default: the store's only such result.",
        json_schema_extra=_STORE,
    )
    table: Path | None = Field(
        None,
        description="CSV with columns path,label,score,rank,round to show instead of --result: a table written by "
        "discover, or discovered.csv from a training run.",
        json_schema_extra=_STORE,
    )
    generation: int | None = Field(
        None,
        ge=0,
        description="Generation to show if the table has several. Default: the last.",
        json_schema_extra=_STORE,
    )
    out: Path | None = Field(
        None,
        description="PNG for the contact sheet: a block per class, best rank first.",
        json_schema_extra={**_OUTPUT, "makes": "png"},
    )
    map: Path | None = Field(
        None,
        description="PNG for a 2-D map: labeled, discovered and other images after each round.",
        json_schema_extra={**_OUTPUT, "makes": "png"},
    )
    num_images: int = Field(10, ge=1, description="Number of images per class.", json_schema_extra=_IMAGES)
    classes: tuple[str, ...] | None = Field(
        None, description="Only these classes, comma-separated.", json_schema_extra=_IMAGES
    )
    projection: Literal["pca", "tsne"] = Field(
        "pca", description="Projection of the map: principal components, or t-SNE.", json_schema_extra=_OUTPUT
    )
    seed: int = Field(0, ge=0, description="Random seed.", json_schema_extra=_OUTPUT)

    @model_validator(mode="after")
    def _options_fit_each_other(self) -> ShowDiscoveredConfig:
        if self.result is not None and self.table is not None:
            raise ValueError("pass either --result (stored next to the store) or --table (a CSV), not both")
        if self.generation is not None and self.table is None:
            raise ValueError("--generation requires --table")
        return self

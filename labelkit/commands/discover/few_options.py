"""Options for extending a few labels (``discover snowball``, ``discover lmcs``) and for ``show discovered``."""

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from labelkit.methods.few_labels.options import ConfidentSearchOptions, CriticalSearchOptions, SearchOptions
from labelkit.options.base import IMAGES, OUTPUT, STORE, field_factory
from labelkit.options.shared import (
    RESULT_NAME,
    AddedLabelsOption,
    NamedResultConfig,
    OverwriteOption,
    SplitOption,
    StoredImagesOptions,
    TableOption,
)

_LABELS = field_factory("Labels")
_NUMBER = field_factory("Number of images")
_DISCOVERY = field_factory("Discovery")


class DiscoverFewConfig(SearchOptions, TableOption, SplitOption, AddedLabelsOption, NamedResultConfig):
    """Options shared by ``labelkit discover snowball`` and ``discover lmcs``."""

    num_labels: int | None = _LABELS(
        None,
        "Number of labels in the store to use, divided equally among the classes; the others are hidden (for "
        "evaluation).",
        ge=1,
    )
    label_seed: int = _LABELS(0, "Random seed for drawing --num-labels.", ge=0)
    count: int | Literal["double"] = _NUMBER(
        "double", "Number of images to find per round. double: as many as there are labeled images."
    )
    per_class: int | None = _NUMBER(None, "Number of images to find per class and round, instead of --count.", ge=1)
    missing_class: Literal["error", "skip"] = _DISCOVERY(
        "error", "What to do with classes without labels. error: stop with an error; skip: never assign them."
    )
    rounds: int = _NUMBER(1, "Number of rounds; each round treats the images found in earlier rounds as labeled.", ge=1)

    @model_validator(mode="after")
    def _check_labels_or_number(self) -> Self:
        if self.labels is not None and self.num_labels is not None:
            raise ValueError("pass either --labels FILE or --num-labels N, not both")
        if self.count != "double" and self.count < 0:
            raise ValueError(f"--count must be 'double' or an integer >= 0, got {self.count}")
        if self.per_class is not None and self.count != "double":
            raise ValueError("pass either --count or --per-class, not both")
        if self.per_class is not None and self.balance == "global":
            raise ValueError("--per-class requires --balance balanced")
        return self


class DiscoverSnowballConfig(ConfidentSearchOptions, DiscoverFewConfig):
    """Options for ``labelkit discover snowball``."""

    command: ClassVar[tuple[str, ...]] = ("discover", "snowball")

    fuse_with: tuple[Path, ...] = STORE(
        (), "Comma-separated stores of the same images, with features of other networks to combine by --fusion."
    )
    select: Literal["min", "far", "random", "max"] = _DISCOVERY(
        "min",
        "Which images to select, by their distance to the class mean. min: the nearest; max: the farthest; far: the "
        "farthest among the most confident images (10 candidates per image to select); random: drawn at random.",
    )
    seed: int = _DISCOVERY(0, "Random seed for --select random.", ge=0)

    @model_validator(mode="after")
    def _check_fusion_stores(self) -> Self:
        if self.fuse_with and self.fusion == "none":
            raise ValueError("--fuse-with requires --fusion distance, cascade or rank")
        if not self.fuse_with and self.fusion != "none":
            raise ValueError("--fusion requires several stores: pass --fuse-with B.h5,C.h5")
        return self


class DiscoverLMCSConfig(CriticalSearchOptions, DiscoverFewConfig):
    """Options for ``labelkit discover lmcs``."""

    command: ClassVar[tuple[str, ...]] = ("discover", "lmcs")


class ShowDiscoveredConfig(OverwriteOption, StoredImagesOptions):
    """Options for ``labelkit show discovered``."""

    command: ClassVar[tuple[str, ...]] = ("show", "discovered")

    index: Path | None = STORE(None, "Store in which the images were discovered.", aliases=["--store"])
    result: str | None = STORE(
        None,
        "Result from `discover snowball` or `discover lmcs`. Default: the store's only such result.",
        pattern=RESULT_NAME,
    )
    table: Path | None = STORE(
        None,
        "CSV with columns path,label,score,rank,round to show instead of --result: a table written by `discover`, or "
        "discovered.csv from a training run (shows only its last generation).",
    )
    out: Path = OUTPUT(..., "PNG to write: a contact sheet with one block per class, best rank first.", makes="png")
    num_images: int = IMAGES(10, "Number of images per class.", ge=1)
    classes: tuple[str, ...] | None = IMAGES(None, "Show only these classes, comma-separated.")

    @model_validator(mode="after")
    def _check_option_combinations(self) -> Self:
        if self.result is not None and self.table is not None:
            raise ValueError("pass either --result (next to the store) or --table (a CSV), not both")
        return self

"""Options of ``labelkit discover categories``, ``head`` and ``answer``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from labelkit.config.earlier import RESULT_NAME, PreviousOption
from labelkit.config.index import IndexConfig
from labelkit.config.mixins import (
    AddedLabelsOption,
    MinSizeOption,
    NewClassesOption,
    SplitOption,
    TableOption,
)

_MIN_SIZE = str(MinSizeOption.model_fields["min_size"].description)
_STORE: JsonDict = {"panel": "Store", "preset": False}
_OUTPUT: JsonDict = {"panel": "Output", "preset": False}


class DiscoverCategoriesConfig(
    SplitOption,
    AddedLabelsOption,
    MinSizeOption,
    NewClassesOption,
    PreviousOption,
    IndexConfig,
):
    """``labelkit discover categories``."""

    command: ClassVar[tuple[str, ...]] = ("discover", "categories")
    # these acted with criteria that are gone, and these are refused
    retired_fields: ClassVar[frozenset[str]] = frozenset({"search", "num_draws"})
    constants: ClassVar[Mapping[str, object]] = {"max_rows": 3000}

    criterion: Literal["auto", "published"] = Field(
        "auto",
        description="How to judge a number of classes. auto: by the share of the images that look like classes with "
        "labels, and by dense groups; published: by the labels that k-means of all rows gets right, as in GCD.",
    )
    num_classes: int | None = Field(
        None, ge=1, description="Classes to make, if their number is known; default: it is estimated."
    )
    grouping: Literal["tree", "k-means"] = Field(
        "tree",
        description="How rows are put into classes. tree: near rows are joined step by step, in directions that "
        "labels show to matter; k-means: k-means that keeps the rows of a class with labels together.",
    )
    min_size: int = Field(2, ge=1, description=_MIN_SIZE)
    levels: int = Field(
        1,
        ge=1,
        le=5,
        description="Levels of classes. 1: classes alone; 2: also groups of similar classes; 3: also groups of these.",
    )
    min_classes: int | None = Field(None, ge=1, description="Fewest classes tried; default: those with labels, or 2.")
    max_classes: int | None = Field(
        None,
        ge=2,
        description="Most classes tried; default: 1,000 or a third of the rows, whichever is less. With published it "
        "is a tenth, and the range grows, up to 1,000, while its end fits best.",
    )
    num_inits: int = Field(
        10,
        ge=1,
        description="Starts of k-means, with --grouping k-means or --criterion published; the lowest inertia wins.",
    )
    seed: int = Field(0, ge=0, description="Seed of draws and starts.")
    plot: Path | None = Field(
        None,
        description="Also draw the curves, and with --levels the tree, to this PNG.",
        json_schema_extra={**_OUTPUT, "makes": "png"},
    )

    @model_validator(mode="after")
    def _a_known_number_is_not_searched(self) -> DiscoverCategoriesConfig:
        if self.plot is not None and self.num_classes is not None and self.levels == 1:
            raise ValueError("--plot has nothing to draw with --num-classes alone; pass --levels too, or leave it out")
        for name in ("min_classes", "max_classes"):
            if self.num_classes is not None and getattr(self, name) is not None:
                raise ValueError(
                    f"--{name.replace('_', '-')} is for a number that is estimated; leave out --num-classes"
                )
        return self


class DiscoverHeadConfig(PreviousOption, IndexConfig):
    """``labelkit discover head``."""

    command: ClassVar[tuple[str, ...]] = ("discover", "head")

    temperature: float = Field(
        0.1, gt=0, description="Softmax temperature of the confidence (the methods' student temperature)."
    )


class DiscoverAnswerConfig(TableOption, AddedLabelsOption, IndexConfig):
    """``labelkit discover answer``."""

    command: ClassVar[tuple[str, ...]] = ("discover", "answer")

    grouping: str | None = Field(
        None,
        pattern=RESULT_NAME,
        description="Result that groups the rows: one of discover head, discover categories, cluster ss-kmeans; "
        "default: the first of these that is there.",
        json_schema_extra=_STORE,
    )
    num_clusters: int | None = Field(
        None,
        ge=1,
        description="First group the rows into this number of groups, as discover categories does. The result is "
        "named by --grouping, else categories. Default: take a result that is there.",
        json_schema_extra=_STORE,
    )
    max_rows: int = Field(
        50_000,
        ge=100,
        description="Most rows answered together, drawn at random; up to half of them have labels. The rest is "
        "answered by what these say of near rows.",
    )
    plot: Path | None = Field(
        None,
        description="Also draw the reliability of the calibration to this PNG.",
        json_schema_extra={**_OUTPUT, "makes": "png"},
    )
    min_confidence: float = Field(0.8, ge=0, le=1, description="Below this confidence an image is unsure.")
    coverage: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Also apply a conformal rule. An image is unsure unless one group is left when this share of "
        "the images of classes with labels keeps its class. Default: not applied.",
    )
    calibration_labels: Path | None = Field(
        None,
        description="Calibrate on these labels, which nothing was trained with: a CSV path,label or a result of "
        "`labelkit label`. Default: labels of the store, hidden from repeated clusterings.",
        json_schema_extra={"panel": "Calibration"},
    )
    calibration_share: float = Field(
        0.3,
        gt=0,
        lt=1,
        description="Share of each class's labels hidden in a round. At least one label is hidden and one kept.",
        json_schema_extra={"panel": "Calibration"},
    )
    calibration_rounds: int = Field(
        10,
        ge=1,
        description="Rounds with some labels hidden; with new groups, each also hides a fifth of the classes whole.",
        json_schema_extra={"panel": "Calibration"},
    )
    num_inits: int = Field(
        3,
        ge=1,
        description="Starts of the clustering that makes the groups of a round.",
        json_schema_extra={"panel": "Calibration"},
    )
    seed: int = Field(0, ge=0, description="Seed of what is hidden and of the starts.")

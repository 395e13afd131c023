"""Options of ``labelkit discover categories``, ``head`` and ``answer``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from labelkit.options.index import IndexConfig
from labelkit.options.retired import RESULT_NAME, PreviousOption
from labelkit.options.shared import AddedLabelsOption, NewClassesOption, SplitOption, TableOption

_STORE: JsonDict = {"panel": "Store", "preset": False}
_OUTPUT: JsonDict = {"panel": "Output", "preset": False}


class DiscoverCategoriesConfig(
    SplitOption,
    AddedLabelsOption,
    NewClassesOption,
    PreviousOption,
    IndexConfig,
):
    """``labelkit discover categories``."""

    command: ClassVar[tuple[str, ...]] = ("discover", "categories")
    # these acted with criteria that are gone, and these are refused
    retired_fields: ClassVar[frozenset[str]] = frozenset({"search", "num_draws"})
    constants: ClassVar[Mapping[str, object]] = {"max_rows": 3000, "levels": 1, "grouping": "tree", "num_inits": 10}

    criterion: Literal["auto", "published"] = Field(
        "auto",
        description="How to judge a number of classes. auto: by labels that are hidden in turn; published: by the "
        "labels that k-means of all rows gets right, as in GCD.",
    )
    num_classes: int | None = Field(
        None, ge=1, description="Classes to make, if their number is known; default: it is estimated."
    )
    min_size: int = Field(
        2,
        ge=1,
        description="Least rows of a group. Smaller ones are set aside while the others are grouped again, and join "
        "the nearest one. Groups with a label are kept.",
    )
    min_classes: int | None = Field(None, ge=1, description="Fewest classes tried; default: those with labels, or 2.")
    max_classes: int | None = Field(
        None,
        ge=2,
        description="Most classes tried; default: 1,000 or a third of the rows, whichever is less. With published it "
        "is a tenth, and the range grows, up to 1,000, while its end fits best.",
    )
    seed: int = Field(0, ge=0, description="Seed of draws and starts.")
    plot: Path | None = Field(
        None,
        description="Also draw the curves to this PNG.",
        json_schema_extra={**_OUTPUT, "makes": "png"},
    )

    @model_validator(mode="after")
    def _a_known_number_is_not_searched(self) -> DiscoverCategoriesConfig:
        if self.plot is not None and self.num_classes is not None:
            raise ValueError("--plot has nothing to draw with --num-classes; leave one out")
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
    constants: ClassVar[Mapping[str, object]] = {
        "max_rows": 50_000,
        "calibration_share": 0.3,
        "calibration_rounds": 10,
        "num_inits": 3,
        "coverage": None,
    }

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
    min_confidence: float = Field(0.8, ge=0, le=1, description="Below this confidence an image is unsure.")
    calibration_labels: Path | None = Field(
        None,
        description="Calibrate on these labels, which nothing was trained with: a CSV path,label or a result of "
        "`labelkit label`. Default: labels of the store, hidden from repeated clusterings.",
    )
    seed: int = Field(0, ge=0, description="Seed of what is hidden.")

"""Options for ``labelkit compare``."""

import re
from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field, field_validator, model_validator

from labelkit.options.base import field_factory
from labelkit.options.shared import DatasetOptions, DeviceOption, ListingOptions, OverwriteOption

_DATA = field_factory("Data")
_RUN = field_factory("Run")
_OUTPUT = field_factory("Output", preset=False)
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class CompareConfig(OverwriteOption, DeviceOption, ListingOptions, DatasetOptions):
    """Options for ``labelkit compare``."""

    command: ClassVar[tuple[str, ...]] = ("compare",)

    methods: tuple[str, ...] = Field(
        (), description="Comma-separated methods to compare (see `labelkit list methods`). Default: all."
    )
    budget: str = Field(
        "10m",
        description="Maximum training time per run, such as 90s, 10m or 2h. Runs that would take longer get fewer "
        "epochs or steps and shorter schedules; no run is longer than its preset.",
    )
    seeds: int = Field(3, ge=1, le=100, description="Number of runs per method (with seeds 0, 1, ...).")

    dataset: str = _DATA(
        "digits", "Name of a dataset (`labelkit list datasets`), folder with a subfolder per class, or CSV with labels."
    )
    holdout: float = _DATA(
        0.25, "Fraction of each class to hold out for evaluation if the dataset has no test split.", gt=0, lt=1
    )
    max_per_class: int | None = _DATA(None, "Maximum number of images per class in each split.", ge=1)
    labels_per_class: int = _DATA(4, "Number of labels per class for few-label methods, redrawn for each seed.", ge=1)
    old_classes: tuple[str, ...] | None = _DATA(
        None,
        "Labeled classes for discovery methods: names, patterns, 0-based numbers, or a file NAME.txt with one class "
        "per line. Default: as defined for the dataset, otherwise half of the classes.",
    )
    label_ratio: float = _DATA(
        0.5,
        "Fraction of the images in labeled classes to label, sampled from the pooled classes rather than per class.",
        gt=0,
        le=1,
    )
    split_seed: int = _DATA(0, "Random seed for --holdout and for the labels of discovery methods.", ge=0)
    neighbors: int = Field(10, ge=1, description="Number of neighbors for the kNN evaluation.")

    keep: Path | None = _OUTPUT(
        None,
        "Folder in which to keep runs, stores and scores, so that the same command can resume. Default: a temporary "
        "folder.",
        makes="folder",
    )
    out: Path | None = _OUTPUT(None, "Also write the results to this JSON file.", makes="json")
    threads: int = _RUN(1, "Number of CPU threads per run.", ge=1)

    resumable_fields: ClassVar[frozenset[str]] = frozenset(
        {"methods", "seeds", "data_root", "keep", "out", "overwrite"}
    )
    """Options that may differ when a comparison is resumed."""

    @field_validator("budget")
    @classmethod
    def _time(cls, value: str) -> str:
        if not re.fullmatch(r"\d+(\.\d+)?[smh]", value) or float(value[:-1]) == 0:
            raise ValueError("must be a number followed by s, m or h, such as 90s, 10m or 2h")
        return value

    @model_validator(mode="after")
    def _check_old_class_choice(self) -> Self:
        if self.old_classes is not None and not self.old_classes:
            raise ValueError("--old-classes must contain at least one class")
        return self

    @property
    def budget_seconds(self) -> float:
        """Maximum training time per run in seconds."""
        return float(self.budget[:-1]) * _UNITS[self.budget[-1]]

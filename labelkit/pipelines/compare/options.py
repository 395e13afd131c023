"""Options of ``labelkit compare``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pydantic import Field, field_validator, model_validator
from pydantic.config import JsonDict

from labelkit.options.base import option
from labelkit.options.shared import DatasetOptions, DeviceOption, ListingOptions, OverwriteOption

_DATA: JsonDict = {"panel": "Data"}
_RUN: JsonDict = {"panel": "Run"}
_OUTPUT: JsonDict = option("Output", preset=False)
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class CompareConfig(OverwriteOption, DeviceOption, ListingOptions, DatasetOptions):
    """Options of ``labelkit compare``."""

    command: ClassVar[tuple[str, ...]] = ("compare",)
    constants: ClassVar[Mapping[str, object]] = {"method_preset": None, "jobs": 1}

    methods: tuple[str, ...] = Field(
        (), description="Methods to compare, comma-separated (`labelkit list methods`); default: all."
    )
    budget: str = Field(
        "10m",
        description="Training time per run, such as 90s, 10m or 2h. A run that would take longer gets fewer epochs or "
        "steps and shorter schedules, never longer ones than its preset.",
    )
    seeds: int = Field(3, ge=1, le=100, description="Number of runs per method, with seeds 0, 1, ...")

    dataset: str = Field(
        "digits",
        description="A registered name (`labelkit list datasets`), a folder of class folders, or a CSV with labels.",
        json_schema_extra=_DATA,
    )
    holdout: float = Field(
        0.25,
        gt=0,
        lt=1,
        description="Fraction of each class held out for evaluation if the data set has no test split.",
        json_schema_extra=_DATA,
    )
    max_per_class: int | None = Field(
        None, ge=1, description="Maximum images per class in each split.", json_schema_extra=_DATA
    )
    labels_per_class: int = Field(
        4,
        ge=1,
        description="Labels per class for few-label methods, drawn again for each seed.",
        json_schema_extra=_DATA,
    )
    num_old_classes: int | None = Field(
        None,
        ge=1,
        description="Number of labeled classes for discovery methods; default: the data set's definition, else half.",
        json_schema_extra=_DATA,
    )
    old_classes: tuple[str, ...] | None = Field(
        None,
        description="Labeled classes for discovery methods, instead of --num-old-classes: names, patterns, numbers "
        "from 0, or a file NAME.txt with one per line.",
        json_schema_extra=_DATA,
    )
    label_ratio: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Fraction of the labeled classes' images that get a label, drawn from all these images together.",
        json_schema_extra=_DATA,
    )
    split_seed: int = Field(
        0,
        ge=0,
        description="Random seed for --holdout and for the labels of discovery methods.",
        json_schema_extra=_DATA,
    )
    neighbors: int = Field(10, ge=1, description="Number of neighbors of the kNN evaluation.")

    keep: Path | None = Field(
        None,
        description="Keep runs, stores and scores in this folder; the same command continues from there. Default: a "
        "temporary folder.",
        json_schema_extra={**_OUTPUT, "makes": "folder"},
    )
    out: Path | None = Field(
        None, description="Also write the result as JSON.", json_schema_extra={**_OUTPUT, "makes": "json"}
    )
    threads: int = Field(1, ge=1, description="CPU threads per run.", json_schema_extra=_RUN)

    resumable_fields: ClassVar[frozenset[str]] = frozenset(
        {"methods", "seeds", "data_root", "keep", "out", "overwrite"}
    )
    """Options that may differ when a kept comparison goes on."""

    @field_validator("budget")
    @classmethod
    def _time(cls, value: str) -> str:
        if not re.fullmatch(r"\d+(\.\d+)?[smh]", value) or float(value[:-1]) == 0:
            raise ValueError("must be a number with s, m or h, like 90s, 10m or 2h")
        return value

    @model_validator(mode="after")
    def _one_choice_of_old_classes(self) -> CompareConfig:
        if self.old_classes is not None and self.num_old_classes is not None:
            raise ValueError("old_classes and num_old_classes cannot be combined")
        if self.old_classes is not None and not self.old_classes:
            raise ValueError("old_classes names no class")
        return self

    @property
    def budget_seconds(self) -> float:
        """Training time allowed per run, in seconds."""
        return float(self.budget[:-1]) * _UNITS[self.budget[-1]]

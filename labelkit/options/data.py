"""Which images, and which of their labels may be used: shared by every command that reads images."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator
from pydantic.config import JsonDict

from labelkit.options.shared import DatasetOptions, ListingOptions

_DATA: JsonDict = {"panel": "Data"}


class DataConfig(ListingOptions, DatasetOptions):
    """Options that say what to read."""

    #: What ``label_split`` auto means for a named set whose labels are all given.
    full_label_split: ClassVar[Literal["gcd", "few-labels"]] = "gcd"

    download: bool = Field(
        False,
        description="Fetch a named set into --data-root when it is not there (needs a network).",
        json_schema_extra=_DATA,
    )
    split: str = Field(
        "auto",
        description="Part of the set to use: a split's name, or all; auto = train if there is one, else all.",
        json_schema_extra=_DATA,
    )
    holdout: float | Literal["odd", "auto"] | None = Field(
        None,
        description="In a set without a test split, or with --pool-splits: make one. A number between 0 and 1 is the "
        "share of each class, drawn by --split-seed. odd takes every second image. The rest is split train. "
        "auto: 0.2 in a set without splits of its own; else, or with --holdout-classes, nothing.",
        json_schema_extra=_DATA,
    )
    pool_splits: bool = Field(
        False,
        description="With --holdout in a set that has splits: draw from all of its images, and forget its splits.",
        json_schema_extra={**_DATA, "before": False},
    )
    holdout_classes: tuple[str, ...] | None = Field(
        None,
        description="Make whole classes the split test and the others train, instead of the set's own splits. "
        "half: the second half, as published for cub and scars; first-half; or class names, patterns "
        "('Greek_*') and numbers from 0 ('5-9').",
        json_schema_extra=_DATA,
    )
    label_split: Literal["auto", "given", "gcd", "few-labels", "class-halves", "none"] = Field(
        "auto",
        description="Which labels training may use. gcd: --label-ratio of the images of the old classes; "
        "few-labels: --num-labels in equal parts; class-halves: the first half of the classes, the "
        "rest held out; given: all labels there are; none: no label. auto = few-labels with --num-labels; gcd with its "
        "options, and for named sets; given for your own folder or CSV.",
        json_schema_extra=_DATA,
    )
    num_old_classes: int | None = Field(
        None,
        ge=1,
        description="Classes with labels (gcd): the first of the published order of a benchmark (old classes, then "
        "new), else of the class order. Default: what the set defines, else half.",
        json_schema_extra=_DATA,
    )
    old_classes: tuple[str, ...] | None = Field(
        None,
        description="Classes with labels (gcd), instead of --num-old-classes: names, patterns ('Greek_*') and numbers "
        "from 0 ('5-9'), comma-separated; half or first-half; or one file NAME.txt with one of these in each line.",
        json_schema_extra=_DATA,
    )
    label_ratio: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Share of old-class images with a label (gcd; default of the benchmark), drawn from all of these "
        "images together, as published, not per class: a rare class may get none, which a warning says.",
        json_schema_extra=_DATA,
    )
    num_labels: int | None = Field(
        None, ge=1, description="Labels in all, the same number in each class (few-labels).", json_schema_extra=_DATA
    )
    max_per_class: int | None = Field(
        None,
        ge=1,
        description="Most images of each class, the first in the order of their ids. Images without a known class "
        "count as one class.",
        json_schema_extra=_DATA,
    )
    imbalance_factor: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Cut the training images to a long tail: the rarest class keeps this share of the most frequent.",
        json_schema_extra=_DATA,
    )
    split_seed: int = Field(
        0, ge=0, description="Seed of the choice of labels; apart from --seed.", json_schema_extra=_DATA
    )
    label_seed: int | None = Field(
        None,
        ge=0,
        description="Seed of the draw of --num-labels. It leaves --holdout as it is. Default: --split-seed.",
        json_schema_extra=_DATA,
    )
    max_bad: float = Field(
        0.01,
        ge=0,
        lt=1,
        description="Largest share of unreadable images. They are skipped and listed; more is an error.",
        json_schema_extra=_DATA,
    )
    strict: bool = Field(False, description="One unreadable image is an error.", json_schema_extra=_DATA)

    @field_validator("holdout")
    @classmethod
    def _share(cls, value: float | str | None) -> float | str | None:
        if isinstance(value, float) and not 0 < value < 1:
            raise ValueError("must be > 0 and < 1")
        return value

    @model_validator(mode="after")
    def _one_holdout(self) -> DataConfig:
        if self.holdout not in (None, "auto") and self.holdout_classes is not None:
            raise ValueError("holdout and holdout_classes exclude each other")
        if self.holdout_classes is not None and not self.holdout_classes:
            raise ValueError("holdout_classes names no class")
        if self.pool_splits and self.holdout is None:
            raise ValueError("pool_splits goes with holdout")
        return self

    @model_validator(mode="after")
    def _one_choice_of_old_classes(self) -> DataConfig:
        if self.old_classes is not None and self.num_old_classes is not None:
            raise ValueError("old_classes and num_old_classes exclude each other")
        if self.old_classes is not None and not self.old_classes:
            raise ValueError("old_classes names no class")
        return self

    @property
    def knows_classes(self) -> bool:
        """Whether it says how labels are split, so that folders are classes, of a single image too."""
        asked = self.old_classes is not None or self.num_old_classes is not None
        return asked or self.label_split != "auto"

    @property
    def main_dataset(self) -> str:
        """The set that a run is called after."""
        return self.dataset

    @property
    def has_objects(self) -> bool:
        """Whether ``dataset`` names images; if not, there are only scenes."""
        return True

    def scenes(self) -> DataConfig | None:
        """Return the options of images of several objects, whose labels are never used; ``None`` if there are none."""
        return None

    @property
    def bad_limit(self) -> float:
        """Share of unreadable images that is let pass, in [0, 1)."""
        return 0.0 if self.strict else self.max_bad

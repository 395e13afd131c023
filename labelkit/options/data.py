"""Options for images and labels, shared by all commands that read images."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import field_validator, model_validator

from labelkit.options.base import DATA
from labelkit.options.shared import DatasetOptions, ListingOptions


class DataConfig(ListingOptions, DatasetOptions):
    """Options for the images to read and the labels to use."""

    #: Value that ``label_split`` auto stands for with a fully labeled registered dataset.
    full_label_split: ClassVar[Literal["gcd", "few-labels"]] = "gcd"

    download: bool = DATA(False, "Download a registered dataset to --data-root if it is missing.")
    split: str = DATA("auto", "Split to use, or all. auto: train if it exists, otherwise all.")
    holdout: float | Literal["odd", "auto"] | None = DATA(
        None,
        "Hold out a test split if the dataset has none, or with --pool-splits: a fraction in (0, 1) of each class, "
        "drawn with --split-seed, or odd (every second image). The remaining images form the train split. auto: 0.2 "
        "for a dataset without splits, otherwise none.",
    )
    pool_splits: bool = DATA(
        False, "Draw the --holdout split from all images and ignore the dataset's own splits.", before=False
    )
    holdout_classes: tuple[str, ...] | None = DATA(
        None,
        "Use whole classes as the test split and the remaining classes as the train split. half: the second half, as "
        "published for cub and scars; first-half: the first half; or names, patterns ('Greek_*') and 0-based numbers "
        "('5-9').",
    )
    label_split: Literal["auto", "given", "gcd", "few-labels", "none"] = DATA(
        "auto",
        "Labels that training may use. gcd: labels of a fraction --label-ratio of the images in the old classes; "
        "few-labels: --num-labels in total, divided equally among the classes; given: all existing labels; none: no "
        "labels. auto: few-labels with --num-labels; gcd with its options and for registered datasets; given for your "
        "own folder or CSV.",
    )
    num_old_classes: int | None = DATA(
        None,
        "Number of labeled classes (with --label-split gcd): the first classes in the benchmark's published order, or "
        "else in class order. Default: as defined for the dataset, otherwise half of the classes.",
        ge=1,
    )
    old_classes: tuple[str, ...] | None = DATA(
        None,
        "Labeled classes (with --label-split gcd), instead of --num-old-classes: comma-separated names, patterns "
        "('Greek_*') and 0-based numbers ('5-9'); half (the second half) or first-half.",
    )
    label_ratio: float = DATA(
        0.5,
        "Fraction of the images in the old classes to label (with --label-split gcd). They are sampled from the pooled "
        "old classes, as published, so a rare class may get no label. Presets set the published value.",
        gt=0,
        le=1,
    )
    num_labels: int | None = DATA(
        None, "Total number of labels, divided equally among the classes (with --label-split few-labels).", ge=1
    )
    max_per_class: int | None = DATA(
        None,
        "Maximum number of images per class; the first in id order are used. Images without a known class count as "
        "one class.",
        ge=1,
    )
    imbalance_factor: float | None = DATA(
        None,
        "Subsample the training set to a long-tailed class distribution. The value is the size of the rarest class "
        "divided by that of the most frequent class, such as 0.01.",
        gt=0,
        le=1,
    )
    split_seed: int = DATA(0, "Random seed for splits and labels, independent of --seed.", ge=0)
    label_seed: int | None = DATA(
        None, "Random seed for drawing --num-labels; does not affect --holdout. Default: --split-seed.", ge=0
    )
    max_bad: float = DATA(0.01, "Maximum fraction of unreadable images; these are skipped and listed.", ge=0, lt=1)

    @field_validator("holdout")
    @classmethod
    def _share(cls, value: float | str | None) -> float | str | None:
        if isinstance(value, float) and not 0 < value < 1:
            raise ValueError("must be > 0 and < 1")
        return value

    @model_validator(mode="after")
    def _check_combinations(self) -> DataConfig:
        if self.holdout not in (None, "auto") and self.holdout_classes is not None:
            raise ValueError("--holdout and --holdout-classes cannot be combined")
        if self.holdout_classes is not None and not self.holdout_classes:
            raise ValueError("--holdout-classes must contain at least one class")
        if self.pool_splits and self.holdout is None:
            raise ValueError("--pool-splits requires --holdout")
        if self.old_classes is not None and self.num_old_classes is not None:
            raise ValueError("--old-classes and --num-old-classes cannot be combined")
        if self.old_classes is not None and not self.old_classes:
            raise ValueError("--old-classes must contain at least one class")
        return self

    @property
    def has_label_split(self) -> bool:
        """Whether a label split is requested, so that every folder is a class, even with a single image."""
        selects = self.old_classes is not None or self.num_old_classes is not None
        return selects or self.label_split != "auto"

    @property
    def main_dataset(self) -> str:
        """Dataset after which the run is named."""
        return self.dataset

    @property
    def uses_object_images(self) -> bool:
        """Whether images from ``dataset`` are used, and not only scene images."""
        return True

    def scene_config(self) -> DataConfig | None:
        """Return the data options for scene images, whose labels are never used, or ``None`` if no scenes are used."""
        return None

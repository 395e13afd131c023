"""Options for ``labelkit find``: near-duplicates, outliers, label errors, and images of unlabeled classes."""

from pathlib import Path
from typing import ClassVar

from pydantic import field_validator

from labelkit.options.base import OUTPUT, STORE, field_factory
from labelkit.options.shared import (
    RESULT_NAME,
    AddedLabelsOption,
    IndexOption,
    OverwriteOption,
    SplitOption,
    StoredImagesOptions,
)

_SELECTION = field_factory("Selection")
_SELECTION_ONLY = field_factory("Selection", preset=False)


class FindConfig(OverwriteOption, StoredImagesOptions, SplitOption, IndexOption):
    """Options shared by the ``labelkit find`` commands."""

    out: Path = OUTPUT(..., "CSV to write.", makes="csv")
    sheet: Path | None = OUTPUT(None, "Also save a contact sheet to this PNG.", makes="png")


class FindDuplicatesConfig(FindConfig):
    """Options for ``labelkit find duplicates``."""

    command: ClassVar[tuple[str, ...]] = ("find", "duplicates")

    bursts: bool = _SELECTION(True, "Also list different photos of the same scene, with the kind 'same scene'.")
    cache: Path | None = STORE(
        None,
        "Cache file NAME.npz with thumbnails and pairwise similarities (4 kB per image). It is read if it exists, "
        "then updated, so that later runs read and compare only new images.",
    )
    neighbors: int = _SELECTION(
        10, "Number of nearest neighbors, by embedding and by pixels, to compare with each image.", ge=1, le=200
    )

    @field_validator("cache")
    @classmethod
    def _check_cache_name(cls, path: Path | None) -> Path | None:
        if path is not None and path.suffix != ".npz":
            raise ValueError("must end in .npz")
        return path


class FindOddConfig(FindConfig):
    """Options for ``labelkit find odd``."""

    command: ClassVar[tuple[str, ...]] = ("find", "odd")

    neighbors: int = _SELECTION(
        5, "Rank of the neighbor whose distance is the outlier score (5: the fifth nearest).", ge=1, le=200
    )


class FindMislabeledConfig(AddedLabelsOption, FindConfig):
    """Options for ``labelkit find mislabeled``."""

    command: ClassVar[tuple[str, ...]] = ("find", "mislabeled")


class FindNovelConfig(FindConfig):
    """Options for ``labelkit find novel``."""

    command: ClassVar[tuple[str, ...]] = ("find", "novel")

    answer: str | None = STORE(
        None,
        "Result of `discover answer` that contains the labels and groups. Default: the newest of answer, answer-2, ...",
        pattern=RESULT_NAME,
    )
    previous: Path | None = _SELECTION_ONLY(
        None,
        "Earlier store whose images are not listed. Images that are closer to each other than to any earlier or "
        "labeled image are listed first.",
    )
    skip: Path | None = STORE(
        None, "CSV with a path column that lists images reviewed earlier. These are listed only if no others are left."
    )
    num_images: int = _SELECTION(100, "Number of images to list.", ge=1, short="-n")

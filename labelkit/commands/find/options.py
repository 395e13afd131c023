"""Options of ``labelkit find``: images that come twice, odd ones, wrong labels, and images of classes without any."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from labelkit.options.base import panel
from labelkit.options.retired import RESULT_NAME
from labelkit.options.shared import (
    AddedLabelsOption,
    IndexOption,
    OverwriteOption,
    SheetOption,
    SplitOption,
    StoredImagesOptions,
)

_STORE = panel("Store", preset=False)
_SELECTION = panel("Selection", preset=False)
_WHICH = panel("Selection")
_OUTPUT = panel("Output", preset=False)


class FindConfig(OverwriteOption, StoredImagesOptions, SheetOption, SplitOption, IndexOption):
    """Options shared by the ``labelkit find`` commands."""

    out: Path = _OUTPUT(..., "CSV to write.", makes="csv")
    sheet: Path | None = _OUTPUT(None, "Also save a contact sheet in this PNG.", makes="png")


class FindDuplicatesConfig(FindConfig):
    """Options of ``labelkit find duplicates``."""

    command: ClassVar[tuple[str, ...]] = ("find", "duplicates")

    bursts: bool = _WHICH(True, "Also list different photos of the same scene, as kind burst.")
    neighbors: int = _WHICH(
        10, "Number of nearest images to compare each image with, by embedding and again by pixels.", ge=1, le=200
    )


class FindOddConfig(FindConfig):
    """Options of ``labelkit find odd``."""

    command: ClassVar[tuple[str, ...]] = ("find", "odd")

    neighbors: int = _WHICH(
        5, "Rank of the neighbor whose distance is the outlier score (5: the fifth nearest).", ge=1, le=200
    )


class FindMislabeledConfig(AddedLabelsOption, FindConfig):
    """Options of ``labelkit find mislabeled``."""

    command: ClassVar[tuple[str, ...]] = ("find", "mislabeled")


class FindNovelConfig(FindConfig):
    """Options of ``labelkit find novel``."""

    command: ClassVar[tuple[str, ...]] = ("find", "novel")

    answer: str | None = _STORE(
        None,
        "Result from `discover answer` to take labels and groups from; default: the newest (answer, answer-2, ...).",
        pattern=RESULT_NAME,
    )
    previous: Path | None = _SELECTION(
        None,
        "Earlier store. List only images that are not in it, starting with those closer to each other "
        "than to any earlier or labeled image.",
    )
    num_images: int = _WHICH(100, "Number of images to list.", ge=1, short="-n")

"""Options of ``labelkit find``: images that come twice, odd ones, wrong labels, and images of classes without any."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from labelkit.options.base import option
from labelkit.options.retired import RESULT_NAME
from labelkit.options.shared import (
    AddedLabelsOption,
    IndexOption,
    OverwriteOption,
    SheetOption,
    SplitOption,
    StoredImagesOptions,
)

_WHICH = option("Selection")
_OUTPUT = option("Output", preset=False)


class FindConfig(OverwriteOption, StoredImagesOptions, SheetOption, SplitOption, IndexOption):
    """Options shared by the ``labelkit find`` commands."""

    out: Path = Field(..., description="CSV to write.", json_schema_extra={**_OUTPUT, "makes": "csv"})
    sheet: Path | None = Field(
        None, description="Also save a contact sheet in this PNG.", json_schema_extra={**_OUTPUT, "makes": "png"}
    )


class FindDuplicatesConfig(FindConfig):
    """Options of ``labelkit find duplicates``."""

    command: ClassVar[tuple[str, ...]] = ("find", "duplicates")

    bursts: bool = Field(
        True, description="Also list different photos of the same scene (kind burst).", json_schema_extra=_WHICH
    )
    neighbors: int = Field(
        10,
        ge=1,
        le=200,
        description="Number of nearest images with which each image is compared, by embedding and by pixels.",
        json_schema_extra=_WHICH,
    )


class FindOddConfig(FindConfig):
    """Options of ``labelkit find odd``."""

    command: ClassVar[tuple[str, ...]] = ("find", "odd")

    neighbors: int = Field(
        5,
        ge=1,
        le=200,
        description="Rank of the neighbor whose distance is the outlier score (5: the fifth nearest).",
        json_schema_extra=_WHICH,
    )


class FindMislabeledConfig(AddedLabelsOption, FindConfig):
    """Options of ``labelkit find mislabeled``."""

    command: ClassVar[tuple[str, ...]] = ("find", "mislabeled")


class FindNovelConfig(FindConfig):
    """Options of ``labelkit find novel``."""

    command: ClassVar[tuple[str, ...]] = ("find", "novel")

    answer: str | None = Field(
        None,
        pattern=RESULT_NAME,
        description="Result from `discover answer` to take labels and groups from; default: the newest (answer, "
        "answer-2, ...).",
        json_schema_extra=option("Store", preset=False),
    )
    previous: Path | None = Field(
        None,
        description="Earlier store, whose images are not listed. Images closer to each other than to any earlier or "
        "labeled image are listed first.",
        json_schema_extra=option("Selection", preset=False),
    )
    num_images: int = Field(
        100, ge=1, description="Number of images to list.", json_schema_extra={"panel": "Selection", "short": "-n"}
    )

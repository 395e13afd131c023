"""Options of ``labelkit suggest``."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field
from pydantic.config import JsonDict

from labelkit.options.retired import RESULT_NAME
from labelkit.options.shared import AddedLabelsOption, IndexOption, OverwriteOption, SheetOption, StoredImagesOptions

_STORE: JsonDict = {"panel": "Store", "preset": False}
_RULE: JsonDict = {"panel": "Which"}
_OUTPUT: JsonDict = {"panel": "Output", "preset": False}


class SuggestConfig(OverwriteOption, StoredImagesOptions, SheetOption, IndexOption, AddedLabelsOption):
    """Options of ``labelkit suggest``."""

    command: ClassVar[tuple[str, ...]] = ("suggest",)

    result: str | None = Field(
        None,
        pattern=RESULT_NAME,
        description="Result of cluster or discover, whose groups (and confidence, if any) decide which images "
        "are unsure.",
        json_schema_extra=_STORE,
    )
    out: Path = Field(
        ..., description="CSV to write: path,label,score,reason,guess.", json_schema_extra={**_OUTPUT, "makes": "csv"}
    )
    sheet: Path | None = Field(
        None, description="Also draw the suggested images to this PNG.", json_schema_extra={**_OUTPUT, "makes": "png"}
    )
    num_images: int = Field(
        20, ge=1, description="Number of images to suggest.", json_schema_extra={"panel": "Which", "short": "-n"}
    )
    strategy: Literal["both", "coverage", "typical", "k-center", "uncertainty", "random"] = Field(
        "both",
        description="coverage: images that represent many unlabeled ones (facility location); uncertainty: "
        "images that fit two classes about equally; both: coverage weighted by uncertainty; typical: the center "
        "of each large unlabeled cluster; k-center: the image farthest from all labeled ones; random: an "
        "unbiased sample, for checking.",
        json_schema_extra=_RULE,
    )
    split: str = Field("all", description="Split to choose from, or all.", json_schema_extra=_RULE)
    duplicate_share: float = Field(
        0.005,
        ge=0,
        lt=1,
        description="Squared distance, as a fraction of the mean, up to which images are near-duplicates. Only one "
        "of them is suggested, none if one has a label.",
        json_schema_extra=_RULE,
    )
    seed: int = Field(0, ge=0, description="Seed of k-means and of random choices.", json_schema_extra=_RULE)

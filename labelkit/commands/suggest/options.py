"""Options of ``labelkit suggest``."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field
from pydantic.config import JsonDict

from labelkit.options.retired import RESULT_NAME
from labelkit.options.shared import AddedLabelsOption, IndexOption, OverwriteOption, SheetOption, StoredImagesOptions

_STORE: JsonDict = {"panel": "Store", "preset": False}
_RULE: JsonDict = {"panel": "Selection"}
_OUTPUT: JsonDict = {"panel": "Output", "preset": False}


class SuggestConfig(OverwriteOption, StoredImagesOptions, SheetOption, IndexOption, AddedLabelsOption):
    """Options of ``labelkit suggest``."""

    command: ClassVar[tuple[str, ...]] = ("suggest",)

    result: str | None = Field(
        None,
        pattern=RESULT_NAME,
        description="Result from cluster or discover, whose groups (and confidence, if any) decide which images are "
        "unsure.",
        json_schema_extra=_STORE,
    )
    out: Path = Field(
        ..., description="CSV to write: path,label,score,reason,guess.", json_schema_extra={**_OUTPUT, "makes": "csv"}
    )
    sheet: Path | None = Field(
        None,
        description="Also save the suggested images as a contact sheet in this PNG.",
        json_schema_extra={**_OUTPUT, "makes": "png"},
    )
    num_images: int = Field(
        20, ge=1, description="Number of images to suggest.", json_schema_extra={"panel": "Selection", "short": "-n"}
    )
    strategy: Literal["both", "coverage", "typical", "k-center", "uncertainty", "random"] = Field(
        "both",
        description="How to choose images. coverage: images that represent many unlabeled images (facility location); "
        "uncertainty: images that fit two classes about equally; both: coverage weighted by uncertainty; typical: the "
        "center of each large unlabeled cluster; k-center: the image farthest from all labeled images; random: an "
        "unbiased sample, for checking.",
        json_schema_extra=_RULE,
    )
    split: str = Field("all", description="Split to choose from, or all.", json_schema_extra=_RULE)
    duplicate_share: float = Field(
        0.005,
        ge=0,
        lt=1,
        description="Maximum squared distance between near-duplicates, as a fraction of the mean squared distance "
        "between images. Only one of several near-duplicates is suggested, and none if one of them has a label.",
        json_schema_extra=_RULE,
    )
    seed: int = Field(0, ge=0, description="Random seed for k-means and random choices.", json_schema_extra=_RULE)

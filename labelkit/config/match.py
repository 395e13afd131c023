"""Options of ``labelkit match``."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field
from pydantic.config import JsonDict

from labelkit.config.mixins import STORE, OverwriteOption, StoredImagesOptions

_RUN: JsonDict = {"panel": "Run"}
_STORE: JsonDict = {"panel": "Store", "preset": False}
_OUTPUT: JsonDict = {"panel": "Output", "preset": False}


class MatchConfig(OverwriteOption, StoredImagesOptions):
    """``labelkit match``."""

    command: ClassVar[tuple[str, ...]] = ("match",)

    index: Path = Field(
        ...,
        description="Store whose embeddings say which images are worth comparing, NAME.h5.",
        json_schema_extra=STORE,
    )
    split: str = Field("all", description="Rows to compare: a split's name, or all.", json_schema_extra=_STORE)

    num_clusters: int | None = Field(
        None,
        ge=1,
        description="k-means clusters; only images of the same cluster are compared (TAC-CCL: the number used in "
        "training). Default: all images are compared.",
    )
    candidates: int = Field(20, ge=1, description="Compare every image with this number of nearest images.")
    partners: int = Field(2, ge=1, description="Most partners to keep of every image, those with most inliers.")
    shorter_side: int = Field(256, ge=32, le=2048, description="Images are resized to this, in pixels.")
    max_tilt: int = Field(
        3,
        ge=0,
        le=6,
        description="Largest simulated tilt, as a power of the square root of 2; 0: none; 5 is OpenCV's default.",
    )
    max_keypoints: int = Field(2000, ge=8, description="Most keypoints of an image, the strongest.")
    ratio: float = Field(
        0.75, gt=0, le=1, description="A match must be closer than this share of the distance of the second best."
    )
    min_inliers: int = Field(15, ge=4, description="Fewest matched keypoints that one homography must explain.")
    min_inlier_ratio: float = Field(
        0.5, gt=0, le=1, description="Smallest share of the matched keypoints that one homography must explain."
    )
    seed: int = Field(0, ge=0, description="Seed of the clustering.")

    cache: bool = Field(
        True,
        description="Look in the user's cache first, and keep there what was found: the same command goes on where it "
        "was stopped.",
        json_schema_extra=_RUN,
    )
    threads: int | None = Field(
        None, ge=1, description="Images worked on at a time; default: one per CPU core.", json_schema_extra=_RUN
    )
    out: Path | None = Field(
        None, description="File to write; default: INDEX-matches.h5.", json_schema_extra={**_OUTPUT, "makes": "matches"}
    )
    sheet: Path | None = Field(
        None, description="Also draw some of the matches to this PNG.", json_schema_extra={**_OUTPUT, "makes": "png"}
    )

"""Options of ``labelkit report``."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field
from pydantic.config import JsonDict

from labelkit.options.retired import RESULT_NAME
from labelkit.options.shared import IndexOption, LabelsOption, StoredImagesOptions

_STORE: JsonDict = {"panel": "Store", "preset": False}
_PAGE: JsonDict = {"panel": "Page"}
_PAGE_ONLY: JsonDict = {"panel": "Page", "preset": False}
_IMAGES: JsonDict = {"panel": "Images"}

_BYTES = {"kB": 10**3, "MB": 10**6, "GB": 10**9}


class ReportConfig(StoredImagesOptions, LabelsOption, IndexOption):
    """Options of ``labelkit report``."""

    command: ClassVar[tuple[str, ...]] = ("report",)

    result: str | None = Field(
        None,
        pattern=RESULT_NAME,
        description="Result whose groups are shown; default: classes rather than clusters, and preferably with "
        "a confidence.",
        json_schema_extra=_STORE,
    )
    run: Path | None = Field(
        None,
        description="Run folder whose training curves are shown; default: the run that the store was made from.",
        json_schema_extra=_STORE,
    )
    tables: Path | None = Field(
        None,
        description="Folder with tables to show: check.csv (find mislabeled), novel.csv, odd.csv, duplicates.csv, "
        "next.csv (suggest).",
        json_schema_extra=_STORE,
    )
    out: Path = Field(..., description="Page to write, NAME.html.", json_schema_extra={**_PAGE_ONLY, "makes": "html"})
    overwrite: bool = Field(False, description="Replace the page in --out.", json_schema_extra=_PAGE_ONLY)
    max_size: str = Field(
        "60MB",
        pattern=r"^[0-9]+(\.[0-9]+)?\s*(kB|MB|GB)$",
        description="Maximum file size of the page; thumbnail size and quality adapt to it.",
        json_schema_extra=_PAGE,
    )
    projection: Literal["pca", "tsne"] = Field(
        "tsne",
        description="Projection of the map: principal components, or t-SNE (half a minute for 10,000 images).",
        json_schema_extra=_PAGE,
    )
    neighbors: int = Field(
        12, ge=1, le=64, description="Number of nearest neighbors to show per image.", json_schema_extra=_PAGE
    )
    seed: int = Field(0, ge=0, description="Random seed.", json_schema_extra=_PAGE)
    max_images: int = Field(
        20_000,
        ge=1,
        le=65_535,
        description="Maximum number of images on the page, drawn by --seed. Sizes and scores cover all images.",
        json_schema_extra=_IMAGES,
    )
    examples: int = Field(
        18,
        ge=1,
        le=200,
        description="Number of representative and of borderline images per group.",
        json_schema_extra=_IMAGES,
    )

    @property
    def max_bytes(self) -> int:
        """Maximum file size of the page in bytes."""
        return int(Decimal(self.max_size[:-2].strip()) * _BYTES[self.max_size[-2:]])

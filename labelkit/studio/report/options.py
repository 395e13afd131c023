"""Options for ``labelkit report``."""

from decimal import Decimal
from pathlib import Path
from typing import ClassVar, Literal

from labelkit.options.base import field_factory
from labelkit.options.shared import RESULT_NAME, IndexOption, LabelsOption, StoredImagesOptions

_STORE = field_factory("Store", preset=False)
_PAGE = field_factory("Page", preset=False)
_PAGE_SET = field_factory("Page")
_IMAGES = field_factory("Images")

_BYTES = {"kB": 10**3, "MB": 10**6, "GB": 10**9}


class ReportConfig(StoredImagesOptions, LabelsOption, IndexOption):
    """Options for ``labelkit report``."""

    command: ClassVar[tuple[str, ...]] = ("report",)

    result: str | None = _STORE(
        None,
        "Result with the groups to show. Default: a result with class names, preferably with confidences; otherwise, "
        "clusters.",
        pattern=RESULT_NAME,
    )
    tables: Path | None = _STORE(
        None,
        "Folder with tables to show: check.csv (find mislabeled), novel.csv, odd.csv, duplicates.csv, next.csv "
        "(suggest).",
    )
    out: Path = _PAGE(..., "HTML file to write, NAME.html.", makes="html")
    overwrite: bool = _PAGE(False, "Overwrite an existing page in --out.")
    max_size: str = _PAGE_SET(
        "60MB",
        "Maximum size of the page; thumbnail size and quality are reduced to fit.",
        pattern=r"^[0-9]+(\.[0-9]+)?\s*(kB|MB|GB)$",
    )
    projection: Literal["pca", "tsne"] = _PAGE_SET(
        "tsne", "Projection of the map: principal components, or t-SNE (half a minute for 10,000 images)."
    )
    neighbors: int = _PAGE_SET(12, "Number of nearest neighbors to show per image.", ge=1, le=64)
    seed: int = _PAGE_SET(0, "Random seed.", ge=0)
    max_images: int = _IMAGES(
        20_000,
        "Maximum number of images on the page, drawn at random with --seed. Group sizes and scores cover all images.",
        ge=1,
        le=65_535,
    )

    @property
    def max_bytes(self) -> int:
        """Return the maximum file size of the page in bytes."""
        return int(Decimal(self.max_size[:-2].strip()) * _BYTES[self.max_size[-2:]])

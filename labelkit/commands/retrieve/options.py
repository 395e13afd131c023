"""Options for ``labelkit retrieve``."""

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from labelkit.options.base import IMAGES, OPTION, OUTPUT, PATCHES, RUN, STORE, field_factory, to_flag
from labelkit.options.memory import MemoryConfig, ProcessesConfig
from labelkit.options.shared import (
    Device,
    DeviceOption,
    IndexOption,
    LabelsOption,
    ListingOptions,
    OverwriteOption,
    StoredImagesOptions,
)

_FILTER = field_factory("Filters", preset=False)
_SEARCH = field_factory("Search")


class RetrieveConfig(
    DeviceOption,
    ListingOptions,
    StoredImagesOptions,
    LabelsOption,
    OverwriteOption,
    IndexOption,
    MemoryConfig,
    ProcessesConfig,
):
    """Options for ``labelkit retrieve``."""

    command: ClassVar[tuple[str, ...]] = ("retrieve",)

    device: Device = RUN(
        "auto",
        "Device for embedding images: auto (a GPU if available), cpu, cuda, cuda:1 (the second GPU), mps. If it names "
        "a GPU, exact search also runs there.",
    )

    query: Path | None = STORE(
        None, "Queries: an image file, a folder of images, or another store created with the same model."
    )
    query_rows: tuple[int, ...] | None = STORE(
        None, "Rows of the store to use as queries instead of --query, 0-based, comma-separated; needs no model."
    )
    patch: tuple[int, ...] | None = PATCHES(
        None,
        "Find patches similar to this patch of the query, given as row,column from the top left. Requires a store "
        "with patches (`labelkit embed --dense`) and a single image or row as the query.",
    )
    pixel: tuple[float, ...] | None = PATCHES(
        None, "Find patches similar to the patch at pixel x,y of the original image, instead of --patch."
    )
    own_image: bool = PATCHES(False, "Also find patches in the query image itself.")
    k: int = OPTION(10, "Number of hits per query.", ge=1, short="-k")
    checkpoint: Path | None = OPTION(
        None, "Checkpoint for embedding the queries, if it was moved after `labelkit embed`."
    )
    label: tuple[str, ...] | None = _FILTER(None, "Restrict the hits to these comma-separated classes.")
    split: tuple[str, ...] | None = _FILTER(None, "Restrict the hits to these comma-separated splits.")
    path_pattern: str | None = _FILTER(
        None, "Restrict the hits to paths that match, such as 'cats/*.png'; * also matches /."
    )
    skip_duplicates: bool = _FILTER(
        False,
        "Skip duplicates of the query: identical files, and images with a cosine similarity of at least 1 - 1e-6.",
    )
    search: Literal["exact", "hnsw", "ivfpq"] = _SEARCH(
        "exact", "Search method. exact: compare with all images; hnsw, ivfpq: use an index, built once and cached."
    )
    csv: Path | None = OUTPUT(
        None,
        "Also write the hits to this CSV, with the cosine, distance or product shown in the table as the score.",
        makes="csv",
    )
    sheet: Path | None = OUTPUT(None, "Also save the queries and their hits to this PNG.", makes="png")
    dataset: str | None = IMAGES(
        None, "Dataset that contains the images for --sheet, if they were moved after `labelkit embed`."
    )

    @model_validator(mode="after")
    def _check_query(self) -> Self:
        if (self.query is None) == (self.query_rows is None):
            raise ValueError("pass either --query (an image, a folder, a store) or --query-rows")
        if self.query_rows is not None and (not self.query_rows or min(self.query_rows) < 0):
            raise ValueError("--query-rows must consist of row numbers >= 0")
        for name in ("label", "split"):
            if getattr(self, name) == ():
                raise ValueError(f"{to_flag(name)} must not be empty: remove it to search all images")
        if self.patch is not None and self.pixel is not None:
            raise ValueError("pass either --patch (row,column) or --pixel (x,y)")
        for name in ("patch", "pixel"):
            place = getattr(self, name)
            if place is not None and (len(place) != 2 or min(place) < 0):
                raise ValueError(f"{to_flag(name)} must be two numbers >= 0, such as 3,4")
        if self.patch is None and self.pixel is None:
            if self.own_image:
                raise ValueError("--own-image requires --patch or --pixel")
            return self
        if self.search != "exact":
            raise ValueError("--search applies only to images, since patch search is always exact: remove it")
        if self.query_rows is not None and len(self.query_rows) != 1:
            raise ValueError("--patch and --pixel require a single query: pass a single row as --query-rows")
        return self

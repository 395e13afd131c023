"""Options of ``labelkit retrieve``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from labelkit.options.base import flag, option
from labelkit.options.index import IndexConfig
from labelkit.options.memory import MemoryConfig
from labelkit.options.retired import RESULT_NAME
from labelkit.options.shared import Device, DeviceOption, LabelsOption, ListingOptions, StoredImagesOptions

_IMAGES: JsonDict = {"panel": "Images"}
_STORE: JsonDict = {"panel": "Store", "preset": False}
_OUTPUT: JsonDict = {"panel": "Output", "preset": False}
_FILTER: JsonDict = {"panel": "Filters", "preset": False}
_SEARCH: JsonDict = {"panel": "Search"}
_PATCHES: JsonDict = {"panel": "Patches"}


class RetrieveConfig(DeviceOption, ListingOptions, StoredImagesOptions, LabelsOption, IndexConfig, MemoryConfig):
    """Options of ``labelkit retrieve``."""

    command: ClassVar[tuple[str, ...]] = ("retrieve",)
    constants: ClassVar[Mapping[str, object]] = {
        "search_width": None,
        "rescore": 100,
        "hnsw_links": 32,
        "hnsw_build_width": 200,
        "ivf_lists": None,
        "pq_bytes": None,
        "index_block_rows": None,
    }

    device: Device = Field(
        "auto",
        description="Device to embed images on: auto (a GPU if there is one), cpu, cuda, cuda:1 (the second "
        "GPU), mps. A GPU named here also runs exact search.",
        json_schema_extra=option("Run"),
    )

    result: str | None = Field(
        None,
        pattern=RESULT_NAME,
        description="Also store the hits as a result of this name.",
        json_schema_extra=_OUTPUT,
    )
    query: Path | None = Field(
        None,
        description="Queries: an image file, a folder of images, or another store made with the same model.",
        json_schema_extra=_STORE,
    )
    query_rows: tuple[int, ...] | None = Field(
        None,
        description="Rows of the store to use as queries instead of --query, 0-based, comma-separated; needs no model.",
        json_schema_extra=_STORE,
    )
    patch: tuple[int, ...] | None = Field(
        None,
        description="Find patches similar to this patch of the query, given as row,column from the top left. Needs a "
        "store with patches (embed --dense), and a single image or row as the query.",
        json_schema_extra=_PATCHES,
    )
    pixel: tuple[float, ...] | None = Field(
        None,
        description="Find patches similar to the patch at pixel x,y of the original image, instead of --patch.",
        json_schema_extra=_PATCHES,
    )
    own_image: bool = Field(
        False,
        description="Include patches of the query image itself.",
        json_schema_extra=_PATCHES,
    )
    k: int = Field(10, ge=1, description="Number of hits per query.", json_schema_extra={"short": "-k"})
    checkpoint: Path | None = Field(
        None, description="Model to embed the query with, if it has moved since `labelkit embed`."
    )
    label: tuple[str, ...] | None = Field(
        None, description="Restrict the hits to these comma-separated classes.", json_schema_extra=_FILTER
    )
    split: tuple[str, ...] | None = Field(
        None, description="Restrict the hits to these comma-separated splits.", json_schema_extra=_FILTER
    )
    path_pattern: str | None = Field(
        None,
        description="Restrict the hits to paths that match, such as 'cats/*.png'; * also matches /.",
        json_schema_extra=_FILTER,
    )
    skip_duplicates: bool = Field(
        False,
        description="Skip duplicates of the query: the same file, or cosine similarity of at least 1 - 1e-6.",
        json_schema_extra=_FILTER,
    )
    search: Literal["exact", "auto", "hnsw", "ivfpq"] = Field(
        "exact",
        description="Search method. exact: compare with all images; hnsw, ivfpq: an index, built once and cached; "
        "auto: choose by size and --max-memory.",
        json_schema_extra=_SEARCH,
    )
    csv: Path | None = Field(
        None, description="Also write the hits to this CSV.", json_schema_extra={**_OUTPUT, "makes": "csv"}
    )
    sheet: Path | None = Field(
        None,
        description="Also save the query and its hits as pictures in this PNG.",
        json_schema_extra={**_OUTPUT, "makes": "png"},
    )
    dataset: str | None = Field(
        None,
        description="Data set with the images for --sheet, if they have moved since `labelkit embed`.",
        json_schema_extra=_IMAGES,
    )

    @model_validator(mode="after")
    def _one_query(self) -> RetrieveConfig:
        if (self.query is None) == (self.query_rows is None):
            raise ValueError("pass either --query (an image, a folder, a store) or --query-rows")
        if self.query_rows is not None and (not self.query_rows or min(self.query_rows) < 0):
            raise ValueError("--query-rows must be row numbers of at least 0")
        for name in ("label", "split"):
            if getattr(self, name) == ():
                raise ValueError(f"{flag(name)} is empty: remove it to search all images")
        self._check_patch()
        return self

    def _check_patch(self) -> None:
        if self.patch is not None and self.pixel is not None:
            raise ValueError("pass either --patch (row,column) or --pixel (x,y)")
        for name in ("patch", "pixel"):
            place = getattr(self, name)
            if place is not None and (len(place) != 2 or min(place) < 0):
                raise ValueError(f"{flag(name)} must be two numbers of at least 0, such as 3,4")
        if self.patch is None and self.pixel is None:
            if self.own_image:
                raise ValueError("--own-image requires --patch or --pixel")
            return
        if self.search != "exact":
            raise ValueError("patches are always searched exactly: remove --search")
        if self.query_rows is not None and len(self.query_rows) != 1:
            raise ValueError("a patch belongs to a single image: pass a single row as --query-rows")

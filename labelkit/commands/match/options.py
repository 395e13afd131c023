"""Options for ``labelkit match``."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from labelkit.options.base import panel
from labelkit.options.shared import STORE, OverwriteOption, StoredImagesOptions

_STORE = panel("Store", preset=False)
_OUTPUT = panel("Output", preset=False)


class MatchConfig(OverwriteOption, StoredImagesOptions):
    """Options for ``labelkit match``."""

    command: ClassVar[tuple[str, ...]] = ("match",)

    index: Path = Field(
        ...,
        description="Store (NAME.h5) of the images to match; its embeddings determine which images are compared.",
        json_schema_extra=STORE,
    )
    split: str = _STORE("all", "Split to compare, or all.")

    num_clusters: int | None = Field(
        None,
        ge=1,
        description="Number of k-means clusters; only images in the same cluster are compared (for TAC-CCL, the "
        "number of clusters in training). Default: compare all images.",
    )
    seed: int = Field(0, ge=0, description="Random seed for the clustering.")

    out: Path | None = _OUTPUT(None, "File to write. Default: INDEX-matches.h5.", makes="matches")
    sheet: Path | None = _OUTPUT(None, "Also save example matches to this PNG.", makes="png")

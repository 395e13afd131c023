"""Options for ``labelkit match``."""

from pathlib import Path
from typing import ClassVar

from labelkit.options.base import OPTION, OUTPUT, STORE
from labelkit.options.shared import OverwriteOption, StoredImagesOptions


class MatchConfig(OverwriteOption, StoredImagesOptions):
    """Options for ``labelkit match``."""

    command: ClassVar[tuple[str, ...]] = ("match",)

    index: Path = STORE(
        ...,
        "Store (NAME.h5) of the images to match; its embeddings determine which images are compared.",
        aliases=["--store"],
    )
    split: str = STORE("all", "Split to compare, or all.")

    num_clusters: int | None = OPTION(
        None,
        "Number of k-means clusters; only images in the same cluster are compared (for TAC-CCL, the "
        "number of clusters in training). Default: compare all images.",
        ge=1,
    )
    seed: int = OPTION(0, "Random seed for the clustering.", ge=0)

    out: Path | None = OUTPUT(None, "File to write. Default: INDEX-matches.h5.", makes="matches")
    sheet: Path | None = OUTPUT(None, "Also save example matches to this PNG.", makes="png")

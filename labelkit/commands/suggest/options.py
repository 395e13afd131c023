"""Options for ``labelkit suggest``."""

from pathlib import Path
from typing import ClassVar, Literal

from labelkit.options.base import OUTPUT, STORE, field_factory
from labelkit.options.shared import RESULT_NAME, AddedLabelsOption, IndexOption, OverwriteOption, StoredImagesOptions

_SELECTION = field_factory("Selection")


class SuggestConfig(OverwriteOption, StoredImagesOptions, IndexOption, AddedLabelsOption):
    """Options for ``labelkit suggest``."""

    command: ClassVar[tuple[str, ...]] = ("suggest",)

    result: str | None = STORE(
        None,
        "Result of `cluster` or `discover` whose groups, and confidences if any, indicate uncertain images.",
        pattern=RESULT_NAME,
    )
    skip: Path | None = STORE(
        None,
        "CSV with a path column that lists images nobody could label. They and their near-duplicates are suggested "
        "only if no other images are left.",
    )
    out: Path = OUTPUT(..., "CSV to write, with columns path,label,usefulness,reason,guess.", makes="csv")
    sheet: Path | None = OUTPUT(None, "Also save the suggested images as a contact sheet to this PNG.", makes="png")
    num_images: int = _SELECTION(20, "Number of images to suggest.", ge=1, short="-n")
    strategy: Literal["both", "coverage", "typical", "k-center", "uncertainty", "random"] = _SELECTION(
        "both",
        "How to choose images. coverage: images that represent many unlabeled images (facility location); "
        "uncertainty: images that fit two classes about equally; both: coverage weighted by uncertainty; typical: the "
        "centers of large unlabeled clusters; k-center: the image farthest from all labeled images; random: an "
        "unbiased sample, for checking.",
    )
    split: str = _SELECTION("all", "Split to choose from, or all.")
    duplicate_share: float = _SELECTION(
        0.005,
        "Maximum squared distance between near-duplicates, as a fraction of the mean squared distance between images. "
        "At most one of several near-duplicates is suggested, and none if one of them has a label.",
        ge=0,
        lt=1,
    )
    seed: int = _SELECTION(0, "Random seed for k-means and random choices.", ge=0)

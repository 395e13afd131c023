"""Options for ``labelkit show``."""

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from labelkit.options.base import IMAGES, OPTION, OUTPUT, PATCHES, RUN, STORE
from labelkit.options.shared import OverwriteOption, StoredImagesOptions


class ImageOutputConfig(OverwriteOption):
    """Options shared by commands that write a single picture."""

    out: Path = OUTPUT(..., "PNG to write.", makes="png")


class ShowPatchesConfig(StoredImagesOptions, ImageOutputConfig):
    """Options for ``labelkit show patches``."""

    command: ClassVar[tuple[str, ...]] = ("show", "patches")

    index: Path = STORE(..., "Store (NAME.h5) with patches (embed --dense).", aliases=["--store"])
    rows: tuple[int, ...] | None = IMAGES(
        None, "Rows of the store to show, 0-based, comma-separated. Default: 4 rows chosen at random with --seed."
    )
    patch: tuple[int, ...] | None = PATCHES(
        None, "Patch of the first image, given as row,column, to compare with all patches. Default: the center."
    )
    seed: int = RUN(0, "Random seed for choosing images.", ge=0)

    @model_validator(mode="after")
    def _check_row_choice(self) -> Self:
        if self.rows is not None and (not self.rows or min(self.rows) < 0):
            raise ValueError("--rows must be row numbers >= 0")
        if self.patch is not None and (len(self.patch) != 2 or min(self.patch) < 0):
            raise ValueError("--patch must be two numbers >= 0, such as 3,4")
        return self


class ShowCurvesConfig(ImageOutputConfig):
    """Options for ``labelkit show curves``."""

    command: ClassVar[tuple[str, ...]] = ("show", "curves")

    run: tuple[Path, ...] = OPTION(
        ..., "Comma-separated run folders from `labelkit train`, plotted on the same axes.", min_length=1
    )
    metrics: tuple[str, ...] | None = OPTION(
        None,
        "Metrics to plot, comma-separated: names in the log, or patterns such as diag/*/update_rel. "
        "Default: the loss, and the accuracies if any were logged.",
    )
    over: Literal["step", "epoch"] = OPTION("step", "Quantity on the x-axis.")

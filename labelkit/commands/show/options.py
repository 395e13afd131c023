"""Options for ``labelkit show``."""

from pathlib import Path
from typing import ClassVar, Literal

from labelkit.options.base import OPTION, OUTPUT
from labelkit.options.shared import OverwriteOption


class ShowCurvesConfig(OverwriteOption):
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
    out: Path = OUTPUT(..., "PNG to write.", makes="png")

"""Options for ``labelkit datasets``."""

from typing import ClassVar

from labelkit.options.base import DATA
from labelkit.options.shared import DatasetOptions


class DatasetsConfig(DatasetOptions):
    """Options for ``labelkit datasets``."""

    command: ClassVar[tuple[str, ...]] = ("datasets",)

    dataset: str | None = DATA(  # type: ignore[assignment]  # None: all datasets
        None, "Dataset to check; exit code 3 if it is incomplete. Default: all datasets."
    )

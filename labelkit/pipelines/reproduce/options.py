"""Options for ``labelkit reproduce``, which runs the rows of a published table."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from labelkit.options.base import BaseConfig, field_factory

_OUTPUT = field_factory("Output", preset=False)
_WHAT = field_factory("Selection", preset=False)
_RUN = field_factory("Run", preset=False)


class ReproduceConfig(BaseConfig):
    """Options for ``labelkit reproduce``."""

    command: ClassVar[tuple[str, ...]] = ("reproduce",)

    table: str = Field(
        ...,
        description="Name of a table (see `labelkit list tables`), or a YAML file in the format of presets/tables.",
        json_schema_extra={"positional": True},
    )
    row: tuple[str, ...] | None = _WHAT(None, "Rows to reproduce, each by a unique part of its name. Default: all.")
    seeds: int = _RUN(3, "Number of runs per table row, with seeds 0, 1, ...", ge=1, le=100)
    data_root: Path = _RUN(Path("data"), "Folder that contains the registered datasets.")
    device: str = _RUN("auto", "Compute device: auto (a GPU if available), cpu, cuda, or cuda:N (GPU N, from 0).")
    dry_run: bool = _RUN(False, "Show what would be run and which data are missing, without writing anything.")
    out: Path = _OUTPUT(Path("reproduced"), "Output folder; finished parts in it are not run again.", makes="folder")

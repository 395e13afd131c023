"""Options of ``labelkit reproduce``: run the rows of a published table."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field, model_validator

from labelkit.options.base import StageConfig, option

_WHAT = option("Selection", preset=False)
_RUN = option("Run", preset=False)


class ReproduceConfig(StageConfig):
    """Options of ``labelkit reproduce``."""

    command: ClassVar[tuple[str, ...]] = ("reproduce",)

    table: str | None = Field(
        None,
        description="Name of a table (`labelkit list tables`), or a YAML file like the files in presets/tables.",
        json_schema_extra={"positional": True},
    )
    all: bool = Field(False, description="Reproduce all tables.", json_schema_extra=_WHAT)
    row: tuple[str, ...] | None = Field(
        None,
        description="Rows of the table to reproduce; a unique part of each name suffices.",
        json_schema_extra=_WHAT,
    )
    seeds: int = Field(3, ge=1, le=100, description="Number of seeds per row: 0, 1, ...", json_schema_extra=_RUN)
    data_root: Path = Field(Path("data"), description="Folder with the named data sets.", json_schema_extra=_RUN)
    device: str = Field(
        "auto", description="Device to run networks on: auto, cpu, cuda, cuda:N.", json_schema_extra=_RUN
    )
    num_workers: int | None = Field(
        None,
        ge=0,
        le=256,
        description="Number of worker processes that decode images; default: the row's setting.",
        json_schema_extra=_RUN,
    )
    dry_run: bool = Field(
        False,
        description="Show what would run and which data are missing, without writing anything.",
        json_schema_extra=_RUN,
    )
    out: Path = Field(
        Path("reproduced"),
        description="Output folder; finished parts are not run again.",
        json_schema_extra=option("Output", preset=False, makes="folder"),
    )

    @model_validator(mode="after")
    def _one_or_all(self) -> ReproduceConfig:
        if self.all == (self.table is not None):
            raise ValueError("name a table, or pass --all")
        if self.all and self.row is not None:
            raise ValueError("--row requires a single table and cannot be combined with --all")
        return self

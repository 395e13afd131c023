"""What the commands share that read a store and name a result beside it."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic.config import JsonDict

from labelkit.config.base import StageConfig

_STORE: JsonDict = {"panel": "Store", "preset": False}


class IndexConfig(StageConfig):
    """A command that reads a store and names its result beside it."""

    index: Path = Field(..., description="Store to read, NAME.h5.", json_schema_extra=_STORE)
    result: str | None = Field(
        None,
        pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$",
        description="Name of the result beside the store.",
        json_schema_extra=_STORE,
    )
    overwrite: bool = Field(False, description="Replace a result of this name.", json_schema_extra=_STORE)

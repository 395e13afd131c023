"""Options of ``labelkit datasets``."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from labelkit.config.base import StageConfig


class DatasetsConfig(StageConfig):
    """``labelkit datasets``."""

    command: ClassVar[tuple[str, ...]] = ("datasets",)

    dataset: str | None = Field(None, description="Look at this one closely; default: all of them, briefly.")
    data_root: Path = Field(Path("data"), description="Folder where named sets live.")

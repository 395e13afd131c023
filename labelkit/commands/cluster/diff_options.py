"""Options of ``labelkit diff``."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from labelkit.options.retired import RESULT_NAME
from labelkit.options.shared import STORE, OverwriteOption

_STORE: JsonDict = {"panel": "Store", "preset": False}
_RULE: JsonDict = {"panel": "Which"}
_OUTPUT: JsonDict = {"panel": "Output", "preset": False}


class DiffConfig(OverwriteOption):
    """``labelkit diff``."""

    command: ClassVar[tuple[str, ...]] = ("diff",)

    index: Path = Field(..., description="Store with the later groups, NAME.h5.", json_schema_extra=STORE)
    result: str = Field(
        ..., pattern=RESULT_NAME, description="Result of cluster or discover in --index.", json_schema_extra=_STORE
    )
    previous: Path | None = Field(
        None, description="Store of the earlier groups; default: --index.", json_schema_extra=_STORE
    )
    previous_result: str | None = Field(
        None,
        pattern=RESULT_NAME,
        description="Result in --previous; default: the one named like --result.",
        json_schema_extra=_STORE,
    )
    csv: Path | None = Field(
        None,
        description="Also write a CSV with a line per image: path, both groups, and what became of it.",
        json_schema_extra={**_OUTPUT, "makes": "csv"},
    )
    main_share: float = Field(
        0.5,
        ge=0.5,
        lt=1,
        description="A group is mostly another if more than this share of its shared images is in it.",
        json_schema_extra=_RULE,
    )
    part_share: float = Field(
        0.2,
        gt=0,
        le=0.5,
        description="A part of a split or merge holds at least this share of the whole.",
        json_schema_extra=_RULE,
    )

    @model_validator(mode="after")
    def _two_results(self) -> DiffConfig:
        if self.previous is None and self.previous_result is None:
            raise ValueError("give what to compare with: --previous STORE, --previous-result NAME, or both")
        return self

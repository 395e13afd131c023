"""Options of commands whose groups keep the ids of an earlier run."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from labelkit.options.base import StageConfig

RESULT_NAME = r"^[a-z0-9][a-z0-9._-]{0,63}$"

_EARLIER: JsonDict = {"panel": "Earlier groups", "preset": False}


class PreviousOption(StageConfig):
    """Options of commands that keep the cluster ids of an earlier run."""

    previous: Path | None = Field(
        None,
        description="Store of an earlier run, often with fewer images. Groups keep the ids of that run; new "
        "groups get unused ids.",
        json_schema_extra=_EARLIER,
    )
    previous_result: str | None = Field(
        None,
        pattern=RESULT_NAME,
        description="Result in --previous; default: the name of the new result.",
        json_schema_extra=_EARLIER,
    )
    keep_overlap: float = Field(
        0.2,
        gt=0,
        le=1,
        description="Minimum intersection over union at which a group keeps its id from --previous.",
        json_schema_extra=_EARLIER,
    )

    @model_validator(mode="after")
    def _result_of_a_store(self) -> PreviousOption:
        if self.previous_result is not None and self.previous is None:
            raise ValueError("--previous-result requires --previous STORE")
        return self

"""What the commands share that read a store and name a result beside it."""

from __future__ import annotations

from pydantic import Field
from pydantic.config import JsonDict

from labelkit.options.retired import RESULT_NAME
from labelkit.options.shared import IndexOption

_OUTPUT: JsonDict = {"panel": "Output", "preset": False}


class IndexConfig(IndexOption):
    """A command that reads a store and names its result beside it."""

    result: str | None = Field(
        None,
        pattern=RESULT_NAME,
        description="Name of the result that is written beside the store; default: that of the command.",
        json_schema_extra=_OUTPUT,
    )
    overwrite: bool = Field(
        False,
        description="Replace a result of this name, and files that are written beside it.",
        json_schema_extra=_OUTPUT,
    )


class ScoresConfig(IndexConfig):
    """A command that scores a store and may keep the scores beside it."""

    result: str | None = Field(
        None,
        pattern=RESULT_NAME,
        description="Also keep the scores as a result of this name beside the store; default: not kept.",
        json_schema_extra=_OUTPUT,
    )

"""What the commands share that read a store and name a result beside it."""

from __future__ import annotations

from pydantic import Field
from pydantic.config import JsonDict

from labelkit.options.retired import RESULT_NAME
from labelkit.options.shared import IndexOption

_OUTPUT: JsonDict = {"panel": "Output", "preset": False}


class IndexConfig(IndexOption):
    """Options of commands that read a store and save a named result next to it."""

    result: str | None = Field(
        None,
        pattern=RESULT_NAME,
        description="Name of the result, saved next to the store; default: the command's name.",
        json_schema_extra=_OUTPUT,
    )
    overwrite: bool = Field(
        False,
        description="Replace an existing result of this name and its files.",
        json_schema_extra=_OUTPUT,
    )


class ScoresConfig(IndexConfig):
    """Options of commands that score a store and can save the scores next to it."""

    result: str | None = Field(
        None,
        pattern=RESULT_NAME,
        description="Also store the scores as a result of this name.",
        json_schema_extra=_OUTPUT,
    )

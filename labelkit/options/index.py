"""Options shared by the commands that read a store and save a named result next to it."""

from __future__ import annotations

from labelkit.options.base import panel
from labelkit.options.retired import RESULT_NAME
from labelkit.options.shared import IndexOption

_OUTPUT = panel("Output", preset=False)


class IndexConfig(IndexOption):
    """Options for commands that read a store and save a named result next to it."""

    result: str | None = _OUTPUT(
        None, "Name of the result, saved next to the store; default: the command's name.", pattern=RESULT_NAME
    )
    overwrite: bool = _OUTPUT(False, "Replace an existing result of this name and its files.")


class ScoresConfig(IndexConfig):
    """Options for commands that score a store and can save the scores next to it."""

    result: str | None = _OUTPUT(None, "Also store the scores as a result with this name.", pattern=RESULT_NAME)

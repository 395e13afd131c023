"""Options for commands whose groups keep the ids of an earlier run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pydantic import model_validator

from labelkit.options.base import StageConfig, panel

RESULT_NAME = r"^[a-z0-9][a-z0-9._-]{0,63}$"

_EARLIER = panel("Earlier groups", preset=False)


class PreviousOption(StageConfig):
    """Options for commands that keep the cluster ids of an earlier run."""

    constants: ClassVar[Mapping[str, object]] = {"keep_overlap": 0.2}

    previous: Path | None = _EARLIER(
        None,
        "Store of an earlier run, often with fewer images. Groups keep the ids of that run; new groups get unused ids.",
    )
    previous_result: str | None = _EARLIER(
        None, "Result in --previous; default: the name of the new result.", pattern=RESULT_NAME
    )

    @model_validator(mode="after")
    def _check_previous_store(self) -> PreviousOption:
        if self.previous_result is not None and self.previous is None:
            raise ValueError("--previous-result requires --previous STORE")
        return self

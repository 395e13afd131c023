"""Options of every ``evaluate`` command that turn its scores into a gate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from pydantic import model_validator

from labelkit.options.base import StageConfig, panel

_GATE = panel("Limits")


def parse_limits(texts: tuple[str, ...]) -> dict[str, float]:
    """Parse limits such as ``("nmi=0.7", ...)`` to numbers by score name.

    Raises:
        ValueError: not NAME=NUMBER, or a name twice.
    """
    limits: dict[str, float] = {}
    for text in texts:
        name, equals, number = (part.strip() for part in text.partition("="))
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not name or not equals or not math.isfinite(value):
            raise ValueError(f"{text} is not of the form NAME=NUMBER")
        if name in limits:
            raise ValueError(f"{name} is listed twice")
        limits[name] = value
    return limits


class GateConfig(StageConfig):
    """Options for limits on scores, which end the command with exit code 10 if they are violated."""

    constants: ClassVar[Mapping[str, object]] = {"baseline": None, "tolerance": 0.0}

    fail_under: tuple[str, ...] = _GATE(
        (),
        "Exit with code 10 if a score falls below its limit: comma-separated NAME=NUMBER, such as "
        "all_accuracy=0.8,nmi=0.7 or recall.1=0.9. Names and units are those of --json. The limit applies to "
        "every result and split; head/all_accuracy=0.8 limits one result.",
    )
    fail_over: tuple[str, ...] = _GATE(
        (), "Exit with code 10 if a score exceeds its limit: NAME=NUMBER, such as after.ece=0.1."
    )

    @model_validator(mode="after")
    def _check_gate(self) -> GateConfig:
        parse_limits(self.fail_under)
        parse_limits(self.fail_over)
        return self

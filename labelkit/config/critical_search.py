"""Options of the search for critical samples (LMCS), in training and on a store."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from labelkit.config.base import StageConfig

_RULE: JsonDict = {"panel": "Which"}


class CriticalSearchOptions(StageConfig):
    """Which unlabeled images are near the classes and yet ambiguous."""

    criterion: Literal["max_entropy", "min_entropy", "min_distance"] = Field(
        "max_entropy",
        description="Which of the confined images come first: the most or the least ambiguous, or the nearest.",
        json_schema_extra=_RULE,
    )
    confine: bool = Field(True, description="Search near the class means only (Eq. 3.9).", json_schema_extra=_RULE)
    delta: str = Field(
        "auto",
        description="How near: auto (--confine-factor and --confine-cap), quantile:Q of the distances, or absolute:V.",
        json_schema_extra=_RULE,
    )
    confine_factor: int = Field(
        10, ge=1, description="--delta auto: candidates for each wanted image.", json_schema_extra=_RULE
    )
    confine_cap: float = Field(
        0.25, gt=0, le=1, description="--delta auto: largest share of the candidates.", json_schema_extra=_RULE
    )
    beta: float | Literal["auto"] = Field(
        "auto",
        description="Sharpness of the weights beta/(beta + rank share) (Eq. 3.10); auto = 1 / classes with labels.",
        json_schema_extra=_RULE,
    )
    reference: Literal["original", "all"] = Field(
        "original",
        description="Rows that class means and soft labels come from: given labels alone, or also labels found before.",
        json_schema_extra=_RULE,
    )
    label_rule: Literal["agree", "vote", "center"] = Field(
        "agree",
        description="center: the nearest class mean; vote: the largest soft label; agree: only images where both "
        "name one class.",
        json_schema_extra=_RULE,
    )

    @property
    def radius(self) -> tuple[Literal["quantile", "absolute"], float] | None:
        """``delta`` as the algorithm takes it; ``None`` = auto."""
        return _radius(self.delta)

    @model_validator(mode="after")
    def _delta_and_beta_are_possible(self) -> CriticalSearchOptions:
        found = _radius(self.delta)
        if found is not None and found[0] == "quantile" and found[1] > 1:
            raise ValueError(f"delta: a quantile is at most 1 (value {self.delta})")
        if self.beta != "auto" and self.beta <= 0:
            raise ValueError(f"beta must be > 0, or auto (value {self.beta})")
        if self.delta != "auto" and not self.confine:
            raise ValueError("--delta has no meaning with --no-confine")
        return self


def _radius(text: str) -> tuple[Literal["quantile", "absolute"], float] | None:
    if text == "auto":
        return None
    match = re.fullmatch(r"(quantile|absolute):(\d+\.?\d*(?:e-?\d+)?|\.\d+)", text)
    if match is None:
        raise ValueError(f"delta must be auto, quantile:Q or absolute:V with a number >= 0 (value {text})")
    return ("quantile" if match[1] == "quantile" else "absolute"), float(match[2])

"""Score limits for all ``evaluate`` commands, and the direction in which each score improves."""

import math
from typing import Self

from pydantic import model_validator

from labelkit.options.base import BaseConfig, closest_name, field_factory

_GATE = field_factory("Limits")

HIGHER_IS_BETTER = frozenset(
    {
        "accuracy", "accuracy_answered", "accuracy_known_answers", "accuracy_new_answers", "all_accuracy",
        "ami", "answered_share", "ap", "ap50", "ap50_11_point", "ap75", "ap_large", "ap_medium", "ap_small", "ari",
        "balanced_accuracy", "f", "j", "jf", "knn_accuracy", "knn_top5_accuracy",
        "linear_accuracy", "map_at_r", "mean_ap", "mean_ap_11", "mean_iou", "new_accuracy",
        "nmi", "old_accuracy", "pixel_accuracy", "r_precision", "top5_accuracy",
    }
)  # fmt: skip
"""Scores in the JSON output for which higher is better, in addition to ``HIGHER_IS_BETTER_OBJECTS``."""

LOWER_IS_BETTER = frozenset({"aurc", "ece", "new_as_old", "old_as_new", "new_as_wrong_new", "old_as_wrong_old"})
"""Scores for which lower is better."""

SIGNED_SCORES = frozenset({"ami", "ari"})
"""Scores in [-1, 1]; all others are in [0, 1]."""

HIGHER_IS_BETTER_OBJECTS = ("recall", "accuracy_at_coverage")
"""JSON objects whose entries are all scores for which higher is better, such as ``recall.1``."""


def get_score_direction(name: str) -> int:
    """Return +1 if higher is better for a score, -1 if lower is better, or 0 for an unknown name.

    Args:
        name: key in the JSON output, with keys of nested objects joined by dots: ``nmi``, ``recall.1``, ``after.ece``.
    """
    parts = name.split(".")
    if parts[-1] in LOWER_IS_BETTER:
        return -1
    return int(parts[-1] in HIGHER_IS_BETTER or (len(parts) > 1 and parts[-2] in HIGHER_IS_BETTER_OBJECTS))


def parse_limits(texts: tuple[str, ...]) -> dict[str, float]:
    """Parse limits such as ``("nmi=0.7", ...)`` into a dictionary of limits by score name.

    Raises:
        ValueError: not NAME=NUMBER, a duplicate or unknown score, or a limit outside the range of the score.
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
        own = name.rpartition("/")[2]
        if not get_score_direction(own):
            known = sorted(HIGHER_IS_BETTER | LOWER_IS_BETTER | {f"{inside}.K" for inside in HIGHER_IS_BETTER_OBJECTS})
            guess = closest_name(own, known)
            hint = f" Did you mean `{guess}`?" if guess else ""
            raise ValueError(f"unknown score {own}.{hint} Choose from: {', '.join(known)}")
        low = -1 if own in SIGNED_SCORES else 0
        if not low <= value <= 1:
            hint = f" Did you mean `{name}={value / 100:g}`?" if 1 < value <= 100 else ""
            raise ValueError(f"{name} must be between {low} and 1, got {value:g}.{hint}")
        limits[name] = value
    return limits


class GateConfig(BaseConfig):
    """Options for score limits; a command exits with code 10 if a limit is violated."""

    fail_under: tuple[str, ...] = _GATE(
        (),
        "Exit with code 10 if a score is below its limit: comma-separated NAME=NUMBER, such as "
        "all_accuracy=0.8,nmi=0.7 or recall.1=0.9. Names and units are those of --json. A limit applies to every "
        "result and split; head/all_accuracy=0.8 applies only to the result head.",
    )
    fail_over: tuple[str, ...] = _GATE(
        (), "Exit with code 10 if a score is above its limit: NAME=NUMBER, such as after.ece=0.1."
    )

    @model_validator(mode="after")
    def _check_gate(self) -> Self:
        for name in parse_limits(self.fail_under):
            if get_score_direction(name.rpartition("/")[2]) < 0:
                raise ValueError(f"--fail-under: lower is better for {name}, so use --fail-over")
        for name in parse_limits(self.fail_over):
            if get_score_direction(name.rpartition("/")[2]) > 0:
                raise ValueError(f"--fail-over: higher is better for {name}, so use --fail-under")
        return self

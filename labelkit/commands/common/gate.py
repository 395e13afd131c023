"""Limits on the scores of an ``evaluate`` command: ``--fail-under`` and ``--fail-over``."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from labelkit.commands.common.results import CommandResult, Table
from labelkit.errors import ConfigError, GateError, LabelkitError
from labelkit.options.base import closest_name
from labelkit.options.gate import GateConfig, get_score_direction, parse_limits

_NAMED_BY = ("result", "split", "classes")
"""Keys that identify an entry of ``scores``; their values, joined by ``/``, form the prefix of a score's full name."""


def collect_scores_by_name(values: Mapping[str, object]) -> dict[str, float | None]:
    """Collect all scores in a command's JSON output by full name; undefined scores are ``None``.

    Several seeds are represented by their mean. Values for individual classes, bins and the like are not included.
    """
    found = {name: value for name, value in _numbers(values) if get_score_direction(name)}
    entries = values.get("scores")
    for entry in entries if isinstance(entries, list) else []:
        label = "/".join(str(entry[key]) for key in _NAMED_BY if key in entry)
        found |= {f"{label}/{name}": value for name, value in _numbers(entry) if get_score_direction(name)}
    return found


def _numbers(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, float | None]]:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            if "mean" in value:
                yield name, _number(value["mean"])
            elif key != "per_class":
                yield from _numbers(value, f"{name}.")
        elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            yield name, _number(value)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def find_matching_scores(partial_name: str, scores: Mapping[str, float | None]) -> list[str]:
    """Return the full score names that match a partial name such as ``test/all_accuracy``.

    A full name matches if it ends with the last part and contains the other parts anywhere before it. If only the last
    part is passed, and scores for all images and for groups of classes match, only those for all images are returned.
    """
    *parts, own = partial_name.split("/")
    found = [name for name in scores if name.split("/")[-1] == own and set(parts) <= set(name.split("/")[:-1])]
    whole = [name for name in found if name.split("/")[:-1] == ["all"]]
    return whole if whole and not parts else found


def check_score_limits(config: GateConfig, result: CommandResult) -> tuple[CommandResult, LabelkitError | None]:
    """Check scores against the limits; return the result with the outcome added, and an error or ``None``.

    The error is a ``GateError`` if a limit is not met, or a ``ConfigError`` if there is no score with a given name.
    """
    if not (config.fail_under or config.fail_over):
        return result, None
    values, where = result.to_json(), " ".join(config.command)
    scores = collect_scores_by_name(values)
    checks: list[dict[str, Any]] = []
    for rule, texts, sign in (("fail-under", config.fail_under, 1), ("fail-over", config.fail_over, -1)):
        for wanted, limit in parse_limits(texts).items():
            names = find_matching_scores(wanted, scores)
            if not names:
                guess = closest_name(wanted, scores)
                known = f"Choose from: {', '.join(scores)}."
                remedy = f"Did you mean `{guess}`? {known}" if guess else known
                return result, ConfigError(f"--{rule}", f"{where} has no score {wanted}", remedy)
            for name in names:
                value = scores[name]
                # undefined scores fail
                passed = value is not None and sign * (value - limit) >= 0
                checks.append({"score": name, "value": value, "limit": limit, "rule": rule, "passed": passed})
    missed = [check for check in checks if not check["passed"]]
    keys = ("score", "value", "rule", "limit")
    rows = [[*(check[key] for key in keys), "kept" if check["passed"] else "MISSED"] for check in checks]
    table = Table("gate, as in --json", [*keys, "verdict"], rows)
    verdict = {"passed": not missed, "checks": checks}
    shown = CommandResult(values | {"gate": verdict}, result.paths, (*result.shown, table))
    if not missed:
        return shown, None
    lines = ""
    for score, value, rule, limit in ([check[key] for key in keys] for check in missed):
        side = "below" if rule == "fail-under" else "above"
        said = f"{score} is undefined; {rule}" if value is None else f"{score} {value:.6g} is {side}"
        lines += f"\n  {said} {limit:.6g}"
    return shown, GateError(where, f"{len(missed)} of {len(checks)} limits are not met:{lines}")

"""Do the scores of an ``evaluate`` command keep the limits that were asked for?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from labelkit.commands.common.results import SimpleResult, Table
from labelkit.errors import ConfigError, GateError, InputError, LabelkitError
from labelkit.files import read_json
from labelkit.options.base import nearest
from labelkit.options.gate import GateConfig, parse_limits, score_direction

_NAMED_BY = ("result", "split", "classes")
"""What tells the entries of ``scores`` apart; joined by ``/`` before the name of a score."""
_EVERYTHING = "all"


def named_scores(values: Mapping[str, object]) -> dict[str, float | None]:
    """Return all scores in a command's JSON output by their full name; ``None`` for undefined scores.

    The mean stands for what was measured with several seeds. Single classes, bins and the like are no scores.
    """
    found = {name: value for name, value in _numbers(values) if score_direction(name)}
    entries = values.get("scores")
    for entry in entries if isinstance(entries, list) else []:
        label = "/".join(str(entry[key]) for key in _NAMED_BY if key in entry)
        found |= {f"{label}/{name}": value for name, value in _numbers(entry) if score_direction(name)}
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


def matching_scores(wanted: str, scores: Mapping[str, float | None]) -> list[str]:
    """Return the full score names that match a partial name such as ``test/all_accuracy``.

    A full name matches if it ends with the last part and has the other parts anywhere before it.

    Where one of them is of all images and the others are of groups of classes, only that one.
    """
    *parts, own = wanted.split("/")
    found = [name for name in scores if name.split("/")[-1] == own and set(parts) <= set(name.split("/")[:-1])]
    whole = [name for name in found if name.split("/")[:-1] == [_EVERYTHING]]
    return whole if whole and not parts else found


class Gate:
    """Score limits that a command must meet, read before it runs so that a missing baseline is noticed early.

    Args:
        config: the options of the command.

    Raises:
        InputError: the baseline cannot be read or holds no score.
    """

    def __init__(self, config: GateConfig) -> None:
        self.config = config
        self.where = " ".join(config.command)
        self.baseline = None if config.baseline is None else _read_baseline(config.baseline)

    def judge(self, result: SimpleResult) -> tuple[SimpleResult, LabelkitError | None]:
        """Compare scores with their limits; return the result with the verdict, and the error if a limit is not met.

        The error is a ``GateError`` if a limit is not kept, a ``ConfigError`` if there is no score of a name.
        """
        if not self.config.has_gate:
            return result, None
        values = result.to_json()
        scores = named_scores(values)
        try:
            checks = [*self._limits(scores), *self._regressions(scores)]
        except LabelkitError as error:
            return result, error
        missed = [check for check in checks if not check["passed"]]
        verdict = {"passed": not missed, "checks": checks}
        keys, columns = ("score", "value", "rule", "limit"), ["score", "value", "rule", "limit", "verdict"]
        rows = [[*(check[key] for key in keys), "kept" if check["passed"] else "MISSED"] for check in checks]
        table = Table("gate, as in --json", columns, rows)
        shown = SimpleResult(values | {"gate": verdict}, result.paths, (*result.shown, table))
        if not missed:
            return shown, None
        lines = "".join(f"\n  {_sentence(check)}" for check in missed)
        return shown, GateError(self.where, f"{len(missed)} of {len(checks)} limits are not met:{lines}")

    def _limits(self, scores: Mapping[str, float | None]) -> Iterator[dict[str, Any]]:
        for rule, texts, sign in (("fail-under", self.config.fail_under, 1), ("fail-over", self.config.fail_over, -1)):
            for wanted, limit in parse_limits(texts).items():
                names = matching_scores(wanted, scores)
                if not names:
                    guess = nearest(wanted, scores)
                    known = f"Scores here: {', '.join(scores)}."
                    remedy = f"Did you mean `{guess}`? {known}" if guess else known
                    raise ConfigError(f"--{rule}", f"{self.where} gave no score {wanted}", remedy)
                for name in names:
                    yield _check(name, scores[name], limit, rule, sign)

    def _regressions(self, scores: Mapping[str, float | None]) -> Iterator[dict[str, Any]]:
        if self.baseline is None:
            return
        if not set(self.baseline) & set(scores):
            raise InputError(
                str(self.config.baseline),
                f"has no score in common with {self.where} (its scores: {', '.join(self.baseline)}; now: "
                f"{', '.join(scores)})",
                "Pass the --json output of the same command.",
            )
        for name, before in self.baseline.items():
            sign = score_direction(name.rpartition("/")[2])
            # 1e-12: the limit is a rounded difference
            limit = before - sign * self.config.tolerance
            yield _check(name, scores.get(name), limit, "baseline", sign, slack=1e-12)


def _check(
    score: str, value: float | None, limit: float, rule: str, sign: int, *, slack: float = 0.0
) -> dict[str, Any]:
    """Compare a score with the last value that passes; one that is undefined or went away does not pass."""
    passed = value is not None and sign * (value - limit) >= -slack
    return {"score": score, "value": value, "limit": limit, "rule": rule, "passed": passed}


def _read_baseline(path: Path) -> dict[str, float]:
    remedy = "Create one with `--json > FILE`."
    try:
        values = read_json(path)
    except FileNotFoundError as error:
        raise InputError(str(path), "does not exist", remedy) from error
    except (OSError, ValueError) as error:
        raise InputError(str(path), f"cannot be read as JSON: {error}", remedy) from error
    scores: dict[str, float] = {}
    if isinstance(values, dict):
        entries = values.get("scores", [])
        if isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries):
            scores = {name: value for name, value in named_scores(values).items() if value is not None}
    if not scores:
        raise InputError(str(path), "contains no score of an evaluate command", remedy)
    return scores


def _sentence(check: Mapping[str, Any]) -> str:
    score, value, limit, rule = (check[key] for key in ("score", "value", "limit", "rule"))
    if value is None:
        return f"{score} is missing or undefined; {rule} {limit:.6g}"
    relation = {"fail-under": "is below", "fail-over": "is above"}.get(rule, "is worse than the baseline allows:")
    return f"{score} {value:.6g} {relation} {limit:.6g}"

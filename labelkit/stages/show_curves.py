"""Curves of what runs logged: names are looked up in ``metrics.jsonl``, runs are laid over each other."""

from __future__ import annotations

import difflib
import fnmatch
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.config.stages import ShowCurvesConfig
from labelkit.engine.run_dir import METRICS, read_run_config
from labelkit.errors import CheckpointError, ConfigError
from labelkit.stages.pictures import check_new_picture
from labelkit.stages.progress import current_progress
from labelkit.stages.result import Cell, SimpleResult, Table

_DEFAULT_METRICS = ("loss", "all_accuracy", "old_accuracy", "new_accuracy")
_CLOCK = ("epoch", "step", "kind")
_MOST_PANELS = 48


@dataclass(frozen=True)
class _Series:
    """One logged name of one run.

    Attributes:
        kind: ``epoch``: one value per epoch; ``step``: one per logged step.
        steps: (n,) optimizer updates done.
        epochs: (n,) the same in epochs; NaN if no epoch was finished.
        values: (n,) NaN where none could be logged.
    """

    kind: str
    steps: NDArray[np.int64]
    epochs: NDArray[np.float64]
    values: NDArray[np.float64]


@dataclass(frozen=True)
class _Logged:
    """All series of one run, by name; those of epochs first."""

    name: str
    folder: Path
    series: dict[str, list[_Series]]


def show_curves(config: ShowCurvesConfig) -> SimpleResult:
    """Draw logged series of one or several runs, one set of axes per name.

    Raises:
        CheckpointError: a folder is no run, or its log is missing, empty or damaged.
        ConfigError: a name that no run logged, or a picture that exists and may not be replaced.
    """
    check_new_picture(config.out, overwrite=config.overwrite)
    runs = [_read(folder, name) for folder, name in zip(config.run, _run_names(config.run), strict=True)]
    names = _choose(config.metrics, runs)
    if config.over == "epoch":
        for run in runs:
            if any(np.isnan(series.epochs).any() for found in run.series.values() for series in found):
                raise ConfigError(
                    "--over", f"no epoch of {run.folder} is finished, so its steps cannot be placed", "Use --over step."
                )
    from labelkit.stages.plots import Line, write_curves_plot  # matplotlib takes a second to load

    panels: dict[str, list[Line]] = {}
    curves: list[dict[str, object]] = []
    cells: list[list[Cell]] = []
    for name in names:
        panels[name] = []
        lacking = [str(run.folder) for run in runs if name not in run.series]
        if lacking:
            current_progress().warning(f"{name} was not logged by {', '.join(lacking)}")
        for run in runs:
            found = run.series.get(name, [])
            for series in found:
                x = series.steps.astype(np.float64) if config.over == "step" else series.epochs
                # where both kinds are there, single steps are the background of the epochs
                is_main = series.kind == "epoch" or len(found) == 1
                panels[name].append(Line(run.name, x, series.values, is_main))
                curves.append(_describe(name, run, series))
                cells.append(_cells(name, run, series))
    write_curves_plot(config.out, panels, x_name=f"{config.over}s")
    values: dict[str, object] = {"picture": config.out, "over": config.over, "curves": curves}
    columns = ["metric", "run", "per", "points", "first", "last", "least", "most"]
    shown = (Table("", columns, cells), Table("", ["made", "path"], [["picture", config.out]]))
    return SimpleResult(values, (config.out,), shown)


def _run_names(folders: Sequence[Path]) -> list[str]:
    """Names of the folders, or as much of the paths as was given where two are alike."""
    names = [folder.resolve().name for folder in folders]
    repeated = {name for name in names if names.count(name) > 1}
    full = [str(folder) if name in repeated else name for folder, name in zip(folders, names, strict=True)]
    again = {name for name in full if full.count(name) > 1}
    if again:
        raise ConfigError("--run", f"{', '.join(sorted(again))} is given twice", "Give each run once.")
    return full


def _read(folder: Path, name: str) -> _Logged:
    """Read the log of a run.

    Raises:
        CheckpointError: see :func:`show_curves`.
    """
    if not folder.exists():
        raise CheckpointError(str(folder), "does not exist", "Train first: `labelkit train METHOD`.")
    read_run_config(folder)
    path = folder / METRICS
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        lines = []
    except OSError as error:
        raise CheckpointError(str(path), f"cannot be read: {error.strerror or error}", "Restore it.") from error
    records = []
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):  # a run that is being written, or was killed in the middle of a line
            break
        records.append(_record(line, path, number))
    if not records:
        raise CheckpointError(str(folder), "has logged nothing yet", "Wait for its first epoch, or train it.")
    ends = {record["epoch"] + 1: record["step"] for record in records if record.get("kind") != "step"}
    series: dict[str, list[_Series]] = {}
    for kind in ("epoch", "step"):
        of_kind = [record for record in records if (record.get("kind") == "step") == (kind == "step")]
        for key in dict.fromkeys(key for record in of_kind for key in record if key not in _CLOCK):
            having = [record for record in of_kind if key in record]
            steps = np.array([record["step"] for record in having], dtype=np.int64)
            logged = np.array([np.nan if record[key] is None else record[key] for record in having], dtype=np.float64)
            series.setdefault(key, []).append(_Series(kind, steps, _in_epochs(steps, ends), logged))
    return _Logged(name, folder, series)


def _record(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line)
        whole = all(isinstance(record[key], int) for key in ("epoch", "step"))
        numbers = all(value is None or isinstance(value, int | float) for k, value in record.items() if k != "kind")
    except (ValueError, KeyError, TypeError, AttributeError):
        whole = numbers = False
    if not (whole and numbers):
        raise CheckpointError(f"{path}:{number}", "is not a line that training writes", "Restore the file.")
    found: dict[str, Any] = record
    return found


def _in_epochs(steps: NDArray[np.int64], ends: dict[int, int]) -> NDArray[np.float64]:
    """Place steps between the ends of epochs; after the last one, as long as it was."""
    if not ends:
        return np.full(len(steps), np.nan)
    epochs = [0, *sorted(ends)]
    at = [0, *(ends[epoch] for epoch in epochs[1:])]
    length = (at[-1] - at[-2]) / (epochs[-1] - epochs[-2])
    inside = np.interp(steps, at, epochs)
    return np.where(steps > at[-1], epochs[-1] + (steps - at[-1]) / max(length, 1.0), inside)


def _choose(patterns: Sequence[str] | None, runs: Sequence[_Logged]) -> list[str]:
    """Names that were asked for, in that order.

    Raises:
        ConfigError: one of them was logged by no run, or there are too many to draw.
    """
    known = list(dict.fromkeys(name for run in runs for name in run.series))
    if patterns is None:
        return [name for name in _DEFAULT_METRICS if name in known] or known[:1]
    chosen: dict[str, None] = {}
    unknown = []
    for pattern in patterns:
        found = [pattern] if pattern in known else [name for name in known if fnmatch.fnmatchcase(name, pattern)]
        if not found:
            unknown.append(pattern)
        chosen |= dict.fromkeys(found)
    if not patterns:
        raise ConfigError("--metrics", "no name was given", f"Choose from {', '.join(sorted(known))}.")
    if unknown:
        near = [close[0] for name in unknown if (close := difflib.get_close_matches(name, known, n=1))]
        where = runs[0].folder if len(runs) == 1 else f"{len(runs)} runs"
        raise ConfigError(
            "--metrics",
            f"nothing named {' or '.join(unknown)} was logged by {where}; logged: {', '.join(sorted(known))}",
            f"Did you mean {' and '.join(dict.fromkeys(near))}?" if near else "Choose from these.",
        )
    if len(chosen) > _MOST_PANELS:
        raise ConfigError(
            "--metrics", f"{len(chosen)} names to draw, at most {_MOST_PANELS} fit a picture", "Choose fewer."
        )
    return list(chosen)


def _describe(name: str, run: _Logged, series: _Series) -> dict[str, object]:
    return {
        "metric": name,
        "run": run.folder,
        "per": series.kind,
        "steps": series.steps.tolist(),
        "epochs": series.epochs.tolist(),
        "values": series.values.tolist(),
    }


def _cells(name: str, run: _Logged, series: _Series) -> list[Cell]:
    finite = series.values[~np.isnan(series.values)]
    least, most = (float(finite.min()), float(finite.max())) if len(finite) else (None, None)
    first, last = float(series.values[0]), float(series.values[-1])
    return [name, run.name, series.kind, len(series.values), first, last, least, most]

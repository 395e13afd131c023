"""Plot the metrics that runs logged in ``metrics.jsonl``, with several runs on the same axes."""

import difflib
import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.results import Cell, CommandResult, Table
from labelkit.commands.show.options import ShowCurvesConfig
from labelkit.errors import CheckpointError, ConfigError
from labelkit.files import parse_json_object, read_bytes
from labelkit.progress import current_progress
from labelkit.training.run_dir import METRICS, read_run_config

_CLOCK = ("epoch", "step", "kind")
# metrics plotted by default
_MAIN_METRICS = ("loss", "all_accuracy", "old_accuracy", "new_accuracy")


@dataclass(frozen=True)
class MetricSeries:
    """Values of one logged metric over a training run.

    Attributes:
        kind: ``epoch``: one value per epoch; ``step``: one value per logged step.
        steps: (n,) number of optimizer updates.
        epochs: (n,) the same, converted to epochs; NaN if no epoch was completed.
        values: (n,) NaN where the metric was undefined.
    """

    kind: str
    steps: NDArray[np.int64]
    epochs: NDArray[np.float64]
    values: NDArray[np.float64]


@dataclass(frozen=True)
class LoggedMetrics:
    """Logged metrics of one run, by name; if a metric has several series, the one per epoch comes first."""

    name: str
    folder: Path
    series: dict[str, list[MetricSeries]]


def read_metric_log(folder: Path, name: str) -> LoggedMetrics:
    """Read the logged metrics of a training run.

    Raises:
        CheckpointError: the folder is not a run folder, or its log is missing, empty or damaged.
    """
    if not folder.exists():
        raise CheckpointError(str(folder), "does not exist", "Train first: `labelkit train METHOD`.")
    read_run_config(folder)
    path = folder / METRICS
    try:
        lines = read_bytes(path).splitlines(keepends=True)
    except FileNotFoundError:
        lines = []
    except OSError as error:
        raise CheckpointError(str(path), f"cannot be read: {error.strerror or error}", "Restore the file.") from error
    records = []
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):  # the line is still being written, or the run was killed
            break
        records.append(_parse_record(line, path, number))
    if not records:
        raise CheckpointError(str(folder), "has no log yet", "Start training, or wait for the end of the first epoch.")
    ends = {record["epoch"] + 1: record["step"] for record in records if record.get("kind") != "step"}
    series: dict[str, list[MetricSeries]] = {}
    for kind in ("epoch", "step"):
        of_kind = [record for record in records if (record.get("kind") == "step") == (kind == "step")]
        for key in dict.fromkeys(key for record in of_kind for key in record if key not in _CLOCK):
            having = [record for record in of_kind if key in record]
            steps = np.array([record["step"] for record in having], dtype=np.int64)
            logged = np.array([np.nan if record[key] is None else record[key] for record in having], dtype=np.float64)
            series.setdefault(key, []).append(MetricSeries(kind, steps, _steps_to_epochs(steps, ends), logged))
    return LoggedMetrics(name, folder, series)


def _parse_record(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        record = parse_json_object(line, {"epoch": int, "step": int})
        if not all(value is None or isinstance(value, int | float) for key, value in record.items() if key != "kind"):
            raise ValueError("contains text instead of a number")
    except ValueError as error:
        problem = "is not a valid line of a training log"
        raise CheckpointError(f"{path}:{number}", problem, "Restore the file.") from error
    return record


def _steps_to_epochs(steps: NDArray[np.int64], ends: dict[int, int]) -> NDArray[np.float64]:
    """Convert steps to epochs by interpolation; beyond the last complete epoch, extrapolate with its length."""
    if not ends:
        return np.full(len(steps), np.nan)
    epochs = [0, *sorted(ends)]
    at = [0, *(ends[epoch] for epoch in epochs[1:])]
    length = (at[-1] - at[-2]) / (epochs[-1] - epochs[-2])
    inside = np.interp(steps, at, epochs)
    return np.where(steps > at[-1], epochs[-1] + (steps - at[-1]) / max(length, 1.0), inside)


def show_curves(config: ShowCurvesConfig) -> CommandResult:
    """Plot the logged metrics of one or more runs, with one subplot per metric.

    Raises:
        CheckpointError: a folder is not a run folder, or its log is missing, empty or damaged.
        ConfigError: no run logged a requested metric, or the output exists and may not be replaced.
    """
    runs = [read_metric_log(folder, name) for folder, name in zip(config.run, _run_names(config.run), strict=True)]
    names = _choose_metrics(config.metrics, runs)
    for run in runs if config.over == "epoch" else ():
        if any(np.isnan(series.epochs).any() for found in run.series.values() for series in found):
            problem = f"{run.folder} has not finished an epoch, so steps cannot be converted to epochs"
            raise ConfigError("--over", problem, "Use --over step.")
    from labelkit.commands.common.images.plots import Curve, write_curves_plot  # matplotlib takes a second to load

    panels: dict[str, list[Curve]] = {}
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
                # if a metric is logged per step and per epoch, steps are drawn in the background
                is_main = series.kind == "epoch" or len(found) == 1
                panels[name].append(Curve(run.name, x, series.values, is_main))
                steps, epochs, logged = series.steps.tolist(), series.epochs.tolist(), series.values.tolist()
                described = {"metric": name, "run": run.folder, "per": series.kind}
                curves.append({**described, "steps": steps, "epochs": epochs, "values": logged})
                finite = series.values[~np.isnan(series.values)]
                ends = (float(finite.min()), float(finite.max())) if len(finite) else (None, None)
                cells.append([name, run.name, series.kind, len(logged), logged[0], logged[-1], *ends])
    write_curves_plot(config.out, panels, x_label=f"{config.over}s")
    values: dict[str, object] = {"picture": config.out, "over": config.over, "curves": curves}
    columns = ["metric", "run", "per", "points", "first", "last", "minimum", "maximum"]
    return CommandResult(values, (config.out,), (Table("", columns, cells),))


def _run_names(folders: Sequence[Path]) -> list[str]:
    """Return the folder names, or the paths as passed for folders with the same name."""
    names = [folder.resolve().name for folder in folders]
    repeated = {name for name in names if names.count(name) > 1}
    return [str(folder) if name in repeated else name for folder, name in zip(folders, names, strict=True)]


def _choose_metrics(patterns: Sequence[str] | None, runs: Sequence[LoggedMetrics]) -> list[str]:
    known = list(dict.fromkeys(name for run in runs for name in run.series))
    if patterns is None:
        return [name for name in _MAIN_METRICS if name in known] or known[:1]
    chosen: dict[str, None] = {}
    unknown = []
    for pattern in patterns:
        found = [pattern] if pattern in known else [name for name in known if fnmatch.fnmatchcase(name, pattern)]
        if not found:
            unknown.append(pattern)
        chosen |= dict.fromkeys(found)
    if not patterns:
        raise ConfigError("--metrics", "no metrics were specified", f"Choose from {', '.join(sorted(known))}.")
    if unknown:
        near = [close[0] for name in unknown if (close := difflib.get_close_matches(name, known, n=1))]
        where = runs[0].folder if len(runs) == 1 else f"{len(runs)} runs"
        problem = f"{where} did not log {' or '.join(unknown)} (it logged: {', '.join(sorted(known))})"
        remedy = f"Did you mean {' and '.join(dict.fromkeys(near))}?" if near else "Choose from these metrics."
        raise ConfigError("--metrics", problem, remedy)
    return list(chosen)

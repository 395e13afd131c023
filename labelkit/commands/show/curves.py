"""Plot the metrics that runs logged in ``metrics.jsonl``, with several runs on the same axes."""

import difflib
import fnmatch
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from labelkit.commands.common.results import Cell, CommandResult, Table
from labelkit.commands.show.options import ShowCurvesConfig
from labelkit.commands.show.run_logs import MAIN_METRICS, LoggedMetrics, read_metric_log
from labelkit.errors import ConfigError
from labelkit.progress import current_progress

_MAX_PANELS = 48


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
    full = [str(folder) if name in repeated else name for folder, name in zip(folders, names, strict=True)]
    again = {name for name in full if full.count(name) > 1}
    if again:
        problem = f"these runs are listed more than once: {', '.join(sorted(again))}"
        raise ConfigError("--run", problem, "List each run once.")
    return full


def _choose_metrics(patterns: Sequence[str] | None, runs: Sequence[LoggedMetrics]) -> list[str]:
    known = list(dict.fromkeys(name for run in runs for name in run.series))
    if patterns is None:
        return [name for name in MAIN_METRICS if name in known] or known[:1]
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
    if len(chosen) > _MAX_PANELS:
        problem = f"at most {_MAX_PANELS} of the {len(chosen)} metrics fit in one image"
        raise ConfigError("--metrics", problem, "Choose fewer metrics.")
    return list(chosen)

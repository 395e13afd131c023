"""Training curves of the run that made the network, as lines in a box of 100 by 100."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from labelkit.commands.common.locations import find_model
from labelkit.commands.common.run_logs import MAIN_METRICS, LoggedMetrics, Series, read_log
from labelkit.errors import LabelkitError
from labelkit.progress import current_progress
from labelkit.store.embeddings import ModelIdentity
from labelkit.studio.report.images import escape_for_page
from labelkit.training.run_dir import METRICS

# Maximum number of points of a curve, about its pixels, and of curves; `show curves` draws the others.
_MAX_POINTS, _MAX_CURVES = 400, 24


def read_curves(model: ModelIdentity, run: Path | None) -> dict[str, Any] | None:
    """Read the training curves of a run; by default, of the run that trained the store's model, if it still exists.

    Args:
        model: identity of the store's model.
        run: run folder; default: where the model was last seen on this machine.

    Returns:
        ``run``: name of the run folder; ``over``: ``epochs`` or ``steps``; ``curves``: the main ones first;
        ``left_out``: number of curves above the limit; ``note``: a sentence on whether its network is that of the
        store. Each curve has its ``name``, ``points`` (of an SVG polyline, ``x,y x,y ...``, y downward; one text per
        unbroken line), ``first``, ``last``, ``least`` and ``most`` value, ``start`` and ``stop`` (epoch or step at the
        left and right end), and ``main``: whether `show curves` draws it by default.

    Raises:
        CheckpointError: ``run`` is not a run, or its log is missing, empty or damaged.
    """
    if run is not None:
        logged = read_log(run, run.resolve().name)
        if _made_by(run, model):
            note = "Its last checkpoint contains the network that made the embeddings."
        else:
            note = "Its last checkpoint is not the network that made the embeddings."
            current_progress().warning(f"{run}: the store was not made with the last checkpoint of this run")
        return _curves(logged, note)
    checkpoint = find_model(model.weights_fingerprint)
    folder = None if checkpoint is None else checkpoint.parent.parent
    if checkpoint is None or folder is None or not (folder / METRICS).is_file():
        return None
    try:
        if not _made_by(checkpoint, model):
            return None
        logged = read_log(folder, folder.name)
    except LabelkitError as error:
        current_progress().warning(f"no training curves: {error}")
        return None
    return _curves(logged, "Found by the fingerprint of the weights: this run made the network of the store.")


def _made_by(checkpoint: Path, model: ModelIdentity) -> bool:
    from labelkit.commands.common.networks import load_run_network  # torch is loaded only if there is a run

    try:
        return load_run_network(checkpoint).identity({}).weights_fingerprint == model.weights_fingerprint
    except LabelkitError:
        return False


def _curves(logged: LoggedMetrics, note: str) -> dict[str, Any]:
    # if a name has values per epoch and per step, those per epoch come first and are used
    chosen = {name: found[0] for name, found in logged.series.items()}
    names = [name for name in MAIN_METRICS if name in chosen]
    names += [name for name in chosen if name not in names]
    in_epochs = not any(np.isnan(chosen[name].epochs).any() for name in names)
    drawn = [_curve(name, chosen[name], in_epochs=in_epochs, main=name in MAIN_METRICS) for name in names]
    curves = [curve for curve in drawn if curve is not None]
    return {
        "run": escape_for_page(logged.name),
        "over": "epochs" if in_epochs else "steps",
        "curves": curves[:_MAX_CURVES],
        "left_out": max(0, len(curves) - _MAX_CURVES),
        "note": note,
    }


def _curve(name: str, series: Series, *, in_epochs: bool, main: bool) -> dict[str, Any] | None:
    x = series.epochs if in_epochs else series.steps.astype(np.float64)
    finite = np.isfinite(series.values)
    if not finite.any():
        return None
    values = series.values[finite]
    least, most, start, stop = float(values.min()), float(values.max()), float(x[0]), float(x[-1])
    kept = np.unique(np.linspace(0, len(x) - 1, min(_MAX_POINTS, len(x))).astype(np.int64))
    across = 100 * (x[kept] - start) / (stop - start if stop > start else 1.0)
    up = (series.values[kept] - least) / (most - least) if most > least else np.full(len(kept), 0.5)
    lines: list[list[str]] = [[]]
    for place, height in zip(across, up, strict=True):
        if np.isfinite(height):
            lines[-1].append(f"{place:.2f},{100 - 100 * height:.2f}")
        elif lines[-1]:
            lines.append([])
    # a single point is drawn as a dot, which is a line of length 0 with round ends
    points = [" ".join(line * 2 if len(line) == 1 else line) for line in lines if line]
    ends = {"first": float(values[0]), "last": float(values[-1]), "least": least, "most": most}
    return {"name": escape_for_page(name), "points": points, **ends, "start": start, "stop": stop, "main": main}

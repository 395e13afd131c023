"""Summaries of a store for its report page: contents, scores of its groupings, and training curves of its network."""

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from labelkit.commands.common.locations import find_model_location
from labelkit.commands.common.run_logs import MAIN_METRICS, LoggedMetrics, MetricSeries, read_metric_log
from labelkit.commands.evaluate.groups import evaluate_clustering
from labelkit.commands.evaluate.options import EvaluateClusteringConfig
from labelkit.errors import LabelkitError, StoreError
from labelkit.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore, ModelIdentity
from labelkit.store.results import Result
from labelkit.studio.report.groups import GROUPINGS
from labelkit.studio.report.images import escape_for_page
from labelkit.studio.report.options import ReportConfig
from labelkit.training.run_dir import METRICS

_MAX_SKIPPED = 100
# Maximum number of points per curve, about its width in pixels, and of curves; `show curves` draws the others.
_MAX_POINTS, _MAX_CURVES = 400, 24


def score_groupings(
    store: EmbeddingStore, results: Mapping[str, Result | str], shown_result: Result, config: ReportConfig
) -> dict[str, Any] | str:
    """Evaluate all groupings of a store against its labels; if this is not possible, return the reason.

    Returns:
        ``scores``, one per grouping and split, as in ``labelkit evaluate clustering --json``; ``resamples``, the number
        of bootstrap resamples; ``held_out``, whether images whose labels training could use are excluded.
    """
    others = [
        name
        for name, one in results.items()
        if not isinstance(one, str) and one.kind in ("classes", "clusters") and name != shown_result.name
        if any(key in one.arrays for key in GROUPINGS)
    ]
    evaluation = EvaluateClusteringConfig(
        index=store.path,
        results=(shown_result.name, *others),
        labels=config.labels,
        label_column=config.label_column,
        seed=config.seed,
    )
    try:
        found: Any = evaluate_clustering(evaluation).to_json()
    except StoreError as error:
        return escape_for_page(error.problem)
    held_out = store.labeled is not None and bool(store.labeled.any())
    return {"scores": found["scores"], "resamples": evaluation.bootstrap, "held_out": held_out}


def describe_store(store: EmbeddingStore) -> dict[str, Any]:
    """Summarize the properties, model, classes, splits and skipped images of a store.

    Returns:
        ``facts`` and ``model``: (name, value); ``classes``: the ``name``, number of ``images`` and of ``labeled``
        images, and whether the class is ``old`` (``None`` if not recorded), ending with a nameless entry for images of
        unknown class, if any; ``splits``: (name, images); ``skipped``: (name, reason) of the first files that were
        listed but not embedded; ``num_skipped``: their number; ``num_labels``: number of images whose class is known;
        ``has_hidden_labels``: whether some of these labels are not available for training.
    """
    known = 0 if store.labels is None else int((np.asarray(store.labels) >= 0).sum())
    usable = 0 if store.labeled is None else int(np.asarray(store.labeled).sum())
    facts = (
        ("images", f"{store.n:,}"),
        ("embedding dimension", f"{store.dim:,}"),
        ("metric", {"cosine": "cosine", "l2": "Euclidean distance", "dot": "inner product"}[store.metric]),
        ("known class", f"{known:,}"),
        ("label available for training", f"{usable:,}"),
        ("listed but not embedded", f"{len(store.skipped):,}"),
        ("created by", escape_for_page(store.created_by)),
        ("digest", store.content_digest),
    )
    model = store.model
    size = model.preprocess.get("size")
    rows = (
        ("model", model.name),
        ("source", model.source),
        ("layer", model.layer),
        ("pooling", model.pooling),
        ("input", f"{size} pixels" if size is not None else ""),
        ("weights", model.weights_fingerprint),
        ("preprocessing", model.preprocess_digest),
    )
    splits = []
    if store.splits is not None:
        numbers = np.asarray(store.splits)
        counts = [(escape_for_page(name), int((numbers == i).sum())) for i, name in enumerate(store.split_names)]
        outside = int((numbers < 0).sum())
        splits = counts + ([("(no split)", outside)] if outside else [])
    return {
        "facts": facts,
        "model": [(name, escape_for_page(value)) for name, value in rows if value],
        "classes": _classes(store),
        "splits": splits,
        "skipped": [(escape_for_page(name), escape_for_page(reason)) for name, reason in store.skipped[:_MAX_SKIPPED]],
        "num_skipped": len(store.skipped),
        "num_labels": known,
        "has_hidden_labels": usable < known,
    }


def _classes(store: EmbeddingStore) -> list[dict[str, Any]]:
    if store.labels is None:
        return []
    labels = np.asarray(store.labels)
    usable = np.zeros(store.n, dtype=bool) if store.labeled is None else np.asarray(store.labeled, dtype=bool)
    old = [None] * len(store.class_names) if store.old_classes is None else store.old_classes.astype(bool).tolist()
    names = [*map(escape_for_page, store.class_names), ""]  # the last one is for label -1
    images = np.bincount(labels % len(names), minlength=len(names)).tolist()
    labeled = np.bincount(labels[(labels >= 0) & usable], minlength=len(names)).tolist()
    rows = zip(names, images, labeled, [*old, None], strict=True)
    found = [dict(zip(("name", "images", "labeled", "old"), row, strict=True)) for row in rows]
    return found if found[-1]["images"] else found[:-1]


def read_curves(model: ModelIdentity, run: Path | None) -> dict[str, Any] | None:
    """Read the training curves of a run; by default, of the run that trained the store's model, if it still exists.

    Returns:
        ``run``: name of the run folder; ``over``: ``epochs`` or ``steps``; ``curves``: the main curves first;
        ``left_out``: number of curves omitted; ``note``: a sentence on whether the run trained the network of the
        store. Each curve has its ``name``, ``points`` (of an SVG polyline, ``x,y x,y ...``, y downward; one string per
        unbroken line), ``first``, ``last``, ``least`` and ``most`` value, ``start`` and ``stop`` (epoch or step at the
        left and right end), and ``main``, whether `show curves` draws it by default.

    Raises:
        CheckpointError: ``run`` is not a run folder, or its log is missing, empty or damaged.
    """
    if run is not None:
        logged = read_metric_log(run, run.resolve().name)
        if _made_by(run, model):
            note = "Its last checkpoint contains the network that computed the embeddings."
        else:
            note = "Its last checkpoint is not the network that computed the embeddings."
            current_progress().warning(f"{run}: the store was not created with the last checkpoint of this run")
        return _curves(logged, note)
    checkpoint = find_model_location(model.weights_fingerprint)
    folder = None if checkpoint is None else checkpoint.parent.parent
    if checkpoint is None or folder is None or not (folder / METRICS).is_file():
        return None
    try:
        if not _made_by(checkpoint, model):
            return None
        logged = read_metric_log(folder, folder.name)
    except LabelkitError as error:
        current_progress().warning(f"no training curves: {error}")
        return None
    return _curves(logged, "This run trained the network of the store (found by the fingerprint of the weights).")


def _made_by(checkpoint: Path, model: ModelIdentity) -> bool:
    from labelkit.commands.common.networks import load_run_network  # imports torch, only if there is a run

    try:
        return load_run_network(checkpoint).build_identity({}).weights_fingerprint == model.weights_fingerprint
    except LabelkitError:
        return False


def _curves(logged: LoggedMetrics, note: str) -> dict[str, Any]:
    # if a name has values per epoch and per step, the first ones, per epoch, are used
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


def _curve(name: str, series: MetricSeries, *, in_epochs: bool, main: bool) -> dict[str, Any] | None:
    x = series.epochs if in_epochs else series.steps.astype(np.float64)
    finite = np.isfinite(series.values)
    if not finite.any():
        return None
    values = series.values[finite]
    least, most, start, stop = float(values.min()), float(values.max()), float(x[0]), float(x[-1])
    kept = np.unique(np.linspace(0, len(x) - 1, min(_MAX_POINTS, len(x))).astype(np.int64))
    across = 100 * (x[kept] - start) / (stop - start if stop > start else 1.0)
    up = (series.values[kept] - least) / (most - least) if most > least else np.full(len(kept), 0.5)
    points = []
    for is_line, line in groupby(zip(across, up, strict=True), lambda point: bool(np.isfinite(point[1]))):
        if is_line:
            drawn = [f"{place:.2f},{100 - 100 * height:.2f}" for place, height in line]
            # a single point is drawn as a line of length 0 with round ends
            points.append(" ".join(drawn * 2 if len(drawn) == 1 else drawn))
    ends = {"first": float(values[0]), "last": float(values[-1]), "least": least, "most": most}
    return {"name": escape_for_page(name), "points": points, **ends, "start": start, "stop": stop, "main": main}

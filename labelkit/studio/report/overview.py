"""Summaries of a store for its report page: contents, and scores of its groupings."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from labelkit.commands.evaluate.groups import evaluate_clustering
from labelkit.commands.evaluate.options import EvaluateClusteringConfig
from labelkit.errors import StoreError
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.results import Result
from labelkit.studio.report.images import escape_for_page
from labelkit.studio.report.options import ReportConfig

_MAX_SKIPPED = 100


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
        if one.group_ids(best_guess=False) is not None
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

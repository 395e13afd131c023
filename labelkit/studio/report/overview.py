"""The contents of a store in texts and tables, and the scores of its groupings if there are labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from labelkit.commands.evaluate.groups import evaluate_clustering
from labelkit.commands.evaluate.options import EvaluateClusteringConfig
from labelkit.errors import StoreError
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.results import Result
from labelkit.studio.report.groups import GROUPINGS
from labelkit.studio.report.images import escape_for_page

# Maximum number of listed files that could not be embedded.
_MAX_SKIPPED = 100


def score_groupings(
    store: EmbeddingStore, results: Mapping[str, Result | str], shown: Result, seed: int
) -> dict[str, Any] | str:
    """Evaluate the shown grouping of a store and all others against its labels; if that fails, return the reason.

    Returns:
        ``scores``, one per grouping and split, as in ``labelkit evaluate clustering --json``; ``resamples``, their
        number for the intervals; ``held_out``: whether images whose label training could use are left out.
    """
    others = [
        name
        for name, one in results.items()
        if not isinstance(one, str) and one.kind in ("classes", "clusters") and name != shown.name
        if any(key in one.arrays for key in GROUPINGS)
    ]
    config = EvaluateClusteringConfig(index=store.path, results=(shown.name, *others), seed=seed)
    try:
        found: Any = evaluate_clustering(config).to_json()
    except StoreError as error:
        return escape_for_page(error.problem)
    held_out = store.labeled is not None and bool(store.labeled.any())
    return {"scores": found["scores"], "resamples": config.bootstrap, "held_out": held_out}


def describe_store(store: EmbeddingStore) -> dict[str, Any]:
    """Summarize the properties, model, classes, splits and skipped images of a store.

    Returns:
        ``facts`` and ``model``: (name, value); ``classes``: the ``name``, number of ``images`` and of ``labeled`` ones,
        and whether it is ``old`` (None if the store does not say), with a last nameless one for images of unknown
        class, if any; ``splits``: (name, images); ``skipped``: (name, reason) of the first files that were listed but
        not embedded; ``num_skipped``: their number; ``num_labels``: number of images whose class is known.
    """
    known = 0 if store.labels is None else int((np.asarray(store.labels) >= 0).sum())
    usable = 0 if store.labeled is None else int(np.asarray(store.labeled).sum())
    facts = (
        ("images", f"{store.n:,}"),
        ("values per embedding", f"{store.dim:,}"),
        ("compared by", {"cosine": "cosine", "l2": "Euclidean distance", "dot": "inner product"}[store.metric]),
        ("class known", f"{known:,}"),
        ("label usable in training", f"{usable:,}"),
        ("listed but not embedded", f"{len(store.skipped):,}"),
        ("made by", escape_for_page(store.created_by)),
        ("digest", store.content_digest),
    )
    model = store.model
    size = model.preprocess.get("size")
    rows = (
        ("model", model.name),
        ("from", model.source),
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

"""What is in a store, in words and tables, and the scores of its groupings where labels exist."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from labelkit.commands.evaluate.groups import evaluate_clustering
from labelkit.commands.evaluate.options import EvaluateClusteringConfig
from labelkit.errors import StoreError
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.results import Result
from labelkit.studio.report.groups import Candidate
from labelkit.studio.report.images import shown_text

_PARTS = ("all", "old", "new")


@dataclass(frozen=True)
class Accuracy:
    """Clustering accuracy on all, old or new classes with its 95 % interval, in %.

    Attributes:
        part: ``all``, ``old`` or ``new`` classes.
        percent: share of right images.
        low: of its 95 % interval.
        high: of its 95 % interval.
    """

    part: str
    percent: float
    low: float
    high: float


@dataclass(frozen=True)
class ScoreRow:
    """Scores of one grouping on one split.

    Attributes:
        result: its name.
        split: of the store.
        rows: images scored.
        accuracies: of those parts that have images.
        nmi: normalized mutual information, 0 to 1.
        ari: adjusted Rand index, at most 1.
        clusters: groups in use.
    """

    result: str
    split: str
    rows: int
    accuracies: tuple[Accuracy, ...]
    nmi: float
    ari: float
    clusters: int


@dataclass(frozen=True)
class Scores:
    """Clustering scores of all groupings of a store, and per-class accuracies of the one shown.

    Attributes:
        rows: one per grouping and split.
        classes: (split, class, images, accuracy in %) of the grouping shown.
        resamples: of the intervals.
        held_out: whether images whose label training could use are left out.
    """

    rows: tuple[ScoreRow, ...]
    classes: tuple[tuple[str, str, int, float], ...]
    resamples: int
    held_out: bool


def score_groupings(store: EmbeddingStore, candidates: list[Candidate], shown: Result, seed: int) -> Scores | str:
    """Evaluate all groupings of a store against its labels, or return the reason why that is not possible.

    Args:
        store: the store.
        candidates: its results.
        shown: the result whose groups are shown.
        seed: of the resamples.
    """
    others = [
        one.name
        for one in candidates
        if one.result is not None and one.result.kind in ("classes", "clusters") and one.name != shown.name
    ]
    names = (shown.name, *(name for name in others if _groups_rows(candidates, name)))
    try:
        found: Any = evaluate_clustering(EvaluateClusteringConfig(index=store.path, results=names, seed=seed)).to_json()
    except StoreError as error:
        return shown_text(error.problem)
    rows = tuple(_row(score) for score in found["scores"])
    classes = tuple(
        (shown_text(score["split"]), shown_text(one["class"]), int(one["images"]), 100 * float(one["accuracy"]))
        for score in found["scores"]
        if score["result"] == shown.name
        for one in score["per_class"]
    )
    held_out = store.labeled is not None and bool(store.labeled.any())
    return Scores(rows, classes, int(found["bootstrap"]["resamples"]), held_out)


def _groups_rows(candidates: list[Candidate], name: str) -> bool:
    result = next(one.result for one in candidates if one.name == name)
    return result is not None and any(key in result.arrays for key in ("pseudo_labels", "cluster_ids"))


def _row(score: Mapping[str, Any]) -> ScoreRow:
    intervals = score["intervals"]
    accuracies = tuple(
        Accuracy(part, 100 * score[f"{part}_accuracy"], *(100 * float(edge) for edge in intervals[part]))
        for part in _PARTS
        if score[f"{part}_accuracy"] is not None
    )
    return ScoreRow(
        score["result"],
        shown_text(score["split"]),
        int(score["rows"]),
        accuracies,
        float(score["nmi"]),
        float(score["ari"]),
        int(score["used_clusters"]),
    )


# files that could not be embedded, listed at most
_MOST_SKIPPED = 100


@dataclass(frozen=True)
class ClassRow:
    """Number of images and of usable labels of one class.

    Attributes:
        name: of the class.
        images: whose class it is.
        labeled: of these, whose label training may use.
        old: whether the class has such images; ``None`` if the store does not say.
    """

    name: str
    images: int
    labeled: int
    old: bool | None


@dataclass(frozen=True)
class Overview:
    """Summary of a store: its properties, model, classes, splits and skipped images.

    Attributes:
        facts: (name, value) of the store.
        model: (name, value) of what made the embeddings.
        classes: images by class; the last row, without a name, are those of unknown class, if there are any.
        splits: (name, images).
        skipped: (name, reason) of what was listed but not embedded, the first of them.
        num_skipped: all of them.
        num_labels: images whose class is known.
    """

    facts: tuple[tuple[str, str], ...]
    model: tuple[tuple[str, str], ...]
    classes: tuple[ClassRow, ...]
    splits: tuple[tuple[str, int], ...]
    skipped: tuple[tuple[str, str], ...]
    num_skipped: int
    num_labels: int


def describe_store(store: EmbeddingStore) -> Overview:
    """Summarize the properties, model, classes, splits and skipped images of a store."""
    known = 0 if store.labels is None else int((np.asarray(store.labels) >= 0).sum())
    usable = 0 if store.labeled is None else int(np.asarray(store.labeled).sum())
    facts = (
        ("images", f"{store.n:,}"),
        ("values per embedding", f"{store.dim:,}"),
        ("compared by", {"cosine": "cosine", "l2": "Euclidean distance", "dot": "inner product"}[store.metric]),
        ("class known", f"{known:,}"),
        ("label usable in training", f"{usable:,}"),
        ("listed but not embedded", f"{len(store.skipped):,}"),
        ("made by", shown_text(store.created_by)),
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
    return Overview(
        facts=facts,
        model=tuple((name, shown_text(value)) for name, value in rows if value),
        classes=_classes(store),
        splits=_splits(store),
        skipped=tuple((shown_text(name), shown_text(reason)) for name, reason in store.skipped[:_MOST_SKIPPED]),
        num_skipped=len(store.skipped),
        num_labels=known,
    )


def _classes(store: EmbeddingStore) -> tuple[ClassRow, ...]:
    if store.labels is None:
        return ()
    labels = np.asarray(store.labels)
    usable = np.zeros(store.n, dtype=bool) if store.labeled is None else np.asarray(store.labeled, dtype=bool)
    count = len(store.class_names)
    images = np.bincount(labels[labels >= 0], minlength=count)
    labeled = np.bincount(labels[(labels >= 0) & usable], minlength=count)
    rows = [
        ClassRow(
            shown_text(name),
            int(images[i]),
            int(labeled[i]),
            None if store.old_classes is None else bool(store.old_classes[i]),
        )
        for i, name in enumerate(store.class_names)
    ]
    unknown = int((labels < 0).sum())
    return tuple(rows + ([ClassRow("", unknown, 0, None)] if unknown else []))


def _splits(store: EmbeddingStore) -> tuple[tuple[str, int], ...]:
    if store.splits is None:
        return ()
    splits = np.asarray(store.splits)
    found = [(shown_text(name), int((splits == i).sum())) for i, name in enumerate(store.split_names)]
    outside = int((splits < 0).sum())
    return tuple(found + ([("(no split)", outside)] if outside else []))

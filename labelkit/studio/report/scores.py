"""Scores of the groupings of a store, where labels exist: those of ``evaluate clustering``, for a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
    """One accuracy, in %.

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
    """One grouping on one split.

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
    """Scores of the groupings.

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
    """Score all groupings of a store, the one shown first, or say why that cannot be done.

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

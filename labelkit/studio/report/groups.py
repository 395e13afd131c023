"""The groups of a result: which result is shown, and of each group its size, typical and doubtful images.

Labels are looked at only to describe groups, never to choose their images.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.stored_predictions import correctness_probabilities, read_stored_predictions
from labelkit.errors import StoreError
from labelkit.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.results import Result, list_results, newest_name, read_result
from labelkit.studio.report.images import ShownImages, shown_text

GROUPINGS = ("pseudo_labels", "cluster_ids")
# the most telling first: names and a confidence for every image before bare numbers, groups of all images before some
_KINDS = ("answers", "classes", "clusters", "discovered")
_WHY = {
    "answers": "it says what is known, new and unsure",
    "classes": "it names classes",
    "clusters": "there are no discovered classes",
    "discovered": "there is no grouping of all images",
}


@dataclass(frozen=True)
class Group:
    """Group of images, with its size, known classes, and typical and doubtful images.

    Attributes:
        name: of the class, or ``group 3``.
        new: whether it is a class without labels; ``None`` if the result does not say.
        size: images of the whole store in it.
        shown: images of the page in it.
        confidence: mean over its images on the page; ``None`` without any.
        labeled: images of the whole store in it whose class is known.
        counts: (class, images) of those, most first.
        typical: images of the page nearest to the mean of the group, nearest first.
        doubtful: images of the page with the least confidence, least first.
    """

    name: str
    new: bool | None
    size: int
    shown: int
    confidence: float | None
    labeled: int
    counts: tuple[tuple[int, int], ...]
    typical: tuple[int, ...]
    doubtful: tuple[int, ...]

    @property
    def purity(self) -> float | None:
        """Fraction of the group's images of known class that belong to its most frequent class."""
        return self.counts[0][1] / self.labeled if self.counts else None


@dataclass(frozen=True)
class Grouping:
    """Groups of one result, as a page shows them.

    Attributes:
        result: where they are from.
        why: how the result was chosen.
        groups: k groups; empty ones are left out.
        ids: (m,) int64, group of each image of the page, -1 = none.
        confidence: (m,) float32 in [0, 1], or a margin in [-1, 1]; NaN where there is none.
        expected: (m,) float32 in [0, 1], chances to be right that add up to how many images are; ``None`` if the result
            has none.
        measure: what ``confidence`` is: ``confidence`` (stored by the command) or ``margin`` (computed here).
        runner_up: (m,) int64, the group whose mean is next nearest, -1 = none.
        ungrouped: images of the whole store in no group.
        decided: of answers, how many images without a label are ``known``, ``new`` and ``unsure``; how many of the
            known and new ones to expect ``right``, and how many ``guesses`` for the unsure ones (``None``: not known);
            and the ``limit``: confidence from which an image is answered. ``None`` for other results.
    """

    result: Result
    why: str
    groups: tuple[Group, ...]
    ids: NDArray[np.int64]
    confidence: NDArray[np.float32]
    measure: str
    runner_up: NDArray[np.int64]
    ungrouped: int
    decided: dict[str, Any] | None
    expected: NDArray[np.float32] | None = None


def find_results(store: EmbeddingStore) -> dict[str, Result | str]:
    """Read the results of a store, by name; one that cannot be read is warned about and stands with the reason."""
    found: dict[str, Result | str] = {}
    for name in list_results(store):
        try:
            found[name] = read_result(store, name)
        except StoreError as error:
            current_progress().warning(f"{error}; the page shows the other results")
            found[name] = shown_text(f"cannot be used: {error.problem}")
    return found


def choose_result(
    store: EmbeddingStore, name: str | None, results: Mapping[str, Result | str]
) -> tuple[Result, str] | None:
    """Choose the result whose groups a page shows; return it with the reason, or ``None`` if none has groups.

    Without a name: discovered classes before clusters, and of one kind those with a confidence, then those with
    names, then the first by name; of answers the newest. Labels have no say.

    Raises:
        StoreError: there is no result of this name, it cannot be used, or it does not group the rows.
    """
    if name is not None:
        result = read_result(store, name)
        if _ids(result) is None:
            raise StoreError(str(result.path), "has no image groups", "Choose a result of `cluster` or `discover`.")
        return result, "chosen by --result"
    newest = newest_name(list(results), "answer")
    older = [name for name in results if name != newest and re.fullmatch(r"answer(-\d+)?", name)]
    usable = [
        one
        for name, one in results.items()
        if not isinstance(one, str) and _ids(one) is not None and one.kind in _KINDS and name not in older
    ]
    if not usable:
        return None
    best = min(
        usable,
        key=lambda result: (
            _KINDS.index(result.kind),
            "confidence" not in result.arrays,
            "names" not in result.arrays,
            result.name,
        ),
    )
    if len(usable) == 1:
        return best, "the only one that groups the images"
    why = _WHY[best.kind] + (" and how sure it is" if "confidence" in best.arrays else "")
    return best, f"chosen among {len(usable)} because {why}"


def describe_groups(
    store: EmbeddingStore, images: ShownImages, result: Result, why: str, examples: int
) -> Grouping | None:
    """Describe the groups of a result, the largest first; return ``None`` if all are empty.

    Args:
        store: the store.
        images: those of the page.
        result: what groups them.
        why: how it was chosen.
        examples: typical, and doubtful, images of each group at most.
    """
    every = _ids(result)
    assert every is not None
    sizes = np.bincount(every[every >= 0], minlength=1)
    order = [int(one) for one in np.argsort(-sizes, kind="stable") if sizes[one]]
    if not order:
        return None
    place = np.full(len(sizes), -1, dtype=np.int64)
    place[order] = np.arange(len(order))
    ids = np.where(every >= 0, place[every], -1)
    shown_ids = ids[images.rows]
    to_mean, runner_up, margin = _distances(images.features, shown_ids, len(order))
    stored = result.arrays.get("confidence")
    measure = "margin" if stored is None else "confidence"
    confidence = margin if stored is None else np.asarray(stored, dtype=np.float32)[images.rows]
    confidence = np.where(shown_ids >= 0, confidence, np.nan).astype(np.float32)
    labels = np.full(store.n, -1, dtype=np.int64) if store.labels is None else np.asarray(store.labels, dtype=np.int64)
    groups = []
    for number, old_id in enumerate(order):
        members = np.flatnonzero(shown_ids == number)
        near = members[np.argsort(to_mean[members], kind="stable")]
        sure = confidence[members]
        finite = sure[np.isfinite(sure)]
        doubt = members[np.argsort(sure, kind="stable")][: len(finite)]
        known = labels[(ids == number) & (labels >= 0)]
        groups.append(
            Group(
                name=_name(result, old_id),
                new=_is_new(result, old_id),
                size=int(sizes[old_id]),
                shown=len(members),
                confidence=float(finite.mean(dtype=np.float64)) if len(finite) else None,
                labeled=len(known),
                counts=_counts(known),
                typical=tuple(near[:examples].tolist()),
                doubtful=tuple(doubt[:examples].tolist()),
            )
        )
    ungrouped = int((every < 0).sum())
    chances = correctness_probabilities(result)
    expected = None if chances is None else chances[images.rows].astype(np.float32)
    return Grouping(
        result, why, tuple(groups), shown_ids, confidence, measure, runner_up, ungrouped, _decided(result), expected
    )


def _decided(result: Result) -> dict[str, Any] | None:
    if result.kind != "answers":
        return None
    found = read_stored_predictions(result)
    return {
        **{kind: found.kinds.count(kind) for kind in ("known", "new", "unsure")},
        "right": found.expected_right(("known", "new")),
        "guesses": found.expected_right(("unsure",)),
        "limit": float(str(result.params.get("min_confidence", 0))),
    }


def _ids(result: Result) -> NDArray[np.int64] | None:
    # of answers the best guess of every image; their pseudo-labels leave out what is unsure
    keys = ("group_ids", *GROUPINGS) if result.kind == "answers" else GROUPINGS
    key = next((key for key in keys if key in result.arrays), None)
    return None if key is None else np.asarray(result.arrays[key], dtype=np.int64)


def _name(result: Result, number: int) -> str:
    names = result.arrays.get("names")
    return shown_text(names[number]) if names is not None and number < len(names) else f"group {number}"


def _is_new(result: Result, number: int) -> bool | None:
    flags = result.arrays.get("new_classes")
    return bool(flags[number]) if flags is not None and number < len(flags) else None


def _counts(known: NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    classes, counts = np.unique(known, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return tuple((int(classes[i]), int(counts[i])) for i in order)


def _distances(
    features: NDArray[np.float32], ids: NDArray[np.int64], count: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float32]]:
    """Return (distance to the mean of the own group, next nearest group, margin between the two), each (m,).

    The margin is (b - a) / max(a, b) of the distances a to the own and b to the nearest other mean: the simplified
    silhouette. Rows without a group have NaN, -1, NaN.
    """
    there = np.flatnonzero(np.bincount(ids[ids >= 0], minlength=count))
    centers = np.zeros((len(there), features.shape[1]))
    for place, number in enumerate(there):
        centers[place] = features[ids == number].mean(axis=0, dtype=np.float64)
    own, other = np.full(len(ids), np.nan), np.full(len(ids), np.nan)
    runner_up = np.full(len(ids), -1, dtype=np.int64)
    column = np.full(count, -1, dtype=np.int64)
    column[there] = np.arange(len(there))
    grouped = np.flatnonzero(ids >= 0)
    # blocks: all rows in float64 at once would double the memory of the features
    for start in range(0, len(grouped), 1024):
        block = grouped[start : start + 1024]
        rows = features[block].astype(np.float64)
        squares = (rows**2).sum(axis=1)[:, None] + (centers**2).sum(axis=1) - 2 * rows @ centers.T
        distances = np.sqrt(np.maximum(squares, 0))
        mine = column[ids[block]]
        own[block] = distances[np.arange(len(block)), mine]
        if len(there) > 1:
            distances[np.arange(len(block)), mine] = np.inf
            nearest = distances.argmin(axis=1)
            other[block] = distances[np.arange(len(block)), nearest]
            runner_up[block] = there[nearest]
    larger = np.maximum(own, other)
    margin = np.where(larger > 0, (other - own) / np.where(larger > 0, larger, 1), np.where(larger == 0, 0.0, np.nan))
    return own, runner_up, margin.astype(np.float32)

"""Choose the result that a page shows, and describe its groups by size, typical images and doubtful images.

Labels are used only to describe groups, never to choose the images shown.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.stored_predictions import read_correctness_probabilities, read_stored_predictions
from labelkit.errors import StoreError
from labelkit.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.results import Result, find_newest_name, list_results, read_result
from labelkit.studio.report.images import ShownImages, escape_for_page

# Kinds of results, most informative first: names with confidences, then numbered groups, then groups of some images.
_KINDS = ("answers", "classes", "clusters", "discovered")
_WHY = {
    "answers": "it distinguishes known, new and unsure images",
    "classes": "it names classes",
    "clusters": "there are no discovered classes",
    "discovered": "no result groups all images",
}


@dataclass(frozen=True)
class Group:
    """Group of images, with its size, known classes, and typical and doubtful images.

    Attributes:
        name: name of the class, or ``group 3``.
        new: whether this is a class without labels; ``None`` if the result does not record it.
        size: number of images in the whole store.
        shown: number of images on the page.
        confidence: mean over the images on the page; ``None`` if none has a confidence.
        labeled: number of images in the whole store whose class is known.
        counts: (class, number of labeled images), most frequent first.
        purity: fraction in the most frequent class, among images whose class is known and was not used by the result;
            ``None`` if there are none.
        typical: images on the page nearest to the mean of the group, nearest first.
        doubtful: images on the page with the lowest confidence, lowest first.
    """

    name: str
    new: bool | None
    size: int
    shown: int
    confidence: float | None
    labeled: int
    counts: tuple[tuple[int, int], ...]
    purity: float | None
    typical: tuple[int, ...]
    doubtful: tuple[int, ...]


@dataclass(frozen=True)
class Grouping:
    """Groups of a result, as shown on a page.

    Attributes:
        result: the result with the groups.
        why: reason the result was chosen.
        groups: k non-empty groups.
        ids: (m,) int64, group of each image of the page, -1 = none.
        confidence: (m,) float32 in [0, 1], or a margin in [-1, 1]; NaN if there is none.
        expected: (m,) float32 in [0, 1], probability that each prediction is correct, so that the sum is the expected
            number of correct predictions; ``None`` if the result has none.
        measure: meaning of ``confidence``: ``confidence`` (stored by the command) or ``margin`` (computed here).
        runner_up: (m,) int64, the group with the second nearest mean, -1 = none.
        ungrouped: number of images in the whole store that are in no group.
        decided: for predictions, the numbers of unlabeled images that are ``known``, ``new`` and ``unsure``; the
            expected number of correct predictions among known and new (``right``) and among unsure images (``guesses``;
            ``None``: unknown); and the minimum confidence of known and new images (``limit``). Otherwise ``None``.
    """

    result: Result
    why: str
    groups: tuple[Group, ...]
    ids: NDArray[np.int64]
    confidence: NDArray[np.float32]
    expected: NDArray[np.float32] | None
    measure: str
    runner_up: NDArray[np.int64]
    ungrouped: int
    decided: dict[str, Any] | None


def read_all_results(store: EmbeddingStore) -> dict[str, Result | str]:
    """Read all results of a store, keyed by name; if one cannot be read, warn and return the reason in its place."""
    found: dict[str, Result | str] = {}
    for name in list_results(store):
        try:
            found[name] = read_result(store, name)
        except StoreError as error:
            current_progress().warning(f"{error}; the page shows the other results")
            found[name] = escape_for_page(f"cannot be used: {error.problem}")
    return found


def choose_result(
    store: EmbeddingStore, name: str | None, results: Mapping[str, Result | str]
) -> tuple[Result, str] | None:
    """Choose the result whose groups a page shows, and say why it was chosen; ``None`` if no result has groups.

    Without a name, results are ranked by kind (``_KINDS``), then by whether they have confidences, then names, and
    finally by name; of ``answers``, only the newest is considered. Labels do not affect the choice.

    Raises:
        StoreError: the result does not exist, cannot be used, or does not group the images.
    """
    if name is not None:
        result = read_result(store, name)
        if result.group_ids(best_guess=True) is None:
            problem = "contains no groups of images"
            raise StoreError(str(result.path), problem, "Choose a result of `labelkit cluster` or `labelkit discover`.")
        return result, "chosen by --result"
    newest = find_newest_name(list(results), "answer")
    older = [name for name in results if name != newest and re.fullmatch(r"answer(-\d+)?", name)]
    usable = [
        one
        for name, one in results.items()
        if not isinstance(one, str)
        and one.group_ids(best_guess=True) is not None
        and one.kind in _KINDS
        and name not in older
    ]
    if not usable:
        return None

    def rank(result: Result) -> tuple[int, bool, bool, str]:
        arrays = result.arrays
        return _KINDS.index(result.kind), "confidence" not in arrays, "names" not in arrays, result.name

    best = min(usable, key=rank)
    if len(usable) == 1:
        return best, "the only result that groups the images"
    why = _WHY[best.kind] + (" and it contains confidences" if "confidence" in best.arrays else "")
    return best, f"chosen from {len(usable)} because {why}"


def describe_groups(
    store: EmbeddingStore, images: ShownImages, result: Result, reason: str, examples: int
) -> Grouping | None:
    """Describe the groups of a result, largest first; return ``None`` if all are empty.

    Args:
        store: the store.
        images: the images of the page.
        result: result with the groups.
        reason: reason it was chosen.
        examples: maximum number of typical images, and of doubtful images, per group.
    """
    every = result.group_ids(best_guess=True)
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
    used = store.trained_rows().copy()
    # a result without known classes, such as that of k-means, was computed without labels
    for mask in (store.labeled if "new_classes" in result.arrays else None, result.arrays.get("labeled")):
        used |= False if mask is None else np.asarray(mask, dtype=bool)
    names, are_new = result.arrays.get("names", ()), result.arrays.get("new_classes", ())
    groups = []
    for number, old_id in enumerate(order):
        members = np.flatnonzero(shown_ids == number)
        near = members[np.argsort(to_mean[members], kind="stable")]
        sure = confidence[members]
        finite = sure[np.isfinite(sure)]
        doubt = members[np.argsort(sure, kind="stable")][: len(finite)]
        known = labels[(ids == number) & (labels >= 0)]
        counts = tuple(Counter(np.sort(known).tolist()).most_common())
        judged = labels[(ids == number) & (labels >= 0) & ~used]
        groups.append(
            Group(
                name=escape_for_page(names[old_id]) if old_id < len(names) else f"group {old_id}",
                new=bool(are_new[old_id]) if old_id < len(are_new) else None,
                size=int(sizes[old_id]),
                shown=len(members),
                confidence=float(finite.mean(dtype=np.float64)) if len(finite) else None,
                labeled=len(known),
                counts=counts,
                purity=float((judged == counts[0][0]).mean()) if len(judged) else None,
                typical=tuple(near[:examples].tolist()),
                doubtful=tuple(doubt[:examples].tolist()),
            )
        )
    chances = read_correctness_probabilities(result)
    return Grouping(
        result=result,
        why=reason,
        groups=tuple(groups),
        ids=shown_ids,
        confidence=confidence,
        expected=None if chances is None else chances[images.rows].astype(np.float32),
        measure=measure,
        runner_up=runner_up,
        ungrouped=int((every < 0).sum()),
        decided=_summarize_decisions(result),
    )


def _summarize_decisions(result: Result) -> dict[str, Any] | None:
    if result.kind != "answers":
        return None
    found = read_stored_predictions(result)
    return {
        **{kind: found.kinds.count(kind) for kind in ("known", "new", "unsure")},
        "right": found.expected_correct(("known", "new")),
        "guesses": found.expected_correct(("unsure",)),
        "limit": float(str(result.params.get("min_confidence", 0))),
    }


def _distances(
    features: NDArray[np.float32], ids: NDArray[np.int64], count: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float32]]:
    """Return the distance to the mean of the own group, the nearest other group, and the margin, each (m,).

    The margin is the simplified silhouette (b - a) / max(a, b), where a and b are the distances to the mean of the own
    and of the nearest other group. Images without a group get NaN, -1, NaN.
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
    # in blocks, because a float64 copy of all rows would take twice the memory of the features
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

"""What neighbors tell about a store: labels that they contradict, images that come twice."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.neighbors import Metric, knn
from labelkit.algorithms.row_blocks import blocks, squared_norms
from labelkit.studio.report.images import ShownImages

# a squared distance below this share of both lengths: for directions, a cosine of 1 - 1e-6, as in `retrieve`
_EQUAL = 2e-6
_MOST_SUSPECTS, _MOST_PAIRS, _MOST_COPIES = 60, 24, 200
# neighbors with a label that are asked at least
_FEWEST_VOTES = 3


@dataclass(frozen=True)
class Neighbors:
    """The nearest images of each image of a page.

    Attributes:
        images: (m, k) int64, nearest first, -1 = none.
        scores: (m, k) float32, cosine or inner product (larger is nearer) or distance (smaller is).
        metric: which.
    """

    images: NDArray[np.int64]
    scores: NDArray[np.float32]
    metric: Metric


@dataclass(frozen=True)
class Suspect:
    """An image whose neighbors say another class than its label.

    Attributes:
        image: of the page.
        other: class that most of them have.
        votes: neighbors that say so.
        own: neighbors that have the class of the image.
        asked: neighbors whose class is known.
    """

    image: int
    other: int
    votes: int
    own: int
    asked: int


@dataclass(frozen=True)
class Suspects:
    """Images whose neighbors say another class.

    Attributes:
        first: the clearest, clearest first.
        count: all of them.
        confirmed: images more than half of whose labeled neighbors share their class.
        judged: images that have a label and enough neighbors with one.
    """

    first: tuple[Suspect, ...]
    count: int
    confirmed: int
    judged: int

    @property
    def is_news_about_labels(self) -> bool:
        """Whether neighbors confirm labels much more often than they contradict them, so that a doubt says much."""
        return self.confirmed >= 4 * self.count


@dataclass(frozen=True)
class Copies:
    """Images that come more than once.

    Attributes:
        same_file: groups of images whose files are equal, byte by byte.
        same_embedding: groups of images with other files, or some, whose embeddings are all but equal.
        closest: (image, image, score) of the nearest pairs besides, nearest first.
        left_out: groups that are too many to be listed.
    """

    same_file: tuple[tuple[int, ...], ...]
    same_embedding: tuple[tuple[int, ...], ...]
    closest: tuple[tuple[int, int, float], ...]
    left_out: int

    @property
    def spare(self) -> int:
        """Images of the groups listed that could go, since another one of their group stays."""
        return sum(len(group) - 1 for group in (*self.same_file, *self.same_embedding))


def find_neighbors(images: ShownImages, count: int, metric: str) -> Neighbors:
    """Return the nearest other images of each; rows without a direction have none and are nobody's.

    Args:
        images: those of the page.
        count: neighbors wanted; fewer if there are fewer images.
        metric: ``cosine``, ``l2`` or ``dot``.
    """
    kind: Metric = "cosine" if metric == "cosine" else "l2" if metric == "l2" else "dot"
    found = np.full((len(images), count), -1, dtype=np.int64)
    scores = np.full((len(images), count), np.nan, dtype=np.float32)
    usable = np.flatnonzero(images.directed)
    number = min(count, len(usable) - 1)
    if number >= 1:
        rows = images.features[usable]
        near_scores, near = knn(rows, rows, number, metric=kind, exclude_self=True)
        found[usable[:, None], np.arange(number)] = usable[near]
        scores[usable[:, None], np.arange(number)] = near_scores
    return Neighbors(found, scores, kind)


def find_suspects(labels: NDArray[np.int64], neighbors: Neighbors) -> Suspects:
    """Return the images more than half of whose labeled neighbors share one other class.

    Args:
        labels: (m,) class of each image, -1 = unknown.
        neighbors: of the same images.
    """
    near = neighbors.images
    theirs = np.where(near >= 0, labels[near], -1)
    known = theirs >= 0
    asked = known.sum(axis=1)
    same = (theirs[:, :, None] == theirs[:, None, :]) & known[:, :, None]
    # of classes with equal votes the one of the nearest neighbor
    votes = same.sum(axis=2)
    leader = votes.argmax(axis=1)
    every = np.arange(len(labels))
    top, top_votes = theirs[every, leader], votes[every, leader]
    own = ((theirs == labels[:, None]) & known).sum(axis=1)
    judged = (labels >= 0) & (asked >= min(_FEWEST_VOTES, near.shape[1]))
    wrong = judged & (top != labels) & (2 * top_votes > asked)
    surplus = np.where(wrong, (top_votes - own) / np.maximum(asked, 1), -1.0)
    order = np.lexsort((every, -asked, -surplus))[: min(_MOST_SUSPECTS, int(wrong.sum()))]
    first = tuple(Suspect(int(i), int(top[i]), int(top_votes[i]), int(own[i]), int(asked[i])) for i in order)
    confirmed = int((judged & (2 * own > asked)).sum())
    return Suspects(first, int(wrong.sum()), confirmed, int(judged.sum()))


def find_copies(images: ShownImages, sha256: NDArray[np.uint8], neighbors: Neighbors) -> Copies:
    """Return images that come more than once, and the nearest pairs besides.

    Args:
        images: those of the page.
        sha256: (m, 32) digests of their files.
        neighbors: of the same images; copies beyond those are joined through the ones between.
    """
    numbers: dict[bytes, int] = {}
    file_ids = np.array([numbers.setdefault(one.tobytes(), len(numbers)) for one in sha256], dtype=np.int64)
    same_file = _groups_of(file_ids)
    left, place = np.nonzero(neighbors.images >= 0)
    right = neighbors.images[left, place]
    squares = _squared_distances(images.features, left, right)
    lengths = np.sqrt(squared_norms(images.features))
    equal = squares <= _EQUAL * lengths[left] * lengths[right]
    equal_ids = _joined(len(images), left[equal], right[equal])
    same_embedding = [group for group in _groups_of(equal_ids) if len(set(file_ids[list(group)])) > 1]
    other = ~equal & (file_ids[left] != file_ids[right])
    # the earlier image first; either may name the other, or both
    keys = np.minimum(left[other], right[other]) * len(images) + np.maximum(left[other], right[other])
    keys, first = np.unique(keys, return_index=True)
    ranks = squares[other][first]
    closest = []
    for i in np.lexsort((keys, ranks))[:_MOST_PAIRS]:
        a, b = divmod(int(keys[i]), len(images))
        closest.append((a, b, float(_score(images.features[a], images.features[b], neighbors.metric))))
    left_out = max(0, len(same_file) - _MOST_COPIES) + max(0, len(same_embedding) - _MOST_COPIES)
    return Copies(tuple(same_file[:_MOST_COPIES]), tuple(same_embedding[:_MOST_COPIES]), tuple(closest), left_out)


def _squared_distances(
    rows: NDArray[np.float32], left: NDArray[np.int64], right: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Of pairs of rows. Differences are taken in float32, where those of rows that are nearly equal are exact."""
    found = np.empty(len(left))
    for block in blocks(len(left), rows.shape[1]):
        apart = rows[left[block]]
        apart -= rows[right[block]]
        found[block] = squared_norms(apart)
    return found


def _score(a: NDArray[np.float32], b: NDArray[np.float32], metric: Metric) -> float:
    left, right = a.astype(np.float64), b.astype(np.float64)
    return float(np.linalg.norm(left - right) if metric == "l2" else left @ right)


def _groups_of(ids: NDArray[np.int64]) -> list[tuple[int, ...]]:
    """Places of each id that comes more than once, in order of the first."""
    order = np.argsort(ids, kind="stable")
    cuts = np.flatnonzero(np.diff(ids[order])) + 1
    groups = [tuple(part.tolist()) for part in np.split(order, cuts) if len(part) > 1]
    return sorted(groups)


def _joined(count: int, left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.int64]:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(left), dtype=np.int8), (left, right)), shape=(count, count))
    _, ids = connected_components(graph, directed=False)
    return np.asarray(ids, dtype=np.int64)

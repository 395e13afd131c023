"""Answer for more rows than are answered together: some are, and the others by the rule that these give.

The rule is that of ``predict`` (``rule``). It works row by row, so that time and memory grow with the rows alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.neighbors import ExactSearch
from labelkit.algorithms.row_blocks import StoredRows, blocks
from labelkit.data.keyed_random import keyed_generator
from labelkit.stages.discover.confidence import Confidences, Temperatures, confidences
from labelkit.stages.discover.rule import NEIGHBORS, AnswerRule
from labelkit.stages.progress import current_progress
from labelkit.stages.read.rows import check_finite
from labelkit.store.embeddings import EmbeddingStore

Ints = NDArray[np.int64]

#: Rows of each group that are there, if it has them.
_OF_GROUP: Final = 5


def rows_together(group_ids: Ints, labels: Ints, calibrating: NDArray[np.bool_], most: int, seed: int) -> Ints:
    """Choose rows that stand for all.

    At most half of them have a label, or more where fewer rows are without one; classes take turns. At most a quarter
    have one to calibrate with. Of the others each group has some, and what is left is drawn from all.

    Args:
        group_ids: (n,) group of each row.
        labels: (n,) class, -1 = none.
        calibrating: (n,) whether a row's confidence is compared with a label of its own.
        most: rows.
        seed: of the draw.

    Returns:
        (m,) places, in order; all if there are no more than ``most``.
    """
    if len(labels) <= most:
        return np.arange(len(labels))
    order = keyed_generator(seed, "answer-rows").permutation(len(labels))
    known, fresh = order[labels[order] >= 0], order[calibrating[order]]
    known = known[np.argsort(_turns(labels[known]), kind="stable")]
    taken = np.zeros(len(labels), dtype=bool)
    taken[known[: max(most // 2, most - int((labels < 0).sum()))]] = True
    taken[fresh[: most // 4]] = True
    free = order[(labels[order] < 0) & ~taken[order]]
    few = np.minimum(_turns(group_ids[free]), _OF_GROUP)
    free = free[np.argsort(few, kind="stable")]
    taken[free[: most - int(taken.sum())]] = True
    return np.flatnonzero(taken)


def _turns(kinds: Ints) -> Ints:
    """(n,) how many of the same kind come before each."""
    order = np.argsort(kinds, kind="stable")
    sizes = np.bincount(kinds - kinds.min(initial=0))
    starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
    turns = np.empty(len(kinds), dtype=np.int64)
    turns[order] = np.arange(len(kinds)) - starts
    return turns


@dataclass(frozen=True)
class RestAnswers:
    """Answers for the rows that were not answered together.

    Attributes:
        found: names and confidences.
        expected: (n, 2) float64, chances to be right at the lower and upper temperatures.
    """

    found: Confidences
    expected: NDArray[np.float64]


def answer_rest(
    store: EmbeddingStore,
    rows: Ints,
    together: NDArray[np.float32],
    rule: AnswerRule,
    sides: Sequence[Temperatures],
) -> RestAnswers:
    """Answer for rows of a store by a rule.

    Args:
        store: whose.
        rows: (n,) of it, n >= 1.
        together: (m, d) features that ``rule.shares`` belong to.
        rule: with temperatures.
        sides: lower and upper temperatures.

    Raises:
        StoreError: rows that are not finite.
    """
    assert rule.temperatures is not None
    found: list[Confidences] = []
    expected: list[NDArray[np.float64]] = []
    for shares in rest_shares(store, rows, together, rule):
        found.append(confidences(shares, rule.class_of_group, rule.temperatures))
        ends = [confidences(shares, rule.class_of_group, side).confidence for side in sides]
        expected.append(np.stack(ends, axis=1))
    return RestAnswers(
        Confidences(*(np.concatenate([getattr(one, f.name) for one in found]) for f in fields(Confidences))),
        np.concatenate(expected),
    )


def rest_shares(
    store: EmbeddingStore, rows: Ints, together: NDArray[np.float32], rule: AnswerRule
) -> Iterator[NDArray[np.float64]]:
    """Yield the shares of all groups that rows of a store have by a rule, (m, k) of some rows at a time, in order.

    Args:
        store: whose.
        rows: (n,) of it.
        together: (m, d) features that ``rule.shares`` belong to.
        rule: with or without temperatures.

    Raises:
        StoreError: rows that are not finite.
    """
    near = _NearShares(together, rule) if rule.alpha > 0 else None
    source = StoredRows(store.embeddings, rows, in_blocks=True)
    with current_progress().task("rows answered by the others", total=len(rows)) as task:
        for block in blocks(len(rows), store.dim + 8 * len(rule.class_of_group)):
            embeddings = source[block]
            check_finite(store, rows[block], embeddings)
            lengths = np.maximum(np.linalg.norm(embeddings, axis=1, keepdims=True), 1e-12)
            features = embeddings / lengths if rule.unit_rows else embeddings
            yield rule.with_near(features, None if near is None else near(embeddings))
            task.advance(len(embeddings))


class _NearShares:
    """Mean shares of the nearest rows that have some, by exact search.

    Args:
        together: (m, d) features; rows of zeros are near none.
        rule: with shares of these.
    """

    def __init__(self, together: NDArray[np.float32], rule: AnswerRule) -> None:
        self._places = np.flatnonzero(together.any(axis=1))
        self._rule = rule
        self._search = ExactSearch(together[self._places]) if len(self._places) else None

    def __call__(self, embeddings: NDArray[np.float32]) -> NDArray[np.float64]:
        shares = np.zeros((len(embeddings), self._rule.shares.shape[1]))
        asked = np.flatnonzero(embeddings.any(axis=1))
        if self._search is not None and len(asked):
            cosines, nearest = self._search.search(embeddings[asked], min(NEIGHBORS, len(self._places)))
            shares[asked] = self._rule.mean_shares(cosines, self._places[nearest])
        return shares


def merged(places: Ints, together: Confidences, rest: Confidences) -> Confidences:
    """Answers for all rows: those at these places, and the others in order."""
    return Confidences(
        *(merged_rows(places, getattr(together, f.name), getattr(rest, f.name)) for f in fields(Confidences))
    )


def merged_rows(places: Ints, together: NDArray[Any], rest: NDArray[Any]) -> NDArray[Any]:
    """Rows of two arrays: those of the first at these places, those of the second at the others, in order."""
    whole = np.empty((len(together) + len(rest), *together.shape[1:]), dtype=together.dtype)
    others = np.ones(len(whole), dtype=bool)
    others[places] = False
    whole[places], whole[others] = together, rest
    return whole

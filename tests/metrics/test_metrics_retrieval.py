from __future__ import annotations

import math
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from labelkit.metrics import retrieval
from labelkit.metrics.retrieval import map_at_r, r_precision, recall_at_k
from numpy.typing import NDArray

Array = NDArray[Any]


def scores_of_order(order: list[int], relevant: list[bool], ks: tuple[int, ...]) -> list[float]:
    """Recall at each k, R-precision and MAP@R of one query's ranking, by counting."""
    hits = [relevant[j] for j in order]
    wanted = sum(relevant)
    precisions = [sum(hits[: i + 1]) / (i + 1) for i in range(wanted) if hits[i]]
    return [float(any(hits[:k])) for k in ks] + [sum(hits[:wanted]) / wanted, sum(precisions) / wanted]


def brute(angles: list[float], labels: list[int], ks: tuple[int, ...]) -> Array:
    """Average over every order of the samples, so that ties take every order too."""
    per_query = []
    for query in range(len(labels)):
        others = [j for j in range(len(labels)) if j != query]
        relevant = [labels[j] == labels[query] for j in range(len(labels))]
        relevant[query] = False
        if not any(relevant):
            continue
        distance = [abs(angle - angles[query]) for angle in angles]
        orders = [sorted(order, key=lambda j: distance[j]) for order in permutations(others)]
        per_query.append(np.mean([scores_of_order(order, relevant, ks) for order in orders], axis=0))
    return np.mean(per_query, axis=0)


def on_circle(angles: list[float]) -> Array:
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


@pytest.mark.parametrize(
    ("angles", "labels"),
    [
        ([0.0, 0.1, 0.25, 0.9, 1.0, 1.4], [0, 0, 1, 1, 0, 1]),
        ([0.0, 0.0, 0.0, 0.5, 0.5, 1.0], [0, 1, 0, 1, 0, 0]),
        ([0.0, 0.2, 0.2, 0.2, 0.2, 0.9], [0, 0, 1, 1, 0, 2]),
        ([0.3] * 6, [0, 0, 0, 1, 1, 2]),
    ],
)
def test_scores_equal_the_mean_over_all_orders_of_ties(angles: list[float], labels: list[int]) -> None:
    ks = (1, 2, 3, 5)
    embeddings = on_circle(angles) * np.linspace(1, 9, len(angles))[:, None]
    expected = brute(angles, labels, ks)
    recall = recall_at_k(embeddings, labels, ks)
    found = [*(recall[k] for k in ks), r_precision(embeddings, labels), map_at_r(embeddings, labels)]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_separated_classes_score_one() -> None:
    embeddings, labels = on_circle([0, 0.01, 0.02, 1, 1.01, 1.02]), [0, 0, 0, 1, 1, 1]
    assert recall_at_k(embeddings, labels, [1, 2]) == {1: 1.0, 2: 1.0}
    assert r_precision(embeddings, labels) == 1
    assert map_at_r(embeddings, labels) == 1


def test_collapsed_model_scores_what_chance_gives() -> None:
    labels = np.repeat(np.arange(10), 20)  # sorted by class: the order must not leak into the score
    embeddings = np.tile(np.linspace(0.1, 1, 37, dtype=np.float32), (200, 1))
    chance = 19 / 199
    assert recall_at_k(embeddings, labels, [1])[1] == pytest.approx(chance)
    assert r_precision(embeddings, labels) == pytest.approx(chance)
    assert map_at_r(embeddings, labels) < chance


def test_without_two_members_of_any_class_nothing_can_be_scored() -> None:
    embeddings, labels = on_circle([0, 1, 2]), [0, 1, 2]
    assert math.isnan(recall_at_k(embeddings, labels, [1])[1])
    assert math.isnan(r_precision(embeddings, labels))
    assert math.isnan(map_at_r(embeddings, labels))


@pytest.mark.parametrize(
    ("embeddings", "labels", "ks", "message"),
    [
        (np.eye(3), [0, 0, 1], [3], "k must be from 1 to 2, the samples other than the query, got 3"),
        (np.eye(3), [0, 0, 1], [0], "got 0"),
        (np.eye(3), [0, 0], [1], r"\(2, d\), got \(3, 3\)"),
        (np.eye(3), [0, 0, -1], [1], "labels must be >= 0, got -1"),
        (np.zeros((3, 2)), [0, 0, 1], [1], "3 of 3 rows of length zero"),
        (np.full((3, 2), np.nan), [0, 0, 1], [1], "3 of 3 rows with NaN"),
    ],
)
def test_bad_input_is_refused(embeddings: Array, labels: list[int], ks: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recall_at_k(embeddings, labels, ks)

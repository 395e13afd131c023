"""kNN votes against loops, and a linear probe on rows that a line tells apart."""

from __future__ import annotations

import math

import numpy as np
import pytest
from labelkit.algorithms.feature_probes import knn_votes, linear_probe


@pytest.mark.parametrize("k", [1, 3, 50])
@pytest.mark.parametrize("temperature", [0.001, 0.1, 5.0])
def test_votes_are_those_of_a_loop(rng: np.random.Generator, k: int, temperature: float) -> None:
    gallery, queries = rng.normal(size=(40, 6)) * 3, rng.normal(size=(9, 6))
    labels = rng.integers(0, 4, 40)
    votes = knn_votes(queries, gallery, labels, num_classes=4, k=k, temperature=temperature)
    for query, found in zip(queries, votes, strict=True):
        cosines = [float(row @ query / np.linalg.norm(row) / np.linalg.norm(query)) for row in gallery]
        nearest = sorted(range(40), key=lambda row: -cosines[row])[:k]
        best = max(cosines)
        expected = np.zeros(4)
        for row in nearest:
            expected[labels[row]] += math.exp((cosines[row] - best) / temperature)
        np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-3, atol=1e-4)


def test_a_query_of_zeros_knows_nothing_and_a_gallery_row_of_zeros_has_no_vote() -> None:
    gallery = [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    votes = knn_votes([[0.0, 0.0], [1.0, 0.1]], gallery, [0, 1, 1], num_classes=2, k=3)
    assert votes.tolist() == [[0.5, 0.5], [0.0, 1.0]]


@pytest.mark.parametrize(
    ("labels", "options", "words"),
    [
        ([0], {}, "shape"),
        ([0, 2], {}, "reach"),
        ([0, 1], {"temperature": 0}, "positive"),
        ([0, 1], {"k": 0}, "positive"),
    ],
)
def test_what_does_not_fit_is_refused(labels: list[int], options: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        knn_votes(np.ones((1, 2)), np.eye(2), labels, num_classes=2, **options)  # type: ignore[arg-type] # a plain dict


def test_a_gallery_of_zeros_is_refused() -> None:
    with pytest.raises(ValueError, match="not zero"):
        knn_votes(np.ones((1, 2)), np.zeros((2, 2)), [0, 1], num_classes=2)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_a_linear_probe_finds_the_line_at_any_scale(rng: np.random.Generator, scale: float) -> None:
    features = rng.normal(size=(300, 5)) * scale + 7 * scale
    classes = (features @ [1.0, -1.0, 0.5, 0.0, 2.0] > 7 * 2.5 * scale).astype(int)
    logits = linear_probe(features[:200], classes[:200], features[200:], num_classes=2)
    assert (logits.argmax(1) == classes[200:]).mean() > 0.95
    again = linear_probe(features[:200], classes[:200], features[200:], num_classes=2)
    assert np.array_equal(logits, again)

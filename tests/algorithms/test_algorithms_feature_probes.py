"""kNN votes against loops, and a linear probe on rows that a line tells apart."""

import math

import numpy as np
import pytest
from labelkit.algorithms.feature_probes import knn_probabilities, linear_probe, logistic_regression


@pytest.mark.parametrize("k", [1, 3, 50])
@pytest.mark.parametrize("temperature", [0.001, 0.1, 5.0])
def test_votes_are_those_of_a_loop(rng: np.random.Generator, k: int, temperature: float) -> None:
    gallery, queries = rng.normal(size=(40, 6)) * 3, rng.normal(size=(9, 6))
    labels = rng.integers(0, 4, 40)
    votes = knn_probabilities(queries, gallery, labels, num_classes=4, k=k, temperature=temperature)
    for query, found in zip(queries, votes, strict=True):
        cosines = [float(row @ query / np.linalg.norm(row) / np.linalg.norm(query)) for row in gallery]
        nearest = sorted(range(40), key=lambda row: -cosines[row])[:k]
        best = max(cosines)
        expected = np.zeros(4)
        for row in nearest:
            expected[labels[row]] += math.exp((cosines[row] - best) / temperature)
        np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("k", [1, 3, 50])
def test_a_query_of_the_gallery_has_no_vote_on_itself(rng: np.random.Generator, k: int) -> None:
    gallery = rng.normal(size=(20, 6))
    gallery[3] = 0
    gallery[8] = gallery[9]  # a twin does vote
    own = np.array([0, 9, -1, 19])
    queries = np.where(own[:, None] >= 0, gallery[own], rng.normal(size=(4, 6)))
    labels = rng.integers(0, 4, 20)
    votes = knn_probabilities(queries, gallery, labels, num_classes=4, k=k, temperature=0.01, self_indices=own)
    for place, query, found in zip(own, queries, votes, strict=True):
        others = [row for row in range(20) if row not in (place, 3)]
        expected = knn_probabilities([query], gallery[others], labels[others], num_classes=4, k=k, temperature=0.01)
        np.testing.assert_allclose(found, expected[0], atol=1e-4)


def test_a_query_of_zeros_knows_nothing_and_a_gallery_row_of_zeros_has_no_vote() -> None:
    gallery = [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    votes = knn_probabilities([[0.0, 0.0], [1.0, 0.1]], gallery, [0, 1, 1], num_classes=2, k=3)
    assert votes.tolist() == [[0.5, 0.5], [0.0, 1.0]]


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_a_linear_probe_finds_the_line_at_any_scale(rng: np.random.Generator, scale: float) -> None:
    features = rng.normal(size=(300, 5)) * scale + 7 * scale
    classes = (features @ [1.0, -1.0, 0.5, 0.0, 2.0] > 7 * 2.5 * scale).astype(int)
    logits = linear_probe(features[:200], classes[:200], features[200:], num_classes=2)
    assert (logits.argmax(1) == classes[200:]).mean() > 0.95
    again = linear_probe(features[:200], classes[:200], features[200:], num_classes=2)
    assert np.array_equal(logits, again)


@pytest.mark.parametrize("rescale", [False, True])
def test_one_step_of_a_probe_is_that_of_the_formula(rng: np.random.Generator, rescale: bool) -> None:
    features, classes = rng.normal(size=(6, 3)) * 4 + 2, np.array([0, 1, 2, 0, 1, 1])
    queries = rng.normal(size=(2, 3))

    logits = linear_probe(features, classes, queries, num_classes=3, epochs=1, lr=0.5, batch_size=6, rescale=rescale)

    # one pass of plain gradient descent from zero: softmax of nothing is 1 / 3 for each class
    center = features.mean(0) if rescale else np.zeros(3)
    length = np.sqrt(((features - center) ** 2).sum(1).mean()) if rescale else 1.0
    rows, asked = (features - center) / length, (queries - center) / length
    pull = np.eye(3)[classes] - 1 / 3
    assert logits == pytest.approx(asked @ (0.5 * pull.T @ rows / 6).T + 0.5 * pull.mean(0), abs=1e-5)


@pytest.mark.parametrize("l2", [1e-3, 0.1])
def test_logistic_regression_is_that_of_scikit_learn(rng: np.random.Generator, l2: float) -> None:
    from sklearn.linear_model import LogisticRegression

    features, labels = rng.normal(size=(90, 4)) + 3, rng.integers(0, 3, 90)
    features[np.arange(90), labels] += 1
    scaled = features - features.mean(0)
    scaled *= 2 / np.sqrt((scaled**2).sum(1).mean())  # mean length 2 = sqrt(4)
    reference = LogisticRegression(C=1 / (90 * l2), tol=1e-10, max_iter=5000).fit(scaled, labels)
    logits = logistic_regression(features, labels, features, num_classes=3, l2=l2, tol=1e-9)
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    np.testing.assert_allclose(shares, reference.predict_proba(scaled), atol=1e-5)


def test_logistic_regression_ends_where_the_gradient_is_small(rng: np.random.Generator) -> None:
    features, labels = rng.normal(size=(200, 30)), rng.integers(0, 4, 200)
    exact = logistic_regression(features, labels, features, num_classes=4, tol=1e-10)
    near = logistic_regression(features, labels, features, num_classes=4)
    rough = logistic_regression(features, labels, features, num_classes=4, tol=1e-1)

    assert 0 < np.abs(near - exact).max() < 0.05
    assert np.abs(rough - exact).max() > 0.05

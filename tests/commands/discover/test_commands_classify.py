"""Which class or group a row belongs to: by classifier, groups and neighbors."""

import numpy as np
import pytest
from labelkit.algorithms.few_label_classifier import ALPHA, OWN_GROUP, RefittableClassifier, cross_validate
from sklearn.linear_model import LogisticRegression


def test_regression_in_the_span_of_all_labels_is_that_of_all_dimensions(rng: np.random.Generator) -> None:
    features = (np.eye(3, 40)[np.arange(30) % 3] + rng.normal(0, 0.5, (30, 40))).astype(np.float32)
    every = np.where(np.arange(30) < 15, np.arange(30) % 3, -1)
    some = np.where(np.arange(30) < 9, every, -1)
    moved = features - features.mean(axis=0)
    moved *= 10 / np.sqrt((moved**2).sum(axis=1).mean())
    peer = LogisticRegression(C=10, tol=1e-8, max_iter=2000).fit(moved[:9], some[:9])
    judge = RefittableClassifier(features, every)

    found = judge.regression_probabilities(some, np.arange(3))
    rule = judge.fit_classifier(some, np.arange(3))

    np.testing.assert_allclose(found, peer.predict_proba(moved), atol=0.01)
    np.testing.assert_allclose(rule(features), found, atol=1e-5)


@pytest.mark.parametrize(
    ("counts", "factors"), [([1, 1], [1, 1]), ([4, 4], [1, 1]), ([6, 2], [1, 2]), ([14, 2], [1, 2.5])]
)
def test_shares_are_regression_times_diffusion_and_group_that_flow(
    rng: np.random.Generator, counts: list[int], factors: list[float]
) -> None:
    truth, ids = np.arange(40) % 2, rng.integers(0, 2, 40)
    features = (np.eye(2, 5)[truth] + rng.normal(0, 0.4, (40, 5))).astype(np.float32)
    labels = np.where(np.arange(40) // 2 < np.array(counts)[truth], truth, -1)
    judge = RefittableClassifier(features, labels)
    graph, known = judge.graph.toarray(), labels >= 0
    seeds = np.eye(2)[truth] * known[:, None]
    reached = np.linalg.solve(np.eye(40) - 0.9 * graph, 0.1 * seeds)
    reached /= reached.sum(axis=0)
    reached /= reached.sum(axis=1, keepdims=True)
    start = judge.regression_probabilities(labels, np.arange(2)) * (reached + 1e-3) ** (2 / np.mean(counts))
    # the own group counts more, most for a class with fewer labels than five and than the average class
    start *= 1 + (OWN_GROUP - 1) * np.array(factors) * np.eye(2)[ids]
    start /= start.sum(axis=1, keepdims=True)
    start[known] = seeds[known]
    wanted = np.linalg.solve(np.eye(40) - ALPHA * graph, (1 - ALPHA) * start)

    found = judge.fit_and_predict(labels, ids, np.arange(2))

    np.testing.assert_allclose(found, wanted / wanted.sum(axis=1, keepdims=True), atol=0.02)


def test_new_group_takes_the_rows_that_fit_no_class(rng: np.random.Generator) -> None:
    truth = np.repeat([0, 1, 2], 20)
    features = (np.eye(3)[truth] + rng.normal(0, 0.1, (60, 3))).astype(np.float32)
    labels = np.full(60, -1)
    labels[[0, 1, 20, 21]] = [0, 0, 1, 1]

    shares = RefittableClassifier(features, labels).fit_and_predict(labels, truth, np.array([0, 1, -1]))

    assert (shares.argmax(axis=1) == truth).all()
    np.testing.assert_allclose(shares.sum(axis=1), 1)


def test_groups_alone_are_named_without_any_label(rng: np.random.Generator) -> None:
    groups = np.arange(30) % 3
    features = (np.eye(3)[groups] + rng.normal(0, 0.1, (30, 3))).astype(np.float32)
    labels = np.full(30, -1)
    judge, classes = RefittableClassifier(features, labels), np.full(3, -1)

    shares = judge.fit_and_predict(labels, groups, classes)

    assert (shares.argmax(axis=1) == groups).all()
    assert judge.build_rule(labels, groups, classes, shares).classifier is None
    features[9] = 0  # a row of zeros is judged too
    labels[:6] = groups[:6]
    assert np.isfinite(RefittableClassifier(features, labels).fit_and_predict(labels)).all()


def test_each_label_of_a_class_with_two_is_hidden_once(rng: np.random.Generator) -> None:
    truth = np.arange(40) % 2
    features = (np.eye(4)[truth] + rng.normal(0, 0.1, (40, 4))).astype(np.float32)
    labels = np.where(np.arange(40) < 12, truth, -1)

    right = cross_validate(RefittableClassifier(features, labels), labels, rng)

    assert right.tolist() == [True] * 12

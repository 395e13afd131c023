"""Which class or group a row belongs to: by classifier, groups and neighbors; and how that is chosen."""

from __future__ import annotations

import numpy as np
import pytest
from labelkit.stages.discover.classify import DEFAULT, RECIPES, Recipe, RowJudge, choose_recipe, classifier_shares
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression


def digits_with_labels(per_class: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    features, truth = load_digits(return_X_y=True)
    features = (features / np.linalg.norm(features, axis=1, keepdims=True)).astype(np.float32)
    order = np.random.default_rng(seed).permutation(len(truth))
    labels = np.full(len(truth), -1)
    for label in range(10):
        rows = order[truth[order] == label][:per_class]
        labels[rows] = label
    return features, truth, labels


@pytest.mark.parametrize("per_class", [2, 5])
def test_the_chosen_recipe_is_at_least_as_good_as_logistic_regression(per_class: int) -> None:
    gains = []
    for seed in range(2):
        features, truth, labels = digits_with_labels(per_class, seed)
        judge, unlabeled = RowJudge(features, labels), labels < 0
        recipe, scores = choose_recipe(judge, labels, np.random.default_rng(seed))
        ours = judge.shares(labels, recipe).argmax(axis=1)
        peer = LogisticRegression(max_iter=1000).fit(features[~unlabeled], labels[~unlabeled]).predict(features)
        gains.append((ours[unlabeled] == truth[unlabeled]).mean() - (peer[unlabeled] == truth[unlabeled]).mean())
        assert len(scores) == len(RECIPES)
    assert min(gains) > 0.02


def test_one_label_a_class_leaves_the_default(rng: np.random.Generator) -> None:
    labels = np.full(30, -1)
    labels[:3] = [0, 1, 2]

    judge = RowJudge(rng.normal(size=(30, 4)).astype(np.float32), labels)

    assert choose_recipe(judge, labels, rng) == (DEFAULT, {})


def test_with_groups_only_spreading_is_chosen() -> None:
    features, _, labels = digits_with_labels(3, 2)
    judge = RowJudge(features, labels)

    alone, _ = choose_recipe(judge, labels, np.random.default_rng(0))
    recipe, scores = choose_recipe(judge, labels, np.random.default_rng(0), 0.5)

    assert alone.classifier == "none"
    assert recipe.classifier == "logistic regression"
    assert recipe.group_share == 0.5
    assert len(scores) == 3


def test_labeled_rows_keep_their_class_without_spreading(rng: np.random.Generator) -> None:
    features = rng.normal(size=(20, 4)).astype(np.float32)
    labels = np.full(20, -1)
    labels[:6] = [3, 3, 5, 5, 3, 5]

    shares = RowJudge(features, labels).shares(labels, Recipe("logistic regression", 0.0))

    assert shares.shape == (20, 2)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    assert shares[:6].argmax(axis=1).tolist() == [0, 0, 1, 1, 0, 1]
    assert set(shares[:6].max(axis=1)) == {1.0}


def test_regression_in_the_span_of_all_labels_is_that_of_all_dimensions(rng: np.random.Generator) -> None:
    features = (np.eye(3, 40)[np.arange(30) % 3] + rng.normal(0, 0.5, (30, 40))).astype(np.float32)
    every = np.where(np.arange(30) < 15, np.arange(30) % 3, -1)
    some = np.where(np.arange(30) < 9, every, -1)
    moved = features - features.mean(axis=0)
    moved *= 10 / np.sqrt((moved**2).sum(axis=1).mean())
    peer = LogisticRegression(C=10, tol=1e-8, max_iter=2000).fit(moved[:9], some[:9])
    judge = RowJudge(features, every)

    found = judge.class_shares(some, np.arange(3), "logistic regression")
    rule = judge.classifier(some, np.arange(3))

    np.testing.assert_allclose(found, peer.predict_proba(moved), atol=0.01)
    np.testing.assert_allclose(rule(features), found, atol=1e-5)


def test_new_group_takes_the_rows_that_fit_no_class(rng: np.random.Generator) -> None:
    truth = np.repeat([0, 1, 2], 20)
    features = (np.eye(3)[truth] + rng.normal(0, 0.1, (60, 3))).astype(np.float32)
    labels = np.full(60, -1)
    labels[[0, 1, 20, 21]] = [0, 0, 1, 1]

    shares = RowJudge(features, labels).shares(labels, DEFAULT, truth, np.array([0, 1, -1]))

    assert (shares.argmax(axis=1) == truth).all()
    np.testing.assert_allclose(shares.sum(axis=1), 1)


def test_row_of_zeros_is_judged_too(rng: np.random.Generator) -> None:
    features = rng.normal(size=(10, 3)).astype(np.float32)
    features[9] = 0
    labels = np.array([0, 0, 1, 1, -1, -1, -1, -1, -1, -1])

    assert np.isfinite(RowJudge(features, labels).shares(labels, DEFAULT)).all()


def test_with_nearly_all_groups_known_the_classifier_tells_them_apart(rng: np.random.Generator) -> None:
    truth = np.arange(60) % 3
    features = (2 * np.eye(4)[truth] + rng.normal(0, 0.8, (60, 4))).astype(np.float32)
    labels = np.where(np.arange(60) < 12, truth, -1)
    judge, recipe = RowJudge(features, labels), Recipe(alpha=0.0, group_share=1.0)

    shares = judge.shares(labels, recipe, truth, np.array([0, 1, 2, -1]))

    among = shares[12:, :3] / shares[12:, :3].sum(axis=1, keepdims=True)
    np.testing.assert_allclose(among, judge.class_shares(labels, np.arange(3), "logistic regression")[12:])


def test_a_row_keeps_half_of_its_share_for_its_own_group() -> None:
    features = np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1], [0.9, 0.2]], dtype=np.float32)
    labels = np.array([0, -1, 1, -1, -1])
    groups = np.array([0, 0, 1, 1, 1])  # the last row is in the group whose mean is far

    shares = RowJudge(features, labels).shares(labels, Recipe(alpha=0.0, group_share=0.0), groups, np.array([0, 1]))

    assert shares[4, 0] < 0.5 + 1e-6
    assert shares[4, 1] >= 0.5
    np.testing.assert_allclose(shares.sum(axis=1), 1)


@pytest.mark.parametrize(
    ("labels", "shares"),
    [
        ([0, 1, 2, -1], (0.0,)),
        ([0, 0, 1, 1, -1], (0.5, 0.25)),
        ([4] * 3 + [7] * 13, (0.875, 0.25)),
        ([4] * 5 + [7] * 15, (0.9,)),
        ([-1, -1], (0.0,)),
    ],
)
def test_the_more_labels_a_class_has_the_more_the_classifier_hands_out(
    labels: list[int], shares: tuple[float, ...]
) -> None:
    assert classifier_shares(np.array(labels)) == shares


def test_groups_alone_are_named_without_any_label(rng: np.random.Generator) -> None:
    groups = np.arange(30) % 3
    features = (np.eye(3)[groups] + rng.normal(0, 0.1, (30, 3))).astype(np.float32)
    labels = np.full(30, -1)
    judge, classes = RowJudge(features, labels), np.full(3, -1)

    shares = judge.shares(labels, DEFAULT, groups, classes)

    assert (shares.argmax(axis=1) == groups).all()
    assert judge.rule(labels, DEFAULT, groups, classes, shares).classifier is None

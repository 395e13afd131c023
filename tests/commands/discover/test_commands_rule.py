"""The rule that answers for images outside of a store: as for stored rows at first, then shares of near rows."""

from dataclasses import replace

import numpy as np
import pytest
from labelkit.algorithms import few_label_classifier as classify
from labelkit.algorithms.answer_rule import (
    LinearSoftmaxClassifier,
    PredictionRule,
    blend_with_classifier,
    build_nearest_mean_classifier,
    build_nearest_mean_rule,
)
from labelkit.algorithms.few_label_classifier import RefittableClassifier

NO_CLASS = np.zeros(0, dtype=np.int64)


@pytest.mark.parametrize(("num_classes", "weight"), [(0, 1.0), (1, 0.4), (2, 1.0), (4, 0.4), (6, 0.4)])
def test_an_image_near_the_mean_of_a_group_begins_as_a_stored_row_of_it_does(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, num_classes: int, weight: float
) -> None:
    monkeypatch.setattr(classify, "_GROUP_TEMPERATURE", 1e-3)  # an image is in the group of the nearest mean
    monkeypatch.setattr(classify, "ALPHA", 0.0)
    monkeypatch.setattr(classify, "_DIFFUSION_POWER", 0.0)  # labels reach other images by their neighbors alone
    ids = np.arange(60) % 6
    features = (np.eye(6)[ids] + rng.normal(0, 0.1, (60, 6))).astype(np.float32)
    labels = np.where((ids < num_classes) & (np.arange(60) < np.where(ids == 0, 6, 24)), ids, -1)  # one label, and four
    class_of_group = np.arange(6)
    class_of_group[num_classes:] = -1
    judge = RefittableClassifier(features, labels)
    shares = judge.fit_and_predict(labels, ids, class_of_group, group_weight=weight)

    rule = judge.build_rule(labels, ids, class_of_group, shares, group_weight=weight)
    found = rule.predict_probabilities(features, features)

    np.testing.assert_allclose(found[labels < 0], shares[labels < 0], atol=2e-4)


def rule_of(shares: list[list[float]], alpha: float, biases: list[float]) -> PredictionRule:
    """A rule whose start is the same for all images: the softmax of the biases."""
    start = LinearSoftmaxClassifier(np.zeros((len(biases), 2), dtype=np.float32), np.array(biases))
    return PredictionRule(
        class_of_group=np.array([0, -1]),
        unit_rows=True,
        classifier=None,
        class_columns=NO_CLASS,
        groups=start,
        alpha=alpha,
        probabilities=np.array(shares, dtype=np.float32),
        temperature=1.0,
    )


def test_shares_of_near_rows_weigh_by_the_cube_of_the_cosine() -> None:
    stored = np.array([[2, 0], [0, 3], [-1, 0], [1, 0]], dtype=np.float32)
    # the last row is no part of the grouping; the third lies behind the image
    rule = rule_of([[1, 0], [0, 1], [0, 1], [0, 0]], 0.5, [0, 0])
    cosine, sine = np.cos(0.5), np.sin(0.5)

    found = rule.predict(np.array([[4 * cosine, 4 * sine]], dtype=np.float32), stored)

    near = cosine**3 / (cosine**3 + sine**3)
    assert found.uncalibrated[0] == pytest.approx(0.5 * 0.5 + 0.5 * near, rel=1e-6)
    assert found.group.tolist() == [0]
    # at temperature 1 the softmax of logarithms is the share itself
    assert found.confidence[0] == pytest.approx(found.uncalibrated[0], rel=1e-6)
    # an image far from all rows keeps what it began with
    far = rule_of([[0, 1]], 0.8, [np.log(3), 0]).predict(stored[1:2], np.array([[1, 0]], dtype=np.float32))
    assert far.uncalibrated[0] == pytest.approx(0.75)


def test_the_five_nearest_of_many_stored_rows_are_those_of_all_cosines(rng: np.random.Generator) -> None:
    stored = rng.normal(size=(1280, 2)).astype(np.float32)  # so many that they are searched group by group
    shares = rng.dirichlet([1, 1], 1280)
    rule, images = rule_of(shares.tolist(), 0.5, [0, 0]), rng.normal(size=(9, 2)).astype(np.float32)
    cosines = (images @ stored.T) / np.outer(np.linalg.norm(images, axis=1), np.linalg.norm(stored, axis=1))
    for found, row in zip(rule.predict_probabilities(images, stored), cosines, strict=True):
        near = np.argsort(row)[-5:]
        weights = row[near].astype(np.float64) ** 3
        np.testing.assert_allclose(found, 0.25 + 0.5 * weights @ shares[near] / weights.sum(), rtol=1e-5)


@pytest.mark.parametrize("positive", [False, True])
def test_a_rule_is_read_back_as_it_was_kept(rng: np.random.Generator, *, positive: bool) -> None:
    ids = np.arange(60) % 3
    features = (np.eye(3)[ids] + rng.normal(0, 0.3, (60, 3))).astype(np.float32)
    features = np.abs(features) if positive else features
    labels = np.where((ids < 2) & (np.arange(60) < 24), ids, -1)
    judge, class_of_group = RefittableClassifier(features, labels), np.array([0, 1, -1])
    shares = judge.fit_and_predict(labels, ids, class_of_group)
    rule = replace(judge.build_rule(labels, ids, class_of_group, shares, group_weight=0.7), square_roots=positive)
    kept = {**rule.to_arrays(), "new_classes": np.array([0, 0, 1])}

    found = PredictionRule.from_arrays(kept, {"temperature": 0.6})

    assert found is not None
    assert found.temperature == 0.6
    np.testing.assert_array_equal(
        found.predict_probabilities(features, features), rule.predict_probabilities(features, features)
    )
    assert (found.alpha, found.unit_rows, found.square_roots) == (classify.ALPHA, False, positive)
    assert found.group_weight == 0.7
    np.testing.assert_allclose(found.own_group, classify.OWN_GROUP)
    assert (
        PredictionRule.from_arrays({**kept, "rule_settings": kept["rule_settings"][:3]}, {"temperature": 0.6}) is None
    )


def test_the_classifier_gives_away_what_new_groups_lose() -> None:
    shares, by_class = np.array([[0.2, 0.3, 0.5]]), np.array([[0.9, 0.1]])
    columns, is_new = np.array([0, 1]), np.array([False, False, True])

    equal, own = (
        blend_with_classifier(shares, by_class, columns, is_new, group_weight=0.4, own_group=factor)
        for factor in (1.0, 3.0)
    )

    # the classifier distributes the .5 of the known groups and the .3 that the new one loses
    np.testing.assert_allclose(equal, [[0.8 * 0.9, 0.8 * 0.1, 0.2]])
    # a class counts the more as the image is in its group: 1 + 2 * .2 and 1 + 2 * .3 times
    first, second = 0.9 * 1.4, 0.1 * 1.6
    np.testing.assert_allclose(own, [[0.8 * first / (first + second), 0.8 * second / (first + second), 0.2]])


def test_square_roots_count_whatever_the_length_of_an_image() -> None:
    stored = np.array([[4, 0], [1, 9]], dtype=np.float32)
    rule = replace(rule_of([[1, 0], [0, 1]], 0.5, [0, 0]), square_roots=True)

    found = rule.predict(np.array([[9, 9], [1, 1]], dtype=np.float32), stored)

    # cosines of the roots (1, 1) to (2, 0) and (1, 3)
    near = 0.5**1.5 / (0.5**1.5 + 0.8**1.5)
    np.testing.assert_allclose(found.new_chance, 0.25 + 0.5 * (1 - near), rtol=1e-5)


def test_groups_name_the_nearest_mean_without_a_confidence() -> None:
    features = np.array([[1, 0], [0, 1], [0.1, 1]], dtype=np.float32)
    rule = build_nearest_mean_rule(features, np.array([0, 2, 2]), np.array([False, True, True]), unit_rows=False)

    found = rule.predict(np.array([[0.9, 0.2], [0.2, 0.9]], dtype=np.float32), features)

    assert found.group.tolist() == [0, 2]
    assert np.isnan(found.confidence).all()


def test_the_nearest_mean_has_the_posterior_of_spherical_groups(rng: np.random.Generator) -> None:
    images, means = rng.normal(size=(5, 3)), np.array([[0, 0, 1], [np.nan] * 3, [1, 2, 0]])

    shares = build_nearest_mean_classifier(means, 0.4)(images.astype(np.float32))

    distances = np.square(images[:, None] - means[None, [0, 2]]).sum(axis=2)
    densities = np.exp(-distances / 0.8)
    np.testing.assert_allclose(shares[:, [0, 2]], densities / densities.sum(axis=1, keepdims=True), rtol=1e-4)
    assert (shares[:, 1] == 0).all()

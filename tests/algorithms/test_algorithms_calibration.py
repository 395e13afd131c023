"""Calibration against closed forms and loops."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labelkit.algorithms.calibration import (
    column_probability,
    fit_temperature,
    fit_temperatures,
    group_means,
    leave_one_out_agreement,
    reliability_curve,
    risk_coverage_curve,
    softmax,
)

graded = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=7)
placed = st.lists(st.tuples(st.integers(-1, 2), st.integers(0, 2)), min_size=1, max_size=9)


def drawn(rng: np.random.Generator, rows: int, temperature: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, the largest column, and whether it is right for a class drawn from softmax(scores / temperature)."""
    scores = rng.normal(size=(rows, 4))
    powers = np.exp(scores / temperature)
    cumulative = np.cumsum(powers / powers.sum(axis=1, keepdims=True), axis=1)
    classes = (rng.random((rows, 1)) > cumulative).sum(axis=1)
    return scores, scores.argmax(axis=1), scores.argmax(axis=1) == classes


def test_softmax_of_two_scores_is_the_logistic_function_of_their_difference() -> None:
    probabilities = softmax([[0.3, 0.1], [-1e6, 1e6]], 0.1)
    np.testing.assert_allclose(probabilities, [[1 / (1 + math.exp(-2)), 1 / (1 + math.exp(2))], [0, 1]])


def test_column_at_minus_infinity_takes_no_part() -> None:
    np.testing.assert_array_equal(softmax([[0.5, -np.inf, 0.5]], 1.0), [[0.5, 0, 0.5]])


def test_margin_is_the_distance_to_the_next_and_negative_where_another_column_is_larger() -> None:
    scores = np.log([[0.7, 0.2, 0.1], [0.7, 0.2, 0.1]])
    found = column_probability(scores, [0, 1], 1.0)
    np.testing.assert_allclose(found.confidence, [0.7, 0.2])
    np.testing.assert_allclose(found.margin, [0.5, -0.5])
    np.testing.assert_array_equal(found.runner_up, [1, 0])


def test_next_column_is_known_even_where_its_probability_is_too_small_to_be_a_number() -> None:
    found = column_probability([[9.0, 1.0, 2.0]], [0], 1e-3)
    assert (found.confidence[0], found.margin[0], found.runner_up[0]) == (1, 1, 2)


def test_only_column_is_certain_and_has_none_after_it() -> None:
    found = column_probability([[3.0], [4.0]], [0, 0], 1.0)
    assert found.confidence.tolist() == found.margin.tolist() == [1, 1]
    assert found.runner_up.tolist() == [-1, -1]


def test_temperatures_of_several_cautions_are_those_of_each_alone(rng: np.random.Generator) -> None:
    scores = rng.normal(size=(60, 4))
    named, correct = scores.argmax(axis=1), rng.uniform(size=60) < 0.7
    cautions = (1.0, 0.0, -2.0, 2.0)

    together = fit_temperatures(scores, named, correct, cautions=cautions)

    assert together == [fit_temperature(scores, named, correct, caution=caution) for caution in cautions]
    assert together[2] < together[1] < together[0] < together[3]


def test_caution_is_the_end_of_an_interval_on_either_side(rng: np.random.Generator) -> None:
    scores, named, correct = drawn(rng, 200, 0.7)
    low, likeliest, high = (fit_temperature(scores, named, correct, caution=side) for side in (-2, 0, 2))
    assert low < likeliest < high
    # the binary likelihood of Platt's targets, written out
    right, wrong = correct.sum(), (~correct).sum()
    targets = np.where(correct, (right + 1) / (right + 2), 1 / (wrong + 2))

    def loss(temperature: float) -> float:
        chance = column_probability(scores, named, temperature).confidence
        return -float((targets * np.log(chance) + (1 - targets) * np.log1p(-chance)).sum())

    for end in (low, high):
        assert loss(end) - loss(likeliest) == pytest.approx(2, rel=1e-3)


def test_scores_scaled_by_a_factor_need_the_temperature_scaled_by_it(rng: np.random.Generator) -> None:
    scores, named, correct = drawn(rng, 300, 0.7)
    assert fit_temperature(1000 * scores, named, correct) == pytest.approx(
        1000 * fit_temperature(scores, named, correct), rel=1e-4
    )


def test_weight_two_is_the_row_twice(rng: np.random.Generator) -> None:
    scores, named, correct = drawn(rng, 60, 0.7)
    twice = np.r_[np.arange(60), np.arange(20)]
    weighted = fit_temperature(scores, named, correct, weights=np.where(np.arange(60) < 20, 2.0, 1.0))
    assert weighted == pytest.approx(fit_temperature(scores[twice], named[twice], correct[twice]), rel=1e-5)


@pytest.mark.parametrize("rows", [1, 8, 38])
def test_confidence_without_an_error_is_the_rule_of_succession(rows: int) -> None:
    # equal scores in every row: the likelihood is largest where the confidence is Platt's target (n + 1) / (n + 2)
    scores, named = np.tile([1.0, 0.0], (rows, 1)), np.zeros(rows, dtype=int)
    temperature = fit_temperature(scores, named, np.ones(rows, dtype=bool))
    confidence = column_probability(scores, named, temperature).confidence
    np.testing.assert_allclose(confidence, (rows + 1) / (rows + 2), rtol=1e-5)


def test_temperature_does_not_matter_where_all_scores_are_equal() -> None:
    assert fit_temperature([[0.5, 0.5]], [0], [True]) == 1.0


def test_calibration_error_of_worked_numbers() -> None:
    # bin [0.5, 1]: 0.9, 0.7, 0.5, 1.0 with 2 right; bin [0, 0.5): 0.1 with 1 right
    found = reliability_curve([0.9, 0.7, 0.5, 1.0, 0.1], [True, False, False, True, True], num_bins=2)
    np.testing.assert_array_equal(found.count, [1, 4])
    np.testing.assert_allclose(found.confidence, [0.1, 0.775])
    np.testing.assert_allclose(found.accuracy, [1, 0.5])
    assert found.ece == pytest.approx(0.2 * 0.9 + 0.8 * 0.275)


def test_empty_bins_are_undefined_and_count_nothing() -> None:
    found = reliability_curve([0.95, 0.95], [True, True], num_bins=10)
    assert np.isnan(found.accuracy[:9]).all()
    assert found.ece == pytest.approx(0.05)
    assert found.to_dict()["bins"][0]["accuracy"] is None


def test_weights_count_rows_of_a_bin() -> None:
    assert reliability_curve([0.8, 0.8], [True, False], weights=[3, 1]).ece == pytest.approx(0.05)


@settings(max_examples=60, deadline=None)
@given(graded)
def test_risk_is_the_mean_over_all_orders_of_equally_confident_rows(rows: list[tuple[int, bool]]) -> None:
    confidence, correct = [level / 6 for level, _ in rows], [right for _, right in rows]
    found = risk_coverage_curve(confidence, correct)

    def risk(kept: int) -> Fraction:
        wrong = Fraction(0)
        for level in set(confidence):
            same = [right for stated, right in zip(confidence, correct, strict=True) if stated == level]
            above = sum(stated > level for stated in confidence)
            taken = min(max(kept - above, 0), len(same))
            wrong += Fraction(taken * (len(same) - sum(same)), len(same))
        return wrong / kept

    risks = [risk(kept) for kept in range(1, len(rows) + 1)]
    np.testing.assert_allclose(found.risk, [float(value) for value in risks], atol=1e-12)
    assert found.aurc == pytest.approx(float(sum(risks) / len(risks)), abs=1e-12)


def test_risk_coverage_of_worked_numbers() -> None:
    found = risk_coverage_curve([0.9, 0.2, 0.8, 0.5, 0.1], [True, False, True, False, True])
    np.testing.assert_allclose(found.risk, [0, 0, 1 / 3, 1 / 2, 2 / 5])
    np.testing.assert_allclose(found.coverage, [0.2, 0.4, 0.6, 0.8, 1.0])
    assert found.aurc == pytest.approx((1 / 3 + 1 / 2 + 2 / 5) / 5)
    assert found.accuracy_at_coverage(0.8) == pytest.approx(1 / 2)
    assert found.accuracy_at_coverage(0.41) == pytest.approx(2 / 3)
    assert found.accuracy_at_coverage(1e-9) == 1


@settings(max_examples=80, deadline=None)
@given(placed)
def test_agreement_is_judged_by_the_other_rows(rows: list[tuple[int, int]]) -> None:
    found = leave_one_out_agreement([group for group, _ in rows], [label for _, label in rows])
    for i, (group, label) in enumerate(rows):
        others = [row for j, row in enumerate(rows) if j != i and row[0] >= 0]
        in_group = [their_label for their_group, their_label in others if their_group == group]
        of_class = [their_group for their_group, their_label in others if their_label == label]
        if group < 0:
            expected = 0.0
        elif not in_group and not of_class:
            expected = math.nan
        else:
            best_class = all(in_group.count(label) >= in_group.count(other) for other in in_group)
            best_group = all(of_class.count(group) >= of_class.count(other) for other in of_class)
            expected = float(best_class and best_group)
        np.testing.assert_equal(found[i], expected)


def test_means_of_groups_leave_empty_ones_open(rng: np.random.Generator) -> None:
    features, ids = rng.normal(size=(30, 3)), np.arange(30) % 4
    means = group_means(features, ids, 5)
    np.testing.assert_allclose(means[2], features[ids == 2].mean(axis=0))
    assert np.isnan(means[4]).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: softmax([[1.0]], 0), "temperature must be positive and finite, got 0"),
        (lambda: softmax([[np.nan, 1.0]], 1), "1 of 1 rows"),
        (lambda: softmax([[-np.inf]], 1), "1 of 1 rows"),
        (lambda: softmax([1.0], 1), r"\(n, k\)"),
        (lambda: column_probability([[1.0, 2.0]], [2], 1), "below the number of columns"),
        (lambda: column_probability([[1.0, 2.0]], [0, 0], 1), r"\(1,\)"),
        (lambda: fit_temperature([[1.0, 2.0]], [0], [2]), r"correct must be in \[0, 1\]"),
        (lambda: fit_temperature([[1.0, 2.0]], [0], [True], weights=[0.0]), "not all 0"),
        (lambda: reliability_curve([], []), "n"),
        (lambda: reliability_curve([1.5], [True]), "confidence must be in"),
        (lambda: reliability_curve([0.5], [True], num_bins=0), "num_bins"),
        (lambda: risk_coverage_curve([0.5, 0.5], [True]), r"correct must have shape \(2,\)"),
        (lambda: risk_coverage_curve([0.5], [True]).accuracy_at_coverage(0), r"coverage must be in \(0, 1\], got 0"),
        (lambda: leave_one_out_agreement([0, 1], [0]), "shape"),
        (lambda: group_means(np.ones((2, 2)), [0, 3], 3), "below num_groups=3, got 3"),
        (lambda: group_means(np.ones((3, 2)), [0, 1], 3), r"\(2, d\)"),
    ],
)
def test_arguments_that_cannot_be_are_named(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]  # a function without arguments

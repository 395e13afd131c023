"""The number of classes by several criteria: what each of them says, and how they are combined."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
from labelkit.algorithms.class_number import (
    CRITERIA,
    LABEL_FREE,
    ClassNumberChoice,
    CriterionCurve,
    TooFewDifferentRowsError,
    _agreements,
    _half,
    _heldout,
    _without_clusters,
    choose_num_classes,
    class_numbers,
    combine_criteria,
    count_paths,
    make_curve,
    share_error,
)
from labelkit.algorithms.clustering_path import kmeans_path
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

Array = NDArray[Any]
NUM_BLOBS, PER_BLOB = 7, 24


@pytest.fixture(scope="module")
def blobs() -> tuple[Array, Array, Array]:
    """Seven far blobs; half of the first four is labeled."""
    generator = np.random.default_rng(3)
    groups = np.repeat(np.arange(NUM_BLOBS), PER_BLOB)
    rows = 12 * np.eye(NUM_BLOBS)[groups] + generator.standard_normal((len(groups), NUM_BLOBS))
    return rows.astype(np.float32), groups, (groups < 4) & (np.arange(len(groups)) % 2 == 0)


def curve_of(scores: list[list[float]], errors: Any = 0.0) -> CriterionCurve:
    values = np.array(scores)
    return make_curve("made-up", range(2, 2 + values.shape[1]), values, np.broadcast_to(errors, values.shape[1:]))


def named(choice: ClassNumberChoice) -> dict[str, CriterionCurve]:
    return {curve.name: curve for curve in choice.criteria}


@pytest.mark.parametrize("low", [2, 5])
def test_label_free_criteria_find_far_blobs_exactly(blobs: tuple[Array, Array, Array], low: int) -> None:
    choice = choose_num_classes(blobs[0], range(low, 16), LABEL_FREE)
    assert (choice.best, choice.low, choice.high) == (NUM_BLOBS, NUM_BLOBS, NUM_BLOBS)
    assert set(named(choice)["silhouette"].best_of_draws) == {NUM_BLOBS}
    stability = named(choice)["stability"]
    # the same groups in every pair of draws
    assert stability.scores[NUM_BLOBS - low] == pytest.approx(1.0)
    assert stability.errors[NUM_BLOBS - low] == pytest.approx(0.0, abs=1e-9)


def test_all_criteria_together_find_far_blobs_and_their_interval_holds_them(
    blobs: tuple[Array, Array, Array],
) -> None:
    rows, labels, labeled = blobs
    choice = choose_num_classes(rows, range(4, 16), CRITERIA, labels=labels, labeled_mask=labeled)
    assert choice.best == NUM_BLOBS
    assert choice.low <= NUM_BLOBS <= choice.high
    assert [curve.name for curve in choice.criteria] == list(CRITERIA)
    for curve in choice.criteria:
        assert curve.scores[NUM_BLOBS - 4] == pytest.approx(max(curve.scores), abs=0.15)
        # labels see that a class is split, and so does everything else
        assert curve.best <= NUM_BLOBS
    assert choice.scores[NUM_BLOBS - 4] == max(choice.scores) <= 1


def test_one_cloud_is_about_as_stable_as_the_reference_though_cut_alike_in_two(rng: np.random.Generator) -> None:
    rows = (rng.standard_normal((400, 5)) * [6, 1, 1, 1, 1]).astype(np.float32)
    draws = [np.arange(0, 300), np.arange(100, 400)]
    agreement = _agreements(draws, [kmeans_path(rows[draw], [2]) for draw in draws])
    assert agreement[0, 0] > 0.8
    (curve,) = choose_num_classes(rows, range(2, 8), ["stability"]).criteria
    assert abs(np.mean(curve.scores)) < 0.25


def test_stability_is_the_agreement_beyond_that_of_the_reference(blobs: tuple[Array, Array, Array]) -> None:
    rows, seed, numbers = blobs[0], 5, [5, 8]
    (curve,) = choose_num_classes(rows, numbers, ["stability"], seed=seed, num_draws=3).criteria

    nobody = np.full(len(rows), -1)
    draws = [_half(nobody, np.random.default_rng([seed, 1, draw])) for draw in range(3)]
    reference = _without_clusters(rows, np.random.default_rng([seed, 3]))
    for place, number in enumerate(numbers):
        agreement = []
        for points in (rows, reference):
            ids = []
            for draw in draws:
                everywhere = np.full(len(rows), -1)
                everywhere[draw] = kmeans_path(points[draw], numbers)[place].cluster_ids
                ids.append(everywhere)
            agreement.append([])
            for one, two in [(0, 1), (0, 2), (1, 2)]:
                shared = (ids[one] >= 0) & (ids[two] >= 0)
                agreement[-1].append(sklearn.metrics.adjusted_rand_score(ids[one][shared], ids[two][shared]))
        chance = np.mean(agreement[1])
        pairs = (np.array(agreement[0]) - chance) / (1 - chance)
        assert curve.scores[place] == pytest.approx(pairs.mean()), number
        assert curve.errors[place] == pytest.approx(pairs.std(ddof=1)), number


def test_labeled_accuracy_and_silhouette_are_those_of_the_drawn_rows(blobs: tuple[Array, Array, Array]) -> None:
    rows, labels, labeled = blobs
    choice = choose_num_classes(
        rows, [4, 9], ["labeled", "silhouette"], labels=labels, labeled_mask=labeled, num_draws=3
    )
    expected: dict[str, list[float]] = {"labeled": [], "silhouette": []}
    for draw in range(3):
        half = _half(np.where(labeled, labels, -1), np.random.default_rng([0, 1, draw]))
        ids = kmeans_path(rows[half], [4, 9])[1].cluster_ids
        known = labeled[half]
        # each of four classes is matched with its largest cluster, since no two share one
        counts = [np.bincount(ids[known & (labels[half] == c)]).max() for c in range(4)]
        expected["labeled"].append(sum(counts) / known.sum())
        expected["silhouette"].append(sklearn.metrics.silhouette_score(rows[half], ids))
    for name, curve in named(choice).items():
        assert curve.scores[1] == pytest.approx(np.mean(expected[name]), abs=1e-6), name


def test_halves_keep_half_of_every_class() -> None:
    classes = np.array([-1] * 7 + [0] * 4 + [1] + [2] * 3)
    drawn = _half(classes, np.random.default_rng(0))
    assert np.unique(classes[drawn], return_counts=True)[1].tolist() == [4, 2, 1, 2]
    assert (np.diff(drawn) > 0).all()


def test_reference_has_the_mean_and_covariance_of_the_rows_and_no_groups(rng: np.random.Generator) -> None:
    rows = (np.array([[0, 9.0, 0], [9, 0, 1]])[rng.integers(0, 2, 6000)] + rng.standard_normal((6000, 3))).astype(
        np.float32
    )
    found = _without_clusters(rows, rng)
    np.testing.assert_allclose(found.mean(axis=0), rows.mean(axis=0), atol=0.3)
    np.testing.assert_allclose(np.cov(found.T), np.cov(rows.T), rtol=0.1, atol=0.3)
    # two groups are bimodal, with a kurtosis of about 1.2; a normal distribution has 3
    first = found[:, 0] - found[:, 0].mean()
    assert 2.7 < (first**4).mean() / (first**2).mean() ** 2 < 3.5


def test_heldout_labels_of_classes_with_one_row_are_not_scored() -> None:
    rows = np.array([[0.0], [0.1], [0.2], [0.3], [10], [20], [20.1], [30], [30.1]], dtype=np.float32)
    classes = np.array([0, 0, 0, 0, 1, -1, -1, -1, -1])
    for seed in range(4):
        # two rows of class 0 are held out, and fall together whether it guides or is hidden
        assert _heldout(rows, classes, [4], np.random.default_rng(seed)) == [1.0]


def test_heldout_sees_a_hidden_class_that_is_merged_with_another() -> None:
    rows = np.repeat(np.array([[0.0], [1], [50], [51]], dtype=np.float32), 4, axis=0)
    classes = np.repeat([0, 1, 2, 3], 4)
    for seed in range(6):
        merged, apart = _heldout(rows, classes, [2, 4], np.random.default_rng(seed))
        assert apart == 1.0
        assert merged < 1.0


def test_labels_of_unlabeled_rows_are_never_read(blobs: tuple[Array, Array, Array], rng: np.random.Generator) -> None:
    rows, labels, labeled = blobs
    scrambled = np.where(labeled, labels, rng.integers(-9, 99, len(labels)))
    options: dict[str, Any] = {"labeled_mask": labeled, "num_draws": 3}
    assert choose_num_classes(rows, [5, 7], CRITERIA, labels=labels, **options) == choose_num_classes(
        rows, [5, 7], CRITERIA, labels=scrambled, **options
    )


def test_same_choice_for_any_number_of_threads(blobs: tuple[Array, Array, Array]) -> None:
    rows, labels, labeled = blobs
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            found.append(choose_num_classes(rows, range(4, 12), CRITERIA, labels=labels, labeled_mask=labeled))
    assert found[0] == found[1]


def test_other_seeds_draw_other_halves(blobs: tuple[Array, Array, Array]) -> None:
    first, second = (choose_num_classes(blobs[0], [3, 9], ["silhouette"], seed=seed) for seed in (0, 1))
    assert first.criteria[0].scores != second.criteria[0].scores


def test_sweeps_are_counted_as_they_end(blobs: tuple[Array, Array, Array]) -> None:
    rows, labels, labeled = blobs
    for criteria in (CRITERIA, LABEL_FREE, ("heldout",), ("labeled",), ("stability",), ("silhouette", "heldout")):
        ended: list[None] = []
        choose_num_classes(
            rows,
            [4, 5],
            criteria,
            labels=labels,
            labeled_mask=labeled,
            num_draws=3,
            progress=lambda ended=ended: ended.append(None),  # type: ignore[misc]
        )
        assert len(ended) == count_paths(criteria, 3)


def test_repeated_rows_end_the_numbers_early() -> None:
    rows = np.repeat(np.eye(5), 8, axis=0)
    choice = choose_num_classes(rows, range(2, 9), LABEL_FREE)
    assert choice.numbers == (2, 3, 4, 5)
    assert choice.best == 5
    with pytest.raises(TooFewDifferentRowsError, match="fewer than 6 different ones"):
        choose_num_classes(rows, [6, 7], LABEL_FREE)


# ---- curves and their combination


def test_interval_of_a_criterion_is_what_is_within_one_standard_error() -> None:
    # means .5 .8 .9 .85 .7
    scores = [[0.5, 0.8, 0.8, 0.85, 0.7], [0.5, 0.8, 1.0, 0.85, 0.7]]
    wide, narrow = curve_of(scores, [0.9, 0.9, 0.11, 0.9, 0.9]), curve_of(scores, [0.9, 0.9, 0.06, 0.9, 0.9])
    assert (wide.best, wide.low, wide.high) == (4, 3, 5)
    assert (narrow.best, narrow.low, narrow.high) == (4, 4, 5)
    assert wide.scores == pytest.approx((0.5, 0.8, 0.9, 0.85, 0.7))
    assert wide.best_of_draws == (5, 4)
    assert wide.tells


def test_error_of_a_share_counts_one_more_right_and_one_more_wrong() -> None:
    # 5 of 5: (6/7) (1/7) / 7; 45 of 90: 1/4 / 92
    assert share_error(np.array([1.0]), 5) == pytest.approx([np.sqrt(6 / 7**3)])
    assert share_error(np.array([0.5]), 90) == pytest.approx([np.sqrt(0.25 / 92)])


def test_standard_error_is_the_deviation_over_the_draws_and_with_labels_at_least_that_of_a_share(
    blobs: tuple[Array, Array, Array],
) -> None:
    rows, labels, labeled = blobs
    choice = choose_num_classes(
        rows, [5, 7], ["labeled", "heldout", "silhouette"], labels=labels, labeled_mask=labeled, num_draws=3
    )
    halves = [_half(np.full(len(rows), -1), np.random.default_rng([0, 1, draw])) for draw in range(3)]
    values = [sklearn.metrics.silhouette_score(rows[d], kmeans_path(rows[d], [5, 7])[1].cluster_ids) for d in halves]
    (free,) = choose_num_classes(rows, [5, 7], ["silhouette"], num_draws=3).criteria
    assert free.errors[1] == pytest.approx(np.std(values, ddof=1), abs=1e-6)
    # all right in every draw: 48 labeled rows, 24 of them held out
    assert named(choice)["labeled"].scores[1] == named(choice)["heldout"].scores[1] == 1.0
    assert named(choice)["labeled"].errors[1] == pytest.approx(np.sqrt(49 / 50**3))
    assert named(choice)["heldout"].errors[1] == pytest.approx(np.sqrt(25 / 26**3))


def test_smallest_of_equal_numbers_is_the_best_and_all_are_in_the_interval() -> None:
    curve = curve_of([[0.5, 1.0, 0.5, 1.0]] * 2)
    assert (curve.best, curve.low, curve.high) == (3, 3, 5)


def test_criterion_without_anything_above_chance_allows_every_number() -> None:
    curve = curve_of([[-0.1, -0.3, 0.0], [-0.1, -0.2, 0.0]])
    assert not curve.tells
    assert (curve.low, curve.high) == (2, 4)
    other = curve_of([[0.2, 0.4, 0.3]] * 2)
    choice = combine_criteria([curve, other])
    assert (choice.best, choice.low, choice.high) == (3, 2, 4)
    assert choice.scores == pytest.approx((0.25, 0.5, 0.375))
    assert combine_criteria([curve]).best == 2


def test_combined_score_is_the_mean_of_shares_of_the_best() -> None:
    one, two = curve_of([[0.2, 0.4, 0.3]] * 2), curve_of([[-0.5, 0.6, 0.9]] * 2)
    choice = combine_criteria([one, two])
    # shares .5 1 .75 of the one, and 0 2/3 1 of the other
    assert choice.scores == pytest.approx((0.25, 5 / 6, 0.875))
    assert (choice.best, choice.low, choice.high) == (4, 3, 4)


def test_interval_holds_the_choice_though_every_criterion_prefers_another() -> None:
    curves = [curve_of([[1.0, 0.0, 0.9]] * 2), curve_of([[0.0, 1.0, 0.9]] * 2)]
    choice = combine_criteria(curves)
    assert (choice.best, choice.low, choice.high) == (4, 2, 4)


def test_curves_over_other_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="same numbers"):
        combine_criteria([curve_of([[0.1, 0.2]]), curve_of([[0.1, 0.2, 0.3]])])
    with pytest.raises(ValueError, match="one or more"):
        combine_criteria([])


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(2, 2, [2]), (2, 5, [2, 3, 4, 5]), (150, 250, list(range(150, 251))), (99, 100, [99, 100])],
)
def test_short_ranges_are_looked_at_wholly(low: int, high: int, expected: list[int]) -> None:
    assert class_numbers(low, high) == expected


def test_numbers_above_a_hundred_come_in_steps_of_two_percent() -> None:
    numbers = class_numbers(2, 1000)
    assert numbers[:99] == list(range(2, 101))
    assert numbers[99:102] == [102, 104, 106]
    assert numbers[-1] == 1000
    assert all(later - earlier <= max(1, 0.02 * earlier) for earlier, later in pairwise(numbers))


def test_no_range_is_refused() -> None:
    with pytest.raises(ValueError, match="low=5, high=4"):
        class_numbers(5, 4)


def test_agreement_of_equal_partitions_is_one(rng: np.random.Generator) -> None:
    rows = rng.standard_normal((40, 2))
    draws = [np.arange(30), np.arange(10, 40)]
    path = kmeans_path(rows, [3, 5])
    cut = [[type(part)(part.num_clusters, part.cluster_ids[draw], 0.0) for part in path] for draw in draws]
    assert _agreements(draws, cut).tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"numbers": []}, "numbers"),
        ({"numbers": [3, 8]}, r"\[4, 83\]"),
        ({"numbers": [4, 84]}, r"\[4, 83\]"),
        ({"criteria": []}, "each once"),
        ({"criteria": ["silhouette", "silhouette"]}, "each once"),
        ({"criteria": ["gap"]}, "gap"),
        ({"num_draws": 2}, "num_draws"),
        ({"labels": None}, "go together"),
        ({"labels": None, "labeled_mask": None}, "need labeled rows"),
        ({"labeled_mask": np.zeros(7 * 24)}, "float64"),
        ({"labels": np.zeros(3, dtype=int)}, r"\(3,\)"),
        ({"x": np.full((7 * 24, 2), np.nan)}, "NaN"),
    ],
)
def test_bad_input_is_refused(blobs: tuple[Array, Array, Array], changes: dict[str, Any], message: str) -> None:
    rows, labels, labeled = blobs
    arguments: dict[str, Any] = {
        "x": rows,
        "numbers": [4, 5],
        "criteria": CRITERIA,
        "labels": labels,
        "labeled_mask": labeled,
    }
    with pytest.raises(ValueError, match=message):
        choose_num_classes(**(arguments | changes))


def test_heldout_needs_a_class_with_two_labeled_rows(blobs: tuple[Array, Array, Array]) -> None:
    rows, labels, _ = blobs
    single = np.zeros(len(rows), dtype=bool)
    single[[0, PER_BLOB]] = True
    with pytest.raises(ValueError, match="two labeled rows"):
        choose_num_classes(rows, [4, 5], ["heldout"], labels=labels, labeled_mask=single)

"""The warm start of the assignment against scipy and all permutations."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labelkit.algorithms import assignment
from labelkit.algorithms.assignment import Assignment, assign
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment


def best_value(scores: NDArray[np.floating]) -> float:
    rows, columns = linear_sum_assignment(-scores.astype(np.float64))
    return float(scores[rows, columns].sum(dtype=np.float64))


def _without_prices(columns: NDArray[np.int64]) -> Assignment:
    return Assignment(columns, np.zeros(len(columns)), math.nan, "kept", 0)


def check(scores: NDArray[np.floating], found: Assignment) -> None:
    assert len(set(found.columns.tolist())) == len(scores)
    value = scores[np.arange(len(scores)), found.columns].sum(dtype=np.float64)
    assert found.value == pytest.approx(value, abs=1e-12)
    assert found.value == pytest.approx(best_value(scores), rel=1e-11, abs=1e-11)


def unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def drifting(count: int, dim: int, steps: int, seed: int, pull: float, noise: float) -> list[NDArray[np.float64]]:
    """Scores of class means that are pulled to prototypes of their own, as training pulls them."""
    generator = np.random.default_rng(seed)
    prototypes = unit(generator.standard_normal((count, dim)))
    means = unit(generator.standard_normal((count, dim)) + 2 * generator.standard_normal(dim))
    found = []
    for _ in range(steps):
        scores = means @ prototypes.T
        found.append(scores)
        owned = prototypes[linear_sum_assignment(-scores)[1]]
        means = unit((1 - pull) * means + pull * owned + noise * generator.standard_normal(means.shape))
    return found


def test_the_worked_example_is_matched() -> None:
    means = np.array([(1, 0), (0.96, 0.28), (-0.6, 0.8)])
    angles = 2 * np.pi * np.arange(3) / 3
    scores = means @ np.stack([np.cos(angles), np.sin(angles)])

    found = assign(scores)

    assert found.columns.tolist() == [2, 0, 1]
    assert found.value == pytest.approx(1.452820, abs=1e-6)
    assert found.how == "solved"


@given(
    st.integers(1, 6).flatmap(
        lambda c: st.tuples(*(st.lists(st.integers(-3, 3), min_size=c * c, max_size=c * c) for _ in range(3)))
    )
)
@settings(deadline=None, max_examples=60)
def test_small_tied_problems_one_after_the_other_are_solved_as_by_all_permutations(
    tables: tuple[list[int], ...],
) -> None:
    found = None
    for table in tables:
        scores = np.array(table, dtype=np.float64).reshape(math.isqrt(len(table)), -1)
        count = len(scores)
        best = max(sum(scores[i, p[i]] for i in range(count)) for p in itertools.permutations(range(count)))

        found = assign(scores, found)

        assert found.value == best
        assert sorted(found.columns) == list(range(count))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("pull", "noise"), [(0.3, 0.0), (0.05, 0.02), (0.5, 0.2)])
def test_drifting_scores_are_matched_as_by_scipy(dtype: type, pull: float, noise: float) -> None:
    found = None
    for scores in drifting(60, 8, 12, 1, pull, noise):
        found = assign(scores.astype(dtype), found)
        check(scores.astype(dtype), found)


@pytest.mark.parametrize("spoiled", ["nothing", "columns", "prices", "both"])
@pytest.mark.parametrize("kind", ["random", "integers", "equal", "low rank", "large", "tiny"])
def test_the_value_is_scipys_whatever_is_started_from(kind: str, spoiled: str, rng: np.random.Generator) -> None:
    scores = {
        "random": rng.standard_normal((40, 40)),
        "integers": rng.integers(0, 3, (40, 40)).astype(np.float64),
        "equal": np.ones((40, 40)),
        "low rank": np.outer(rng.standard_normal(40), rng.standard_normal(40)),
        "large": 1e12 * rng.standard_normal((40, 40)),
        "tiny": 1e-12 * rng.standard_normal((40, 40)),
    }[kind]
    start = assign(scores + 0.01 * np.abs(scores).max() * rng.standard_normal(scores.shape))
    columns = rng.permutation(40) if spoiled in ("columns", "both") else start.columns
    prices = np.abs(scores).max() * rng.standard_normal(40) if spoiled in ("prices", "both") else start.prices

    found = assign(scores, Assignment(columns, prices, math.nan, "solved", 0))

    check(scores, found)
    again = assign(scores, found)
    np.testing.assert_array_equal(again.columns, found.columns)
    assert again.how == "kept"


def test_a_few_swaps_are_repaired_without_solving_anew(rng: np.random.Generator) -> None:
    scores = rng.random((100, 100))
    scores[np.arange(100), np.arange(100)] += 2
    before = assign(scores)
    swapped = scores.copy()
    swapped[[3, 8]] = scores[[8, 3]]
    swapped[[20, 21, 22]] = scores[[21, 22, 20]]

    found = assign(swapped, before)

    assert before.how == "greedy"
    assert found.how == "repaired"
    assert found.num_changed == 5
    check(swapped, found)


def test_a_matching_that_stays_best_is_kept_although_rows_look_elsewhere(rng: np.random.Generator) -> None:
    # every row likes column 0 best; the prices must say that only one can have it
    scores = rng.random((50, 50))
    scores[:, 0] += 5
    before = assign(scores)
    found = assign(scores + 1e-6 * rng.random((50, 50)), before)

    assert before.how == "solved"
    assert (found.how, found.num_changed) == ("kept", 0)
    np.testing.assert_array_equal(found.columns, before.columns)


def test_among_equally_good_matchings_the_previous_one_is_kept(rng: np.random.Generator) -> None:
    columns = rng.permutation(30)

    found = assign(np.zeros((30, 30)), _without_prices(columns))

    assert (found.how, found.num_changed) == ("kept", 0)
    np.testing.assert_array_equal(found.columns, columns)


def test_row_constants_and_renumbered_classes_change_nothing_else(rng: np.random.Generator) -> None:
    scores = rng.standard_normal((30, 30))
    order = rng.permutation(30)
    found = assign(scores)

    np.testing.assert_array_equal(assign(scores + rng.standard_normal((30, 1))).columns, found.columns)
    np.testing.assert_array_equal(assign(scores[order]).columns, found.columns[order])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_more_columns_than_rows_leave_some_free(dtype: type, rng: np.random.Generator) -> None:
    found = None
    for _ in range(6):
        scores = rng.standard_normal((20, 33)).astype(dtype)
        found = assign(scores, found)
        check(scores, found)
        drifted = (scores + 0.05 * rng.standard_normal((20, 33))).astype(dtype)
        found = assign(drifted, found)
        check(drifted, found)


@pytest.mark.parametrize("limits", [{"_STEPS_PER_ROW": 0.0}, {"_PATHS_SHARE": 1.0, "_STEPS_PER_ROW": 100.0}])
def test_solving_anew_and_paths_alone_agree(limits: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in limits.items():
        monkeypatch.setattr(assignment, name, value)
    found = None
    for scores in drifting(50, 4, 8, 2, 0.2, 0.1):
        found = assign(scores, found)
        check(scores, found)


def test_differences_that_float32_cannot_hold_are_seen() -> None:
    # scores are float32, prices are not: only float64 knows which row is better off
    scores = np.array([[1.0, 1.0], [1.0, np.nextafter(np.float32(1), np.float32(2))]], dtype=np.float32)

    found = assign(scores, _without_prices(np.array([1, 0])))

    assert found.columns.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (np.zeros(3), r"shape \(c, m\) with 1 <= c <= m, got \(3,\)"),
        (np.zeros((3, 2)), r"got \(3, 2\)"),
        (np.zeros((0, 0)), r"got \(0, 0\)"),
        (np.array([[0.0, 1.0], [np.nan, 0.0]]), "scores of row 1 are not all finite"),
        (np.array([[0.0, -np.inf], [np.inf, 0.0]], dtype=np.float32), "scores of row 0 are not all finite"),
    ],
)
def test_scores_that_cannot_be_matched_are_named(scores: NDArray[np.floating], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        assign(scores)


def test_a_previous_matching_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="the previous matching is of 3 rows and 3 columns"):
        assign(np.zeros((2, 2)), assign(np.eye(3)))
    with pytest.raises(ValueError, match="are of 2 and 3"):
        assign(np.zeros((2, 3)), assign(np.eye(2)))


def test_values_whose_sum_overflows_are_still_finite_scores() -> None:
    scores = np.full((3, 3), 3e38, dtype=np.float32)

    assert assign(scores).value == pytest.approx(9e38)

"""Prototypes of hyperspherical prototype networks: against loops, finite differences and known best sets."""

from __future__ import annotations

import numpy as np
import pytest
from labelkit.algorithms.prototypes import measure_spread
from labelkit.methods.prototypes import class_separation
from labelkit.methods.prototypes.class_separation import ranking_gradient, separated_prototypes, separation_gradient
from numpy.typing import NDArray


def random_rows(count: int, dim: int) -> NDArray[np.float64]:
    rows = np.random.default_rng(5).standard_normal((count, dim))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def loss_by_loops(rows: NDArray[np.float64]) -> float:
    nearest = [
        max(float(sum(a * b for a, b in zip(u, v, strict=True))) for j, v in enumerate(rows) if j != i)
        for i, u in enumerate(rows)
    ]
    return sum(nearest) / len(rows)


def test_the_loss_is_that_of_scalar_loops() -> None:
    rows = random_rows(7, 3)
    assert separation_gradient(rows)[0] == pytest.approx(loss_by_loops(rows), abs=1e-14)


def test_the_gradient_is_that_of_finite_differences() -> None:
    rows, step = random_rows(6, 4), 1e-6
    gradient = separation_gradient(rows)[1]
    for place in np.ndindex(rows.shape):
        up, down = rows.copy(), rows.copy()
        up[place] += step
        down[place] -= step
        slope = (loss_by_loops(up) - loss_by_loops(down)) / (2 * step)
        assert gradient[place] == pytest.approx(slope, abs=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "dim", "cosine"), [(2, 3, -1.0), (4, 3, -1 / 3), (5, 4, -1 / 4), (6, 3, 0.0)])
def test_few_vectors_end_near_the_best_sets_that_are_known(count: int, dim: int, cosine: float) -> None:
    # steps of fixed length do not settle: they stay within one of the best set, a simplex or opposite pairs
    rows = separated_prototypes(count, dim, np.random.default_rng(0), iterations=4000, lr=0.01)
    assert measure_spread(rows).mean_nearest_cosine == pytest.approx(cosine, abs=0.02)


def test_a_step_goes_down_the_gradient_and_ends_on_the_sphere() -> None:
    start = np.random.default_rng(3).standard_normal((5, 3))
    start /= np.linalg.norm(start, axis=1, keepdims=True)
    moved = start - 0.1 * separation_gradient(start)[1]
    expected = moved / np.linalg.norm(moved, axis=1, keepdims=True)
    found = separated_prototypes(5, 3, np.random.default_rng(3), iterations=1, lr=0.1)
    np.testing.assert_allclose(found, expected, atol=1e-7)


WORDS = np.random.default_rng(9).standard_normal((6, 4))
SIMILAR = (WORDS @ WORDS.T) / np.outer(np.linalg.norm(WORDS, axis=1), np.linalg.norm(WORDS, axis=1))


def ranking_by_loops(rows: NDArray[np.float64], similar: NDArray[np.float64], chosen: list[int]) -> float:
    """The paper's cross-entropy of which of two others is nearer, triplet by triplet."""
    terms = []
    for i in chosen:
        for j in range(len(rows)):
            for k in range(len(rows)):
                if len({i, j, k}) < 3:
                    continue
                odds = np.exp(float(rows[i] @ rows[j]) - float(rows[i] @ rows[k]))
                share, target = odds / (1 + odds), float(similar[i, j] >= similar[i, k])
                terms.append(-target * np.log(share) - (1 - target) * np.log(1 - share))
    return float(np.mean(terms))


@pytest.mark.parametrize("chosen", [[0, 1, 2, 3, 4, 5], [1, 4]])
def test_the_loss_of_order_and_its_gradient_are_those_of_loops(chosen: list[int]) -> None:
    rows, step = random_rows(6, 3), 1e-6
    similar = SIMILAR.copy()
    similar[1, 2] = similar[1, 3]  # a tie is an order both ways
    loss, gradient = ranking_gradient(rows, similar, np.array(chosen))
    assert loss == pytest.approx(ranking_by_loops(rows, similar, chosen), abs=1e-12)
    for place in np.ndindex(rows.shape):
        up, down = rows.copy(), rows.copy()
        up[place] += step
        down[place] -= step
        slope = (ranking_by_loops(up, similar, chosen) - ranking_by_loops(down, similar, chosen)) / (2 * step)
        assert gradient[place] == pytest.approx(slope, abs=1e-8)


@pytest.mark.slow
def test_prototypes_with_words_keep_their_order_better_and_are_nearly_as_far_apart() -> None:
    words = np.random.default_rng(1).standard_normal((20, 8))
    unit = words / np.linalg.norm(words, axis=1, keepdims=True)
    right, nearest = [], []
    for given in (None, words):
        rows = separated_prototypes(20, 10, np.random.default_rng(0), iterations=800, words=given).astype(np.float64)
        cosines = [one @ one.T for one in (rows, unit)]
        kept = [
            (cosines[0][i, j] - cosines[0][i, k]) * (cosines[1][i, j] - cosines[1][i, k]) > 0
            for i in range(20) for j in range(20) for k in range(j) if len({i, j, k}) == 3
        ]  # fmt: skip
        right.append(np.mean(kept))
        nearest.append(measure_spread(rows).mean_nearest_cosine)
    assert right[0] < 0.6
    assert right[1] > 0.7
    assert nearest[1] < nearest[0] + 0.3


def test_of_many_classes_a_step_sees_some_anchors(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[NDArray[np.int64]] = []

    def watched(rows: NDArray[np.float64], similar: NDArray[np.float64], chosen: NDArray[np.int64]) -> object:
        seen.append(chosen)
        return ranking_gradient(rows, similar, chosen)

    monkeypatch.setattr(class_separation, "ranking_gradient", watched)
    monkeypatch.setattr(class_separation, "_TRIPLETS", 80)
    separated_prototypes(6, 3, np.random.default_rng(0), iterations=30, words=WORDS)
    assert {len(chosen) for chosen in seen} == {2}
    assert set(np.concatenate(seen).tolist()) == set(range(6))

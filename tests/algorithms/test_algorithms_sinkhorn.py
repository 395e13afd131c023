"""Balanced assignment against numbers worked by hand, closed forms, linear programs and plain loops."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from labelkit.algorithms import sinkhorn
from labelkit.algorithms.sinkhorn import (
    LinearScores,
    Reduce,
    SinkhornResult,
    build_prior,
    solve_assignment,
)
from numpy.typing import NDArray
from scipy.optimize import linprog
from tests.reducing_threads import run_in_threads
from torch import Tensor

SIX = torch.tensor(
    [[2, 0, 0], [1.5, 1, 0], [3, 0, 1], [1, 0.5, 0.9], [0.2, 0, -0.1], [2.5, 2.2, 1]], dtype=torch.float64
)
# exponentials are kept, or taken again in each pass
KEPT_BYTES = (1 << 30, 0)


def exactly(scores: Tensor, lam: float, **options: object) -> SinkhornResult:
    return solve_assignment(scores, lam, **{"dtype": torch.float64, "tol": 1e-11, "max_iterations": 20_000, **options})  # type: ignore[arg-type] # options of many types


def plan_of(result: SinkhornResult, lam: float, scores: Tensor) -> Tensor:
    """Rows of the plan, each scaled to a sum of 1."""
    return (lam * scores + result.potentials).softmax(dim=1)


def plan_cost(result: SinkhornResult, lam: float, scores: Tensor) -> float:
    """<Q, -log P> with P = p / n, as the specification of the objective has it."""
    plan = plan_of(result, lam, scores) / len(scores)
    return float((plan * (math.log(len(scores)) - scores.log_softmax(dim=1))).sum())


def from_first(potentials: Tensor) -> list[float]:
    return (potentials - potentials[0]).tolist()


def random_scores(n: int, k: int, *, scale: float = 1.0, seed: int = 0) -> Tensor:
    return scale * torch.randn(n, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_loops(scores: list[list[float]], lam: float, prior: list[float], rounds: int) -> list[list[float]]:
    """Scaling of exp(lam * scores), one number at a time."""
    n, k = len(scores), len(prior)
    kernel = [[math.exp(lam * value) for value in row] for row in scores]
    alpha = [1.0] * k
    for _ in range(rounds):
        beta = [1 / n / sum(kernel[i][y] * alpha[y] for y in range(k)) for i in range(n)]
        alpha = [prior[y] / sum(kernel[i][y] * beta[i] for i in range(n)) for y in range(k)]
    beta = [1 / n / sum(kernel[i][y] * alpha[y] for y in range(k)) for i in range(n)]
    return [[alpha[y] * kernel[i][y] * beta[i] * n for y in range(k)] for i in range(n)]


def linear_program(scores: NDArray[np.float64], prior: NDArray[np.float64]) -> float:
    """Least cost <Q, -log P> of any plan with these marginals."""
    n, k = scores.shape
    log_p = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    rows = np.kron(np.eye(n), np.ones((1, k)))
    columns = np.kron(np.ones((1, n)), np.eye(k))
    marginals = np.concatenate([np.full(n, 1 / n), prior])
    found = linprog((math.log(n) - log_p).ravel(), A_eq=np.vstack([rows, columns]), b_eq=marginals)
    return float(found.fun)


@pytest.mark.parametrize("memory_bytes", KEPT_BYTES)
@pytest.mark.parametrize(
    ("lam", "potentials", "cost"),
    [(1, (0, 1.059572, 1.302974), 2.930602), (5, (0, 4.938356, 7.110343), 2.623359)],
)
def test_six_samples_have_the_worked_solution(
    lam: float, potentials: tuple[float, ...], cost: float, memory_bytes: int
) -> None:
    result = exactly(SIX, lam, memory_bytes=memory_bytes)

    assert from_first(result.potentials) == pytest.approx(potentials, abs=2e-6)
    assert float(result.potentials.max()) == 0
    assert plan_cost(result, lam, SIX) == pytest.approx(cost, abs=1e-6)
    assert result.cluster_ids.tolist() == [0, 1, 0, 2, 2, 1]
    assert result.converged
    assert result.marginals.tolist() == pytest.approx([1 / 3] * 3, abs=1e-11)


@pytest.mark.parametrize(
    ("passes", "potentials", "marginals", "error"),
    [
        (1, (0, 0, 0), (0.826912, 0.089674, 0.083414), 0.987157),
        (2, (0, 2.221519, 2.293878), (0.528780, 0.285454, 0.185767), 0.390893),
    ],
)
@pytest.mark.parametrize("memory_bytes", KEPT_BYTES)
def test_the_first_passes_are_the_worked_ones(
    passes: int, potentials: tuple[float, ...], marginals: tuple[float, ...], error: float, memory_bytes: int
) -> None:
    result = exactly(SIX, 5, max_iterations=passes, memory_bytes=memory_bytes)

    assert from_first(result.potentials) == pytest.approx(potentials, abs=1e-6)
    assert result.marginals.tolist() == pytest.approx(marginals, abs=1e-6)
    assert result.marginal_error == pytest.approx(error, abs=1e-6)
    assert result.num_iterations == passes
    assert not result.converged


def test_an_unequal_prior_has_the_worked_solution() -> None:
    result = exactly(SIX, 5, prior=[1 / 2, 1 / 3, 1 / 6])

    assert from_first(result.potentials) == pytest.approx((0, 2.555874, 2.222557), abs=1e-6)
    assert plan_cost(result, 5, SIX) == pytest.approx(2.521635, abs=1e-6)
    assert plan_of(result, 5, SIX)[1].tolist() == pytest.approx([0.484832, 0.512693, 0.002475], abs=1e-6)
    assert result.cluster_ids.tolist() == [0, 1, 0, 2, 1, 1]
    assert linear_program(SIX.numpy(), np.array([1 / 2, 1 / 3, 1 / 6])) == pytest.approx(2.483282, abs=1e-6)


def test_cost_is_the_cross_entropy_of_the_hard_assignment() -> None:
    scores = random_scores(40, 5, scale=3.0)
    expected = [-float(row.log_softmax(0)[y]) for row, y in zip(scores, exactly(scores, 7).cluster_ids, strict=True)]

    for memory_bytes in KEPT_BYTES:
        assert exactly(scores, 7, memory_bytes=memory_bytes).cost == pytest.approx(np.mean(expected), abs=1e-10)


@pytest.mark.parametrize("memory_bytes", KEPT_BYTES)
def test_the_plan_is_that_of_plain_loops(memory_bytes: int) -> None:
    scores, prior = random_scores(9, 4), [0.4, 0.3, 0.2, 0.1]
    expected = by_loops(scores.tolist(), 2.0, prior, 400)

    result = exactly(scores, 2.0, prior=prior, memory_bytes=memory_bytes)

    np.testing.assert_allclose(plan_of(result, 2.0, scores).numpy(), expected, atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 30), k=st.integers(2, 6), lam=st.floats(0.1, 20), seed=st.integers(0, 2**31))
def test_marginals_and_rows_hold_for_any_problem(n: int, k: int, lam: float, seed: int) -> None:
    scores = random_scores(n, k, seed=seed)
    prior = torch.rand(k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.05
    prior /= prior.sum()

    result = exactly(scores, lam, prior=prior, tol=1e-8)

    assert result.converged
    plan = plan_of(result, lam, scores)
    assert plan.sum(dim=1).numpy() == pytest.approx(np.ones(n), abs=1e-12)
    assert float((plan.mean(dim=0) - prior).abs().sum()) <= 2e-8
    assert float(result.marginals.sum()) == pytest.approx(1, abs=1e-12)


def test_a_start_from_the_solution_takes_one_pass() -> None:
    scores = random_scores(100, 5)
    first = exactly(scores, 5.0, tol=1e-9)

    again = exactly(scores, 5.0, tol=1e-8, initial=first.potentials)

    assert again.num_iterations == 1
    assert torch.equal(again.cluster_ids, first.cluster_ids)


@pytest.mark.parametrize("lam", [1.0, 10.0, 100.0, 1000.0, 10_000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_sharpness_is_solved_without_overflow(lam: float, dtype: torch.dtype) -> None:
    result = solve_assignment(random_scores(500, 10).to(dtype), lam, dtype=dtype, tol=1e-3)

    assert torch.isfinite(result.potentials).all()
    assert torch.isfinite(result.marginals).all()
    assert result.converged
    assert result.marginal_error <= 1e-3


@pytest.mark.parametrize("memory_bytes", KEPT_BYTES)
@pytest.mark.parametrize("low", [-5.0, -1000.0])
def test_a_cluster_that_no_sample_wants_still_gets_its_share(low: float, memory_bytes: int) -> None:
    scores = random_scores(60, 4)
    scores[:, 2] += low

    result = exactly(scores, 3.0, memory_bytes=memory_bytes, tol=1e-8)

    assert result.converged
    assert result.marginals.tolist() == pytest.approx([0.25] * 4, abs=1e-8)


def test_gradients_take_over_where_steps_of_scaling_lead_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    # sharp, and one sample for each cluster: at first, some clusters get nearly nothing
    scores = (random_scores(42, 20, seed=4) @ random_scores(20, 42, seed=104)).float() / 20**0.5

    found = solve_assignment(scores, 170.0)
    monkeypatch.setattr(sinkhorn, "_SLOW_AFTER", 10_000)
    by_scaling_alone = solve_assignment(scores, 170.0)

    assert found.converged
    assert found.num_iterations < by_scaling_alone.num_iterations / 2


def test_priors_can_be_named() -> None:
    assert build_prior("uniform", 4).tolist() == [0.25] * 4
    assert build_prior("zipf:1", 3).tolist() == pytest.approx([6 / 11, 3 / 11, 2 / 11])
    assert build_prior([0.5, 0.5], 2).dtype == torch.float64


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_scores_that_are_not_finite_are_refused_with_their_row(value: float) -> None:
    for columns in (1, slice(None)):
        scores = SIX.clone()
        scores[3, columns] = value
        with pytest.raises(ValueError, match="row 3 of scores"):
            solve_assignment(scores, 1.0)


@pytest.mark.parametrize("seed", range(4))
def test_a_steep_problem_is_solved_from_softer_ones(seed: int) -> None:
    generator = np.random.default_rng(seed)
    scores = torch.from_numpy(3 * generator.normal(size=(30, 5)))
    prior = generator.dirichlet(np.full(5, 5.0))

    found = solve_assignment(scores, 10_000.0, prior=prior, tol=1e-9, max_iterations=2_000, dtype=torch.float64)

    gap = plan_cost(found, 10_000.0, scores) - linear_program(scores.numpy(), prior)
    assert found.converged
    # the entropic plan costs at most the prior's entropy over lambda more
    assert -1e-8 <= gap <= -(prior * np.log(prior)).sum() / 10_000


def assert_same(ours: SinkhornResult, theirs: SinkhornResult, tolerance: float) -> None:
    np.testing.assert_allclose(ours.potentials.numpy(), theirs.potentials.numpy(), atol=tolerance)
    assert torch.equal(ours.cluster_ids, theirs.cluster_ids)
    assert ours.cost == pytest.approx(theirs.cost, abs=tolerance)


@pytest.mark.parametrize("memory_bytes", KEPT_BYTES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_a_memory_map_gives_what_memory_gives(tmp_path: Path, memory_bytes: int, dtype: str) -> None:
    scores = random_scores(3000, 7).numpy().astype(dtype)
    np.save(tmp_path / "scores.npy", scores)
    mapped = np.load(tmp_path / "scores.npy", mmap_mode="r")

    # a slice that begins within a page: pages are given back by their own borders
    ours = solve_assignment(mapped[1:], 8.0, memory_bytes=memory_bytes, dtype=torch.float64, tol=1e-9)
    theirs = solve_assignment(scores[1:].astype(np.float64), 8.0, dtype=torch.float64, tol=1e-9)

    assert_same(ours, theirs, 1e-6)
    np.testing.assert_array_equal(np.asarray(mapped), scores)


@pytest.mark.parametrize("memory_bytes", KEPT_BYTES)
def test_a_linear_head_gives_what_its_scores_give(memory_bytes: int) -> None:
    features, weight, bias = random_scores(700, 5), random_scores(9, 5), random_scores(1, 9)[0]
    scores = features @ weight.T + bias

    ours = solve_assignment(
        LinearScores(features, weight, bias), 6.0, memory_bytes=memory_bytes, dtype=torch.float64, tol=1e-9
    )

    assert_same(ours, solve_assignment(scores, 6.0, dtype=torch.float64, tol=1e-9), 1e-7)


@pytest.mark.parametrize("borders", [(0, 500, 1001), (0, 17, 1001), (0, 0, 400, 1001)])
@pytest.mark.parametrize("memory_bytes", KEPT_BYTES)
def test_shards_of_any_size_agree_with_the_whole(borders: tuple[int, ...], memory_bytes: int) -> None:
    scores = random_scores(1001, 6, scale=2)

    def one(number: int, reduce: Reduce | None) -> SinkhornResult:
        rows = slice(borders[number], borders[number + 1]) if reduce else slice(None)
        return solve_assignment(
            scores[rows],
            4.0,
            tol=1e-9,
            memory_bytes=memory_bytes,
            dtype=torch.float64,
            reduce=reduce,
        )

    whole = one(0, None)
    parts = run_in_threads(len(borders) - 1, one)

    assert len(parts) == len(borders) - 1
    for part in parts:
        assert isinstance(part, SinkhornResult)
        np.testing.assert_allclose(part.potentials.numpy(), whole.potentials.numpy(), atol=1e-10)
        assert part.cost == pytest.approx(whole.cost, abs=1e-12)
        assert part.num_iterations == whole.num_iterations
    ids = torch.cat([part.cluster_ids for part in parts if isinstance(part, SinkhornResult)])
    assert torch.equal(ids, whole.cluster_ids)


def test_scores_that_are_not_finite_stop_every_process() -> None:
    scores = random_scores(20, 3)
    scores[15, 0] = float("nan")

    def one(number: int, reduce: Reduce) -> Tensor:
        with pytest.raises(ValueError, match=("another process", "row 5")[number]):
            solve_assignment(scores[10 * number : 10 * number + 10], 1.0, reduce=reduce)
        return torch.ones(1)

    assert len(run_in_threads(2, one)) == 2

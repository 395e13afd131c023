"""Compare the balanced assignment with linear programming and POT, and test it on difficult problems; print tables.

python examples/check_sinkhorn.py            # POT's rows need `pip install -e ".[bench]"`
"""

from __future__ import annotations

import math

import numpy as np
import torch
from labelkit.algorithms.sinkhorn import make_prior, solve
from numpy.typing import NDArray
from scipy.optimize import linprog

LAMBDAS = (1.0, 5.0, 25.0, 100.0, 1_000.0, 10_000.0)


def log_softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the log-probabilities of each row of scores."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def linear_optimum(cost: NDArray[np.float64], prior: NDArray[np.float64]) -> float:
    """Return the cost of the best plan without entropy, computed with `scipy.optimize.linprog`."""
    n, k = cost.shape
    rows = np.kron(np.eye(n), np.ones((1, k)))
    columns = np.kron(np.ones((1, n)), np.eye(k))
    equal_to = np.concatenate([np.full(n, 1 / n), prior])
    return float(linprog(cost.ravel(), A_eq=np.concatenate([rows, columns]), b_eq=equal_to).fun)


def gaps() -> None:
    """Print the gap between the entropic plan's cost and the optimum; it must be below the prior's entropy / lambda."""
    print("mean gap to linprog over 20 problems, n = 30, k = 5, random prior; bound: entropy of the prior / lambda")
    print(f"{'lambda':>8} {'gap':>12} {'bound':>12} {'share error':>12}")
    generator = np.random.default_rng(0)
    problems = [(3 * generator.normal(size=(30, 5)), generator.dirichlet(np.full(5, 5.0))) for _ in range(20)]
    optima = [linear_optimum(-log_softmax(scores), prior) for scores, prior in problems]
    for lam in LAMBDAS:
        found, bounds, errors = [], [], []
        for (scores, prior), optimum in zip(problems, optima, strict=True):
            source = torch.from_numpy(scores)
            result = solve(source, lam, prior=prior, tol=1e-9, max_iterations=5_000, dtype=torch.float64)
            plan = result.assignments(source).numpy() / len(scores)
            found.append(float((plan * -log_softmax(scores)).sum()) - optimum)
            bounds.append(-float((prior * np.log(prior)).sum()) / lam)
            errors.append(result.marginal_error)
        print(f"{lam:8g} {np.mean(found):12.3e} {np.mean(bounds):12.3e} {max(errors):12.1e}")


def against_pot() -> None:
    """Print the largest difference from POT's plans on random problems."""
    try:
        import ot
    except ModuleNotFoundError:
        print("\nPOT is not installed; skipped")
        return
    print("\nlargest difference from POT's plan, times n; n = 500, k = 20, prior zipf:1")
    generator = np.random.default_rng(1)
    scores, prior = 2 * generator.normal(size=(500, 20)), make_prior("zipf:1", 20).numpy()
    cost = -log_softmax(scores)
    for lam in LAMBDAS[:3]:
        ours = solve(torch.from_numpy(scores), lam, prior=prior, tol=1e-11, max_iterations=5_000, dtype=torch.float64)
        # POT's entropy is relative to the uniform plan; with exact marginals, the optimum is the same
        theirs = ot.sinkhorn(np.full(500, 1 / 500), prior, cost, 1 / lam, "sinkhorn_log", 5_000, 1e-12, warn=False)
        difference = np.abs(ours.assignments(torch.from_numpy(scores)).numpy() - 500 * theirs).max()
        print(f"lambda {lam:5g}: {difference:.1e}")


def awkward() -> None:
    """Solve edge cases."""
    print("\nedge cases, float32 and float64: iterations, error of the shares, smallest and largest cluster")
    generator = np.random.default_rng(2)
    normal = generator.normal(size=(1_000, 7))
    zeros = np.concatenate([normal, np.full((1_000, 1), -80.0)], axis=1)
    problems = {
        **{f"lambda {lam:g}": (normal, lam, None) for lam in LAMBDAS},
        "prior zipf:2": (normal, 25.0, make_prior("zipf:2", 7)),
        "n not divisible by k": (normal[:100], 25.0, None),
        "all scores equal": (np.zeros((1_000, 7)), 25.0, None),
        "a cluster of probability e^-80": (zeros, 1.0, None),
        "n < k": (normal[:3], 5.0, None),
    }
    for name, (scores, lam, prior) in problems.items():
        shown = []
        for dtype in (torch.float32, torch.float64):
            result = solve(torch.from_numpy(scores).to(dtype), lam, prior=prior, dtype=dtype, tol=1e-4)
            assert not math.isnan(result.marginal_error)
            sizes = np.bincount(result.cluster_ids.numpy(), minlength=scores.shape[1])
            shown.append(f"{result.num_iterations:4d} {result.marginal_error:.0e} {sizes.min():4d} - {sizes.max():<4d}")
        print(f"{name:>32}: {'   '.join(shown)}")
    for name, bad in (("k = 1", np.zeros((5, 1))), ("NaN", np.full((5, 2), np.nan))):
        try:
            solve(torch.from_numpy(bad), 1.0)
        except ValueError as error:
            print(f"{name:>32}: ValueError: {error}")


if __name__ == "__main__":
    gaps()
    against_pot()
    awkward()

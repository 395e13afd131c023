"""What a pass of the balanced assignment is made of, against numpy in float64; and how many passes a solve takes."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from labelkit.algorithms.sinkhorn import ascent
from labelkit.algorithms.sinkhorn.exponents import BINARY, below, shifted
from labelkit.algorithms.sinkhorn.products import make_products
from labelkit.algorithms.sinkhorn.solver import solve
from labelkit.algorithms.sinkhorn.workers import Scratch
from torch import Tensor


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_products_are_those_of_numpy(dtype: torch.dtype, weighted: bool, turned: bool) -> None:
    rows = random(7, 5).exp().to(dtype)
    block = rows.T.contiguous().T if turned else rows
    scale = random(5, seed=1).exp().to(dtype)
    given = random(20, seed=2).exp().to(dtype) if weighted else None
    row_totals, totals = torch.zeros(20, dtype=dtype), torch.ones(5, dtype=torch.float64)

    make_products(scale, given, row_totals)(slice(3, 10), block, totals)

    expected = rows.double().numpy() @ scale.double().numpy()
    weights = (1.0 if given is None else given[3:10].double().numpy()) / expected
    tolerance = 1e-6 if dtype == torch.float32 else 1e-14
    np.testing.assert_allclose(row_totals[3:10].numpy(), expected, rtol=tolerance)
    np.testing.assert_allclose(totals.numpy(), 1 + weights @ rows.double().numpy(), rtol=tolerance)
    assert not row_totals[:3].any()
    assert not row_totals[10:].any()


@pytest.mark.parametrize("given", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_exponents_have_the_headroom_in_each_row(given: torch.dtype, exact: bool, in_place: bool) -> None:
    scores = random(6, 4, dtype=given)
    before = scores.double().numpy().copy()
    dtype = given if in_place and given != torch.float16 else torch.float32
    out = scores if dtype == given else torch.empty(6, 4, dtype=dtype)

    top = below(scores, 3.0, scores.double().amax(dim=1), out, Scratch(), exact=exact, headroom=60.0)

    np.testing.assert_allclose(top.numpy(), 3 * before.max(axis=1) - 60, atol=1e-4)
    np.testing.assert_allclose(out.double().numpy() / BINARY, 3 * before - top.numpy()[:, None], rtol=1e-6)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("unit", [1.0, BINARY])
def test_exponents_with_potentials_have_the_headroom_in_each_row(exact: bool, unit: float) -> None:
    scores, potentials = random(6, 4), random(4, dtype=torch.float64, seed=1)

    values, top = shifted(scores, 3.0, potentials, torch.float32, Scratch(), exact=exact, unit=unit, headroom=60.0)

    expected = 3 * scores.double().numpy() + potentials.numpy()
    np.testing.assert_allclose(top.numpy(), expected.max(axis=1) - 60, atol=1e-4)
    np.testing.assert_allclose(values.double().numpy() / unit, expected - top.numpy()[:, None], rtol=1e-6)


@pytest.mark.parametrize("form", ["kernel", "log"])
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("offset", [-20_000.0, 20_000.0])
def test_the_cost_of_rows_far_from_zero_is_that_of_their_differences(
    form: Literal["kernel", "log"], overwrite: bool, offset: float
) -> None:
    # eighths, so that the rows that are far from zero hold the same differences
    scores = (8 * random(300, 6)).round() / 8
    far = scores + offset

    found = solve(far.clone(), 3.0, form=form, overwrite=overwrite)

    log_p = torch.log_softmax(scores.double(), dim=1)
    assert found.cost == pytest.approx(-float(log_p.gather(1, found.cluster_ids[:, None]).mean()), abs=1e-6)
    assert torch.equal(found.cluster_ids, solve(scores, 3.0, form=form).cluster_ids)


def test_fewer_passes_than_scaling_lead_to_the_same_potentials() -> None:
    features, prototypes = random(4000, 32), random(32, 100, seed=1) / 32**0.5
    scores = features @ prototypes

    scaled = solve(scores, 12.0, solver="sinkhorn", tol=1e-6, dtype=torch.float64)
    found = solve(scores, 12.0, tol=1e-6, dtype=torch.float64)

    assert scaled.converged
    assert found.converged
    assert found.num_iterations <= scaled.num_iterations / 3
    np.testing.assert_allclose(found.potentials.numpy(), scaled.potentials.numpy(), atol=1e-3)


def test_gradients_take_over_where_steps_of_scaling_lead_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    # sharp, and one sample for each cluster: at first, some clusters get nearly nothing
    scores = random(42, 20, seed=4) @ random(20, 42, seed=104) / 20**0.5

    found = solve(scores, 170.0)
    monkeypatch.setattr(ascent, "_SLOW_AFTER", 10_000)
    by_scaling_alone = solve(scores, 170.0)

    assert found.converged
    assert found.num_iterations < by_scaling_alone.num_iterations / 2

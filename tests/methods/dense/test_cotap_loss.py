"""CoTAP: worked numbers, autograd through the definition, the double sum, ties."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from labelkit.methods.dense import ranking_loss
from labelkit.methods.dense.ranking_loss import Implementation, cotap_loss
from torch import Tensor

IMPLEMENTATIONS: list[Implementation] = ["fast", "pairs"]
SCORES = [0.9, 0.7, 0.7, 0.4, 0.6, 0.2]
TARGETS = [0.8, 0.9, 0.6, 0.6, 0.3, 0.1]


def rows(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def value_and_gradient(scores: Tensor, targets: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    scores = scores.clone().requires_grad_()
    losses = cotap_loss(scores, targets, **options)
    (gradient,) = torch.autograd.grad(losses.sum(), scores)
    return losses.detach(), gradient


def plain(scores: Tensor, targets: Tensor, margin: float = 0.5, floor: float = -0.2) -> Tensor:
    """One row by Eq. 11 and 12 as printed, for autograd."""
    total = scores.new_zeros(())
    n = len(scores)
    for i in range(n):
        behind = scores.new_zeros(())
        for j in range(n):
            if targets[j] < targets[i]:
                d = scores[i] - scores[j]
                behind = behind + (1 - 2 * d / margin if d < 0 else (1 - d / margin).clamp_min(0) ** 2)
        rank = int(((targets >= targets[i]) & (scores >= scores[i])).sum())
        x = behind / rank
        total = total + (targets[i] - floor).clamp_min(0) * x / (1 + x)
    return total / n


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("options", "loss", "gradient"),
    [
        ({}, 0.271517, [-0.253894, -0.110901, 0.111180, -0.076091, 0.279635, 0.050071]),
        ({"floor": 0.5, "margin": 0.1}, 0.066402, [0.027211, -0.054422, 0.027211, -0.016461, 0.016461, 0]),
    ],
)
def test_six_items_with_ties(
    implementation: Implementation, options: dict[str, float], loss: float, gradient: list[float]
) -> None:
    found, slope = value_and_gradient(rows(*SCORES), rows(*TARGETS), implementation=implementation, **options)
    assert found.item() == pytest.approx(loss, abs=1e-6)
    assert slope[0].tolist() == pytest.approx(gradient, abs=1e-6)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("scores", "targets"),
    [((0.3, 0.1, 0.9), (0.5, 0.5, 0.5)), ((0, 0.6, 1.2), (0.1, 0.2, 0.3)), ((0.4,), (0.7,))],
    ids=["equal targets", "solved", "one item"],
)
def test_where_nothing_is_behind_loss_and_gradient_are_zero(
    implementation: Implementation, scores: tuple[float, ...], targets: tuple[float, ...]
) -> None:
    loss, gradient = value_and_gradient(rows(*scores), rows(*targets), implementation=implementation)
    assert loss.item() == 0
    assert not gradient.any()


values = st.one_of(
    st.floats(-2, 2, allow_subnormal=False), st.integers(-4, 4).map(lambda k: k / 4), st.just(0.5), st.just(1e-9)
)


@given(st.lists(st.tuples(values, values), min_size=1, max_size=9), st.sampled_from([0.1, 0.5, 3.0]))
@settings(deadline=None, max_examples=80)
def test_both_ways_are_autograd_through_the_definition(items: list[tuple[float, float]], margin: float) -> None:
    scores, targets = (torch.tensor([side], dtype=torch.float64) for side in zip(*items, strict=True))
    leaf = scores[0].clone().requires_grad_()
    expected = plain(leaf, targets[0], margin)
    slope = torch.autograd.grad(expected, leaf)[0] if expected.requires_grad else torch.zeros_like(leaf)
    for implementation in IMPLEMENTATIONS:
        loss, gradient = value_and_gradient(scores, targets, margin=margin, implementation=implementation)
        assert loss.item() == pytest.approx(expected.item(), abs=1e-10)
        assert torch.equal(cotap_loss(scores, targets, margin=margin, implementation=implementation), loss)
        # slopes grow with 1 / margin
        torch.testing.assert_close(gradient[0], slope, atol=1e-9, rtol=1e-9)


def made(kind: str, n: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores, targets = (torch.rand(2, n, dtype=torch.float64, generator=generator) for _ in range(2))
    if kind in ("tied scores", "tied"):
        scores = (8 * scores).round() / 8
    if kind in ("tied targets", "tied"):
        targets = (8 * targets).round() / 8
    if kind == "alike":
        targets = scores + 0.05 * targets
    if kind == "equal targets":
        targets = torch.zeros_like(targets)
    if kind == "equal scores":
        scores = torch.zeros_like(scores)
    if kind == "nearly solved":
        targets = (targets > 0.5).double()
        scores = 0.4999 * targets + 1e-6 * scores
    return scores, targets


KINDS = ["random", "tied scores", "tied targets", "tied", "alike", "equal targets", "equal scores", "nearly solved"]


@pytest.mark.parametrize(
    "n", [1, 3, 65, 200, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 7, 64, 777, 2000))]
)
@pytest.mark.parametrize("kind", KINDS)
def test_the_fast_way_equals_the_double_sum(kind: str, n: int) -> None:
    scores, targets = made(kind, n, seed=n)
    fast, slope = value_and_gradient(scores, targets, implementation="fast")
    exact, exact_slope = value_and_gradient(scores, targets, implementation="pairs")
    assert (fast - exact).abs().max() <= 1e-12
    assert (slope - exact_slope).abs().max() <= 1e-12


@pytest.mark.parametrize("margin", [1e-15, 1e-13, 0.01, 30.0])
@pytest.mark.parametrize("kind", ["random", "tied"])
def test_the_fast_way_bears_any_margin(kind: str, margin: float) -> None:
    # around a thousand, floats are 1e-13 apart: a smaller margin is nothing
    scores, targets = made(kind, 200, seed=5)
    fast, slope = value_and_gradient(scores + 1000, targets, implementation="fast", margin=margin)
    exact, exact_slope = value_and_gradient(scores + 1000, targets, implementation="pairs", margin=margin)
    torch.testing.assert_close(fast, exact, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(slope, exact_slope, rtol=1e-7, atol=1e-7 * float(exact_slope.abs().max()))


def test_groups_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, targets = made("tied", 300, seed=3)
    whole = value_and_gradient(scores, targets, implementation="fast")
    monkeypatch.setattr(ranking_loss, "_MAX_BYTES", 1)
    parts = value_and_gradient(scores, targets, implementation="fast")
    assert all(torch.equal(first, second) for first, second in zip(whole, parts, strict=True))


def test_no_rows_have_no_loss_but_a_graph() -> None:
    scores = torch.zeros(0, 5, requires_grad=True)
    losses = cotap_loss(scores, torch.zeros(0, 5))
    assert losses.shape == (0,)
    losses.sum().backward()
    assert scores.grad is not None


@pytest.mark.parametrize("margin", [0.0, -1.0])
def test_a_margin_that_is_not_positive_is_refused(margin: float) -> None:
    with pytest.raises(ValueError, match="margin must be > 0"):
        cotap_loss(torch.ones(1, 3), torch.ones(1, 3), margin=margin)

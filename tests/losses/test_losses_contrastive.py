"""Contrastive losses: worked numbers (T12), plain loops in float64, missing labels."""

import math
from typing import Any

import pytest
import torch
from labelkit.losses.consistency import LabelLoss, MeanEntropyRegularizer
from labelkit.losses.contrastive import InfoNCELoss, SupConLoss
from torch import Tensor

VIEWS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [-1.0, 1.0]], dtype=torch.float64)


def random_projections(images: int, dim: int) -> Tensor:
    return torch.randn(2 * images, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def cosines(projections: Tensor) -> list[list[float]]:
    rows = [[value / math.hypot(*row) for value in row] for row in projections.tolist()]
    return [[sum(x * y for x, y in zip(first, second, strict=True)) for second in rows] for first in rows]


def sup_con_by_loops(projections: Tensor, labels: list[int], temperature: float) -> float:
    similarity, twice = cosines(projections), [*labels, *labels]
    labeled = [row for row, label in enumerate(twice) if label >= 0]
    total = 0.0
    for a in labeled:
        others = sum(math.exp(similarity[a][c] / temperature) for c in labeled if c != a)
        positives = [p for p in labeled if p != a and twice[p] == twice[a]]
        terms = [math.log(math.exp(similarity[a][p] / temperature) / others) for p in positives]
        total -= sum(terms) / len(positives)
    return total / len(labeled)


@pytest.mark.parametrize(("temperature", "expected"), [(1.0, 0.732602), (0.07, 0.346604)])
def test_info_nce_of_the_worked_example(temperature: float, expected: float) -> None:
    assert InfoNCELoss(temperature)(VIEWS).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("temperature", "expected"), [(0.07, 7.080955), (1.0, 1.204007)])
def test_sup_con_of_the_worked_example_with_one_class(temperature: float, expected: float) -> None:
    loss = SupConLoss(temperature)(VIEWS, torch.tensor([0, 0]))

    assert loss.item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("labels", [[0, 1, 0, 2, 1], [3, -1, 3, -1, 0], [-1, -1, 2, -1, -1], [0, 0, 0, 0, 0]])
def test_sup_con_equals_plain_loops(labels: list[int]) -> None:
    projections = random_projections(5, 4)

    loss = SupConLoss(0.3)(projections, torch.tensor(labels))

    assert loss.item() == pytest.approx(sup_con_by_loops(projections, labels, 0.3), abs=1e-12)


def test_gradients_are_those_of_finite_differences() -> None:
    projections = random_projections(3, 3).requires_grad_()
    labels = torch.tensor([1, -1, 1])

    assert torch.autograd.gradcheck(InfoNCELoss(0.5), projections)
    assert torch.autograd.gradcheck(lambda z: SupConLoss(0.5)(z, labels), projections)


def test_sup_con_without_labels_is_zero_and_differentiable() -> None:
    projections = random_projections(3, 3).requires_grad_()

    loss = SupConLoss(0.07)(projections, torch.tensor([-1, -1, -1]))
    loss.backward()

    assert loss.item() == 0.0
    assert torch.equal(projections.grad, torch.zeros_like(projections))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_and_autocast_are_computed_in_single_precision(dtype: torch.dtype) -> None:
    projections, labels = random_projections(4, 8).to(dtype), torch.tensor([0, 1, -1, 0])
    expected = SupConLoss(0.07)(projections.float(), labels) + InfoNCELoss(0.07)(projections.float())

    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = SupConLoss(0.07)(projections, labels) + InfoNCELoss(0.07)(projections)

    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("loss", [InfoNCELoss, SupConLoss, LabelLoss, MeanEntropyRegularizer])
def test_a_temperature_must_be_given(loss: Any) -> None:
    with pytest.raises(TypeError, match="temperature"):
        loss()

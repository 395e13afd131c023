"""The losses of DL2PA against the worked numbers of its specification (section 8), closed forms and scalar loops."""

import math

import pytest
import torch
from labelkit.methods.prototypes.losses import (
    InnerProductLoss,
    UniformityLoss,
    WeightedCrossEntropy,
    balanced_class_weights,
)

ROWS = torch.tensor([[3.0, 4.0], [0.0, 2.0], [-1.0, 0.0]])
OWN = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])


def embeddings_with(cosines: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return embeddings of length 2 and prototypes (1, 0) with these cosines."""
    values = torch.tensor(cosines, dtype=torch.float64)
    rows = torch.stack([values, (1 - values**2).sqrt()], dim=1)
    return 2 * rows, torch.tensor([[1.0, 0.0]], dtype=torch.float64).expand(len(rows), 2)


@pytest.mark.parametrize(("reduction", "expected"), [("sum", 2.72), ("half-mean", 0.453333)])
def test_inner_product_loss_of_cosines_of_0_6_and_1_and_minus_0_6(reduction: str, expected: float) -> None:
    loss = InnerProductLoss(reduction)(ROWS, OWN)  # type: ignore[arg-type] # one of the two
    assert float(loss) == pytest.approx(expected, abs=1e-6)


def test_gradient_is_that_of_the_cosine_and_not_the_printed_one() -> None:
    x = torch.tensor([[3.0, 4.0]], requires_grad=True)
    loss = InnerProductLoss()(x, torch.tensor([[1.0, 0.0]]))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0.08, abs=1e-6)
    assert x.grad[0].tolist() == pytest.approx([-0.0512, 0.0384], abs=1e-6)


@pytest.mark.parametrize(
    ("degrees", "norm"),
    [(0, 0.0), (30, 0.066987), (60, 0.433013), (90, 1.0), (120, 1.299038), (150, 0.933013), (180, 0.0)],
)
def test_gradient_is_largest_at_120_degrees_and_vanishes_at_0_and_180(degrees: float, norm: float) -> None:
    angle = math.radians(degrees)
    x = torch.tensor([[math.cos(angle), math.sin(angle)]], dtype=torch.float64, requires_grad=True)
    InnerProductLoss()(x, torch.tensor([[1.0, 0.0]], dtype=torch.float64)).backward()
    assert float(x.grad.norm()) == pytest.approx(norm, abs=1e-6)


def test_classes_of_a_batch_count_alike_under_balancing_weights() -> None:
    labels = torch.tensor([0, 0, 0, 0, 0, 1, 1, 2])
    weights = balanced_class_weights(torch.bincount(labels, minlength=4))
    assert weights.tolist() == pytest.approx([0.533333, 1.333333, 2.666667, 1.0], abs=1e-6)
    embeddings, own = embeddings_with([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2])
    assert float(InnerProductLoss()(embeddings, own)) == pytest.approx(0.1275, abs=1e-6)
    first = InnerProductLoss()(embeddings, own, weights[labels])
    assert float(first) == pytest.approx(0.195833, abs=1e-6)
    other = torch.tensor([1, 2, 0, 0, 0, 0, 1, 0])
    mixed, _ = embeddings_with([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
    second = InnerProductLoss()(mixed, own, weights[other])
    assert float(0.7 * first + 0.3 * second) == pytest.approx(0.204583, abs=1e-6)


def test_cross_entropy_is_log_c_when_all_logits_agree_and_weights_multiply_it() -> None:
    logits, labels = torch.zeros(4, 7), torch.tensor([0, 1, 2, 6])
    assert float(WeightedCrossEntropy()(logits, labels)) == pytest.approx(math.log(7))
    weights = torch.tensor([2.0, 0.0, 0.0, 0.0])
    assert float(WeightedCrossEntropy()(logits, labels, weights)) == pytest.approx(math.log(7) / 2)


@pytest.mark.parametrize(
    ("vectors", "expected"),
    [
        ([(1, 0), (0, 1), (-1, 0), (0, -1)], -4.396349),
        ([(1, 0), (1, 0), (-1, 0), (-1, 0)], -1.097942),
        ([(1, 0), (0, 1), (-0.6, 0.8)], -1.855112),
        ([(3, 0), (3, 0)], 0.0),
    ],
)
def test_uniformity_of_worked_examples(vectors: list[tuple[float, float]], expected: float) -> None:
    assert float(UniformityLoss()(torch.tensor(vectors, dtype=torch.float64))) == pytest.approx(expected, abs=1e-6)

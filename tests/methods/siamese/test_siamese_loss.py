"""Losses of two views: closed forms, and loops over numbers and images in float64."""

import math

import pytest
import torch
from labelkit.methods.siamese.siamese import BarlowTwinsLoss, QueueContrastLoss, SimSiamLoss


@pytest.fixture
def rows() -> torch.Tensor:
    return torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_redundancy_is_that_of_a_loop_over_numbers(rows: torch.Tensor) -> None:
    first, second = rows[0], rows[1]
    expected = 0.0
    for i in range(4):
        for j in range(4):
            a, b = first[:, i].tolist(), second[:, j].tolist()
            mean_a, mean_b = sum(a) / 5, sum(b) / 5
            spread_a = math.sqrt(sum((x - mean_a) ** 2 for x in a) / 5 + 1e-5)
            spread_b = math.sqrt(sum((x - mean_b) ** 2 for x in b) / 5 + 1e-5)
            c = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True)) / 5 / spread_a / spread_b
            expected += (1 - c) ** 2 if i == j else 0.3 * c**2
    assert BarlowTwinsLoss(0.3)(first, second).item() == pytest.approx(expected, abs=1e-12)
    assert BarlowTwinsLoss(0.3, 0.024)(first, second).item() == pytest.approx(0.024 * expected, abs=1e-12)


def test_numbers_that_do_not_change_correlate_with_nothing() -> None:
    assert BarlowTwinsLoss(1.0)(torch.ones(6, 3), torch.ones(6, 3)).item() == 3.0


def test_prediction_is_the_mean_cosine_to_the_other_view(rows: torch.Tensor) -> None:
    predictions, projections = (rows[0], rows[1]), (rows[2], rows[0] + 1)
    total = 0.0
    for one, other in ((rows[0], rows[0] + 1), (rows[1], rows[2])):
        for a, b in zip(one.tolist(), other.tolist(), strict=True):
            total += sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)
    assert SimSiamLoss()(predictions, projections).item() == pytest.approx(-total / 10, abs=1e-12)
    assert SimSiamLoss()((rows[0], rows[1]), (rows[1] * 2, rows[0] * 3)).item() == pytest.approx(-1)


def test_prediction_sends_no_gradient_to_what_is_predicted(rows: torch.Tensor) -> None:
    predictions = tuple(view.clone().requires_grad_() for view in rows[:2])
    projections = tuple(view.clone().requires_grad_() for view in rows[1:])
    SimSiamLoss()(predictions, projections).backward()
    assert all(view.grad is not None and view.grad.any() for view in predictions)
    assert all(view.grad is None for view in projections)


def test_queue_contrast_is_that_of_a_loop_over_images(rows: torch.Tensor) -> None:
    queries, keys, queue = rows[0], rows[1], rows[2][:3]
    total = 0.0
    for query, key in zip(queries, keys, strict=True):
        scores = [float(query @ other / query.norm() / other.norm()) / 0.2 for other in (key, *queue)]
        total -= math.log(math.exp(scores[0]) / sum(map(math.exp, scores)))
    assert QueueContrastLoss(0.2)(queries, keys, queue).item() == pytest.approx(total / 5, abs=1e-12)
    same = torch.ones(2, 3)
    assert QueueContrastLoss(0.1)(same, same, torch.ones(7, 3)).item() == pytest.approx(math.log(8))


def test_queue_contrast_moves_queries_alone(rows: torch.Tensor) -> None:
    queries, keys, queue = (view.clone().requires_grad_() for view in rows)
    QueueContrastLoss(0.2)(queries, keys, queue).backward()
    assert (queries.grad is not None, keys.grad, queue.grad) == (True, None, None)


def test_views_of_different_shapes_are_refused(rows: torch.Tensor) -> None:
    for second in (rows[1, :4], rows[1, :, :3], rows[1, 0]):
        with pytest.raises(ValueError, match="views must have the same shape"):
            BarlowTwinsLoss(0.3)(rows[0], second)

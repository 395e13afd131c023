"""Nearest over second nearest center: worked numbers, and the edges."""

import pytest
import torch
from labelkit.methods.metric.tac_ccl import ContrastiveClusteringLoss, collapsed_multi_similarity_loss

ROWS = torch.tensor([[1.0, 0], [0.6, 0.8], [0, 1], [-0.6, 0.8]], dtype=torch.float64)
CENTERS = torch.tensor([[0.9, 0.1], [0, 0.9], [-0.8, -0.2]], dtype=torch.float64)


def test_ratios_of_the_worked_example() -> None:
    loss = ContrastiveClusteringLoss()
    ratios = [float(loss(ROWS[i : i + 1], CENTERS)) for i in range(4)]
    assert ratios == pytest.approx([0.105118, 0.798706, 0.078567, 0.596464], abs=1e-6)
    assert float(loss(ROWS, CENTERS)) == pytest.approx(0.394714, abs=1e-6)


def test_gradient_of_the_worked_example() -> None:
    row = ROWS[1:2].clone().requires_grad_()
    ContrastiveClusteringLoss()(row, CENTERS).backward()
    assert row.grad[0].tolist() == pytest.approx([1.708322, -1.179822], abs=1e-6)


def test_it_is_zero_on_a_center_and_one_between_two() -> None:
    loss = ContrastiveClusteringLoss()
    assert float(loss(CENTERS[:1], CENTERS)) == pytest.approx(0, abs=1e-5)
    assert float(loss((CENTERS[:1] + CENTERS[1:2]) / 2, CENTERS)) == pytest.approx(1)


def test_two_equal_centers_do_not_divide_by_zero() -> None:
    row = torch.tensor([[1.0, 0.0]], requires_grad=True)
    loss = ContrastiveClusteringLoss()(row, torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    loss.backward()
    assert torch.isfinite(loss.detach())
    assert torch.isfinite(row.grad).all()


def test_one_center_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        ContrastiveClusteringLoss()(ROWS, CENTERS[:1])


@pytest.mark.parametrize(
    ("positives", "negatives", "least"), [(4, 75, 0.884324), (45, 850, 2.048456)], ids=["a batch", "a memory"]
)
def test_a_collapsed_network_cannot_go_below_the_closed_form(positives: int, negatives: int, least: float) -> None:
    assert collapsed_multi_similarity_loss(positives, negatives) == pytest.approx(least, abs=1e-6)

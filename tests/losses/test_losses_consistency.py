"""Losses on logits: worked numbers (T10, T11), plain loops, underflow, no labels."""

import math

import pytest
import torch
from labelkit.losses.consistency import DistillationLoss, LabelLoss, MeanEntropyRegularizer
from torch import Tensor

STUDENT = torch.tensor([[0.9, 0.1, -0.2], [0.2, 0.7, 0.0]], dtype=torch.float64)
TEACHER = torch.tensor([[0.8, 0.2, -0.1], [0.1, 0.6, 0.3]], dtype=torch.float64)
BOTH = torch.cat([TEACHER, STUDENT])


def random_logits(rows: int, classes: int, seed: int = 0) -> Tensor:
    return torch.rand(rows, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1


def softmax_by_loops(row: list[float], temperature: float) -> list[float]:
    exponentials = [math.exp(value / temperature) for value in row]
    return [value / sum(exponentials) for value in exponentials]


@pytest.mark.parametrize(("teacher_temperature", "expected"), [(0.07, 0.054188), (0.04, 0.005932)])
def test_distillation_of_the_worked_example(teacher_temperature: float, expected: float) -> None:
    loss = DistillationLoss(0.1)(STUDENT, TEACHER, teacher_temperature)

    assert loss.item() == pytest.approx(expected, abs=1e-6)


def test_distillation_gradient_of_the_worked_example_reaches_only_the_student() -> None:
    student, teacher = STUDENT.clone().requires_grad_(), TEACHER.clone().requires_grad_()

    DistillationLoss(0.1)(student, teacher, 0.07).backward()

    expected = torch.tensor([[-0.000800, 0.000730, 0.000070], [0.029538, 0.033769, -0.063307]], dtype=torch.float64)
    torch.testing.assert_close(student.grad, expected, atol=1e-6, rtol=0)
    assert teacher.grad is None


def test_mean_entropy_gap_of_the_worked_example() -> None:
    gap = MeanEntropyRegularizer(0.1)(BOTH)

    assert gap.item() == pytest.approx(0.348773, abs=1e-6)
    assert math.log(3) - gap.item() == pytest.approx(0.749840, abs=1e-6)


def test_mean_entropy_gradient_is_finite_where_a_probability_underflows() -> None:
    logits = torch.tensor([[1.0, -1.0, 0.0], [1.0, -1.0, 0.5]], requires_grad=True)

    gap = MeanEntropyRegularizer(0.001)(logits)
    gap.backward()

    assert gap.item() == pytest.approx(math.log(3), abs=1e-6)
    assert torch.isfinite(logits.grad).all()


def test_label_loss_of_the_worked_example() -> None:
    loss = LabelLoss(0.1)(BOTH, torch.tensor([0, 1, 0, 1]))

    assert loss.item() == pytest.approx(0.016389, abs=1e-6)


def test_label_loss_averages_over_labeled_rows_only() -> None:
    logits = random_logits(4, 3)
    rows = [(0, 2), (3, 1)]
    expected = -sum(math.log(softmax_by_loops(logits[row].tolist(), 0.2)[label]) for row, label in rows) / 2

    assert LabelLoss(0.2)(logits, torch.tensor([2, -1, -1, 1])).item() == pytest.approx(expected, abs=1e-12)


def test_label_loss_without_labels_is_zero_and_differentiable() -> None:
    logits = random_logits(3, 4).requires_grad_()

    loss = LabelLoss(0.1)(logits, torch.tensor([-1, -1, -1]))
    loss.backward()

    assert loss.item() == 0.0
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_autocast_does_not_reach_the_losses() -> None:
    student, teacher = random_logits(4, 5).float(), random_logits(4, 5, seed=1).float()
    expected = DistillationLoss(0.1)(student, teacher, 0.04)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = DistillationLoss(0.1)(student, teacher, 0.04)

    assert torch.equal(loss, expected)

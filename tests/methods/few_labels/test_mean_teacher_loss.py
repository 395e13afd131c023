"""Mean Teacher's terms: the worked numbers of the specification of snowball (7), and plain loops."""

import pytest
import torch
from labelkit.methods.few_labels.losses import SquaredConsistencyLoss

STUDENT = torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.0]])
TEACHER = torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
MASTER = torch.tensor([[3.0, 0.0, 0.0], [0.0, 0.0, 0.0]])


def test_consistency_is_that_of_the_specification() -> None:
    loss = SquaredConsistencyLoss()
    assert loss(STUDENT, TEACHER).mean().item() == pytest.approx(0.029464, abs=1e-6)
    assert loss(STUDENT, MASTER)[0].item() == pytest.approx(0.003023, abs=1e-6)


def test_only_the_student_gets_gradients() -> None:
    student, teacher = STUDENT.clone().requires_grad_(), TEACHER.clone().requires_grad_()
    SquaredConsistencyLoss()(student, teacher).mean().backward()
    assert student.grad.abs().sum() > 0
    assert teacher.grad is None

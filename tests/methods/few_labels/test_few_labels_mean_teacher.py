"""The objective of Mean Teacher as a whole: the totals of the specification of snowball (7)."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from labelkit.data.batch import Batch
from labelkit.data.views.spec import ViewSpec
from labelkit.methods.few_labels.mean_teacher import MeanTeacherConfig, MeanTeacherObjective
from labelkit.methods.few_labels.options import MeanTeacherOptions
from labelkit.methods.few_labels.recipe import StudentNetworks, teacher_decay_schedule
from labelkit.training.method import TrainState
from torch import Tensor, nn

STUDENT = [[2.0, 0.0, -1.0], [0.0, 1.0, 0.0]]
TEACHER = [[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]]
MASTER = [[3.0, 0.0, 0.0], [0.0, 0.0, 0.0]]


class Fixed(nn.Module):
    """A network that answers with its own parameters, whatever it is shown."""

    def __init__(self, *logits: list[list[float]]) -> None:
        super().__init__()
        self.logits = nn.ParameterList(torch.tensor(rows) for rows in logits)

    @property
    def head(self) -> "Fixed":
        return self

    def embed(self, images: Tensor) -> Tensor:
        return images

    def all_logits(self, features: Tensor) -> tuple[Tensor, ...]:
        return tuple(rows + 0 for rows in self.logits)


def batch(labels: list[int]) -> Batch:
    images = torch.zeros(len(labels), 1, 1, 1)
    return Batch((images, images), torch.tensor(labels), torch.arange(len(labels)), ())


def networks(master: bool = True) -> Any:
    return StudentNetworks(Fixed(STUDENT), Fixed(TEACHER), Fixed(MASTER) if master else None)  # type: ignore[arg-type]


LATER = TrainState(step=100, step_in_phase=0, phase=1)


def objective(**options: Any) -> MeanTeacherObjective:
    return MeanTeacherObjective(
        MeanTeacherOptions(consistency_weight=10, consistency_ramp=1, **options), 10, ViewSpec(8)
    )


@pytest.mark.parametrize(("class_norm", "total"), [("batch", 0.409791), ("labeled", 0.494714)])
def test_the_total_is_that_of_the_specification(class_norm: str, total: float) -> None:
    output = objective(class_norm=class_norm)(batch([0, -1]), networks(), LATER)
    assert output.loss.item() == pytest.approx(total, abs=2e-6)


def test_gradients_reach_the_student_alone() -> None:
    nets = networks()
    objective()(batch([0, -1]), nets, LATER).loss.backward()
    assert nets.student.logits[0].grad is not None
    assert nets.teacher.logits[0].grad is None
    assert nets.master.logits[0].grad is None


def test_consistency_grows_in_the_first_phase() -> None:
    def loss(clock: TrainState) -> float:
        return objective()(batch([0, -1]), networks(master=False), clock).loss.item()

    cross_entropy, consistency = 0.169846, 0.029464
    for step, ramp in ((0, 0.006738), (5, 0.286505), (10, 1.0)):
        clock = TrainState(step=step, step_in_phase=step)
        assert loss(clock) == pytest.approx(cross_entropy + 10 * ramp * consistency, abs=1e-5)
    assert loss(LATER) == pytest.approx(cross_entropy + 10 * consistency, abs=1e-5)


def test_two_heads_split_labels_and_consistency() -> None:
    """Cross-entropy by the first, consistency of the second with the first of the teacher."""
    nets = StudentNetworks(Fixed(STUDENT, TEACHER), Fixed(TEACHER, MASTER))  # type: ignore[arg-type]
    output = objective()(batch([0, -1]), nets, LATER)
    assert output.logs["cross_entropy"].item() == pytest.approx(0.169846, abs=1e-6)
    assert output.logs["consistency"].item() == 0
    assert output.loss.item() == pytest.approx(0.169846 + 0.01 * 0.5, abs=1e-6)


def test_processes_with_different_numbers_of_labels_average_to_one_with_all() -> None:
    """31 labeled rows on two processes are 16 and 15; here 2 and 1."""

    def logits(rows: list[list[float]]) -> Any:
        return StudentNetworks(Fixed(rows), Fixed(rows))  # type: ignore[arg-type]

    rows = [[2.0, 0.0, -1.0], [0.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.5, 0.0, 0.0]]
    whole = objective()(batch([0, 1, 2, -1]), logits(rows), LATER).loss
    clock = replace(LATER, combine=lambda counts, operation: torch.tensor([3.0, 2.0]))
    halves = [
        objective()(batch([0, 2]), logits([rows[0], rows[2]]), clock).loss,
        objective()(batch([1, -1]), logits([rows[1], rows[3]]), clock).loss,
    ]
    assert torch.allclose(torch.stack(halves).mean(), whole)


def test_the_average_is_short_until_the_consistency_counts_in_full() -> None:
    config = MeanTeacherConfig(steps=100_000, ema_decay=0.999, ema_decay_start=0.99, consistency_ramp=0.4)
    decay = teacher_decay_schedule(config, config.steps)
    assert [decay(update) for update in (1, 39_999, 40_000)] == [0.5, 0.99, 0.999]

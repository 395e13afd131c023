"""When classes are assigned to prototypes anew, and to which."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from labelkit.methods.prototypes.dl2pa import (
    PrototypeHead,
    best_assignment,
    class_mean_similarities,
    is_reassignment_due,
    reassign_classes,
)
from labelkit.training.method import TrainState


def state(**values: Any) -> TrainState:
    options: dict[str, Any] = {"epoch": 1, "step": 10, "steps_per_epoch": 10, "log_now": False, "is_main": True}
    nothing: Callable[..., Any] = lambda *args: None  # noqa: E731 - never called here
    return TrainState(**{**options, **values}, full_pass=nothing, generator=nothing)


def triangle() -> PrototypeHead:
    """Return the worked example P9: prototypes at 0, 120 and 240 degrees."""
    head = PrototypeHead(3, 2)
    angles = torch.tensor([0.0, 2.0, 4.0], dtype=torch.float64) * torch.pi / 3
    head.prototypes.copy_(torch.stack([angles.cos(), angles.sin()], dim=1))
    head.class_means.copy_(torch.tensor([[1.0, 0.0], [0.96, 0.28], [-0.6, 0.8]]))
    head.seen.fill_(1)
    return head


def test_the_worked_example_is_solved() -> None:
    head = triangle()
    assert class_mean_similarities(head)[1].tolist() == pytest.approx([0.96, -0.237513, -0.722487], abs=1e-6)
    record = reassign_classes(head, state())
    assert head.assignment.tolist() == [2, 0, 1]
    assert record["objective"] == pytest.approx(1.452820 / 3, abs=1e-6)
    assert record["changed"] == 3
    assert reassign_classes(head, state())["changed"] == 0


@pytest.mark.parametrize("seed", range(5))
def test_the_assignment_is_the_best_of_all_permutations(seed: int) -> None:
    table = np.random.default_rng(seed).uniform(-1, 1, (6, 6))
    best = max(table[np.arange(6), list(order)].sum() for order in itertools.permutations(range(6)))
    found = best_assignment(table, np.arange(6))
    assert table[np.arange(6), found].sum() == pytest.approx(best)
    assert sorted(found.tolist()) == list(range(6))


def test_a_gain_that_is_no_gain_moves_no_class() -> None:
    table = np.array([[0.5, 0.5 + 1e-7], [0.5, 0.5]])
    assert best_assignment(table, np.arange(2)).tolist() == [0, 1]
    table[0, 1] += 1e-3
    assert best_assignment(table, np.arange(2)).tolist() == [1, 0]


def test_a_class_without_an_image_keeps_its_prototype_unless_another_wants_it() -> None:
    head = PrototypeHead(3, 2)
    head.prototypes.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]))
    head.class_means[:2] = torch.tensor([[0.9, 0.1], [0.2, 0.9]])
    head.seen[:2] = 5
    reassign_classes(head, state())
    assert head.assignment.tolist() == [0, 1, 2]
    head.class_means[:2] = torch.tensor([[-0.9, 0.1], [0.2, 0.9]])
    reassign_classes(head, state())
    assert head.assignment.tolist() == [2, 1, 0]
    assert head.class_means.isfinite().all()


def test_spare_prototypes_may_be_taken() -> None:
    head = PrototypeHead(2, 2)
    head.prototypes = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    head.class_means.copy_(torch.tensor([[-1.0, 0.0], [0.0, -1.0]]))
    head.seen.fill_(1)
    reassign_classes(head, state())
    assert head.assignment.tolist() == [2, 3]


def test_processes_that_do_not_solve_are_told() -> None:
    main, other = triangle(), triangle()
    told: list[torch.Tensor] = []

    def speak(value: torch.Tensor, operation: str) -> torch.Tensor:
        told.append(value.clone())
        return value

    reassign_classes(main, state(combine=speak))
    answers = iter(told)
    record = reassign_classes(other, state(is_main=False, combine=lambda value, operation: value + next(answers)))
    assert torch.equal(main.assignment, other.assignment)
    assert record["changed"] == 3


@pytest.mark.parametrize(
    ("updates", "due"),
    [
        (0.1, [100]),
        (0.5, [20, 40, 60, 80, 100]),
        (1, range(10, 101, 10)),
        (2.5, range(4, 101, 4)),
        (2, range(5, 101, 5)),
        (3, range(3, 101, 3)),
        (99, range(1, 101)),
    ],
)
def test_assignments_come_evenly_and_never_before_the_first_step(updates: float, due: Any) -> None:
    found = [step for step in range(101) if is_reassignment_due(state(step=step, epoch=step // 10), updates)]
    assert found == list(due)

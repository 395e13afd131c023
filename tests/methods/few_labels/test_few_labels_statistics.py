"""Running statistics of averages: those of an average that runs are its own, any other takes the student's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

Make = Callable[..., Any]
STEPS = {"steps": 4, "eval_every_steps": 4}


@pytest.fixture(autouse=True)
def as_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave running statistics as training left them."""
    monkeypatch.setattr("labelkit.methods.few_labels.recipe.recalibrate_bn", lambda *_, **__: None)


# an average that the objective never runs
IDLE = [
    ("mixmatch", {}),
    ("freematch", {}),
    ("supervised", {}),
    ("mean-teacher", {"consistency_weight": 0.0}),
    ("lmcs", {"first_blocks": 1}),
    ("snowball", {"trainer": "mixmatch", "labeled_batch_size": 8, "cap": 1.0}),
]


def statistics(network: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in network.named_buffers() if name.endswith(("running_mean", "running_var"))}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), IDLE)
def test_an_average_that_never_runs_is_judged_with_the_students_statistics(
    make: Make, name: str, options: dict[str, Any]
) -> None:
    method = make(name, **{**STEPS, **options})
    method.trainer.fit()
    judged = method.method.evaluated_networks()
    student, teacher = statistics(judged["student"]), statistics(judged["teacher"])
    assert student
    for key, value in student.items():
        assert torch.equal(teacher[key], value), key


def test_the_mean_teacher_keeps_the_statistics_that_it_collects(make: Make) -> None:
    setup = make("mean-teacher", **STEPS)
    before = {key: value.clone() for key, value in statistics(setup.method.chain.teacher).items()}
    setup.trainer.fit()
    student, teacher = statistics(setup.method.network), statistics(setup.method.chain.teacher)
    assert all(not torch.equal(value, before[key]) for key, value in teacher.items())
    assert any(not torch.equal(value, student[key]) for key, value in teacher.items())


@pytest.mark.parametrize("trainer", ["mean-teacher", "mixmatch"])
@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_an_objective_tells_which_averages_it_runs(make: Make, trainer: str, weight: float) -> None:
    weights = dict.fromkeys(("consistency_weight", "unlabeled_weight"), weight)
    setup = make("snowball", trainer=trainer, labeled_batch_size=8, unlabeled_ramp=0.0, **weights)
    method, ran = setup.method, set()
    method.chain.create_master_network()
    for name in ("teacher", "master"):
        getattr(method.chain, name).backbone.register_forward_hook(lambda *_, name=name: ran.add(name))
    method.train()
    method.training_step(next(setup.batches()))
    says = {"teacher": method.objective.teacher_in_train_mode, "master": method.objective.runs_master}
    assert ran == {name for name, runs in says.items() if runs}

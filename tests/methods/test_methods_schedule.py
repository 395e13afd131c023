"""What a method says that a run will do, without images, against what a run does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from labelkit.methods.few_labels.pseudo_label_selection import Discovery
from labelkit.methods.registry import METHODS
from labelkit.training.method import TrainState
from labelkit.training.optim import group_lr
from labelkit.training.timing import Plan, RunSize
from tests.short_runs import EACH_FAMILY
from tests.tiers import quick_every

FIELDS = ("epoch", "step", "steps_per_epoch", "phase", "step_in_phase", "phase_steps")
_OPTIONS: dict[str, dict[str, Any]] = {
    "cotap": {"epochs": 2},
    "lmcs": {"steps": 24, "eval_every_steps": 2, "growth_factor": 1.5, "growth_limit": 2.0, "churn": 0.0},
    "mean-teacher": {"lr_schedule": "ramps", "lr_ramp_up": 0.5, "lr_ramp_down": 0.25, "optimizer": "adam"},
    "san": {"warm_epochs": 1},
    "snowball": {"epochs": 3, "churn": 0.0},
    "tac-ccl": {"warm_epochs": 1},
}  # fmt: skip


def finds_all(setup: Any) -> None:
    """Let every discovery of lmcs find what it looks for, which a network that has hardly learned anything cannot."""
    growth, rows = setup.method.growth, setup.bank.rows

    def discover(state: TrainState) -> int:
        count = growth.num_to_discover(rows)
        if count:
            places = rows[growth.labels()[rows] < 0][:count]
            ranks = np.arange(1, count + 1)
            growth.add(Discovery(places, np.zeros(count, np.int64), ranks / 4, ranks, ranks, (), False, ()), "student")
        return count

    setup.method._discover = discover


def moment(state: Any) -> dict[str, int]:
    return {name: getattr(state, name) for name in FIELDS}


@pytest.mark.slow
@pytest.mark.parametrize("name", EACH_FAMILY)
def test_a_run_is_as_long_and_as_fast_as_planned(make: Callable[..., Any], name: str) -> None:
    setup = make(name, **_OPTIONS.get(name, {}))
    if name == "lmcs":
        finds_all(setup)
    seen: list[tuple[dict[str, int], list[tuple[float, float, object]]]] = []
    begin = setup.method.on_step_start

    def watch(state: TrainState) -> None:
        groups = setup.trainer.optimizer.param_groups
        seen.append((moment(state), [(group["lr"], group["weight_decay"], group.get("betas")) for group in groups]))
        begin(state)

    setup.method.on_step_start = watch
    setup.trainer.fit()

    labels = setup.prepared.labels
    size, kind = RunSize(len(labels), int((labels >= 0).sum())), METHODS[name].load()
    plan, rates = Plan(kind.paces(setup.config, size), setup.config), kind.group_rates(setup.config)
    assert [where for where, _ in seen] == [moment(plan.at(step)) for step in range(plan.steps)]
    for step, (where, groups) in enumerate(seen):
        rate, decay, betas = plan.optimizer(plan.at(step))
        assert rate is not None
        expected = {group_lr(rate, where["epoch"], group) for group in rates.values()}
        assert {lr for lr, _, _ in groups} == expected
        # the log has the rate of the first group
        assert groups[0][0] == group_lr(rate, where["epoch"], next(iter(rates.values())))
        if decay is not None:
            assert decay in {found for _, found, _ in groups}
        if betas is not None:
            assert {found for _, _, found in groups} == {betas}


def planned(setup: Any) -> list[dict[str, float]]:
    """Scheduled values of every step."""
    labels = setup.prepared.labels
    size, kind = RunSize(len(labels), int((labels >= 0).sum())), type(setup.method)
    plan, scheduled = Plan(kind.paces(setup.config, size), setup.config), kind.scheduled(setup.config, size)
    return [{name: value(plan.at(step)) for name, value in scheduled.items()} for step in range(plan.steps)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["simgcd", "flipclass"])
def test_the_temperature_of_the_teacher_is_the_planned_one(make: Callable[..., Any], name: str) -> None:
    setup = make(name, epochs=3, teacher_warmup_epochs=3)
    used: list[float] = []
    loss = setup.method.loss.forward
    setup.method.loss.forward = lambda *args, **options: (
        used.append(options["teacher_temperature"]) or loss(*args, **options)
    )
    setup.trainer.fit()
    assert used == [values["teacher_temperature"] for values in planned(setup)]
    assert len(set(used)) == 3


@pytest.mark.parametrize(
    "name", quick_every(4, ["mean-teacher", "mixmatch", "freematch", "supervised", "snowball", "lmcs"])
)
def test_averages_move_by_the_planned_decays(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    # so short a run would have no average
    for module in ("recipe", "snowball"):
        monkeypatch.setattr(f"labelkit.methods.few_labels.{module}.horizon_decay", lambda steps, largest: largest)
    setup = make(name, **_OPTIONS.get(name, {}))
    used: list[tuple[float, ...]] = []
    update = setup.method.chain.update

    def watch(network: Any, decay: float, *master: float, **options: Any) -> None:
        has_master = setup.method.chain.master is not None
        used.append((decay, *(master if has_master else ())))
        update(network, decay, *master, **options)

    setup.method.chain.update = watch
    setup.trainer.fit()
    names = ("ema_decay", "master_decay")
    expected = [tuple(row[key] for key in names if key in row and row[key] == row[key]) for row in planned(setup)]
    assert used == expected
    assert len(set(used)) > 1


def test_sela_and_dl2pa_renew_when_planned(make: Callable[..., Any]) -> None:
    setup = make("sela", num_optimizations=3, epochs=3)
    setup.trainer.fit()
    # one more after the last step
    assert int(setup.method.labels.next_time) == planned(setup)[-1]["label_times"] == 3

    setup = make("dl2pa", epochs=3, updates_per_epoch=2)
    made: list[int] = []
    begin, logged = setup.method.on_step_start, []

    def watch(state: TrainState) -> None:
        state.log = lambda kind, values: logged.append(kind)
        begin(state)
        made.append(logged.count("assignment"))

    setup.method.on_step_start = watch
    setup.trainer.fit()
    assert made == [row["assignments"] for row in planned(setup)]
    assert made[-1] > 1


@pytest.mark.slow
def test_the_student_of_lmcs_learns_from_as_many_labels_as_planned(make: Callable[..., Any]) -> None:
    setup = make("lmcs", **_OPTIONS["lmcs"])
    finds_all(setup)
    used: list[float] = []
    begin = setup.method.on_step_start

    def watch(state: TrainState) -> None:
        used.append(float((setup.method.phase(state.phase, setup.bank.rows).labels >= 0).sum()))
        begin(state)

    setup.method.on_step_start = watch
    setup.trainer.fit()
    assert used == [row["labels"] for row in planned(setup)]
    assert len(set(used)) > 1

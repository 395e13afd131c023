"""What changes during a run: the values of the specifications, and that a run uses them."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from labelkit.methods.few_labels.recipe import lr_and_beta_schedules, teacher_decay_schedule
from labelkit.methods.registry import METHODS
from labelkit.options.presets import resolve_config
from labelkit.training.method import TrainState
from tests.tiers import quick_every


def test_mean_teacher_ramps_up_and_down() -> None:
    config = resolve_config(METHODS["mean-teacher"].config, preset="cifar10").config
    rate, moments = lr_and_beta_schedules(config, config.steps, config.lr)
    decay = teacher_decay_schedule(config, config.steps)
    # ramps of 40,005 of 150,000 steps and of the last 25,005; the average is one of all steps at first
    expected = [
        (0, math.exp(-5), 0.5, 0.9),
        (9, math.exp(-5 * (1 - 9 / 40_005) ** 2), 1 - 1 / 11, 0.9),
        (20_000, math.exp(-5 * (1 - 20_000 / 40_005) ** 2), 0.99, 0.9),
        (100_000, 1, 0.999, 0.9),
        (149_999, math.exp(-12.5), 0.999, 0.5 + 0.4 * math.exp(-12.5)),
    ]
    for step, share, average, beta in expected:
        assert rate(step) == pytest.approx(3e-3 * share, rel=2e-3)
        assert decay(step + 1) == pytest.approx(average)
        assert moments(step)[0] == pytest.approx(beta, abs=1e-6)


def test_cotap_has_the_values_of_its_specification(make: Callable[..., Any]) -> None:
    options = {"steps": 100_000, "lr": 3e-5, "lr_final": 1e-6, "lr_warmup_steps": 0}
    options |= {"weight_decay": 0.024, "weight_decay_final": 0.24}
    method = make("cotap", epochs=25_000, ema_start=0.9997, ema_end=1.0).method
    method.config = method.config.model_copy(update=options)
    (phase,) = method.phases(np.arange(64))
    expected = [
        (25_000, 2.575305e-5, 0.055632, 0.999744),
        (50_000, 1.55e-5, 0.132, 0.99985),
        (75_000, 5.246952e-6, 0.208368, 0.999956),
    ]
    for step, rate, decay, ema in expected:
        assert phase.lr(step) == pytest.approx(rate, rel=1e-6)
        assert phase.weight_decay(step) == pytest.approx(decay, abs=1e-6)
        assert method._ema_decay(step) == pytest.approx(ema, abs=1e-6)


def test_san_warms_its_backbone(make: Callable[..., Any]) -> None:
    setup = make("san", warm_epochs=1, epochs=2, lr=0.01, lr_schedule="constant", new_lr_scale=10, san_lr_scale=3)
    used: dict[int, list[float]] = {}
    begin = setup.method.on_step_start

    def watch(state: TrainState) -> None:
        used.setdefault(state.epoch, [group["lr"] for group in setup.trainer.optimizer.param_groups])
        begin(state)

    setup.method.on_step_start = watch
    setup.trainer.fit()
    assert used == {0: pytest.approx([0, 0.1, 0.03]), 1: pytest.approx([0.01, 0.1, 0.03])}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["simgcd", "flipclass"])
def test_the_temperature_of_the_teacher_warms_up(make: Callable[..., Any], name: str) -> None:
    setup = make(name, epochs=3, teacher_warmup_epochs=3)
    used: list[float] = []
    loss = setup.method.loss.forward
    setup.method.loss.forward = lambda *args, **options: (
        used.append(options["teacher_temperature"]) or loss(*args, **options)
    )
    setup.trainer.fit()
    first, last = setup.config.teacher_temperature_start, setup.config.teacher_temperature_final
    assert list(dict.fromkeys(used)) == pytest.approx([first, (first + last) / 2, last])


@pytest.mark.parametrize("name", quick_every(2, ["mean-teacher", "mixmatch", "freematch", "supervised"]))
def test_averages_move_by_their_decay(make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    # so short a run would have no average
    monkeypatch.setattr("labelkit.methods.few_labels.recipe.max_ema_decay", lambda steps, largest: largest)
    setup = make(name)
    used: list[float] = []
    update = setup.method.chain.update

    def watch(network: Any, decay: float, *master: float, **options: Any) -> None:
        used.append(decay)
        update(network, decay, *master, **options)

    setup.method.chain.update = watch
    setup.trainer.fit()
    assert used == [1 - 1 / (update + 1) for update in range(1, len(used) + 1)]
    assert len(used) == setup.config.steps


def test_sela_and_dl2pa_renew_when_planned(make: Callable[..., Any]) -> None:
    setup = make("sela", num_optimizations=3, epochs=3)
    setup.trainer.fit()
    assert int(setup.method.labels.next_time) == 3

    setup = make("dl2pa", epochs=3, updates_per_epoch=2)
    made: list[int] = []
    begin, logged = setup.method.on_step_start, []

    def watch(state: TrainState) -> None:
        state.log = lambda kind, values: logged.append(kind)
        begin(state)
        made.append(logged.count("assignment"))

    setup.method.on_step_start = watch
    setup.trainer.fit()
    period = setup.trainer.steps_per_epoch() // 2
    assert made == [step // period for step in range(len(made))]
    assert made[-1] > 1

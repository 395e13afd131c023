import math
from typing import Any

import pytest
from labelkit.options.training import TrainConfig
from labelkit.training.schedules import (
    adam_beta_schedule,
    ema_decay_schedule,
    max_ema_decay,
    phase_lr_schedule,
    scheduled_lr,
    sigmoid_ramp,
)


def rates(times: list[float], **options: Any) -> list[float]:
    """Return the learning rates of a run with these options at times in epochs."""
    config = TrainConfig.model_construct(**options)
    return [scheduled_lr(config, time) for time in times]


@pytest.mark.parametrize(
    ("epoch", "expected"), [(0, 0.1), (1, 0.099994), (50, 0.085370), (100, 0.050050), (199, 0.000106)]
)
def test_cosine_matches_the_worked_numbers(epoch: int, expected: float) -> None:
    assert rates([epoch], lr=0.1, epochs=200) == pytest.approx([expected], abs=5e-7)


def test_cosine_ends_at_the_final_ratio() -> None:
    assert rates([7], lr=0.1, epochs=7, lr_final_ratio=0.02) == pytest.approx([0.002])


def test_warm_up_is_linear_and_starts_above_zero() -> None:
    found = rates([0, 1, 2, 3], lr=0.1, epochs=10, lr_warmup_epochs=3)
    assert found == pytest.approx([0.025, 0.05, 0.075, 0.1])


def test_cosine_after_a_warm_up_is_half_way_down_in_the_middle_of_the_rest() -> None:
    assert rates([7], lr=0.2, epochs=12, lr_final_ratio=0.0, lr_warmup_epochs=2) == pytest.approx([0.1])


def test_steps_drop_at_the_start_of_their_epochs_and_stay() -> None:
    times = [0, 149.99, 150, 299, 300, 349, 350, 399]
    found = rates(times, lr=0.08, epochs=400, lr_schedule="step", lr_drop_epochs=(150, 300, 350), lr_update="step")
    assert found == pytest.approx([0.08, 0.08, 0.008, 0.008, 8e-4, 8e-4, 8e-5, 8e-5])


def test_steps_begin_after_the_warm_up_and_have_their_own_factor() -> None:
    drops = {"lr_schedule": "step", "lr_drop_epochs": (2, 3), "lr_drop_factor": 0.5}
    found = rates([0, 1, 2, 3], lr=1.0, epochs=10, lr_warmup_epochs=1, **drops)
    assert found == pytest.approx([0.5, 1.0, 0.5, 0.25])


def test_a_rate_that_is_updated_per_epoch_stays_within_one() -> None:
    per_epoch, per_step = (rates([3, 3.5], lr=1.0, epochs=10, lr_update=update) for update in ("epoch", "step"))
    assert per_epoch[0] == per_epoch[1] == per_step[0] > per_step[1]


def test_the_sigmoid_ramp_has_the_published_values() -> None:
    ramp = [sigmoid_ramp(step, 10) for step in (0, 2, 5, 8, 10, 12)]
    assert ramp == pytest.approx([0.006738, 0.040762, 0.286505, 0.818731, 1, 1], abs=1e-6)
    assert sigmoid_ramp(0, 0) == 1


def test_a_cosine_may_end_after_the_phase() -> None:
    rate = phase_lr_schedule(1.0, 180, horizon=210 / 180)
    assert [rate(epoch) for epoch in (0, 90, 180)] == pytest.approx([1, 0.611260, 0.049516], abs=1e-6)
    assert phase_lr_schedule(2.0, 100)(50) == pytest.approx(1.0)
    assert phase_lr_schedule(2.0, 100)(100) == pytest.approx(0.0)


def test_ramps_grow_at_the_start_and_fall_at_the_end() -> None:
    rate = phase_lr_schedule(0.003, 1000, "ramps", ramp_up=0.2, ramp_down=0.1)
    assert rate(0) == pytest.approx(0.003 * math.exp(-5))
    assert [rate(step) for step in (200, 500, 900)] == pytest.approx([0.003] * 3)
    assert rate(950) == pytest.approx(0.003 * math.exp(-12.5 / 4))
    assert rate(1000) == pytest.approx(0.003 * math.exp(-12.5))


def test_moments_of_adam_follow_the_ramps() -> None:
    """0.5 and 0.99 of the released code of Mean Teacher, 40,000 and 25,000 of 150,000 steps."""
    moments = adam_beta_schedule(150_000, 40_000 / 150_000, 25_000 / 150_000, beta1_end=0.5, beta2_start=0.99)
    assert [moments(step) for step in (0, 39_999)] == [(0.9, 0.99)] * 2
    assert [moments(step) for step in (40_001, 125_000)] == [(0.9, 0.999)] * 2
    assert moments(137_500) == pytest.approx((0.5 + 0.4 * math.exp(-12.5 / 4), 0.999))
    assert moments(150_000) == pytest.approx((0.5 + 0.4 * math.exp(-12.5), 0.999))
    assert adam_beta_schedule(10, 0.0, 0.0, 0.9, 0.999)(3) == (0.9, 0.999)


def test_a_teacher_is_at_first_the_mean_of_all_students() -> None:
    decay = ema_decay_schedule(0.99, 0.999, ramp_steps=1000)
    assert [decay(step) for step in (1, 2, 9, 99, 150)] == pytest.approx([0.5, 0.666667, 0.9, 0.99, 0.99], abs=1e-6)
    assert ema_decay_schedule(0.999, 0.999, 0)(999) == pytest.approx(0.999)


def test_the_decay_steps_up() -> None:
    assert [ema_decay_schedule(0.9, 0.99, 500)(step) for step in (499, 500)] == [0.9, 0.99]


def test_decays_fit_short_phases() -> None:
    assert [max_ema_decay(steps) for steps in (5, 10, 400, 10_000, 150_000)] == pytest.approx(
        [0, 0, 0.975, 0.999, 0.999]
    )

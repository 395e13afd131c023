from __future__ import annotations

import math
from typing import Any

import pytest
from labelkit.engine.schedules import LearningRate, TeacherTemperature


@pytest.mark.parametrize(
    ("epoch", "expected"), [(0, 0.07), (1, 0.068966), (15, 0.054483), (29, 0.04), (30, 0.04), (100, 0.04)]
)
def test_teacher_temperature_matches_the_worked_numbers(epoch: int, expected: float) -> None:
    schedule = TeacherTemperature(0.07, 0.04, warmup_epochs=30, epochs=200)
    assert schedule[epoch] == pytest.approx(expected, abs=5e-7)


@pytest.mark.parametrize("warmup_epochs", [0, 1])
def test_teacher_temperature_without_warm_up_is_the_final_one(warmup_epochs: int) -> None:
    assert TeacherTemperature(0.07, 0.04, warmup_epochs, epochs=10)[0] == 0.04


def test_teacher_temperature_reaches_its_end_in_a_run_shorter_than_the_warm_up() -> None:
    schedule = TeacherTemperature(0.07, 0.04, warmup_epochs=30, epochs=4)
    assert [schedule[epoch] for epoch in range(4)] == pytest.approx([0.07, 0.06, 0.05, 0.04])


@pytest.mark.parametrize(
    ("epoch", "expected"), [(0, 0.1), (1, 0.099994), (50, 0.085370), (100, 0.050050), (199, 0.000106)]
)
def test_cosine_matches_the_worked_numbers(epoch: int, expected: float) -> None:
    assert LearningRate(0.1, 200).at(epoch) == pytest.approx(expected, abs=5e-7)


def test_cosine_ends_at_the_final_ratio() -> None:
    assert LearningRate(0.1, 7, final_ratio=0.02).at(7) == pytest.approx(0.002)


def test_constant_stays() -> None:
    schedule = LearningRate(0.3, 5, "constant")
    assert [schedule.at(epoch) for epoch in (0, 1.5, 4.99)] == [0.3] * 3


def test_warm_up_is_linear_and_starts_above_zero() -> None:
    schedule = LearningRate(0.1, 10, warmup_epochs=3)
    assert [schedule.at(epoch) for epoch in range(4)] == pytest.approx([0.025, 0.05, 0.075, 0.1])


def test_warm_up_meets_the_cosine_without_a_jump() -> None:
    schedule = LearningRate(0.1, 10, warmup_epochs=4)
    assert schedule.at(4 - 1e-9) == pytest.approx(schedule.at(4)) == pytest.approx(0.1)


def test_cosine_after_a_warm_up_is_half_way_down_in_the_middle_of_the_rest() -> None:
    schedule = LearningRate(0.2, 12, final_ratio=0.0, warmup_epochs=2)
    assert schedule.at(7) == pytest.approx(0.1)


def test_fractions_of_an_epoch_lie_on_the_same_curve() -> None:
    schedule = LearningRate(1.0, 4, final_ratio=0.0)
    assert schedule.at(1.5) == pytest.approx(0.5 * (1 + math.cos(math.pi * 1.5 / 4)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"peak": 0.0, "epochs": 5}, "peak"),
        ({"peak": -1.0, "epochs": 5}, "peak"),
        ({"peak": 0.1, "epochs": 0}, "epochs"),
        ({"peak": 0.1, "epochs": 5, "shape": "linear"}, "'linear'"),
        ({"peak": 0.1, "epochs": 5, "warmup_epochs": 5}, r"warmup_epochs must be in \[0, 5\), got 5"),
    ],
)
def test_impossible_learning_rates_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LearningRate(**arguments)

"""Signs of useless training: measured against closed forms, and provoked in real short trainings."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from labelkit.errors import DatasetError, DivergenceError
from labelkit.methods.metric.pseudo_labels import PseudoLabels
from labelkit.training.checkpoint import load_checkpoint
from labelkit.training.guards import TrainingGuard, feature_spread
from labelkit.training.method import TrainState
from torch import nn

Make = Callable[..., Any]
SOUND, ALIKE = 0.5, 1e-6


def _guard(mode: Any = "stop") -> tuple[TrainingGuard, list[str]]:
    said: list[str] = []
    return TrainingGuard(mode, show_message=said.append), said


@pytest.mark.parametrize(
    ("rows", "spread"),
    [
        ([[3.0, 4.0], [3.0, 4.0]], 0.0),
        ([[3.0, 4.0], [-3.0, -4.0]], 1.0),
        # mean 1 and deviation 1 in one dimension of two, so 1 of a squared length of 2 (mean of squares (0, 4), 0)
        ([[0.0, 0.0], [2.0, 0.0]], math.sqrt(0.5)),
        ([[0.0, 0.0], [0.0, 0.0]], 0.0),
        ([[math.nan, 0.0], [1.0, 0.0]], 0.0),
    ],
    ids=["equal", "opposite", "half", "nothing", "not a number"],
)
def test_spread_is_the_share_of_the_length_that_differs(rows: list[list[float]], spread: float) -> None:
    assert feature_spread(torch.tensor(rows)) == pytest.approx(spread)


def test_a_loss_that_stays_large_ends_the_run_and_one_odd_step_does_not() -> None:
    guard, said = _guard()
    for step, loss in enumerate((2.0, 900.0, 3.0, 900.0, 900.0, 3.0), start=1):
        guard.check_loss_explosion(loss, step)
    assert said == [
        "warning: step 5: the loss rose from 2 at the first step to 900, so training is diverging. Lower --lr, "
        "set --clip-grad-norm, or train with a warm-up."
    ]
    guard.check_loss_explosion(201.0, 7)
    guard.check_loss_explosion(-201.0, 8)
    with pytest.raises(
        DivergenceError, match=r"step 9: the loss rose from 2 at the first step to 201, so training is diverging"
    ) as caught:
        guard.check_loss_explosion(201.0, 9)
    assert caught.value.exit_code == 4


def test_a_collapse_is_warned_of_the_second_time_and_ends_the_run_when_it_lasts() -> None:
    guard, said = _guard()
    guard.check_feature_spread(SOUND, 100)
    guard.check_feature_spread(ALIKE, 200)
    assert said == []
    for step in (250, 300, 399):
        guard.check_feature_spread(ALIKE, step)
    assert len(said) == 1
    with pytest.raises(DivergenceError, match=r"nearly equal.*collapsed; the earlier checkpoint of step 100 is kept"):
        guard.check_feature_spread(ALIKE, 400)


def test_a_single_cluster_ends_the_run_the_fifth_time_and_a_second_one_starts_the_count_again() -> None:
    guard, said = _guard()
    for step in (100, 200, 300, 400):
        guard.check_cluster_use(1, step)
    assert len(said) == 1
    guard.check_cluster_use(2, 500)
    for step in (600, 700, 800, 900):
        guard.check_cluster_use(1, step)
    with pytest.raises(DivergenceError, match="only one cluster is in use: training has collapsed"):
        guard.check_cluster_use(1, 1000)


def test_the_count_goes_on_after_a_resume() -> None:
    before, _ = _guard()
    before.check_loss_explosion(2.0, 1)
    before.check_feature_spread(SOUND, 50)
    before.check_feature_spread(ALIKE, 100)
    before.check_feature_spread(ALIKE, 200)
    after, _ = _guard()
    # an earlier version counted more signs
    after.load_extra_state(before.extra_state() | {"weights": "a", "changed_at": 0, "shrinking": False})
    assert after.good_step == 50
    with pytest.raises(DivergenceError, match="step 50 is kept"):
        after.check_feature_spread(ALIKE, 300)


@pytest.mark.parametrize(("mode", "lines"), [("warn", 2), ("none", 0)])
def test_the_guard_only_warns_or_is_silent_if_asked_to(mode: str, lines: int) -> None:
    guard, said = _guard(mode)
    for step in range(1, 8):
        guard.check_loss_explosion(1.0 if step == 1 else 1e9, step)
        guard.check_feature_spread(ALIKE, 1000 * step)
    assert len(said) == lines  # loss, features


def test_a_learning_rate_far_too_high_ends_a_run_and_leaves_it_readable(tmp_path: Path, build_trainer: Make) -> None:
    trainer = build_trainer(tmp_path / "run", epochs=20, lr=1e4, log_every_steps=1, lr_schedule="constant")
    with pytest.raises(DivergenceError, match=r"diverging|not finite") as caught:
        trainer.fit()
    assert caught.value.exit_code == 4
    assert "--lr" in caught.value.remedy
    trainer.run.close()
    checkpoint = load_checkpoint(tmp_path / "run")
    assert checkpoint is None or all(v.isfinite().all() for v in checkpoint.tensors("model.safetensors").values())


def test_weights_that_break_in_the_last_step_of_an_epoch_are_not_saved(tmp_path: Path, build_trainer: Make) -> None:
    trainer = build_trainer(tmp_path / "run", epochs=4)

    def poison(step: int) -> None:
        if step == 7:  # the second epoch's last one; its loss is still finite
            trainer.method.network.second.register_parameter("late", nn.Parameter(torch.tensor([math.nan])))

    trainer.method.at_step = poison
    with pytest.raises(DivergenceError, match=r"epoch 1, step 8: weights are not finite: network\.second\.late"):
        trainer.fit()
    trainer.run.close()
    checkpoint = load_checkpoint(tmp_path / "run")
    assert checkpoint.state["step"] == 4


def test_clusters_that_stay_empty_tell_of_the_images_first_and_of_the_training_later() -> None:
    labels = PseudoLabels(8, 3, 2, refresh_epochs=1, seed=0)
    apart, alike = torch.tensor([[0.0, 0.0], [5.0, 5.0], [9.0, 0.0], [0.0, 9.0]] * 2), torch.ones(8, 2)
    with pytest.raises(DatasetError, match="clusters are empty"):
        labels.recluster(alike, alike, TrainState())
    labels.recluster(apart, apart, TrainState())
    with pytest.raises(DivergenceError, match=r"epoch 1: 2 of 3 clusters are still empty: .* collapsed"):
        labels.recluster(alike, alike, TrainState(epoch=1))

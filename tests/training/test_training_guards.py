"""Signs of useless training: measured against closed forms, and provoked in real short trainings."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from labelkit.errors import DatasetError, DivergenceError
from labelkit.methods.metric.pseudo_labels import PseudoLabels
from labelkit.training.checkpoint import load_checkpoint
from labelkit.training.guards import (
    Guard,
    NetworkMeasurements,
    effective_rank,
    feature_spread,
    mean_cosine,
    zero_lr_share,
)
from torch import nn

Make = Callable[..., Any]
SOUND = NetworkMeasurements(feature_spread=0.5, effective_rank=4.0)
ALIKE = NetworkMeasurements(feature_spread=1e-6, effective_rank=4.0)


def _guard(mode: Any = "stop") -> tuple[Guard, list[str]]:
    said: list[str] = []
    return Guard(mode, loss_ratio=100, min_spread=1e-4, say=said.append), said


# --- what is measured


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


@pytest.mark.parametrize("d", [2, 3, 7])
def test_the_effective_rank_of_the_corners_of_a_simplex_is_its_dimension(d: int) -> None:
    assert effective_rank(torch.eye(d + 1) + 5) == pytest.approx(d)


@pytest.mark.parametrize(
    ("vectors", "cosine"),
    [
        ([[1.0, 2.0], [2.0, 4.0], [5.0, 10.0]], 1.0),
        ([[1.0, 0.0], [0.0, 3.0]], 0.0),
        ([[1.0, 0.0], [-2.0, 0.0]], -1.0),
        ([[0.0, 0.0], [0.0, 0.0]], 1.0),
        ([[math.nan, 0.0], [1.0, 0.0]], 1.0),
    ],
    ids=["one direction", "right angle", "opposite", "no direction", "not a number"],
)
def test_the_mean_cosine_is_of_different_vectors(vectors: list[list[float]], cosine: float) -> None:
    assert mean_cosine(torch.tensor(vectors)) == pytest.approx(cosine)


@pytest.mark.parametrize(
    ("lrs", "share"),
    [([0.1, 0.1, 0.0, 0.0], 0.5), ([0.1, 0.0, 0.05, 0.0], 0.25), ([1e-12, 0.0], 1.0), ([0.1], 0.0), ([], 0.0)],
)
def test_the_dead_share_is_what_comes_after_the_last_learning_rate(lrs: list[float], share: float) -> None:
    assert zero_lr_share(lrs, peak=0.1) == share


# --- when it is believed


def test_a_loss_that_stays_large_ends_the_run_and_one_odd_step_does_not() -> None:
    guard, said = _guard()
    for step, loss in enumerate((2.0, 900.0, 3.0, 900.0, 900.0, 3.0), start=1):
        guard.at_loss(loss, step)
    assert said == [
        "warning: step 5: the loss rose from 2 at the first step to 900, so training diverges. Lower --lr, "
        "set --clip-grad-norm, or train with a warm-up."
    ]
    guard.at_loss(201.0, 7)
    guard.at_loss(-201.0, 8)
    with pytest.raises(
        DivergenceError, match=r"step 9: the loss rose from 2 at the first step to 201, so training diverges"
    ) as caught:
        guard.at_loss(201.0, 9)
    assert caught.value.exit_code == 4


def test_a_collapse_is_warned_of_the_second_time_and_ends_the_run_when_it_lasts() -> None:
    guard, said = _guard()
    guard.at_epoch_end(SOUND, [1.0], 100)
    guard.at_epoch_end(ALIKE, [2.0], 200)
    assert said == []
    for step, norm in ((250, 3.0), (300, 4.0), (399, 5.0)):
        guard.at_epoch_end(ALIKE, [norm], step)
    assert len(said) == 1
    with pytest.raises(DivergenceError, match=r"nearly equal.*collapsed; the checkpoint of step 100 is from before"):
        guard.at_epoch_end(ALIKE, [6.0], 400)


def _shown(guard: Guard, *looks: tuple[float, float]) -> None:
    """Let a guard look at (spread, share of the directions before training) after each epoch of 18 steps."""
    guard.first_rank = 40.0
    for epoch, (spread, share) in enumerate(looks, start=1):
        guard.at_epoch_end(
            NetworkMeasurements(feature_spread=spread, effective_rank=share * 40.0), [float(epoch)], 18 * epoch
        )


# of TAC-CCL on Omniglot, seeds 0 to 2
COLLAPSING = [[(0.233, 0.344), (0.218, 0.265)], [(0.156, 0.345), (0.183, 0.243)], [(0.183, 0.350), (0.184, 0.271)]]


@pytest.mark.parametrize("looks", COLLAPSING)
def test_weights_that_make_features_alike_end_the_run_in_the_second_epoch(looks: list[tuple[float, float]]) -> None:
    guard, said = _guard()
    _shown(guard, looks[0])
    assert said == []
    with pytest.raises(DivergenceError, match="features become similar") as caught:
        _shown(_guard()[0], *looks)
    assert caught.value.where == "step 36"


def test_one_look_at_few_directions_is_warned_of_and_a_second_in_a_row_ends_the_run() -> None:
    guard, said = _guard()
    far, small, wide = (0.3, 0.2), (0.2, 0.3), (0.2, 0.41)
    _shown(guard, wide, small)
    assert said == [
        "warning: step 36: features become similar: their relative spread is 20.0 %, and their effective rank fell "
        "from 40.0 to 12.0: training collapses. Lower --lr or the weights of added losses, or raise what keeps images "
        "apart (--entropy-weight)."
    ]
    # far apart, or in more directions: the count starts anew
    _shown(guard, far, small, wide, small)
    with pytest.raises(DivergenceError, match="features become similar"):
        _shown(guard, small)


def test_a_method_that_may_collapse_is_looked_at_after_every_epoch() -> None:
    guard, _ = _guard()
    assert not guard.measurement_is_due(1, 80)
    guard.first_rank = 40.0
    assert guard.measurement_is_due(1, 80)


@pytest.mark.parametrize(
    ("look", "words"),
    [
        (NetworkMeasurements(0.5, 4.0, prototype_cosine=0.9999), "all class vectors are nearly equal"),
        (NetworkMeasurements(0.5, 4.0, largest_cluster=0.995), "one cluster has 99.5 % of the images"),
        (NetworkMeasurements(math.nan, 1.0), "the features of all images are nearly equal"),
    ],
)
def test_every_collapse_that_lasts_ends_the_run(look: NetworkMeasurements, words: str) -> None:
    guard, _ = _guard()
    guard.at_epoch_end(look, [1.0], 0)
    guard.at_epoch_end(look, [2.0], 150)
    with pytest.raises(DivergenceError, match=words):
        guard.at_epoch_end(look, [3.0], 300)


@pytest.mark.parametrize(
    ("look", "words"),
    [
        (NetworkMeasurements(0.5, 1.01), "in only one direction"),
        (NetworkMeasurements(0.5, 4.0, predicted_classes=1), "the same class is predicted"),
    ],
)
def test_what_may_be_right_is_only_warned_of(look: NetworkMeasurements, words: str) -> None:
    guard, said = _guard()
    for epoch in range(9):
        guard.at_epoch_end(look, [float(epoch)], 1000 * epoch)
    assert len(said) == 1
    assert words in said[0]


def test_the_count_goes_on_after_a_resume() -> None:
    before, _ = _guard()
    before.at_loss(2.0, 1)
    before.at_epoch_end(SOUND, [1.0], 50)
    before.at_epoch_end(ALIKE, [2.0], 100)
    before.at_epoch_end(ALIKE, [3.0], 200)
    after, _ = _guard()
    after.load_extra_state(before.extra_state())
    assert after.good_step == 50
    with pytest.raises(DivergenceError, match="step 50 is from before"):
        after.at_epoch_end(ALIKE, [4.0], 300)


@pytest.mark.parametrize(("mode", "lines"), [("warn", 3), ("none", 0)])
def test_the_guard_only_warns_or_is_silent_if_asked_to(mode: str, lines: int) -> None:
    guard, said = _guard(mode)
    for step in range(1, 8):
        guard.at_loss(1.0 if step == 1 else 1e9, step)
        guard.at_epoch_end(ALIKE, [1.0], 1000 * step)
    assert len(said) == lines  # loss, features, weights


# --- provoked in real trainings


def test_a_learning_rate_far_too_high_ends_a_run_and_leaves_it_readable(tmp_path: Path, make_trainer: Make) -> None:
    trainer = make_trainer(tmp_path / "run", epochs=20, lr=1e4, log_every_steps=1, lr_schedule="constant")
    with pytest.raises(DivergenceError, match=r"diverges|not finite") as caught:
        trainer.fit()
    assert caught.value.exit_code == 4
    assert "--lr" in caught.value.remedy
    trainer.run.close()
    checkpoint = load_checkpoint(tmp_path / "run")
    assert checkpoint is None or all(v.isfinite().all() for v in checkpoint.tensors("model.safetensors").values())


def test_weights_that_break_in_the_last_step_of_an_epoch_are_not_saved(tmp_path: Path, make_trainer: Make) -> None:
    trainer = make_trainer(tmp_path / "run", epochs=4)

    def poison(step: int) -> None:
        if step == 7:  # the second epoch's last one; its loss is still finite
            trainer.method.network.second.register_parameter("late", nn.Parameter(torch.tensor([math.nan])))

    trainer.method.at_step = poison
    with pytest.raises(DivergenceError, match=r"epoch 1, step 8: weights are not finite: network\.second\.late"):
        trainer.fit()
    trainer.run.close()
    checkpoint = load_checkpoint(tmp_path / "run")
    assert checkpoint is not None
    assert checkpoint.state["step"] == 4


def test_a_schedule_that_ends_in_nothing_is_warned_of(make_trainer: Make) -> None:
    said: list[str] = []
    options = {"lr_schedule": "step", "lr_drop_epochs": (1,), "lr_drop_factor": 1e-12, "guard": "warn"}
    make_trainer(epochs=4, message=said.append, **options).fit()
    assert [line for line in said if "the learning rate is 0 in the last 75.0 % of the run" in line]


def test_clusters_that_stay_empty_tell_of_the_images_first_and_of_the_training_later() -> None:
    labels = PseudoLabels(8, 3, 2, refresh_epochs=1, seed=0)
    apart, alike = torch.tensor([[0.0, 0.0], [5.0, 5.0], [9.0, 0.0], [0.0, 9.0]] * 2), torch.ones(8, 2)
    with pytest.raises(DatasetError, match="stay empty"):
        labels.renew(alike, alike, 0)
    labels.renew(apart, apart, 0)
    with pytest.raises(DivergenceError, match=r"epoch 1: 2 of 3 clusters stay empty: .* collapsed"):
        labels.renew(alike, alike, 1)

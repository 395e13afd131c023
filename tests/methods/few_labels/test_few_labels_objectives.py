"""MixMatch and FreeMatch as objectives: which statistics move, who gets gradients, and values by plain loops."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from labelkit.data.batch import Batch, draw_blending_plan
from labelkit.data.keyed_random import keyed_generator
from labelkit.data.views.recipes import semi_supervised_views
from labelkit.data.views.spec import ViewSpec
from labelkit.errors import ConfigError
from labelkit.methods.few_labels.freematch import FreeMatchObjective
from labelkit.methods.few_labels.losses import sharpen
from labelkit.methods.few_labels.mixmatch import MixMatchObjective
from labelkit.methods.few_labels.options import FreeMatchConfig
from labelkit.methods.few_labels.recipe import StudentNetwork, StudentNetworks
from labelkit.models.ema import copy_for_ema
from labelkit.models.headed import ClassifierNetwork
from labelkit.models.heads import LinearHeads
from labelkit.training.method import TrainState
from labelkit.training.schedules import RampedWeight
from torch import Tensor, nn

ROWS = 6


@pytest.fixture
def student() -> StudentNetwork:
    return ClassifierNetwork(
        "wrn10_1",
        lambda dim: LinearHeads(dim, 3),
        3,
        embed_dim=None,
        embedding_bn=False,
        in_channels=1,
        image_size=12,
        seed=0,
    )


@pytest.fixture
def batch(rng: np.random.Generator) -> Batch:
    images = [torch.from_numpy(rng.normal(size=(2 * ROWS, 1, 12, 12)).astype(np.float32)) for _ in range(2)]
    labels = torch.tensor([0, 1, 2, 0, 1, 2, *[-1] * ROWS])
    return Batch(tuple(images), labels, torch.arange(2 * ROWS), ())


def mixmatch(**options: object) -> MixMatchObjective:
    settings = {"weight": RampedWeight(75.0, 16_384), "seed": 3, **options}
    return MixMatchObjective(ViewSpec(12), **settings)  # type: ignore[arg-type] # a plain dict


def freematch(**options: object) -> FreeMatchObjective:
    views = semi_supervised_views(12, "digits", chiral=True)
    return FreeMatchObjective(FreeMatchConfig(threshold_decay=0.9, **options), 3, views)


def statistics(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in network.named_buffers()}


def bare(student: StudentNetwork, images: Tensor) -> Tensor:
    """Logits with the statistics of these images."""
    copy = copy_for_ema(student).train()
    return copy.classify(copy.embed(images)).detach()


@pytest.mark.parametrize(("step", "weight"), [(0, 0), (4096, 18.75), (16_384, 75), (20_000, 75)])
def test_the_weight_of_unlabeled_images_grows_linearly(step: int, weight: float) -> None:
    assert mixmatch().unlabeled_weight(step) == weight
    assert mixmatch(weight=RampedWeight(75.0, 0)).unlabeled_weight(step) == 75


def test_guesses_are_sharpened_means_by_the_statistics_of_each_view(student: StudentNetwork, batch: Batch) -> None:
    views = batch.views[0][ROWS:], batch.views[1][ROWS:]
    before = statistics(student)
    guess = mixmatch().guess_labels(student.train(), views)
    expected = sharpen((bare(student, views[0]).softmax(1) + bare(student, views[1]).softmax(1)) / 2, 0.5)
    torch.testing.assert_close(guess, expected)
    assert all(torch.equal(before[name], value) for name, value in statistics(student).items())
    assert not guess.requires_grad


def test_mixmatch_equals_a_computation_without_its_helpers(student: StudentNetwork, batch: Batch) -> None:
    student.train()
    objective = mixmatch()
    guess = objective.guess_labels(student, (batch.views[0][ROWS:], batch.views[1][ROWS:]))
    rows = [*batch.views[0], *batch.views[1][ROWS:]]
    targets = [*torch.eye(3)[batch.labels[:ROWS]], *guess, *guess]
    shares = draw_blending_plan(3 * ROWS, 0.75, keyed_generator(3, "mixmatch", 8192), torch.device("cpu"))
    mixed, wanted = [], []
    for row in range(3 * ROWS):
        share, partner = float(shares.shares[row]), int(shares.partners[row])
        mixed.append(share * rows[row] + (1 - share) * rows[partner])
        wanted.append(share * targets[row] + (1 - share) * targets[partner])
    # parts of two rows: block 0 gives its second part to block 1 and its third to block 2, and gets theirs
    order = [0, 1, 8, 9, 16, 17, 6, 7, 2, 3, 10, 11, 12, 13, 14, 15, 4, 5]
    logits = torch.zeros(3 * ROWS, 3)
    for start in range(0, 3 * ROWS, ROWS):
        block = order[start : start + ROWS]
        logits[block] = bare(student, torch.stack([mixed[row] for row in block]))
    predictions = logits.softmax(1)
    target = torch.stack(wanted)
    labeled = -(target[:ROWS] * predictions[:ROWS].log()).sum(1).mean()
    unlabeled = (predictions[ROWS:] - target[ROWS:]).square().mean()

    before = statistics(student)
    output = objective(batch, StudentNetworks(student, copy_for_ema(student)), TrainState(step=8192))
    torch.testing.assert_close(output.loss.detach(), labeled + 37.5 * unlabeled, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(output.logs["unlabeled"], unlabeled, atol=1e-6, rtol=1e-5)

    # the running statistics moved by the first block alone
    copy = copy_for_ema(student).train()
    copy.load_state_dict({**student.state_dict(), **before})
    copy.embed(torch.stack([mixed[row] for row in order[:ROWS]]))
    moved = statistics(student)
    assert any(not torch.equal(before[name], value) for name, value in moved.items())
    for name, value in copy.named_buffers():
        torch.testing.assert_close(moved[name], value)


def test_mixmatch_refuses_another_mix_and_takes_labeled_images_alone(student: StudentNetwork, batch: Batch) -> None:
    fewer = Batch(tuple(view[1:] for view in batch.views), batch.labels[1:], batch.sample_index[1:], ())
    networks = StudentNetworks(student.train(), student)
    with pytest.raises(ValueError, match="unlabeled as labeled rows, or none, got 6 and 5"):
        mixmatch()(fewer, networks, TrainState())
    alone = Batch(tuple(view[:ROWS] for view in batch.views), batch.labels[:ROWS], batch.sample_index[:ROWS], ())
    output = mixmatch()(alone, networks, TrainState())
    assert float(output.logs["unlabeled"]) == 0
    assert float(output.loss.detach()) > 0


def test_a_master_adds_its_difference_on_labeled_images(student: StudentNetwork, batch: Batch) -> None:
    objective = mixmatch()
    student.train()
    master = copy_for_ema(student).train()
    with torch.no_grad():
        master.head.heads[0].bias += torch.tensor([1.0, 0.0, -1.0])
    clock = TrainState(step=16_384)
    plain = objective(batch, StudentNetworks(student, master), clock)
    guided = objective(batch, StudentNetworks(student, master, master), clock)
    difference = float(guided.logs["master_consistency"])
    assert difference > 1e-4
    assert float((guided.loss - plain.loss).detach()) == pytest.approx(75 * difference, rel=1e-3)
    guided.loss.backward()
    assert all(parameter.grad is None for parameter in master.parameters())
    assert all(parameter.grad is not None for parameter in student.parameters())


def test_freematch_learns_strong_views_of_sure_images_by_one_joint_pass(student: StudentNetwork, batch: Batch) -> None:
    student.train()
    objective = freematch(fixed_threshold=0.34, fairness_weight=0.0)
    weak, strong = batch.views
    logits = bare(student, torch.cat([weak[:ROWS], weak[ROWS:], strong[ROWS:]]))
    own, predictions, strong_logits = logits[:ROWS], logits[ROWS : 2 * ROWS].softmax(1), logits[2 * ROWS :]
    expected = -own.log_softmax(1)[torch.arange(ROWS), batch.labels[:ROWS]].mean()
    surest, classes = predictions.max(1)
    kept = surest >= 0.34
    assert kept.any()
    terms = -strong_logits.log_softmax(1)[torch.arange(ROWS), classes]
    output = objective(batch, StudentNetworks(student, student), TrainState())
    torch.testing.assert_close(output.loss.detach(), expected + (terms * kept).sum() / ROWS, atol=1e-5, rtol=1e-5)
    assert float(output.logs["kept"]) == pytest.approx(float(kept.float().mean()))


def test_freematch_thresholds_move_once_a_step_and_sum_over_processes(student: StudentNetwork, batch: Batch) -> None:
    student.train()
    alone, twice = freematch(), freematch()
    networks = StudentNetworks(student, student)
    alone(batch, networks, TrainState())
    twice(batch, networks, TrainState(combine=lambda value, operation: 2 * value))  # an equal process beside this one
    for name, value in alone.named_buffers():
        torch.testing.assert_close(twice.get_buffer(name), value)
    assert float(alone.threshold.confidence) > 0.9 / 3 + 0.1 / 3
    labeled = Batch(tuple(view[:ROWS] for view in batch.views), batch.labels[:ROWS], batch.sample_index[:ROWS], ())
    assert set(alone(labeled, networks, TrainState()).logs) == {"cross_entropy"}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mixmatch", {"batch_size": 14}),
        ("freematch", {}),
        ("lmcs", {"batch_size": 14}),
        ("snowball", {"batch_size": 14, "trainer": "mixmatch"}),
    ],
)
def test_labeled_images_that_processes_cannot_share_equally_are_refused(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, object]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="--labeled-batch-size: 7 cannot be divided among 2 processes"):
        make(name, labeled_batch_size=7, **options)

"""Growth of labels: sizes, memory of predictions, features of the past; recalibrated statistics."""

from typing import Any

import numpy as np
import pytest
import torch
from labelkit.methods.few_labels.growth import NETWORKS, GrowingLabelSet, GrowthRules, broadcast_discovery
from labelkit.methods.few_labels.pseudo_label_selection import Discovery
from labelkit.methods.few_labels.recipe import recalibrate_bn
from labelkit.methods.few_labels.snowball import PastFeatures
from labelkit.models.batch_norm import BatchStatisticsSum
from labelkit.training.method import TrainState
from torch import nn


def discovery(indices: list[int], labels: list[int]) -> Discovery:
    count = len(indices)
    return Discovery(
        np.array(indices, dtype=np.int64),
        np.array(labels, dtype=np.int64),
        np.arange(count) / 4,
        np.ones(count, dtype=np.int16),
        np.arange(1, count + 1),
        (),
        False,
        (),
    )


@pytest.mark.parametrize(
    ("factor", "cap", "given", "images", "sizes"),
    [
        (2, 16, 250, 50_000, [500, 1000, 2000, 4000]),  # the dissertation's
        (2, 16, 80, 50_000, [160, 320, 640, 1280]),
        (2, 10, 100, 50_000, [200, 400, 800, 1000]),
        (3, 9, 10, 1000, [30, 90]),
        (2, 1, 10, 1000, []),
        (2, 4, 10, 10, []),
        (2, 4, 10, 14, [12, 13]),  # half of those without a label
    ],
)
def test_sizes_double_up_to_the_cap(factor: float, cap: float, given: int, images: int, sizes: list[int]) -> None:
    assert GrowthRules(factor, cap, 3).max_label_counts(given, images) == sizes


@pytest.fixture
def growth() -> GrowingLabelSet:
    given = np.array([0, 1, -1, -1, -1, -1, -1, -1])
    return GrowingLabelSet(given, GrowthRules(2, 4, 2))


def test_the_table_tells_what_was_found_when_and_by_which_network(growth: GrowingLabelSet) -> None:
    growth.add(discovery([2, 5], [1, 0]), "teacher")
    growth.add(discovery([7], [1]), "master")
    growth.next_generation()
    growth.add(discovery([7], [0]), "student")
    found, scores = growth.table()
    teacher, master, student = (NETWORKS.index(name) for name in ("teacher", "master", "student"))
    lines = [[2, 1, 1, 1, 1, teacher], [5, 0, 2, 1, 1, teacher], [7, 1, 1, 1, 2, master], [7, 0, 1, 2, 1, student]]
    assert found.tolist() == lines
    assert scores.tolist() == [0, 0.25, 0, 0]
    assert growth.labels().tolist() == [0, 1, -1, -1, -1, -1, -1, 0]
    assert growth.given.tolist() == [0, 1, -1, -1, -1, -1, -1, -1]


def test_churn_is_the_share_of_images_without_given_label_that_changed(growth: GrowingLabelSet) -> None:
    rows = np.arange(8)
    assert growth.record_predictions(torch.zeros(8, dtype=torch.int64), rows) == (None, None)
    changed = torch.tensor([1, 1, 1, 0, 0, 0, 0, 0])  # of the given ones nothing counts
    assert growth.record_predictions(changed, rows) == (pytest.approx(1 / 6), None)
    growth.next_generation()
    again = torch.tensor([0, 0, 1, 1, 1, 0, 0, 0])
    assert growth.record_predictions(again, rows) == (pytest.approx(2 / 6), pytest.approx(2 / 6))
    assert growth.record_predictions(changed, rows) == (pytest.approx(2 / 6), 0)


def test_features_of_the_past_are_kept_for_as_many_discoveries_as_asked() -> None:
    past = PastFeatures(3, 4, 2)
    joined = [past.append(torch.full((4, 2), float(number))) for number in range(5)]
    assert [[int(part[0, 0]) for part in parts] for parts in joined] == [[0], [0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]
    restored = PastFeatures(3, 4, 2)
    restored.load_state_dict(past.state_dict())
    assert [int(part[0, 0]) for part in restored.append(torch.full((4, 2), 5.0))] == [3, 4, 5]


def state(**options: Any) -> TrainState:
    return TrainState(0, 0, 1, True, options.pop("is_main", True), *[None] * 2, **options)  # type: ignore[arg-type]


def test_every_process_takes_what_the_main_one_found() -> None:
    main, other = discovery([1, 0], [3, 2]), discovery([2, 0], [3, 1])
    rows = np.array([10, 20, 30])
    sent: list[torch.Tensor] = []

    def first(value: torch.Tensor, operation: str) -> torch.Tensor:
        sent.append(value)
        return value

    told = broadcast_discovery(main, rows, state(combine=first))
    assert told.indices.tolist() == [20, 10]
    taken = broadcast_discovery(other, rows, state(is_main=False, combine=lambda value, operation: value + sent[0]))
    assert taken.indices.tolist() == [20, 10]
    assert taken.labels.tolist() == [3, 2]
    assert taken.distance.tolist() == [0, 0.25]


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.5))

    def embed(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images).flatten(1)


def test_statistics_are_means_over_batches_weighted_by_images() -> None:
    network, images = Layers().eval(), torch.randn(10, 1, 6, 6)
    statistics = BatchStatisticsSum(network)
    with statistics.collect():
        for part in (images[:6], images[6:]):
            network.embed(part)
    statistics.apply()
    maps = network.layers[0](images)
    means = [part.mean(dim=(0, 2, 3)) for part in (maps[:6], maps[6:])]
    variances = [part.transpose(0, 1).flatten(1).var(dim=1) for part in (maps[:6], maps[6:])]
    assert torch.allclose(network.layers[1].running_mean, 0.6 * means[0] + 0.4 * means[1], atol=1e-6)
    assert torch.allclose(network.layers[1].running_var, 0.6 * variances[0] + 0.4 * variances[1], atol=1e-6)


def test_shares_of_the_images_sum_up_to_all() -> None:
    """What two processes see is what one sees, to the last bit of float32."""
    whole, shared, images = Layers(), Layers(), torch.randn(8, 1, 6, 6)
    shared.load_state_dict(whole.state_dict())
    sums = []
    for network, parts in ((whole, (images[:4], images[4:])), (shared, (images[:4],)), (shared, (images[4:],))):
        statistics = BatchStatisticsSum(network.eval())
        with statistics.collect():
            for part in parts:
                network.embed(part)
        sums.append(statistics)
    sums[0].apply()
    sums[2].apply(lambda value: value + torch.cat(sums[1]._sums, dim=1))
    assert torch.equal(whole.layers[1].running_mean, shared.layers[1].running_mean)
    assert torch.equal(whole.layers[1].running_var, shared.layers[1].running_var)


@pytest.mark.slow
def test_recalibration_changes_running_statistics_and_nothing_else(make: Any) -> None:
    trainer = make("simgcd").trainer  # its network has no batch normalization
    network = trainer.method.network
    network.normalization = nn.BatchNorm1d(network.embed_dim)
    plain = type(network).embed
    network.embed = lambda images: network.normalization(plain(network, images))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    recalibrate_bn(network, trainer._state(log_now=False), trainer.bank.rows)
    changed = {name for name, value in network.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"normalization.running_mean", "normalization.running_var"}
    features = trainer.full_pass(lambda images: plain(network, images))
    assert torch.allclose(network.normalization.running_mean, features.mean(0), atol=1e-5)

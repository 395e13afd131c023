from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from labelkit.data.views.spec import ViewSpec
from labelkit.training.method import TrainState
from labelkit.training.monitors import groups
from labelkit.training.monitors.groups import ClusteringMonitor, DiscoveryMonitor
from labelkit.training.monitors.representation import representation_table
from numpy.typing import ArrayLike
from torch import Tensor

# T16 of the specification
TRUTH = [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3]
PREDICTED = [2, 2, 2, 0, 0, 0, 3, 1, 1, 1, 2, 4, 4, 1]
OLD = [True, True, False, False]


def _measure(
    monitor: DiscoveryMonitor, predicted: ArrayLike, *, num_outputs: int, features: Tensor | None = None, step: int = 0
) -> Mapping[str, float]:
    """Let the monitor look at a network whose answer for image i is ``predicted[i]``."""
    answers = torch.from_numpy(np.asarray(predicted))
    if features is None:
        features = torch.eye(len(answers))  # unlike each other
    rows = torch.arange(len(answers))[:, None].float()

    def classify(embeddings: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(answers, num_outputs).float()[: len(embeddings)]

    network = SimpleNamespace(embed=lambda images: features, classify=classify, num_outputs=num_outputs)

    def full_pass(network: Callable[[Tensor], Tensor], chosen: Any, how: Any) -> Tensor:
        return network(rows)[: len(chosen)]

    state = TrainState(3, step, 1, False, True, full_pass, lambda purpose: np.random.default_rng(0))
    return monitor(SimpleNamespace(network=network), state)  # type: ignore[arg-type] # only its network is looked at


def _monitor(truth: ArrayLike = TRUTH, *, num_old_outputs: int = 2) -> DiscoveryMonitor:
    labels = np.asarray(truth, dtype=np.int64)
    return DiscoveryMonitor(np.arange(len(labels)), labels, np.array(OLD), num_old_outputs)


def test_accuracies_and_error_kinds_match_the_worked_numbers() -> None:
    metrics = _measure(_monitor(), PREDICTED, num_outputs=5)
    expected = {
        "all_accuracy": 0.642857,
        "old_accuracy": 0.714286,
        "new_accuracy": 0.571429,
        "old_as_wrong_old": 0.142857,
        "old_as_new": 0.142857,
        "new_as_wrong_new": 0.285714,
        "new_as_old": 0.142857,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=5e-7)


def test_without_any_truth_there_are_only_signs_of_collapse() -> None:
    metrics = _measure(_monitor([-1] * 4), [0, 1, 0, 1], num_outputs=2)
    assert set(metrics) == {"used_clusters", "predicted_old_share", "assignment_entropy", "feature_concentration"}


@pytest.mark.parametrize(
    ("predicted", "entropy", "used", "old_share"),
    [([0, 1, 2, 3], 1.0, 4, 0.5), ([0, 0, 0, 0], 0.0, 1, 1.0), ([2, 3, 2, 3], 0.5, 2, 0.0)],
)
def test_spread_of_the_predictions(predicted: list[int], entropy: float, used: int, old_share: float) -> None:
    metrics = _measure(_monitor([0, 1, 2, 3]), predicted, num_outputs=4)
    assert metrics["assignment_entropy"] == pytest.approx(entropy)
    assert metrics["used_clusters"] == used
    assert metrics["predicted_old_share"] == old_share


def test_teacher_and_student_are_judged_on_their_own_views() -> None:
    # four images of class 0 0 1 2 (new: 1, 2) and one of unknown class; the teacher is right, the student errs once
    weak, strong = ViewSpec(8), ViewSpec(9)
    features = {weak: [[2.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 3.0], [1.0, 0.0]]}
    features[strong] = [[1.0, 0.0], [1.0, 0.0], [-4.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
    answers = {weak: [0, 0, 1, 2, 0], strong: [0, 1, 1, 2, 1], None: [0, 0, 0, 0, 0]}
    asked = []

    def full_pass(network: Any, rows: Any, how: Any) -> Tensor:
        asked.append((how.view, how.draw))
        logits = torch.nn.functional.one_hot(torch.tensor(answers[how.view]), 3).float()
        rows_seen = torch.nn.functional.normalize(torch.tensor(features.get(how.view, features[weak])), dim=1)
        return torch.cat([logits, rows_seen], dim=1)

    truth = np.array([0, 0, 1, 2, -1])
    views = {3: (weak, strong)}
    monitor = DiscoveryMonitor(np.arange(5), truth, np.array([True, False, False]), 1, views.__getitem__)
    state = TrainState(3, 0, 1, False, True, full_pass, lambda purpose: np.random.default_rng(0))
    metrics = monitor(SimpleNamespace(network=SimpleNamespace(num_outputs=3)), state)  # type: ignore[arg-type]

    assert asked == [(None, 0), (weak, 0), (strong, 1)]
    assert [metrics[f"teacher_{name}_accuracy"] for name in ("all", "old", "new")] == [1, 1, 1]
    assert [metrics[f"student_{name}_accuracy"] for name in ("all", "old", "new")] == [3 / 4, 1 / 2, 1]
    assert metrics["all_accuracy"] == 1 / 2
    assert metrics["view_agreement"] == pytest.approx(3 / 5)
    # between unit vectors: 0 where equal, 2 where opposite, the root of 2 at a right angle
    assert metrics["view_distance_old"] == pytest.approx(2**0.5 / 2)
    assert metrics["view_distance_new"] == pytest.approx((2 + 0) / 2)
    assert metrics["view_distance"] == pytest.approx((0 + 2**0.5 + 2 + 0 + 2**0.5) / 5)


@pytest.mark.parametrize(
    ("features", "concentration"),
    [([[3.0, 0.0], [0.5, 0.0]], 1.0), ([[1.0, 0.0], [-2.0, 0.0]], 0.0), ([[1.0, 0.0], [0.0, 7.0]], 0.5**0.5)],
)
def test_concentration_is_the_length_of_the_mean_direction(features: list[list[float]], concentration: float) -> None:
    metrics = _measure(_monitor([0, 1]), [0, 1], num_outputs=2, features=torch.tensor(features))
    assert metrics["feature_concentration"] == pytest.approx(concentration)


@pytest.mark.parametrize("num_labeled", [0, 4])
def test_one_process_clusters_for_all(monkeypatch: pytest.MonkeyPatch, num_labeled: int) -> None:
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(4), 8)
    features = torch.from_numpy(np.eye(4, 6)[truth] + 0.05 * rng.normal(size=(32, 6)))
    labels = np.where(np.arange(32) % 16 < num_labeled, truth, -1)
    sent: list[Tensor] = []

    def measure(*, is_main: bool) -> Mapping[str, float]:
        def combine(value: Tensor, operation: str) -> Tensor:
            assert operation == "sum"
            sent.append(value)
            return value if is_main else value + sent[0]

        state: Any = SimpleNamespace(full_pass=lambda network, rows, how: features, is_main=is_main, combine=combine)
        monitor = ClusteringMonitor(np.arange(32), labels, truth, np.array(OLD), num_clusters=4, seed=0)
        return monitor(SimpleNamespace(network=SimpleNamespace(embed=None)), state)  # type: ignore[arg-type] # as above

    main = measure(is_main=True)
    assert main["all_accuracy"] == 1
    for name in ("kmeans", "semi_supervised_kmeans"):
        monkeypatch.setattr(groups, name, None)
    assert measure(is_main=False) == main
    assert not sent[1].any()


def test_a_table_of_groups_alone_says_that_features_are_not_judged() -> None:
    groups = {"nmi": 0.75, "ari": 0.5, "majority_accuracy": 0.8}
    alone, both = representation_table(groups), representation_table({**groups, "knn_accuracy": 0.9})
    assert (alone.columns, alone.values) == (("NMI", "ARI", "purity"), (0.75, 0.5, 0.8))
    assert "without held-out images" in alone.title
    assert both.columns == ("kNN", "NMI", "ARI", "purity")
    assert "held-out images" in both.title

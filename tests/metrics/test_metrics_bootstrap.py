from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from labelkit.metrics.bootstrap import accuracy_intervals
from labelkit.metrics.clustering import cluster_accuracy

OLD = np.array([True, True, False])
LABELS = np.repeat([0, 1, 2], [60, 30, 40])
CLUSTERS = np.concatenate([np.repeat([0, 1], [50, 10]), np.repeat([1, 2], [20, 10]), np.repeat([2, 0], [28, 12])])


def intervals(labels: Any, clusters: Any, old: Any, **options: Any) -> Any:
    protocol = options.pop("protocol", "v2")
    score = cluster_accuracy(labels, clusters, old, protocol=protocol)
    return accuracy_intervals(score, old, generator=np.random.default_rng(0), **options)


def resampled_rows(protocol: Any, num_resamples: int) -> np.ndarray[Any, Any]:
    """Quantiles of the three accuracies, rows drawn one by one and the matching of all rows kept."""
    generator = np.random.default_rng(7)
    mapping = cluster_accuracy(LABELS, CLUSTERS, OLD).mapping
    old = LABELS < 2
    right = mapping[CLUSTERS] == LABELS
    values = []
    for _ in range(num_resamples):
        rows = generator.integers(0, len(LABELS), len(LABELS))
        groups = [rows, rows[old[rows]], rows[~old[rows]]]
        if protocol == "v2b":
            shares = [[right[group[LABELS[group] == c]].mean() for c in np.unique(LABELS[group])] for group in groups]
            values.append([float(np.mean(share)) for share in shares])
        else:
            values.append([right[group].mean() for group in groups])
    return np.quantile(values, [0.025, 0.975], axis=0).T


@pytest.mark.parametrize("protocol", ["v2", "v2b"])
def test_intervals_are_those_of_resampled_rows(protocol: Any) -> None:
    found = intervals(LABELS, CLUSTERS, OLD, protocol=protocol, num_resamples=20_000)
    expected = resampled_rows(protocol, 4000)
    np.testing.assert_allclose([found.all_interval, found.old_interval, found.new_interval], expected, atol=0.015)


def test_interval_of_a_large_sample_is_that_of_the_normal_distribution() -> None:
    labels = np.repeat([0, 1], [10_000, 10_000])
    clusters = np.concatenate([np.repeat([0, 1], [8000, 2000]), np.repeat([1, 0], [7000, 3000])])
    found = intervals(labels, clusters, [True, False], num_resamples=20_000)
    for (low, high), share, count in [
        (found.all_interval, 0.75, 20_000),
        (found.old_interval, 0.8, 10_000),
        (found.new_interval, 0.7, 10_000),
    ]:
        half = 1.959964 * math.sqrt(share * (1 - share) / count)
        assert (low, high) == pytest.approx((share - half, share + half), abs=5e-4)


def test_v1_intervals_hold_its_own_accuracies() -> None:
    labels, clusters = [0] * 30 + [1] * 30, [0] * 20 + [1] * 10 + [0] * 30
    score = cluster_accuracy(labels, clusters, np.array([True, False]), protocol="v1")
    assert (score.old_accuracy, score.new_accuracy) == (pytest.approx(2 / 3), 1.0)
    found = intervals(labels, clusters, np.array([True, False]), protocol="v1")
    assert found.old_interval[0] < 2 / 3 < found.old_interval[1]
    assert found.new_interval == (1.0, 1.0)


def test_all_right_leaves_no_width_and_no_sample_no_interval() -> None:
    found = intervals([0, 0, 1], [1, 1, 0], np.array([True, True]))
    assert found.all_interval == (1.0, 1.0)
    assert found.old_interval == (1.0, 1.0)
    assert all(math.isnan(end) for end in found.new_interval)


def test_wider_levels_and_equal_seeds() -> None:
    narrow, wide = intervals(LABELS, CLUSTERS, OLD, level=0.5), intervals(LABELS, CLUSTERS, OLD, level=0.99)
    assert wide.all_interval[0] < narrow.all_interval[0] < narrow.all_interval[1] < wide.all_interval[1]
    assert intervals(LABELS, CLUSTERS, OLD) == intervals(LABELS, CLUSTERS, OLD)
    assert wide.num_resamples == 1000

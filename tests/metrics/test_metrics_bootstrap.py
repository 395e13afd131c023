import math
from typing import Any

import numpy as np
from labelkit.metrics.clustering import accuracy_intervals, cluster_accuracy

OLD = np.array([True, True, False])
LABELS = np.repeat([0, 1, 2], [60, 30, 40])
CLUSTERS = np.concatenate([np.repeat([0, 1], [50, 10]), np.repeat([1, 2], [20, 10]), np.repeat([2, 0], [28, 12])])


def intervals(labels: Any, clusters: Any, old: Any, **options: Any) -> Any:
    score = cluster_accuracy(labels, clusters, np.asarray(old))
    return accuracy_intervals(score, old, generator=np.random.default_rng(0), **options)


def resampled_rows(num_resamples: int) -> np.ndarray[Any, Any]:
    """Quantiles of the three accuracies, rows drawn one by one and the matching of all rows kept."""
    generator = np.random.default_rng(7)
    mapping = cluster_accuracy(LABELS, CLUSTERS, OLD).mapping
    old = LABELS < 2
    right = mapping[CLUSTERS] == LABELS
    values = []
    for _ in range(num_resamples):
        rows = generator.integers(0, len(LABELS), len(LABELS))
        groups = [rows, rows[old[rows]], rows[~old[rows]]]
        values.append([right[group].mean() for group in groups])
    return np.quantile(values, [0.025, 0.975], axis=0).T


def test_intervals_are_those_of_resampled_rows() -> None:
    found = intervals(LABELS, CLUSTERS, OLD, num_resamples=20_000)
    np.testing.assert_allclose(list(found.values()), resampled_rows(4000), atol=0.015)


def test_all_right_leaves_no_width_and_no_sample_no_interval() -> None:
    found = intervals([0, 0, 1], [1, 1, 0], np.array([True, True]))
    assert found["all"] == (1.0, 1.0)
    assert found["old"] == (1.0, 1.0)
    assert all(math.isnan(end) for end in found["new"])

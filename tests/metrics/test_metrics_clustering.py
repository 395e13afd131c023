import json
import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labelkit.algorithms.clustering import kmeans, semi_supervised_kmeans
from labelkit.metrics.clustering import cluster_accuracy, majority_accuracy, score_other_protocols
from sklearn.datasets import load_digits

LABELS = [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3]
CLUSTERS = [2, 2, 2, 0, 0, 0, 3, 1, 1, 1, 2, 4, 4, 1]
OLD = np.array([True, True, False, False])

samples = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=24)


def test_worked_example_under_v2() -> None:
    scores = cluster_accuracy(LABELS, CLUSTERS, OLD)
    assert scores.all_accuracy == pytest.approx(0.642857, abs=1e-6)
    assert scores.old_accuracy == pytest.approx(0.714286, abs=1e-6)
    assert scores.new_accuracy == pytest.approx(0.571429, abs=1e-6)
    assert scores.old_as_wrong_old == pytest.approx(0.142857, abs=1e-6)
    assert scores.old_as_new == pytest.approx(0.142857, abs=1e-6)
    assert scores.new_as_wrong_new == pytest.approx(0.285714, abs=1e-6)
    assert scores.new_as_old == pytest.approx(0.142857, abs=1e-6)
    np.testing.assert_array_equal(scores.mapping, [1, 2, 0, -1, 3])
    assert (scores.used_clusters, scores.num_samples) == (5, 14)
    assert (scores.num_old_samples, scores.num_new_samples) == (7, 7)
    np.testing.assert_array_equal(
        scores.confusion, [[1, 2, 0, 0], [0, 0, 3, 1], [3, 0, 1, 0], [0, 1, 0, 0], [0, 0, 1, 1]]
    )


def test_worked_examples_under_v1_and_v2b() -> None:
    found = score_other_protocols(cluster_accuracy(LABELS, CLUSTERS, OLD), OLD)
    assert list(found["v2b"].values()) == pytest.approx([0.629167, 0.708333, 0.55], abs=1e-6)
    two = np.array([True, False])
    found = score_other_protocols(cluster_accuracy([0, 0, 0, 1, 1, 1], [0, 0, 1, 0, 0, 0], two), two)
    assert found["v1"] == pytest.approx({"all": 5 / 6, "old": 2 / 3, "new": 1})
    alone = score_other_protocols(cluster_accuracy([0, 0], [0, 1], two), two)
    assert [math.isnan(alone[protocol]["new"]) for protocol in ("v1", "v2b")] == [True, True]


@settings(max_examples=40, deadline=None)
@given(samples)
def test_v1_is_no_less_than_v2_in_each_number(pairs: list[tuple[int, int]]) -> None:
    labels, clusters = (np.array(column) for column in zip(*pairs, strict=True))
    scores = cluster_accuracy(labels, clusters, OLD)
    apart = score_other_protocols(scores, OLD)["v1"]
    for name, share in (("all", scores.all_accuracy), ("old", scores.old_accuracy), ("new", scores.new_accuracy)):
        assert math.isnan(share) or apart[name] >= share - 1e-12


@settings(max_examples=40, deadline=None)
@given(samples)
def test_accuracy_equals_brute_force_over_permutations(pairs: list[tuple[int, int]]) -> None:
    labels, clusters = zip(*pairs, strict=True)
    best = max(sum(names[c] == y for y, c in pairs) for names in permutations(range(6)))
    assert cluster_accuracy(labels, clusters, OLD).all_accuracy == pytest.approx(best / len(pairs))


def test_group_without_samples_is_nan_and_none_in_json() -> None:
    scores = cluster_accuracy([0, 1], [5, 5], OLD)
    assert scores.old_accuracy == scores.all_accuracy == 0.5
    assert math.isnan(scores.new_accuracy)
    assert math.isnan(scores.new_as_wrong_new)
    values = json.loads(json.dumps(scores.to_dict(), allow_nan=False))
    assert values["new_accuracy"] is None
    assert values["mapping"] == [-1, -1, -1, -1, -1, 0]
    assert values["protocol"] == "v2"


def test_kmeans_and_semi_supervised_kmeans_on_digits_score_as_known() -> None:
    pixels, labels = load_digits(return_X_y=True)
    rows = (pixels / np.linalg.norm(pixels, axis=1, keepdims=True)).astype(np.float32)
    old = np.arange(10) < 5
    candidates = np.flatnonzero(labels < 5)
    known = np.zeros(len(labels), dtype=bool)
    chosen = np.random.RandomState(0).choice(range(len(candidates)), int(0.5 * len(candidates)), replace=False)
    known[candidates[chosen]] = True

    plain = kmeans(rows, 10, generator=np.random.default_rng(0))
    scores = cluster_accuracy(labels[~known], plain.cluster_ids[~known], old)
    assert scores.all_accuracy == pytest.approx(0.79, abs=0.02)
    assert scores.old_accuracy == pytest.approx(0.758, abs=0.03)
    assert scores.new_accuracy == pytest.approx(0.809, abs=0.03)

    helped = semi_supervised_kmeans(
        rows[~known], rows[known], labels[known], 10, generator=np.random.default_rng(0), num_inits=20
    )
    assert cluster_accuracy(labels[~known], helped.unlabeled_ids, old).all_accuracy > 0.70


def test_majority_accuracy_counts_the_most_frequent_class_of_each_cluster() -> None:
    # cluster 0: classes 0 1 1; 1: 2 2 2 3; 2: 0 0 0 2; 3: 1; 4: 2 3
    expected = 2 + 3 + 3 + 1 + 1
    assert majority_accuracy(LABELS, CLUSTERS) == expected / len(LABELS)
    assert majority_accuracy(LABELS, range(len(LABELS))) == 1
    assert majority_accuracy([0, 0, 1], [5, 5, 5]) == pytest.approx(2 / 3)

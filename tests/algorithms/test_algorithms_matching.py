from itertools import permutations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from labelkit.algorithms.matching import cross_tabulate, match_clusters

pairs = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), min_size=1, max_size=20)


def best_by_permutations(cluster_ids: list[int], labels: list[int]) -> int:
    """Try every one-to-one naming of 6 clusters by 6 classes."""
    return max(
        sum(names[cluster] == label for cluster, label in zip(cluster_ids, labels, strict=True))
        for names in permutations(range(6))
    )


@settings(max_examples=30, deadline=None)
@given(pairs)
def test_matching_equals_the_best_permutation(samples: list[tuple[int, int]]) -> None:
    cluster_ids, labels = [cluster for cluster, _ in samples], [label for _, label in samples]
    matching = match_clusters(cluster_ids, labels)
    hits = sum(matching.class_of_cluster[cluster] == label for cluster, label in samples)
    assert matching.num_matched == hits == best_by_permutations(cluster_ids, labels)


def test_class_is_matched_at_most_once_and_empty_pairs_are_no_match() -> None:
    # Clusters 0 and 1 share class 0; no sample of class 1 is anywhere, so nothing is left for cluster 1.
    matching = match_clusters([0, 0, 1], [0, 0, 0], num_clusters=3, num_classes=2)
    np.testing.assert_array_equal(matching.class_of_cluster, [0, -1, -1])
    assert matching.class_of_cluster.dtype == np.int64
    assert matching.num_matched == 2


def test_contingency_counts_samples_by_cluster_and_class() -> None:
    counts = cross_tabulate([0, 2, 2, 2], [1, 0, 1, 1], num_classes=3)
    np.testing.assert_array_equal(counts, [[0, 1, 0], [0, 0, 0], [1, 2, 0]])

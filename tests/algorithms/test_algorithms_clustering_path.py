from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from labelkit.algorithms.clustering import kmeans, semi_supervised_kmeans
from labelkit.algorithms.clustering_path import Partition, kmeans_path
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits

Array = NDArray[Any]


@pytest.fixture(scope="module")
def digits() -> tuple[Array, Array]:
    pixels, labels = load_digits(return_X_y=True)
    return (pixels / np.linalg.norm(pixels, axis=1, keepdims=True)).astype(np.float32), labels


@pytest.fixture(scope="module")
def path(digits: tuple[Array, Array]) -> list[Partition]:
    return kmeans_path(digits[0], range(2, 31))


def direct_inertia(rows: Array, ids: Array) -> float:
    """Sum of squared distances to the means, cluster by cluster."""
    groups = [rows[ids == j].astype(np.float64) for j in np.unique(ids)]
    return float(sum(((group - group.mean(axis=0)) ** 2).sum() for group in groups))


def lowest_inertia_on_a_line(points: Array, k: int) -> float:
    """Try every way to cut sorted points into k runs: the best partition of a line is one of them."""
    points = np.sort(points)

    def best(start: int, parts: int) -> float:
        if parts == 1:
            rest = points[start:]
            return float(((rest - rest.mean()) ** 2).sum())
        cuts = range(start + 1, len(points) - parts + 2)
        return min(
            float(((points[start:cut] - points[start:cut].mean()) ** 2).sum()) + best(cut, parts - 1) for cut in cuts
        )

    return best(0, k)


def test_inertia_is_that_of_the_partition_and_never_rises(digits: tuple[Array, Array], path: list[Partition]) -> None:
    assert [part.num_clusters for part in path] == list(range(2, 31))
    for part in path:
        assert set(part.cluster_ids) == set(range(part.num_clusters))
        assert part.inertia == pytest.approx(direct_inertia(digits[0], part.cluster_ids), rel=1e-6)
    assert all(few.inertia >= many.inertia for few, many in pairwise(path))


def test_every_row_is_nearest_to_the_mean_of_its_own_cluster(
    digits: tuple[Array, Array], path: list[Partition]
) -> None:
    rows = digits[0].astype(np.float64)
    for part in path[::7]:
        means = np.stack([rows[part.cluster_ids == j].mean(axis=0) for j in range(part.num_clusters)])
        nearest = ((rows[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
        np.testing.assert_array_equal(part.cluster_ids, nearest)


@pytest.mark.parametrize("number", [2, 10, 30])
def test_one_path_on_digits_is_as_good_as_ten_restarts(
    digits: tuple[Array, Array], path: list[Partition], number: int
) -> None:
    restarts = kmeans(digits[0], number, generator=np.random.default_rng(0), num_inits=10)
    assert path[number - 2].inertia <= 1.01 * restarts.inertia


@pytest.mark.parametrize("seed", range(5))
def test_groups_on_a_line_are_cut_where_it_is_best(seed: int) -> None:
    generator = np.random.default_rng(seed)
    points = np.concatenate([place + 0.1 * generator.random(3) for place in (0, 1, 5, 9)])
    for part in kmeans_path(points[:, None], [1, 2, 3, 4, 12]):
        expected = lowest_inertia_on_a_line(points.astype(np.float32).astype(np.float64), part.num_clusters)
        assert part.inertia == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_far_blobs_are_found_exactly_at_their_number(rng: np.random.Generator) -> None:
    groups = np.repeat(np.arange(12), 8)
    rows = 20 * rng.standard_normal((12, 6))[groups] + rng.standard_normal((96, 6))
    (part,) = kmeans_path(rows, [12])
    assert adjusted_rand_score(groups, part.cluster_ids) == 1.0


def test_numbers_may_have_gaps(digits: tuple[Array, Array]) -> None:
    found = kmeans_path(digits[0][:300], [3, 4, 40, 90])
    assert [part.num_clusters for part in found] == [3, 4, 40, 90]
    for part in found:
        assert part.inertia == pytest.approx(direct_inertia(digits[0][:300], part.cluster_ids), rel=1e-5)


def test_labeled_rows_hold_their_clusters_and_count(digits: tuple[Array, Array]) -> None:
    rows, labels = digits
    labeled = (labels < 5) & (np.arange(len(labels)) % 2 == 0)
    found = kmeans_path(rows[~labeled], [5, 8, 10], labeled=rows[labeled], labels=labels[labeled] * 7)

    for part in found:
        ids = np.concatenate([part.cluster_ids, labels[labeled]])
        both = np.concatenate([rows[~labeled], rows[labeled]])
        assert part.inertia == pytest.approx(direct_inertia(both, ids), rel=1e-6)
    peer = semi_supervised_kmeans(
        rows[~labeled], rows[labeled], labels[labeled], 10, generator=np.random.default_rng(0), num_inits=20
    )
    assert found[2].inertia <= 1.01 * peer.inertia
    old = labels[~labeled] < 5
    assert (found[2].cluster_ids[old] == labels[~labeled][old]).mean() > 0.6


def test_as_many_clusters_as_labeled_classes_are_nearest_means() -> None:
    rows = np.array([[0.0], [0.2], [9.0], [10.0]])
    (part,) = kmeans_path(rows, [2], labeled=[[0.1], [9.5]], labels=[3, 8])
    assert part.cluster_ids.tolist() == [0, 0, 1, 1]


def test_path_ends_where_repeated_rows_cannot_be_divided() -> None:
    rows = np.repeat([[0.0, 1], [3, 3], [9, 0]], 5, axis=0)
    found = kmeans_path(rows, [2, 3, 4, 5])
    assert [part.num_clusters for part in found] == [2, 3]
    assert found[1].inertia == pytest.approx(0, abs=1e-9)
    assert kmeans_path(np.ones((6, 2)), [2, 3]) == []


def test_each_row_alone_leaves_no_inertia(rng: np.random.Generator) -> None:
    (part,) = kmeans_path(rng.standard_normal((7, 2)), [7])
    assert sorted(part.cluster_ids) == list(range(7))
    assert part.inertia == pytest.approx(0, abs=1e-12)


def test_common_offset_and_precision_do_not_change_the_partitions(rng: np.random.Generator) -> None:
    rows = (rng.standard_normal((6, 5))[rng.integers(0, 6, 200)] + 0.05 * rng.standard_normal((200, 5))).round(3)
    plain, moved = kmeans_path(rows, [4, 6, 9]), kmeans_path(rows + 64, [4, 6, 9])
    for here, there in zip(plain[:2], moved[:2], strict=True):
        assert adjusted_rand_score(here.cluster_ids, there.cluster_ids) == 1.0


def test_partitions_are_the_same_for_any_number_of_threads(digits: tuple[Array, Array]) -> None:
    runs = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            runs.append(kmeans_path(digits[0], range(2, 26)))
    for one, two in zip(*runs, strict=True):
        np.testing.assert_array_equal(one.cluster_ids, two.cluster_ids)
        assert one.inertia == two.inertia


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": np.zeros(3)}, r"\(n, d\)"),
        ({"x": [[0.0], [np.nan], [1.0]]}, "x has 1 of 3 rows with NaN"),
        ({"numbers": []}, r"within \[1, 4\], got \[\]"),
        ({"numbers": [2, 2]}, "increase"),
        ({"numbers": [2, 5]}, r"\[1, 4\]"),
        ({"numbers": [0, 2]}, r"\[1, 4\]"),
        ({"labeled": [[0.0], [1.0], [2.0]], "labels": [0, 1, 2]}, r"\[3, 4\]"),
        ({"labeled": [[0.0, 1.0]], "labels": [0]}, "do not fit"),
        ({"labeled": [[0.0]], "labels": [0, 1]}, "do not fit"),
        ({"labeled": [[0.0]], "labels": [-1]}, ">= 0"),
        ({"labeled": [[0.0]], "labels": [0.5]}, "integers"),
        ({"max_iter": 0}, "max_iter"),
    ],
)
def test_bad_input_is_refused(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"x": [[0.0], [1.0], [2.0], [3.0]], "numbers": [2, 3]}
    with pytest.raises(ValueError, match=message):
        kmeans_path(**(arguments | changes))

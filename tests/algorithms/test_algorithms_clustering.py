from typing import Any

import numpy as np
import pytest
from labelkit.algorithms.clustering import (
    Clustering,
    SemiSupervisedClustering,
    kmeans,
    nearest_centroids,
    semi_supervised_kmeans,
)
from labelkit.algorithms.row_blocks import StoredRows
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_limits

Array = NDArray[Any]


class FixedDraws(np.random.Generator):
    """A generator whose uniform numbers are given."""

    def __init__(self, *values: float) -> None:
        super().__init__(np.random.PCG64(0))
        self.values = values

    def random(self, size: Any = None, *args: Any, **kwargs: Any) -> Any:
        return np.array(self.values).reshape(size)


def direct_inertia(x: Array, ids: Array, centroids: Array) -> float:
    return float(((x.astype(np.float64) - centroids.astype(np.float64)[ids]) ** 2).sum())


def plain_semi_supervised(
    unlabeled: Array, labeled: Array, labels: Array, num_clusters: int, draws: Array, max_iter: int
) -> tuple[float, list[int]]:
    """Read the algorithm row by row in float64, one restart; inertia and ids of the best iteration."""
    unlabeled, labeled = unlabeled.astype(np.float64), labeled.astype(np.float64)
    classes = sorted(set(labels.tolist()))
    own = [classes.index(label) for label in labels.tolist()]
    places = [labeled[labels == label].mean(axis=0) for label in classes]
    for draw in draws:
        d2 = [min((((row - place) ** 2).sum() for place in places), default=0.0) for row in unlabeled]
        if sum(d2) == 0:
            pick = int(draw * len(unlabeled))
        else:
            pick = next(i for i in range(len(d2)) if sum(d2[: i + 1]) / sum(d2) >= draw)
        places.append(unlabeled[pick])
    best, best_ids = np.inf, []
    for _ in range(max_iter):
        ids = [int(np.argmin([((row - place) ** 2).sum() for place in places])) for row in unlabeled]
        rows, all_ids = np.concatenate([unlabeled, labeled]), np.array(ids + own)
        places = [rows[all_ids == j].mean(axis=0) if (all_ids == j).any() else places[j] for j in range(num_clusters)]
        inertia = sum(((row - places[j]) ** 2).sum() for row, j in zip(rows, all_ids, strict=True))
        if inertia < best:
            best, best_ids = inertia, ids
    return float(best), best_ids


@pytest.fixture(scope="module")
def digits() -> tuple[Array, Array]:
    pixels, labels = load_digits(return_X_y=True)
    return (pixels / np.linalg.norm(pixels, axis=1, keepdims=True)).astype(np.float32), labels


# Worked example: two labeled rows of one class, five unlabeled, k = 2.
LABELED = np.array([[0.0, 0], [1, 0]])
UNLABELED = np.array([[0, 1], [5, 5], [6, 5], [0.2, 0.2], [2.9, 2.6]])


@pytest.mark.parametrize("max_iter", [1, 2, 100])
def test_semi_supervised_follows_the_worked_example(max_iter: int) -> None:
    found = semi_supervised_kmeans(
        UNLABELED, LABELED, [0, 0], 2, generator=FixedDraws(0.5), num_inits=1, max_iter=max_iter
    )
    np.testing.assert_array_equal(found.unlabeled_ids, [0, 1, 1, 0, 0])
    np.testing.assert_array_equal(found.labeled_ids, [0, 0])
    np.testing.assert_array_equal(found.class_of_cluster, [0, -1])
    np.testing.assert_allclose(found.centroids, [[0.82, 0.76], [5.5, 5]])
    assert found.inertia == pytest.approx(11.5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("num_labeled", [0, 12])
@pytest.mark.parametrize("seed", range(4))
def test_semi_supervised_equals_a_plain_reading(dtype: Any, num_labeled: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = (rng.standard_normal((60, 5)) + 3 * rng.integers(0, 3, (60, 1))).astype(dtype)
    labels = rng.integers(0, 3, num_labeled) * 7
    num_clusters, num_new = 6, 6 - len(set(labels.tolist()))
    found = semi_supervised_kmeans(
        rows[num_labeled:],
        rows[:num_labeled],
        labels,
        num_clusters,
        generator=np.random.default_rng(seed),
        num_inits=3,
        max_iter=5,
        tol=0,
    )
    draws = np.random.default_rng(seed).random((3, num_new))
    runs = [
        plain_semi_supervised(rows[num_labeled:], rows[:num_labeled], labels, num_clusters, draw, 5) for draw in draws
    ]
    inertia, ids = min(runs, key=lambda run: run[0])
    assert found.inertia == pytest.approx(inertia, rel=1e-5)
    np.testing.assert_array_equal(found.unlabeled_ids, ids)
    np.testing.assert_array_equal(found.class_of_cluster[found.labeled_ids], labels)


def test_one_run_from_given_centroids_equals_scikit_learn(digits: tuple[Array, Array]) -> None:
    rows = digits[0][:500].astype(np.float64)
    start = rows[:7]
    ours = kmeans(rows, 7, generator=FixedDraws(), init_centroids=start, tol=0)
    theirs = KMeans(7, init=start, n_init=1, tol=0).fit(rows)
    np.testing.assert_array_equal(ours.cluster_ids, theirs.labels_)
    np.testing.assert_allclose(ours.centroids, theirs.cluster_centers_, atol=1e-9)
    assert ours.inertia == pytest.approx(theirs.inertia_, rel=1e-9)


@pytest.mark.parametrize("start", [[0.5, 10.5, 1000], [0, 1000, 2000]])
@pytest.mark.parametrize("max_iter", [1, 20])
def test_no_cluster_stays_empty_where_there_are_as_many_different_rows(start: list[float], max_iter: int) -> None:
    rows = np.array([[0.0], [1], [10], [11], [15]])
    found = kmeans(
        rows, 3, generator=np.random.default_rng(0), init_centroids=np.array(start)[:, None], max_iter=max_iter
    )
    assert (np.bincount(found.cluster_ids, minlength=3) > 0).all()
    means = [rows[found.cluster_ids == j].mean() for j in range(3)]
    np.testing.assert_allclose(found.centroids[:, 0], means)
    assert found.inertia == pytest.approx(direct_inertia(rows, found.cluster_ids, found.centroids))


def test_equal_seeds_give_equal_results_whatever_the_number_of_threads(digits: tuple[Array, Array]) -> None:
    runs = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            runs.append(kmeans(digits[0], 20, generator=np.random.default_rng(3), num_inits=3))
    np.testing.assert_array_equal(runs[0].cluster_ids, runs[1].cluster_ids)
    np.testing.assert_array_equal(runs[0].centroids, runs[1].centroids)


def test_spherical_kmeans_groups_by_direction_not_by_length() -> None:
    rows = np.array([[1.0, 0.1], [100, -10], [0.1, 1], [-5, 50]])
    found = kmeans(rows, 2, generator=np.random.default_rng(0), spherical=True)
    assert found.cluster_ids[0] == found.cluster_ids[1] != found.cluster_ids[2] == found.cluster_ids[3]
    np.testing.assert_allclose(np.sort(found.centroids, axis=0), [[0, 0], [1, 1]], atol=1e-12)
    cosine = 1 / np.sqrt(1.01)
    assert found.inertia == pytest.approx(4 * (2 - 2 * cosine))


@pytest.mark.parametrize(("size", "dtype"), [(1e30, np.float32), (1e-30, np.float32), (1e-120, np.float64)])
def test_groups_do_not_depend_on_the_size_of_the_numbers(digits: tuple[Array, Array], size: float, dtype: Any) -> None:
    rows, labels = digits[0][:400].astype(dtype), digits[1][:400]
    large = rows * dtype(size)
    for spherical in (False, True):
        small, found = (
            kmeans(x, 5, generator=np.random.default_rng(0), num_inits=2, tol=0, spherical=spherical)
            for x in (rows, large)
        )
        np.testing.assert_array_equal(found.cluster_ids, small.cluster_ids)
        if not spherical:
            np.testing.assert_array_equal(nearest_centroids(large, found.centroids), found.cluster_ids)
    known = labels < 2
    before, after = (
        semi_supervised_kmeans(
            x[~known], x[known], labels[known], 5, generator=np.random.default_rng(0), num_inits=2, tol=0
        )
        for x in (rows, large)
    )
    assert len(np.unique(after.unlabeled_ids)) == 5
    np.testing.assert_array_equal(after.unlabeled_ids, before.unlabeled_ids)


def test_rows_read_in_blocks_are_grouped_by_a_sample_and_all_assigned(rng: np.random.Generator) -> None:
    centers = 10 * rng.standard_normal((4, 8))
    truth = rng.integers(0, 4, 20_000)
    rows = (centers[truth] + rng.standard_normal((20_000, 8))).astype(np.float32)
    stored = StoredRows(rows, in_blocks=True)
    fixed = truth[:100] < 2
    for found in (
        kmeans(stored, 4, generator=rng),
        semi_supervised_kmeans(stored, rows[:100][fixed], truth[:100][fixed], 4, generator=rng),
    ):
        ids = found.cluster_ids if isinstance(found, Clustering) else found.unlabeled_ids
        np.testing.assert_array_equal(nearest_centroids(stored, found.centroids), ids)
        assert len(np.unique(truth * 4 + ids)) == 4


@pytest.mark.parametrize("spherical", [False, True])
@pytest.mark.parametrize(
    ("rows", "num_clusters", "options", "message"),
    [
        ([[1.0], [2]], 3, {}, "num_clusters must be at most the number of rows \\(2\\), got 3"),
        ([[1.0], [2]], 0, {}, "num_clusters must be at least 1, got 0"),
        ([[1.0], [np.nan], [np.inf]], 1, {}, "2 of 3 rows of x contain NaN or infinity"),
        ([1.0, 2], 1, {}, r"\(2,\)"),
        ([[1.0], [2]], 1, {"num_inits": 0}, "num_inits must be at least 1"),
        ([[1.0], [2]], 1, {"max_iter": 0}, "max_iter must be at least 1"),
        ([[1.0], [2]], 1, {"tol": -1.0}, "tol must be >= 0"),
    ],
)
def test_bad_input_is_refused(
    spherical: bool, rows: list[Any], num_clusters: int, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        kmeans(np.array(rows, dtype=np.float32), num_clusters, generator=FixedDraws(), spherical=spherical, **options)


@pytest.mark.parametrize(
    ("unlabeled", "labels", "num_clusters", "message"),
    [
        (np.ones((3, 2)), [0, 1], 1, "num_clusters must be at least 2 \\(the labeled classes\\), got 1"),
        (np.ones((0, 2)), [0, 1], 3, "1 unlabeled clusters require at least as many unlabeled rows, got 0"),
        (np.ones((1, 2)), [0, 1], 4, "2 unlabeled clusters require at least as many unlabeled rows, got 1"),
        (np.ones((3, 2)), [0, -1], 3, "minimum -1"),
        (np.ones((3, 2)), [0.5, 1], 3, "float64"),
        (np.ones((3, 2)), [0], 3, r"shape \(2,\), got \(1,\)"),
        (np.ones((3, 5)), [0, 1], 3, "5 columns, but labeled rows have 2"),
        (np.full((3, 2), np.nan), [0, 1], 3, "3 of 3 rows of unlabeled"),
    ],
)
def test_semi_supervised_refuses_what_cannot_be_clustered(
    unlabeled: Array, labels: list[Any], num_clusters: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        semi_supervised_kmeans(unlabeled, np.eye(2), labels, num_clusters, generator=FixedDraws())


def test_nearest_centroids_takes_the_smaller_id_of_equals() -> None:
    np.testing.assert_array_equal(nearest_centroids([[0.0], [3], [1]], [[2.0], [0], [2]]), [1, 0, 0])


@pytest.mark.parametrize("seed", range(4))
def test_classes_that_change_places_lower_the_inertia_and_lie_at_their_labels(
    digits: tuple[Array, Array], seed: int
) -> None:
    rows, labels = digits
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    rng = np.random.default_rng(seed)
    known = np.concatenate([rng.permutation(np.flatnonzero(labels == label))[:5] for label in range(0, 10, 2)])
    free = np.setdiff1d(np.arange(len(rows)), known)

    def grouped(exchange: bool) -> SemiSupervisedClustering:
        generator = np.random.default_rng(seed)
        return semi_supervised_kmeans(
            rows[free], rows[known], labels[known], 14, generator=generator, num_inits=3, exchange=exchange
        )

    plain, exchanged = grouped(False), grouped(True)
    apart = ((rows[known][:, None] - exchanged.centroids) ** 2).sum(axis=2)
    cost = np.stack([apart[labels[known] == label].sum(axis=0) for label in range(0, 10, 2)])

    assert exchanged.inertia <= plain.inertia
    # no other choice of one centroid for each class is nearer to the labeled rows
    best = cost[linear_sum_assignment(cost)].sum()
    assert np.trace(cost[:, :5]) == pytest.approx(best)

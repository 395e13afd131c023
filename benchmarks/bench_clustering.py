"""Compare k-means with faiss's default k-means, and semi-supervised k-means with a plain implementation.

Both sides of a comparison get all rows and one thread; each draws the same number of initializations, and iterates as
by default. The inertia of both is computed here in float64 from their centroids. A comparison fails if ours is higher:
ours is faiss initialized with k-means++, which costs time. faiss has no k-means with labels: the peer for that form is
the same algorithm from the same draws, with faiss to search for nearest centroids and scipy to compute sums. Like ours,
it restarts once more from the means of faiss's k-means if a cluster with one row remains. Its inertia covers all rows.
"""

from collections.abc import Callable, Iterator

import numpy as np
from labelkit.algorithms.clustering import kmeans, semi_supervised_kmeans
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from benchmarks.measure import Row, Wanted, compare, seconds

Floats = NDArray[np.float32]

INERTIA_TOLERANCE = 1e-4
FAISS_ITERATIONS = 25  # faiss's default
LABELED_ITERATIONS, LABELED_TOLERANCE = 100, 1e-4  # of our semi-supervised k-means
# Rows, columns, clusters, initializations, repetitions.
SIZES = ((3068, 1280, 10, 10, 3), (20_000, 384, 100, 10, 2), (1_000_000, 128, 100, 1, 1))
# For more rows, only plain k-means: all forms would take minutes.
MANY_ROWS = 100_000


def made_rows(num_rows: int, dim: int, num_clusters: int) -> tuple[Floats, NDArray[np.int64]]:
    """Return rows around random centers, and the center of each."""
    generator = np.random.default_rng(0)
    centers = generator.standard_normal((num_clusters, dim), dtype=np.float32)
    data = generator.standard_normal((num_rows, dim), dtype=np.float32)
    labels = generator.integers(0, num_clusters, num_rows)
    data *= 1.5
    data += centers[labels]
    return data, labels


def inertia_of(data: Floats, centroids: Floats) -> float:
    """Return the sum of squared distances to the nearest centroid, in float64."""
    places = centroids.astype(np.float64)
    squares = (places**2).sum(axis=1)
    total = 0.0
    for start in range(0, len(data), 4096):
        part = data[start : start + 4096].astype(np.float64)
        total += float((part**2).sum() + (squares - 2 * part @ places.T).min(axis=1).sum())
    return total


def faiss_kmeans(data: Floats, num_starts: int, num_clusters: int, num_iterations: int, spherical: bool) -> Floats:
    """Return the centroids of the best of several faiss runs, each with its own initialization."""
    import faiss

    found = faiss.Kmeans(
        data.shape[1],
        num_clusters,
        niter=num_iterations,
        nredo=num_starts,
        seed=1,
        spherical=spherical,
        max_points_per_centroid=len(data),  # by default, faiss trains on a sample of 256 rows per centroid
        min_points_per_centroid=1,
    )
    found.train(data)
    return np.asarray(found.centroids)


def constrained(free: Floats, fixed: Floats, labels: NDArray[np.int64], num_clusters: int, num_starts: int) -> float:
    """Return the lowest inertia of :func:`semi_supervised_kmeans`, implemented with faiss and scipy."""
    from scipy.optimize import linear_sum_assignment

    classes, own = np.unique(labels, return_inverse=True)
    counts = np.bincount(own, minlength=num_clusters)
    sums = _sums(fixed, own, num_clusters)
    means = (sums / np.maximum(counts, 1)[:, None])[: len(classes)].astype(np.float32)
    total = sum(float((rows.astype(np.float64) ** 2).sum()) for rows in (free, fixed))
    squares = np.einsum("ij,ij->i", free, free)

    def distances(place: Floats) -> Floats:
        return np.asarray(np.maximum(squares - 2 * (free @ place) + place @ place, 0), dtype=np.float32)

    best, lonely = np.inf, False
    nearest = np.min([distances(mean) for mean in means], axis=0)
    draws = np.random.default_rng(1).random((num_starts, num_clusters - len(classes)))
    for draw in draws:
        closest, picks = nearest, []
        for uniform in draw:
            shares = np.cumsum(closest, dtype=np.float64)
            picks.append(min(int(np.searchsorted(shares, uniform * shares[-1])), len(free) - 1))
            closest = np.minimum(closest, distances(free[picks[-1]]))
        inertia, sizes = _constrained_run(free, np.concatenate([means, free[picks]]), sums, counts, total)
        if inertia < best:
            best, lonely = inertia, bool((sizes[len(classes) :] == 1).any())
    if lonely:
        found = faiss_kmeans(free, num_starts, num_clusters, FAISS_ITERATIONS, False)
        apart = (means**2).sum(axis=1)[:, None] + (found**2).sum(axis=1) - 2 * means @ found.T
        rest = np.delete(found, linear_sum_assignment(apart)[1], axis=0)
        best = min(best, _constrained_run(free, np.concatenate([means, rest]), sums, counts, total)[0])
    return best


def _constrained_run(
    free: Floats, places: Floats, fixed_sums: NDArray[np.float64], fixed_counts: NDArray[np.int64], total: float
) -> tuple[float, NDArray[np.int64]]:
    """Return the lowest inertia of Lloyd's iterations, and the number of free rows per cluster at that point."""
    import faiss

    best, sizes_then = np.inf, fixed_counts
    exact = places.astype(np.float64)
    for _ in range(LABELED_ITERATIONS):
        index = faiss.IndexFlatL2(free.shape[1])
        index.add(exact.astype(np.float32))
        ids = index.search(free, 1)[1][:, 0]
        sums, sizes = fixed_sums + _sums(free, ids, len(places)), np.bincount(ids, minlength=len(places))
        counts = sizes + fixed_counts
        inertia = total - 2 * float((sums * exact).sum()) + float(counts @ (exact**2).sum(axis=1))
        if inertia < best:
            best, sizes_then = inertia, sizes
        moved = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], exact)
        shift = np.linalg.norm(moved - exact, axis=1).sum()
        exact = moved
        if shift**2 < LABELED_TOLERANCE:
            break
    return best, sizes_then


def _sums(rows: Floats, ids: NDArray[np.int64], num_clusters: int) -> NDArray[np.float64]:
    """Return the sum of the rows of each cluster."""
    from scipy.sparse import csc_array

    members = csc_array((np.ones(len(rows)), ids, np.arange(len(rows) + 1)), shape=(num_clusters, len(rows)))
    return np.asarray(members @ rows.astype(np.float64))


def beside_constrained(
    free: Floats, fixed: Floats, labels: NDArray[np.int64], k: int, num_starts: int, what: str, turns: int
) -> Row:
    """Time semi-supervised k-means against the implementation with faiss and scipy, alternately."""
    import faiss

    inertias: dict[str, float] = {}

    def ours() -> None:
        found = semi_supervised_kmeans(free, fixed, labels, k, generator=np.random.default_rng(1), num_inits=num_starts)
        inertias["ours"] = found.inertia

    def theirs() -> None:
        inertias["theirs"] = constrained(free, fixed, labels, k, num_starts)

    with threadpool_limits(1):
        faiss.omp_set_num_threads(1)
        row = compare(
            f"ss-k-means {what}, {len(fixed):,} labels, from the same draws: speed / by faiss and scipy",
            seconds(ours),
            seconds(theirs),
            wanted=Wanted(">=", 1),
            repetitions=turns,
            warmups=0,
        )
    apart = inertias["ours"] / inertias["theirs"]
    return {
        **row,
        "name": f"{row['name']}; inertia {apart:.4f} of it",
        "wanted": ">= 1, inertia no higher",
        "ok": row["ok"] and apart <= 1 + INERTIA_TOLERANCE,
    }


def beside_faiss(data: Floats, name: str, ours: Callable[[], Floats], theirs: Callable[[], Floats], turns: int) -> Row:
    """Time both sides alternately; ``ours`` and ``theirs`` return centroids."""
    import faiss

    found: dict[str, Floats] = {}
    with threadpool_limits(1):
        faiss.omp_set_num_threads(1)
        row = compare(
            name,
            seconds(lambda: found.update(ours=ours())),
            seconds(lambda: found.update(theirs=theirs())),
            wanted=Wanted(""),
            repetitions=turns,
            warmups=0,
        )
    apart = inertia_of(data, found["ours"]) / inertia_of(data, found["theirs"])
    return {
        **row,
        "name": f"{name}: speed / faiss from random rows; inertia {apart:.4f} of it",
        "wanted": "inertia no higher",
        "ok": apart <= 1 + INERTIA_TOLERANCE,
    }


def faiss_rows(num_rows: int, dim: int, k: int, num_starts: int, turns: int) -> Iterator[Row]:
    """Yield all three forms of k-means."""
    data, labels = made_rows(num_rows, dim, k)
    what = f"n={num_rows:,} d={dim} k={k}, {num_starts} start{'s' * (num_starts > 1)}"
    fixed = (labels < k // 2) & (np.arange(num_rows) % 20 == 0)

    def rng() -> np.random.Generator:
        return np.random.default_rng(1)

    kmeans(data[:200], 2, generator=rng())  # the first call pays for imports
    yield beside_faiss(
        data,
        f"k-means {what}",
        lambda: kmeans(data, k, generator=rng(), num_inits=num_starts).centroids,
        lambda: faiss_kmeans(data, num_starts, k, FAISS_ITERATIONS, False),
        turns,
    )
    if num_rows >= MANY_ROWS:
        return
    yield beside_constrained(data[~fixed], data[fixed], labels[fixed], k, num_starts, what, turns)
    data /= np.linalg.norm(data, axis=-1, keepdims=True)
    yield beside_faiss(
        data,
        f"spherical k-means {what}",
        lambda: kmeans(data, k, generator=rng(), num_inits=num_starts, spherical=True).centroids,
        lambda: faiss_kmeans(data, num_starts, k, FAISS_ITERATIONS, True),
        turns,
    )


def rows() -> Iterator[Row]:
    """Yield every comparison."""
    for size in SIZES:
        yield from faiss_rows(*size)


def quick_rows() -> Iterator[Row]:
    """Yield the comparisons with few rows."""
    yield from faiss_rows(*SIZES[0])

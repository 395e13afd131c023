"""Time semi-supervised k-means against the same algorithm read point by point, and k-means against faiss.

Run: ``python tests/benchmarks/bench_clustering.py``. Point by point, both sides get the same rows, the same uniform
draws and the same number of iterations, so they must find the same inertia. Faiss begins elsewhere, with its own number
of iterations: its row holds the inertia of both, and ours must not be higher.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TypedDict

import numpy as np
from labelkit.algorithms.clustering import kmeans, semi_supervised_kmeans
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

# With more labeled classes or noise a cluster ends with the one row it started at, for which ours starts once more.
NUM_ROWS, DIM, NUM_CLUSTERS, NUM_OLD_CLASSES, NOISE = 20_000, 384, 100, 10, 0.5
NUM_ITERATIONS = 3
WANTED_RATIO = 5.0
INERTIA_TOLERANCE = 1e-4
SMALL = (3068, 1280, 10)
LARGE = (20_000, 384, 100)
NUM_STARTS, REPEATS = 10, 3


class Row(TypedDict):
    """One line of the table: seconds of both sides, their ratio, and the ratio asked for."""

    name: str
    ours_s: float
    peer_s: float
    ratio: float
    wanted: str
    ok: bool


def make_data(seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]:
    """Return unlabeled rows, labeled rows and their labels: unit vectors around class directions.

    Half of the rows of the old classes are labeled.
    """
    generator = np.random.default_rng(seed)
    labels = np.arange(NUM_ROWS) % NUM_CLUSTERS
    noise = generator.standard_normal((NUM_ROWS, DIM))
    rows = generator.standard_normal((NUM_CLUSTERS, DIM))[labels] + NOISE * noise
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    is_labeled = (labels < NUM_OLD_CLASSES) & (np.arange(NUM_ROWS) < NUM_ROWS // 2)
    single = rows.astype(np.float32)
    return single[~is_labeled], single[is_labeled], labels[is_labeled]


def point_by_point(
    unlabeled: NDArray[np.float32],
    labeled: NDArray[np.float32],
    labels: NDArray[np.int64],
    num_clusters: int,
    draws: NDArray[np.float64],
    num_iterations: int,
) -> float:
    """Read the algorithm literally, one row at a time in float64; return the lowest inertia."""
    free, fixed = unlabeled.astype(np.float64), labeled.astype(np.float64)
    classes = np.unique(labels)
    centroids = [fixed[labels == label].mean(axis=0) for label in classes]
    closest = np.array([((np.array(centroids) - row) ** 2).sum(axis=1).min() for row in free])
    for draw in draws:
        pick = int(np.argmax(np.cumsum(closest) / closest.sum() >= draw))
        centroids.append(free[pick])
        closest = np.array([min(old, ((row - free[pick]) ** 2).sum()) for old, row in zip(closest, free, strict=True)])
    places = np.array(centroids)
    own = np.searchsorted(classes, labels)
    best = np.inf
    for _ in range(num_iterations):
        inertia = 0.0
        sums, counts = np.zeros_like(places), np.zeros(num_clusters)
        for row in free:
            distances = ((places - row) ** 2).sum(axis=1)
            nearest = distances.argmin()
            inertia += distances[nearest]
            sums[nearest] += row
            counts[nearest] += 1
        for row, cluster in zip(fixed, own, strict=True):
            inertia += ((row - places[cluster]) ** 2).sum()
            sums[cluster] += row
            counts[cluster] += 1
        best = min(best, inertia)
        places = sums / counts[:, None]
    return float(best)


def beside_faiss(num_rows: int, dim: int, num_clusters: int) -> Row:
    """Time k-means and faiss's in turns, with one thread each and as many starts."""
    import faiss

    generator = np.random.default_rng(0)
    centers = generator.standard_normal((num_clusters, dim))
    noise = generator.standard_normal((num_rows, dim))
    data = (centers[generator.integers(0, num_clusters, num_rows)] + 1.5 * noise).astype(np.float32)

    def theirs() -> float:
        found = faiss.Kmeans(dim, num_clusters, nredo=NUM_STARTS, seed=1)
        found.train(data)
        return float(found.index.search(data, 1)[0].sum())

    def ours() -> float:
        return kmeans(data, num_clusters, generator=np.random.default_rng(1), num_inits=NUM_STARTS).inertia

    def seconds(run: Callable[[], float]) -> tuple[float, float]:
        begin = time.perf_counter()
        inertia = run()
        return time.perf_counter() - begin, inertia

    with threadpool_limits(1):
        faiss.omp_set_num_threads(1)
        pairs = [(seconds(ours), seconds(theirs)) for _ in range(REPEATS)]
    ours_s, peer_s = (statistics.median(pair[side][0] for pair in pairs) for side in (0, 1))
    apart = pairs[0][0][1] / pairs[0][1][1]
    ratio = statistics.median(peer[0] / mine[0] for mine, peer in pairs)
    return Row(
        name=f"k-means n={num_rows} d={dim} k={num_clusters}, {NUM_STARTS} starts / faiss; inertia {apart:.4f} of it",
        ours_s=ours_s,
        peer_s=peer_s,
        ratio=ratio,
        wanted=">= 1 times as fast, inertia no higher",
        ok=ratio >= 1 and apart <= 1 + INERTIA_TOLERANCE,
    )


def rows() -> list[Row]:
    """Time both sides and compare what they found."""
    return [_point_by_point_row(), beside_faiss(*SMALL), beside_faiss(*LARGE)]


def _point_by_point_row() -> Row:
    unlabeled, labeled, labels = make_data(seed=0)
    draws = np.random.default_rng(1).random((1, NUM_CLUSTERS - NUM_OLD_CLASSES))[0]
    # The first call pays for imports.
    semi_supervised_kmeans(unlabeled[:200], labeled, labels, 60, generator=np.random.default_rng(1), num_inits=1)

    begin = time.perf_counter()
    ours = semi_supervised_kmeans(
        unlabeled,
        labeled,
        labels,
        NUM_CLUSTERS,
        generator=np.random.default_rng(1),
        num_inits=1,
        max_iter=NUM_ITERATIONS,
        tol=0,
    )
    ours_s = time.perf_counter() - begin
    begin = time.perf_counter()
    peer_inertia = point_by_point(unlabeled, labeled, labels, NUM_CLUSTERS, draws, NUM_ITERATIONS)
    peer_s = time.perf_counter() - begin

    ratio = peer_s / ours_s
    apart = abs(ours.inertia - peer_inertia) / peer_inertia
    return Row(
        name=f"ss-k-means n={NUM_ROWS} d={DIM} k={NUM_CLUSTERS}, inertia apart by {apart:.0e}",
        ours_s=ours_s,
        peer_s=peer_s,
        ratio=ratio,
        wanted=f">= {WANTED_RATIO:g} times faster, inertia within {INERTIA_TOLERANCE:.0e}",
        ok=ratio >= WANTED_RATIO and apart <= INERTIA_TOLERANCE,
    )


def main() -> int:
    """Print the table; return 0 if every wanted ratio is met."""
    table = rows()
    print("name | ours | peer | ratio | wanted")  # noqa: T201 - a script's result
    for row in table:
        verdict = "" if row["ok"] else " (missed)"
        print(  # noqa: T201 - a script's result
            f"{row['name']} | {row['ours_s']:.2f} s | {row['peer_s']:.2f} s | {row['ratio']:.1f} | "
            f"{row['wanted']}{verdict}"
        )
    return 0 if all(row["ok"] for row in table) else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""Time semi-supervised k-means against the same algorithm read point by point.

Run: ``python tests/benchmarks/bench_clustering.py``. Both sides get the same rows, the same
uniform draws and the same number of iterations, so they must find the same inertia.
"""

from __future__ import annotations

import time
from typing import TypedDict

import numpy as np
from labelkit.algorithms.clustering import semi_supervised_kmeans
from numpy.typing import NDArray

NUM_ROWS, DIM, NUM_CLUSTERS, NUM_OLD_CLASSES = 20_000, 384, 100, 50
NUM_ITERATIONS = 3
WANTED_RATIO = 5.0
INERTIA_TOLERANCE = 1e-4


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

    Half of the rows of the old classes, a quarter of all, are labeled.
    """
    generator = np.random.default_rng(seed)
    labels = np.arange(NUM_ROWS) % NUM_CLUSTERS
    noise = generator.standard_normal((NUM_ROWS, DIM))
    rows = generator.standard_normal((NUM_CLUSTERS, DIM))[labels] + 1.5 * noise
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


def rows() -> list[Row]:
    """Time both sides once and compare what they found."""
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
    return [
        Row(
            name=f"ss-k-means n={NUM_ROWS} d={DIM} k={NUM_CLUSTERS}, inertia apart by {apart:.0e}",
            ours_s=ours_s,
            peer_s=peer_s,
            ratio=ratio,
            wanted=f">= {WANTED_RATIO:g} times faster, inertia within {INERTIA_TOLERANCE:.0e}",
            ok=ratio >= WANTED_RATIO and apart <= INERTIA_TOLERANCE,
        )
    ]


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

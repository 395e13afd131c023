"""Time `discover categories` against a plain loop of scikit-learn's MiniBatchKMeans over the same numbers of classes.

Our side is the whole command in a separate process: the number of classes with its interval, and a class for every row.
The peer clusters the same rows, in memory, for several evenly spaced numbers of clusters (only the middle one for large
stores); its mean time counts for all numbers, and it evaluates none of them. Both sides are measured in CPU time; our
wall time has a limit, too. The last benchmark has a memory limit below the size of its rows.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from labelkit.algorithms.num_classes import candidate_class_counts
from labelkit.store.embeddings import open_store
from labelkit.store.results import read_result
from numpy.typing import NDArray
from sklearn.cluster import MiniBatchKMeans

from benchmarks import made_stores
from benchmarks.bench_load import measure
from benchmarks.measure import Row, own_cache

SEEDS = {"rows": 0, "draws": 0}
# Numbers of clusters for the peer; for many rows only the middle one, close to the mean of evenly spaced ones.
PEER_NUMBERS, MANY_ROWS = 3, 100_000


@dataclass(frozen=True)
class Size:
    """A size of the problem: rows around centers; half of the rows of half of the classes are labeled, or none."""

    rows: int
    dim: int
    classes: int
    most: int
    limit_s: float
    labeled: bool


SIZES = (
    Size(20_000, 384, 100, 200, 30, labeled=True),
    Size(20_000, 384, 100, 200, 30, labeled=False),
    Size(3_068, 1_280, 10, 999, 15, labeled=True),
    Size(1_000_000, 384, 100, 200, 300, labeled=False),
)


def write_store(path: Path, size: Size) -> None:
    """Write unit vectors around a direction per class."""
    generator = np.random.default_rng(SEEDS["rows"])
    labels = np.arange(size.rows) % size.classes
    old = np.arange(size.classes) < size.classes // 2
    centers = generator.standard_normal((size.classes, size.dim), dtype=np.float32)

    def rows_of(start: int, stop: int) -> NDArray[np.float32]:
        noise = generator.standard_normal((stop - start, size.dim), dtype=np.float32)
        rows = centers[labels[start:stop]] + 1.5 * noise
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))

    labeled = old[labels] & (np.arange(size.rows) < size.rows // 2) & size.labeled
    made_stores.write_store(path, labels, size.dim, rows_of, labeled=labeled, old_classes=old & size.labeled)


def rows() -> Iterator[Row]:
    """Yield a row for each size."""
    for size in SIZES:
        with own_cache() as folder:
            path = folder / "rows.h5"
            write_store(path, size)
            yield _row(path, size)


def _row(path: Path, size: Size) -> Row:
    words = ["discover", "categories", "--index", str(path), "--max-classes", str(size.most)]
    wall_s, ours_s, peak = measure(words)
    store = open_store(path)
    found = read_result(store, "categories").params
    numbers = candidate_class_counts(*found["searched"])
    peer_s = _peer_seconds(np.asarray(store.embeddings), numbers)
    labels = f"labels of {size.classes // 2} classes" if size.labeled else "no labels"
    return Row(
        name=f"how many of {size.classes} classes, {size.rows:,} x {size.dim}, {labels}, {numbers[0]}-{numbers[-1]}: "
        f"{found['num_classes']} of {found['interval']}, {wall_s:.0f} s, {peak / 2**30:.2f} GiB; CPU",
        ours_s=ours_s,
        peer_s=peer_s,
        ratio=ours_s / peer_s,
        wanted=f"<= 1, in {size.limit_s:g} s",
        ok=ours_s <= peer_s and wall_s <= size.limit_s,
    )


def _peer_seconds(x: np.ndarray, numbers: list[int]) -> float:
    """Return the CPU seconds for all numbers of clusters, extrapolated from the mean of some."""
    places = np.linspace(0, len(numbers) - 1, PEER_NUMBERS).round().astype(int)
    some = [numbers[place] for place in (places if len(x) < MANY_ROWS else places[PEER_NUMBERS // 2 :][:1])]
    begin = time.process_time()
    for number in some:
        MiniBatchKMeans(number, n_init=1, random_state=SEEDS["draws"]).fit(x)
    return (time.process_time() - begin) / len(some) * len(numbers)

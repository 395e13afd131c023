"""CPU time of commands on a store in 16 shards against the same store in one file, by turns in one process.

The rows lie around 100 directions, so that k-means ends. CPU time counts what the files cost; waiting is left out.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import labelkit
import numpy as np
from labelkit.store.embeddings import open_store

from benchmarks.measure import Row, Wanted, compare, processor_seconds, with_check

SEEDS = {"rows": 0}
ROWS, DIM, CENTERS, SHARDS = 100_000, 128, 100, 16
REPETITIONS = 9
WANTED = Wanted("<=", 1.05)
# some milliseconds for 16 files, whatever their rows
WANTED_OPENED = Wanted("<=", 1.1)


def rows() -> Iterator[Row]:
    """Yield a row for opening, for k-means and for retrieval."""
    with tempfile.TemporaryDirectory() as folder:
        one, many = make_stores(Path(folder))

        def cluster(path: Path) -> object:
            return labelkit.cluster.k_means(index=path, num_clusters=CENTERS, num_inits=1, overwrite=True).values

        def retrieve(path: Path) -> object:
            found = labelkit.retrieve(index=path, query_rows=tuple(range(0, ROWS, 100))).values
            return found["queries"]

        def opened(path: Path) -> object:
            return open_store(path).embeddings.sum()

        for what, work, key, wanted in (
            ("open a store and compare its digests", opened, None, WANTED_OPENED),
            ("cluster k-means", cluster, "inertia", WANTED),
            ("retrieve, 1,000 queries", retrieve, None, WANTED),
        ):
            name = f"{what}, {ROWS:,} x {DIM}: CPU time in {SHARDS} shards / in one file"
            row = compare(name, cpu_seconds(work, many), cpu_seconds(work, one), wanted=wanted, repetitions=REPETITIONS)
            answers = [work(path) for path in (one, many)]
            if key is not None:
                answers = [answer[key] for answer in answers]  # type: ignore[index] # values of a result
            yield with_check(row, "results", bool(answers[0] == answers[1]))


quick_rows = rows


def make_stores(folder: Path) -> tuple[Path, Path]:
    """Write a store in one file and the same in shards."""
    generator = np.random.default_rng(SEEDS["rows"])
    centers = generator.normal(size=(CENTERS, DIM))
    points = centers[generator.integers(0, CENTERS, ROWS)] + generator.normal(size=(ROWS, DIM))
    np.save(folder / "rows.npy", points.astype(np.float32))
    one, many = folder / "one.h5", folder / "many.h5"
    labelkit.import_(source=folder / "rows.npy", out=one)
    labelkit.pack(index=one, out=many, shards=SHARDS)
    return one, many


def cpu_seconds(work: Callable[[Path], object], path: Path) -> Callable[[], float]:
    """Time the work on a store; what it says goes nowhere."""

    def quiet() -> None:
        with contextlib.redirect_stderr(io.StringIO()):
            work(path)

    return processor_seconds(quiet)

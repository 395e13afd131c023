"""Measure time and recall of queries with HNSW and IVF-PQ indexes, against faiss with the same index.

Both sides search the same index with the same width, and rescore compressed rows in float32 (``IndexRefine``, without
which the recall of the peer would be lower). Ours rescores them in float64. ``LABELKIT_BENCH_INDEX_ROWS=1000000`` makes
the gallery larger (default 100,000). ``LABELKIT_BENCH_INDEX_FOLDER`` is a folder in which indexes are kept; at that
size, the graph takes about ten minutes on one core.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from labelkit.algorithms.indexes import WIDTHS, ApproximateSearch, Kind, build_index
from labelkit.algorithms.neighbors import ExactSearch
from numpy.typing import NDArray

from benchmarks.measure import Row, Wanted, compare, seconds

SEEDS = {"rows": 0}
ROWS, DIM, CENTERS = int(os.environ.get("LABELKIT_BENCH_INDEX_ROWS", "100000")), 128, 1_000
FOLDER = os.environ.get("LABELKIT_BENCH_INDEX_FOLDER")
QUERIES, K, REPETITIONS = 500, 10, 5
# as `retrieve --search`
RESCORED = 100
# in addition to the search, a query takes about 0.3 ms: it is validated, and its candidates are scored in float64
RATE = Wanted(">=", 0.25)
# ours returns the same rows, ranked at least as exactly: any loss is a fault
RECALL_LOSS = 1e-3


def make_rows() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return a gallery of unit vectors around centers, and queries from the same distribution."""
    generator = np.random.default_rng(SEEDS["rows"])
    centers = generator.standard_normal((CENTERS, DIM), dtype=np.float32)
    rows = centers[np.arange(ROWS + QUERIES) % CENTERS]
    rows = rows + generator.standard_normal(rows.shape, dtype=np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows[:ROWS], rows[ROWS:]


def kept(kind: Kind, gallery: NDArray[np.float32]) -> tuple[Any, str]:
    """Build an index, or read a cached one; also return the build time."""
    path = None if FOLDER is None else Path(FOLDER) / f"{kind}-{ROWS}-{faiss.__version__}.index"
    if path is not None and path.exists():
        return faiss.read_index(str(path)), path.with_suffix(".txt").read_text()
    begin = time.process_time()
    index = build_index(gallery, kind)
    took = f"built in {time.process_time() - begin:.0f} CPU s"
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        faiss.write_index(index, str(path))
        path.with_suffix(".txt").write_text(f"{took} before")
    return index, took


def recall(found: NDArray[np.int64], truth: NDArray[np.int64]) -> float:
    """Return the fraction of true neighbors that were found."""
    return float(np.mean([len(set(mine) & set(theirs)) / K for mine, theirs in zip(found, truth, strict=True)]))


def one_by_one(search: Callable[[NDArray[np.float32]], Any], queries: NDArray[np.float32]) -> Callable[[], float]:
    """Return a function that times all queries, one at a time."""
    return seconds(lambda: [search(query[None]) for query in queries])


def rows() -> Iterator[Row]:
    """Yield a row for the graph and one for compressed rows."""
    faiss.omp_set_num_threads(torch.get_num_threads())
    gallery, queries = make_rows()
    _, truth = ExactSearch(gallery).search(queries, K)

    def row(name: str, built: str, ours: ApproximateSearch, peer: Callable[[NDArray[np.float32]], Any]) -> Row:
        mine = recall(ours.search(queries, K)[1], truth)
        theirs = recall(peer(queries)[1], truth)
        found = compare(
            f"{QUERIES} warm queries one by one, {name}, {ROWS:,} x {DIM}, {built}, "
            f"recall@{K} {mine:.3f} (faiss {theirs:.3f}): rate / faiss",
            one_by_one(lambda query: ours.search(query, K), queries),
            one_by_one(peer, queries),
            wanted=RATE,
            repetitions=REPETITIONS,
        )
        return {**found, "ok": found["ok"] and mine >= theirs - RECALL_LOSS}

    graph, built = kept("hnsw", gallery)
    graph.hnsw.efSearch = WIDTHS["hnsw"]
    yield row("HNSW", built, ApproximateSearch(graph, gallery), lambda asked: graph.search(asked, K))

    lists, built = kept("ivfpq", gallery)
    lists.nprobe = WIDTHS["ivfpq"]
    flat = faiss.IndexFlatIP(DIM)
    flat.add(gallery)
    refined: Any = faiss.IndexRefine(lists, flat)
    refined.k_factor = RESCORED / K
    yield row("IVF-PQ", built, ApproximateSearch(lists, gallery), lambda asked: refined.search(asked, K))

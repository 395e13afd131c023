"""Time the balanced assignment against POT and the published algorithm, also on a problem larger than memory.

Memory is measured in separate processes. With ``LABELKIT_BENCH_SINKHORN_ROWS=1281167``, the last row has the size of
ImageNet with 3,000 clusters, which takes a temporary file of 7.7 GB and a few minutes.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from labelkit.algorithms.sinkhorn import SinkhornResult, solve_assignment
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from benchmarks.measure import Row, Wanted, compare, seconds, with_check

SEEDS = {"features": 0}
NUM_ROWS, NUM_CLUSTERS, DIM = 50_000, 1_000, 64
SCORE_DEVIATION, LAM, TOL = 0.5, 25.0, 1e-4
REPETITIONS = 3
WANTED_RATIO = 2.0
# both sides stop at an error at which some labels may still change
SAME_LABELS = 0.999
FILE_ROWS, FILE_CLUSTERS = int(os.environ.get("LABELKIT_BENCH_SINKHORN_ROWS", "60000")), 3_000
FILE_MEMORY_BYTES = 4 << 30


def make_scores(n: int, k: int, out: NDArray[Any]) -> None:
    """Fill (n, k) scores with standard deviation 0.5, in blocks: random features times random prototypes."""
    generator = torch.Generator().manual_seed(SEEDS["features"])
    weight = torch.randn(DIM, k, generator=generator) * (SCORE_DEVIATION / DIM**0.5)
    for start in range(0, n, 4096):
        features = torch.randn(min(4096, n - start), DIM, generator=generator)
        out[start : start + 4096] = (features @ weight).to(torch.float16 if out.dtype == np.float16 else torch.float32)


Solved = tuple[NDArray[np.int64], int, float]
"""Labels, iterations, marginal error."""


def published(scores: NDArray[Any], tol: float) -> Solved:
    """Run the algorithm of the published code: two products per iteration, labels at the end.

    In its favor, the row maximum prevents underflow of the power, and computing the error costs no extra product.
    """
    return scaled(np.exp(LAM * (scores - scores.max(axis=1, keepdims=True))), tol)


def scaled(kernel: NDArray[Any], tol: float) -> Solved:
    """Run the scaling iterations on a kernel, which becomes the plan."""
    n, k = kernel.shape
    beta = np.full(n, 1 / n, dtype=kernel.dtype)
    iterations = 0
    alpha = np.zeros(k, dtype=kernel.dtype)
    while True:
        columns = beta @ kernel
        error = float(np.abs(alpha * columns - 1 / k).sum())
        if iterations and error <= tol:
            kernel *= alpha
            return kernel.argmax(axis=1), iterations, error
        alpha = 1 / k / columns
        beta = 1 / n / (kernel @ alpha)
        iterations += 1


def rows() -> Iterator[Row]:
    """Yield the comparisons, on one thread on both sides."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield from against_peers()
        yield from file_rows()
    finally:
        torch.set_num_threads(threads)


quick_rows = rows


def against_peers() -> Iterator[Row]:
    """Compare one full solve on one thread, from scores to labels, at the same marginal error."""
    scores = np.empty((NUM_ROWS, NUM_CLUSTERS), dtype=np.float32)
    make_scores(NUM_ROWS, NUM_CLUSTERS, scores)
    double = scores.astype(np.float64)
    found = solve_assignment(scores, LAM, tol=TOL)
    what = f"sinkhorn {NUM_ROWS:,} x {NUM_CLUSTERS:,}, L1 {TOL:g}, {found.num_iterations} passes"

    def row(name: str, peer: Callable[[], Solved]) -> Row:
        labels, iterations, error = peer()
        measured = compare(
            f"{what} / {name}, {iterations} iterations",
            seconds(lambda: solve_assignment(scores, LAM, tol=TOL)),
            seconds(peer),
            wanted=Wanted(">=", WANTED_RATIO),
            repetitions=REPETITIONS,
            warmups=0,
        )
        return with_check(measured, *equal(found, labels, error))

    yield row("published code, numpy float64", lambda: published(double, TOL))
    yield from pot_row(what, scores, found, double)


def equal(found: SinkhornResult, labels: NDArray[np.int64], error: float) -> tuple[str, bool]:
    """What :func:`with_check` says of a peer's solution: its error as small as ours, and its labels ours."""
    share = float((labels == found.cluster_ids.numpy()).mean())
    good = found.marginal_error <= TOL and error <= TOL and share >= SAME_LABELS
    return f"error (at most {TOL:g}) and labels ({share:.3%})", good


def pot_row(
    what: str, scores: NDArray[np.float32], found: SinkhornResult, double: NDArray[np.float64]
) -> Iterator[Row]:
    """Compare with POT, with its error checks disabled and the same number of iterations as ours."""
    if importlib.util.find_spec("ot") is None:
        yield Row(
            name="sinkhorn / POT: not installed (pip install -e '.[bench]')",
            ours_s=float("nan"),
            peer_s=float("nan"),
            ratio=float("nan"),
            wanted="skipped",
            ok=True,
        )
        return
    import ot  # type: ignore[import-not-found] # an extra

    _, iterations, _ = published(double, TOL)
    weights = [np.full(number, 1 / number) for number in double.shape]

    def peer() -> NDArray[np.float64]:
        plan: NDArray[np.float64] = ot.sinkhorn(
            *weights, -double, 1 / LAM, numItermax=iterations, stopThr=0, warn=False
        )
        return plan

    plan = peer()
    # POT's result matches the column sums exactly, and the row sums approximately
    error = float(np.abs(plan.sum(axis=1) - 1 / len(plan)).sum())
    measured = compare(
        f"{what} / POT ot.sinkhorn, {iterations} iterations",
        seconds(lambda: solve_assignment(scores, LAM, tol=TOL)),
        seconds(lambda: peer().argmax(axis=1)),
        wanted=Wanted(">=", WANTED_RATIO),
        repetitions=1,
        warmups=0,
    )
    yield with_check(measured, *equal(found, plan.argmax(axis=1), error))


# The peak is that of the address space, from /proc: getrusage also counts the parent process.
FROM_FILE = """
import json, os, sys, time
import numpy as np, torch
from labelkit.algorithms.row_blocks import StoredRows
from benchmarks import bench_sinkhorn as bench
from benchmarks.measure import memory
from labelkit.algorithms.sinkhorn import solve_assignment

torch.set_num_threads(min(2, os.cpu_count() or 1))
scores = np.load(sys.argv[1], mmap_mode="r")
begin = time.perf_counter()
found = solve_assignment(StoredRows(scores, in_blocks=True), bench.LAM, tol=bench.TOL, memory_bytes=0)
seconds = time.perf_counter() - begin
print(json.dumps({"passes": found.num_iterations, "seconds": seconds, "rss": memory("VmHWM")}))
"""


def file_rows() -> Iterator[Row]:
    """Solve from a half-precision memory map: compare a pass with reading the file once; then measure memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scores.npy"
        scores = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=(FILE_ROWS, FILE_CLUSTERS))
        make_scores(FILE_ROWS, FILE_CLUSTERS, scores)
        scores.flush()
        del scores
        size = path.stat().st_size
        read_s = read_from_disk(path)
        done = subprocess.run([sys.executable, "-c", FROM_FILE, path], check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    pass_s = found["seconds"] / (found["passes"] + 2)
    what = f"sinkhorn {FILE_ROWS:,} x {FILE_CLUSTERS:,} from a map of {size / 1e9:.2f} GB"
    yield Row(
        name=f"{what}, {found['passes']} passes + 2, {found['seconds']:.0f} s in all: one pass / one read from disk",
        ours_s=pass_s,
        peer_s=read_s,
        ratio=pass_s / read_s,
        wanted=f"shown only ({size / pass_s / 1e9:.2f} of {size / read_s / 1e9:.2f} GB/s)",
        ok=True,
    )
    yield Row(
        name=f"{what}: peak memory of the process / 4 GiB (times are GB)",
        ours_s=found["rss"] / 1e9,
        peer_s=FILE_MEMORY_BYTES / 1e9,
        ratio=found["rss"] / FILE_MEMORY_BYTES,
        wanted="<= 1",
        ok=found["rss"] <= FILE_MEMORY_BYTES,
    )


def read_from_disk(path: Path) -> float:
    """Return the seconds to read a file that is not in the page cache."""
    with path.open("rb", buffering=0) as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        begin = time.perf_counter()
        while file.read(1 << 26):
            pass
        return time.perf_counter() - begin

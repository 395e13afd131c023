"""Time and memory of retrieval: scoring against the bare product and a peer, warm search, a cold ``retrieve``.

Memory is measured in separate processes. ``LABELKIT_BENCH_RETRIEVAL_ROWS`` sets the size of the problem (default
60,502, the size of the test split of Stanford Online Products); the speed of scoring is measured on a third of the
rows. For indexes, see ``bench_index.py``.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from labelkit.algorithms.neighbors import ExactSearch
from labelkit.commands.embed.embed import embed_images
from labelkit.metrics.retrieval import score_retrieval
from labelkit.options.embed import EmbedConfig
from numpy.typing import NDArray
from PIL import Image

from benchmarks.made_stores import write_store
from benchmarks.measure import Row, Wanted, compare, seconds

SEEDS = {"rows": 0, "weights": 0}
NUM_ROWS, DIM, PER_CLASS = int(os.environ.get("LABELKIT_BENCH_RETRIEVAL_ROWS", "60502")), 512, 5
# Products and scores both grow with the square of the number of rows: a third of them takes a ninth of the time.
RATE_ROWS = NUM_ROWS // 3
KS = (1, 10, 100)
WANTED_RATE, WANTED_GIB = 0.6, 1.5
# The peer keeps as many neighbors per row as the largest class has members.
PEER_SIZES = ((20_000, 128, 5), (10_000, 128, 1_000))
PEER_REPETITIONS, WANTED_PEER, WANTED_PEER_MEMORY = 3, 0.8, 0.1
INDEX_DIM, INDEX_CENTERS = 128, 1_000
EXACT_ROWS = 1_000_000
QUERIES, SEARCH_K = 20, 10
COLD_REPETITIONS, WANTED_COLD = 3, 1.3

MEMORY = """
import sys
from benchmarks.measure import memory
from labelkit.cli.main import main
code = main(sys.argv[1:])
print(code, memory("VmHWM"))
"""

PEER = """
import json, sys, time
import numpy as np, torch
from benchmarks import bench_retrieval as bench
from benchmarks.measure import memory

side, n, dim, per_class = sys.argv[1], *(int(word) for word in sys.argv[2:5])
torch.set_num_threads(int(sys.argv[5]))
rows, labels = bench.make_rows(n, dim, per_class, spread=2.0)
score = {"ours": bench.scores_of_ours, "peer": bench.scores_of_peer}[side]
score(rows[:400], labels[:400] // 100)  # imports
before = memory("VmRSS")
print("ready", flush=True)
for _ in sys.stdin:
    begin = time.perf_counter()
    found = score(rows, labels)
    seconds = time.perf_counter() - begin
    print(json.dumps({"seconds": seconds, "growth": memory("VmHWM") - before, "scores": found}), flush=True)
"""

COLD_PEER = """
import torch, timm
torch.set_num_threads(int({threads}))
network = timm.create_model("resnet18", num_classes=0).eval()
with torch.inference_mode():
    network(torch.zeros(1, 3, 32, 32))
"""


def make_rows(
    n: int, dim: int, per_class: int, *, spread: float | None = None
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return unit vectors and classes: random, or around one direction per class, with noise scaled by ``spread``."""
    generator = np.random.default_rng(SEEDS["rows"])
    labels = np.arange(n) // per_class
    rows = generator.standard_normal((n, dim), dtype=np.float32)
    if spread is not None:
        rows *= spread
        rows += generator.standard_normal((labels[-1] + 1, dim), dtype=np.float32)[labels]
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows, labels


def scores_of_ours(rows: NDArray[np.float32], labels: NDArray[np.int64]) -> list[float]:
    """Compute Recall@1, R-precision and MAP@R with labelkit, with as many threads as torch has, as in the command."""
    found = score_retrieval(rows, labels, num_threads=torch.get_num_threads())
    return [found.recall_at[1], found.mean_r_precision, found.map_at_r]


def scores_of_peer(rows: NDArray[np.float32], labels: NDArray[np.int64]) -> list[float]:
    """Compute the same with pytorch-metric-learning."""
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    names = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    calculator = AccuracyCalculator(include=names, k="max_bin_count", device=torch.device("cpu"))
    found = calculator.get_accuracy(torch.from_numpy(rows), torch.from_numpy(labels))
    return [float(found[name]) for name in names]


def environment() -> dict[str, str]:
    """Return an environment in which both sides use as many threads as torch does here."""
    threads = str(torch.get_num_threads())
    return {**os.environ, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}


def rows() -> Iterator[Row]:
    """Yield every comparison."""
    yield rate_row()
    yield memory_row()
    yield from peer_rows()
    yield exact_row()
    yield cold_row()


def rate_row() -> Row:
    """Compare recall on a third of the rows with torch.mm of the same blocks, alternately."""
    from threadpoolctl import threadpool_limits

    embeddings, labels = make_rows(RATE_ROWS, DIM, PER_CLASS)
    held = torch.from_numpy(embeddings)
    products: list[float] = []
    done = 0

    def product(num_queries: int) -> None:
        nonlocal done
        begin = time.perf_counter()
        torch.mm(held[done : done + num_queries], held.T)
        products.append(time.perf_counter() - begin)
        done += num_queries

    begin = time.perf_counter()
    with threadpool_limits(torch.get_num_threads()):
        found = score_retrieval(embeddings, labels, ks=KS, at_r=False, on_block=product)
    peer_s = sum(products)
    ours_s = time.perf_counter() - begin - peer_s
    rate = peer_s / ours_s
    recall = ", ".join(f"{100 * found.recall_at[k]:.3g}" for k in KS)
    wanted = Wanted(">=", WANTED_RATE)
    return Row(
        name=f"recall@1/10/100 ({recall}%) of {RATE_ROWS:,} x {DIM} random rows: speed / torch.mm of the blocks",
        ours_s=ours_s,
        peer_s=peer_s,
        ratio=rate,
        wanted=str(wanted),
        ok=wanted.is_met(rate),
    )


def memory_row() -> Row:
    """Measure the peak memory of the whole command at full size."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.h5"
        embeddings, labels = make_rows(NUM_ROWS, DIM, PER_CLASS)
        write_store(path, labels, DIM, lambda start, stop: embeddings[start:stop])
        words = ("evaluate", "retrieval", "--index", str(path), "-k", "1,10,100", "--nmi-seeds", "0", "--no-at-r", "-q")
        done_process = subprocess.run(
            [sys.executable, "-c", MEMORY, *words, "--max-memory", str(WANTED_GIB)],
            check=True,
            capture_output=True,
            text=True,
            env=environment(),
        )
    code, peak = (int(word) for word in done_process.stdout.split()[-2:])
    assert code == 0
    return Row(
        name=f"evaluate retrieval, {NUM_ROWS:,} x {DIM}: peak memory of the process / {WANTED_GIB} GiB (times are GB)",
        ours_s=peak / 1e9,
        peer_s=WANTED_GIB * 2**30 / 1e9,
        ratio=peak / 2**30 / WANTED_GIB,
        wanted="<= 1",
        ok=peak <= WANTED_GIB * 2**30,
    )


def peer_rows() -> Iterator[Row]:
    """Compare the three scores with pytorch-metric-learning, alternately: time, then memory in addition to the rows.

    Each side is a separate process, whose peak after its first repetition counts.
    """
    for n, dim, per_class in PEER_SIZES:
        found: dict[str, list[dict[str, Any]]] = {"ours": [], "peer": []}

        def turn(side: str, process: subprocess.Popen[str], found: Any = found) -> float:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            found[side].append(json.loads(process.stdout.readline()))
            return float(found[side][-1]["seconds"])

        what = f"recall@1, R-precision, MAP@R of {n:,} x {dim}, {per_class:,} per class"
        sizes = (str(n), str(dim), str(per_class), str(torch.get_num_threads()))
        with scoring("ours", *sizes) as ours, scoring("peer", *sizes) as peer:
            row = compare(
                f"{what}: speed / pytorch-metric-learning",
                partial(turn, "ours", ours),
                partial(turn, "peer", peer),
                wanted=Wanted(">=", WANTED_PEER),
                repetitions=PEER_REPETITIONS,
                warmups=0,
            )
        apart = np.abs(np.subtract(found["ours"][0]["scores"], found["peer"][0]["scores"])).max()
        yield {**row, "name": f"{row['name']}, scores apart by {apart:.0e}", "ok": row["ok"] and bool(apart < 1e-4)}
        own, other = (found[side][0]["growth"] for side in ("ours", "peer"))
        yield Row(
            name=f"{what}: memory / pytorch-metric-learning (times are GB)",
            ours_s=own / 1e9,
            peer_s=other / 1e9,
            ratio=own / other,
            wanted=f"<= {WANTED_PEER_MEMORY:g}",
            ok=own <= WANTED_PEER_MEMORY * other,
        )


@contextmanager
def scoring(*words: str) -> Iterator[subprocess.Popen[str]]:
    """Start a process that computes scores for each input line."""
    command = [sys.executable, "-c", PEER, *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment()) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        assert process.stdin is not None
        process.stdin.close()


def exact_row() -> Row:
    """Compare single queries on loaded rows with bare faiss."""
    gallery, _ = make_rows(EXACT_ROWS, INDEX_DIM, EXACT_ROWS // INDEX_CENTERS, spread=1.0)
    queries = gallery[:: EXACT_ROWS // QUERIES]
    exact = ExactSearch(gallery)
    flat = faiss.IndexFlatIP(INDEX_DIM)
    flat.add(gallery)
    faiss.omp_set_num_threads(torch.get_num_threads())
    return compare(
        f"warm query, exact, {EXACT_ROWS:,} x {INDEX_DIM} ({QUERIES} by turns): search / bare faiss",
        seconds(lambda: [exact.search(query[None], SEARCH_K) for query in queries]),
        seconds(lambda: [flat.search(query[None], SEARCH_K) for query in queries]),
        wanted=Wanted("<=", 1.2),
        repetitions=5,
    )


def cold_row() -> Row:
    """Compare a cold ``labelkit retrieve`` of an image with imports and forward pass alone."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cache = {"LABELKIT_CACHE": str(folder / "cache")}
        generator = np.random.default_rng(SEEDS["rows"])
        (folder / "images").mkdir()
        for i in range(64):
            pixels = generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "images" / f"{i:02}.png")
        embed_images(
            EmbedConfig(
                dataset=str(folder / "images"),
                backbone="resnet18",
                random_weights=True,
                image_size=32,
                device="cpu",
                out=folder / "index.h5",
            )
        )
        words = ("--query", str(folder / "images" / "07.png"), "--index", str(folder / "index.h5"), "--device", "cpu")
        command = [sys.executable, "-m", "labelkit", "retrieve", *words, "-k", "5", "-q"]
        peer = [sys.executable, "-c", COLD_PEER.format(threads=torch.get_num_threads())]

        def run(line: list[str]) -> None:
            subprocess.run(line, check=True, stdout=subprocess.DEVNULL, env=environment() | cache)

        return compare(
            "cold labelkit retrieve, resnet18: process / python that imports torch and timm and runs the network",
            seconds(lambda: run(command)),
            seconds(lambda: run(peer)),
            wanted=Wanted("<=", WANTED_COLD),
            repetitions=COLD_REPETITIONS,
        )

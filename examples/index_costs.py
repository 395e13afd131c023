"""Measure the cost and the recall of an index: building, searching and memory mapping.

Run: ``python examples/index_costs.py --rows 1000000 --threads 1 --out examples/results/index_costs.json``

Embeddings with 128 dimensions are generated around centers, 1,000 per center, in four shards. `retrieve` searches for
the neighbors of 1,000 further embeddings, each command in a separate process: exactly, with a graph (hnsw), and with
compressed embeddings (ivfpq). Each index is then searched again with a memory limit that leaves no room for a copy of
the embeddings, and with a single query. The recall is the fraction of the ten exact nearest neighbors that are found.
The time of a single query is the median of 20 queries after building the index; the time of a query among many is a
thousandth of the time for all. The memory is the peak of the process, including pages of mapped files.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from labelkit.commands.store_files.packing import pack_store
from labelkit.store.commit import commit_json
from labelkit.store.embeddings import ModelIdentity, open_store
from labelkit.store.plans import EmbeddingPlan
from labelkit.store.writing import EmbeddingRun
from numpy.typing import NDArray

DIM, ROWS_PER_CENTER, QUERIES, K, SHARDS = 128, 1_000, 1_000, 10, 4
CHILD = """
import json, sys, time
from pathlib import Path
from labelkit.cli.main import main
begin, used = time.perf_counter(), time.process_time()
code = main(sys.argv[2:])
told = {"seconds": time.perf_counter() - begin, "cpu_seconds": time.process_time() - used}
(line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
Path(sys.argv[1]).write_text(json.dumps({**told, "peak_bytes": int(line.split()[1]) * 1024}))
sys.exit(code)
"""


def main() -> None:
    """Create the stores, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000, help="number of rows in the store (100000)")
    parser.add_argument("--kinds", default="hnsw,ivfpq", help="index types, comma-separated (hnsw,ivfpq)")
    parser.add_argument("--threads", type=int, default=1, help="threads per process (1)")
    parser.add_argument("--folder", type=Path, help="folder for stores and indexes; default: a temporary folder")
    parser.add_argument("--out", type=Path, help="JSON file to write the measurements to")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as removed:
        folder = options.folder or Path(removed)
        folder.mkdir(parents=True, exist_ok=True)
        measured = _measure(options, folder)
    if options.out is not None:
        commit_json(options.out, measured)
    else:
        print(json.dumps(measured, indent=1))


def _measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    load = os.getloadavg()
    centers = np.random.default_rng(0).standard_normal(
        (max(10, options.rows // ROWS_PER_CENTER), DIM), dtype=np.float32
    )
    store = folder / "rows.h5"
    if not store.exists():
        whole = open_store(_store(folder / "whole.h5", options.rows, centers, seed=0))
        pack_store(whole, store, shards=SHARDS)
        (folder / "whole.h5").unlink()
    queries = _store(folder / "queries.h5", QUERIES, centers, seed=1)
    found: list[dict[str, Any]] = []
    truth: list[list[int]] = []

    def run(kind: str, step: str, *words: str, asked: str = str(queries)) -> None:
        told = _run(store, asked, kind, folder, folder / "cache", options.threads, words)
        hits = told.pop("hits")
        truth.extend([] if truth else hits)  # the first search is exact
        entry = {"kind": kind, "step": step, "rows": options.rows, **told}
        if len(hits) == QUERIES:
            shares = [len(set(mine) & set(its)) / K for mine, its in zip(hits, truth, strict=True)]
            entry["recall"] = float(np.mean(shares))
        print(json.dumps(entry), file=sys.stderr, flush=True)
        found.append(entry)

    shutil.rmtree(folder / "cache", ignore_errors=True)
    run("exact", "all rows")
    for kind in options.kinds.split(","):
        run(kind, "built")
        run(kind, "searched")
        run(kind, "searched within --max-memory", "--max-memory", "256MiB")
        run(kind, "searched for one row within it", "--max-memory", "256MiB", asked="0")
    return {
        "command": shlex.join(["python", *sys.argv]),
        "versions": {
            "python": platform.python_version(),
            **{n: version(n) for n in ("labelkit-images", "faiss-cpu", "numpy")},
        },
        "machine": {"cores": os.cpu_count(), "threads": options.threads, "load before": round(load[0], 2)},
        "dim": DIM,
        "rows": found,
    }


def _store(path: Path, rows: int, centers: NDArray[np.float32], *, seed: int) -> Path:
    """Write rows around centers; a smaller store contains the first rows of a larger one."""
    if path.exists():
        return path
    plan = EmbeddingPlan(
        sample_ids=[f"{row:09}.png" for row in range(rows)],
        model=ModelIdentity("random rows", "0" * 64, "", "generated", "features", "mean", {}, {}),
        dim=DIM,
        batch_size=1024,
        part_rows=1 << 16,
        metric="cosine",
        created_by="index_costs",
    )
    run = EmbeddingRun.open(path, plan)
    for part in run.pending_parts():
        start, stop = run.part_range(part)
        generator = np.random.default_rng((seed, 2, part))
        around = centers[generator.integers(0, len(centers), 1 << 16)[: stop - start]]
        run.write_part(
            part,
            embeddings=around + generator.standard_normal((stop - start, DIM), dtype=np.float32),
            sha256=np.random.default_rng((seed, 3, part)).integers(0, 256, (stop - start, 32), dtype=np.uint8),
            file_sizes=np.full(stop - start, 100),
            image_sizes=np.full((stop - start, 2), 8),
        )
    run.publish(max_bad=0.0)
    return path


def _words(store: Path, asked: str, kind: str) -> list[str]:
    query = "--query-rows" if asked.isdigit() else "--query"
    return ["retrieve", "--index", str(store), query, asked, "-k", str(K), "--search", kind, "--json"]


def _environment(cache: Path, threads: int) -> dict[str, str]:
    number = str(threads)
    return os.environ | {"OMP_NUM_THREADS": number, "OPENBLAS_NUM_THREADS": number, "LABELKIT_CACHE": str(cache)}


def _run(
    store: Path, asked: str, kind: str, folder: Path, cache: Path, threads: int, words: tuple[str, ...]
) -> dict[str, Any]:
    """Run the queries in a separate process; return its costs and the neighbors found."""
    told = folder / "told.json"
    command = [sys.executable, "-c", CHILD, str(told), *_words(store, asked, kind), *words]
    done = subprocess.run(command, env=_environment(cache, threads), check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{shlex.join(command[4:])}: {done.stderr[-2000:]}")
    answer = json.loads(done.stdout)
    search = answer["search"]
    measured = search.get("measured", {})
    return {
        **json.loads(told.read_text()),
        "words": list(words),
        "index_bytes": search.get("bytes", 0),
        "ms_alone": measured.get("index_ms"),
        "exact_ms_alone": measured.get("exact_ms"),
        "ms_among_many": 1000 * answer["search_seconds"] / len(answer["queries"]),
        "hits": [[hit["row"] for hit in query["hits"]] for query in answer["queries"]],
    }


if __name__ == "__main__":
    main()

"""Measure time and memory of cluster, discover answer and retrieve on generated stores of different sizes.

    python examples/large_stores.py --work /tmp/large --rows 1000000 3000000 10000000

The embeddings have 128 dimensions (float16) and are generated around 100 centers, with one shard per million. 2,000
images of 80 of the classes are labeled. The time is CPU time, so other processes do not affect it. The memory is the
peak of the total memory of a command's processes without mapped files (RssAnon), as reported by Linux.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
from labelkit.store.embeddings import ModelIdentity
from labelkit.store.plans import EmbeddingPlan
from labelkit.store.writing import EmbeddingRun

DIM, CLASSES, KNOWN, LABELS, SHARD_ROWS = 128, 100, 80, 2_000, 1_000_000


def make_store(path: Path, count: int, shards: int) -> None:
    """Write a store of `count` rows in shards."""
    centers = np.random.default_rng(0).standard_normal((CLASSES, DIM), dtype=np.float32)
    labels = np.arange(count) % CLASSES
    labeled = np.zeros(count, dtype=bool)
    labeled[np.flatnonzero(labels < KNOWN)[:LABELS]] = True
    plan = EmbeddingPlan(
        sample_ids=[f"{row:010d}.png" for row in range(count)],
        model=ModelIdentity("made-up", "f" * 64, "", "made-up.safetensors", "features", "mean", {"size": 8}, {}),
        dim=DIM,
        dtype="float16",
        batch_size=1024,
        part_rows=1 << 17,
        metric="cosine",
        created_by="labelkit benchmark",
        labels=labels,
        labeled=labeled.astype(np.uint8),
        class_names=[f"class-{label}" for label in range(CLASSES)],
        old_classes=(np.arange(CLASSES) < KNOWN).astype(np.uint8),
    )
    run = EmbeddingRun.open(path, plan, overwrite=False)
    for part in run.pending_parts():
        start, stop = run.part_range(part)
        draws = np.random.default_rng((1, part))
        rows = centers[labels[start:stop]] + draws.standard_normal((stop - start, DIM), dtype=np.float32)
        run.write_part(
            part,
            embeddings=rows,
            sha256=draws.integers(0, 256, (stop - start, 32), dtype=np.uint8),
            file_sizes=np.full(stop - start, 100),
            image_sizes=np.full((stop - start, 2), 8),
        )
    run.publish(shards=shards)


def held(process: psutil.Process) -> int:
    """Return the memory of a process and its children in bytes, without mapped files."""
    total = 0
    for one in [process, *process.children(recursive=True)]:
        try:
            lines = Path(f"/proc/{one.pid}/status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("RssAnon", "RssShmem")))
    return total


def used() -> float:
    """Return the CPU seconds of commands that have ended."""
    times = resource.getrusage(resource.RUSAGE_CHILDREN)
    return times.ru_utime + times.ru_stime


def measure(words: list[str]) -> tuple[float, float]:
    """Run a command; return its CPU seconds, and its peak memory in GiB."""
    started, most = used(), 0
    with subprocess.Popen([sys.executable, "-m", "labelkit", *words, "-q"], stdout=subprocess.DEVNULL) as command:
        process = psutil.Process(command.pid)
        while command.poll() is None:
            most = max(most, held(process))
            time.sleep(0.1)
    if command.returncode:
        raise SystemExit(f"{' '.join(words)} exited with {command.returncode}")
    return used() - started, most / 2**30


def main() -> int:
    """Measure and print a line for each command and size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder for the stores, which are kept")
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 3_000_000, 10_000_000])
    parser.add_argument("--processes", default="1")
    parser.add_argument("--only", default="", help="only commands whose name contains this")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    of_rows = ["--max-memory", "200MB"]
    kmeans = ["--num-clusters", str(CLASSES), "--num-inits", "1", *of_rows]
    queries = ["--query-rows", ",".join(map(str, range(100))), "-k", "10", "--search", "exact", *of_rows]
    commands = {
        "cluster k-means": kmeans,
        "cluster ss-kmeans": kmeans,
        "discover answer": ["--grouping", "ss-kmeans"],
        "retrieve": [*queries, "--csv", str(options.work / "hits.csv")],
    }
    for count in options.rows:
        store = options.work / f"{count}.h5"
        if not store.exists():
            make_store(store, count, max(2, count // SHARD_ROWS))
        for name, words in commands.items():
            if options.only in name:
                where = ["--index", str(store), "--overwrite", "--processes", options.processes]
                seconds, memory = measure([*name.split(), *where, *words])
                print(f"{name:20} {count:>13,} rows {seconds:8.1f} CPU s {memory:6.2f} GiB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

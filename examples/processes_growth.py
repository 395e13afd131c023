"""Time and memory of answers and exact search with one process and with two, over stores that grow.

``python examples/processes_growth.py --rows 100000,1000000,10000000 --in-blocks --turns 1 --out growth.json``

Rows are generated around 100 centers, as float16, and written in blocks; 20 labels of each of the first 50 centers may
be used. ``answer`` takes the groups of ``ss-kmeans``, which comes before it, in one process. Every command runs in
processes of its own with one thread each, one process and then two in turn, so that a machine that is slow for a while
is so for both. A line per command, size and number of processes: seconds of the command (beside them: of the start of
its processes) and the ratio to one process, the same of the processor time of the process that computes most, peak
memory of each process, and how many numbers of the result differ.
Exponents are slopes in log-log between the last two sizes, less what a store of 1,000 rows takes; 1 is linear.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from labelkit.engine.host_memory import peak_resident_bytes
from labelkit.store.commit import commit_json
from labelkit.store.embeddings import ModelIdentity, open_store
from labelkit.store.plans import EmbeddingPlan
from labelkit.store.results import read_result
from labelkit.store.writing import EmbeddingRun
from numpy.typing import NDArray

DIM, CENTERS, BASE_ROWS = 128, 100, 1_000
LABELED_CENTERS, LABELS = 50, 20
_GROUPED = (
    "--num-clusters {groups} --num-inits {starts} --max-iterations {iterations} --tolerance 0 --result {result} "
    "--overwrite"
)
COMMANDS = {
    "ss-kmeans": f"cluster ss-kmeans --no-exchange --max-memory {{memory}} {_GROUPED}",
    "answer": "discover answer --grouping ss-kmeans-1 --max-memory {memory} --csv {table} "
    "--result {result} --overwrite",
    "retrieve": "retrieve --query {queries} -k 10 --result {result}",
    "evaluate retrieval": "evaluate retrieval --split all --nmi-seeds 0 -k 1,10 --result {result} --overwrite",
}
CHILD = """
import json, os, sys, time
from pathlib import Path
from labelkit.cli.main import main
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    import torch.distributed
begin, used = time.perf_counter(), time.process_time()
code = main(sys.argv[2:])
seconds, used = time.perf_counter() - begin, time.process_time() - used
(line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
told = {"code": code, "seconds": seconds, "cpu": used, "bytes": int(line.split()[1]) * 1024}
Path(sys.argv[1], os.environ.get("RANK", "0") + ".json").write_text(json.dumps(told))
sys.exit(code)
"""


def main() -> None:
    """Parse, make the stores, measure in turns, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="50000,100000", help="sizes, comma-separated (50000,100000)")
    parser.add_argument("--processes", default="1,2", help="numbers of processes, comma-separated (1,2)")
    parser.add_argument("--commands", default="retrieve", help=f"of {', '.join(COMMANDS)} (retrieve)")
    parser.add_argument("--turns", type=int, default=2, help="runs of each (2)")
    parser.add_argument("--queries", type=int, default=2_000, help="rows that retrieve looks up (2000)")
    parser.add_argument("--groups", type=int, default=100, help="groups (100)")
    parser.add_argument("--starts", type=int, default=1, help="starts (1)")
    parser.add_argument("--iterations", type=int, default=5, help="iterations, all of them (5)")
    parser.add_argument(
        "--in-blocks",
        action="store_true",
        help="pass a --max-memory that leaves no room for a copy of the rows; ss-kmeans and answer have --memory",
    )
    parser.add_argument("--memory", default="4GiB", help="bound of ss-kmeans and answer in each process (4GiB)")
    parser.add_argument("--folder", type=Path, help="keep the stores here; default: a folder that is removed")
    parser.add_argument("--out", type=Path, help="also write what was measured as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as removed:
        folder = options.folder or Path(removed)
        folder.mkdir(parents=True, exist_ok=True)
        measured = _measure(options, folder)
    if options.out is not None:
        commit_json(options.out, measured)


def _measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    sizes = [BASE_ROWS, *sorted(map(int, options.rows.split(",")))]
    numbers = [int(number) for number in options.processes.split(",")]
    load = list(os.getloadavg())
    print(f"load {load[0]:.2f} before; {os.cpu_count()} cores; one thread in each process")
    stores = [_store(folder, rows, seed=0) for rows in sizes]
    queries = _store(folder, options.queries, seed=1)
    entries = []
    for command, (rows, store) in itertools.product(options.commands.split(","), zip(sizes, stores, strict=True)):
        runs: dict[int, list[dict[str, Any]]] = {number: [] for number in numbers}
        if command == "ss-kmeans":
            runs = {1: []}
        for _, number in itertools.product(range(options.turns), runs):
            runs[number].append(_run(command, rows, store, queries, number, options, folder))
        entries += _entries(command, rows, store, runs)
    exponents = _exponents(entries, sizes)
    return {
        "command": shlex.join(["python", *sys.argv]),
        "options": {name: str(value) for name, value in vars(options).items()},
        "load_before": load,
        "load_after": list(os.getloadavg()),
        "cores": os.cpu_count(),
        "dim": DIM,
        "rows": entries,
        "exponents": exponents,
    }


def _store(folder: Path, rows: int, *, seed: int) -> Path:
    """Make a store of rows around centers in a process of its own, block by block, unless it is there."""
    path = folder / f"rows-{rows}-{seed}.h5"
    if not path.exists():
        begin = time.perf_counter()
        subprocess.run([sys.executable, __file__, "make", str(path), str(rows), str(seed)], check=True)
        print(f"made {rows:,} rows in {time.perf_counter() - begin:.0f} s, {path.stat().st_size / 2**20:,.0f} MiB")
    return path


def make_store(path: Path, rows: int, seed: int) -> None:
    """Write rows around centers that are the same for any seed."""
    centers = np.random.default_rng(0).standard_normal((CENTERS, DIM), dtype=np.float32)
    labels = np.random.default_rng((seed, 1)).integers(0, CENTERS, rows)
    plan = EmbeddingPlan(
        sample_ids=[f"{row:09}.png" for row in range(rows)],
        model=ModelIdentity("random rows", "0" * 64, "", "generated", "features", "mean", {}, {}),
        dim=DIM,
        dtype="float16",
        batch_size=1024,
        part_rows=1 << 16,
        normalized=False,
        metric="cosine",
        created_by="processes_growth",
        labels=labels,
        labeled=_labeled(labels),
        class_names=[f"c{center:03}" for center in range(CENTERS)],
        old_classes=np.arange(CENTERS) < LABELED_CENTERS,
    )
    run = EmbeddingRun.open(path, plan)
    for part in run.pending_parts():
        start, stop = run.part_range(part)
        generator = np.random.default_rng((seed, 2, part))
        noise = generator.standard_normal((stop - start, DIM), dtype=np.float32)
        run.write_part(
            part,
            embeddings=centers[labels[start:stop]] + 2 * noise,
            sha256=generator.integers(0, 256, (stop - start, 32), dtype=np.uint8),
            file_sizes=np.full(stop - start, 100),
            image_sizes=np.full((stop - start, 2), 8),
            extras={},
            skipped=[],
        )
    run.publish(max_bad=0.0)
    print(f"peak memory of making {rows:,} rows: {peak_resident_bytes() / 2**20:,.0f} MiB", flush=True)


def _labeled(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which rows have a label that may be used: the first of some centers."""
    order = np.argsort(labels, kind="stable")
    sizes = np.bincount(labels, minlength=CENTERS)
    turn = np.empty(len(labels), dtype=np.int64)
    turn[order] = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return (turn < LABELS) & (labels < LABELED_CENTERS)


def _run(
    command: str, rows: int, store: Path, queries: Path, number: int, options: argparse.Namespace, folder: Path
) -> dict[str, Any]:
    """Run a command in so many processes; what each took."""
    result = f"{command.replace(' ', '-')}-{number}"
    (store.parent / f"{store.name}.results" / f"{result}.h5").unlink(missing_ok=True)
    text = COMMANDS[command].format(
        groups=options.groups,
        starts=options.starts,
        iterations=options.iterations,
        queries=queries,
        result=result,
        table=folder / "answers.csv",
        memory=options.memory,
    )
    words = [*text.split(), "--index", str(store), "-q"]
    if options.in_blocks and rows > BASE_ROWS and "--max-memory" not in words:
        words += ["--max-memory", f"{_least_mebibytes(rows, number, options.groups)}MiB"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "LABELKIT_CACHE": str(folder / "cache")}
    with tempfile.TemporaryDirectory() as told:
        child = Path(told, "child.py")
        child.write_text(CHILD)
        launcher = [sys.executable]
        if number > 1:
            launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(number)]
        begin = time.perf_counter()
        done = subprocess.run(
            [*launcher, str(child), told, *words], env=environment, check=False, capture_output=True, text=True
        )
        wall = time.perf_counter() - begin
        if done.returncode:
            # torchrun reports on its own after the process that says why
            why = [line for line in done.stderr.splitlines() if line.startswith("error:")]
            raise SystemExit(f"{' '.join(words)} with {number} processes: {(why or [done.stderr[-2000:]])[0]}")
        processes = [json.loads(Path(told, f"{rank}.json").read_text()) for rank in range(number)]
    return {"wall": wall, "seconds": max(one["seconds"] for one in processes), "processes": processes, "result": result}


def _inertia(store: Path, turn: dict[str, Any]) -> float | None:
    found = read_result(open_store(store), turn["result"]).params.get("inertia")
    return None if found is None else float(found)


def _least_mebibytes(rows: int, number: int, groups: int) -> int:
    """A little more than work on rows in blocks asks for: several processes load torch, and each has its part."""
    start, row = (220, 400) if number == 1 else (715, 340)
    # more groups: a larger sample, and more candidates for a start
    row += 8 * math.ceil(math.log(max(groups, CENTERS) / CENTERS))
    return start + groups // 8 + math.ceil(row * rows / 2**20)


def _entries(command: str, rows: int, store: Path, runs: dict[int, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Print and return a line for each number of processes; the ratio is the median over turns."""
    first = next(iter(runs))
    found = []
    # of the process that computes most: what the seconds would be on idle cores
    of_cpu = {n: [max(one["cpu"] for one in turn["processes"]) for turn in turns] for n, turns in runs.items()}
    for number, turns in runs.items():
        seconds = [turn["seconds"] for turn in turns]
        ratios = [turn["seconds"] / one["seconds"] for turn, one in zip(turns, runs[first], strict=True)]
        peaks = [max(turn["processes"][rank]["bytes"] for turn in turns) for rank in range(number)]
        entry = {
            "command": command,
            "rows": rows,
            "processes": number,
            "store_bytes": store.stat().st_size,
            "seconds": statistics.median(seconds),
            "seconds_of_turns": seconds,
            "wall_of_turns": [turn["wall"] for turn in turns],
            "ratio": statistics.median(ratios),
            "cpu": statistics.median(of_cpu[number]),
            "cpu_of_turns": of_cpu[number],
            "cpu_ratio": statistics.median(mine / one for mine, one in zip(of_cpu[number], of_cpu[first], strict=True)),
            "peak_bytes": peaks,
            "differing": _differing(store, runs[first][0]["result"], turns[0]["result"]),
            "inertia": _inertia(store, turns[0]),
        }
        shown = " + ".join(f"{peak / 2**20:,.0f}" for peak in peaks)
        start = statistics.median(turn["wall"] - turn["seconds"] for turn in turns)
        print(
            f"{command}, {rows:,} rows, {number} processes: {entry['seconds']:.2f} s (start {start:.1f} s), "
            f"x {entry['ratio']:.2f}, processor {entry['cpu']:.2f} s, x {entry['cpu_ratio']:.2f}, {shown} MiB, "
            f"{entry['differing']} numbers differ" + (f", inertia {entry['inertia']:.7g}" if entry["inertia"] else ""),
            flush=True,
        )
        found.append(entry)
    return found


def _differing(store: Path, one: str, other: str) -> int:
    """How many labels, hits or scores of two results differ; centroids, which round otherwise, aside."""
    opened = open_store(store)
    arrays = [read_result(opened, name).arrays for name in (one, other)]
    names = {"cluster_ids", "neighbor_rows", "scores", "group_ids", "confidence"} & arrays[0].keys()
    if not names:  # an evaluation: one text
        values = [json.loads(str(found["metrics"])) for found in arrays]
        return sum(values[0][key] != values[1][key] for key in values[0])
    return int(sum((arrays[0][name] != arrays[1][name]).sum() for name in names))


def _exponents(entries: list[dict[str, Any]], sizes: list[int]) -> list[dict[str, Any]]:
    """Slopes in log-log between the last two sizes of seconds and of the largest process, less those of the base."""
    if len(sizes) < 3:
        return []
    found = []
    for command, number in sorted({(entry["command"], entry["processes"]) for entry in entries}):
        base, *_, before, last = (e for e in entries if (e["command"], e["processes"]) == (command, number))
        slopes = {}
        for name, of in (("time", lambda e: e["seconds"]), ("memory", lambda e: max(e["peak_bytes"]))):
            small, large = of(before) - of(base), of(last) - of(base)
            known = small > 0 and large > 0
            slopes[name] = math.log(large / small) / math.log(last["rows"] / before["rows"]) if known else None
        shown = ", ".join(f"{name} {'-' if slope is None else f'{slope:.2f}'}" for name, slope in slopes.items())
        print(f"exponents of {command}, {number} processes: {shown}")
        found.append({"command": command, "processes": number, "between": [before["rows"], last["rows"]], **slopes})
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["make"]:
        make_store(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()

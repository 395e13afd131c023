"""Measure memory leaks of repeated calls in one process: ``python examples/memory_of_calls.py --calls 1000``.

The inputs are small, so that a thousand calls take minutes; a leak also shows with small inputs. Each line shows a
command, the number of calls, the memory after the first fifth and at the end, and the growth per call in KiB. The
growth is measured over the last four fifths, so that initializing caches and libraries does not count.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import io
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
from labelkit.cli.main import main as labelkit
from PIL import Image

PHOTOS = "--dataset photos --device cpu --threads 1"
STAGES = {
    "embed": f"embed {PHOTOS} --backbone pixels --image-size 8 --out e.h5 --overwrite -q",
    "embed (network)": f"embed {PHOTOS} --backbone vit_nano_p8_32 --random-weights --out n.h5 --overwrite -q",
    "cluster": "cluster k-means --index s.h5 --num-clusters 4 --overwrite -q",
    "discover": "discover categories --index s.h5 --max-classes 4 --overwrite -q",
    "evaluate": "evaluate clustering --index s.h5 --rows all -q",
    "retrieve": "retrieve --index s.h5 --query-rows 0 --csv hits.csv --overwrite -q",
    "retrieve (index)": "retrieve --index s.h5 --query-rows 0 --search hnsw --csv hits.csv --overwrite -q",
    "match": "match --index s.h5 --num-clusters 4 --out m.h5 --overwrite -q",
    "find": "find duplicates --index s.h5 --out copies.csv --overwrite -q",
    "suggest": "suggest --index s.h5 --no-own-labels -n 4 --out next.csv --overwrite -q",
    "report": "report --index s.h5 --out page.html --overwrite -q",
    "import": "import --source x.npz --out x.h5 --overwrite -q",
    "export": "export --index s.h5 --out s.csv --overwrite -q",
    "pack": "pack --index s.h5 --out p.h5 --overwrite -q",
    "verify": "verify --index s.h5 -q",
    "status": "status --index s.h5 -q",
    "prototypes": "prototypes --num-classes 8 --embed-dim 8 --out q.h5 --overwrite -q",
    "train": f"train softmax {PHOTOS} --backbone vit_nano_p8_32 --epochs 1 --batch-size 8 --lr-warmup-epochs 0 "
    "--out run --overwrite -q",
}


def main() -> None:
    """Call the commands, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=1000, metavar="N", help="calls per command (1000)")
    parser.add_argument("--stages", default=",".join(STAGES), help="names, comma-separated; default: all")
    parser.add_argument("--seconds", type=float, default=1e9, help="time limit per command in seconds")
    options = parser.parse_args()
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LABELKIT_CACHE"] = str(Path(folder, "cache"))
        os.environ["TQDM_DISABLE"] = "1"
        os.chdir(folder)
        try:
            _inputs()
            print(f"{'stage':<18} calls  seconds  MiB after a fifth  MiB at the end  KiB per call")
            for name in options.stages.split(","):
                _measure(name, options.calls, options.seconds)
        finally:
            os.chdir(here)


def _inputs() -> None:
    chance = np.random.default_rng(0)
    for number, name in enumerate(("ant", "bee", "cat", "dog")):
        Path("photos", name).mkdir(parents=True)
        for i in range(6):
            values = np.clip(chance.normal(40 + 50 * number, 25, (16, 16)), 0, 255).astype(np.uint8)
            Image.fromarray(values).save(Path("photos", name, f"{i}.png"))
    np.savez("x.npz", embeddings=chance.normal(size=(30, 8)).astype(np.float32))
    _call(STAGES["embed"].replace("e.h5", "s.h5"))
    _call(STAGES["cluster"])


def _call(line: str) -> None:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = labelkit(line.split())
    if code != 0:
        raise SystemExit(f"{line}: exit code {code}\n{said.getvalue()}")


def _kib() -> float:
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # the allocator may keep pages with freed memory
        ctypes.CDLL(None).malloc_trim(0)
    return psutil.Process().memory_info().rss / 1024


def _measure(name: str, calls: int, seconds: float) -> None:
    began, done = time.monotonic(), 0
    points: list[tuple[int, float]] = []
    step = max(1, calls // 50)
    while done < calls and time.monotonic() - began < seconds:
        _call(STAGES[name])
        done += 1
        if done % step == 0:
            points.append((done, _kib()))
    late = [point for point in points if point[0] >= done / 5]
    growth = float(np.polyfit(*np.array(late).T, 1)[0]) if len(late) > 1 else float("nan")
    taken = time.monotonic() - began
    first, last = late[0][1] / 1024, late[-1][1] / 1024
    print(f"{name:<18} {done:>5}  {taken:>7.0f}  {first:>17.1f}  {last:>14.1f}  {growth:>12.2f}", flush=True)


if __name__ == "__main__":
    main()

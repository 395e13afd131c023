"""Measure wall time, CPU time and peak memory of commands on stores of growing size, and how fast they grow.

Every command runs in a separate process. Its cost on a store of 1,000 rows (libraries, startup) is subtracted, and the
log-log slope between two sizes is compared with 1 (linear). For sizes that differ by a factor of 10, the slope is at
most 2, the value if the cost at the smaller size is indistinguishable from startup. Times are CPU times, which exclude
other processes. Commands run few iterations from one initialization, because the cost of an iteration is what grows.
Sizes at which a command costs hardly more time and memory than its startup are omitted. LABELKIT_BENCH_MAX=100000 omits
larger sizes, and LABELKIT_BENCH_LOAD='cluster|retrieve' omits commands that do not match the pattern; the whole
benchmark takes half an hour. ``match`` is omitted, because its cost depends on the keypoints of photographs.
"""

import itertools
import json
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks import made_stores
from benchmarks.measure import Row, own_cache

SEEDS = {"rows": 0, "images": 0}
DIM, CLASSES = 128, 100
BASE, SIZES = 1_000, (10_000, 100_000, 1_000_000)
MEDIUM = SIZES[:2]
IMAGES = (10_000, 30_000, 100_000)
WANTED = 1.15
# Costs this close to the startup cost give no reliable slope.
MIN_CPU_S, MIN_BYTES = 0.25, 50 << 20
FEW = f"--num-clusters {CLASSES} --num-inits 1 --max-iterations 3 --overwrite"
CHILD = """
import json, sys, time
from benchmarks.measure import memory
from labelkit.cli.main import main
begin = time.perf_counter()
code = main(sys.argv[1:])
print("\\n" + json.dumps([code, time.perf_counter() - begin, time.process_time(), memory("VmHWM")]))
"""
COMMANDS = {
    f"cluster k-means {FEW}": SIZES,
    f"cluster spherical-k-means {FEW}": SIZES,
    f"cluster ss-kmeans {FEW}": SIZES,
    f"cluster sinkhorn {FEW} --temperature 0.1": SIZES,
    "evaluate clustering --results k-means": SIZES,
    "retrieve --query-rows 7": SIZES,
    "retrieve --query QUERIES": SIZES,
    "retrieve --query QUERIES --search hnsw": MEDIUM,
    "evaluate retrieval --nmi-seeds 0": MEDIUM,
    "discover categories --overwrite": SIZES,
    "discover answer --overwrite": SIZES,
    "suggest -n 20 --overwrite --out FOLDER/next.csv": SIZES,
    "report --overwrite --out FOLDER/page.html": MEDIUM,
    f"train sela --epochs 1 --num-clusters {CLASSES} --device cpu --overwrite --out FOLDER/run": SIZES,
}
# options that the name of the row does not show
NAMES = {
    f" {FEW}": "",
    "QUERIES": "1,000 others",
    "INDEX": "itself",
    " --overwrite": "",
    " --out FOLDER/next.csv": "",
    " --out FOLDER/page.html": "",
    " --out FOLDER/run": "",
}


def write_store(out: Path, rows: int) -> None:
    """Write rows around centers; a twentieth of half of the classes is labeled, but at least two rows per class."""
    generator = np.random.default_rng(SEEDS["rows"])
    labels = np.arange(rows) % CLASSES
    centers = generator.standard_normal((CLASSES, DIM), dtype=np.float32)
    old = np.arange(CLASSES) < CLASSES // 2

    def rows_of(start: int, stop: int) -> NDArray[np.float32]:
        noise = generator.standard_normal((stop - start, DIM), dtype=np.float32)
        return np.asarray(centers[labels[start:stop]] + 1.2 * noise)

    labeled = (np.arange(rows) // CLASSES < max(2, rows // CLASSES // 20)) & old[labels]
    made_stores.write_store(out, labels, DIM, rows_of, labeled=labeled, old_classes=old)


def write_images(folder: Path, number: int) -> None:
    """Write small PNG files in class folders."""
    generator = np.random.default_rng(SEEDS["images"])
    for i in range(number):
        place = folder / f"class{i % 10}"
        place.mkdir(parents=True, exist_ok=True)
        path = place / f"{i:06}.png"
        if not path.exists():
            Image.fromarray(generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path, compress_level=1)


def measure(words: list[str]) -> tuple[float, float, int]:
    """Return (seconds, CPU seconds, peak bytes) of a command in a separate process."""
    done = subprocess.run([sys.executable, "-c", CHILD, *words], capture_output=True, text=True, check=True)
    code, seconds, cpu, peak = json.loads(done.stdout.splitlines()[-1])
    if code != 0:
        raise RuntimeError(f"{shlex.join(words)} exited with {code}: {done.stderr}")
    return seconds, cpu, peak


def growth(name: str, measured: dict[int, tuple[float, float, int]]) -> Iterator[Row]:
    """Return the exponents between consecutive sizes, after subtracting the cost of the smallest size."""
    base, *sizes = sorted(measured)
    for small, large in itertools.pairwise(sizes):
        (_, cpu, peak), (seconds, large_cpu, large_peak) = measured[small], measured[large]
        _, least_cpu, least_peak = measured[base]

        def slope(of_small: float, of_large: float, ratio: float = large / small) -> float:
            # a cost indistinguishable from startup counts as a hundredth of the larger cost
            return math.log(of_large / max(of_small, of_large / 100)) / math.log(ratio)

        if large_cpu - least_cpu < MIN_CPU_S and large_peak - least_peak < MIN_BYTES:
            continue  # no more than the startup cost
        time_slope = slope(cpu - least_cpu, max(large_cpu - least_cpu, 1e-3))
        memory_slope = slope(peak - least_peak, max(large_peak - least_peak, 1))
        yield Row(
            name=f"{name}, {large:,} / {small:,}: exponent of CPU time; of memory {memory_slope:.2f}, peak "
            f"{large_peak / 2**20:.0f} / {peak / 2**20:.0f} MiB, wall {seconds:.0f} s",
            ours_s=large_cpu,
            peer_s=cpu,
            ratio=time_slope,
            wanted=f"<= {WANTED:g}",
            # below a second or 50 MiB, the slope is noise
            ok=(time_slope <= WANTED or large_cpu - least_cpu < 1)
            and (memory_slope <= WANTED or large_peak - least_peak < MIN_BYTES),
        )


def _with(places: dict[str, str], command: str) -> str:
    """Return a command with its placeholders replaced."""
    for word, place in places.items():
        command = command.replace(word, place)
    return command


def wanted_sizes(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes up to the requested maximum."""
    most = int(os.environ.get("LABELKIT_BENCH_MAX", sizes[-1]))
    return tuple(size for size in sizes if size <= most)


def is_wanted(command: str) -> bool:
    """Return whether a command is requested."""
    return re.search(os.environ.get("LABELKIT_BENCH_LOAD", ""), command) is not None


def rows() -> Iterator[Row]:
    """Yield a row for every command and pair of sizes."""
    with own_cache() as folder:
        for size in (BASE, *wanted_sizes(SIZES)):
            write_store(folder / f"{size}.h5", size)
        for command, sizes in COMMANDS.items():
            if not is_wanted(command):
                continue
            found = {}
            for n in (BASE, *wanted_sizes(sizes)):
                index = str(folder / f"{n}.h5")
                places = {"QUERIES": str(folder / f"{BASE}.h5"), "INDEX": index, "FOLDER": str(folder)}
                found[n] = measure([*shlex.split(_with(places, command)), "--index", index, "-q"])
            yield from growth(_with(NAMES, command), found)
        found = {}
        for number in (BASE, *wanted_sizes(IMAGES)) if is_wanted("embed") else ():
            write_images(folder / "images", number)
            words = shlex.split("embed --backbone pixels --image-size 8 --device cpu -q --dataset")
            found[number] = measure([*words, str(folder / "images"), "--out", str(folder / f"images{number}.h5")])
        if found:
            yield from growth("embed, pixels of images of 8 x 8", found)

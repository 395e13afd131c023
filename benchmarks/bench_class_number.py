"""Time `discover categories` against a plain loop of scikit-learn's MiniBatchKMeans over the same numbers of classes.

Ours is the whole command in a process of its own: the number with its interval, and a class for every row. The peer
clusters the same rows, in memory, into some numbers that are evenly spread (of many rows, into the middle one), and its
mean time counts for all of them; it judges none. Both sides in seconds of the processor; the wall time of ours has a
limit too. The last row has a limit of memory that is less than its rows take.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from labelkit.algorithms.class_number import class_numbers
from labelkit.store.embeddings import ModelIdentity, open_store
from labelkit.store.plans import EmbeddingPlan
from labelkit.store.results import read_result
from labelkit.store.writing import EmbeddingRun
from sklearn.cluster import MiniBatchKMeans

from benchmarks.bench_load import measure
from benchmarks.measure import Row, own_cache

SEEDS = {"rows": 0, "draws": 0}
PART_ROWS = 1 << 15
# Numbers of classes that the peer makes; of many rows, the middle one, which stands for the mean of evenly spread ones.
PEER_NUMBERS, MANY_ROWS = 3, 100_000


@dataclass(frozen=True)
class Size:
    """Rows around so many centers; labels of half of the rows of half of the classes may be used, or none."""

    rows: int
    dim: int
    classes: int
    most: int
    limit_s: float
    labeled: bool
    max_memory: str = ""


SIZES = (
    Size(20_000, 384, 100, 200, 30, labeled=True),
    Size(20_000, 384, 100, 200, 30, labeled=False),
    Size(3_068, 1_280, 10, 1_000, 15, labeled=True),
    Size(1_000_000, 384, 100, 200, 300, labeled=False, max_memory="1GiB"),
)


def write_store(path: Path, size: Size) -> None:
    """Write unit rows around directions of classes."""
    generator = np.random.default_rng(SEEDS["rows"])
    labels = np.arange(size.rows) % size.classes
    old = np.arange(size.classes) < size.classes // 2
    centers = generator.standard_normal((size.classes, size.dim), dtype=np.float32)
    plan = EmbeddingPlan(
        sample_ids=[f"{row:07d}.png" for row in range(size.rows)],
        model=ModelIdentity("made-up", "f" * 64, "", "made-up.safetensors", "features", "mean", {"size": 8}, {}),
        dim=size.dim,
        batch_size=1024,
        part_rows=PART_ROWS,
        normalized=True,
        metric="cosine",
        created_by="labelkit benchmark",
        labels=labels,
        labeled=old[labels] & (np.arange(size.rows) < size.rows // 2) & size.labeled,
        class_names=[f"class-{label}" for label in range(size.classes)],
        old_classes=old & size.labeled,
    )
    run = EmbeddingRun.open(path, plan, overwrite=False)
    for part in run.pending_parts():
        start, stop = run.part_range(part)
        rows = centers[labels[start:stop]] + 1.5 * generator.standard_normal((stop - start, size.dim), dtype=np.float32)
        run.write_part(
            part,
            embeddings=rows / np.linalg.norm(rows, axis=1, keepdims=True),
            sha256=generator.integers(0, 256, (stop - start, 32), dtype=np.uint8),
            file_sizes=np.full(stop - start, 100),
            image_sizes=np.full((stop - start, 2), 8),
            extras={},
            skipped=[],
        )
    run.publish()


def rows() -> Iterator[Row]:
    """A row for each size."""
    for size in SIZES:
        with own_cache() as folder:
            path = folder / "rows.h5"
            write_store(path, size)
            yield _row(path, size)


def _row(path: Path, size: Size) -> Row:
    words = ["discover", "categories", "--index", str(path), "--max-classes", str(size.most)]
    words += ["--max-memory", size.max_memory] if size.max_memory else []
    wall_s, ours_s, peak = measure(words)
    store = open_store(path)
    found = read_result(store, "categories").params
    numbers = class_numbers(*found["searched"])
    peer_s = _peer_seconds(np.asarray(store.embeddings), numbers)
    labels = f"labels of {size.classes // 2} classes" if size.labeled else "no labels"
    limit = f" of {size.max_memory}" if size.max_memory else ""
    return Row(
        name=f"how many of {size.classes} classes, {size.rows:,} x {size.dim}, {labels}, {numbers[0]}-{numbers[-1]}: "
        f"{found['num_classes']} of {found['interval']}, {wall_s:.0f} s, {peak / 2**30:.2f} GiB{limit}; CPU",
        ours_s=ours_s,
        peer_s=peer_s,
        ratio=ours_s / peer_s,
        wanted=f"<= 1, in {size.limit_s:g} s",
        ok=ours_s <= peer_s and wall_s <= size.limit_s,
    )


def _peer_seconds(x: np.ndarray, numbers: list[int]) -> float:
    """CPU seconds for all numbers, by the mean of some."""
    places = np.linspace(0, len(numbers) - 1, PEER_NUMBERS).round().astype(int)
    some = [numbers[place] for place in (places if len(x) < MANY_ROWS else places[PEER_NUMBERS // 2 :][:1])]
    begin = time.process_time()
    for number in some:
        MiniBatchKMeans(number, n_init=1, random_state=SEEDS["draws"]).fit(x)
    return (time.process_time() - begin) / len(some) * len(numbers)

"""Time the choice of the number of classes by all criteria against the three minutes it may take."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from labelkit.config.discover import DiscoverCategoriesConfig
from labelkit.stages.discover.categories import discover_categories
from labelkit.store.embeddings import ModelIdentity, open_store
from labelkit.store.plans import EmbeddingPlan
from labelkit.store.writing import EmbeddingRun
from tests.benchmarks.measure import Row

SEEDS = {"rows": 0, "draws": 0}
NUM_ROWS, DIM, NUM_CLASSES, NUM_OLD_CLASSES = 20_000, 384, 100, 50
MIN_CLASSES, MAX_CLASSES = 2, 200
LIMIT_S = 180.0


def write_store(path: Path, *, labeled: bool) -> None:
    """Write unit rows around class directions; half of the rows of the old classes are labeled, or none."""
    generator = np.random.default_rng(SEEDS["rows"])
    labels = np.arange(NUM_ROWS) % NUM_CLASSES
    noise = generator.standard_normal((NUM_ROWS, DIM))
    rows = generator.standard_normal((NUM_CLASSES, DIM))[labels] + 1.5 * noise
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    plan = EmbeddingPlan(
        sample_ids=[f"{row:06d}.png" for row in range(NUM_ROWS)],
        model=ModelIdentity(
            name="made-up",
            weights_fingerprint="f" * 64,
            weights_file_sha256="",
            source="made-up.safetensors",
            layer="features",
            pooling="mean",
            preprocess={"size": 8},
            numerics={},
        ),
        dim=DIM,
        batch_size=NUM_ROWS,
        part_rows=NUM_ROWS,
        normalized=True,
        metric="cosine",
        created_by="labelkit benchmark",
        extras={},
        labels=labels,
        labeled=(labels < NUM_OLD_CLASSES) & (np.arange(NUM_ROWS) < NUM_ROWS // 2) & labeled,
        class_names=[f"class-{label}" for label in range(NUM_CLASSES)],
        old_classes=(np.arange(NUM_CLASSES) < NUM_OLD_CLASSES) & labeled,
    )
    run = EmbeddingRun.open(path, plan, overwrite=False)
    digests = np.zeros((NUM_ROWS, 32), dtype=np.uint8)
    digests[:, :4] = np.arange(NUM_ROWS, dtype="<u4")[:, None].view(np.uint8)
    run.write_part(
        0,
        embeddings=rows.astype(np.float32),
        sha256=digests,
        file_sizes=np.ones(NUM_ROWS, dtype=np.uint64),
        image_sizes=np.ones((NUM_ROWS, 2), dtype=np.uint32),
        extras={},
    )
    run.publish()


def rows() -> Iterator[Row]:
    """Choose once from a store with labels and once from one without; the peer is the limit."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cache, os.environ["LABELKIT_CACHE"] = os.environ.get("LABELKIT_CACHE"), str(folder / "cache")
        try:
            for labeled in (True, False):
                path = folder / f"{'labeled' if labeled else 'unlabeled'}.h5"
                write_store(path, labeled=labeled)
                yield _row(path, labeled=labeled)
        finally:
            del os.environ["LABELKIT_CACHE"]
            if cache is not None:
                os.environ["LABELKIT_CACHE"] = cache


def _row(path: Path, *, labeled: bool) -> Row:
    # classes with labels are the fewest there can be
    low = NUM_OLD_CLASSES if labeled else MIN_CLASSES
    config = DiscoverCategoriesConfig(index=path, min_classes=low, max_classes=MAX_CLASSES, seed=SEEDS["draws"])
    assert open_store(path).n == NUM_ROWS
    begin = time.perf_counter()
    found = discover_categories(config).to_json()
    ours_s = time.perf_counter() - begin
    which = "labels of 50 classes" if labeled else "no labels"
    return Row(
        name=f"how many of 100 classes, {NUM_ROWS:,} x {DIM}, K {low}-{MAX_CLASSES}, {which}: "
        f"{found['num_classes']} of {found['interval']} / 3 minutes",
        ours_s=ours_s,
        peer_s=LIMIT_S,
        ratio=ours_s / LIMIT_S,
        wanted="<= 1",
        ok=ours_s <= LIMIT_S,
    )

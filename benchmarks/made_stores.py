"""Synthetic stores, written part by part, so that they may be larger than memory."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from labelkit.store.embeddings import ModelIdentity
from labelkit.store.plans import EmbeddingPlan
from labelkit.store.writing import EmbeddingRun
from numpy.typing import NDArray

PART_ROWS = 1 << 15


def write_store(
    path: Path,
    labels: NDArray[np.int64],
    dim: int,
    rows_of: Callable[[int, int], NDArray[np.float32]],
    *,
    labeled: NDArray[np.bool_] | None = None,
    old_classes: NDArray[np.bool_] | None = None,
) -> None:
    """Write a store with one row per label.

    Args:
        path: path of the store.
        labels: (n,) classes, from 0.
        dim: number of columns.
        rows_of: returns the rows from first to last; called once per part, in order.
        labeled: (n,) whether each label may be used; default: all.
        old_classes: (c,) old classes; default: all.
    """
    draws = np.random.default_rng(0)
    plan = EmbeddingPlan(
        sample_ids=[f"{row:07d}.png" for row in range(len(labels))],
        model=ModelIdentity("made-up", "f" * 64, "", "made-up.safetensors", "features", "mean", {"size": 8}, {}),
        dim=dim,
        batch_size=1024,
        part_rows=PART_ROWS,
        metric="cosine",
        created_by="labelkit benchmark",
        labels=labels,
        labeled=labeled,
        class_names=[f"class-{label}" for label in range(int(labels.max()) + 1)],
        old_classes=old_classes,
    )
    run = EmbeddingRun.open(path, plan, overwrite=False)
    for part in run.pending_parts():
        start, stop = run.part_range(part)
        run.write_part(
            part,
            embeddings=rows_of(start, stop),
            sha256=draws.integers(0, 256, (stop - start, 32), dtype=np.uint8),
            file_sizes=np.full(stop - start, 100),
            image_sizes=np.full((stop - start, 2), 8),
        )
    run.publish()

"""Small patches for the tests: a value depends on its image and place alone."""

from pathlib import Path
from typing import Any

import numpy as np
from labelkit.store.embeddings import open_store
from labelkit.store.patch_writing import PatchRun
from labelkit.store.patches import patches_folder
from labelkit.store.plans import PatchPlan
from labelkit.store.writing import EmbeddingRun
from store_samples import make_plan, write_part

BAD = {1: "broken"}


def make_patch_plan(**changes: Any) -> PatchPlan:
    values: dict[str, Any] = {"rows": make_plan(), "layer": "last", "grid": (2, 3), "dim": 5, "set_bytes": 400}
    return PatchPlan(**{**values, **changes})


def features_of(plan: PatchPlan, row: int) -> np.ndarray:
    return np.arange(plan.num_patches * plan.dim).reshape(plan.num_patches, plan.dim) / 8 + row


def piece_of(plan: PatchPlan, number: int) -> tuple[Any, ...]:
    _, start, stop = plan.chunks[number]
    rows = np.array([row for row in range(start, stop) if row not in BAD], dtype=np.int64)
    features = np.stack([features_of(plan, row) for row in rows])
    return rows, features, np.array([[0, 0, 6, 4 + row] for row in rows], dtype=np.float64)


def make_both(out: Path, plan: PatchPlan, *, overwrite: bool = False) -> None:
    rows = EmbeddingRun.open(out, plan.rows, overwrite)
    patches = PatchRun.open(out, plan, overwrite)
    for part in sorted({*rows.pending_parts(), *patches.pending_parts()}):
        for number in patches.chunks_of_part(part) if part in patches.pending_parts() else ():
            patches.write_chunk(number, *piece_of(plan, number))
        if part in rows.pending_parts():
            write_part(rows, part, BAD)
    rows.publish(max_bad=0.5)
    patches.publish(open_store(out))


def bytes_of_all(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in [out, *patches_folder(out).iterdir()]}

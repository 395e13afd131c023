"""Find out which rows of a new store an older one has: by the digests of the image files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from labelkit.data.datasets import ImageDataset
from labelkit.data.decode import BadImage
from labelkit.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.plans import EmbeddingPlan, planned_reuse
from labelkit.store.reuse import check_reusable, match_rows


def plan_reuse(
    out: Path, plan: EmbeddingPlan, stores: Sequence[EmbeddingStore], dataset: ImageDataset
) -> EmbeddingPlan:
    """Return the plan with the rows that are copied.

    Every image file is read once for its digest, unless an unfinished run of the same listing and stores did so.

    Args:
        out: the store to be made.
        plan: all that decides about it besides.
        stores: where rows may be.
        dataset: the images of the plan.

    Raises:
        Mismatch: a store was made by another model or with other options; names the keys.
    """
    for store in stores:
        check_reusable(store, plan)
    digests = [store.content_digest for store in stores]
    reused = planned_reuse(out, plan, digests)
    if reused is None:
        reused = match_rows(stores, plan.sample_ids, _digests_of_images(dataset))
    planned = replace(plan, reused_from=digests, reused=reused)
    current_progress().message(f"{planned.num_reused} of {len(plan.sample_ids)} rows are copied, not computed")
    return planned


def _digests_of_images(dataset: ImageDataset) -> list[bytes | None]:
    """SHA-256 of each image file; ``None`` where it cannot be read."""

    def digest(row: int) -> bytes | None:
        try:
            return dataset.source.read(row).sha256
        except BadImage:
            return None

    found: list[bytes | None] = []
    with (
        current_progress().task("digests", total=len(dataset)) as task,
        ThreadPoolExecutor(os.cpu_count() or 1) as pool,
    ):
        for one in pool.map(digest, range(len(dataset))):
            found.append(one)
            task.advance(1)
    return found

"""Reuse of rows of finished stores in a new store: the same image files, embedded by the same model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.images.read import run_in_threads
from labelkit.data.datasets import ImageDataset
from labelkit.data.decode import BadImage
from labelkit.errors import Mismatch
from labelkit.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore, differing_keys
from labelkit.store.plans import EmbeddingPlan
from labelkit.store.schema import VIEWS


def plan_reuse(plan: EmbeddingPlan, stores: Sequence[EmbeddingStore], dataset: ImageDataset) -> EmbeddingPlan:
    """Plan which embeddings to copy from existing stores instead of computing them.

    Every image file is read once for its digest.

    Args:
        plan: the plan of the new store.
        stores: stores to copy from.
        dataset: the images of the plan.

    Raises:
        Mismatch: a store was made by another model or with other options; the message lists the keys.
    """
    for store in stores:
        _check_reusable(store, plan)
    digests = [store.content_digest for store in stores]

    def digest(row: int) -> bytes | None:
        try:
            return dataset.source.read(row).sha256
        except BadImage:  # found again, and reported, when the image is embedded
            return None

    of_files = list(run_in_threads(digest, range(len(dataset)), "digests"))
    reused = _match_rows(stores, plan.sample_ids, of_files)
    planned = replace(plan, reused_from=digests, reused=reused)
    current_progress().message(f"{planned.num_reused} of {len(plan.sample_ids)} embeddings are copied, not recomputed")
    return planned


# Keys that affect only the last bits of a row, as its batch does.
_LAST_BITS = {"batch_size", "threads", "torch", "onnxruntime", "trial"}


def _check_reusable(store: EmbeddingStore, plan: EmbeddingPlan) -> None:
    """Check that a store has the embeddings that an embedding plan would compute for the same images.

    The weights, layer and pooling of the network, the preprocessing, the number types of the computation and of the
    rows, the kind of device, further outputs, and the recipe of views must agree; the source of the model, batch size,
    threads and runtime (torch or ONNX Runtime, and its version) may differ.
    """
    if not store.has_images:
        problem = "its embeddings were imported without images, so they cannot be matched to images"
        raise Mismatch(str(store.path), problem, "Remove this store from --reuse.")
    keys = store.model.differences(plan.model)
    numerics = differing_keys(store.model.numerics, plan.model.numerics)
    keys.extend(f"numerics.{key}" for key in numerics if key not in _LAST_BITS)
    own = {"dim": store.dim, "dtype": str(store.embeddings.dtype), "normalized": store.normalized}
    keys.extend(key for key, value in own.items() if getattr(plan, key) != value)
    for name, width in plan.extras.items():
        there = store.extras.get(name)
        if there is None or there.shape[1] != width:
            keys.append(name)
        elif _old_names(store) != _old_names(plan):
            keys.append(f"{name} (order of classes)")
    if plan.views is not None:
        keys.extend(f"views.{key}" for key in differing_keys(store.view_recipe, dict(plan.views)))
    if keys:
        remedy = "Remove this store from --reuse, or embed with the same model and options."
        raise Mismatch(str(store.path), f"was embedded differently from this run: {', '.join(keys)} differ", remedy)


def _old_names(holder: EmbeddingStore | EmbeddingPlan) -> list[str]:
    """Return the names of the classes of the first columns of a classifier."""
    if holder.old_classes is None:
        return []
    return [name for name, old in zip(holder.class_names, holder.old_classes, strict=True) if old]


def _match_rows(
    stores: Sequence[EmbeddingStore], sample_ids: Sequence[str], digests: Sequence[bytes | None]
) -> NDArray[np.int64]:
    """Match images to rows of stores by their files: return (n, 2) index of a store and row in it, -1 without a match.

    If several rows have the same file, the row of the same name is used, else the first row of the first store.
    """
    first: dict[bytes, tuple[int, int]] = {}
    named: dict[tuple[bytes, str], tuple[int, int]] = {}
    for number, store in enumerate(stores):
        for row, (name, digest) in enumerate(zip(store.sample_ids, store.sha256, strict=True)):
            first.setdefault(digest.tobytes(), (number, row))
            named.setdefault((digest.tobytes(), name), (number, row))
    found = np.full((len(sample_ids), 2), -1, dtype=np.int64)
    for place, (name, wanted) in enumerate(zip(sample_ids, digests, strict=True)):
        if wanted is not None and wanted in first:
            found[place] = named.get((wanted, name), first[wanted])
    return found


def copy_rows(
    stores: Sequence[EmbeddingStore], places: NDArray[np.int64], extras: Sequence[str]
) -> dict[str, NDArray[np.generic]]:
    """Read the embeddings and image digests of rows from several stores.

    Args:
        stores: the stores.
        places: (m, 2) index of a store and row in it.
        extras: names of further outputs to read, or of the column of views.

    Returns:
        ``embeddings``, ``sha256``, ``file_sizes``, ``image_sizes`` and the extras, each with m rows.

    Raises:
        Damaged: a block of rows is not as it was written.
    """
    columns: dict[str, NDArray[np.generic]] = {}
    for number, store in enumerate(stores):
        mine = places[:, 0] == number
        rows = places[mine, 1]
        sources = {name: getattr(store, name) for name in ("embeddings", "sha256", "file_sizes", "image_sizes")}
        for name in extras:
            views = store.view_embeddings if name == VIEWS else None
            sources[name] = store.extras[name] if views is None else views.reshape(store.n, -1)
        for name, source in sources.items():
            column = columns.setdefault(name, np.zeros((len(places), *source.shape[1:]), dtype=source.dtype))
            column[mine] = source[rows]
    return columns

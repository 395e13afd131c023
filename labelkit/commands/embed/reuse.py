"""Reuse embeddings of existing stores (same images, same model) in a new store, as copies or as shards."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.images.read import map_in_threads
from labelkit.data.datasets import ImageDataset
from labelkit.data.decode import BadImageError
from labelkit.errors import ConfigError, Mismatch
from labelkit.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore, find_differing_keys, match_rows_by_file
from labelkit.store.plans import EmbeddingPlan
from labelkit.store.schema import VIEWS


def plan_reuse(
    plan: EmbeddingPlan, stores: Sequence[EmbeddingStore], dataset: ImageDataset, *, extend: bool = False
) -> EmbeddingPlan:
    """Plan which embeddings to copy from existing stores instead of computing them.

    All image files are read once to compute their digests.

    Args:
        plan: plan of the new store.
        stores: stores to copy from.
        dataset: images of the plan.
        extend: keep all rows of the first store, in its shards, followed by images with other names. Labels and splits
            are taken from the dataset; images that are no longer in the dataset keep theirs.

    Raises:
        Mismatch: a store was created with another model or other options, which the message lists; or an image in the
            store to be extended has changed.
        ConfigError: the store to be extended has no shards.
    """
    for store in stores:
        _check_reusable(store, plan)
    if extend and stores[0].shards is None:
        remedy = f"Split it first: `labelkit pack --index {stores[0].path} --out NAME.h5 --shards 1`."
        raise ConfigError("--extend", f"{stores[0].path} is a single file, so no shards can be added", remedy)

    def digest(row: int) -> bytes | None:
        try:
            return dataset.source.read(row).sha256
        except BadImageError:  # reported when the image is embedded
            return None

    of_files = list(map_in_threads(digest, range(len(dataset)), "digests"))
    planned = replace(plan, reused_from=[store.content_digest for store in stores])
    if extend:
        return _extend(planned, stores, of_files, dataset.name)
    planned = replace(planned, reused=match_rows_by_file(stores, plan.sample_ids, of_files))
    current_progress().message(f"{planned.num_reused} of {len(plan.sample_ids)} embeddings are copied, not recomputed")
    return planned


def _extend(
    plan: EmbeddingPlan, stores: Sequence[EmbeddingStore], digests: Sequence[bytes | None], dataset: str
) -> EmbeddingPlan:
    """Prepend the rows of the first store to the plan, so that only images with other names are embedded."""
    base, place = stores[0], {name: row for row, name in enumerate(plan.sample_ids)}
    rows = np.array([place.pop(name, -1) for name in base.sample_ids] + [*place.values()], dtype=np.int64)
    new, removed = rows[base.n :].tolist(), np.flatnonzero(rows < 0)
    pairs = zip(base.sample_ids, rows.tolist(), base.sha256, strict=False)
    changed = [name for name, row, digest in pairs if row >= 0 and digests[row] not in (None, digest.tobytes())]
    if changed:
        problem = f"{len(changed)} of its images have changed since they were embedded, first: {changed[0]}"
        raise Mismatch(str(base.path), problem, "Rename these images, or pass this store as --reuse, not --extend.")
    current_progress().message(f"{len(new):,} new images are added to the {base.n:,} images of {base.path}")
    if len(removed):
        first = base.sample_ids[removed[0]]
        note = f"{len(removed):,} of the earlier images are no longer in {dataset}, but are kept, first: {first}"
        current_progress().message(note)
    values: dict[str, Any] = {}
    for column, names in (("labels", "class_names"), ("splits", "split_names")):
        now, then, old_names = getattr(plan, column), getattr(base, column), getattr(base, names)
        known = tuple(dict.fromkeys((*getattr(plan, names), *old_names)))
        if known:
            numbers = np.full(len(rows), -1) if now is None else now[rows]
            numbers[removed] = -1 if then is None else np.array([*map(known.index, old_names), -1])[then[removed]]
            values |= {column: numbers, names: known}
    if "labels" in values:
        labeled = np.zeros(len(rows), bool) if plan.labeled is None else plan.labeled[rows]
        labeled[removed] = False if base.labeled is None else base.labeled[removed]
        used = np.isin(np.arange(len(values["class_names"])), values["labels"][labeled])
        values |= {"labeled": labeled, "old_classes": used | np.isin(values["class_names"], _old_names(plan))}
    ids = [plan.sample_ids[row] for row in new]
    found = match_rows_by_file(stores, ids, [digests[row] for row in new])
    twice = np.flatnonzero((found[:, 0] == 0) & np.isin(found[:, 1], removed))
    if len(twice):
        then = base.sample_ids[found[twice[0], 1]]
        current_progress().warning(
            f"{len(twice):,} of the new images are already in {base.path} under another name, so they are stored twice "
            f"(first: {ids[twice[0]]} is {then}). If paths now start at another folder, pass --dataset as before"
        )
    return replace(
        plan,
        sample_ids=(*base.sample_ids, *ids),
        reused=np.concatenate([[(0, row) for row in range(base.n)], found]),
        base_rows=base.n,
        **values,
    )


# Settings that change embeddings only by rounding errors.
_LAST_BITS = {"batch_size", "threads", "torch", "onnxruntime", "trial"}


def _check_reusable(store: EmbeddingStore, plan: EmbeddingPlan) -> None:
    """Check that a store has the embeddings that a plan would compute for the same images.

    The network's weights, layer and pooling, the preprocessing, the precision and stored data type, the device type,
    the logits, and the augmentation of views must agree. The model's source, batch size, threads and runtime (PyTorch
    or ONNX Runtime, and its version) may differ.
    """
    if not store.has_images:
        problem = "its embeddings were imported without images, so they cannot be assigned to images"
        raise Mismatch(str(store.path), problem, "Remove this store from --reuse or --extend.")
    keys = store.model.differences(plan.model)
    numerics = find_differing_keys(store.model.numerics, plan.model.numerics)
    keys.extend(f"numerics.{key}" for key in numerics if key not in _LAST_BITS)
    own = {"dim": store.dim, "dtype": str(store.embeddings.dtype)}
    keys.extend(key for key, value in own.items() if getattr(plan, key) != value)
    for name, width in plan.extras.items():
        there = store.extras.get(name)
        if there is None or there.shape[1] != width:
            keys.append(name)
        elif _old_names(store) != _old_names(plan):
            keys.append(f"{name} (order of classes)")
    if plan.views is not None:
        keys.extend(f"views.{key}" for key in find_differing_keys(store.view_recipe, dict(plan.views)))
    if keys:
        remedy = "Remove this store from --reuse or --extend, or embed with the same model and options."
        raise Mismatch(str(store.path), f"was embedded differently from this run: {', '.join(keys)} differ", remedy)


def _old_names(holder: EmbeddingStore | EmbeddingPlan) -> list[str]:
    """Return the names of the old classes, to which the first logits belong."""
    if holder.old_classes is None:
        return []
    return [name for name, old in zip(holder.class_names, holder.old_classes, strict=True) if old]


def read_columns(
    stores: Sequence[EmbeddingStore], positions: NDArray[np.int64], names: Sequence[str]
) -> dict[str, NDArray[np.generic]]:
    """Read columns with m rows from several stores; ``positions`` (m, 2) are store indices and rows.

    Raises:
        Damaged: a block of rows has changed since it was written.
    """
    columns: dict[str, NDArray[np.generic]] = {}
    for number, store in enumerate(stores):
        in_store = positions[:, 0] == number
        rows = positions[in_store, 1]
        for name in names:
            source = store.extras[name] if name in store.extras else getattr(store, name)
            source = source.reshape(store.n, -1) if name == VIEWS else source
            column = columns.setdefault(name, np.zeros((len(positions), *source.shape[1:]), dtype=source.dtype))
            column[in_store] = source[rows]
    return columns

"""Load the embeddings of a store for a command: select a split, check for non-finite and zero values, normalize.

``--max-memory`` sets the block sizes of commands with large temporary arrays: half of it is for rows, and a quarter for
values computed from a block of rows; the rest is for Python, libraries and results.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.row_blocks import Rows, StoredRows, iterate_blocks, row_norms, row_slices
from labelkit.data.datasets import resolve_split
from labelkit.errors import ConfigError, StoreError
from labelkit.options.memory import MemoryConfig
from labelkit.options.shared import SplitOption, find_newest_store
from labelkit.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore


def find_split_rows(store: EmbeddingStore, split: str, *, option: str = "--split") -> NDArray[np.int64]:
    """Find the row numbers of a split of a store; for ``all``, return all row numbers.

    Raises:
        ConfigError: the store has no such split, or the split is empty.
    """
    if split == "all":
        return np.arange(store.n)
    split = resolve_split(split, store.split_names)
    if split not in store.split_names:
        known = ", ".join(store.split_names) or "none"
        remedy = "Pass all, or run embed with --holdout 0.3 --split all."
        if store.split_names:
            remedy = "Choose one of these splits, or all."
        raise ConfigError(option, f"{store.path} has no split {split!r} (it has: {known})", remedy)
    rows = np.asarray(store.rows(split), dtype=np.int64)
    if len(rows) == 0:
        raise ConfigError(option, f"{store.path} has no images in split {split!r}", "Choose another split, or all.")
    return rows


def count_images(store: EmbeddingStore) -> str:
    """Return the number of images in each split of a store, and of labels that commands may use, in one line."""
    splits = store.splits
    counts = {} if splits is None else {name: len(store.rows(name)) for name in store.split_names}
    if splits is not None and (outside := int((np.asarray(splits) < 0).sum())):
        counts["in no split"] = outside
    labels = 0 if store.labels is None else int((np.asarray(store.labels) >= 0).sum())
    usable = 0 if store.labeled is None else int(np.asarray(store.labeled).sum())
    parts = [", ".join(f"{count:,} {name}" for name, count in (counts or {"images": store.n}).items())]
    told = f"{usable:,} of {labels:,} labels usable" if usable else f"{labels:,} labels, used only for evaluation"
    return "; ".join([*parts, told if labels else "no labels"])


def mention_splits(config: SplitOption, store: EmbeddingStore) -> None:
    """Tell, if ``--split`` is not passed, that test images are clustered too, unlike in published results of GCD."""
    if "split" not in config.model_fields_set and "train" in store.split_names and len(store.split_names) > 1:
        names = ", ".join(store.split_names)
        current_progress().message(
            f"clustering {store.n:,} images of the splits {names}; GCD's protocol clusters train only (--split train)"
        )


def warn_of_newer_store(index: Path) -> None:
    """Warn if ``labelkit start`` has created a newer store in the same folder."""
    newest = find_newest_store(index.parent)
    if newest is not None and newest.name != index.name:
        warning = f"{index}: {newest.name} is newer; to use the newest store, pass --index {index.parent}"
        current_progress().warning(warning)


def find_labeled_rows(
    store: EmbeddingStore, split: str, *, option: str = "--split", remedy: str = "Embed a dataset with labels."
) -> NDArray[np.int64]:
    """Find the row numbers of the labeled images of a split; see :func:`find_split_rows`.

    Raises:
        ConfigError: the store has no such split, or the split is empty.
        StoreError: no image of the split has a label.
    """
    rows = find_split_rows(store, split, option=option)
    if store.labels is not None:
        rows = rows[np.asarray(store.labels)[rows] >= 0]
    if store.labels is None or not len(rows):
        raise StoreError(f"{store.path}:/labels", f"no image in split {split} has a label", remedy)
    return rows


def check_rows(store: EmbeddingStore, rows: Sequence[int], option: str) -> list[int]:
    """Check that the row numbers passed to an option exist in a store, and return them as a list.

    Raises:
        ConfigError: the store has no such row.
    """
    beyond = [row for row in rows if row >= store.n]
    if beyond:
        problem = f"{store.path} has no row {beyond[0]}; its rows are 0 to {store.n - 1}"
        raise ConfigError(option, problem, "Choose rows in this range.")
    return list(rows)


def load_finite_embeddings(store: EmbeddingStore, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Load the embeddings of the given rows as contiguous float32, and check that they are finite.

    Raises:
        StoreError: some embeddings contain NaN or infinity.
    """
    if np.array_equal(rows, np.arange(store.n)):  # float32 rows of a mapped file need no copy
        features = np.ascontiguousarray(store.embeddings, dtype=np.float32)
    else:
        features = load_rows(store, rows).to_array()
    check_finite(store, rows, features)
    return features


def check_finite(store: EmbeddingStore, rows: NDArray[np.int64], features: NDArray[np.float32]) -> None:
    """Check that embeddings (n, d) of the given rows (n,) of a store contain no NaN or infinity.

    Raises:
        StoreError: some embeddings contain NaN or infinity.
    """
    bad = np.concatenate([~np.isfinite(features[block]).all(axis=1) for block in row_slices(*features.shape)])
    if bad.any():
        raise StoreError(
            f"{store.path}:/embeddings",
            f"{int(bad.sum())} embeddings contain NaN or infinite values (first: row "
            f"{int(rows[np.flatnonzero(bad)[0]])})",
            "Run `labelkit embed` again.",
        )


def is_nonnegative(store: EmbeddingStore) -> bool:
    """Return whether all embeddings of a store are >= 0, as after a final ReLU."""
    return all((part >= 0).all() for _, part in iterate_blocks(StoredRows(store.lazy_embeddings, in_blocks=True)))


def find_zero_embeddings(features: Rows) -> NDArray[np.bool_]:
    """Return a mask (n,) of the all-zero embeddings, which have no direction (such as the pixels of a black image)."""
    zero = np.zeros(len(features), dtype=np.bool_)
    for where, part in iterate_blocks(features):
        zero[where] = ~part.any(axis=1)
    return zero


def check_nonzero_embeddings(
    store: EmbeddingStore,
    rows: NDArray[np.int64],
    features: Rows,
    remedy: str = "Use `labelkit cluster k-means`, which accepts them unchanged.",
) -> None:
    """Check that none of the embeddings (n, d) of the given rows (n,) is all zeros, and thus without a direction.

    Raises:
        StoreError: some embeddings are all zeros.
    """
    zero = find_zero_embeddings(features)
    if zero.any():
        first = int(rows[np.flatnonzero(zero)[0]])
        raise StoreError(
            f"{store.path}:/embeddings",
            f"{int(zero.sum())} embeddings are all zeros, so they have no direction (first: {store.sample_ids[first]})",
            remedy,
        )


def normalize_embeddings(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Normalize embeddings to unit length; zero embeddings remain zero."""
    scaled = np.empty(features.shape, dtype=np.float32)
    for block in row_slices(*features.shape):
        lengths = row_norms(features[block])[:, None]
        np.divide(features[block], np.where(lengths > 0, lengths, 1), out=scaled[block], casting="same_kind")
    return scaled


def fits_in_memory(config: MemoryConfig, num_bytes: int) -> bool:
    """Return whether data of ``num_bytes`` (embeddings or an index) fits in half of ``--max-memory``."""
    return config.max_memory_bytes is None or num_bytes <= config.max_memory_bytes // 2


def max_block_bytes(config: MemoryConfig, limit: int) -> int:
    """Return the maximum size of a block of scores in bytes: ``limit`` or, if less, a quarter of ``--max-memory``."""
    return limit if config.max_memory_bytes is None else max(1, min(limit, config.max_memory_bytes // 4))


def load_rows_within_memory_limit(
    config: MemoryConfig, store: EmbeddingStore, rows: NDArray[np.int64], *, normalize: bool = False
) -> StoredRows:
    """Load rows of a store; if ``--max-memory`` is too small for them, they are read in blocks when used.

    Raises:
        StoreError: the rows have changed since they were written.
    """
    return load_rows(store, rows, normalize=normalize, in_blocks=not fits_in_memory(config, 4 * len(rows) * store.dim))


def load_rows(
    store: EmbeddingStore,
    rows: NDArray[np.int64],
    *,
    normalize: bool = False,
    square_root: bool = False,
    in_blocks: bool = False,
) -> StoredRows:
    """Load the embeddings of the given rows of a store, optionally normalized or as square roots, and verify them.

    Raises:
        StoreError: the rows have changed since they were written.
    """
    chosen = None if np.array_equal(rows, np.arange(store.n)) else rows
    return StoredRows(store.lazy_embeddings, chosen, unit=normalize, roots=square_root, in_blocks=in_blocks)

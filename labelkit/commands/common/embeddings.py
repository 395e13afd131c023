"""Rows of a store for a stage: those of a split, with features that are finite, of length 1, or not all zero."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.row_blocks import Rows, StoredRows, blocks, iterate_blocks, row_lengths
from labelkit.data.datasets import SPLIT_WORDS
from labelkit.errors import ConfigError, StoreError
from labelkit.store.embeddings import EmbeddingStore


def split_rows(store: EmbeddingStore, split: str, *, option: str = "--split") -> NDArray[np.int64]:
    """Return the rows of a split of a store; all rows for ``all``.

    Args:
        store: with the split.
        split: its name, or ``all``.
        option: that named it, for the error.

    Raises:
        ConfigError: the store has no such split, or no row in it.
    """
    if split == "all":
        return np.arange(store.n)
    split = split if split in store.split_names else SPLIT_WORDS.get(split.lower(), split)
    if split not in store.split_names:
        known = ", ".join(store.split_names) or "none"
        remedy = (
            "Choose a split, or all." if store.split_names else "Pass all, or embed with --holdout 0.3 --split all."
        )
        raise ConfigError(option, f"{store.path} has no split {split!r} (it has: {known})", remedy)
    rows = np.asarray(store.rows(split), dtype=np.int64)
    if len(rows) == 0:
        raise ConfigError(option, f"{store.path} has no images in split {split!r}", "Choose another split, or all.")
    return rows


def check_features(store: EmbeddingStore, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the embeddings of some rows as contiguous float32, after checking that they are finite.

    Raises:
        StoreError: some are not finite.
    """
    whole = len(rows) == store.n
    if whole:
        features = np.ascontiguousarray(store.embeddings, dtype=np.float32)
    else:
        features = StoredRows(store.embeddings, rows, in_blocks=False).to_array()
    check_finite(store, rows, features)
    return features


def check_finite(store: EmbeddingStore, rows: NDArray[np.int64], features: NDArray[np.float32]) -> None:
    """Check that embeddings contain no NaN or infinity.

    Args:
        store: where they are from.
        rows: (n,) of the store.
        features: (n, d) these rows.

    Raises:
        StoreError: there are some.
    """
    bad = np.concatenate([~np.isfinite(features[block]).all(axis=1) for block in blocks(*features.shape)])
    if bad.any():
        raise StoreError(
            f"{store.path}:/embeddings",
            f"{int(bad.sum())} embeddings contain NaN or infinite values (first: row "
            f"{int(rows[np.flatnonzero(bad)[0]])})",
            "Repeat `embed`.",
        )


def never_negative(store: EmbeddingStore) -> bool:
    """Return whether all embeddings are >= 0, as those of a network that ends in a ReLU."""
    return all((part >= 0).all() for _, part in iterate_blocks(StoredRows(store.embeddings, in_blocks=True)))


def zero_rows(features: Rows) -> NDArray[np.bool_]:
    """Return a mask (n,) of all-zero embeddings, such as the pixels of a black image, which have no direction."""
    zero = np.zeros(len(features), dtype=np.bool_)
    for where, part in iterate_blocks(features):
        zero[where] = ~part.any(axis=1)
    return zero


def check_directions(store: EmbeddingStore, rows: NDArray[np.int64], features: Rows) -> None:
    """Check that no embedding is all zero, so that each has a direction.

    Args:
        store: where they are from.
        rows: of the store.
        features: these rows.

    Raises:
        StoreError: there are some.
    """
    zero = zero_rows(features)
    if zero.any():
        first = int(rows[np.flatnonzero(zero)[0]])
        raise StoreError(
            f"{store.path}:/embeddings",
            f"{int(zero.sum())} embeddings are all zero and have no direction (first: {store.sample_ids[first]})",
            "Use `labelkit cluster k-means`, which accepts them unchanged.",
        )


def unit_rows(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale embeddings to unit length; zero embeddings stay zero."""
    scaled = np.empty(features.shape, dtype=np.float32)
    for block in blocks(*features.shape):
        lengths = row_lengths(features[block])[:, None]
        np.divide(features[block], np.where(lengths > 0, lengths, 1), out=scaled[block], casting="same_kind")
    return scaled

"""Two splits of a store with labels: one whose labels are known, one whose labels are to be found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelkit.errors import ConfigError, StoreError
from labelkit.stages.indexes import check_features, split_rows
from labelkit.store.embeddings import EmbeddingStore, open_store


@dataclass(frozen=True)
class LabeledSplits:
    """Features and labels of both.

    Attributes:
        store: the store.
        gallery: (g, d) features whose labels are known.
        gallery_labels: (g,) int64.
        queries: (q, d).
        query_labels: (q,) int64, for scoring only.
    """

    store: EmbeddingStore
    gallery: NDArray[np.float32]
    gallery_labels: NDArray[np.int64]
    queries: NDArray[np.float32]
    query_labels: NDArray[np.int64]


def open_labeled_splits(index: Path, gallery: str, queries: str) -> LabeledSplits:
    """Read the labeled rows of two splits.

    Raises:
        StoreError: the store has no labels in one of the splits, or nothing but zeros in the gallery.
        ConfigError: no such split, or both are the same.
    """
    store = open_store(index)
    if gallery == queries:
        raise ConfigError(
            "--queries", f"{queries} is the gallery too, so each row would find itself", "Choose two splits."
        )
    known, asked = (_labeled_rows(store, split) for split in (gallery, queries))
    labels = np.asarray(store.labels, dtype=np.int64)
    features = check_features(store, known)
    if not features.any():
        raise StoreError(f"{store.path}:/embeddings", f"all rows of {gallery} are zero", "Embed again.")
    return LabeledSplits(store, features, labels[known], check_features(store, asked), labels[asked])


def _labeled_rows(store: EmbeddingStore, split: str) -> NDArray[np.int64]:
    rows = split_rows(store, split)
    if store.labels is not None:
        rows = rows[np.asarray(store.labels)[rows] >= 0]
    if store.labels is None or not len(rows):
        raise StoreError(
            f"{store.path}:/labels", f"no row of split {split} has a label", "Embed a data set with labels."
        )
    return rows

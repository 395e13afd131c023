"""Two splits of a store with labels: one whose labels are known, one whose labels are to be found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelkit.errors import ConfigError, DatasetError, StoreError
from labelkit.stages.given_labels import labels_to_use
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
        class_names: of these numbers.
    """

    store: EmbeddingStore
    gallery: NDArray[np.float32]
    gallery_labels: NDArray[np.int64]
    queries: NDArray[np.float32]
    query_labels: NDArray[np.int64]
    class_names: tuple[str, ...]


def open_labeled_splits(index: Path, gallery: str, queries: str, labels: Path | None = None) -> LabeledSplits:
    """Read the labeled rows of two splits.

    Args:
        index: the store.
        gallery: split whose labels are known.
        queries: split whose labels are to be found.
        labels: ``--labels``: only these labels of the gallery are known, and their rows are no queries; the splits may
            then be the same.

    Raises:
        StoreError: the store has no labels in one of the splits, or nothing but zeros in the gallery.
        DatasetError: ``labels`` cannot be used, or gives none to the gallery.
        ConfigError: no such split, or both are the same.
    """
    store = open_store(index)
    if gallery == queries and labels is None:
        raise ConfigError(
            "--queries", f"{queries} is the gallery too, so each row would find itself", "Choose two splits."
        )
    if labels is None:
        known, asked = (_labeled_rows(store, split) for split in (gallery, queries))
        known_labels, class_names = np.asarray(store.labels, dtype=np.int64)[known], tuple(store.class_names)
    else:
        given = labels_to_use(labels, store, np.arange(store.n, dtype=np.int64))
        known = split_rows(store, gallery)
        known = known[given.labeled[known]]
        if not len(known):
            raise DatasetError(given.where, f"gives no row of split {gallery} a label", "Choose another --gallery.")
        asked = _labeled_rows(store, queries)
        asked = asked[~given.labeled[asked]]
        if not len(asked):
            problem = f"every row of split {queries} whose class is known has a label in {given.where}"
            raise StoreError(f"{store.path}:/labels", problem, "Choose another --queries.")
        known_labels, class_names = given.labels[known], given.class_names
    features = check_features(store, known)
    if not features.any():
        raise StoreError(f"{store.path}:/embeddings", f"all rows of {gallery} are zero", "Embed again.")
    truth = np.asarray(store.labels, dtype=np.int64)[asked]
    return LabeledSplits(store, features, known_labels, check_features(store, asked), truth, class_names)


def _labeled_rows(store: EmbeddingStore, split: str) -> NDArray[np.int64]:
    rows = split_rows(store, split)
    if store.labels is not None:
        rows = rows[np.asarray(store.labels)[rows] >= 0]
    if store.labels is None or not len(rows):
        raise StoreError(
            f"{store.path}:/labels", f"no row of split {split} has a label", "Embed a data set with labels."
        )
    return rows

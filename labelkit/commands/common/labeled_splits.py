"""Two splits of a store with labels: one whose labels are known, one whose labels are to be found.

They may share rows where each row is asked for without itself (leave-one-out).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.row_blocks import StoredRows
from labelkit.commands.common.embeddings import split_rows, zero_rows
from labelkit.commands.common.labels import labels_to_use, with_labels
from labelkit.commands.common.max_memory import stored_rows
from labelkit.errors import ConfigError, DatasetError, StoreError
from labelkit.store.embeddings import EmbeddingStore


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
        names: of the two splits.
        own: (q,) int64, place of each query in the gallery; -1 = it is not there.
    """

    store: EmbeddingStore
    gallery: StoredRows
    gallery_labels: NDArray[np.int64]
    queries: StoredRows
    query_labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    names: tuple[str, str]
    own: NDArray[np.int64]

    @property
    def leave_one_out(self) -> bool:
        """Whether gallery and queries are the same rows."""
        return len(self.own) == len(self.gallery) and bool((self.own >= 0).all())


def choose_labeled_splits(
    store: EmbeddingStore,
    gallery: str,
    queries: str,
    labels: Path | None = None,
    *,
    label_column: str | None = None,
    leave_one_out: bool = False,
) -> LabeledSplits:
    """Choose the labeled rows of two splits.

    Args:
        store: the store.
        gallery: split whose labels are known.
        queries: split whose labels are to be found.
        labels: ``--labels``: only these labels of the gallery are known, and their rows are no queries; the splits may
            then be the same. Where the store has no labels of these classes, all rows are judged by them.
        label_column: header of the column of labels of a CSV; None for the usual one.
        leave_one_out: whether the splits may be the same, and are all rows where train and test are asked for and
            the store has no splits.

    Raises:
        StoreError: the store has no labels in one of the splits, or nothing but zeros in the gallery.
        DatasetError: ``labels`` cannot be used, or gives none to the gallery.
        ConfigError: no such split, or both are the same.
    """
    every = np.arange(store.n, dtype=np.int64)
    if not (labels_to_use(labels, store, every, label_column=label_column).truth >= 0).any():
        store, labels, label_column = with_labels(store, labels, label_column), None, None
    if leave_one_out and not store.split_names and (gallery, queries) == ("train", "test"):
        gallery = queries = "all"
    if gallery == queries and labels is None and not leave_one_out:
        raise ConfigError(
            "--queries", f"{queries} is the gallery too, so each row would find itself", "Choose two splits."
        )
    if labels is None:
        known, asked = _labeled_rows(store, gallery, "--gallery"), _labeled_rows(store, queries, "--queries")
        known_labels, class_names = np.asarray(store.labels, dtype=np.int64)[known], tuple(store.class_names)
    else:
        given = labels_to_use(labels, store, every, label_column=label_column, own_labels=False)
        known = split_rows(store, gallery, option="--gallery")
        known = known[given.labeled[known]]
        if not len(known):
            raise DatasetError(given.where, f"gives no row of split {gallery} a label", "Choose another --gallery.")
        asked = _labeled_rows(store, queries, "--queries")
        asked = asked[~given.labeled[asked]]
        if not len(asked):
            problem = f"every row of split {queries} whose class is known has a label in {given.where}"
            raise StoreError(f"{store.path}:/labels", problem, "Choose another --queries.")
        known_labels, class_names = given.labels[known], given.class_names
    features = stored_rows(store, known)
    if zero_rows(features).all():
        raise StoreError(f"{store.path}:/embeddings", f"all rows of {gallery} are zero", "Embed again.")
    truth = np.asarray(store.labels, dtype=np.int64)[asked]
    places = np.full(store.n, -1, dtype=np.int64)
    places[known] = np.arange(len(known))
    return LabeledSplits(
        store,
        features,
        known_labels,
        stored_rows(store, asked, in_blocks=True),
        truth,
        class_names,
        (gallery, queries),
        places[asked],
    )


def _labeled_rows(store: EmbeddingStore, split: str, option: str) -> NDArray[np.int64]:
    rows = split_rows(store, split, option=option)
    if store.labels is not None:
        rows = rows[np.asarray(store.labels)[rows] >= 0]
    if store.labels is None or not len(rows):
        raise StoreError(
            f"{store.path}:/labels", f"no row of split {split} has a label", "Embed a data set with labels."
        )
    return rows

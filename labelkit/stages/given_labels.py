"""Which rows of a store have a label that may be used: the store's own, those of a file, or a draw of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelkit.config.discover_few import DiscoverFewConfig
from labelkit.data.splits import few_labels_split
from labelkit.data.tables import natural_key, read_label_csv
from labelkit.errors import DatasetError
from labelkit.store.embeddings import EmbeddingStore


@dataclass(frozen=True)
class GivenLabels:
    """Labels that may be used, and the truth that only a report may look at.

    Attributes:
        labels: (m,) int64 class, -1 = none that may be used.
        truth: (m,) int64 class, -1 = unknown.
        class_names: names of the classes: those of the store, then others of the file.
    """

    labels: NDArray[np.int64]
    truth: NDArray[np.int64]
    class_names: tuple[str, ...]


def given_labels(config: DiscoverFewConfig, store: EmbeddingStore, rows: NDArray[np.int64]) -> GivenLabels:
    """Return the labels of some rows.

    Raises:
        DatasetError: there are none, a file names images that are not there, or too many are to be drawn.
    """
    truth = np.full(len(rows), -1, dtype=np.int64)
    if store.labels is not None:
        truth = np.asarray(store.labels, dtype=np.int64)[rows]
    class_names = tuple(store.class_names)
    if config.labels is not None:
        texts = read_placed_labels(config.labels, store, rows)
        fresh = sorted(set(texts.values()) - set(class_names), key=natural_key)
        class_names += tuple(fresh)
        number = {name: label for label, name in enumerate(class_names)}
        labels = np.full(len(rows), -1, dtype=np.int64)
        labels[list(texts)] = [number[text] for text in texts.values()]
        return GivenLabels(labels, truth, class_names)
    if config.num_labels is not None:
        if not (truth >= 0).any():
            raise DatasetError(
                str(store.path), "has no labels to draw from", "Embed a data set with labels, or pass --labels FILE."
            )
        split = few_labels_split(
            truth,
            truth >= 0,
            len(class_names),
            total=config.num_labels,
            seed=config.label_seed,
            class_names=class_names,
        )
        return GivenLabels(np.where(split.labeled, truth, -1), truth, class_names)
    usable = np.zeros(len(rows), dtype=bool)
    if store.labeled is not None:
        usable = np.asarray(store.labeled, dtype=bool)[rows] & (truth >= 0)
    if not usable.any():
        raise DatasetError(
            str(store.path),
            "has no labels that may be used, and this needs some of every class",
            "Label a few images in a file path,label and pass --labels FILE"
            + (", or draw some with --num-labels N to measure." if (truth >= 0).any() else "."),
        )
    return GivenLabels(np.where(usable, truth, -1), truth, class_names)


def read_placed_labels(path: Path, store: EmbeddingStore, rows: NDArray[np.int64]) -> dict[int, str]:
    """Read the labels that a CSV file gives to some rows of a store; label by place in ``rows``, as in the file.

    Raises:
        DatasetError: unreadable, or it names images that are not among the rows.
    """
    texts = read_label_csv(path)
    place_of = {store.sample_ids[int(row)]: place for place, row in enumerate(rows)}
    strangers = [name for name in texts if name not in place_of]
    if strangers:
        raise DatasetError(
            str(path),
            f"{len(strangers)} of {len(texts)} images are not among the rows of {store.path} that are used, "
            f"first: {', '.join(strangers[:5])}",
            "Paths are those of the store, relative to the data root (`sample_ids`, or the column `path` of a table).",
        )
    return {place_of[name]: text for name, text in texts.items()}

"""What is in a store, in words and tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labelkit.store.embeddings import EmbeddingStore
from labelkit.studio.report.images import shown_text

# files that could not be embedded, listed at most
_MOST_SKIPPED = 100


@dataclass(frozen=True)
class ClassRow:
    """Images of one class.

    Attributes:
        name: of the class.
        images: whose class it is.
        labeled: of these, whose label training may use.
        old: whether the class has such images; ``None`` if the store does not say.
    """

    name: str
    images: int
    labeled: int
    old: bool | None


@dataclass(frozen=True)
class Overview:
    """What is in a store.

    Attributes:
        facts: (name, value) of the store.
        model: (name, value) of what made the embeddings.
        classes: images by class; the last row, without a name, are those of unknown class, if there are any.
        splits: (name, images).
        skipped: (name, reason) of what was listed but not embedded, the first of them.
        num_skipped: all of them.
        num_labels: images whose class is known.
    """

    facts: tuple[tuple[str, str], ...]
    model: tuple[tuple[str, str], ...]
    classes: tuple[ClassRow, ...]
    splits: tuple[tuple[str, int], ...]
    skipped: tuple[tuple[str, str], ...]
    num_skipped: int
    num_labels: int


def describe_store(store: EmbeddingStore) -> Overview:
    """Return what is in a store."""
    known = 0 if store.labels is None else int((np.asarray(store.labels) >= 0).sum())
    usable = 0 if store.labeled is None else int(np.asarray(store.labeled).sum())
    facts = (
        ("images", f"{store.n:,}"),
        ("values per embedding", f"{store.dim:,}"),
        ("compared by", {"cosine": "cosine", "l2": "Euclidean distance", "dot": "inner product"}[store.metric]),
        ("class known", f"{known:,}"),
        ("label usable in training", f"{usable:,}"),
        ("listed but not embedded", f"{len(store.skipped):,}"),
        ("made by", shown_text(store.created_by)),
        ("digest", store.content_digest),
    )
    model = store.model
    size = model.preprocess.get("size")
    rows = (
        ("model", model.name),
        ("from", model.source),
        ("layer", model.layer),
        ("pooling", model.pooling),
        ("input", f"{size} pixels" if size is not None else ""),
        ("weights", model.weights_fingerprint),
        ("preprocessing", model.preprocess_digest),
    )
    return Overview(
        facts=facts,
        model=tuple((name, shown_text(value)) for name, value in rows if value),
        classes=_classes(store),
        splits=_splits(store),
        skipped=tuple((shown_text(name), shown_text(reason)) for name, reason in store.skipped[:_MOST_SKIPPED]),
        num_skipped=len(store.skipped),
        num_labels=known,
    )


def _classes(store: EmbeddingStore) -> tuple[ClassRow, ...]:
    if store.labels is None:
        return ()
    labels = np.asarray(store.labels)
    usable = np.zeros(store.n, dtype=bool) if store.labeled is None else np.asarray(store.labeled, dtype=bool)
    count = len(store.class_names)
    images = np.bincount(labels[labels >= 0], minlength=count)
    labeled = np.bincount(labels[(labels >= 0) & usable], minlength=count)
    rows = [
        ClassRow(
            shown_text(name),
            int(images[i]),
            int(labeled[i]),
            None if store.old_classes is None else bool(store.old_classes[i]),
        )
        for i, name in enumerate(store.class_names)
    ]
    unknown = int((labels < 0).sum())
    return tuple(rows + ([ClassRow("", unknown, 0, None)] if unknown else []))


def _splits(store: EmbeddingStore) -> tuple[tuple[str, int], ...]:
    if store.splits is None:
        return ()
    splits = np.asarray(store.splits)
    found = [(shown_text(name), int((splits == i).sum())) for i, name in enumerate(store.split_names)]
    outside = int((splits < 0).sum())
    return tuple(found + ([("(no split)", outside)] if outside else []))

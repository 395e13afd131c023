"""Which images are labeled: the only door through which labels reach training.

A split is data. It is saved with a run and with the embeddings, keyed by sample id. Training sees -1 for every
image that it does not label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

FORMAT: Final = "labelkit.split"
VERSION: Final = 1


@dataclass(frozen=True, eq=False)
class LabelSplit:
    """Which images are labeled, and which classes have labels.

    Attributes:
        kind: name of the rule.
        labeled: (n,) bool, training may use the label of this image.
        old_classes: classes with labels, in the order of the training classes.
        new_classes: the others, continuing that order.
        params: arguments of the rule, as plain JSON values.
        warnings: what a user should know, in sentences.

    Raises:
        ValueError: a class occurs twice.
    """

    kind: str
    labeled: NDArray[np.bool_]
    old_classes: tuple[int, ...]
    new_classes: tuple[int, ...]
    params: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        labeled = np.array(self.labeled, dtype=np.bool_)
        if labeled.ndim != 1:
            raise ValueError(f"labeled has shape {labeled.shape}, must be (n,)")
        labeled.setflags(write=False)
        object.__setattr__(self, "labeled", labeled)
        if len(set(self.class_order)) != len(self.class_order):
            raise ValueError(f"a class occurs twice among old {self.old_classes} and new {self.new_classes}")

    @property
    def class_order(self) -> tuple[int, ...]:
        """Data set class of each training class: old classes, then new ones."""
        return self.old_classes + self.new_classes

    def training_labels(self, labels: ArrayLike) -> NDArray[np.int64]:
        """Return the only labels that training may see.

        Args:
            labels: (n,) int64 classes of the data set; not looked at where ``labeled`` is false.

        Returns:
            (n,) int64, position in ``class_order`` where labeled, -1 elsewhere.

        Raises:
            ValueError: lengths differ, or a labeled image has a class that is not old.
        """
        classes = np.asarray(labels, dtype=np.int64)
        if classes.shape != self.labeled.shape:
            raise ValueError(f"labels have shape {classes.shape}, the split {self.labeled.shape}")
        shown = classes[self.labeled]
        outside = np.setdiff1d(shown, self.old_classes)
        if len(outside):
            raise ValueError(f"labeled images have classes {outside.tolist()}, which are not old classes")
        result = np.full(len(classes), -1, dtype=np.int64)
        position = np.full(max(self.old_classes, default=0) + 1, -1, dtype=np.int64)
        position[list(self.old_classes)] = np.arange(len(self.old_classes))
        result[self.labeled] = position[shown]
        return result

    def to_json(self, sample_ids: Sequence[str]) -> dict[str, Any]:
        """Return plain JSON values, labeled images by name.

        Raises:
            ValueError: ``sample_ids`` has another length.
        """
        if len(sample_ids) != len(self.labeled):
            raise ValueError(f"{len(sample_ids)} sample ids for a split of {len(self.labeled)} images")
        return {
            "format": FORMAT,
            "version": VERSION,
            "kind": self.kind,
            "params": self.params,
            "old_classes": list(self.old_classes),
            "new_classes": list(self.new_classes),
            "warnings": list(self.warnings),
            "num_samples": len(sample_ids),
            "labeled": [sample_ids[int(row)] for row in np.flatnonzero(self.labeled)],
        }

"""Which images of a training set are labeled and which classes are old: the rules, and the split they make.

A split is the only door through which labels reach training, which sees -1 for every image that it does not label. It
is saved with a run and with the embeddings, keyed by sample id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import DatasetError

# classes that warnings name
_NAMED = 5
_NAMED_OLD = 20


@dataclass(frozen=True, eq=False)
class Classes:
    """The classes of a data set, and which labels a rule may look at.

    Attributes:
        labels: (n,) int64 class of each image, -1 = unknown.
        given: (n,) bool, labels that may be used.
        count: classes of the data set.
        names: for messages; by default classes are called by their numbers.

    Raises:
        ValueError: shapes that differ, or a usable label outside of ``[0, count)``.
    """

    labels: NDArray[np.int64]
    given: NDArray[np.bool_]
    count: int
    names: Sequence[str] = ()

    def __post_init__(self) -> None:
        labels, given = np.asarray(self.labels, dtype=np.int64), np.asarray(self.given, dtype=np.bool_)
        if labels.ndim != 1 or given.shape != labels.shape:
            raise ValueError(f"labels and given have shapes {labels.shape} and {given.shape}, must be equal (n,)")
        if bool((given & ((labels < 0) | (labels >= self.count))).any()):
            raise ValueError(f"a given label is outside of [0, {self.count})")
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "given", given)

    def title(self, i: int) -> str:
        """Return what messages call a class: its name, or its number without names."""
        return f"class {self.names[i]!r}" if self.names else f"class {i}"


def _without_labels(classes: Classes, wanted: Sequence[int], labeled: NDArray[np.bool_]) -> tuple[str, ...]:
    counts = np.bincount(classes.labels[labeled], minlength=max(wanted, default=0) + 1)
    empty = [classes.title(i) for i in wanted if counts[i] == 0]
    if len(empty) <= _NAMED:
        return tuple(f"{title} has no labeled image" for title in empty)
    first = ", ".join(title.removeprefix("class ") for title in empty[:_NAMED])
    return (f"{len(empty)} of {len(wanted)} classes have no labeled image: {first}, ...",)


def _old_without_labels(classes: Classes, old: Sequence[int], labeled: NDArray[np.bool_]) -> tuple[str, ...]:
    """Name the old classes that a draw left without a label, and say what helps if anything does."""
    missed = [i for i in old if not labeled[classes.labels == i].any()]
    if not missed:
        return ()
    names = ", ".join(classes.title(i).removeprefix("class ") for i in missed[:_NAMED_OLD])
    more = ", ..." if len(missed) > _NAMED_OLD else ""
    told = f"{len(missed)} of {len(old)} old classes without a labeled image: {names}{more}"
    if labeled.any() and any(classes.given[classes.labels == i].any() for i in missed):
        told += (
            "; labels are drawn from all images of old classes together, not per class: a larger label ratio or "
            "another split seed may reach them"
        )
    return (told,)


def _pick_old(
    num_classes: int,
    old_classes: Sequence[int] | None,
    num_old_classes: int | None,
    new_classes: Sequence[int] | None = None,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if old_classes is not None and num_old_classes is not None and len(old_classes) != num_old_classes:
        raise DatasetError(
            "split",
            f"{len(old_classes)} old classes are listed and {num_old_classes} are asked for",
            "Give one of both.",
        )
    if old_classes is None:
        count = num_classes // 2 if num_old_classes is None else num_old_classes
        if not 0 < count <= num_classes:
            raise DatasetError("split", f"{count} old classes of {num_classes}", f"Ask for 1 to {num_classes}.")
        old = tuple(range(count))
    else:
        old = tuple(int(i) for i in old_classes)
        outside = [i for i in old if not 0 <= i < num_classes]
        if outside:
            raise DatasetError(
                "split", f"old class {outside[0]} does not exist", f"Classes are 0 to {num_classes - 1}."
            )
        if len(set(old)) != len(old) or not old:
            raise DatasetError("split", f"old classes {old} are empty or repeat a class", "Name each class once.")
    rest = tuple(i for i in range(num_classes) if i not in set(old))
    if new_classes is None:
        return old, rest
    new = tuple(int(i) for i in new_classes)
    if sorted(new) != list(rest):
        differ = sorted(set(new) ^ set(rest))
        raise DatasetError(
            "split",
            f"{len(old)} old and {len(new)} new classes are not the {num_classes} classes of the data, each once"
            + (f"; the first that is missing or too many: {differ[0]}" if differ else ""),
            "Name each class that is not old once.",
        )
    return old, new


def gcd_split(
    classes: Classes,
    *,
    old_classes: Sequence[int] | None = None,
    num_old_classes: int | None = None,
    new_classes: Sequence[int] | None = None,
    label_ratio: float = 0.5,
    seed: int = 0,
    draw_order: ArrayLike | None = None,
) -> LabelSplit:
    """Label a share of the images of the old classes; generalized category discovery.

    The images of old classes, in data set order, are drawn uniformly and not per class, so that a
    class can end with few labels. Source: ``sgvaze/generalized-category-discovery``
    (``subsample_instances``), reproduced draw for draw.

    Args:
        classes: of the data set.
        old_classes: classes to label; by default the first ``num_old_classes``.
        num_old_classes: by default half of the classes, rounded down.
        new_classes: all other classes, in the order of the training classes; ascending by default.
        label_ratio: share of the images of old classes that is labeled, in ``[0, 1]``.
        seed: seed of the draw.
        draw_order: (n,) rank of each image in the list that is drawn from; the order of the rows by default.

    Raises:
        DatasetError: old or new classes that are not those of the data; no image would be labeled though the ratio
            is positive.
    """
    old, new = _pick_old(classes.count, old_classes, num_old_classes, new_classes)
    if not 0 <= label_ratio <= 1:
        raise ValueError(f"label_ratio is {label_ratio}, must be in [0, 1]")
    pool = np.flatnonzero(classes.given & np.isin(classes.labels, old))
    if draw_order is not None:
        ranks = np.asarray(draw_order, dtype=np.int64)
        if ranks.shape != classes.labels.shape:
            raise ValueError(f"draw_order has shape {ranks.shape}, labels {classes.labels.shape}")
        pool = pool[np.argsort(ranks[pool], kind="stable")]
    count = int(label_ratio * len(pool))
    if label_ratio > 0 and count == 0:
        raise DatasetError(
            "split",
            f"no image would be labeled: {len(pool)} images with a label in the old classes, ratio {label_ratio}",
            "Choose other old classes or a larger ratio.",
        )
    labeled = np.zeros(len(classes.labels), dtype=np.bool_)
    # RandomState and this call are what the published splits were drawn with.
    labeled[pool[np.random.RandomState(seed).choice(range(len(pool)), count, replace=False)] if count else []] = True
    params = {"label_ratio": float(label_ratio), "seed": int(seed), "num_classes": int(classes.count)}
    warnings = _old_without_labels(classes, old, labeled)
    return LabelSplit("gcd", labeled, old, new, params, warnings)


def few_labels_split(
    classes: Classes, *, per_class: int | None = None, total: int | None = None, seed: int = 0
) -> LabelSplit:
    """Label a few images of every class; semi-supervised learning.

    Args:
        classes: of the data set.
        per_class: labeled images of each class.
        total: labeled images of all classes together; the first ``total % classes.count`` classes get one more.
        seed: seed of the draw.

    Raises:
        DatasetError: a class has fewer images than asked, or the total is below the number of classes.
        ValueError: not exactly one of ``per_class`` and ``total``.
    """
    if per_class is not None and total is None:
        wanted = np.full(classes.count, per_class)
    elif total is not None and per_class is None:
        wanted = total // classes.count + (np.arange(classes.count) < total % classes.count).astype(np.int64)
    else:
        raise ValueError(f"give per_class or total, got {per_class} and {total}")
    if bool((wanted < 1).any()):
        raise DatasetError(
            "split", f"{int(wanted.sum())} labels for {classes.count} classes", "Ask for at least one per class."
        )
    generator = keyed_generator(seed, "few-labels")
    labeled = np.zeros(len(classes.labels), dtype=np.bool_)
    short = []
    for i in range(classes.count):
        rows = np.flatnonzero(classes.given & (classes.labels == i))
        if len(rows) < wanted[i]:
            short.append(f"{classes.title(i)} has {len(rows)}")
            continue
        labeled[generator.choice(rows, int(wanted[i]), replace=False)] = True
    if short:
        raise DatasetError(
            "split",
            f"{int(wanted.max())} labeled images per class are asked for, but {', '.join(short[:10])}",
            "Ask for fewer.",
        )
    params = {"per_class": per_class, "total": total, "seed": int(seed), "num_classes": int(classes.count)}
    return LabelSplit("few-labels", labeled, tuple(range(classes.count)), (), params)


def class_halves_split(classes: Classes) -> LabelSplit:
    """Label the first half of the classes wholly; metric learning is tested on the second half.

    With an odd number the second half is larger. Training uses the labeled images alone.

    Raises:
        DatasetError: fewer than 2 classes, or no image in the first half.
    """
    if classes.count < 2:
        raise DatasetError("split", f"{classes.count} classes cannot be halved", "Use a set with at least 2 classes.")
    half = classes.count // 2
    labeled = classes.given & (classes.labels >= 0) & (classes.labels < half)
    if not labeled.any():
        raise DatasetError("split", "no labeled image in the first half of the classes", "Use a set with labels.")
    old, new = tuple(range(half)), tuple(range(half, classes.count))
    warnings = _without_labels(classes, old, labeled)
    return LabelSplit("class-halves", labeled, old, new, {"num_classes": int(classes.count)}, warnings)


def given_split(classes: Classes) -> LabelSplit:
    """Use the labels exactly as they are given; old classes are those that occur among them."""
    old = tuple(int(i) for i in np.unique(classes.labels[classes.given]))
    new = tuple(i for i in range(classes.count) if i not in set(old))
    # classes that are held out whole have no image here, and need no label
    warnings = _without_labels(classes, [i for i in new if (classes.labels == i).any()], classes.given)
    return LabelSplit("given", classes.given, old, new, {"num_classes": int(classes.count)}, warnings)


def no_labels_split(classes: Classes) -> LabelSplit:
    """Use no label at all; every class is a new one."""
    labeled = np.zeros(len(classes.labels), dtype=np.bool_)
    return LabelSplit("none", labeled, (), tuple(range(classes.count)), {"num_classes": int(classes.count)})


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

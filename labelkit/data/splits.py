"""Label splits: rules that decide which images are used, which of them are labeled, and which classes are old.

Labels reach training only through a split; training sees -1 for every image that the split does not label. A split is
saved with a run and with the embeddings, keyed by sample id.
"""

from __future__ import annotations

import difflib
import fnmatch
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import DatasetError
from labelkit.formatting import join_first_few

# Maximum number of classes listed in a warning.
_NAMED = 20


class ClassLabels(NamedTuple):
    """Class labels of a dataset, a mask of those that a split may use, and the number and names of the classes.

    Attributes:
        labels: (n,) int64 class of each image, -1 = unknown.
        given: (n,) bool, whether the label may be used.
        count: number of classes of the dataset.
        names: class names for messages; without them classes are called by their numbers.
    """

    labels: NDArray[np.int64]
    given: NDArray[np.bool_]
    count: int  # type: ignore[assignment] # hides the method of tuples
    names: Sequence[str] = ()

    def display_name(self, index: int) -> str:
        """Return the name of a class to show in messages, or its number if it has no name."""
        return f"class {self.names[index]!r}" if self.names else f"class {index}"


def _unlabeled_classes_warning(
    classes: ClassLabels, wanted: Sequence[int], labeled: NDArray[np.bool_], *, drawn: bool = False
) -> tuple[str, ...]:
    """Return a warning that names the classes without labels, with a remedy if another draw may reach them."""
    missed = [i for i in wanted if not labeled[classes.labels == i].any()]
    if not missed:
        return ()
    names = join_first_few((classes.display_name(i).removeprefix("class ") for i in missed), _NAMED)
    warning = f"{len(missed)} of {len(wanted)} {'old ' * drawn}classes have no labeled image: {names}"
    if drawn and labeled.any() and any(classes.given[classes.labels == i].any() for i in missed):
        warning += (
            "; labels are drawn from all images of old classes together, not per class: a larger label ratio or "
            "another split seed may include them"
        )
    return (warning,)


def _draw_old_classes(
    num_classes: int, old_classes: Sequence[int] | None, num_old_classes: int | None, new_classes: Sequence[int] | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if old_classes is None:
        count = num_classes // 2 if num_old_classes is None else num_old_classes
        if not 0 < count <= num_classes:
            problem = f"cannot use {count} of {num_classes} classes as old classes"
            raise DatasetError("split", problem, f"Choose a number from 1 to {num_classes}.")
        old_classes = range(count)
    if new_classes is None:
        new_classes = [i for i in range(num_classes) if i not in set(old_classes)]
    old, new = tuple(map(int, old_classes)), tuple(map(int, new_classes))
    differ = [i for i, count in Counter([*range(num_classes), *old, *new]).items() if count != 2]
    if differ:
        problem = f"the {len(old)} old and {len(new)} new classes do not contain each of the {num_classes} classes once"
        problem = f"{problem}; the first missing or extra class is {differ[0]}"
        raise DatasetError("split", problem, "List each class exactly once, as old or as new.")
    if not old:
        raise DatasetError("split", "there are no old classes", "Choose at least one old class.")
    return old, new


def make_gcd_split(
    classes: ClassLabels,
    *,
    old_classes: Sequence[int] | None = None,
    num_old_classes: int | None = None,
    new_classes: Sequence[int] | None = None,
    label_ratio: float = 0.5,
    seed: int = 0,
    draw_order: ArrayLike | None = None,
) -> LabelSplit:
    """Label a fraction of the images in old classes, as in generalized category discovery.

    Images are drawn uniformly from all old classes, in dataset order, and not per class, so that a
    class may get few labels. Source: ``sgvaze/generalized-category-discovery``
    (``subsample_instances``), reproduced draw for draw.

    Args:
        classes: labels and classes of the dataset.
        old_classes: classes to label; by default the first ``num_old_classes``.
        num_old_classes: number of old classes if ``old_classes`` is ``None``; default: half of all, rounded down.
        new_classes: all other classes, in the order of the training classes; ascending by default.
        label_ratio: fraction of the images in old classes to label, in ``[0, 1]``.
        seed: random seed.
        draw_order: (n,) rank of each image in the list to draw from; row order by default.

    Raises:
        DatasetError: old and new classes together are not the classes of the dataset, or no image would be labeled
            although the ratio is positive.
    """
    old, new = _draw_old_classes(classes.count, old_classes, num_old_classes, new_classes)
    pool = np.flatnonzero(classes.given & np.isin(classes.labels, old))
    if draw_order is not None:
        ranks = np.asarray(draw_order, dtype=np.int64)
        pool = pool[np.argsort(ranks[pool], kind="stable")]
    count = int(label_ratio * len(pool))
    if label_ratio > 0 and count == 0:
        problem = (
            f"no image would be labeled: {label_ratio} of {len(pool)} labeled images in the old classes is below 1"
        )
        raise DatasetError("split", problem, "Choose other old classes, or raise --label-ratio.")
    labeled = np.zeros(len(classes.labels), dtype=np.bool_)
    # The published splits were drawn with RandomState and exactly this call.
    labeled[pool[np.random.RandomState(seed).choice(range(len(pool)), count, replace=False)] if count else []] = True
    params = {"label_ratio": float(label_ratio), "seed": int(seed), "num_classes": int(classes.count)}
    warnings = _unlabeled_classes_warning(classes, old, labeled, drawn=True)
    return LabelSplit("gcd", labeled, old, new, params, warnings)


def make_few_labels_split(classes: ClassLabels, *, total: int, seed: int = 0) -> LabelSplit:
    """Label ``total`` images, divided equally among the classes, as in semi-supervised learning.

    The first ``total % classes.count`` classes get one more label.

    Raises:
        DatasetError: a class has too few images, or the total is below the number of classes.
    """
    wanted = total // classes.count + (np.arange(classes.count) < total % classes.count).astype(np.int64)
    if bool((wanted < 1).any()):
        problem = f"{int(wanted.sum())} labels are too few for {classes.count} classes"
        raise DatasetError("split", problem, "Use at least one label per class.")
    generator = keyed_generator(seed, "few-labels")
    labeled = np.zeros(len(classes.labels), dtype=np.bool_)
    short = []
    for i in range(classes.count):
        rows = np.flatnonzero(classes.given & (classes.labels == i))
        if len(rows) < wanted[i]:
            short.append(f"{classes.display_name(i)} has {len(rows)}")
            continue
        labeled[generator.choice(rows, int(wanted[i]), replace=False)] = True
    if short:
        problem = f"{int(wanted.max())} labeled images per class were requested, but {', '.join(short[:10])}"
        raise DatasetError("split", problem, "Request fewer labels.")
    params = {"per_class": None, "total": total, "seed": int(seed), "num_classes": int(classes.count)}
    return LabelSplit("few-labels", labeled, tuple(range(classes.count)), (), params)


def make_dataset_label_split(classes: ClassLabels) -> LabelSplit:
    """Make a split with exactly the labels of the dataset, in which the labeled classes are the old classes."""
    old = tuple(int(i) for i in np.unique(classes.labels[classes.given]))
    new = tuple(i for i in range(classes.count) if i not in set(old))
    # classes that are held out entirely have no image here and need no label
    missed = [classes.display_name(i).removeprefix("class ") for i in new if (classes.labels == i).any()]
    told = f"{len(missed)} of {classes.count} classes have no usable label, so they are new: "
    warnings = (told + join_first_few(missed, _NAMED),) if missed else ()
    return LabelSplit("given", classes.given, old, new, {"num_classes": int(classes.count)}, warnings)


def make_unlabeled_split(classes: ClassLabels) -> LabelSplit:
    """Make a split without labels, in which every class is new."""
    labeled = np.zeros(len(classes.labels), dtype=np.bool_)
    return LabelSplit("none", labeled, (), tuple(range(classes.count)), {"num_classes": int(classes.count)})


FORMAT: Final = "labelkit.split"
VERSION: Final = 1


@dataclass(frozen=True, eq=False)
class LabelSplit:
    """Split of a dataset into labeled and unlabeled images, and into old and new classes.

    Attributes:
        kind: name of the rule.
        labeled: (n,) bool, whether training may use the label of this image.
        old_classes: classes with labels, in the order of the training classes.
        new_classes: the other classes, continuing that order.
        params: arguments of the rule, as plain JSON values.
        warnings: messages for the user.
    """

    kind: str
    labeled: NDArray[np.bool_]
    old_classes: tuple[int, ...]
    new_classes: tuple[int, ...]
    params: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        labeled = np.array(self.labeled, dtype=np.bool_)
        labeled.setflags(write=False)
        object.__setattr__(self, "labeled", labeled)

    @property
    def class_order(self) -> tuple[int, ...]:
        """Return the dataset's class number for each training class, old classes first."""
        return self.old_classes + self.new_classes

    def to_training_labels(self, labels: ArrayLike) -> NDArray[np.int64]:
        """Return the labels (n,) int64 that training may use: positions in ``class_order``, -1 where not labeled.

        Args:
            labels: (n,) int64 classes of the dataset; must be old for labeled images, and are ignored for others.
        """
        classes = np.asarray(labels, dtype=np.int64)
        result = np.full(len(classes), -1, dtype=np.int64)
        position = np.full(max(self.old_classes, default=0) + 1, -1, dtype=np.int64)
        position[list(self.old_classes)] = np.arange(len(self.old_classes))
        result[self.labeled] = position[classes[self.labeled]]
        return result

    def to_json(self, sample_ids: Sequence[str]) -> dict[str, Any]:
        """Convert the split to plain JSON values, listing the labeled images by name."""
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


def draw_holdout_rows(labels: ArrayLike, fraction: float, *, seed: int = 0) -> NDArray[np.int64]:
    """Draw rows to hold out, a fraction in (0, 1) of each class, and return them in increasing order.

    The total is ``fraction * n`` rounded up, divided among the classes of the labels (n,), -1 included, by largest
    remainder (ties go to the first class), and each class keeps at least one image.
    """
    classes = np.asarray(labels, dtype=np.int64)
    values, sizes = np.unique(classes, return_counts=True)
    total = math.ceil(fraction * len(classes) - 1e-9)
    quotas = fraction * sizes
    counts = np.floor(quotas + 1e-9).astype(np.int64)
    order = np.argsort(-(quotas - counts), kind="stable")
    counts[order[: max(0, total - int(counts.sum()))]] += 1
    counts = np.minimum(counts, sizes - 1)
    generator = keyed_generator(seed, "holdout")
    drawn = [
        generator.choice(np.flatnonzero(classes == value), int(count), replace=False)
        for value, count in zip(values, counts, strict=True)
    ]
    return np.sort(np.concatenate(drawn)).astype(np.int64) if drawn else np.zeros(0, dtype=np.int64)


def parse_holdout_classes(words: Sequence[str], class_names: Sequence[str]) -> tuple[int, ...]:
    """Return the sorted numbers of the classes to hold out; see :func:`resolve_classes`.

    Raises:
        DatasetError: a word matches no class, or all classes or none are chosen.
    """
    chosen, count = resolve_classes(words, class_names), len(class_names)
    if not 0 < len(chosen) < count:
        problem = f"{len(chosen)} of {count} classes would be held out"
        raise DatasetError("split", problem, "Keep some classes for training and some for testing.")
    return chosen


def resolve_classes(words: Sequence[str], class_names: Sequence[str]) -> tuple[int, ...]:
    """Resolve class names, patterns, numbers and ranges to class numbers.

    The words are ``half`` or ``first-half`` alone (for an odd number of classes, the second half is larger); or names,
    shell patterns of names, numbers from 0 and ranges of numbers. A word that is a class name is always read as a name.
    The class numbers are returned in increasing order.

    Raises:
        DatasetError: a word matches no class.
    """
    count = len(class_names)
    if tuple(words) in (("half",), ("first-half",)) and words[0] not in class_names:
        half = count // 2
        chosen = set(range(half)) if words[0] == "first-half" else set(range(half, count))
    else:
        chosen = set()
        for word in words:
            found = _match_classes(word, class_names)
            if not found:
                near = difflib.get_close_matches(word, class_names, n=3, cutoff=0.4) or class_names[:3]
                remedy = f"Use names such as {', '.join(near)}, numbers such as 0-9, or half (the second half)."
                raise DatasetError("split", f"there is no class {word!r} among the {count} classes", remedy)
            chosen |= found
    return tuple(sorted(chosen))


def _match_classes(word: str, class_names: Sequence[str]) -> set[int]:
    """Return the classes that match a name, pattern, number or range."""
    found = {i for i, name in enumerate(class_names) if name == word}
    if found:
        return found
    first, dash, last = word.partition("-")
    if first.isdecimal() and (last.isdecimal() if dash else not last):
        return set(range(int(first), int(last if dash else first) + 1)) & set(range(len(class_names)))
    return {i for i, name in enumerate(class_names) if fnmatch.fnmatchcase(name, word)}


def select_first_per_class(labels: ArrayLike, splits: ArrayLike, count: int) -> NDArray[np.int64]:
    """Return the sorted rows of the first ``count`` >= 1 images of each class in each split.

    Labels (n,) and splits (n,) are integers; -1 counts as a class or split of its own.
    """
    pairs = np.stack([np.asarray(labels), np.asarray(splits)])
    groups = np.unique(pairs, axis=1, return_inverse=True)[1].reshape(-1)  # one axis in every version of NumPy
    order = np.argsort(groups, kind="stable")
    starts = np.searchsorted(groups[order], groups[order])
    return np.sort(order[np.arange(len(order)) - starts < count])


def compute_long_tail_counts(largest: float, num_classes: int, imbalance_factor: float) -> NDArray[np.int64]:
    """Compute long-tailed class sizes, ``largest * imbalance_factor**(i / (num_classes - 1))`` rounded down.

    ``largest`` may be fractional, such as a mean class size; ``imbalance_factor`` is in ``(0, 1]``.

    Source: Cui et al., "Class-Balanced Loss Based on Effective Number of Samples" (2019), long-tailed CIFAR.
    """
    exponents = np.arange(num_classes) / max(num_classes - 1, 1)
    # The small term keeps rounding errors from lowering exact integers such as 500 * 0.01.
    return np.floor(largest * imbalance_factor**exponents + 1e-9).astype(np.int64)


def make_long_tail_split(classes: ClassLabels, *, imbalance_factor: float, seed: int = 0) -> NDArray[np.int64]:
    """Choose a long-tailed subset of the images with a usable label, with exponentially decreasing class sizes.

    Returns:
        Kept rows, increasing; class i has ``compute_long_tail_counts(images / classes, ...)[i]``, or all its images
        if it has fewer (as in SVHN, whose classes are not equally large).

    Raises:
        DatasetError: a class would be left empty.
    """
    labels, usable, count = classes.labels, classes.given, classes.count
    sizes = np.bincount(labels[usable], minlength=count)
    counts = np.minimum(compute_long_tail_counts(int(sizes.sum()) / count, count, imbalance_factor), sizes)
    empty = np.flatnonzero(counts == 0)
    if len(empty):
        i = int(empty[0])
        remedy = "Use an --imbalance-factor closer to 1, or a dataset with images of every class."
        raise DatasetError(
            "split", f"{classes.display_name(i)} would be left without images (it has {sizes[i]})", remedy
        )
    generator = keyed_generator(seed, "long-tail")
    members = [np.flatnonzero(usable & (labels == i)) for i in range(count)]
    kept = [generator.choice(members[i], int(counts[i]), replace=False) for i in range(count)]
    return np.sort(np.concatenate(kept)).astype(np.int64)

"""Rules that choose which images or classes are used at all: held out, set apart, or thinned to a long tail."""

from __future__ import annotations

import difflib
import fnmatch
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.data.keyed_random import keyed_generator
from labelkit.data.splits import Classes
from labelkit.data.tables import MAX_TABLE_BYTES
from labelkit.errors import DatasetError
from labelkit.files import read_bytes


def holdout_rows(labels: ArrayLike, share: float, *, seed: int = 0) -> NDArray[np.int64]:
    """Draw rows to hold out, the same share of each class.

    The total is ``share * n`` rounded up; classes get their part of it by largest remainder (of equal ones the first),
    and keep one image at least.

    Args:
        labels: (n,) int64 classes; -1 counts as a class.
        share: in ``(0, 1)``.
        seed: seed of the draw.

    Returns:
        rows to hold out, increasing.

    Raises:
        ValueError: the share is out of range.
    """
    if not 0 < share < 1:
        raise ValueError(f"share is {share}, must be in (0, 1)")
    classes = np.asarray(labels, dtype=np.int64)
    values, sizes = np.unique(classes, return_counts=True)
    total = math.ceil(share * len(classes) - 1e-9)
    quotas = share * sizes
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


def choose_classes(words: Sequence[str], class_names: Sequence[str]) -> tuple[int, ...]:
    """Return the classes that are to be set apart, increasing; see :func:`classes_called`.

    Raises:
        DatasetError: a word that stands for no class, or all classes are chosen or none.
    """
    chosen, count = classes_called(words, class_names), len(class_names)
    if not 0 < len(chosen) < count:
        raise DatasetError(
            "split",
            f"{len(chosen)} of {count} classes would be set apart",
            "Leave some classes to train on, and some to test.",
        )
    return chosen


def words_of_file(words: Sequence[str], class_names: Sequence[str]) -> Sequence[str]:
    """Return the lines of ``NAME.txt`` if that is the only word and no class is called so; else the words.

    Raises:
        DatasetError: the file cannot be read, or has no line.
    """
    if len(words) != 1 or not words[0].endswith(".txt") or words[0] in class_names:
        return words
    path = Path(words[0]).expanduser()
    try:
        lines = read_bytes(path, MAX_TABLE_BYTES).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(
            "split", f"{path} cannot be read ({error})", "Give a text file with a class in each line."
        ) from error
    named = [line.strip() for line in lines if line.strip()]
    if not named:
        raise DatasetError("split", f"{path} names no class", "Write a class in each line.")
    return named


def classes_called(words: Sequence[str], class_names: Sequence[str]) -> tuple[int, ...]:
    """Return the classes that words stand for.

    Args:
        words: ``half`` or ``first-half`` alone (with an odd number the second half is larger); or names, shell patterns
            of names, numbers from 0 and ranges of them, a name first where it is one.
        class_names: name of class i.

    Returns:
        class numbers, increasing.

    Raises:
        DatasetError: a word that stands for no class.
    """
    count = len(class_names)
    if tuple(words) in (("half",), ("first-half",)) and words[0] not in class_names:
        half = count // 2
        chosen = set(range(half)) if words[0] == "first-half" else set(range(half, count))
    else:
        chosen = set()
        for word in words:
            found = _classes_called(word, class_names)
            if not found:
                near = difflib.get_close_matches(word, class_names, n=3, cutoff=0.4) or class_names[:3]
                raise DatasetError(
                    "split",
                    f"no class {word!r} among {count}",
                    f"Names are like {', '.join(near)}; half and 0-9 are possible too.",
                )
            chosen |= found
    return tuple(sorted(chosen))


def _classes_called(word: str, class_names: Sequence[str]) -> set[int]:
    """Classes of one name, pattern, number or range."""
    found = {i for i, name in enumerate(class_names) if name == word}
    if found:
        return found
    first, dash, last = word.partition("-")
    if first.isdecimal() and (last.isdecimal() if dash else not last):
        return set(range(int(first), int(last if dash else first) + 1)) & set(range(len(class_names)))
    return {i for i, name in enumerate(class_names) if fnmatch.fnmatchcase(name, word)}


def first_per_class(labels: ArrayLike, splits: ArrayLike, count: int) -> NDArray[np.int64]:
    """Choose the first rows of each class in each split.

    Args:
        labels: (n,) int64 classes; -1 counts as a class.
        splits: (n,) int, split of each row; -1 counts as a split.
        count: rows of each class in each split at most, >= 1.

    Returns:
        rows kept, increasing.
    """
    if count < 1:
        raise ValueError(f"count is {count}, must be at least 1")
    seen: dict[tuple[int, int], int] = {}
    kept = []
    for row, key in enumerate(zip(np.asarray(labels).tolist(), np.asarray(splits).tolist(), strict=True)):
        seen[key] = seen.get(key, 0) + 1
        if seen[key] <= count:
            kept.append(row)
    return np.array(kept, dtype=np.int64)


def long_tail_counts(largest: float, num_classes: int, imbalance_factor: float) -> NDArray[np.int64]:
    """Return images per class, ``largest * imbalance_factor**(i / (num_classes - 1))`` rounded down.

    Args:
        largest: images of class 0, a fraction where it is the mean size of unequal classes.
        num_classes: number of classes, at least 1.
        imbalance_factor: smallest over largest class, in ``(0, 1]``.

    Source: Cui et al., "Class-Balanced Loss Based on Effective Number of Samples" (2019), long-tailed CIFAR.
    """
    if not 0 < imbalance_factor <= 1:
        raise ValueError(f"imbalance_factor is {imbalance_factor}, must be in (0, 1]")
    exponents = np.arange(num_classes) / max(num_classes - 1, 1)
    # The small addend keeps exact integers (500 * 0.01) from falling below themselves.
    return np.floor(largest * imbalance_factor**exponents + 1e-9).astype(np.int64)


def long_tail_split(classes: Classes, *, imbalance_factor: float, seed: int = 0) -> NDArray[np.int64]:
    """Choose images so that class sizes fall exponentially; the other images are left out.

    Args:
        classes: of the data set; images without a label that may be used are left out.
        imbalance_factor: smallest over largest class, in ``(0, 1]``, e.g. 0.01.
        seed: seed of the draw.

    Returns:
        rows kept, increasing; class i has ``long_tail_counts(images / classes, ...)[i]`` of them, or all that it has
        if these are fewer (as in SVHN, whose classes are not equally large).

    Raises:
        DatasetError: a class would be left empty.
    """
    labels, usable, count = classes.labels, classes.given, classes.count
    sizes = np.bincount(labels[usable], minlength=count)
    counts = np.minimum(long_tail_counts(int(sizes.sum()) / count, count, imbalance_factor), sizes)
    empty = np.flatnonzero(counts == 0)
    if len(empty):
        i = int(empty[0])
        raise DatasetError(
            "split",
            f"{classes.title(i)} would be left without an image (it has {sizes[i]})",
            "Use an imbalance factor nearer to 1, or a set with images of every class.",
        )
    generator = keyed_generator(seed, "long-tail")
    kept = [
        generator.choice(np.flatnonzero(usable & (labels == i)), int(counts[i]), replace=False) for i in range(count)
    ]
    return np.sort(np.concatenate(kept)).astype(np.int64)

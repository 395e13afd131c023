"""Class vectors from word embeddings: a text file of vectors by name, and prototypes of any dimension from them.

The file is that of word2vec and GloVe: in each line a name and its numbers, with an optional first line of two whole
numbers. Large ones are read line by line; only the lines of the classes are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from labelkit.errors import DatasetError, resource_error
from labelkit.files import NotRegularError, open_regular

_FORM = "In each line write a class name (_ for a space) and its numbers, with blanks between them."
_SHOWN = 5


def word_prototypes(vectors: NDArray[np.float64], dim: int) -> NDArray[np.float32]:
    """Return unit rows in ``dim`` dimensions: the vectors less their mean, along their principal directions.

    Between centered vectors, cosines stay as they are where ``dim`` is the number of vectors less one, or more.

    Args:
        vectors: (c, m) float64, one of each class.
        dim: d <= m; where c - 1 < d, the others stay 0.

    Returns:
        (c, d) float32, rows of length 1.

    Raises:
        ValueError: d > m, or a vector equals the mean, so that it has no direction.
    """
    count, width = vectors.shape
    if dim > width:
        raise ValueError(f"dim must be at most {width}, got {dim}")
    centered = vectors - vectors.mean(axis=0)
    _, _, axes = np.linalg.svd(centered, full_matrices=False)
    kept = min(dim, len(axes))
    rows = np.zeros((count, dim))
    rows[:, :kept] = centered @ axes[:kept].T
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if (lengths <= 1e-9 * np.linalg.norm(centered, axis=1).max()).any():
        raise ValueError(f"row {int(lengths.argmin())} has no direction in {dim} dimensions")
    unit: NDArray[np.float64] = rows / lengths
    return unit.astype(np.float32)


def read_class_vectors(path: Path, names: Sequence[str]) -> NDArray[np.float64]:
    """Read the vector of each name; capitals and ``_`` or a blank matter only where a file has several such names.

    Args:
        path: text file of vectors by name.
        names: of the classes.

    Returns:
        (len(names), m) float64.

    Raises:
        DatasetError: a class has no vector, or several; a line is damaged.
        ResourceError: the file cannot be read.
    """
    wanted: dict[str, list[str]] = {}
    for name in names:
        wanted.setdefault(_plain(name), []).append(name)
    exact: dict[str, NDArray[np.float64]] = {}
    alike: dict[str, dict[str, NDArray[np.float64]]] = {}
    try:
        with open_regular(path) as file:
            for number, word, numbers in _lines(file, path):
                plain = _plain(word)
                if plain not in wanted:
                    continue
                vector = _vector(numbers, f"{path}: line {number}")
                for name in wanted[plain]:
                    if word == name.replace(" ", "_"):
                        _check_new(exact, name, path, number)
                        exact[name] = vector
                alike.setdefault(plain, {}).setdefault(word, vector)
    except NotRegularError as error:
        raise DatasetError(str(path), "is not a regular file", "Give a text file of vectors by name.") from error
    except OSError as error:
        if isinstance(error, FileNotFoundError | IsADirectoryError):
            raise DatasetError(str(path), str(error.strerror), "Give a text file of vectors by name.") from error
        raise resource_error(error, str(path)) from error
    found = [exact[name] if name in exact else _only(alike.get(_plain(name), {}), name, path) for name in names]
    missing = [name for name, vector in zip(names, found, strict=True) if vector is None]
    if missing:
        shown = ", ".join(missing[:_SHOWN]) + (f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else "")
        raise DatasetError(str(path), f"has no vector of {len(missing)} of {len(names)} classes: {shown}", _FORM)
    vectors = [vector for vector in found if vector is not None]
    widths = {len(vector) for vector in vectors}
    if len(widths) > 1:
        raise DatasetError(str(path), f"has vectors of {min(widths)} and of {max(widths)} numbers", _FORM)
    return np.stack(vectors)


def _lines(file: BinaryIO, path: Path) -> Iterator[tuple[int, str, bytes]]:
    """Number, name and the rest of each line that has both; a first line of two whole numbers is a head."""
    for number, line in enumerate(file, start=1):
        word, _, numbers = line.strip().partition(b" ")
        if not numbers or (number == 1 and word.isdigit() and numbers.strip().isdigit()):
            continue
        try:
            yield number, word.decode("utf-8"), numbers
        except UnicodeDecodeError:
            if number == 1:  # a binary file; a strange name further on is none of ours
                raise DatasetError(str(path), "is not a text file", _FORM) from None


def _vector(numbers: bytes, where: str) -> NDArray[np.float64]:
    try:
        vector = np.array([float(number) for number in numbers.split()])
    except ValueError as error:
        raise DatasetError(where, f"{error}", _FORM) from error
    if not np.isfinite(vector).all():
        raise DatasetError(where, "has a number that is not finite", _FORM)
    return vector


def _check_new(found: dict[str, NDArray[np.float64]], name: str, path: Path, number: int) -> None:
    if name in found:
        raise DatasetError(f"{path}: line {number}", f"has a second vector of {name}", "Keep one.")


def _only(vectors: dict[str, NDArray[np.float64]], name: str, path: Path) -> NDArray[np.float64] | None:
    """The single vector of a name that is written otherwise; ``None`` if there is none."""
    if len(vectors) > 1:
        raise DatasetError(str(path), f"has several vectors for {name}: {', '.join(sorted(vectors))}", "Keep one.")
    return next(iter(vectors.values()), None)


def _plain(name: str) -> str:
    return name.strip().lower().replace(" ", "_")

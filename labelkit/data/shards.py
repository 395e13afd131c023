"""Data sets in few large files: which files a pattern stands for, and what their formats share.

``shards/{000..099}.tar`` and ``shards/{a,b}.tar`` name each file, so that a missing one is a fault; ``shards/*.tar``
takes what is there.
"""

from __future__ import annotations

import glob
import itertools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from labelkit.data.datasets import ImageDataset, ImageSource, positions_of, sorted_by_bytes
from labelkit.data.folders import split_of_name, splits_in_order
from labelkit.data.remote import RemoteFile, expand_addresses, is_address
from labelkit.data.tables import natural_key
from labelkit.errors import DatasetError
from labelkit.files import open_regular

Place = Path | RemoteFile
"""Where a file lies: on this machine, or at an address."""

SUFFIXES: Final = (".tar", ".parquet")
_COMPRESSED: Final = (".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".tar.zst")
_BRACES: Final = re.compile(r"\{([^{}]+)\}")
_RANGE: Final = re.compile(r"(\d+)\.\.(\d+)")
_MOST_FILES: Final = 1_000_000
_MOST_SHOWN: Final = 3


def is_shards(text: str) -> bool:
    """Whether a data set is named by the files that hold it."""
    return text.lower().endswith(SUFFIXES + _COMPRESSED)


def open_place(place: Place) -> BinaryIO:
    """Open a file for reading from any place.

    Raises:
        OSError: there is none, or it is not a regular file.
        DatasetError: it is at an address and cannot be fetched.
    """
    return open_regular(place) if isinstance(place, Path) else place.open()


def absolute(places: Sequence[Place]) -> tuple[Place, ...]:
    """Return files that are found from any folder."""
    return tuple(place.absolute() if isinstance(place, Path) else place for place in places)


def expand_shards(text: str) -> list[Place]:
    """Return the files that a pattern stands for, in the order of their names.

    Raises:
        DatasetError: none, or one that is named is not there.
    """
    if text.lower().endswith(_COMPRESSED):
        remedy = "Unpack it to NAME.tar: images are compressed already, and are read by their place in the file."
        raise DatasetError(text, "is a compressed archive", remedy)
    if is_address(text):
        return list(expand_addresses(text, list(_expand_braces(text)), glob.has_magic))
    names = [str(Path(name).expanduser()) for name in _expand_braces(text)]
    found: list[str] = []
    for name in names:
        if glob.has_magic(name) and not Path(name).exists():
            found += glob.glob(name)  # noqa: PTH207 - Path.glob takes no absolute pattern
        else:
            found.append(name)
    if not found:
        raise DatasetError(text, "no such file", "Check the folder and the pattern.")
    missing = [name for name in found if not Path(name).is_file()]
    if missing:
        shown = ", ".join(missing[:_MOST_SHOWN]) + (", ..." if len(missing) > _MOST_SHOWN else "")
        problem = f"{len(missing)} of {len(found)} files are not there: {shown}"
        raise DatasetError(text, problem, "Fetch them, or name fewer.")
    return [Path(name) for name in sorted_by_bytes(set(found))]


def _expand_braces(text: str) -> Iterable[str]:
    """Return every text that braces stand for, as a shell does."""
    parts = _BRACES.split(text)
    choices: list[Sequence[str]] = []
    count = 1
    for place, part in enumerate(parts):
        one = [part] if place % 2 == 0 else _choices(part)
        count *= len(one)
        if count > _MOST_FILES:
            raise DatasetError(text, f"stands for more than {_MOST_FILES:,} files", "Name fewer.")
        choices.append(one)
    return map("".join, itertools.product(*choices))


def _choices(inside: str) -> list[str]:
    numbers = _RANGE.fullmatch(inside)
    if numbers is None:
        return inside.split(",")
    first, last = numbers.groups()
    width = len(first) if first.startswith("0") or len(first) == len(last) else 0
    if abs(int(last) - int(first)) >= _MOST_FILES:
        return [""] * (_MOST_FILES + 1)
    step = 1 if int(first) <= int(last) else -1
    return [f"{number:0{width}d}" for number in range(int(first), int(last) + step, step)]


def splits_of_files(paths: Sequence[Place]) -> list[str | None]:
    """Return the split that the name of each file says, as train-0001.tar does; none if only one is said, of some."""
    found = [split_of_name(path.name.removesuffix(path.suffix)) for path in paths]
    return [None] * len(found) if None in found and len(set(found)) < 3 else found


def listing(
    name: str,
    ids: Sequence[str],
    labels: Sequence[str | None],
    splits: Sequence[str | None],
    source: ImageSource,
    *,
    class_names: Sequence[str] | None = None,
    notes: Iterable[str] = (),
) -> ImageDataset:
    """Return the data set of images in large files.

    Args:
        name: of the set.
        ids: n different names of images, in the order of ``source``.
        labels: name of the class of each, or ``None``.
        splits: name of the split of each, or ``None``.
        source: reads them.
        class_names: names of the classes in their order; by default those that occur, 2 before 10.
        notes: what listing left out.
    """
    order: NDArray[np.int64] = np.array(sorted(range(len(ids)), key=lambda row: ids[row].encode()), dtype=np.int64)
    names = tuple(class_names or sorted({label for label in labels if label is not None}, key=natural_key))
    split_names = splits_in_order(splits)
    found = positions_of([labels[row] for row in order], names)
    return ImageDataset(
        name=name,
        root=None,
        sample_ids=tuple(ids[row] for row in order),
        labels=found,
        given=found >= 0,
        class_names=names,
        splits=positions_of([splits[row] for row in order], split_names).astype(np.int16),
        split_names=split_names,
        in_channels=3,
        chiral=False,
        photographic=True,
        source=source.select(order),
        notes=tuple(notes),
    )

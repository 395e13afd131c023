"""A CSV file that names images, labels and splits as a data set."""

from __future__ import annotations

import csv
import io
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from labelkit.data.datasets import FileSource, ImageDataset, positions_of, sorted_by_bytes
from labelkit.data.files import is_folder, is_there, read_table
from labelkit.errors import DatasetError

MAX_FAULTS_SHOWN: Final = 10
_DIGITS_AT_ONCE: Final = 4000


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return the key of an order in which 2 < 10 and a2 < a10."""
    parts = re.split(r"(\d+)", name)
    if re.fullmatch(r"-?\d+", name):
        return ((0, _number(name), name),)
    return tuple((0, _number(part), part) if i % 2 else (1, 0, part) for i, part in enumerate(parts) if part)


def _number(digits: str) -> int:
    """The number that digits stand for; Python's own conversion ends at some thousands of them."""
    if len(digits) <= _DIGITS_AT_ONCE:
        return int(digits)
    head, tail = digits[:-_DIGITS_AT_ONCE], digits[-_DIGITS_AT_ONCE:]
    sign = -1 if digits.startswith("-") else 1
    return _number(head) * 10**_DIGITS_AT_ONCE + sign * int(tail) if head != "-" else -int(tail)


@dataclass(frozen=True, slots=True)
class _CsvRow:
    line: int
    path: str
    label: str
    split: str


class _Faults:
    """Gathers what is wrong with a file, so that all of it can be mended at once."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._texts: list[str] = []
        self._count = 0

    def add(self, line: int, text: str) -> None:
        self._count += 1
        if len(self._texts) < MAX_FAULTS_SHOWN:
            self._texts.append(f"line {line}: {text}")

    def raise_any(self) -> None:
        if not self._count:
            return
        more = self._count - len(self._texts)
        texts = [*self._texts, f"and {more} more"] if more else self._texts
        raise DatasetError(
            self._where,
            f"{self._count} fault{'s' if self._count > 1 else ''}\n  " + "\n  ".join(texts) + "\n",
            "Each row is path,label or path,label,split; an empty label means unlabeled.",
        )


def load_csv(path: Path) -> ImageDataset:
    """List the images named in a CSV file with the columns ``path``, ``label`` and maybe ``split``.

    Paths are relative to the folder of the CSV or absolute; that folder is the root of the sample
    ids unless a path leads out of it, then the deepest folder that holds all images. An empty
    label means unlabeled, an empty split none. Other columns are ignored. Class names are sorted
    naturally (2 before 10), splits too, after train, val and test.

    Raises:
        DatasetError: every unreadable row, missing file or name used twice, with its line number.
    """
    rows = _read_csv_rows(path)
    folder = path.absolute().parent
    files = [Path(os.path.normpath(folder / row.path)) for row in rows]
    root = folder
    if not all(file.is_relative_to(folder) for file in files):
        root = Path(os.path.commonpath([os.path.dirname(file) for file in files]))  # noqa: PTH120 - str, for commonpath
    faults = _Faults(str(path))
    line_of: dict[str, int] = {}
    by_id: dict[str, _CsvRow] = {}
    for row, file in zip(rows, files, strict=True):
        sample_id = file.relative_to(root).as_posix()
        first = line_of.setdefault(sample_id, row.line)
        if first != row.line:
            faults.add(row.line, f"{row.path!r} is already in line {first}")
        elif not is_there(file):
            faults.add(row.line, f"no file {row.path!r} (looked for {file})")
        elif is_folder(file):
            faults.add(row.line, f"{row.path!r} is a folder")
        elif row.label == "-1":
            faults.add(row.line, "label -1; leave the label empty if it is unknown")
        by_id[sample_id] = row
    faults.raise_any()
    ids = tuple(sorted_by_bytes(by_id))
    class_names = tuple(sorted({row.label for row in rows if row.label}, key=natural_key))
    first_splits = [split for split in ("train", "val", "test") if any(row.split == split for row in rows)]
    other_splits = sorted({row.split for row in rows if row.split} - set(first_splits), key=natural_key)
    split_names = (*first_splits, *other_splits)
    labels = positions_of([by_id[sample_id].label or None for sample_id in ids], class_names)
    splits = positions_of([by_id[sample_id].split or None for sample_id in ids], split_names)
    return ImageDataset(
        name=path.stem,
        root=root,
        sample_ids=ids,
        labels=labels,
        given=labels >= 0,
        class_names=class_names,
        splits=splits.astype(np.int16),
        split_names=split_names,
        in_channels=3,
        chiral=False,
        photographic=True,
        source=FileSource(root, ids),
    )


def read_label_csv(path: Path) -> dict[str, str]:
    """Read the labels that a CSV file with the columns ``path`` and ``label`` gives to images.

    The images need not be there. Rows with an empty label are left out.

    Returns:
        label by path, both as they are written, in the order of the file.

    Raises:
        DatasetError: unreadable, no row with a label, or two labels for one path.
    """
    found: dict[str, str] = {}
    faults = _Faults(str(path))
    for row in _read_csv_rows(path):
        if not row.label:
            continue
        if found.setdefault(row.path, row.label) != row.label:
            faults.add(row.line, f"{row.path!r} is {found[row.path]!r} in an earlier line and {row.label!r} here")
    faults.raise_any()
    if not found:
        raise DatasetError(str(path), "no row has a label", "Fill in the column label of some rows.")
    return found


def _read_csv_rows(path: Path) -> list[_CsvRow]:
    where = str(path)
    raw = read_table(path)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DatasetError(where, f"line {line} is not UTF-8", "Save the file as UTF-8.") from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header_remedy = "The first line must be path,label or path,label,split."
    try:
        header = [column.strip().lower() for column in next(reader)]
    except StopIteration:
        raise DatasetError(where, "the file is empty", header_remedy) from None
    except csv.Error as error:
        raise DatasetError(where, f"line 1: {error}", header_remedy) from error
    for column in ("path", "label"):
        if column not in header:
            raise DatasetError(where, f"line 1: no column {column!r}, found {', '.join(header)}", header_remedy)
    repeated = [column for column in ("path", "label", "split") if header.count(column) > 1]
    if repeated:
        raise DatasetError(where, f"line 1: column {repeated[0]!r} occurs twice", header_remedy)
    at_path, at_label = header.index("path"), header.index("label")
    at_split = header.index("split") if "split" in header else None
    faults = _Faults(where)
    rows: list[_CsvRow] = []
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            faults.add(reader.line_num, f"unreadable: {error}")
            break
        if not fields:
            continue
        if len(fields) != len(header):
            faults.add(reader.line_num, f"{len(fields)} fields, the header has {len(header)}")
        elif not fields[at_path].strip() or "\0" in fields[at_path]:
            faults.add(reader.line_num, "no path")
        else:
            split = "" if at_split is None else fields[at_split].strip()
            rows.append(_CsvRow(reader.line_num, fields[at_path], fields[at_label].strip(), split))
    faults.raise_any()
    if not rows:
        raise DatasetError(where, "no images: only a header", header_remedy)
    return rows

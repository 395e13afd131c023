"""Images in Parquet files, as Hugging Face datasets keeps them: a column of bytes, and perhaps one of labels.

A file is read in its groups of rows. A row is named ``FILE/NUMBER``, so that the order of rows is that of the files:
to read them in turn costs each group once. Groups stay in memory up to a limit; of larger files, reading at random
costs a group for nearly every image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelkit.data.datasets import EncodedImage, ImageDataset
from labelkit.data.decode import BadImage
from labelkit.data.label_names import class_names as classes_of
from labelkit.data.shards import Place, absolute, listing, open_place, splits_of_files
from labelkit.data.tables import find_label_column, without_labels
from labelkit.errors import DatasetError
from labelkit.files import NotRegularError, parse_json

IMAGE_COLUMNS: Final = ("image", "img", "jpg", "png", "webp", "bytes", "image_bytes")
# Encoded images of groups that one process keeps: a set of 100,000 small photos, or one group.
_HELD_BYTES: Final = 1 << 28


@dataclass(slots=True, eq=False)
class ParquetSource:
    """Rows of files by their numbers.

    Attributes:
        paths: the files.
        column: name of the one that holds the images.
        files: (n,) int64 which of them a row is in.
        groups: (n,) int64 which group of rows.
        places: (n,) int64 place in the group.
    """

    paths: tuple[Place, ...]
    column: str
    files: NDArray[np.int64]
    groups: NDArray[np.int64]
    places: NDArray[np.int64]
    _held: dict[tuple[int, int], Any] = field(default_factory=dict, init=False)

    def read(self, index: int) -> EncodedImage:
        """Read row ``index``; :class:`BadImage` if that fails."""
        file, group = int(self.files[index]), int(self.groups[index])
        try:
            column = self._group(file, group)
            value = column[int(self.places[index])].as_py()
        except DatasetError:
            raise
        except Exception as error:  # errors of pyarrow have no class in common
            raise BadImage(f"{self.paths[file].name} cannot be read: {' '.join(str(error).split())}") from error
        content = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(content, bytes) or not content:
            raise BadImage("no bytes in this row")
        return EncodedImage(content)

    def _group(self, file: int, group: int) -> Any:
        import pyarrow.parquet as pq

        held = self._held.get((file, group))
        if held is not None:
            return held
        with open_place(self.paths[file]) as opened, pq.ParquetFile(opened) as table:
            found = table.read_row_group(group, columns=[self.column]).column(0)
        # Threads share what is held: each step of this is one that another may follow on.
        size = found.nbytes + sum(one.nbytes for one in list(self._held.values()))
        for oldest in list(self._held):
            if size <= _HELD_BYTES:
                break
            gone = self._held.pop(oldest, None)
            size -= 0 if gone is None else gone.nbytes
        self._held[file, group] = found
        return found

    def select(self, rows: NDArray[np.int64]) -> ParquetSource:
        """Return the rows of ``rows``."""
        return ParquetSource(self.paths, self.column, self.files[rows], self.groups[rows], self.places[rows])

    def __getstate__(self) -> tuple[Any, ...]:
        """What a worker process is sent: no group of rows."""
        return self.paths, self.column, self.files, self.groups, self.places

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Take what was sent."""
        self.paths, self.column, self.files, self.groups, self.places = state
        self._held = {}


def load_parquet(paths: Sequence[Place], name: str, label_column: str | None = None) -> ImageDataset:
    """List the images of Parquet files.

    Args:
        paths: files with the same columns.
        name: of the data set.
        label_column: the one of labels; by default the usual one, or the only one that Hugging Face calls classes.

    Raises:
        DatasetError: pyarrow is not installed, a file is damaged or has no column of images, or two have one name.
    """
    try:
        import pyarrow.parquet  # noqa: F401 - to see whether it is there
    except ImportError as error:
        raise DatasetError(name, "reading Parquet needs pyarrow", "pip install pyarrow.") from error
    stems = [path.name.removesuffix(path.suffix) for path in paths]
    twice = next((stem for stem in stems if stems.count(stem) > 1), None)
    if twice is not None:
        raise DatasetError(name, f"two files are called {twice}", "Rename one: rows are named by their file.")
    ids: list[str] = []
    labels: list[object] = []
    label_fault = ""
    splits: list[str | None] = []
    pieces: list[NDArray[np.int64]] = []
    column: str | None = None
    class_names: list[str] = []
    split_of_file = splits_of_files(paths)
    for number, path in enumerate(paths):
        found = _read_listing(path, column, label_column)
        if class_names and found.class_names and found.class_names != class_names:
            raise DatasetError(str(path), f"has other classes than {paths[0].name}", "Give files of one data set.")
        column, class_names = found.column, class_names or found.class_names
        count = sum(found.group_rows)
        ids += [f"{stems[number]}/{row:09d}" for row in range(count)]
        labels += found.labels
        label_fault = label_fault or found.label_fault
        splits += [split_of_file[number]] * count
        for group, rows in enumerate(found.group_rows):
            pieces.append(np.stack([np.full(rows, number), np.full(rows, group), np.arange(rows)], axis=1))
    if not ids or column is None:
        raise DatasetError(name, "no rows", "Check the files.")
    places = np.concatenate(pieces).astype(np.int64)
    source = ParquetSource(absolute(paths), column, *(places[:, part].copy() for part in range(3)))
    notes = [without_labels(label_fault)] if label_fault else []
    classes = [_named(value, class_names) for value in labels]
    if not class_names:
        classes, told = classes_of(labels)
        notes += told
    return listing(name, ids, classes, splits, source, class_names=class_names, notes=notes)


@dataclass(slots=True)
class _Listing:
    column: str
    group_rows: list[int]
    labels: list[object]
    class_names: list[str]
    label_fault: str


def _read_listing(path: Place, column: str | None, label_column: str | None) -> _Listing:
    """Read labels and groups of a file, and no image.

    Raises:
        DatasetError: it cannot be read, or has no column of images, or not that of labels.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    where = str(path)
    try:
        with open_place(path) as file, pq.ParquetFile(file) as table:
            schema = table.schema_arrow
            wanted = column or _image_column(schema, where)
            if wanted not in schema.names:
                raise DatasetError(where, f"has no column {wanted!r}, as other files have", "Give files of one set.")
            groups = [table.metadata.row_group(group).num_rows for group in range(table.num_row_groups)]
            features = _features(schema.metadata or {})
            others = [name for name in schema.names if name != wanted]
            label, fault = find_label_column(others, label_column, [name for name in others if name in features])
            if label_column is not None and not label:
                raise DatasetError(where, fault, "Name another with --label-column.")
            values = table.read(columns=[label]).column(0).to_pylist() if label else [None] * sum(groups)
    except NotRegularError as error:
        raise DatasetError(where, "is not a regular file", "Give a file.") from error
    except (OSError, pa.ArrowException) as error:
        said = " ".join(str(error).split())
        raise DatasetError(where, f"cannot be read as Parquet: {said}", "Fetch it again.") from error
    return _Listing(wanted, groups, values, features.get(label, []), fault)


def _image_column(schema: Any, where: str) -> str:
    """Return the column of bytes, or of pairs of bytes and path as Hugging Face has them."""
    import pyarrow as pa

    def holds_images(kind: Any) -> bool:
        if pa.types.is_struct(kind):
            return bool(kind.get_field_index("bytes") >= 0)
        return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))

    names = [one.name for one in schema if holds_images(one.type)]
    usual = [name for name in IMAGE_COLUMNS if name in names]
    if len(names) == 1 or usual:
        return usual[0] if usual else names[0]
    shown = ", ".join(schema.names)
    if names:
        problem = f"{len(names)} columns may hold the images: {', '.join(names)}"
        raise DatasetError(where, problem, f"Call one of them {IMAGE_COLUMNS[0]}.")
    raise DatasetError(where, f"no column of images, found {shown}", "It must hold bytes of image files.")


def _features(metadata: dict[bytes, bytes]) -> dict[str, list[str]]:
    """Names of the classes in the metadata of Hugging Face, by column."""
    try:
        features = parse_json(metadata[b"huggingface"].decode("utf-8"))["info"]["features"]
        names = {column: about.get("names") for column, about in features.items() if isinstance(about, dict)}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}
    return {
        column: list(map(str, found))
        for column, found in names.items()
        if isinstance(found, list) and len(set(map(str, found))) == len(found)
    }


def _named(value: object, names: Sequence[str]) -> str | None:
    """Return the class whose number, or name, a value is; -1 and nothing name none."""
    if isinstance(value, int | float):
        return names[int(value)] if value in range(len(names)) else None
    return None if value is None else str(value)

"""Datasets stored in a few large files, tar archives or Parquet files, from which images are read by position.

``shards/{000..099}.tar`` and ``shards/{a,b}.tar`` name each file, so that a missing file is an error; ``shards/*.tar``
matches the files that exist. Nothing is unpacked; listing reads the headers once.

In a tar archive, a WebDataset sample consists of the members whose names agree up to the first dot: ``0001.jpg`` and
``0001.cls``. Without such labels, the folders in the archive are the classes, as in a folder of images.

A Parquet file, as used by Hugging Face, has a column of image bytes, optionally one of labels, and is read one row
group at a time. Images are named ``FILE/NUMBER``, so that reading them in order reads each group once. Groups are
cached in memory up to a limit; in larger files, random access reads a group for nearly every image.
"""

import itertools
import re
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from labelkit.data.datasets import ImageDataset, build_dataset
from labelkit.data.decode import MAX_FILE_BYTES, BadImageError, EncodedImage, image_suffixes
from labelkit.data.folders import describe_ignored_files, find_exclusion_reason, infer_split, infer_splits_and_classes
from labelkit.data.remote import FileLocation, match_files, translate_errors
from labelkit.data.tables import find_label_column, missing_labels_note
from labelkit.data.tables import to_class_names as classes_of
from labelkit.errors import DatasetError
from labelkit.files import parse_json
from labelkit.formatting import to_one_line

SUFFIXES: Final = (".tar", ".parquet")
_COMPRESSED: Final = (".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".tar.zst")
_BRACES: Final = re.compile(r"\{([^{}]+)\}")
_RANGE: Final = re.compile(r"(\d+)\.\.(\d+)")


def is_archive_pattern(text: str) -> bool:
    """Return whether a dataset is specified by the names of archive files, such as ``.tar`` or ``.parquet``."""
    return text.lower().endswith(SUFFIXES + _COMPRESSED)


def find_archives(text: str) -> list[FileLocation]:
    """Return the archive files that match a path, a URL or a pattern, sorted by name.

    Raises:
        DatasetError: there are none, or a named one is missing.
    """
    if text.lower().endswith(_COMPRESSED):
        remedy = "Decompress it to NAME.tar: images are read in random order, and are compressed themselves."
        raise DatasetError(text, "is a compressed archive", remedy)
    choices = [_expand_braces(part) if place % 2 else [part] for place, part in enumerate(_BRACES.split(text))]
    return match_files(text, map("".join, itertools.product(*choices)))


def _expand_braces(inside: str) -> Sequence[str]:
    numbers = _RANGE.fullmatch(inside)
    if numbers is None:
        return inside.split(",")
    first, last = numbers.groups()
    width = len(first) if first.startswith("0") or len(first) == len(last) else 0
    return [f"{number:0{width}d}" for number in range(int(first), int(last) + 1)]


def _infer_file_splits(paths: Sequence[FileLocation]) -> list[str | None]:
    """Infer each file's split from its name (train-0001.tar); all None if some names lack one and the others agree."""
    found = [infer_split(path.stem) for path in paths]
    return [None] * len(found) if None in found and len(set(found)) < 3 else found


_MAX_LABEL_BYTES: Final = 1 << 12
_AGAIN: Final = "Download it again, or check its permissions."


@dataclass(frozen=True, slots=True, eq=False)
class TarSource:
    """Images in tar archives, each read from its byte position in the archive.

    Attributes:
        paths: the archives.
        places: (n, 3) int64 per row: index of its archive, first byte, number of bytes.
    """

    paths: tuple[FileLocation, ...]
    places: NDArray[np.int64]

    def read(self, index: int) -> EncodedImage:
        """Read the image at ``index``, or raise `BadImageError` (too large) or `DatasetError` (cannot be fetched)."""
        archive, begin, size = self.places[index].tolist()
        if size > MAX_FILE_BYTES:
            raise BadImageError(f"the file size ({size:,} bytes) exceeds the limit of {MAX_FILE_BYTES:,} bytes")
        return EncodedImage(self.paths[archive].read(begin, begin + size) if size else b"")


def load_tar_files(paths: Sequence[FileLocation], name: str, *, exclude: Sequence[str] = ()) -> ImageDataset:
    """Load the images in uncompressed tar archives as a dataset, without members that match ``exclude``.

    Raises:
        DatasetError: a file is truncated or not an archive, there are no images, or two members have the same name.
    """
    samples: dict[str, tuple[int, int, int]] = {}  # name of the image -> archive, first byte and size
    labels: dict[str, str] = {}  # by the part of the name that the members of a sample share
    ignored: Counter[str] = Counter()
    for number, path in enumerate(paths):
        for inner, member, label in _iterate_members(path, exclude, ignored):
            if label is not None:
                labels.setdefault(_key_of(inner), label)
                continue
            if inner in samples:
                other = paths[samples[inner][0]]
                problem = f"{inner!r} is also in {other}" if other != path else f"{inner!r} occurs twice"
                raise DatasetError(str(path), problem, "Give each file in these archives a unique name.")
            samples[inner] = (number, member.offset_data, member.size)
    if not samples:
        raise DatasetError(name, "contains no images", f"Add images ({' '.join(sorted(image_suffixes()))}).")
    names = list(samples)
    notes = describe_ignored_files(ignored)
    # If everything is in one folder, as in a packed folder, drop its name, so that ids are the same as in that folder.
    tops = {one.partition("/")[0] for one in samples}
    packed = len(tops) == 1 and all("/" in one for one in samples)
    ids = [one.partition("/")[2] for one in names] if packed else names
    split_of_file = _infer_file_splits(paths)
    splits, classes, folder_notes = infer_splits_and_classes(ids)
    if any(split_of_file):
        splits = [split_of_file[samples[one][0]] for one in names]
    if labels:
        classes, label_notes = classes_of([labels.get(_key_of(one)) for one in names])
        notes += label_notes
    source = TarSource(tuple(paths), np.array([samples[one] for one in names], dtype=np.int64))
    return build_dataset(name, None, ids, classes, splits, source, notes=[*notes, *folder_notes])


def _iterate_members(
    path: FileLocation, exclude: Sequence[str], ignored: Counter[str]
) -> Iterator[tuple[str, tarfile.TarInfo, str | None]]:
    """Yield the name and archive entry of each image or label file, and the label (None for an image)."""
    suffixes = image_suffixes()
    try:
        with path.open() as file, tarfile.open(fileobj=file, mode="r:", errorlevel=0) as archive:
            for member in archive:
                # no leading ./ or /, no .. that would lead elsewhere, no null characters
                parts = member.name.replace("\0", "").split("/")
                inner = "/".join(part for part in parts if part not in ("", ".", ".."))
                suffix = PurePosixPath(inner).suffix.lower()
                if not member.isreg() or member.sparse is not None:
                    if not member.isdir():
                        ignored["links and devices"] += 1
                elif (left := find_exclusion_reason(inner, exclude)) is not None:
                    ignored[left[1]] += 1
                elif suffix in suffixes:
                    yield inner, member, None
                elif suffix == ".cls":
                    label = _read_bytes(file, member.offset_data, min(member.size, _MAX_LABEL_BYTES)).decode().strip()
                    if not label or member.size > _MAX_LABEL_BYTES:
                        remedy = "Write a single class name or number in this file."
                        raise DatasetError(str(path), f"{inner!r} contains no usable labels", remedy)
                    yield inner, member, label
                else:
                    ignored["of other types"] += 1
            # tarfile stops without an error after the last member, but also at a damaged or truncated header
            rest = _read_bytes(file, archive.offset, tarfile.BLOCKSIZE)
            if rest.strip(b"\0"):
                problem = f"is damaged or truncated at byte {archive.offset:,}"
                raise DatasetError(str(path), problem, "Download the file again.")
    except tarfile.ReadError as error:
        remedy = "Download the file again." if "unexpected end" in str(error) else "Pass uncompressed tar archives."
        raise DatasetError(str(path), f"cannot be listed: {error}", remedy) from error
    except DatasetError:
        raise
    except Exception as error:  # errors of tarfile, fsspec and its backends
        raise DatasetError(str(path), f"cannot be listed: {error}", _AGAIN) from error


def _read_bytes(file: BinaryIO, offset: int, size: int) -> bytes:
    before = file.tell()
    file.seek(offset)
    content = file.read(size)
    file.seek(before)
    return content


def _key_of(inner: str) -> str:
    folder, slash, last = inner.rpartition("/")
    return folder + slash + last.split(".", 1)[0]


IMAGE_COLUMNS: Final = ("image", "img", "jpg", "png", "webp", "bytes", "image_bytes")
# Limit in bytes on the row groups cached by one process: 100,000 small photos, or a single group.
_HELD_BYTES: Final = 1 << 28


@dataclass(slots=True, eq=False)
class ParquetSource:
    """Images in Parquet files, each read from its row.

    Attributes:
        paths: the files.
        column: name of the column of images.
        places: (n, 3) int64 per row: index of its file, row group, and position in the group.
    """

    paths: tuple[FileLocation, ...]
    column: str
    places: NDArray[np.int64]
    _held: dict[tuple[int, int], Any] = field(default_factory=dict, init=False)

    def read(self, index: int) -> EncodedImage:
        """Read the image at ``index``, or raise :class:`BadImageError`."""
        file, group, place = self.places[index].tolist()
        try:
            value = self._group(file, group)[place].as_py()
        except DatasetError:
            raise
        except Exception as error:  # errors of pyarrow have no common base class
            raise BadImageError(f"{self.paths[file].name} cannot be read: {to_one_line(error)}") from error
        content = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(content, bytes) or not content:
            raise BadImageError("this row contains no image")
        return EncodedImage(content)

    def _group(self, file: int, group: int) -> Any:
        import pyarrow.parquet as pq

        rows = self._held.get((file, group))
        if rows is None:
            with self.paths[file].open() as opened, pq.ParquetFile(opened) as table:
                rows = table.read_row_group(group, columns=[self.column]).column(0)
            if rows.nbytes + sum(one.nbytes for one in list(self._held.values())) > _HELD_BYTES:
                self._held.clear()
            self._held[file, group] = rows
        return rows

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the state for a worker process, without cached row groups."""
        return ParquetSource, (self.paths, self.column, self.places)


def load_parquet_files(paths: Sequence[FileLocation], name: str, label_column: str | None = None) -> ImageDataset:
    """Load the images in Parquet files, which must have the same columns, as a dataset.

    The default label column is one with a common name, or the only one with Hugging Face class names.

    Raises:
        DatasetError: pyarrow is missing, a file is damaged or has no image column, or two files share a name.
    """
    try:
        import pyarrow.parquet  # noqa: F401 - to check that it is installed
    except ImportError as error:
        raise DatasetError(name, "reading Parquet requires pyarrow", "Run `pip install pyarrow`.") from error
    stems = [path.stem for path in paths]
    twice = next((stem for stem in stems if stems.count(stem) > 1), None)
    if twice is not None:
        problem = f"two files are named {twice}"
        raise DatasetError(name, problem, "Rename one of the files, since file names are part of the image names.")
    ids: list[str] = []
    labels: list[object] = []
    label_fault = ""
    splits: list[str | None] = []
    pieces: list[NDArray[np.int64]] = []
    column: str | None = None
    class_names: list[str] = []
    split_of_file = _infer_file_splits(paths)
    for number, path in enumerate(paths):
        column, group_rows, own_labels, names, fault = _read_listing(path, column, label_column)
        if class_names and names and names != class_names:
            problem = f"its classes differ from those of {paths[0].name}"
            raise DatasetError(str(path), problem, "Pass files from the same dataset.")
        class_names = class_names or names
        count = sum(group_rows)
        ids += [f"{stems[number]}/{row:09d}" for row in range(count)]
        labels += own_labels
        label_fault = label_fault or fault
        splits += [split_of_file[number]] * count
        for group, rows in enumerate(group_rows):
            pieces.append(np.stack([np.full(rows, number), np.full(rows, group), np.arange(rows)], axis=1))
    if not ids or column is None:
        raise DatasetError(name, "contains no rows", "Pass Parquet files with one row per image.")
    source = ParquetSource(tuple(paths), column, np.concatenate(pieces).astype(np.int64))
    notes = [missing_labels_note(label_fault)] if label_fault else []
    classes = [_parse_class(value, class_names) for value in labels]
    if not class_names:
        classes, label_notes = classes_of(labels)
        notes += label_notes
    return build_dataset(name, None, ids, classes, splits, source, class_names=class_names, notes=notes)


def _read_listing(
    path: FileLocation, column: str | None, label_column: str | None
) -> tuple[str, list[int], list[object], list[str], str]:
    """Return a file's image column, rows per group, labels, class names (if any), and the reason for missing labels."""
    import pyarrow.parquet as pq

    where = str(path)
    with translate_errors(where), path.open() as file, pq.ParquetFile(file) as table:
        schema = table.schema_arrow
        wanted = column or _image_column(schema, where)
        if wanted not in schema.names:
            problem = f"has no column {wanted!r}, but the other files do"
            raise DatasetError(where, problem, "Pass files from the same dataset.")
        groups = [table.metadata.row_group(group).num_rows for group in range(table.num_row_groups)]
        features = _read_class_names(schema.metadata or {})
        others = [name for name in schema.names if name != wanted]
        label, fault = find_label_column(others, label_column, [name for name in others if name in features])
        if label_column is not None and not label:
            raise DatasetError(where, fault, "Choose another column with --label-column.")
        values = table.read(columns=[label]).column(0).to_pylist() if label else [None] * sum(groups)
    return wanted, groups, values, features.get(label, []), fault


def _image_column(schema: Any, where: str) -> str:
    """Return the column that contains bytes, or structs of bytes and path as in Hugging Face files."""
    import pyarrow as pa

    def holds_images(kind: Any) -> bool:
        if pa.types.is_struct(kind):
            return bool(kind.get_field_index("bytes") >= 0)
        return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))

    names = [one.name for one in schema if holds_images(one.type)]
    usual = [name for name in IMAGE_COLUMNS if name in names]
    if len(names) == 1 or usual:
        return usual[0] if usual else names[0]
    if names:
        problem = f"{len(names)} columns may contain the images: {', '.join(names)}"
        raise DatasetError(where, problem, f"Rename the correct column to {IMAGE_COLUMNS[0]}.")
    problem = f"has no image column (columns: {', '.join(schema.names)})"
    raise DatasetError(where, problem, "Add a column with the bytes of the image files.")


def _read_class_names(metadata: dict[bytes, bytes]) -> dict[str, list[str]]:
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


def _parse_class(value: object, names: Sequence[str]) -> str | None:
    """Return the class for a class number or name; ``None`` for -1 and for a missing value."""
    if isinstance(value, int | float):
        return names[int(value)] if value in range(len(names)) else None
    return None if value is None else str(value)

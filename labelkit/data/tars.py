"""Images in tar archives, as webdataset writes them, or as tar does of a folder; nothing is unpacked.

Listing reads the headers once; an image is then read by its place. A sample of webdataset is the members that agree up
to the first dot of their name: ``0001.jpg`` with ``0001.cls`` or ``0001.json``. Without such labels the folders in the
archive are the classes, as in a folder of images.
"""

from __future__ import annotations

import re
import tarfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from labelkit.data.datasets import EncodedImage, ImageDataset
from labelkit.data.decode import MAX_FILE_BYTES, BadImage, image_suffixes
from labelkit.data.folders import ignored_notes, left_out, splits_and_classes
from labelkit.data.label_names import class_names
from labelkit.data.remote import RemoteFile
from labelkit.data.shards import Place, absolute, listing, open_place, splits_of_files
from labelkit.data.tables import find_label_column, without_labels
from labelkit.errors import DatasetError
from labelkit.files import NotRegularError, parse_json

_MAX_LABEL_BYTES: Final = 1 << 20
_NOT_A_NUMBER: Final = re.compile(r":\s*NaN\b")


@dataclass(frozen=True, slots=True, eq=False)
class TarSource:
    """Members of archives by their places.

    Attributes:
        paths: the archives.
        archives: (n,) int64 which of them a row is in.
        offsets: (n,) int64 first byte.
        sizes: (n,) int64 bytes.
    """

    paths: tuple[Place, ...]
    archives: NDArray[np.int64]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def read(self, index: int) -> EncodedImage:
        """Read the member of row ``index``; :class:`BadImage` if that fails, `DatasetError` if it cannot be fetched."""
        path, size = self.paths[self.archives[index]], int(self.sizes[index])
        if size > MAX_FILE_BYTES:
            raise BadImage(f"member of {size:,} bytes is above the limit of {MAX_FILE_BYTES:,}")
        if size == 0:
            raise BadImage("empty file")
        try:
            begin = int(self.offsets[index])
            if isinstance(path, RemoteFile):
                return EncodedImage(path.read(begin, begin + size))
            with open_place(path) as file:
                content = _bytes_at(file, begin, size)
        except OSError as error:
            raise BadImage(f"{path.name} cannot be read: {error.strerror or error}") from error
        if len(content) < size:
            raise BadImage(f"{path.name} ends before the member does")
        return EncodedImage(content)

    def select(self, rows: NDArray[np.int64]) -> TarSource:
        """Return the members of ``rows``."""
        return TarSource(self.paths, self.archives[rows], self.offsets[rows], self.sizes[rows])


@dataclass(slots=True)
class _Sample:
    archive: int
    offset: int
    size: int
    key: str


def load_tars(
    paths: Sequence[Place], name: str, label_column: str | None = None, *, exclude: Sequence[str] = ()
) -> ImageDataset:
    """List the images of archives.

    Args:
        paths: archives without compression.
        name: of the data set.
        label_column: field of the labels in ``.json``; by default the usual one.
        exclude: patterns of what to leave out; see :func:`labelkit.data.folders.left_out`.

    Raises:
        DatasetError: an archive is cut off or no archive, has no images, or two have a member of one name.
    """
    samples: dict[str, _Sample] = {}
    labels: dict[str, object] = {}
    faults: dict[str, str] = {}
    ignored: Counter[str] = Counter()
    unended: list[str] = []
    for number, path in enumerate(paths):
        _list_one(path, number, paths, samples, labels, faults, label_column, ignored, unended, exclude)
    if not samples:
        raise DatasetError(name, "no images", f"Looked for members with {' '.join(sorted(image_suffixes()))}.")
    beside = {one.key for one in samples.values()}
    without = [fault for key, fault in faults.items() if key in beside and key not in labels]
    _strip_common_folder(samples, labels)
    ids = [one for one in samples if _is_plain(one, samples)]
    if len(ids) < len(samples):
        ignored["pictures beside the image of their sample"] += len(samples) - len(ids)
    notes = ignored_notes(ignored)
    if unended:
        notes.append(f"{', '.join(unended[:3])}: no mark at the end of the archive, which may be cut off")
    if without:
        notes.append(f"{len(without)} .json files have {without_labels(without[0])}")
    split_of_file = splits_of_files(paths)
    splits, classes, said = splits_and_classes(ids)
    if any(split_of_file):
        splits = [split_of_file[samples[one].archive] for one in ids]
    if labels:
        classes, told = class_names([labels.get(samples[one].key) for one in ids])
        notes += told
    elif label_column is not None:
        problem = without[0] if without else f"no .json file with a field {label_column!r}"
        raise DatasetError(name, problem, "Name another with --label-column, or leave it out.")
    notes += said
    places = np.array([(samples[one].archive, samples[one].offset, samples[one].size) for one in ids], dtype=np.int64)
    source = TarSource(absolute(paths), *(places[:, column].copy() for column in range(3)))
    return listing(name, ids, classes, splits, source, notes=notes)


def _strip_common_folder(samples: dict[str, _Sample], labels: dict[str, object]) -> None:
    """Leave out the folder that everything is in, as where somebody packed a folder; ids are then as in that folder."""
    tops = {name.partition("/")[0] for name in samples}
    if len(tops) != 1 or not all("/" in name for name in samples):
        return
    length = len(next(iter(tops))) + 1
    for name in list(samples):
        sample = samples.pop(name)
        sample.key = sample.key[length:]
        samples[name[length:]] = sample
    for key in list(labels):
        labels[key[length:]] = labels.pop(key)


def _list_one(
    path: Place,
    number: int,
    paths: Sequence[Place],
    samples: dict[str, _Sample],
    labels: dict[str, object],
    faults: dict[str, str],
    label_column: str | None,
    ignored: Counter[str],
    unended: list[str],
    exclude: Sequence[str],
) -> None:
    """Add the members of an archive."""
    suffixes = image_suffixes()
    where = str(path)
    try:
        with open_place(path) as file, tarfile.open(fileobj=file, mode="r:", errorlevel=0) as archive:
            for member in archive:
                inner = _name_of(member.name)
                if not member.isreg() or member.sparse is not None:
                    if not member.isdir():
                        ignored["links and devices"] += 1
                    continue
                if (left := left_out(inner, exclude)) is not None:
                    ignored[left[1]] += 1
                    continue
                suffix = PurePosixPath(inner).suffix.lower()
                if suffix in suffixes:
                    if inner in samples:
                        other = paths[samples[inner].archive]
                        problem = f"{inner!r} is in {other} too" if other != path else f"{inner!r} is there twice"
                        raise DatasetError(where, problem, "Names of members must differ over all archives.")
                    samples[inner] = _Sample(number, member.offset_data, member.size, _key_of(inner))
                elif suffix in (".cls", ".json"):
                    content = _bytes_at(file, member.offset_data, min(member.size, _MAX_LABEL_BYTES + 1))
                    label, fault = _label_of(content, suffix, label_column)
                    if fault and suffix == ".cls":
                        raise DatasetError(where, f"{inner!r} {fault}", "Write one text or number in it.")
                    if fault:
                        faults[_key_of(inner)] = fault
                    if label is not None:
                        labels.setdefault(_key_of(inner), label)
                else:
                    ignored["of other kinds"] += 1
            # behind the last member tarfile ends without a word, also where a header is damaged or cut off
            rest = _bytes_at(file, archive.offset, tarfile.BLOCKSIZE)
            if rest.strip(b"\0"):
                problem = f"has no member at byte {archive.offset:,}: it is damaged or cut off there"
                raise DatasetError(where, problem, "Fetch it again.")
            if len(rest) < tarfile.BLOCKSIZE:
                unended.append(path.name)
    except tarfile.ReadError as error:
        remedy = "Fetch it again." if "unexpected end" in str(error) else "Give archives of tar without compression."
        raise DatasetError(where, f"cannot be listed: {error}", remedy) from error
    except NotRegularError as error:
        raise DatasetError(where, "is not a regular file", "Give an archive.") from error
    except (OSError, tarfile.TarError, UnicodeError, ValueError) as error:
        raise DatasetError(where, f"cannot be listed: {error}", "Fetch it again, or check its permissions.") from error


def _bytes_at(file: BinaryIO, offset: int, size: int) -> bytes:
    before = file.tell()
    file.seek(offset)
    content = file.read(size)
    file.seek(before)
    return content


def _name_of(name: str) -> str:
    """Name of a member as an id: no leading ./ or /, no .. that would lead elsewhere, no control characters."""
    parts = [part for part in name.replace("\0", "").split("/") if part not in ("", ".", "..")]
    return "/".join(parts)


def _key_of(inner: str) -> str:
    folder, slash, last = inner.rpartition("/")
    return folder + slash + last.split(".", 1)[0]


def _is_plain(inner: str, samples: dict[str, _Sample]) -> bool:
    """Whether an image is that of its sample and not one beside it, as 0001.mask.png is to 0001.jpg."""
    last = inner.rpartition("/")[2]
    if last.count(".") == 1:
        return True
    key = samples[inner].key
    return not any(f"{key}{suffix}" in samples for suffix in image_suffixes())


def _label_of(content: bytes, suffix: str, label_column: str | None) -> tuple[object, str]:
    """Return the label in the file beside an image, ``None`` if there is none, and why there is none.

    Raises:
        ValueError: no text, no JSON, or too large.
    """
    if len(content) > _MAX_LABEL_BYTES:
        raise ValueError("a label file is larger than 1 MiB")
    text = content.decode("utf-8").strip()
    if suffix == ".cls":
        return (None if label_column else text), ("" if text else "holds no label")
    found: Any = parse_json(_NOT_A_NUMBER.sub(": null", text))
    if not isinstance(found, dict):
        return None, "no fields"
    column, fault = find_label_column(list(found), label_column)
    if isinstance(found.get(column), list | dict):
        return None, f"more than one value in {column!r}"
    return found.get(column), fault

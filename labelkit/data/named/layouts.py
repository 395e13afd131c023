"""Layouts of registered datasets: where their files are expected, which of them exist, and remedies for missing ones.

Nothing is decoded: only folders are listed, and the lists that come with a dataset are read.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelkit.data.datasets import FileMasks, FileSource, ImageDataset, build_class_table, build_indexed_dataset
from labelkit.data.decode import IMAGE_SUFFIXES
from labelkit.data.named.benchmark_classes import read_benchmark_classes
from labelkit.errors import DatasetAbsent, DatasetError, DatasetIncomplete
from labelkit.files import read_bytes
from labelkit.formatting import join_first_few


@dataclass(frozen=True)
class DatasetSpec:
    """Specification of a registered dataset: its files, splits, license and reader.

    Attributes:
        name: name of the dataset for ``--dataset``.
        summary: one-line description.
        purpose: its use in labelkit.
        source_url: its official website.
        reader: ``module:function`` below ``labelkit.data``, imported on first use. It turns the specification and the
            dataset's folder into the listing, and may raise ``KeyError``, ``ValueError`` or ``IndexError`` if lists
            are damaged.
        num_images: published number of images per split, in the order of the splits; a range if it is rounded.
        license: license terms, as far as the authors state them.
        num_classes: number of image classes, 0 = images are unlabeled.
        num_mask_classes: number of pixel classes, 0 = no masks, or masks of numbered objects.
        num_object_classes: number of object classes, 0 = no boxes.
        folders: possible names of its folder in the data root, the usual one first; empty for generated datasets.
        files: files required in that folder, the most characteristic first; folders end with ``/``, and ``|`` separates
            alternatives.
        archives: names of the official archives.
        fetch: download instructions, a sentence up to the data root; default: from archives and source URL.
        made: how the dataset is generated, if it is not read from files.
        can_download: whether labelkit can download it.
        fewest_class_folders: number of its classes that ``train/`` must contain to tell it from similar datasets.
    """

    name: str
    summary: str
    purpose: str
    source_url: str
    reader: str
    num_images: Mapping[str, int | range]
    license: str = "no license stated by its authors"
    num_classes: int = 0
    num_mask_classes: int = 0
    num_object_classes: int = 0
    folders: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()
    fetch: str = ""
    made: str = ""
    can_download: bool = False
    fewest_class_folders: int = 0

    @property
    def required_files(self) -> list[list[str]]:
        """Return each required file as a list of alternative names."""
        return [names.split("|") for names in self.files]

    @property
    def layout(self) -> str:
        """Return the required folder layout as text for error messages."""
        if self.made:
            return self.made
        return f"{' or '.join(f'{name}/' for name in self.folders)} with {', '.join(self.files)}".replace("|", " or ")

    def load(self, data_root: Path, download: bool = False) -> ImageDataset:
        """Load the dataset from the data root; with ``download``, download it first if missing and supported.

        Raises:
            DatasetAbsent, DatasetIncomplete: it is missing, not unpacked, or lacks listed files.
            DatasetError: files are damaged, or lists contradict each other.
        """
        module, _, function = self.reader.partition(":")
        read: Callable[..., ImageDataset] = getattr(import_module(f"labelkit.data.{module}"), function)
        if self.made or self.can_download:
            return read(self, data_root, download)
        root = find_dataset_root(self, data_root)
        try:
            return read(self, root)
        except (KeyError, ValueError, IndexError) as error:
            raise DatasetError(str(root), f"has damaged file lists: {error}", self.remedy(data_root)) from error

    def remedy(self, data_root: Path) -> str:
        """Return instructions for obtaining the dataset, for use in error messages."""
        if self.can_download:
            return f"Pass --download, or unpack {' or '.join(self.archives)} into {data_root}."
        fetch = self.fetch or f"Download {' and '.join(self.archives)} from {self.source_url} and unpack it into"
        return f"{fetch} {data_root}; labelkit does not download this dataset."

    def find_missing_files(self, folder: Path) -> list[str]:
        """Find the required files missing from a folder; return the first of the alternative names of each."""
        return [names[0] for names in self.required_files if not any(_exists(folder, name) for name in names)]

    def is_dataset_folder(self, folder: Path) -> bool:
        """Return whether a folder contains this dataset rather than another with the same file names."""
        if not self.fewest_class_folders:
            return True
        try:
            with os.scandir(folder / "train") as entries:
                names = {entry.name.removesuffix(".tar") for entry in entries}
        except OSError:
            return False
        return len(names.intersection(read_benchmark_classes(self.name).folder_names)) >= self.fewest_class_folders


class ListedImage(NamedTuple):
    """Entry for one image in the official list of a dataset; a label of -1 means unlabeled."""

    sample_id: str
    label: int
    split: int


def find_dataset_root(spec: DatasetSpec, data_root: Path) -> Path:
    """Find the root folder of a registered dataset in the data root.

    It may be in the data root or in ``<data root>/<name>/``, or be one of these folders itself.

    Raises:
        DatasetIncomplete: the dataset is not unpacked, or lacks files.
        DatasetAbsent: none of its files exist.
    """
    named = [base / folder for base in (data_root, data_root / spec.name) for folder in spec.folders]
    places = list(dict.fromkeys((*named, data_root / spec.name, data_root)))
    for place in places:
        if place.is_dir() and not spec.find_missing_files(place) and spec.is_dataset_folder(place):
            return place
    needs = ", ".join(names[0] for names in spec.required_files)
    for archive in (place / name for place in places for name in spec.archives):
        if archive.is_file():
            command = f"unzip -q {archive} -d" if archive.suffix == ".zip" else f"tar -xf {archive} -C"
            problem = f"expected {needs}, found {archive}, which is not unpacked"
            raise DatasetIncomplete(spec.name, problem, f"Run `{command} {archive.parent}`.")
    begun = any(_exists(data_root, name) for name in spec.required_files[0]) and spec.is_dataset_folder(data_root)
    started = [place for place in places if place.is_dir() and (place != data_root or begun)]
    if started:
        nearest = min(started, key=lambda place: len(spec.find_missing_files(place)))
        if not (missing := spec.find_missing_files(nearest)):
            return nearest  # its folders exist, so reading them will find the fault
        problem = f"expected {needs}; missing: {', '.join(missing)}"
        raise DatasetIncomplete(str(nearest), problem, spec.remedy(data_root))
    there = "" if data_root.is_dir() else " (no such folder)"
    problem = f"not found in {data_root}{there}: looked for {spec.folders[0]}/ with {needs}"
    raise DatasetAbsent(spec.name, problem, spec.remedy(data_root))


def build_registered_dataset(
    spec: DatasetSpec, root: Path, listed: Sequence[ListedImage], class_names: Sequence[str] = ()
) -> ImageDataset:
    """Build a registered dataset from its official image lists; see ``build_listed_dataset``."""
    splits, remedy = tuple(spec.num_images), spec.remedy(root.parent)
    return build_listed_dataset(spec.name, root, listed, class_names=class_names, split_names=splits, remedy=remedy)


def build_listed_dataset(
    name: str,
    root: Path,
    listed: Sequence[ListedImage],
    *,
    split_names: Sequence[str],
    class_names: Sequence[str] = (),
    remedy: str,
) -> ImageDataset:
    """Build a dataset from its official image lists, whose entries may be in any order.

    Raises:
        DatasetError: an image is listed twice.
        DatasetIncomplete: listed images are missing.
    """
    if not listed:
        raise DatasetError(str(root), "lists no images", remedy)
    # whole columns, because a call for each of a million names would be slow
    names, labels, splits = zip(*listed, strict=True)
    if len(set(names)) < len(names):
        twice, count = Counter(names).most_common(1)[0]
        raise DatasetError(str(root), f"lists {twice} {count} times", remedy)
    if missing := _missing(root, names):
        missing_ids = set(missing)
        expected = Counter(row.split for row in listed)
        found = Counter(row.split for row in listed if row.sample_id not in missing_ids)
        found_of = {split: found[i] for i, split in enumerate(split_names)}
        expected_of = {split: expected[i] for i, split in enumerate(split_names)}
        problem = f"{describe_wrong_counts(found_of, expected_of)}; missing: {join_first_few(missing)}"
        raise DatasetIncomplete(str(root), problem, remedy)
    numbers, parts, source = np.array(labels, np.int64), np.array(splits, np.int64), FileSource(root, names)
    facts: dict[str, Any] = {"class_names": class_names, "split_names": split_names, "in_published_order": True}
    return build_indexed_dataset(name, root, names, numbers, parts, source, **facts)


def attach_masks(
    dataset: ImageDataset,
    find_mask: Callable[[str], str],
    mapping: Mapping[int, int],
    mask_classes: Sequence[str],
    remedy: str,
) -> ImageDataset:
    """Add mask files to a dataset whose images are files under its root.

    ``find_mask`` maps an id to its mask file, relative to the root; ``mapping`` maps pixel values to classes;
    other values are errors. ``remedy`` is shown if masks are missing.

    Raises:
        DatasetIncomplete: images have no mask.
    """
    root = dataset.root
    assert root is not None
    files = tuple(find_mask(sample_id) for sample_id in dataset.sample_ids)
    if missing := _missing(root, files):
        problem = f"{len(missing):,} of {len(files):,} images have no mask; missing: {join_first_few(missing)}"
        raise DatasetIncomplete(str(root), problem, remedy)
    return replace(dataset, masks=FileMasks(root, files, build_class_table(mapping)), mask_classes=tuple(mask_classes))


def list_images(root: Path, folder: str) -> list[str]:
    """List the image files in one folder by their paths relative to ``root``, in no particular order.

    Raises:
        DatasetError: the folder cannot be listed.
    """
    try:
        return [f"{folder}/{file}" for file in _names_in(root / folder) if _is_image(file)]
    except OSError as error:
        problem = f"cannot be listed: {error.strerror}"
        raise DatasetError(str(root / folder), problem, "Check the permissions of this folder.") from error


def list_images_by_class(folder: Path, names: Collection[str] | None = None) -> dict[str, list[str]]:
    """List the image files in each class folder, following symbolic links, in no particular order.

    If ``names`` is set, all other folders count as empty.

    Raises:
        DatasetError: a folder cannot be listed.
    """
    try:
        with os.scandir(folder) as entries:
            classes = [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
        files = {name: _names_in(folder / name) if names is None or name in names else [] for name in classes}
    except OSError as error:
        problem = f"cannot be listed: {error.strerror}"
        raise DatasetError(str(error.filename or folder), problem, "Check the permissions of this folder.") from error
    return {name: [file for file in listed if _is_image(file)] for name, listed in files.items()}


def read_key_value_file(path: Path) -> dict[str, str]:
    """Read a text file of ``<key> <value>`` lines, where the value may contain spaces.

    Raises:
        DatasetError: the file is unreadable, not UTF-8 or empty, a line has no value, or a key occurs twice.
    """
    table: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), start=1):
        key, _, value = line.partition(" ")
        if line and (not key or not value.strip() or key in table):
            problem = f"repeats the key {key}" if key in table else f"{line!r} is not `<key> <value>`"
            raise DatasetError(str(path), f"line {number}: {problem}", "Unpack the file again.")
        if line:
            table[key] = value.strip()
    if not table:
        raise DatasetError(str(path), "is empty", "Unpack the file again.")
    return table


def read_lines(path: Path) -> list[str]:
    """Read the lines of a text file, with trailing whitespace stripped.

    Raises:
        DatasetError: the file is unreadable or not UTF-8.
    """
    try:
        return [line.rstrip() for line in read_bytes(path).decode().splitlines()]
    except OSError as error:
        raise DatasetError(str(path), f"cannot be read: {error.strerror}", "Unpack the file again.") from error
    except UnicodeDecodeError as error:
        raise DatasetError(str(path), "is not UTF-8 text", "Unpack the file again.") from error


def read_matlab(path: Path, *variables: str) -> list[NDArray[Any]]:
    """Read variables from a MATLAB file (version 4 to 7.2), with axes of size 1 removed.

    Raises:
        DatasetError: the file is damaged, or lacks one of the variables.
    """
    from scipy.io import loadmat

    try:
        content = loadmat(path, squeeze_me=True, variable_names=list(variables))
    except Exception as error:
        # On damaged files, scipy raises many kinds of errors: ValueError, TypeError, zlib.error, struct.error, ...
        problem = f"cannot be read as a MATLAB file: {error}"
        raise DatasetError(str(path), problem, "Download or unpack the file again.") from error
    if missing := [name for name in variables if name not in content]:
        raise DatasetError(str(path), f"has no variable {missing[0]!r}", "Download or unpack the file again.")
    return [np.atleast_1d(content[name]) for name in variables]


def format_count(count: int | range) -> str:
    """Return the text of a published number of images, such as ``5,994`` or ``127,100 to 127,300``."""
    return f"{count:,}" if isinstance(count, int) else f"{count[0]:,} to {count[-1]:,}"


def describe_wrong_counts(found: Mapping[str, int], expected: Mapping[str, int | range]) -> str | None:
    """Describe image counts as ``train: expected 5,994 images, found 12; test: ...``; ``None`` if all are right."""
    found = {split: found.get(split, 0) for split in expected}
    if all(found[split] in (n if isinstance(n, range) else (n,)) for split, n in expected.items()):
        return None
    return "; ".join(
        f"{split}: expected {format_count(n)} images, found {found[split]:,}" for split, n in expected.items()
    )


def _exists(folder: Path, name: str) -> bool:
    path = folder / name
    return path.is_dir() if name.endswith("/") else path.is_file()


def _names_in(folder: Path) -> list[str]:
    return os.listdir(folder)  # noqa: PTH208 - names only: a million paths take seconds


def _is_image(file: str) -> bool:
    return os.path.splitext(file)[1].lower() in IMAGE_SUFFIXES and not file.startswith(".")  # noqa: PTH122 - a million


def _missing(root: Path, sample_ids: Sequence[str]) -> list[str]:
    wanted: dict[str, list[str]] = defaultdict(list)
    for sample_id in sample_ids:
        folder, _, file = sample_id.rpartition("/")
        wanted[folder].append(file)
    missing = []
    for folder, files in wanted.items():
        try:
            existing = set(_names_in(root / folder))
        except OSError:  # the folder does not exist or cannot be read, nor can its files
            existing = set()
        missing += [f"{folder}/{file}" for file in files if file not in existing]
    return missing

"""Where a named data set lies, what of it is there, and what to do when something is not.

Nothing is decoded: folders are listed, and the lists that come with a set are read.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

import numpy as np

from labelkit.data.datasets import FileSource, ImageDataset
from labelkit.data.decode import IMAGE_SUFFIXES
from labelkit.data.mask_files import FileMasks, table_of
from labelkit.errors import DatasetAbsent, DatasetError, DatasetIncomplete
from labelkit.reading import read_bytes

MAX_NAMES_SHOWN: Final = 3
# A search for a misplaced set must not walk through another one of a million files.
_SEARCH_DEPTH: Final = 3
_SEARCH_FOLDERS: Final = 500
_SEARCH_WIDTH: Final = 50


@dataclass(frozen=True)
class Count:
    """A published number of images, or the range in which it lies where only a rounded one is published.

    Attributes:
        low: smallest number that agrees.
        high: largest; ``None`` if it is ``low``.
    """

    low: int
    high: int | None = None

    def agrees(self, found: int) -> bool:
        """Return whether a number of images is the published one."""
        return self.low <= found <= (self.low if self.high is None else self.high)

    def __str__(self) -> str:
        return f"{self.low:,}" if self.high is None else f"{self.low:,} to {self.high:,}"


@dataclass(frozen=True)
class Layout:
    """The official places of one data set.

    Attributes:
        name: what ``--dataset`` says.
        folders: names of its folder in the data root, the usual one first.
        needs: what must be in that folder, each with its alternatives, the most telling one first; folders end
            with ``/``.
        archives: official archives, and the first names of the needs that each one gives.
        fetch: how to get it, as the start of a sentence.
        is_it: tells the set's folder from any other with the same needs.
    """

    name: str
    folders: tuple[str, ...]
    needs: tuple[tuple[str, ...], ...]
    archives: Mapping[str, tuple[str, ...]]
    fetch: str
    is_it: Callable[[Path], bool] = lambda folder: True

    def lacks(self, folder: Path) -> list[str]:
        """Return the needs that are not in a folder, each by its first name."""
        return [names[0] for names in self.needs if not any(_exists(folder, name) for name in names)]

    def begun_in(self, folder: Path) -> bool:
        """Return whether a folder has the first need, which no other folder has."""
        return any(_exists(folder, name) for name in self.needs[0]) and self.is_it(folder)

    def whole_in(self, folder: Path) -> bool:
        """Return whether a folder is this set's and has all that it needs."""
        return folder.is_dir() and not self.lacks(folder) and self.is_it(folder)


class Listed(NamedTuple):
    """One row of a set's own list; label -1 = none."""

    sample_id: str
    label: int
    split: int


def find_root(layout: Layout, data_root: Path) -> Path:
    """Return the folder of a named set: in the data root, in ``<data root>/<name>/``, or one of these itself.

    Raises:
        DatasetIncomplete: it lies deeper, is not unpacked, or lacks files.
        DatasetAbsent: nothing of it is there.
    """
    named = [base / folder for base in (data_root, data_root / layout.name) for folder in layout.folders]
    named = list(dict.fromkeys((*named, data_root / layout.name)))
    for place in (*named, data_root):
        if layout.whole_in(place):
            return place
    started = sorted((place for place in named if place.is_dir()), key=lambda place: len(layout.lacks(place)))
    if layout.begun_in(data_root):
        started.append(data_root)
    missing = layout.lacks(started[0]) if started else [names[0] for names in layout.needs]
    refuse_elsewhere(layout, data_root, (*started, *named, data_root), missing)
    if started and missing:
        raise DatasetIncomplete(
            str(started[0]),
            f"expected {', '.join(names[0] for names in layout.needs)}; missing: {', '.join(missing)}",
            fetch_remedy(layout, data_root),
        )
    if started:
        return started[0]  # its folders are there, so what they hold will say what is wrong
    there = "" if data_root.is_dir() else " (no such folder)"
    raise DatasetAbsent(
        layout.name,
        f"not found in {data_root}{there}: looked for {layout.folders[0]}/ with "
        f"{', '.join(names[0] for names in layout.needs)}",
        fetch_remedy(layout, data_root),
    )


def refuse_elsewhere(layout: Layout, data_root: Path, places: Sequence[Path], missing: Sequence[str]) -> None:
    """Raise if a set that is not in its places lies deeper, or in its archive still.

    Args:
        layout: the set.
        data_root: where to look.
        places: where it may lie, the most likely first.
        missing: needs that are not there, by their first names.

    Raises:
        DatasetIncomplete: naming where it was expected, where it was found, and what to do.
    """
    deeper = _search(layout, data_root)
    if deeper is not None:
        need = layout.needs[0][0]
        raise DatasetIncomplete(
            layout.name,
            f"expected {places[0] / need}, found {deeper / need}",
            f"Pass --data-root {deeper}, or move what is in that folder to {places[0]}.",
        )
    for place in dict.fromkeys(places):
        for archive, gives in layout.archives.items():
            wanted = [name for name in gives if name in missing]
            if wanted and (place / archive).is_file():
                command = (
                    f"unzip -q {place / archive} -d" if archive.endswith(".zip") else f"tar -xf {place / archive} -C"
                )
                raise DatasetIncomplete(
                    layout.name,
                    f"expected {', '.join(wanted)}, found {place / archive}, which is not unpacked",
                    f"Run `{command} {place}`.",
                )


def list_files(
    layout: Layout,
    root: Path,
    listed: Sequence[Listed],
    *,
    class_names: Sequence[str],
    split_names: Sequence[str],
    where: Path,
) -> ImageDataset:
    """Make a listing of what a set's own lists name, in any order.

    Args:
        layout: the set.
        root: its folder.
        listed: every image, in the order of the lists.
        class_names: name of class i.
        split_names: names of the splits.
        where: the list, for messages.

    Raises:
        DatasetError: the lists name an image twice, or one outside of the set.
        DatasetIncomplete: images that the lists name are not there.
    """
    counts = Counter(row.sample_id for row in listed)
    if not listed:
        raise DatasetError(str(where), "names no images", fetch_remedy(layout, root.parent))
    twice = [sample_id for sample_id, count in counts.items() if count > 1]
    if twice:
        raise DatasetError(str(where), f"names {twice[0]} {counts[twice[0]]} times", fetch_remedy(layout, root.parent))
    for sample_id in counts:
        path = PurePosixPath(sample_id)
        if path.is_absolute() or ".." in path.parts or str(path) != sample_id or "\0" in sample_id:
            raise DatasetError(
                str(where), f"names {sample_id!r}, which is not inside of the set", fetch_remedy(layout, root.parent)
            )
    missing = _missing(root, list(counts))
    expected = {name: sum(row.split == i for row in listed) for i, name in enumerate(split_names)}
    if missing:
        gone = set(missing)
        found = {
            name: sum(row.split == i and row.sample_id not in gone for row in listed)
            for i, name in enumerate(split_names)
        }
        raise DatasetIncomplete(
            str(root),
            f"{compare_counts(found, {name: Count(count) for name, count in expected.items()})}; "
            f"missing: {name_some(missing)}",
            _one_deeper(root, missing) or fetch_remedy(layout, root.parent),
            found=found,
            num_classes=len(class_names),
        )
    order = sorted(range(len(listed)), key=lambda i: os.fsencode(listed[i].sample_id))
    rows = [listed[i] for i in order]
    sample_ids = tuple(row.sample_id for row in rows)
    return ImageDataset(
        name=layout.name,
        root=root,
        sample_ids=sample_ids,
        labels=np.array([row.label for row in rows], dtype=np.int64),
        given=np.array([row.label >= 0 for row in rows], dtype=np.bool_),
        class_names=tuple(class_names),
        splits=np.array([row.split for row in rows], dtype=np.int16),
        split_names=tuple(split_names),
        in_channels=3,
        chiral=False,
        photographic=True,
        source=FileSource(root, sample_ids),
        draw_order=np.array(order, dtype=np.int64),
    )


def attach_masks(
    layout: Layout,
    dataset: ImageDataset,
    mask_of: Callable[[str], str],
    meaning: Mapping[int, int],
    mask_classes: Sequence[str],
) -> ImageDataset:
    """Return a listing whose images have masks in files of their own.

    Args:
        layout: the set.
        dataset: its images; they are files below ``root``.
        mask_of: sample id to the name of its mask, relative to the same folder.
        meaning: value of a pixel to its class; values that are not in it are errors.
        mask_classes: see ``ImageDataset``.

    Raises:
        DatasetIncomplete: images without mask.
    """
    root = dataset.root
    assert root is not None
    files = tuple(mask_of(sample_id) for sample_id in dataset.sample_ids)
    missing = _missing(root, files)
    if missing:
        raise DatasetIncomplete(
            str(root),
            f"{len(missing):,} of {len(files):,} images have no mask; missing: {name_some(missing)}",
            _one_deeper(root, missing)
            or (fetch_remedy(layout, root.parent) if layout.folders else "Add them, or take the images out."),
            num_classes=0,
        )
    return replace(dataset, masks=FileMasks(root, files, table_of(meaning)), mask_classes=tuple(mask_classes))


def list_images(root: Path, folder: str) -> list[str]:
    """Return the image files in one folder as names relative to ``root``, in any order.

    Raises:
        DatasetError: the folder cannot be listed.
    """
    try:
        return [f"{folder}/{file}" for file in _names_in(root / folder) if _is_image(file)]
    except OSError as error:
        raise DatasetError(
            str(root / folder), f"cannot be listed: {error.strerror}", "Check its permissions."
        ) from error


def list_class_folders(folder: Path, wanted: Collection[str] | None = None) -> dict[str, list[str]]:
    """Return the image files of every class folder, in any order; links are followed.

    Args:
        folder: holds the class folders.
        wanted: folders to look into; the others count as empty. All by default.

    Raises:
        DatasetError: a folder cannot be listed.
    """
    try:
        with os.scandir(folder) as entries:
            classes = [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
        return {
            name: [file for file in _names_in(folder / name) if _is_image(file)]
            if wanted is None or name in wanted
            else []
            for name in classes
        }
    except OSError as error:
        raise DatasetError(
            str(error.filename or folder), f"cannot be listed: {error.strerror}", "Check its permissions."
        ) from error


def list_folders(
    layout: Layout,
    root: Path,
    files: Mapping[str, Mapping[str, Sequence[str]]],
    *,
    class_names: Sequence[str],
    split_names: Mapping[str, str],
    expected: Mapping[str, Count],
) -> ImageDataset:
    """Make a listing of class folders, as ``torchvision.datasets.ImageFolder`` orders them.

    Args:
        layout: the set.
        root: its folder.
        files: split folder to class folder to file names.
        class_names: folder name of class i; other folders are left out.
        split_names: split folder to the name of the split; in the order of the splits.
        expected: published number of images of each split.

    Raises:
        DatasetIncomplete: another number of images than published.
    """
    found = {
        split: sum(len(files[folder].get(name, ())) for name in class_names) for folder, split in split_names.items()
    }
    if not all(count.agrees(found[split]) for split, count in expected.items()):
        fewest = min(
            ((len(files[folder].get(name, ())), f"{folder}/{name}") for folder in split_names for name in class_names),
            default=(0, ""),
        )
        raise DatasetIncomplete(
            str(root),
            f"{compare_counts(found, expected)}; fewest images: {fewest[0]:,} in {fewest[1]}/",
            fetch_remedy(layout, root.parent),
            found=found,
            num_classes=len(class_names),
        )
    ids: list[str] = []
    labels: list[tuple[int, int]] = []
    splits: list[tuple[int, int]] = []
    rank = {name: i for i, name in enumerate(class_names)}
    number = {folder: i for i, folder in enumerate(split_names)}
    # The slash, so that "a-b/x" sorts before "a/x" as whole names do.
    for folder in sorted(files, key=lambda name: os.fsencode(f"{name}/")):
        before = len(ids)
        for name in sorted(class_names, key=lambda name: os.fsencode(f"{name}/")):
            names = sorted(files[folder].get(name, ()), key=os.fsencode)
            ids += [f"{folder}/{name}/{file}" for file in names]
            labels.append((rank[name], len(names)))
        splits.append((number[folder], len(ids) - before))
    sample_ids = tuple(ids)
    return ImageDataset(
        name=layout.name,
        root=root,
        sample_ids=sample_ids,
        labels=np.repeat(*np.array(labels, dtype=np.int64).T),
        given=np.ones(len(ids), dtype=np.bool_),
        class_names=tuple(class_names),
        splits=np.repeat(*np.array(splits, dtype=np.int64).T).astype(np.int16),
        split_names=tuple(split_names.values()),
        in_channels=3,
        chiral=False,
        photographic=True,
        source=FileSource(root, sample_ids),
    )


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """Read a text of lines ``<key> <value>``; the value may hold spaces.

    Raises:
        DatasetError: unreadable, not UTF-8, empty, or a line without value, with its number.
    """
    pairs = []
    for number, line in enumerate(read_lines(path), start=1):
        key, _, value = line.partition(" ")
        if line and not (key and value.strip()):
            raise DatasetError(str(path), f"line {number}: {line!r} is not `<key> <value>`", "Unpack it again.")
        if line:
            pairs.append((key, value.strip()))
    if not pairs:
        raise DatasetError(str(path), "is empty", "Unpack it again.")
    return pairs


def read_lines(path: Path) -> list[str]:
    """Read the lines of a text, without space at their ends.

    Raises:
        DatasetError: unreadable, or not UTF-8.
    """
    try:
        return [line.rstrip() for line in read_bytes(path).decode().splitlines()]
    except OSError as error:
        raise DatasetError(str(path), f"cannot be read: {error.strerror}", "Unpack it again.") from error
    except UnicodeDecodeError as error:
        raise DatasetError(str(path), "is not a UTF-8 text", "Unpack it again.") from error


def compare_counts(found: Mapping[str, int], expected: Mapping[str, Count]) -> str:
    """Return ``train: expected 5,994 images, found 12; test: ...``."""
    return "; ".join(
        f"{split}: expected {count} images, found {found.get(split, 0):,}" for split, count in expected.items()
    )


def name_some(names: Sequence[str]) -> str:
    """Return the first few of some names, and how many more there are."""
    more = len(names) - MAX_NAMES_SHOWN
    shown = ", ".join(names[:MAX_NAMES_SHOWN])
    return f"{shown} and {more:,} more" if more > 0 else shown


def fetch_remedy(layout: Layout, data_root: Path) -> str:
    """Return how to get a set that labelkit cannot download."""
    return f"{layout.fetch} {data_root}; labelkit does not download this set."


def _exists(folder: Path, name: str) -> bool:
    path = folder / name
    return path.is_dir() if name.endswith("/") else path.is_file()


def _names_in(folder: Path) -> list[str]:
    return os.listdir(folder)  # noqa: PTH208 - names alone: a million paths take seconds


def _is_image(file: str) -> bool:
    return os.path.splitext(file)[1].lower() in IMAGE_SUFFIXES and not file.startswith(".")  # noqa: PTH122 - a million


def _search(layout: Layout, top: Path) -> Path | None:
    """Look for the set's folder a few levels down, the nearest first."""
    pending = deque([(top, 0)])
    seen = 0
    while pending and seen < _SEARCH_FOLDERS:
        folder, depth = pending.popleft()
        seen += 1
        if depth and layout.whole_in(folder):
            return folder
        if depth == _SEARCH_DEPTH:
            continue
        try:
            with os.scandir(folder) as entries:
                below = sorted(entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir())
        except OSError:  # what cannot be looked into holds nothing that could be used
            continue
        # A folder with this number of folders is full of classes.
        if not depth or len(below) <= _SEARCH_WIDTH:
            pending += [(folder / name, depth + 1) for name in below]
    return None


def _missing(root: Path, sample_ids: Sequence[str]) -> list[str]:
    wanted: dict[str, list[str]] = defaultdict(list)
    for sample_id in sample_ids:
        folder, _, file = sample_id.rpartition("/")
        wanted[folder].append(file)
    missing = []
    for folder, files in wanted.items():
        try:
            there = set(_names_in(root / folder))
        except OSError:  # no such folder, or none that can be read: none of its files can
            there = set()
        missing += [f"{folder}/{file}" for file in files if file not in there]
    return missing


def _one_deeper(root: Path, missing: Sequence[str]) -> str:
    """Return what to do if the files lie one folder deeper than they should, else nothing."""
    folder, _, file = missing[0].rpartition("/")
    # images/<class>/<file> may lie in images/images/<class>/<file>
    for parent in (PurePosixPath(folder), *PurePosixPath(folder).parents):
        rest = PurePosixPath(folder).relative_to(parent) / file
        try:
            with os.scandir(root / parent) as entries:
                below = sorted(entry.name for entry in entries if entry.is_dir())
        except OSError:
            continue
        for name in below:
            if (root / parent / name / rest).is_file():
                inner = root / parent / name
                return f"They are one folder deeper: move what is in {inner} to {root / parent}."
    return ""

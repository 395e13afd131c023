"""A folder of images as a data set: class folders, split folders, or neither."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from labelkit.data.datasets import FileSource, ImageDataset, ImageSource, positions_of, sorted_by_bytes
from labelkit.data.decode import HEIF_REMEDY, HEIF_SUFFIXES, image_suffixes
from labelkit.data.remote import RemoteFile, RemoteSource, find_files
from labelkit.errors import DatasetError

_HEIC: Final = f"HEIC photos, {HEIF_REMEDY}"
SPLIT_FOLDERS: Final = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


def _walk(folder: Path, ignored: Counter[str]) -> list[str]:
    """List image files below a folder as ``/``-separated relative names, links to folders not followed."""
    found: list[str] = []
    pending = [""]
    suffixes = image_suffixes()
    while pending:
        prefix = pending.pop()
        try:
            entries = list(os.scandir(folder / prefix))
        except OSError as error:
            raise DatasetError(
                str(folder / prefix), f"cannot be listed: {error.strerror}", "Check its permissions."
            ) from error
        for entry in entries:
            if entry.name.startswith("."):
                ignored["hidden"] += 1
            elif entry.is_dir(follow_symlinks=False):
                pending.append(f"{prefix}{entry.name}/")
            elif entry.is_symlink() and Path(entry.path).is_dir():  # false, not an error, where links go in a circle
                ignored["links to folders"] += 1
            elif (suffix := Path(entry.name).suffix.lower()) not in suffixes:
                ignored[_HEIC if suffix in HEIF_SUFFIXES else "with other suffixes"] += 1
            else:
                found.append(prefix + entry.name)
    return found


def walk_images(folder: Path) -> list[str]:
    """List image files below a folder as ``/``-separated relative names, in any order, links to folders not followed.

    Raises:
        DatasetError: a folder cannot be listed.
    """
    return _walk(folder, Counter())


def load_folder(root: Path, *, name: str | None = None, any_classes: bool = True) -> ImageDataset:
    """List a folder: class folders, or split folders with class folders, or images without labels.

    If every visible subfolder is called train, val (valid, validation) or test, they are splits.
    Otherwise, and below each split, the first folder level names the class, sorted as strings as
    ``torchvision.datasets.ImageFolder`` does; deeper folders do not matter. Images outside of class
    folders are unlabeled.

    Args:
        root: the folder.
        name: of the data set; by default that of the folder.
        any_classes: False takes folders for classes only if there are at least two, each of two images or more; a note
            says so where they are not.

    Raises:
        DatasetError: no images, or a folder that cannot be listed.
    """
    ignored: Counter[str] = Counter()
    ids = sorted_by_bytes(_walk(root, ignored))
    source = FileSource(root, tuple(ids))
    return _listing(name or root.resolve().name, str(root), root, ids, ignored, source, any_classes=any_classes)


def load_remote_folder(address: str, *, any_classes: bool = True) -> ImageDataset:
    """List a folder at an address, such as ``s3://bucket/photos``, by the rules of :func:`load_folder`.

    Raises:
        DatasetError: no images, masks beside them, or a folder that cannot be listed.
    """
    path, files = find_files(address)
    ignored: Counter[str] = Counter()
    found: dict[str, RemoteFile] = {}
    hidden: set[tuple[str, ...]] = set()
    suffixes = image_suffixes()
    for file in files:
        parts = tuple(part for part in file.path.removeprefix(path).split("/") if part)
        first_hidden = next((place for place, part in enumerate(parts) if part.startswith(".")), None)
        if first_hidden is not None:
            hidden.add(parts[: first_hidden + 1])
        elif (suffix := file.suffix.lower()) not in suffixes:
            ignored[_HEIC if suffix in HEIF_SUFFIXES else "with other suffixes"] += 1
        elif parts:
            found["/".join(parts)] = file
    if hidden:
        ignored["hidden"] = len(hidden)
    if {"images", "masks"} <= {part for name in found for part in name.split("/")[:2]}:
        raise DatasetError(address, "has images/ and masks/", "Masks are read from a folder of this machine: fetch it.")
    ids = sorted_by_bytes(found)
    source = RemoteSource(tuple(found[one] for one in ids))
    name = path.rsplit("/", 1)[-1] or address
    return _listing(name, address, None, ids, ignored, source, any_classes=any_classes)


def _listing(
    name: str,
    where: str,
    root: Path | None,
    ids: Sequence[str],
    ignored: Counter[str],
    source: ImageSource,
    *,
    any_classes: bool,
) -> ImageDataset:
    """Return the data set of sorted names in a folder."""
    if not ids:
        suffixes = " ".join(sorted(image_suffixes()))
        seen = f" ({_count_ignored(ignored)})" if ignored else ""
        raise DatasetError(
            where,
            f"no images{seen}",
            f"Looked for {suffixes} in this folder, in class folders and in train/, val/, test/ with class folders.",
        )
    tops = {sample_id.split("/", 1)[0] for sample_id in ids if "/" in sample_id}
    has_splits = bool(tops) and all(top.lower() in SPLIT_FOLDERS for top in tops)
    split_of: list[str | None] = []
    class_of: list[str | None] = []
    for sample_id in ids:
        folders = sample_id.split("/")[:-1]
        split_of.append(SPLIT_FOLDERS[folders.pop(0).lower()] if has_splits and folders else None)
        class_of.append(folders[0] if folders else None)
    notes = [f"ignored: {_count_ignored(ignored)}"] if ignored else []
    doubt = None if any_classes else _doubt_of_classes(class_of)
    if doubt is not None:
        class_of = [None] * len(ids)
        notes.append(f"{doubt}, so that folders are taken for no classes (--label-split given takes them)")
    class_names = tuple(sorted_by_bytes({label for label in class_of if label is not None}))
    split_names = tuple(split for split in ("train", "val", "test") if split in split_of)
    labels = positions_of(class_of, class_names)
    return ImageDataset(
        name=name,
        root=root,
        sample_ids=tuple(ids),
        labels=labels,
        given=labels >= 0,
        class_names=class_names,
        splits=positions_of(split_of, split_names).astype(np.int16),
        split_names=split_names,
        in_channels=3,
        chiral=False,
        photographic=True,
        source=source,
        notes=tuple(notes),
    )


def _doubt_of_classes(class_of: list[str | None]) -> str | None:
    """Say why folders are likely no classes; ``None`` if they may well be, or if there are none."""
    sizes = Counter(name for name in class_of if name is not None)
    if len(sizes) == 1:
        return f"there is one folder, {next(iter(sizes))!r}"
    single = sorted_by_bytes(name for name, size in sizes.items() if size == 1)
    return f"{len(single)} of {len(sizes)} folders have one image, first: {single[0]!r}" if single else None


def _count_ignored(ignored: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(ignored.items()))

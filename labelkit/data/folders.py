"""Datasets from a folder of images: with class folders, split folders, or neither."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from labelkit.data.datasets import SPLIT_WORDS, FileSource, ImageDataset, ImageSource, build_dataset, sort_by_bytes
from labelkit.data.decode import HEIF_REMEDY, HEIF_SUFFIXES, image_suffixes
from labelkit.data.remote import FileLocation, RemoteSource, list_remote_files
from labelkit.errors import DatasetError
from labelkit.files import TABLE_SUFFIXES

_HEIC: Final = f"HEIC photos, {HEIF_REMEDY}"
# The split word and what may follow it: train_images, test-set, train-00000-of-00002-<digest>.
_SPLIT_NAME: Final = re.compile(
    rf"({'|'.join(SPLIT_WORDS)})(?:[-_. ]*(?:set|data|images?|imgs?|photos?|split|shard|part|of|[0-9a-f]{{16}}|\d))*",
    re.IGNORECASE,
)
_TABLE: Final = "table "  # prefix of the names of files that may contain labels, which are counted a second time
# Folders of NAS systems, archives and trash that are skipped in addition to hidden folders.
_NO_PHOTOS: Final = frozenset(
    "@eadir,@__thumb,@recycle,@recently-snapshot,@tmp,#recycle,#snapshot,$recycle.bin,recycler,lost+found,__macosx,"
    "system volume information".split(",")
)


def infer_split(name: str) -> str | None:
    """Infer the split from the name of a folder or file; return ``None`` if the name is not that of a split.

    Names that merely begin with the name of a split, such as test-tubes, do not denote it.
    """
    found = _SPLIT_NAME.fullmatch(name.strip())
    return None if found is None else SPLIT_WORDS[found[1].lower()]


def find_exclusion_reason(name: str, exclude: Sequence[str] = ()) -> tuple[str, str] | None:
    """Find the part of a path that excludes the file from the dataset, and the reason; ``None`` if it is included.

    Patterns may contain ``*`` and ``?``; they match names or, if they contain ``/``, paths.
    """
    parts = name.split("/")
    for end, part in enumerate(parts):
        path = "/".join(parts[: end + 1])
        if part.startswith("."):
            return path, "hidden"
        if part.lower() in _NO_PHOTOS:
            return path, f"named {part}"
        words = (pattern.strip("/") for pattern in exclude)
        if any(fnmatchcase(path if "/" in word else part, word) for word in words):
            return path, "excluded"
    return None


def walk_images(folder: Path, ignored: Counter[str] | None = None, *, exclude: Sequence[str] = ()) -> list[str]:
    """List the relative paths of all image files under a folder, following symbolic links, in no particular order.

    Parts of a path are separated by ``/``. Circular links are not followed. ``ignored`` counts the files that are not
    listed, by kind; :func:`find_exclusion_reason` describes the patterns to ``exclude``.

    Raises:
        DatasetError: a folder cannot be listed.
    """
    ignored = Counter() if ignored is None else ignored
    found: list[str] = []
    pending: list[tuple[str, tuple[Path, ...]]] = [("", ())]  # folder, and the folders of the links to it
    suffixes = image_suffixes()
    while pending:
        prefix, above = pending.pop()
        try:
            entries = list(os.scandir(folder / prefix))
        except OSError as error:
            problem = f"cannot be listed: {error.strerror}"
            raise DatasetError(str(folder / prefix), problem, "Check the permissions of this folder.") from error
        for entry in entries:
            name = prefix + entry.name
            if (left := find_exclusion_reason(name, exclude)) is not None:
                ignored[left[1]] += 1
            elif entry.is_dir(follow_symlinks=False):
                pending.append((f"{name}/", above))
            elif entry.is_symlink() and Path(entry.path).is_dir():  # False, not an error, for circular links
                through = (*above, Path(folder / prefix).resolve())
                if any(one.is_relative_to(Path(entry.path).resolve()) for one in through):
                    ignored["in circular links"] += 1
                else:
                    pending.append((f"{name}/", through))
            elif (suffix := Path(entry.name).suffix.lower()) not in suffixes:
                _count_ignored(ignored, name, suffix)
            else:
                found.append(name)
    return found


def load_folder(
    root: Path, *, name: str | None = None, any_classes: bool = True, exclude: Sequence[str] = ()
) -> ImageDataset:
    """Load a folder as a dataset: class folders, splits with class folders, or images without labels.

    See :func:`infer_splits_and_classes` for the meaning of folders, :func:`find_exclusion_reason` for the patterns to
    ``exclude``. Unless ``any_classes``, folders are classes only if there are at least two, each with at least two
    images; otherwise, a note gives the reason.

    Raises:
        DatasetError: there are no images, or a folder cannot be listed.
    """
    ignored: Counter[str] = Counter()
    ids = sort_by_bytes(walk_images(root, ignored, exclude=exclude))
    source = FileSource(root, tuple(ids))
    return _listing(name or root.resolve().name, str(root), root, ids, ignored, source, any_classes=any_classes)


def load_remote_folder(address: str, *, any_classes: bool = True, exclude: Sequence[str] = ()) -> ImageDataset:
    """Load a folder at a URL, such as ``s3://bucket/photos``, following the rules of :func:`load_folder`.

    Raises:
        DatasetError: there are no images, there are masks next to them, or a folder cannot be listed.
    """
    path, files = list_remote_files(address)
    ignored: Counter[str] = Counter()
    found: dict[str, FileLocation] = {}
    left: set[tuple[str, str]] = set()
    suffixes = image_suffixes()
    for file in files:
        inner = "/".join(part for part in file.path.removeprefix(path).split("/") if part)
        if (why := find_exclusion_reason(inner, exclude)) is not None:
            left.add(why)
        elif (suffix := Path(file.name).suffix.lower()) not in suffixes:
            _count_ignored(ignored, inner, suffix)
        elif inner:
            found[inner] = file
    ignored.update(kind for _, kind in left)
    if {"images", "masks"} <= {part for name in found for part in name.split("/")[:2]}:
        problem = "contains images/ and masks/, but masks are read only from local folders"
        raise DatasetError(address, problem, "Download the folder.")
    ids = sort_by_bytes(found)
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
    notes = describe_ignored_files(ignored)
    if not ids:
        suffixes = " ".join(sorted(image_suffixes()))
        problem = "contains no images" + "".join(f" ({note.removeprefix('ignored: ')})" for note in notes)
        remedy = (
            f"Add images ({suffixes}) to this folder, to class folders, or to train/, val/, test/ with class folders."
        )
        raise DatasetError(where, problem, remedy)
    split_of, class_of, class_notes = infer_splits_and_classes(ids)
    notes += class_notes
    doubt = None if any_classes else _explain_doubtful_classes(class_of)
    if doubt is not None:
        class_of = [None] * len(ids)
        notes.append(f"{doubt}, so folders are not used as classes (to use them, pass --label-split given)")
    class_names = sort_by_bytes({label for label in class_of if label is not None})
    return build_dataset(name, root, ids, class_of, split_of, source, class_names=class_names, notes=notes)


def infer_splits_and_classes(names: Sequence[str]) -> tuple[list[str | None], list[str | None], list[str]]:
    """Infer the split and class of each image from its folders, and return notes about doubtful folders.

    Top-level folders are splits if all are named like one (train, Testing, val2017, unlabeled, ...). They are also
    splits next to other folders, which are then neither splits nor classes, if several splits exist, or one whose
    images all lie in folders below it. Otherwise, and below each split, the first folder level names the class, as in
    ``torchvision.datasets.ImageFolder``; deeper folders do not matter. A single folder around all others is ignored,
    as is a split folder inside a folder of the same split. Images outside class folders, and in a folder
    ``unlabeled``, have no class.
    """
    folders = [name.split("/")[:-1] for name in names]
    while len(tops := _find_top_folders(folders)) == 1 and infer_split(*tops) is None:
        inner = [one[1:] for one in folders]
        has_images = any(len(one) == 1 for one in folders)
        if not _find_top_folders(inner) or (has_images and not _find_split_folders(inner)):
            break
        folders = inner
    splits = _find_split_folders(folders)
    split_of = [splits.get(one[0]) if one else None for one in folders]
    notes = []
    if splits:
        for name in sorted(_find_top_folders(folders) - set(splits)):
            count = sum(one[:1] == [name] for one in folders)
            beside = " and ".join(f"{one}/" for one in sorted(splits))
            notes.append(
                f"{name}/ ({count} images) is next to {beside}, and is used neither as a split nor as a class "
                "(to exclude it, pass --exclude)"
            )
        folders = [one[1:] if one and one[0] in splits else [] for one in folders]
        for split in set(splits.values()):
            tops = _find_top_folders([one for one, own in zip(folders, split_of, strict=True) if own == split])
            if len(tops) == 1 and infer_split(*tops) == split:
                folders = [one[1:] if own == split else one for one, own in zip(folders, split_of, strict=True)]
    elif odd := sorted(name for name in tops if infer_split(name) not in (None, "unlabeled")):
        notes.append(
            f"{' and '.join(f'{name}/' for name in odd)} next to other folders: used as classes, not as splits "
            "(to exclude folders, pass --exclude; to ignore all classes, pass --label-split none)"
        )
    unlabeled = {top for top in _find_top_folders(folders) if infer_split(top) == "unlabeled"}
    notes += [f"images in {name}/ have no label" for name in sorted(unlabeled)]
    class_of = [
        None if split == "unlabeled" or not one or one[0] in unlabeled else one[0]
        for one, split in zip(folders, split_of, strict=True)
    ]
    return split_of, class_of, notes


def _find_top_folders(folders: Iterable[Sequence[str]]) -> set[str]:
    return {one[0] for one in folders if one}


def _find_split_folders(folders: Sequence[Sequence[str]]) -> dict[str, str]:
    """Return the split of each top-level folder that denotes one; empty if the folders are not splits."""
    tops = _find_top_folders(folders)
    splits = {top: split for top in tops if (split := infer_split(top)) is not None}
    kinds = set(splits.values()) - {"unlabeled"}
    in_order = len(kinds) > 1 or (len(kinds) == 1 and len(splits) == len(tops) == len(set(splits.values())))
    if not in_order and len(kinds) == 1:  # such as train/cat, train/dog and more/
        inside = [one[1:] for one in folders if one and splits.get(one[0]) in kinds]
        in_order = [] not in inside and len(_find_top_folders(inside)) > 1
    return splits if in_order else {}


def _explain_doubtful_classes(class_of: list[str | None]) -> str | None:
    """Return the reason if folders are probably not classes; ``None`` if they may be, or if there are none."""
    sizes = Counter(name for name in class_of if name is not None)
    if len(sizes) == 1:
        return f"there is only one folder, {next(iter(sizes))!r}"
    single = sort_by_bytes(name for name, size in sizes.items() if size == 1)
    return f"{len(single)} of {len(sizes)} folders have only one image, first: {single[0]!r}" if single else None


def _count_ignored(ignored: Counter[str], name: str, suffix: str) -> None:
    """Count a file that is not an image; keep its name if it may contain labels."""
    ignored[_HEIC if suffix in HEIF_SUFFIXES else "with other suffixes"] += 1
    ignored.update([_TABLE + name] if suffix in TABLE_SUFFIXES else [])


def describe_ignored_files(ignored: Counter[str]) -> list[str]:
    """Return a note that counts the ignored files of each kind and names those that may contain labels."""
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(ignored.items()) if not kind.startswith(_TABLE))
    tables = sorted((kind for kind in ignored if kind.startswith(_TABLE)), key=lambda kind: (kind.count("/"), kind))
    shown = ", ".join(kind.removeprefix(_TABLE) for kind in tables[:3])
    hint = f"; if a table contains labels ({shown}?), pass it as --labels or --dataset" if tables else ""
    return [f"ignored: {counts}{hint}"] if ignored else []

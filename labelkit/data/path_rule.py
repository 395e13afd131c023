r"""The rule that matches paths in a CSV to images, the same for every CSV with labels.

A path is

1. relative to the data root: the id of the image, as labelkit writes it;
2. relative to the folder of the CSV, or absolute, if the folder of the images is known;
3. else the end of exactly one id, starting after a ``/``; or, if no id has this file name, a Label Studio upload:
   8 hexadecimal digits, a hyphen and the last part of exactly one id;
4. else, if it is absolute and not a file on this machine: a folder followed by an id, where the folder is the one that
   most such paths start with;
5. else, if these rules match no path in the CSV: a relative folder followed by an id, where only one folder is possible
   for all paths, and no other folder of this name is next to the folder of the images or to the CSV.

Accented letters are equal in either Unicode form (NFC or NFD), ``\`` may be used for ``/``, and the suffix may be
omitted.
"""

import difflib
import os
import posixpath
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from labelkit.errors import DatasetError
from labelkit.formatting import join_first_few

SHOWN = 5
_MAX_COMPARED = 20_000
_UPLOAD = re.compile(r"[0-9a-f]{8}-.")


def escape_path(sample_id: str) -> str:
    """Return a path as written to tables, with undecodable bytes as backslash escapes."""
    return sample_id.encode("utf-8", "backslashreplace").decode()


def match_paths(
    paths: Iterable[str],
    sample_ids: Sequence[str],
    *,
    table: Path,
    root: Path | None = None,
    other_spellings: Mapping[str, int] | None = None,
    complete: bool = True,
    show_message: Callable[[str], None] = lambda text: None,
) -> tuple[dict[str, int], list[str]]:
    """Match the paths in a table to images, using the matching rule of this module.

    ``root`` is the folder of the images, if known; ``other_spellings`` are alternative spellings of ids, with their
    positions. ``complete``: these are all paths of the table, as the last rule requires; ``show_message``
    receives a message for the user if that rule applies.

    Returns:
        Index of the image among the ids, by path as written; and the paths that match no image, as written.

    Raises:
        DatasetError: a path matches several images; the message lists them.
    """
    listed = list(paths)
    ids = _IdIndex(sample_ids, other_spellings or {})
    by_root = [ids.find_by_name(path) for path in listed]
    by_table = [ids.find_absolute_or_relative(path, table, root) for path in listed]
    if any(a and b and a != b for a, b in zip(by_root, by_table, strict=True)):
        # if all paths are relative to the same folder, this resolves ambiguous paths
        if all(by_root) and not all(by_table):
            by_table = [[] for _ in listed]
        elif all(by_table) and not all(by_root):
            by_root = [[] for _ in listed]
    places: dict[str, int] = {}
    unknown: list[str] = []
    ambiguous: list[str] = []
    for path, first, second in zip(listed, by_root, by_table, strict=True):
        found = sorted({*first, *second}) or ids.find_by_ending(path)
        if len(found) == 1:
            places[path] = found[0]
        elif not found:
            unknown.append(path)
        else:
            ambiguous.append(f"{path}: {join_first_few((escape_path(sample_ids[place]) for place in found), SHOWN)}")
    for relative in (False, True):
        elsewhere = {path: ids.match_without_folders(path, relative=relative) for path in unknown}
        folders = Counter(folder for found_there in elsewhere.values() for folder in found_there).most_common(2)
        if relative and (places or ambiguous or len(folders) > 1 or not complete):
            break
        if folders and folders[0][1] > (folders[1][1] if len(folders) > 1 else 0):
            folder = folders[0][0]
            if relative and root is not None and _is_another_folder(folder, root.resolve(), table.resolve()):
                break
            places |= {path: there[folder] for path, there in elsewhere.items() if folder in there}
            unknown = [path for path in unknown if path not in places]
            if relative:
                show_message(f"{table}: paths are matched without their leading folder {folder}/")
    if ambiguous:
        shown = join_first_few(ambiguous, SHOWN, "\n  ")
        problem = f"{len(ambiguous)} of {len(listed)} paths match several images\n  {shown}"
        raise DatasetError(str(table), problem, "Write these paths relative to the image folder.")
    return places, unknown


def _is_another_folder(folder: str, root: Path, table: Path) -> bool:
    """Return whether a relative folder is another one next to the image folder, such as test/ next to train/."""
    near = (os.path.join(parent, folder) for parent in (root.parent, table.parent))  # noqa: PTH118 - may be too long
    return not f"{root}/".endswith(f"/{folder}/") and any(map(os.path.exists, near))


def similar_path_hint(path: str, known: Sequence[str]) -> str:
    """Return a hint in parentheses that suggests images for an unknown path, or "" if none is similar."""
    base = path.replace("\\", "/").rsplit("/", 1)[-1]
    found = [name for name in known if name.rsplit("/", 1)[-1] == base][:3]
    if not found and len(known) <= _MAX_COMPARED:
        found = difflib.get_close_matches(path, known, n=1, cutoff=0.8)
    return f" (is it {' or '.join(found)}?)" if found else ""


def normalize_path(path: str) -> str:
    """Normalize a path in a table, so that equivalent spellings are equal."""
    return unicodedata.normalize("NFC", posixpath.normpath(path.strip().replace("\\", "/")))


class _IdIndex:
    """Index of image ids by whole path and by the end of the path."""

    def __init__(self, sample_ids: Sequence[str], spellings: Mapping[str, int]) -> None:
        self._exact = {**spellings, **{escape_path(name): place for place, name in enumerate(sample_ids)}}
        # indexes by the whole path and by its last part: first as written, then without suffix
        self._wholes: list[dict[str, list[int]]] = [defaultdict(list), defaultdict(list)]
        self._bases: list[dict[str, list[tuple[str, int]]]] = [defaultdict(list), defaultdict(list)]
        for place, name in enumerate(sample_ids):
            key = normalize_path(escape_path(name))
            for written, wholes, bases in zip(
                (key, posixpath.splitext(key)[0]), self._wholes, self._bases, strict=True
            ):
                wholes[written].append(place)
                bases[written.rsplit("/", 1)[-1]].append((written, place))

    def find_by_name(self, path: str) -> list[int]:
        """Return the indices of all images whose id equals this path, ignoring suffix and Unicode form."""
        place = self._exact.get(path)
        if place is not None:
            return [place]
        key = normalize_path(path)
        return next((list(wholes[key]) for wholes in self._wholes if key in wholes), [])

    def find_absolute_or_relative(self, path: str, table: Path, root: Path | None) -> list[int]:
        """Return the indices of the images at a path that is absolute or relative to the table's folder."""
        if root is None:
            return []
        file = os.path.join(table.resolve().parent, path.strip().replace("\\", os.sep))  # noqa: PTH118 - as below
        relative = os.path.relpath(file, root.resolve())  # paths may be absolute, or leave the folder and come back
        return [] if relative.startswith("..") else self.find_by_name(Path(relative).as_posix())

    def find_by_ending(self, path: str) -> list[int]:
        """Return the indices of the images whose id ends in this path or, for an upload, in its original name."""
        key = normalize_path(path)
        base = key.rsplit("/", 1)[-1]
        if _UPLOAD.match(base) and not any(base in bases for bases in self._bases):
            key = base = base[9:]
        elif key.startswith(("..", "/")):
            return []
        found = ([i for name, i in bases.get(base, ()) if f"/{name}".endswith(f"/{key}")] for bases in self._bases)
        return next(filter(None, found), [])

    def match_without_folders(self, path: str, *, relative: bool) -> dict[str, int]:
        """Return the images that match a path without its first folders, by the folders omitted.

        The path is relative, or absolute and possibly from another machine.
        """
        parts = normalize_path(path).split("/")
        is_relative = parts[0] != "" and not parts[0].endswith(":")
        if relative != is_relative or parts[0] == ".." or (not relative and os.path.exists(path)):  # noqa: PTH110 - it may be too long
            return {}
        found = {"/".join(parts[:at]): self.find_by_name("/".join(parts[at:])) for at in range(1, len(parts))}
        return {folder: places[0] for folder, places in found.items() if len(places) == 1}

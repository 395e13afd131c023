"""Labels that ``start`` knows: those of earlier calls, those entered in its own tables, and those in files.

A label belongs to a photo, not to a path: it follows a photo that was moved or renamed, identified by the bytes of the
file, even if its old path now belongs to another photo. If a photo is gone and its path contains a file that no earlier
call has seen, the photo was edited and keeps its label. Labels of missing photos are kept in a separate file until the
photos return.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from labelkit.commands.common.label_files import LabeledImages, find_images_by_path, match_label_paths
from labelkit.commands.common.labels import find_misspelled_class
from labelkit.data.datasets import ImageDataset
from labelkit.data.path_rule import escape_path, find_paths
from labelkit.data.tables import FILE_COLUMN, class_name, read_file_labels, read_label_csv, read_paths
from labelkit.errors import DatasetError
from labelkit.files import sha256_file
from labelkit.progress import current_progress
from labelkit.store.commit import commit_bytes, install
from labelkit.store.csv_table import csv_bytes
from labelkit.store.embeddings import EmbeddingStore

GIVEN, AWAY, LABELS = "given.csv", "away.csv", "labels.csv"
NEXT, SKIPPED, NOVEL, SEEN, CHECK = "next.csv", "skipped.csv", "novel.csv", "novel-seen.csv", "check.csv"
FOLDERS = Path("folders")  # --labels folders: the names of the folders are the labels
FILLED = (NEXT, SKIPPED, NOVEL, SEEN, CHECK)
"""Tables whose labels people fill in or correct."""
_SHOWN = 5
# labels of a class up to which its name may be a slip
_FEW = 2


@dataclass(frozen=True)
class TableLabel:
    """Label of a photo in a table, with the path and file digest that the photo had when the label was recorded.

    Attributes:
        path: below the folder of the photos.
        text: the label.
        file: SHA-256 in hex; empty if it is not known.
    """

    path: str
    text: str
    file: str


@dataclass(frozen=True)
class CollectedLabels:
    """All labels that people have given so far, matched to the photos in the folder.

    Attributes:
        placed: by place of the photo in the listing.
        files: SHA-256 of the photo at each of these places, in hex; empty if it cannot be read.
        away: of photos that are not there.
        followed: labels that are at another path than they were written for.
        left: by path, labels that a photo took along from there, or that were corrected in a table of ``start``, in
            this call or earlier; a table of the user may still have them.
    """

    placed: dict[int, str]
    files: dict[int, str]
    away: list[TableLabel]
    followed: int
    left: dict[str, list[str]]


def collect_labels(
    tables: GeneratedTables,
    labels: Sequence[Path],
    dataset: ImageDataset,
    label_column: str | None,
    stores: Sequence[EmbeddingStore],
    *,
    left: Mapping[str, Sequence[str]],
    checked: Mapping[str, str],
    corrected: Sequence[TableLabel],
    given_before: Callable[[], Mapping[str, str]],
    browser: Sequence[TableLabel],
    is_same: bool,
) -> CollectedLabels:
    """Collect the labels of photos from tables and the browser; later sources override earlier ones.

    Args:
        tables: of ``start``.
        labels: CSVs of the user, or ``FOLDERS``.
        dataset: the photos.
        label_column: header of the column of labels in the CSVs of the user; ``None`` for the usual one.
        stores: of earlier calls, the newest first, which know what file was at a path.
        left: see :class:`CollectedLabels`; of the last call.
        checked: labels by path as ``check.csv`` was written; those that are other ones by now were corrected, and
            those that are empty were removed.
        corrected: labels that were corrected in ``labels.csv``.
        given_before: returns the labels by path that were given for the last call; those that were changed or removed
            in ``given.csv`` since are not taken from a table of the user again.
        browser: labels that were given in the browser; without a text, labels that were taken back there.
        is_same: the photos are those of the newest store, so that labels that wait for theirs need not look for them.

    Raises:
        DatasetError: a file cannot be used, or names photos that are not there and were not in an earlier call.
    """
    progress = current_progress()
    place_of = {escape_path(name): place for place, name in enumerate(dataset.sample_ids)}
    gone_from = {path: set(texts) for path, texts in left.items()}
    folder = tables.folder
    kept, given, *filled = (_with_files(tables.read(folder / name), stores) for name in (AWAY, GIVEN, *FILLED))
    filled[-1] = [label for label in filled[-1] if label.text != checked.get(label.path)]
    known_away = set(kept)
    if tables.was_edited(GIVEN):
        now = {label.path: label.text for label in given}
        for name, text in given_before().items():
            if now.get(name) != text:
                gone_from.setdefault(name, set()).add(text)
    # by path and file: the same path may have been that of several photos
    earlier = {(label.path, label.file): label for label in (*kept, *given)}
    changed: Counter[Path] = Counter()
    own = [*(folder / name for name in (*FILLED, LABELS)), folder / "the browser"]
    filled.append(_with_files(corrected, stores))
    filled.append([label for label in browser if label.text])
    read = read_paths(folder / CHECK) if tables.was_edited(CHECK) else {}
    emptied = {path for path, text in read.items() if not text}
    for where, removed in (
        ("the browser", [(label.path, label.file) for label in browser if not label.text]),
        (CHECK, [at for at, one in earlier.items() if one.path in emptied and one.text == checked.get(one.path)]),
    ):
        gone = [old for at in removed if (old := earlier.pop(at, None)) is not None]
        for old in gone:
            gone_from.setdefault(old.path, set()).add(old.text)
        if gone:
            progress.message(f"{_labels(len(gone))} removed in {where}")

    def take(table: Path, written: Sequence[TableLabel]) -> None:
        for new in written:
            old = earlier.get((new.path, new.file), new)
            changed[table] += old.text != new.text
            if old.text != new.text and table in own:
                gone_from.setdefault(old.path, set()).add(old.text)
            earlier[new.path, new.file] = new

    for path, written in zip(own, filled, strict=True):
        take(path, written)
    placed: dict[int, tuple[str, Path]] = {}
    newest: set[TableLabel] = set()
    for path in labels:
        if path == FOLDERS:
            # as they are read from given.csv
            classes = {k: usual for k, name in enumerate(dataset.class_names) if (usual := class_name(name))}
            fresh, written = {i: classes[k] for i, k in enumerate(dataset.labels.tolist()) if k in classes}, []
            if bad := [name for k, name in enumerate(dataset.class_names) if k not in classes]:
                progress.message(f"images in {', '.join(bad)} have no label; rename these folders if they are classes")
            if not fresh:
                problem = f"no photo in {dataset.root} is in a folder that could name its class"
                raise DatasetError("--labels folders", problem, "Pass a CSV with the columns path,label.")
        else:
            is_own = path.resolve().parent == folder.resolve()
            fresh, written = _read_user_table(path, label_column, dataset, stores, gone_from, is_own=is_own)
        take(path, written)
        newest |= set(written)
        # of two tables the last one counts
        again = {place_of.get(label.path) for label in written}
        placed = {place: one for place, one in placed.items() if place not in again}
        placed |= {place: (text, path) for place, text in fresh.items()}
    fresh_paths = {label.path for written in filled for label in written}
    noted = {place_of[one.path]: one.file for one in given if one.path in place_of and one.path not in fresh_paths}
    files = _Files(dataset, {place: file for place, file in noted.items() if file and is_same})
    known: dict[int, str] = {}
    strays: list[TableLabel] = []
    for label in earlier.values():
        place = place_of.get(label.path)
        if place is None or (label.file and files.digest(place) not in (label.file, "")):
            strays.append(label)
        else:
            known[place] = label.text
    sought = [label for label in strays if not (is_same and label in known_away)]
    moved, away, edited = _follow(strays, sought, newest, place_of, files, stores, known)
    for label in (*moved, *away):
        gone_from.setdefault(label.path, set()).add(label.text)
    if moved:
        progress.message(f"{_labels(len(moved))} of moved or renamed photos, carried over")
    if waiting := [label for label in away if label not in known_away]:
        progress.warning(
            f"{_labels(len(waiting))} of missing photos ({_names(waiting)}): the labels are kept in {folder / AWAY} "
            "until the photos return"
        )
    if edited:
        progress.warning(
            f"{_labels(len(edited))} of photos whose files have changed ({_names(edited)}): "
            "assumed to be edited, so they keep their labels; if they are different photos, delete their lines in "
            f"{folder / GIVEN} and run again"
        )
    class_table: dict[str, Path] = {}
    outdated = {place_of[path]: texts for path, texts in gone_from.items() if path in place_of}
    for path in labels:
        fresh = {place: text for place, (text, table) in placed.items() if table == path}
        # of a photo which had the path before, or corrected since
        stale = {place for place, text in fresh.items() if text in outdated.get(place, ()) and text != known.get(place)}
        if stale:
            progress.warning(
                f"{path}: {_labels(len(stale))} ignored, since the photos or classes have been corrected, deleted or "
                "renamed. The labels are already recorded, so you can leave out --labels. If they are right for the "
                f"photos that now have these names, add them to {folder / GIVEN}"
            )
        fresh = {place: text for place, text in fresh.items() if place not in stale}
        changed[path] += sum(known.get(place, text) != text for place, text in fresh.items())
        known |= fresh
        class_table |= dict.fromkeys(fresh.values(), path)
    for path, count in (+changed).items():
        progress.warning(f"{path}: {_labels(count)} of photos that had another label before; the new labels are used")
    counts = Counter(known.values())
    for name, count in counts.items():
        commoner = [other for other, more in counts.items() if (more, other) > (count, name)]
        near = next((other for other in commoner if other.casefold() == name.casefold()), None)
        if near is None and count <= _FEW:
            near = find_misspelled_class(name, (other for other in commoner if counts[other] > _FEW))
        if near is not None:
            progress.warning(
                f"the class {name!r} ({_labels(count)}) looks like {near!r}: if both are the same class, replace "
                f"{name!r} in {class_table.get(name, folder / GIVEN)} and run again"
            )
    gone_texts = {path: sorted(texts) for path, texts in sorted(gone_from.items())}
    return CollectedLabels(known, {place: files.digest(place) for place in known}, away, len(moved), gone_texts)


def _labels(count: int) -> str:
    return "1 label" if count == 1 else f"{count} labels"


def _names(labels: Sequence[TableLabel]) -> str:
    more = ", ..." if len(labels) > _SHOWN else ""
    return ", ".join(label.path for label in labels[:_SHOWN]) + more


def _read_user_table(
    labels: Path,
    label_column: str | None,
    dataset: ImageDataset,
    stores: Sequence[EmbeddingStore],
    left: Mapping[str, Set[str]],
    *,
    is_own: bool,
) -> tuple[dict[int, str], list[TableLabel]]:
    """Read the table of ``--labels``: labels by place, and labels of the files that were at a path in an earlier call.

    A table that ``start`` made, or one that tells files, is of the photos of that time. In others a path is that of the
    photo that is there now; one that is there no more is that of the photo which was there last, unless its label was
    taken along before.
    """
    read_label_csv(labels, label_column, tell=current_progress().message)
    written = [TableLabel(*row) for row in read_file_labels(labels, label_column)]
    if is_own:
        written = _with_files(written, stores)
    told = [label for label in written if label.file]
    texts = {label.path: label.text for label in written if not label.file}
    images = LabeledImages(f"the folder {dataset.root}", dataset.sample_ids, dataset.root)
    _, unknown = find_images_by_path(labels, texts, images)
    if unknown:
        former = sorted({name for store in stores for name in store.sample_ids} - set(dataset.sample_ids))
        were, _ = find_paths(unknown, former, table=labels, root=dataset.root, whole=False)
        gone = [TableLabel(escape_path(former[place]), texts.pop(name), "") for name, place in were.items()]
        told += _with_files([label for label in gone if label.text not in left.get(label.path, ())], stores)
    return match_label_paths(labels, texts, images) if texts else {}, told


def _follow(
    strays: Sequence[TableLabel],
    sought: Sequence[TableLabel],
    newest: Set[TableLabel],
    place_of: Mapping[str, int],
    files: _Files,
    stores: Sequence[EmbeddingStore],
    known: dict[int, str],
) -> tuple[list[TableLabel], list[TableLabel], list[TableLabel]]:
    """Reassign labels whose path is gone or now belongs to another file, unless a file has contradicting labels.

    Returns the labels of photos with another path, of none, and of photos that are other files at the same path.
    """
    texts = defaultdict(set)
    for label in strays:
        texts[label.file].add(label.text)
    wanted = {label.file for label in sought if label.file and len(texts[label.file]) == 1}
    found = _find_moved_files(wanted, files, stores)
    # a photo of any earlier call, which came back or has another's name
    described = {digest.tobytes().hex() for store in stores if strays for digest in store.sha256}
    moved: list[TableLabel] = []
    away: list[TableLabel] = []
    edited: list[TableLabel] = []
    for label in strays:
        place = place_of.get(label.path)
        if label.file in found:
            moved.append(label)
            for other in found[label.file]:
                if label in newest:
                    known[other] = label.text
                known.setdefault(other, label.text)
        elif place is None or files.digest(place) in described:
            away.append(label)
        else:
            edited.append(label)
            known.setdefault(place, label.text)
    return moved, away, edited


def skipped_photos(table: Path, kept: Path, labels: Mapping[str, str]) -> list[str]:
    """Return the sorted paths that a person left unlabeled in a table while filling in others, now or (kept) earlier.

    A photo that has a label by now is skipped no longer.
    """
    following, before = ({} if not path.is_file() else read_paths(path) for path in (table, kept))
    left = [path for path, text in following.items() if not text] if any(following.values()) else []
    return sorted({*before, *left} - labels.keys())


class GeneratedTables:
    """Tables that ``start`` wrote, protected from being overwritten after a person edits them.

    Args:
        folder: of ``start``.
        written: SHA-256 of each table as it was written, by its name; kept up to date.
        save: saves ``written``; called after each change of a table.
    """

    def __init__(self, folder: Path, written: dict[str, str], save: Callable[[], None]) -> None:
        self.folder, self._written, self._save = folder, written, save
        self._read: dict[Path, str] = {}

    def read(self, path: Path) -> list[TableLabel]:
        """Read the labels in a table that ``start`` wrote; return an empty list if it is missing or has no rows."""
        if not path.is_file():
            return []
        self._read[path] = sha256_file(path)  # first: who saves it now saves another one
        # of away.csv, one path may be that of two photos, which came one after the other; labels.csv has guesses
        if path.name not in (AWAY, LABELS):
            read_label_csv(path, empty_ok=True, tell=current_progress().message)
        return [TableLabel(*row) for row in read_file_labels(path)]

    def was_edited(self, name: str) -> bool:
        """Return whether a person edited a table: whether its content, when read, differs from what ``start`` wrote."""
        read = self._read.get(self.folder / name)
        return read is not None and read != self._written.get(name)

    def can_replace(self, path: Path) -> bool:
        """Return whether a table may be replaced; an edited table that ``start`` never reads is renamed first."""
        now = sha256_file(path) if path.is_file() else None
        if now in (None, self._read.get(path)):
            return True
        if path.name in (AWAY, GIVEN, *FILLED):
            current_progress().warning(
                f"{path} was changed during this run: it is left as is, and the next run reads it"
            )
            return False
        if now != self._written.get(path.name):
            other = path.rename(path.with_stem(f"{path.stem}-edited-{now[:8]}"))
            told = f"{path} was edited and is kept as {other}; pass lines that you corrected with --labels"
            current_progress().warning(told)
        return True

    def replace(self, path: Path, made: Path) -> bool:
        """Replace a table with a finished file unless it changed since it was read; return whether it was replaced."""
        if not self.can_replace(path):
            made.unlink()
            return False
        install(made, path, replace=True)
        self._written[path.name] = sha256_file(path)
        self._save()
        return True

    def write(self, name: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Write a table, replacing the one that ``start`` wrote before.

        Raises:
            DatasetError: it was changed since it was read.
        """
        path = self.folder / name
        if not self.can_replace(path):
            problem = "was changed during this run"
            raise DatasetError(str(path), problem, "Run the command again to read the new version.")
        self._read[path] = self._written[name] = commit_bytes(path, csv_bytes(columns, rows))
        self._save()

    def remove(self, *names: str) -> None:
        """Remove tables that ``start`` wrote, except those that have changed since they were read."""
        for name in names:
            if not name.endswith(".csv") or self.can_replace(self.folder / name):
                (self.folder / name).unlink(missing_ok=True)


def _with_files(labels: Sequence[TableLabel], stores: Sequence[EmbeddingStore]) -> list[TableLabel]:
    """Add unknown file digests, taken from the newest store that contains the path."""
    missing = {label.path for label in labels if not label.file}
    found: dict[str, str] = {}
    for store in stores if missing else ():
        for row, name in enumerate(store.sample_ids):
            path = escape_path(name)
            if path in missing and path not in found:
                found[path] = store.sha256[row].tobytes().hex()
    return [label if label.file else replace(label, file=found.get(label.path, "")) for label in labels]


class _Files:
    """The files of a listing, each read at most once."""

    def __init__(self, dataset: ImageDataset, known: Mapping[int, str]) -> None:
        assert dataset.root is not None
        self.paths = [dataset.root / name for name in dataset.sample_ids]
        self._digests = dict(known)

    def digest(self, place: int) -> str:
        """Return a file's SHA-256 digest in hex, or "" if the file cannot be read; ``embed`` reports that error."""
        if place not in self._digests:
            try:
                self._digests[place] = sha256_file(self.paths[place])
            except OSError:
                self._digests[place] = ""
        return self._digests[place]


def _find_moved_files(wanted: Set[str], files: _Files, stores: Sequence[EmbeddingStore]) -> dict[str, list[int]]:
    """Return the current locations of files that earlier stores contained."""
    sizes: set[int] = set()
    for store in stores if wanted else ():
        rows = [row for row, digest in enumerate(store.sha256) if digest.tobytes().hex() in wanted]
        sizes |= set(store.file_sizes[rows].tolist())
    found: dict[str, list[int]] = {}
    for place, path in enumerate(files.paths if sizes else ()):
        with contextlib.suppress(OSError):
            if path.stat().st_size in sizes and files.digest(place) in wanted:
                found.setdefault(files.digest(place), []).append(place)
    return found


def count_moved(dataset: ImageDataset, store: EmbeddingStore, rows: Sequence[int]) -> int:
    """Count the given rows of a store whose image files are now at a path that the store does not list."""
    wanted, old = {store.sha256[row].tobytes().hex() for row in rows}, set(store.sample_ids)
    found = _find_moved_files(wanted, _Files(dataset, {}), [store])
    return sum(any(dataset.sample_ids[place] not in old for place in places) for places in found.values())


def write_labels(
    tables: GeneratedTables, dataset: ImageDataset, known: CollectedLabels, unread: Set[str] = frozenset()
) -> None:
    """Write the known labels, with the SHA-256 of each photo: first those of photos that are not there or ``unread``.

    Whenever this ends, no label is lost.
    """
    names, columns = dataset.sample_ids, ("path", "label", FILE_COLUMN)
    given = [(names[i], known.placed[i], known.files[i]) for i in sorted(known.placed)]
    # without the file, since it may become the one that it was, or another one
    aside = [(escape_path(name), text, "") for name, text, _ in given if name in unread]
    if aside:
        current_progress().warning(
            f"{_labels(len(aside))} for unreadable photos: kept in {tables.folder / AWAY} until the photos can be read"
        )
    away = [*((label.path, label.text, label.file) for label in known.away), *aside]
    if away:
        tables.write(AWAY, columns, sorted(away, key=lambda row: (row[0], row[2])))
    if given or (tables.folder / GIVEN).is_file():
        tables.write(GIVEN, columns, (row for row in given if row[0] not in unread))
    if not away:
        tables.remove(AWAY)

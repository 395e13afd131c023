"""Collect the user's labels for ``start``: from earlier runs, from its own tables, from the browser and from files.

A label belongs to a photo, not to a path: it follows a photo that was moved or renamed, identified by the content of
the file, even if its old path now belongs to another photo. If a photo is gone and its path contains a file that no
earlier run has seen, the photo is assumed to have been edited and keeps its label. Labels of missing photos are kept in
a separate file until the photos return.
"""

from __future__ import annotations

import codecs
import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from labelkit.commands.common.label_files import LabelFileImages, find_images_by_path, match_label_paths
from labelkit.commands.common.labels import find_misspelled_class
from labelkit.data.datasets import ImageDataset
from labelkit.data.path_rule import escape_path, match_paths, normalize_path
from labelkit.data.tables import FILE_COLUMN, read_label_csv, read_labeled_rows, read_paths_and_labels, to_class_name
from labelkit.errors import DatasetError
from labelkit.files import sha256_file
from labelkit.formatting import join_first_few
from labelkit.progress import current_progress
from labelkit.store.commit import commit_bytes, move_into_place
from labelkit.store.csv_table import csv_bytes
from labelkit.store.embeddings import EmbeddingStore

GIVEN_CSV, AWAY_CSV, LABELS, RULED_OUT = "given.csv", "away.csv", "labels.csv", "ruled-out.csv"
GIVEN_COPY = ".given.csv"  # written with GIVEN_CSV, to restore it and to see what the user has changed
NEXT, SKIPPED, NOVEL, SEEN, CHECK = "next.csv", "skipped.csv", "novel.csv", "novel-seen.csv", "check.csv"
FOLDER_NAMES_OPTION = Path("folders")  # --labels folders: folder names are the labels
FILLED = (NEXT, SKIPPED, NOVEL, SEEN, CHECK)
"""Tables in which users fill in or correct labels."""
_SHOWN = 5
# maximum number of labels of a class whose name may be a typo
_FEW = 2


@dataclass(frozen=True)
class TableLabel:
    """Label of a photo in a table, with the path and digest of the photo's file when the label was recorded.

    Attributes:
        path: path relative to the photo folder.
        text: the label.
        sha256: SHA-256 of the file in hex; empty if unknown.
    """

    path: str
    text: str
    sha256: str


@dataclass(frozen=True)
class CollectedLabels:
    """All labels from the user so far, matched to the photos in the folder.

    Attributes:
        by_position: labels by position of the photo in the listing.
        by_path: the same labels by escaped path.
        files: SHA-256 of the photo at each of these positions, in hex; empty if it cannot be read.
        missing: labels of missing photos.
        num_moved: number of labels whose photos have moved to another path.
        superseded_labels: by path, labels that a table of the user may still contain although the photo has moved or
            the label was corrected, in this run or earlier.
    """

    by_position: dict[int, str]
    by_path: dict[str, str]
    files: dict[int, str]
    missing: list[TableLabel]
    num_moved: int
    superseded_labels: dict[str, list[str]]


def collect_labels(
    tables: GeneratedTables,
    user_tables: Sequence[Path],
    dataset: ImageDataset,
    label_column: str | None,
    stores: Sequence[EmbeddingStore],
    *,
    superseded_labels: Mapping[str, Sequence[str]],
    checked: Mapping[str, str],
    corrected: Sequence[TableLabel],
    browser_labels: Sequence[TableLabel],
    same_photos: bool,
) -> CollectedLabels:
    """Collect the labels of photos from tables and the browser; later sources override earlier ones.

    Args:
        tables: tables written by ``start``.
        user_tables: CSVs of the user, or ``FOLDER_NAMES_OPTION``.
        dataset: the photos.
        label_column: name of the label column in the CSVs of the user; ``None`` for the usual one.
        stores: stores of earlier runs, newest first, which record the file at each path.
        superseded_labels: those of the last run, see :class:`CollectedLabels`.
        checked: labels by path as written to ``check.csv``; if they differ now, they were corrected, and if they are
            empty, they were removed.
        corrected: labels corrected in ``labels.csv``.
        browser_labels: labels entered in the browser; an empty text removes a label.
        same_photos: whether the photos are those of the newest store, so that missing photos need no new search.

    Raises:
        DatasetError: a file cannot be used, or lists photos that are missing and were not in an earlier run.
    """
    progress, folder = current_progress(), tables.folder
    position_of = {escape_path(name): position for position, name in enumerate(dataset.sample_ids)}
    kept, last, given = (_with_files(tables.read(folder / name), stores) for name in (AWAY_CSV, GIVEN_COPY, GIVEN_CSV))
    filled = {name: _with_files(tables.read(folder / name), stores) for name in FILLED}
    filled[CHECK] = [label for label in filled[CHECK] if label.text != checked.get(label.path)]
    filled[LABELS] = _with_files(corrected, stores)
    filled["the browser"] = [label for label in browser_labels if label.text]
    own_tables = {folder / name: labels for name, labels in filled.items()}
    if tables.is_missing(GIVEN_CSV) and (last or tables.was_written(GIVEN_CSV)):
        given = last
        restored = f"{_labels_text(len(last))} restored from the last run" if last else "its labels are not used"
        progress.warning(
            f"{folder / GIVEN_CSV} is missing or empty: {restored}; to remove labels, delete their lines, not the file"
        )
    merge = _LabelMerge(superseded_labels, (*kept, *given))
    if given is not last and tables.is_edited_by_user(GIVEN_CSV):
        _note_changes(given, last, merge.superseded)
    merge.remove("the browser", [(label.path, label.sha256) for label in browser_labels if not label.text])
    read = tables.read_with_empty(folder / CHECK) if tables.is_edited_by_user(CHECK) else {}
    emptied = {(path, checked.get(path)) for path, text in read.items() if not text}
    merge.remove(CHECK, [at for at, label in merge.by_photo.items() if (label.path, label.text) in emptied])
    for table, written in own_tables.items():
        merge.apply(table, written, is_own=True)
    placed: dict[int, tuple[str, Path]] = {}
    newest: set[TableLabel] = set()
    for path in user_tables:
        if path == FOLDER_NAMES_OPTION:
            fresh, written = _labels_of_folders(dataset), []
        else:
            is_own = path.resolve().parent == folder.resolve()
            fresh, written = _read_user_table(path, label_column, dataset, stores, merge.superseded, is_own=is_own)
        merge.apply(path, written, is_own=path in own_tables)
        newest |= set(written)
        # the last table takes precedence
        again = {position_of.get(label.path) for label in written}
        placed = {position: one for position, one in placed.items() if position not in again}
        placed |= {position: (text, path) for position, text in fresh.items()}
    noted = position_of.keys() - {label.path for labels in filled.values() for label in labels}
    unchanged = [one for one in given if same_photos and one.sha256 and one.path in noted]
    files = _PhotoDigests(dataset, {position_of[one.path]: one.sha256 for one in unchanged})
    known_away = set(kept)
    not_sought = known_away if same_photos else set()
    known, moved, away, edited = _locate_photos(merge.by_photo.values(), not_sought, newest, position_of, files, stores)
    for label in (*moved, *away):
        merge.superseded[label.path].add(label.text)
    _report_moved(moved, [label for label in away if label not in known_away], edited, folder)
    superseded_at = {position_of[path]: texts for path, texts in merge.superseded.items() if path in position_of}
    class_table: dict[str, Path] = {}
    for path in user_tables:
        fresh = {position: text for position, (text, table) in placed.items() if table == path}
        fresh = _drop_superseded(path, fresh, superseded_at, known, folder)
        merge.num_changed[path] += _show_changes(path, fresh, known, dataset.sample_ids)
        known |= fresh
        class_table |= dict.fromkeys(fresh.values(), path)
    for path, count in (+merge.num_changed).items():
        progress.warning(f"{path}: {_labels_text(count)} for photos that had another label; the new labels are used")
    _warn_of_misspelled_classes(Counter(known.values()), class_table, folder / GIVEN_CSV, last)
    texts_by_path = {path: sorted(texts) for path, texts in sorted(merge.superseded.items())}
    by_path = {escape_path(dataset.sample_ids[position]): text for position, text in known.items()}
    return CollectedLabels(known, by_path, {at: files.digest(at) for at in known}, away, len(moved), texts_by_path)


class _LabelMerge:
    """Latest label by path and file digest, since different photos may have had the same path."""

    def __init__(self, superseded: Mapping[str, Iterable[str]], labels: Iterable[TableLabel]) -> None:
        self.superseded = defaultdict(set, {path: set(texts) for path, texts in superseded.items()})
        self.by_photo = {(label.path, label.sha256): label for label in labels}
        self.num_changed = Counter[Path]()

    def remove(self, where: str, photos: Iterable[tuple[str, str]]) -> None:
        gone = [old for photo in photos if (old := self.by_photo.pop(photo, None)) is not None]
        for old in gone:
            self.superseded[old.path].add(old.text)
        if gone:
            current_progress().message(f"{_labels_text(len(gone))} removed in {where}")

    def apply(self, table: Path, labels: Iterable[TableLabel], *, is_own: bool) -> None:
        for new in labels:
            old = self.by_photo.get((new.path, new.sha256), new)
            self.num_changed[table] += old.text != new.text
            if old.text != new.text and is_own:
                self.superseded[old.path].add(old.text)
            self.by_photo[new.path, new.sha256] = new


def _note_changes(given: Sequence[TableLabel], last: Sequence[TableLabel], superseded: dict[str, set[str]]) -> None:
    """Record which labels the user has changed or removed in ``given.csv`` since the last run."""
    now = {label.path: label.text for label in given}
    differing = {label.path: label.text for label in last if now.get(label.path) != label.text}
    for name, text in differing.items():
        superseded[name].add(text)
    if differing:
        absent = len(differing.keys() - now.keys())
        current_progress().message(f"{GIVEN_CSV}: {_labels_text(absent)} removed, {len(differing) - absent} changed")


def _labels_of_folders(dataset: ImageDataset) -> dict[int, str]:
    """Return the folder names of photos as labels by position, as if read from ``given.csv``.

    Raises:
        DatasetError: no folder name could be a class.
    """
    classes = {k: usual for k, name in enumerate(dataset.class_names) if (usual := to_class_name(name))}
    if bad := [name for k, name in enumerate(dataset.class_names) if k not in classes]:
        shown = ", ".join(bad)
        current_progress().message(f"images in {shown} have no label; rename these folders if they are classes")
    found = {position: classes[k] for position, k in enumerate(dataset.labels.tolist()) if k in classes}
    if not found:
        problem = f"no photo in {dataset.root} is in a folder whose name could be a class"
        raise DatasetError("--labels folders", problem, "Pass a CSV with the columns path,label.")
    return found


def _report_moved(
    moved: Sequence[TableLabel], missing: Sequence[TableLabel], edited: Sequence[TableLabel], folder: Path
) -> None:
    progress = current_progress()
    if moved:
        progress.message(f"{_labels_text(len(moved))} carried over for moved or renamed photos")
    if missing:
        progress.warning(
            f"{_labels_text(len(missing))} for missing photos ({_names(missing)}): kept in {folder / AWAY_CSV} until "
            "the photos return"
        )
    if edited:
        progress.warning(
            f"{_labels_text(len(edited))} for photos whose files have changed ({_names(edited)}) kept, as for edited "
            f"versions; if these are different photos, delete their lines in {folder / GIVEN_CSV} and run the command "
            "again"
        )


def _drop_superseded(
    table: Path, fresh: dict[int, str], superseded: Mapping[int, Set[str]], known: Mapping[int, str], folder: Path
) -> dict[int, str]:
    """Drop labels of a user's table that belong to an earlier photo at the same path, or that were corrected since."""
    stale = {at for at, text in fresh.items() if text in superseded.get(at, ()) and text != known.get(at)}
    if stale:
        current_progress().warning(
            f"{table}: {_labels_text(len(stale))} ignored, because the photos or labels have been corrected, deleted "
            "or renamed since. Earlier labels are already recorded, so you can omit --labels. If the ignored labels "
            f"are right for the photos that now have these names, add them to {folder / GIVEN_CSV}"
        )
    return {at: text for at, text in fresh.items() if at not in stale}


def _show_changes(table: Path, fresh: Mapping[int, str], known: Mapping[int, str], names: Sequence[str]) -> int:
    """Show which labels a user's table changes; return their number."""
    others = [(names[at], known[at], text) for at, text in fresh.items() if known.get(at, text) != text]
    if others:
        shown = join_first_few(f"{escape_path(name)}: {old!r} to {text!r}" for name, old, text in others)
        current_progress().message(f"{table}: labels changed: {shown}")
    return len(others)


def _warn_of_misspelled_classes(
    counts: Mapping[str, int],
    class_table: Mapping[str, Path],
    given: Path,
    last: Sequence[TableLabel],
) -> None:
    """Warn about classes of a few labels whose name resembles that of a more frequent class."""
    last_names = {label.text for label in last}
    for name, count in counts.items():
        commoner = [other for other, more in counts.items() if (more, other) > (count, name)]
        near = next((other for other in commoner if other.casefold() == name.casefold()), None)
        if near is None and count <= _FEW:
            near = find_misspelled_class(name, (other for other in commoner if counts[other] > count))
            if {name, near} <= last_names:
                near = None  # the last run showed the warning, and the user kept both
        if near is not None:
            current_progress().warning(
                f"the class {name!r} ({_labels_text(count)}) resembles {near!r}: if both are the same class, replace "
                f"{name!r} in {class_table.get(name, given)} and run the command again"
            )


def _labels_text(count: int) -> str:
    return "1 label" if count == 1 else f"{count} labels"


def _names(labels: Sequence[TableLabel]) -> str:
    more = ", ..." if len(labels) > _SHOWN else ""
    return ", ".join(label.path for label in labels[:_SHOWN]) + more


def _read_user_table(
    labels: Path,
    label_column: str | None,
    dataset: ImageDataset,
    stores: Sequence[EmbeddingStore],
    superseded: Mapping[str, Set[str]],
    *,
    is_own: bool,
) -> tuple[dict[int, str], list[TableLabel]]:
    """Read a table passed by ``--labels``: labels by position, and labels of files that earlier runs found at a path.

    Tables written by ``start``, or with file digests, refer to the photos at the time of writing. In other tables, a
    path refers to the photo there now or, if the path no longer exists, to the last photo there, unless its label has
    already moved with it.
    """
    read_label_csv(labels, label_column)
    written = [TableLabel(*row) for row in read_labeled_rows(labels, label_column)]
    if is_own:
        written = _with_files(written, stores)
    with_digest = [label for label in written if label.sha256]
    texts = {label.path: label.text for label in written if not label.sha256}
    images = LabelFileImages(f"the folder {dataset.root}", dataset.sample_ids, dataset.root)
    _, unknown = find_images_by_path(labels, texts, images)
    if unknown:
        former = sorted({name for store in stores for name in store.sample_ids} - set(dataset.sample_ids))
        were, _ = match_paths(unknown, former, table=labels, root=dataset.root, complete=False)
        gone = [TableLabel(escape_path(former[position]), texts.pop(name), "") for name, position in were.items()]
        with_digest += _with_files([one for one in gone if one.text not in superseded.get(one.path, ())], stores)
    return match_label_paths(labels, texts, images) if texts else {}, with_digest


def _locate_photos(
    labels: Iterable[TableLabel],
    not_sought: Set[TableLabel],
    newest: Set[TableLabel],
    position_of: Mapping[str, int],
    files: _PhotoDigests,
    stores: Sequence[EmbeddingStore],
) -> tuple[dict[int, str], list[TableLabel], list[TableLabel], list[TableLabel]]:
    """Find the photos of labels; if the path is gone or now belongs to another file, unless the file's labels differ.

    Returns labels by position, and the labels of moved photos, of missing photos, and of edited photos (another file at
    the same path).
    """
    known: dict[int, str] = {}
    strays: list[TableLabel] = []
    texts = defaultdict(set)
    for label in labels:
        position = position_of.get(label.path)
        if position is None or (label.sha256 and files.digest(position) not in (label.sha256, "")):
            strays.append(label)
            texts[label.sha256].add(label.text)
        else:
            known[position] = label.text
    sought = {label.sha256 for label in strays if label not in not_sought and len(texts[label.sha256]) == 1} - {""}
    found = _find_moved_files(sought, files, stores)
    # photos of any earlier run, which may have returned or been renamed
    described = {digest.tobytes().hex() for store in stores if strays for digest in store.sha256}
    moved: list[TableLabel] = []
    away: list[TableLabel] = []
    edited: list[TableLabel] = []
    for label in strays:
        position = position_of.get(label.path)
        if label.sha256 in found:
            moved.append(label)
            for other in found[label.sha256]:
                if label in newest:
                    known[other] = label.text
                known.setdefault(other, label.text)
        elif position is None or files.digest(position) in described:
            away.append(label)
        else:
            edited.append(label)
            known.setdefault(position, label.text)
    return known, moved, away, edited


def find_skipped_photos(tables: GeneratedTables, name: str, earlier: str, labels: Mapping[str, str]) -> list[str]:
    """Find the photos that the user left empty in a table while filling in others, now or earlier (``earlier``).

    Photos that have since been labeled are no longer skipped.
    """
    following, before = (tables.read_with_empty(tables.folder / table) for table in (name, earlier))
    left = [path for path, text in following.items() if not text] if any(following.values()) else []
    return sorted({*before, *left} - labels.keys())


class GeneratedTables:
    """Tables written by ``start``, which are not overwritten if the user has edited them.

    Args:
        folder: output folder of ``start``.
        written: SHA-256 of each table as it was written, by name; kept up to date.
        save: function that saves ``written``; called after each table is written.
        sample_ids: ids of the photos, now and in earlier runs, that paths in the tables refer to.
    """

    def __init__(
        self, folder: Path, written: dict[str, str], save: Callable[[], None], sample_ids: Iterable[str] = ()
    ) -> None:
        self.folder, self._written, self._save = folder, written, save
        self._read: dict[Path, str] = {}
        self._paths = {escape_path(name) for name in sample_ids}
        self._usual: dict[str, str] = {}

    def read(self, path: Path) -> list[TableLabel]:
        """Read the labels in a table written by ``start``; return an empty list if it is missing or has no rows."""
        if not path.is_file():
            return []
        self._read[path] = sha256_file(path)  # before reading, so that a version saved in the meantime is noticed
        # in away.csv, two successive photos may have the same path; labels.csv contains guesses
        try:
            if path.name not in (AWAY_CSV, LABELS):
                read_label_csv(path, empty_ok=True)
            return [TableLabel(self._respell(name), text, file) for name, text, file in read_labeled_rows(path)]
        except DatasetError as error:
            if "--label-column" in error.remedy:  # which is for tables of the user
                error.remedy = "Rename the column of labels to `label`."
            raise

    def read_with_empty(self, path: Path) -> dict[str, str]:
        """Read the labels by path, including empty ones; return an empty dictionary if the table is missing."""
        cells = read_paths_and_labels(path) if path.is_file() else {}
        return {self._respell(name): text for name, text in cells.items()}

    def _respell(self, path: str) -> str:
        """Return the path as ``start`` wrote it, if another program has changed its spaces or slashes."""
        if path not in self._paths and not self._usual:
            self._usual = {normalize_path(name): name for name in self._paths}
        return path if path in self._paths else self._usual.get(normalize_path(path), path)

    def is_missing(self, name: str) -> bool:
        """Return whether a table is missing or has no content, not even column names."""
        path = self.folder / name
        return not path.is_file() or not path.read_bytes().removeprefix(codecs.BOM_UTF8).strip()

    def was_written(self, name: str) -> bool:
        """Return whether an earlier run wrote a table."""
        return name in self._written

    def is_edited_by_user(self, name: str) -> bool:
        """Return whether the user has edited a table, i.e. whether the content read differs from that written."""
        read = self._read.get(self.folder / name)
        return read is not None and read != self._written.get(name)

    def prepare_to_replace(self, path: Path) -> bool:
        """Return whether a table may be replaced, after renaming it if it was edited but is not read by ``start``."""
        now = sha256_file(path) if path.is_file() else None
        if now in (None, self._read.get(path)):
            return True
        if path.name in (AWAY_CSV, GIVEN_CSV, *FILLED):
            current_progress().warning(
                f"{path} was changed during this run, so it is left unchanged; the next run will read it"
            )
            return False
        if now != self._written.get(path.name):
            other = path.rename(path.with_stem(f"{path.stem}-edited-{now[:8]}"))
            text = f"{path} was edited and has been renamed to {other}; to use corrected lines, pass them by --labels"
            current_progress().warning(text)
        return True

    def replace(self, path: Path, new_file: Path) -> bool:
        """Replace a table with ``new_file`` unless it has changed since it was read; return whether it was replaced."""
        if not self.prepare_to_replace(path):
            new_file.unlink()
            return False
        move_into_place(new_file, path, replace=True)
        self._written[path.name] = sha256_file(path)
        self._save()
        return True

    def write(self, name: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Write a table, replacing the one previously written by ``start``.

        Raises:
            DatasetError: the table has changed since it was read.
        """
        path = self.folder / name
        if not self.prepare_to_replace(path):
            problem = "was changed during this run"
            raise DatasetError(str(path), problem, "Run the command again to read the new version.")
        self._read[path] = self._written[name] = commit_bytes(path, csv_bytes(columns, rows))
        self._save()

    def remove(self, *names: str) -> None:
        """Remove tables written by ``start``, except those that have changed since they were read."""
        for name in names:
            if not name.endswith(".csv") or self.prepare_to_replace(self.folder / name):
                (self.folder / name).unlink(missing_ok=True)


def _with_files(labels: Sequence[TableLabel], stores: Sequence[EmbeddingStore]) -> list[TableLabel]:
    """Add unknown file digests, taken from the newest store that contains the path."""
    missing = {label.path for label in labels if not label.sha256}
    found: dict[str, str] = {}
    for store in stores if missing else ():
        for row, name in enumerate(store.sample_ids):
            path = escape_path(name)
            if path in missing and path not in found:
                found[path] = store.sha256[row].tobytes().hex()
    return [label if label.sha256 else replace(label, sha256=found.get(label.path, "")) for label in labels]


class _PhotoDigests:
    """Files of a listing, each of which is read at most once."""

    def __init__(self, dataset: ImageDataset, known: Mapping[int, str]) -> None:
        assert dataset.root is not None
        self.paths = [dataset.root / name for name in dataset.sample_ids]
        self._digests = dict(known)

    def digest(self, position: int) -> str:
        """Return a file's SHA-256 digest in hex, or "" if it cannot be read, which ``embed`` will report."""
        if position not in self._digests:
            try:
                self._digests[position] = sha256_file(self.paths[position])
            except OSError:
                self._digests[position] = ""
        return self._digests[position]


def _find_moved_files(wanted: Set[str], files: _PhotoDigests, stores: Sequence[EmbeddingStore]) -> dict[str, list[int]]:
    """Return the current positions in the listing of files with the wanted digests, by digest."""
    sizes: set[int] = set()
    for store in stores if wanted else ():
        rows = [row for row, digest in enumerate(store.sha256) if digest.tobytes().hex() in wanted]
        sizes |= set(store.file_sizes[rows].tolist())
    found: dict[str, list[int]] = {}
    for position, path in enumerate(files.paths if sizes else ()):
        with contextlib.suppress(OSError):
            if path.stat().st_size in sizes and files.digest(position) in wanted:
                found.setdefault(files.digest(position), []).append(position)
    return found


def count_moved_images(dataset: ImageDataset, store: EmbeddingStore, rows: Sequence[int]) -> int:
    """Count the rows of a store whose image files are now at a path that the store does not list."""
    wanted, old = {store.sha256[row].tobytes().hex() for row in rows}, set(store.sample_ids)
    found = _find_moved_files(wanted, _PhotoDigests(dataset, {}), [store])
    return sum(any(dataset.sample_ids[position] not in old for position in positions) for positions in found.values())


def write_labels(
    tables: GeneratedTables, dataset: ImageDataset, known: CollectedLabels, unreadable: Set[str] = frozenset()
) -> None:
    """Write the known labels with the SHA-256 of each photo, starting with those of missing or unreadable photos.

    No label is lost if this is interrupted.
    """
    names, columns = dataset.sample_ids, ("path", "label", FILE_COLUMN)
    given = [(names[i], known.by_position[i], known.files[i]) for i in sorted(known.by_position)]
    # without a digest, since the file may be restored or replaced by another one
    aside = [(escape_path(name), text, "") for name, text, _ in given if name in unreadable]
    if aside:
        current_progress().warning(
            f"{_labels_text(len(aside))} for unreadable photos: kept in {tables.folder / AWAY_CSV} until the photos "
            "can be read"
        )
    away = [*((label.path, label.text, label.sha256) for label in known.missing), *aside]
    if away:
        tables.write(AWAY_CSV, columns, sorted(away, key=lambda row: (row[0], row[2])))
    if given or (tables.folder / GIVEN_CSV).is_file():
        readable = [row for row in given if row[0] not in unreadable]
        for name in (GIVEN_CSV, GIVEN_COPY):
            tables.write(name, columns, readable)
    if not away:
        tables.remove(AWAY_CSV)

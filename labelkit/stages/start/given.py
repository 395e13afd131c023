"""Labels that ``start`` knows: those of earlier calls, those filled in in its own suggestions, and those of a file.

A label is of a photo, not of a path: it follows a photo that was moved or renamed, by the bytes of the file, also where
its path is that of another photo now. A photo that is not there any more while another file has its path was edited:
its label stays. Labels of photos that are not there are kept in a file of their own until the photos are back.
"""

from __future__ import annotations

import contextlib
import csv
import io
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from labelkit.data.datasets import ImageDataset
from labelkit.data.path_rule import written_name
from labelkit.data.tables import read_label_csv
from labelkit.reading import read_bytes, sha256_file
from labelkit.stages.progress import current_progress
from labelkit.stages.read.given_labels import similar_names
from labelkit.stages.read.label_files import LabeledImages, placed_csv
from labelkit.store.embeddings import EmbeddingStore

GIVEN, NEXT, AWAY = "given.csv", "next.csv", "away.csv"
# labels of a class up to which its name may be a slip
_FEW = 2


@dataclass(frozen=True)
class WrittenLabel:
    """A label as it is written down: of a path, and of the file that was there then.

    Attributes:
        path: below the folder of the photos.
        text: the label.
        file: SHA-256 in hex; empty if it is not known.
    """

    path: str
    text: str
    file: str


@dataclass(frozen=True)
class KnownLabels:
    """All labels that were ever given.

    Attributes:
        placed: by place of the photo in the listing.
        files: SHA-256 of the photo at each of these places, in hex; empty if it cannot be read.
        away: by path, of photos that are not there.
        followed: labels that are at another path than they were written for.
        left: by path, labels that a photo took along from there, in this call or earlier; a table of the user may still
            have them.
    """

    placed: dict[int, str]
    files: dict[int, str]
    away: dict[str, WrittenLabel]
    followed: int
    left: dict[str, list[str]]


def collect_labels(
    folder: Path,
    labels: Path | None,
    dataset: ImageDataset,
    label_column: str | None = None,
    stores: Sequence[EmbeddingStore] = (),
    *,
    left: Mapping[str, Sequence[str]] | None = None,
    is_same: bool = False,
) -> KnownLabels:
    """Return the label of each photo that has one; later sources win.

    Args:
        folder: of ``start``; may not exist.
        labels: a CSV of the user; ``None`` for none.
        dataset: the photos.
        label_column: header of the column of labels in the CSV of the user; ``None`` for the usual one.
        stores: of earlier calls, the newest first, which know what file was at a path.
        left: of the last call; see :class:`KnownLabels`.
        is_same: the photos are those of the newest store, so that no label has to look for its own.

    Raises:
        DatasetError: a file cannot be used, or names photos that are not there.
    """
    images = LabeledImages(f"the folder {dataset.root}", dataset.sample_ids, None, dataset.root)
    place_of = {written_name(name): place for place, name in enumerate(dataset.sample_ids)}
    kept, given, filled = (_read_written(folder / name) for name in (AWAY, GIVEN, NEXT))
    earlier = _with_files({**kept, **given, **filled}, stores)
    noted = {place_of[path]: earlier[path].file for path in given.keys() - filled.keys() if path in place_of}
    files = _Files(dataset, {place: file for place, file in noted.items() if file and is_same})
    known: dict[int, str] = {}
    strays: list[WrittenLabel] = []
    for label in earlier.values():
        place = place_of.get(label.path)
        if place is None or (label.file and files.digest(place) not in (label.file, "")):
            strays.append(label)
        else:
            known[place] = label.text
    progress = current_progress()
    away, moved = _follow(strays, place_of, files, stores, known, is_same=is_same)
    if moved:
        progress.message(f"{len(moved)} labels follow their photos, which were moved or renamed")
    if gone := len(away.keys() - kept.keys()):
        progress.warning(f"{gone} labels are of photos that are not there: {folder / AWAY} keeps them until they are")
    if edited := len(strays) - len(away) - len(moved):
        progress.warning(
            f"{edited} labeled photos are other files than they were: taken for edited ones, which keep their labels; "
            f"if they are other photos, delete their lines in {folder / GIVEN} and call again"
        )
    gone_from = {path: set(texts) for path, texts in (left or {}).items()}
    for path in (*moved, *away):
        gone_from.setdefault(path, set()).add(earlier[path].text)
    fresh: dict[int, str] = {}
    if labels is not None:
        fresh = placed_csv(labels, images, label_column)
        old = {place_of[path]: texts for path, texts in gone_from.items() if path in place_of}
        stale = {place for place, text in fresh.items() if text in old.get(place, ()) and text != known.get(place)}
        if stale:
            progress.warning(
                f"{labels}: {len(stale)} labels are of photos that have other names by now, and are left out; where "
                f"they are right for the photos that have the names now, add them to {folder / GIVEN}"
            )
        fresh = {place: text for place, text in fresh.items() if place not in stale}
        changed = sum(known.get(place, text) != text for place, text in fresh.items())
        if changed:
            progress.warning(f"{labels}: {changed} photos had another label before; the new one is taken")
        known |= fresh
    for name, count, near in _slips(known):
        progress.warning(
            f"the class {name!r} ({count} {'label' if count == 1 else 'labels'}) looks like {near!r}: if they are the "
            f"same, replace it in {labels if name in fresh.values() else folder / GIVEN} and call again"
        )
    return KnownLabels(
        known,
        {place: files.digest(place) for place in known},
        away,
        len(moved),
        {path: sorted(texts) for path, texts in sorted(gone_from.items())},
    )


def _follow(
    strays: Sequence[WrittenLabel],
    place_of: Mapping[str, int],
    files: _Files,
    stores: Sequence[EmbeddingStore],
    known: dict[int, str],
    *,
    is_same: bool,
) -> tuple[dict[str, WrittenLabel], list[str]]:
    """Place labels whose path is not there, or is that of another file now; two labels of the same bytes are left.

    Returns:
        the labels of photos that are not there, by path, and the paths that photos with labels had before. Other
        labels are of photos that were edited.
    """
    texts = defaultdict(set)
    for label in strays:
        texts[label.file].add(label.text)
    wanted = {label.file for label in strays if label.file and len(texts[label.file]) == 1}
    found = {} if is_same else _places_of(wanted, files, stores)
    described = {digest.tobytes().hex() for digest in stores[0].sha256} if strays and stores else set()
    away: dict[str, WrittenLabel] = {}
    moved: list[str] = []
    for label in strays:
        place = place_of.get(label.path)
        if label.file in found:
            moved.append(label.path)
            for other in found[label.file]:
                known.setdefault(other, label.text)
        elif place is None or files.digest(place) in described:
            away[label.path] = label
        else:
            known.setdefault(place, label.text)
    return away, moved


def _read_written(path: Path) -> dict[str, WrittenLabel]:
    """Read labels by path; without their files where an earlier version, or a person, wrote the table."""
    if not path.is_file():
        return {}
    texts = read_label_csv(path, empty_ok=True)
    rows = csv.DictReader(io.StringIO(read_bytes(path).decode("utf-8-sig", "replace"), newline=""))
    files = {row.get("path") or "": row.get("sha256") or "" for row in rows}
    return {name: WrittenLabel(name, text, files.get(name, "")) for name, text in texts.items()}


def _with_files(labels: Mapping[str, WrittenLabel], stores: Sequence[EmbeddingStore]) -> dict[str, WrittenLabel]:
    """Add the files that are not known: those that the newest store with the path had there."""
    found = dict(labels)
    missing = {path for path, label in labels.items() if not label.file}
    for store in stores if missing else ():
        for row, name in enumerate(store.sample_ids):
            path = written_name(name)
            if path in missing:
                found[path] = replace(labels[path], file=store.sha256[row].tobytes().hex())
                missing.remove(path)
    return found


class _Files:
    """The files of a listing, each read at most once."""

    def __init__(self, dataset: ImageDataset, known: Mapping[int, str]) -> None:
        assert dataset.root is not None
        self._paths = [dataset.root / name for name in dataset.sample_ids]
        self._digests = dict(known)

    def digest(self, place: int) -> str:
        """SHA-256 in hex, or nothing if it cannot be read; embed will say why."""
        if place not in self._digests:
            try:
                self._digests[place] = sha256_file(self._paths[place])
            except OSError:
                self._digests[place] = ""
        return self._digests[place]

    def of_sizes(self, sizes: Set[int]) -> Iterator[int]:
        """Places of the files with so many bytes."""
        for place, path in enumerate(self._paths):
            with contextlib.suppress(OSError):
                if path.stat().st_size in sizes:
                    yield place


def _places_of(wanted: Set[str], files: _Files, stores: Sequence[EmbeddingStore]) -> dict[str, list[int]]:
    """Where files that earlier stores had are now."""
    sizes: set[int] = set()
    for store in stores if wanted else ():
        rows = [row for row, digest in enumerate(store.sha256) if digest.tobytes().hex() in wanted]
        sizes |= set(store.file_sizes[rows].tolist())
    found: dict[str, list[int]] = {}
    for place in files.of_sizes(sizes) if sizes else ():
        if files.digest(place) in wanted:
            found.setdefault(files.digest(place), []).append(place)
    return found


def _slips(known: Mapping[int, str]) -> Iterator[tuple[str, int, str]]:
    """Name classes of one or two labels that look like a slip of one with more."""
    counts = Counter(known.values())
    for name, count in counts.items():
        near = similar_names(name, (other for other, more in counts.items() if more > max(_FEW, count)))
        if count <= _FEW and near is not None:
            yield name, count, near


def count_moved(dataset: ImageDataset, store: EmbeddingStore, rows: Sequence[int]) -> int:
    """Count the rows of a store whose files have a path that the store does not have."""
    old = set(store.sample_ids)
    files = _Files(dataset, {})
    sizes = set(store.file_sizes[rows].tolist())
    places = [place for place in files.of_sizes(sizes) if dataset.sample_ids[place] not in old]
    there = {files.digest(place) for place in places}
    return len({store.sha256[row].tobytes().hex() for row in rows} & there)


def away_csv(away: Mapping[str, WrittenLabel]) -> bytes:
    """Return the labels of photos that are not there as CSV, by path."""
    return _csv(away[path] for path in sorted(away))


def given_csv(dataset: ImageDataset, known: KnownLabels) -> bytes:
    """Return the labels as CSV: path, label, and the SHA-256 of the photo, by which the label finds it again."""
    places = sorted(known.placed)
    return _csv(WrittenLabel(dataset.sample_ids[i], known.placed[i], known.files[i]) for i in places)


def _csv(labels: Iterable[WrittenLabel]) -> bytes:
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["path", "label", "sha256"])
    writer.writerows((label.path, label.text, label.file) for label in labels)
    # bytes of a file name that are no text become backslash escapes
    return buffer.getvalue().encode("utf-8", "backslashreplace")

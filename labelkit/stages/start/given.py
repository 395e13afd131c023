"""Labels that ``start`` knows: those of earlier calls, those filled in in its own suggestions, and those of a file.

A label is of a photo, not of a path: it follows a photo that was moved or renamed, by the bytes of the file. Labels of
photos that are not there are kept in a file of their own until the photos are back.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labelkit.data.datasets import ImageDataset
from labelkit.data.path_rule import written_name
from labelkit.data.tables import read_label_csv
from labelkit.reading import sha256_file
from labelkit.stages.progress import current_progress
from labelkit.stages.read.given_labels import similar_names
from labelkit.stages.read.label_files import LabeledImages, placed_csv
from labelkit.store.embeddings import EmbeddingStore

GIVEN, NEXT, AWAY = "given.csv", "next.csv", "away.csv"
# labels of a class up to which its name may be a slip
_FEW = 2


@dataclass(frozen=True)
class KnownLabels:
    """All labels that were ever given.

    Attributes:
        placed: by place of the photo in the listing.
        away: by path, of photos that are not there.
    """

    placed: dict[int, str]
    away: dict[str, str]


def collect_labels(
    folder: Path,
    labels: Path | None,
    dataset: ImageDataset,
    label_column: str | None = None,
    stores: Sequence[EmbeddingStore] = (),
) -> KnownLabels:
    """Return the label of each photo that has one; later sources win.

    Args:
        folder: of ``start``; may not exist.
        labels: a CSV of the user; ``None`` for none.
        dataset: the photos.
        label_column: header of the column of labels in the CSV of the user; ``None`` for the usual one.
        stores: of earlier calls, the newest first, which know the bytes of photos that are elsewhere now.

    Raises:
        DatasetError: a file cannot be used, or names photos that are not there.
    """
    images = LabeledImages(f"the folder {dataset.root}", dataset.sample_ids, None, dataset.root)
    place_of = {written_name(name): place for place, name in enumerate(dataset.sample_ids)}
    known: dict[int, str] = {}
    away: dict[str, str] = {}
    kept, *others = (
        read_label_csv(file, empty_ok=True) if file.is_file() else {}
        for file in (folder / AWAY, folder / GIVEN, folder / NEXT)
    )
    for path, text in itertools.chain(kept.items(), *(other.items() for other in others)):
        if path in place_of:
            known[place_of[path]] = text
        else:
            away[path] = text
    progress = current_progress()
    followed = _followed(away, dataset, stores) if away else {}
    for path, places in followed.items():
        text = away.pop(path)
        for place in places:
            known.setdefault(place, text)
    if followed:
        progress.message(f"{len(followed)} labels follow their photos, which were moved or renamed")
    if gone := len(away.keys() - kept.keys()):
        progress.warning(f"{gone} labels are of photos that are not there: {folder / AWAY} keeps them until they are")
    fresh: dict[int, str] = {}
    if labels is not None:
        fresh = placed_csv(labels, images, label_column)
        changed = sum(known.get(place, text) != text for place, text in fresh.items())
        if changed:
            progress.warning(f"{labels}: {changed} photos had another label before; the new one is taken")
        known |= fresh
    for name, count, near in _slips(known):
        progress.warning(
            f"the class {name!r} ({count} {'label' if count == 1 else 'labels'}) looks like {near!r}: if they are the "
            f"same, replace it in {labels if name in fresh.values() else folder / GIVEN} and call again"
        )
    return KnownLabels(known, away)


def _slips(known: Mapping[int, str]) -> Iterator[tuple[str, int, str]]:
    """Name classes of one or two labels that look like a slip of one with more."""
    counts = Counter(known.values())
    for name, count in counts.items():
        near = similar_names(name, (other for other, more in counts.items() if more > max(_FEW, count)))
        if count <= _FEW and near is not None:
            yield name, count, near


def moved_files(dataset: ImageDataset, store: EmbeddingStore, rows: Sequence[int]) -> dict[bytes, list[int]]:
    """Return which files with paths that the store does not have are the same as the files of some of its rows.

    Only files of the same size are read.

    Returns:
        places in the listing by digest.
    """
    return _places_of(dict(zip(_digests(store, rows), store.file_sizes[rows].tolist(), strict=True)), dataset, store)


def _digests(store: EmbeddingStore, rows: Sequence[int]) -> list[bytes]:
    return [digest.tobytes() for digest in store.sha256[rows]]


def _places_of(sizes: Mapping[bytes, int], dataset: ImageDataset, store: EmbeddingStore) -> dict[bytes, list[int]]:
    """Where the files of these digests and bytes are, among those whose paths the store does not have."""
    assert dataset.root is not None
    found: dict[bytes, list[int]] = {}
    old, wanted = set(store.sample_ids), set(sizes.values())
    for place, name in enumerate(dataset.sample_ids):
        if name in old:
            continue
        try:
            if (dataset.root / name).stat().st_size in wanted:
                found.setdefault(bytes.fromhex(sha256_file(dataset.root / name)), []).append(place)
        except OSError:  # embed will say why it cannot be read
            continue
    return {digest: places for digest, places in found.items() if digest in sizes}


def _followed(away: Mapping[str, str], dataset: ImageDataset, stores: Sequence[EmbeddingStore]) -> dict[str, list[int]]:
    """Return where the photos of labels are now, by their old path; two labels of the same bytes are not followed."""
    if not stores:
        return {}
    digest_of: dict[str, bytes] = {}
    sizes: dict[bytes, int] = {}
    texts: dict[bytes, set[str]] = {}
    for store in stores:
        row_of = {written_name(name): row for row, name in enumerate(store.sample_ids)}
        paths = sorted((away.keys() - digest_of.keys()) & row_of.keys())
        rows = [row_of[path] for path in paths]
        for path, digest, size in zip(paths, _digests(store, rows), store.file_sizes[rows].tolist(), strict=True):
            digest_of[path], sizes[digest] = digest, size
            texts.setdefault(digest, set()).add(away[path])
    places = _places_of(sizes, dataset, stores[0])
    return {path: places[digest] for path, digest in digest_of.items() if digest in places and len(texts[digest]) == 1}


def away_csv(away: Mapping[str, str]) -> bytes:
    """Return the labels of photos that are not there as CSV, by path."""
    return _csv(sorted(away.items()))


def given_csv(dataset: ImageDataset, labels: dict[int, str]) -> bytes:
    """Return the labels as CSV, by path."""
    return _csv((dataset.sample_ids[place], labels[place]) for place in sorted(labels))


def _csv(rows: Iterable[tuple[str, str]]) -> bytes:
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["path", "label"])
    writer.writerows(rows)
    # bytes of a file name that are no text become backslash escapes
    return buffer.getvalue().encode("utf-8", "backslashreplace")

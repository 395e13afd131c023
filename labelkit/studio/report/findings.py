"""Read tables of `labelkit find` and `labelkit suggest` as cards for the report page, and find nearest neighbors."""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.neighbors import Metric, knn
from labelkit.cache import call_cached
from labelkit.data.path_rule import escape_path
from labelkit.data.tables import read_table_bytes
from labelkit.errors import DatasetError
from labelkit.files import decode_table, open_csv_reader
from labelkit.store.embeddings import EmbeddingStore
from labelkit.studio.report.images import ShownImages, escape_for_page

_MAX_CARDS = 60

Line = Mapping[str, str]


@dataclass(frozen=True)
class FindingsSection:
    """Findings of one ``labelkit find`` command, shown as a section of the page.

    Attributes:
        name: name of the section, for links.
        title: title of the section.
        unit: what is counted, for the overview; empty if the user chose the number of lines in the table.
        table: file name of the table.
        command: command that writes the table.
        words: description of the section.
        count: number of findings; ``None`` without a table.
        total: total number of cards.
        cards: the first cards, each with ``images`` of the page (-1: not on the page), their displayed paths ``names``,
            and the lines of text ``texts``.
    """

    name: str
    title: str
    unit: str
    table: str
    command: str
    words: str
    count: int | None = None
    total: int = 0
    cards: tuple[Mapping[str, Any], ...] = ()


_FINDINGS = (
    FindingsSection(
        "labels",
        "Labels to check",
        "",
        "check.csv",
        "labelkit find mislabeled",
        "The nearest labeled image, the nearest class mean and a classifier all prefer another class. With few labels "
        "per class, most of these labels are still correct. The most doubtful labels come first, each with the nearest "
        "image of its own class and of the other class.",
    ),
    FindingsSection(
        "novel",
        "Least like the labeled images",
        "",
        "novel.csv",
        "labelkit find novel",
        "Each is shown next to its nearest labeled image. If there are unlabeled classes, most of their images are "
        "among these.",
    ),
    FindingsSection(
        "outliers",
        "Outliers",
        "outliers",
        "odd.csv",
        "labelkit find odd",
        "Blank, dark, bright, blurred, tiny, of an unusual shape, or unlike all others.",
    ),
    FindingsSection(
        "copies",
        "Near-duplicates",
        "redundant copies",
        "duplicates.csv",
        "labelkit find duplicates",
        "The image to keep comes first: it has the most pixels, or the largest file.",
    ),
)
_COLUMNS = {
    "check.csv": ("path", "label", "suggested", "nearest_of_label", "nearest_of_suggested"),
    "novel.csv": ("path", "nearest", "nearest_label"),
    "odd.csv": ("path", "reasons"),
    "duplicates.csv": ("image_a", "image_b", "kind", "cluster"),
    "next.csv": ("path", "reason"),
}


def _card(table: str, line: Line) -> tuple[list[str], list[str]]:
    if table == "check.csv":
        paths = [line[column] for column in ("path", "nearest_of_label", "nearest_of_suggested")]
        return paths, [f"labeled {line['label']}", f"or {line['suggested']}?"]
    if table == "novel.csv":
        return [line["path"], line["nearest"]], [f"nearest: {line['nearest_label']}"]
    return [line["path"]], [line["reasons"]]


def _copies(lines: list[Line]) -> tuple[list[tuple[list[str], list[str]]], int]:
    """Return the paths and texts of a card for each cluster, and the number of redundant copies."""
    clusters: dict[str, list[Line]] = {}
    for line in lines:
        clusters.setdefault(line["cluster"], []).append(line)
    cards, spare = [], 0
    for pairs in clusters.values():
        paths = list(dict.fromkeys(pair[side] for side in ("image_a", "image_b") for pair in pairs))
        kinds = {pair["kind"] for pair in pairs}
        is_scene = kinds == {"same scene"}
        spare += 0 if is_scene else len(paths) - 1
        cards.append((paths, ["different photos of the same scene" if is_scene else ", ".join(sorted(kinds))]))
    return cards, spare


def read_findings(folder: Path | None, store: EmbeddingStore, images: ShownImages) -> tuple[FindingsSection, ...]:
    """Read the tables of ``labelkit find`` in a folder; a missing table results in a section without a count.

    Raises:
        DatasetError: the folder does not exist, or a table cannot be read or lacks a column.
    """
    if folder is not None and not folder.is_dir():
        raise DatasetError(str(folder), "is not a folder", "Pass the folder with the tables of `labelkit find`.")
    places = _places(store, images)
    return tuple(_read(folder, found, places) for found in _FINDINGS)


def read_suggested(folder: Path, store: EmbeddingStore, images: ShownImages) -> tuple[tuple[int, str], ...] | None:
    """Read the images to label next, with reasons, from ``next.csv`` in a folder; ``None`` if the file does not exist.

    Raises:
        DatasetError: the file cannot be read or lacks a column.
    """
    table = folder / "next.csv"
    if not table.is_file():
        return None
    places = _places(store, images)
    lines = _lines(table, "labelkit suggest")
    return tuple((places[line["path"]], escape_for_page(line["reason"])) for line in lines if line["path"] in places)


def _places(store: EmbeddingStore, images: ShownImages) -> dict[str, int]:
    """Return the index on the page of each image, by its path as written in tables."""
    return {escape_path(store.sample_ids[int(row)]): place for place, row in enumerate(images.rows)}


def _read(folder: Path | None, found: FindingsSection, places: Mapping[str, int]) -> FindingsSection:
    if folder is None or not (folder / found.table).is_file():
        return found
    lines = _lines(folder / found.table, found.command)
    copies = found.table == "duplicates.csv"
    cards, count = _copies(lines) if copies else ([_card(found.table, line) for line in lines], len(lines))
    shown: tuple[Mapping[str, Any], ...] = tuple(
        {
            "images": [places.get(path, -1) for path in paths],
            "names": [escape_for_page(path) for path in paths],
            "texts": [escape_for_page(text) for text in texts],
        }
        for paths, texts in cards[:_MAX_CARDS]
    )
    return replace(found, count=count, total=len(cards), cards=shown)


def _lines(path: Path, command: str) -> list[Line]:
    remedy = f"Run `{command} --out {path} --overwrite` again."
    try:
        text = decode_table(read_table_bytes(path))
        reader, header = open_csv_reader(io.StringIO(text, newline=""), _COLUMNS[path.name])
        if missing := [column for column in _COLUMNS[path.name] if column not in header]:
            raise DatasetError(str(path), f"line 1 has no column {missing[0]!r}", remedy)
        return [dict(zip_longest(header, fields, fillvalue="")) for fields in reader if fields]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DatasetError(str(path), f"cannot be read: {error}", remedy) from error


def _search(rows: NDArray[np.float32], k: int, metric: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    return knn(rows, rows, k, metric=cast(Metric, metric), exclude_self=True)


def find_neighbors(images: ShownImages, count: int, metric: str) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Find the nearest neighbors of each image among the other images on a page.

    With the cosine metric, images with an all-zero embedding have no neighbors and are not neighbors of others.

    Args:
        images: the images of the page.
        count: number of neighbors; missing ones are -1 if there are fewer images.
        metric: ``cosine``, ``l2`` or ``dot``.

    Returns:
        Images (m, count), nearest first, -1 = none; scores (m, count), cosine or inner product (larger is nearer) or
        distance (smaller is nearer), NaN = none.
    """
    found = np.full((len(images), count), -1, dtype=np.int64)
    scores = np.full((len(images), count), np.nan, dtype=np.float32)
    usable = np.flatnonzero(images.directed)
    number = min(count, len(usable) - 1)
    if number >= 1:
        rows = images.features[usable]
        near_scores, near = call_cached(_search, rows, number, metric)
        found[usable[:, None], np.arange(number)] = usable[near]
        scores[usable[:, None], np.arange(number)] = near_scores
    return found, scores

"""Which rows of a store have a label that may be used: the store's own, those of a result or a file, or a draw of them.

The one place that answers this for ``cluster``, ``discover``, ``evaluate``, ``suggest`` and ``label``.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelkit.config.discover_few import DiscoverFewConfig
from labelkit.data.splits import few_labels_split
from labelkit.data.tables import natural_key, read_label_csv
from labelkit.errors import ConfigError, DatasetError, StoreError
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.results import Result, list_results, read_result
from labelkit.store.schema import RESULT_NAME

LABELS_KIND = "labels"

_MOST_COMPARED = 20_000
_SHOWN = 5


@dataclass(frozen=True)
class GivenLabels:
    """Labels that may be used, and the truth that only a report may look at.

    Attributes:
        labels: (m,) int64 class, -1 = none that may be used.
        truth: (m,) int64 class, -1 = unknown.
        class_names: names of the classes: those of the store, then others of the file or result.
        where: file that the labels are from, for messages.
        source: where they are from, for the parameters of a result: empty for the store's own.
    """

    labels: NDArray[np.int64]
    truth: NDArray[np.int64]
    class_names: tuple[str, ...]
    where: str
    source: dict[str, object]

    @property
    def labeled(self) -> NDArray[np.bool_]:
        """(m,) whether a row has a label that may be used."""
        return self.labels >= 0


def labels_to_use(option: Path | None, store: EmbeddingStore, rows: NDArray[np.int64]) -> GivenLabels:
    """Return the labels of some rows that a command may use; there may be none.

    Args:
        option: ``--labels``: the name of a result of ``labelkit label``, a CSV file, or None for the store's own.
        store: the store.
        rows: (m,) of it.

    Raises:
        DatasetError: a file cannot be used, or names images that are not among the rows.
        StoreError: the result is not there, or holds something else.
        ConfigError: the name is that of a file and of a result.
    """
    truth = np.full(len(rows), -1, dtype=np.int64)
    if store.labels is not None:
        truth = np.asarray(store.labels, dtype=np.int64)[rows]
    if option is None:
        labels = np.full(len(rows), -1, dtype=np.int64)
        if store.labeled is not None:
            usable = np.asarray(store.labeled, dtype=bool)[rows]
            labels[usable] = truth[usable]
        return GivenLabels(labels, truth, tuple(store.class_names), str(store.path), {})
    if not is_result(option, store):
        texts = read_placed_labels(option, store, rows)
        labels, class_names = _numbered(texts, tuple(store.class_names), len(rows))
        source: dict[str, object] = {"file": option.name, "sha256": hashlib.sha256(option.read_bytes()).hexdigest()}
        return GivenLabels(labels, truth, class_names, str(option), source)
    result = read_labels(store, option.name)
    labels, class_names = _of_store(result, tuple(store.class_names))
    source = {"result": result.name, "content_digest": result.content_digest}
    return GivenLabels(labels[rows], truth, class_names, str(result.path), source)


def labeled_array(
    store: EmbeddingStore, rows: NDArray[np.int64], given: GivenLabels
) -> dict[str, NDArray[np.generic] | list[str]]:
    """What a result says of labels that are not the store's own: ``labeled`` (n,) uint8, rows it was made with."""
    if not given.source:
        return {}
    labeled = np.zeros(store.n, dtype=np.uint8)
    labeled[rows] = given.labeled
    return {"labeled": labeled}


def class_names_of(store: EmbeddingStore, result: Result) -> tuple[str, ...]:
    """Return the classes of the store, and at the end those that a result made with other labels names besides."""
    names = tuple(store.class_names)
    if "labeled" not in result.arrays or "names" not in result.arrays or "new_classes" not in result.arrays:
        return names
    told = zip(result.arrays["names"], np.asarray(result.arrays["new_classes"], dtype=bool), strict=True)
    return (*names, *(name for name, is_new in told if not is_new and name not in names))


def is_result(option: Path, store: EmbeddingStore) -> bool:
    """Say whether ``--labels`` names a result beside the store and not a file.

    Raises:
        ConfigError: both are there.
        DatasetError: neither is.
    """
    could_be = len(option.parts) == 1 and RESULT_NAME.fullmatch(option.name) is not None
    is_there = could_be and option.name in list_results(store)
    if is_there and option.exists():
        raise ConfigError(
            "--labels",
            f"{option} is a file here and a result of {store.path}",
            f"Give the file as {option.absolute()}, or rename it.",
        )
    if not is_there and not option.exists():
        known = ", ".join(list_results(store)) or "none"
        raise DatasetError(
            str(option),
            f"is neither a file nor a result of {store.path} (its results: {known})",
            "Name a result of `labelkit label`, or a CSV path,label.",
        )
    return is_there


def read_labels(store: EmbeddingStore, name: str) -> Result:
    """Read a result of kind ``labels``.

    Raises:
        StoreError: there is none of this name, or it holds something else.
    """
    result = read_result(store, name)
    missing = [key for key in ("labels", "labeled", "class_names") if key not in result.arrays]
    if result.kind != LABELS_KIND or missing:
        raise StoreError(
            str(result.path),
            f"holds {result.kind} ({result.stage}), no labels that were given",
            "Name a result of `labelkit label`.",
        )
    return result


def given_labels(config: DiscoverFewConfig, store: EmbeddingStore, rows: NDArray[np.int64]) -> GivenLabels:
    """Return the labels of some rows, at least one, or a draw of those of the store.

    Raises:
        DatasetError: there are none, a file names images that are not there, or too many are to be drawn.
    """
    given = labels_to_use(config.labels, store, rows)
    if config.num_labels is not None:
        truth, class_names = given.truth, given.class_names
        if not (truth >= 0).any():
            raise DatasetError(
                str(store.path), "has no labels to draw from", "Embed a data set with labels, or pass --labels FILE."
            )
        split = few_labels_split(
            truth,
            truth >= 0,
            len(class_names),
            total=config.num_labels,
            seed=config.label_seed,
            class_names=class_names,
        )
        return GivenLabels(np.where(split.labeled, truth, -1), truth, class_names, str(store.path), {})
    if not given.labeled.any():
        raise DatasetError(
            given.where,
            "has no labels that may be used, and this needs some of every class",
            "Label a few images in a file path,label and pass --labels FILE"
            + (", or draw some with --num-labels N to measure." if (given.truth >= 0).any() else "."),
        )
    return given


def read_placed_labels(path: Path, store: EmbeddingStore, rows: NDArray[np.int64]) -> dict[int, str]:
    """Read the labels that a CSV file gives to some rows of a store; label by place in ``rows``, as in the file.

    Raises:
        DatasetError: unreadable, or it names images that are not among the rows.
    """
    texts = read_label_csv(path)
    place_of = {written_name(store.sample_ids[int(row)]): place for place, row in enumerate(rows)}
    strangers = [name for name in texts if name not in place_of]
    if strangers:
        shown = [f"{name}{_near(name, place_of)}" for name in strangers[:_SHOWN]]
        raise DatasetError(
            str(path),
            f"{len(strangers)} of {len(texts)} images are not among the rows of {store.path} that are used, "
            f"first: {', '.join(shown)}",
            "Paths are those of the store, relative to the data root (`sample_ids`, or the column `path` of a table).",
        )
    return {place_of[name]: text for name, text in texts.items()}


def written_name(sample_id: str) -> str:
    """Return a path as tables have it: bytes that are no text as backslash escapes."""
    return sample_id.encode("utf-8", "backslashreplace").decode()


def similar_names(name: str, known: Iterable[str]) -> str | None:
    """Return the known class name that a name is likely a slip of, or None.

    The same letters and digits in another case or with other signs between; or, from four letters on, one that differs
    by a slip (a similarity of 0.85 or more by difflib). Names whose digits differ are never slips of each other.
    """

    def plain(text: str) -> str:
        return "".join(letter for letter in text.casefold() if letter.isalnum())

    def digits(text: str) -> str:
        return "".join(letter for letter in text if letter.isdigit())

    mine = plain(name)
    others = {other: plain(other) for other in known if other != name and digits(other) == digits(name)}
    for other, text in others.items():
        if text == mine and mine:
            return other
    if sum(letter.isalpha() for letter in mine) < 4:
        return None
    close = difflib.get_close_matches(mine, list(others.values()), n=1, cutoff=0.85)
    return next((other for other, text in others.items() if close and text == close[0]), None)


def _near(name: str, known: Iterable[str]) -> str:
    """Say which path may be meant, in brackets; empty if none is near."""
    paths = list(known)
    base = name.replace("\\", "/").rsplit("/", 1)[-1]
    found = [path for path in paths if path.rsplit("/", 1)[-1] == base][:3]
    if not found and len(paths) <= _MOST_COMPARED:
        found = difflib.get_close_matches(name, paths, n=1, cutoff=0.8)
    return f" (is it {' or '.join(found)}?)" if found else ""


def _numbered(
    texts: dict[int, str], class_names: tuple[str, ...], length: int
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return classes by place, and the class names with the fresh ones at the end, in natural order."""
    names = (*class_names, *sorted(set(texts.values()) - set(class_names), key=natural_key))
    number = {name: label for label, name in enumerate(names)}
    labels = np.full(length, -1, dtype=np.int64)
    labels[list(texts)] = [number[text] for text in texts.values()]
    return labels, names


def _of_store(result: Result, class_names: Sequence[str]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the labels of all rows that may be used, in the numbers of the store, and all class names."""
    theirs: list[str] = list(result.arrays["class_names"])
    names = (*class_names, *(name for name in theirs if name not in set(class_names)))
    number = {name: label for label, name in enumerate(names)}
    to_mine = np.array([number[name] for name in theirs] or [-1], dtype=np.int64)
    labels = np.asarray(result.arrays["labels"], dtype=np.int64)
    usable = np.asarray(result.arrays["labeled"], dtype=bool) & (labels >= 0)
    return np.where(usable, to_mine[np.maximum(labels, 0)], -1), names

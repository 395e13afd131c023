"""Labels that a file or a result gives to images: of this store, of another one, or of a data set.

The one place that says which image such a label is of. Paths in a CSV follow ``labelkit.data.path_rule``. A result of
another store is taken by the digests of the image files where both stores know them, else by id.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.images.read import image_folder
from labelkit.data.path_rule import SHOWN, escaped_path, find_paths, similar_path_hint
from labelkit.data.tables import read_label_csv
from labelkit.errors import ConfigError, DatasetError, StoreError
from labelkit.files import sha256_file
from labelkit.progress import current_progress
from labelkit.store.csv_table import escape_name, needs_escape
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.results import Result, list_results, read_result
from labelkit.store.schema import RESULT_NAME

LABELS_KIND = "labels"
_RESULTS = ".h5.results"


@dataclass(frozen=True)
class LabeledImages:
    """Images that the labels of a file or result are matched to.

    Attributes:
        where: how messages call them.
        sample_ids: n ids.
        sha256: (n, 32) uint8 digests of the files; ``None``: not known.
        root: folder of the files; ``None``: not known.
    """

    where: str
    sample_ids: Sequence[str]
    sha256: NDArray[np.uint8] | None
    root: Path | None

    @classmethod
    def of_store(cls, store: EmbeddingStore) -> LabeledImages:
        """Return the images of a store, to match labels to them."""
        sha256 = store.sha256 if store.has_images else None
        return cls(str(store.path), store.sample_ids, sha256, image_folder(store))


@dataclass(frozen=True)
class MatchedLabels:
    """Labels of a file or result, matched to images.

    Attributes:
        texts: name of the class by place of the image.
        where: file that they are from.
        source: what a result says of them: the name and digest of the file or result.
    """

    texts: dict[int, str]
    where: str
    source: dict[str, object]


def own_result(option: Path, store: EmbeddingStore) -> str | None:
    """Return the result name if ``--labels`` names a result of this store; ``None`` if it names something else.

    Raises:
        ConfigError: the name is that of a file and of a result.
        DatasetError: it is that of neither.
    """
    beside = _store_beside(option)
    if beside is not None:
        return option.stem if beside.resolve() == store.path.resolve() else None
    could_be = len(option.parts) == 1 and RESULT_NAME.fullmatch(option.name) is not None
    is_there = could_be and option.name in list_results(store)
    if is_there and option.exists():
        raise ConfigError(
            "--labels",
            f"{option} is both a file here and a result of {store.path}",
            f"Pass the file as {option.absolute()}, or rename the file.",
        )
    if not is_there and not option.exists():
        known = ", ".join(list_results(store)) or "none"
        raise DatasetError(
            str(option),
            f"is neither a file nor a result of {store.path} (its results: {known})",
            "Pass a result of `labelkit label`, or a CSV with columns path,label.",
        )
    return option.name if is_there else None


def read_labels(store: EmbeddingStore, name: str) -> Result:
    """Read the labels that are stored as a result of a store, given the name of the result.

    Raises:
        StoreError: there is none of this name, or it holds something else.
    """
    result = read_result(store, name)
    missing = [key for key in ("labels", "labeled", "class_names") if key not in result.arrays]
    if result.kind != LABELS_KIND or missing:
        raise StoreError(
            str(result.path),
            f"contains {result.kind} ({result.stage}), not labels",
            "Choose a result of `labelkit label`.",
        )
    return result


def read_matched_labels(option: Path, images: LabeledImages, label_column: str | None = None) -> MatchedLabels:
    """Read labels from a CSV or from a result of another store, and match them to images.

    Raises:
        DatasetError: a file cannot be used, names images that are not there, or names one image twice.
        StoreError: the other store or its result cannot be used.
        ConfigError: a column is named, and there is no CSV.
    """
    beside = _store_beside(option)
    if beside is not None:
        if label_column is not None:
            raise ConfigError("--label-column", f"{option} is a result and has no columns", "Remove --label-column.")
        return _of_other_store(beside, option.stem, images)
    if option.suffix == ".h5":
        remedy = "Pass a CSV, or a result as STORE.h5.results/NAME.h5."
        raise DatasetError(str(option), "is not a result in the folder of results of its store", remedy)
    texts = read_csv_labels(option, images, label_column)
    return MatchedLabels(texts, str(option), {"file": option.name, "sha256": sha256_file(option)})


def read_csv_labels(path: Path, images: LabeledImages, label_column: str | None = None) -> dict[int, str]:
    """Read labels from a CSV file; return them by position of their image, in the order of the file.

    Raises:
        DatasetError: unreadable, it names images that are not there, a path fits several, or an image has two labels.
    """
    texts = read_label_csv(path, label_column, tell=current_progress().message)
    return match_label_paths(path, texts, images)


def find_images_by_path(path: Path, texts: Iterable[str], images: LabeledImages) -> tuple[dict[str, int], list[str]]:
    """Find the images that the paths in a CSV file name; see :func:`labelkit.data.path_rule.find_paths`.

    Raises:
        DatasetError: a path names several images.
    """
    spellings = {escape_name(name): place for place, name in enumerate(images.sample_ids) if needs_escape(name)}
    return find_paths(texts, images.sample_ids, table=path, root=images.root, spellings=spellings)


def match_label_paths(path: Path, texts: Mapping[str, str], images: LabeledImages) -> dict[int, str]:
    """Match the labels of a CSV file to images by path; see :func:`read_csv_labels`."""
    places, unknown = find_images_by_path(path, texts, images)
    if unknown:
        known = [escaped_path(name) for name in images.sample_ids]
        shown = ", ".join(f"{name}{similar_path_hint(name, known)}" for name in unknown[:SHOWN])
        raise DatasetError(
            str(path),
            f"{len(unknown)} of {len(texts)} images are not in {images.where}, first: {shown}",
            "Write paths relative to the image folder or the CSV, or unique endings of these paths.",
        )
    placed: dict[int, str] = {}
    first: dict[int, str] = {}
    for name, text in texts.items():
        place = places[name]
        if placed.setdefault(place, text) != text:
            problem = f"{name!r} is {text!r}, but as {first[place]!r} the same image is {placed[place]!r}"
            raise DatasetError(str(path), problem, "Write a single label for each image.")
        first.setdefault(place, name)
    return placed


def _store_beside(option: Path) -> Path | None:
    """Return the store of a result that is given by its path, STORE.h5.results/NAME.h5."""
    if option.suffix != ".h5" or not option.absolute().parent.name.endswith(_RESULTS):
        return None
    folder = option.absolute().parent
    return folder.with_name(folder.name.removesuffix(".results"))


def _of_other_store(path: Path, name: str, images: LabeledImages) -> MatchedLabels:
    other = open_store(path)
    result = read_labels(other, name)
    names: list[str] = list(result.arrays["class_names"])
    labels = np.asarray(result.arrays["labels"], dtype=np.int64)
    rows = np.flatnonzero(np.asarray(result.arrays["labeled"], dtype=bool) & (labels >= 0)).tolist()
    by_digest = images.sha256 is not None and other.has_images
    keys = image_keys(other.sample_ids, other.sha256 if by_digest else None)
    mine = defaultdict(list)
    for place, key in enumerate(image_keys(images.sample_ids, images.sha256 if by_digest else None)):
        mine[key].append(place)
    texts: dict[int, str] = {}
    unclear: set[int] = set()
    for row in rows:
        for place in mine.get(keys[row], ()):
            text = names[int(labels[row])]
            if texts.setdefault(place, text) != text:
                unclear.add(place)
    for place in unclear:  # one file, two labels there
        del texts[place]
    taken = sum(keys[row] in mine for row in rows)
    how = "same file" if by_digest else "same path"
    told = f"{result.path}: {taken} of {len(rows)} labels belong to images that are used here ({how})"
    if unclear:
        told += f"; {len(unclear)} images left out, whose file has two labels there"
    current_progress().message(told)
    if not texts:
        raise DatasetError(
            str(result.path),
            f"has no label for any image of {images.where} ({len(rows)} labels, compared by {how})",
            "Choose a result of a store of the same images.",
        )
    source: dict[str, object] = {"store": path.name, "result": name, "content_digest": result.content_digest}
    return MatchedLabels(texts, str(result.path), source)


def image_keys(sample_ids: Sequence[str], sha256: NDArray[np.uint8] | None) -> list[str | bytes]:
    """Return the keys that identify images: the SHA-256 digests of their files, or their ids if unknown."""
    return list(sample_ids) if sha256 is None else [bytes(row) for row in np.asarray(sha256)]

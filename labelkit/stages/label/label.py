"""Bring labels back: a filled-in CSV becomes a named result beside the store, merged with the labels there were."""

from __future__ import annotations

import csv
import io
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelkit.config.labeling import LabelConfig
from labelkit.data.datasets import FileSource
from labelkit.data.tables import natural_key
from labelkit.errors import ConfigError, DatasetError, OutputExistsError, StoreError, output_exists
from labelkit.reading import sha256_file
from labelkit.stages.pictures.files import indexed_images
from labelkit.stages.progress import current_progress
from labelkit.stages.read.given_labels import labels_to_use, similar_names
from labelkit.stages.read.label_files import LABELS_KIND, LabeledImages, own_result, placed_csv, read_labels
from labelkit.stages.result import Cell, SimpleResult, Table
from labelkit.store.commit import commit_bytes
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.results import list_results, write_result

_SHOWN = 10


@dataclass(frozen=True)
class _Labels:
    """Labels of all rows of a store.

    Attributes:
        labels: (n,) int64, -1 = none.
        class_names: of these numbers.
        rounds: (n,) int64 round that gave the label, 0 = came with the store, -1 = none.
        round: the last one.
        source: the result that they are from; empty for the store's own.
    """

    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    rounds: NDArray[np.int64]
    round: int
    source: dict[str, object]


@dataclass(frozen=True)
class _Conflict:
    """An image with two labels."""

    path: str
    old: str
    new: str


def label_images(config: LabelConfig) -> SimpleResult:
    """Add the labels of a CSV to those there are, and write them as a result; or write them as a CSV to train with.

    The result, kind ``labels``, holds ``labels`` (n,) int64, ``labeled`` (n,) uint8, ``class_names`` and
    ``label_rounds`` (n,) int64: the round that gave each label, 0 = came with the store, -1 = none.

    Raises:
        StoreError: the store, or the result to add to, cannot be used.
        DatasetError: the CSV cannot be used, names unknown images, or gives images another label than they have.
        ConfigError: files that would be overwritten.
    """
    store = open_store(config.index)
    base = _base(config, store)
    values: dict[str, object] = {"index": config.index}
    made: list[Path] = []
    tables: list[Table] = []
    final = base
    if config.from_ is not None:
        final, told = _merged(config, config.from_, store, base)
        name = config.result or f"labels-{final.round}"
        params = {key: value for key, value in told.items() if key != "conflicts"}
        path = _write(config, store, name, final, {**params, "changed": told["conflicts"]})
        made.append(path)
        values |= {"result": name, "path": path, **told}
        tables.append(_summary(told))
        tables += _conflict_tables(told)
    counts = np.bincount(final.labels[final.labels >= 0], minlength=len(final.class_names))
    values["classes"] = [
        {"class": name, "images": int(count)} for name, count in zip(final.class_names, counts, strict=True) if count
    ]
    values |= {"labels": int(counts.sum()), "rows": store.n}
    cells: list[list[Cell]] = [
        [name, int(count)] for name, count in zip(final.class_names, counts, strict=True) if count
    ]
    tables.append(Table("labels of each class", ["class", "images"], cells))
    if config.csv is not None:
        commit_bytes(config.csv, _table(config, config.csv, store, final))
        made.append(config.csv)
        values["csv"] = config.csv
    return SimpleResult(values, tuple(made), tuple(tables))


def _write(config: LabelConfig, store: EmbeddingStore, name: str, final: _Labels, params: dict[str, object]) -> Path:
    try:
        return write_result(
            store,
            name,
            kind=LABELS_KIND,
            arrays={
                "labels": final.labels,
                "labeled": final.labels >= 0,
                "class_names": list(final.class_names),
                "label_rounds": final.rounds,
            },
            params=params,
            stage="label",
            overwrite=config.overwrite,
        )
    except OutputExistsError as error:
        if config.labels is None and name in list_results(store):
            replaceable = name not in store.packed_results
            raise output_exists(
                error.where, "--result", instead=f"--labels {name} to add to it", replaceable=replaceable
            ) from error
        raise


def _base(config: LabelConfig, store: EmbeddingStore) -> _Labels:
    """Return the labels to add to."""
    rows = np.arange(store.n, dtype=np.int64)
    if config.labels is None:
        given = labels_to_use(None, store, rows)
        labels = given.labels if config.own_labels else np.full(store.n, -1, dtype=np.int64)
        return _Labels(labels, given.class_names, np.where(labels >= 0, 0, -1), 0, {})
    name = own_result(config.labels, store)
    if name is None:
        problem = f"{config.labels} is no result of {store.path}"
        raise ConfigError("--labels", problem, "Give a file with --from, or name an earlier result.")
    given = labels_to_use(config.labels, store, rows)
    result = read_labels(store, name)
    rounds, last = result.arrays.get("label_rounds"), result.params.get("round")
    if rounds is None or len(rounds) != store.n or not isinstance(last, int):
        raise StoreError(str(result.path), "does not say which round gave its labels", "Make it by `labelkit label`.")
    return _Labels(given.labels, given.class_names, np.asarray(rounds, dtype=np.int64), last, given.source)


def _merged(config: LabelConfig, path: Path, store: EmbeddingStore, base: _Labels) -> tuple[_Labels, dict[str, object]]:
    """Add the labels of a file; returns them and what is to be told.

    Raises:
        DatasetError: images get another label than they have, and it is not said which counts.
    """
    texts = placed_csv(path, LabeledImages.of_store(store), config.label_column)
    fresh = sorted(set(texts.values()) - set(base.class_names), key=natural_key)
    slips = _slips(path, fresh, base.class_names)
    names = (*base.class_names, *fresh)
    number = {name: label for label, name in enumerate(names)}
    labels, rounds = base.labels.copy(), base.rounds.copy()
    conflicts: list[_Conflict] = []
    added = confirmed = 0
    for row, text in texts.items():
        old, new = int(labels[row]), number[text]
        if old == new:
            confirmed += 1
            continue
        if old >= 0:
            conflicts.append(_Conflict(store.sample_ids[row], names[old], text))
            if config.conflicts == "old":
                continue
        else:
            added += 1
        labels[row], rounds[row] = new, base.round + 1
    if conflicts and config.conflicts == "error":
        shown = "\n  ".join(f"{one.path}: was {one.old!r}, is {one.new!r} here" for one in conflicts[:_SHOWN])
        more = f"\n  and {len(conflicts) - _SHOWN} more" if len(conflicts) > _SHOWN else ""
        raise DatasetError(
            str(path),
            f"{len(conflicts)} images have another label already\n  {shown}{more}\n",
            "Pass --conflicts new to take these, or --conflicts old to keep those.",
        )
    told: dict[str, object] = {
        "round": base.round + 1,
        "by": config.by,
        "csv_sha256": sha256_file(path),
        "base": base.source or ("store" if config.own_labels else "none"),
        "labels_before": int((base.labels >= 0).sum()),
        "added": added,
        "confirmed": confirmed,
        "conflict_rule": config.conflicts,
        "conflicts": [{"path": one.path, "old": one.old, "new": one.new} for one in conflicts],
        "new_classes": fresh,
        "similar_names": slips,
    }
    return _Labels(labels, names, rounds, base.round + 1, {}), told


def _slips(path: Path, fresh: list[str], known: tuple[str, ...]) -> dict[str, str]:
    """Warn of new class names that look like a slip of another; name by name."""
    found: dict[str, str] = {}
    for name in fresh:
        near = similar_names(name, known) or similar_names(name, (other for other in fresh if other not in found))
        if near is None:
            continue
        found[name] = near
        current_progress().warning(
            f"{path}: the new class {name!r} looks like {near!r}; if they are the same, correct the file and label "
            "again with --overwrite"
        )
    return found


def _summary(told: dict[str, object]) -> Table:
    conflicts = told["conflicts"]
    assert isinstance(conflicts, list)
    columns = ["round", "labels before", "added", "confirmed", "in conflict", "by"]
    row: list[Cell] = [*(int(str(told[key])) for key in ("round", "labels_before", "added", "confirmed"))]
    return Table("labels", columns, [[*row, len(conflicts), str(told["by"]) or None]])


def _conflict_tables(told: dict[str, object]) -> list[Table]:
    conflicts = told["conflicts"]
    assert isinstance(conflicts, list)
    if not conflicts:
        return []
    kept = "the new label counts" if told["conflict_rule"] == "new" else "the old label stays"
    rows: list[list[Cell]] = [[one["path"], one["old"], one["new"]] for one in conflicts]
    return [Table(f"another label than before: {kept}", ["path", "old", "new"], rows)]


def _table(config: LabelConfig, path: Path, store: EmbeddingStore, final: _Labels) -> bytes:
    """All images of the store as a CSV data set: paths that lead to them from its folder, empty labels where unknown.

    Raises:
        DatasetError: the images are not files, or are not known here.
    """
    images = indexed_images(store, config.dataset, config.data_root)
    if not isinstance(images.source, FileSource):
        raise DatasetError(images.name, "its images are no files, so that no CSV can name them", "Leave out --csv.")
    folder, root = path.absolute().parent, images.source.root.absolute()
    there = set(images.sample_ids)
    missing = [name for name in store.sample_ids if name not in there]
    if missing:
        problem = f"{len(missing)} of {store.n} images of {store.path} are not there, first: {missing[0]}"
        raise DatasetError(str(root), problem, "Pass --dataset (and --data-root).")
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    has_splits = store.splits is not None and bool(store.split_names)
    writer.writerow(["path", "label", *(["split"] if has_splits else [])])
    unwritable = 0
    for row, name in enumerate(store.sample_ids):
        place = root / name
        text = os.fspath(place.relative_to(folder) if place.is_relative_to(folder) else place)
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            unwritable += 1
            continue
        label = int(final.labels[row])
        line = [text, final.class_names[label] if label >= 0 else ""]
        if store.splits is not None and has_splits:
            split = int(store.splits[row])
            line.append(store.split_names[split] if split >= 0 else "")
        writer.writerow(line)
    if unwritable:
        current_progress().warning(f"{path}: {unwritable} images left out, whose names are no text")
    return buffer.getvalue().encode()

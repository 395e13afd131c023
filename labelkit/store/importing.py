"""Make a store of rows that were made elsewhere: checked, sorted by name, streamed to the disk.

The rows stay in the file that they came in; they are read in order once to check them, and by name twice, for the
digests and for the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.errors import Refused, output_exists, resource_error
from labelkit.store import schema
from labelkit.store.commit import temporary_name
from labelkit.store.embeddings import ModelIdentity
from labelkit.store.parts import check_space
from labelkit.store.plans import plan_digest
from labelkit.store.schema import is_utf8, name_bytes
from labelkit.store.writer import Contents, Image, Sharding, Stream, install_store, strings

# A row that was scaled to length 1 is off by rounding: at most one unit of float32 per value, of float16 more.
_LENGTH_TOLERANCE = {"float32": 1e-4, "float16": 5e-3}
# The smallest numbers of a type are far apart; decimals of the smallest of float16 are off by less than this.
_ROUNDING = 0.02


@dataclass(frozen=True)
class ImportedImages:
    """What is known about the image files, in the order of the store.

    Attributes:
        sha256: (n, 32) uint8.
        file_sizes: (n,) uint64 bytes.
        image_sizes: (n, 2) uint32 height and width after orientation.
    """

    sha256: NDArray[np.uint8]
    file_sizes: NDArray[np.uint64]
    image_sizes: NDArray[np.uint32]


@dataclass(frozen=True)
class ImportedColumns:
    """What is known about the rows besides, in the order of the store; ``None``: nothing.

    Attributes:
        labels: (n,) int64, index into ``class_names``, -1 = unlabeled.
        class_names: k names.
        labeled: (n,) bool, whether training may use the label.
        splits: (n,) int16, index into ``split_names``, -1 = in no split.
        split_names: names of the splits.
    """

    labels: NDArray[np.int64] | None = None
    class_names: Sequence[str] = ()
    labeled: NDArray[np.bool_] | None = None
    splits: NDArray[np.int16] | None = None
    split_names: Sequence[str] = ()


def imported_model(name: str, source: str, word: str) -> ModelIdentity:
    """Return the identity of a model of which only a name is known.

    Args:
        name: shown to people.
        source: name of the file that was read.
        word: rows of equal words are comparable: the name, if the user gave one, else the digest of the file.
    """
    return ModelIdentity(
        name=name,
        weights_fingerprint="",
        weights_file_sha256="",
        source=source,
        layer="",
        pooling="",
        preprocess={"imported": word},
        numerics={},
    )


def check_rows(embeddings: NDArray[Any], dtype: str, normalized: bool, where: Callable[[int], str]) -> None:
    """Check all rows, as they will be stored, in the order of their file.

    Args:
        embeddings: (n, d) numbers.
        dtype: ``float32`` or ``float16``, type of the stored rows.
        normalized: whether all have to be of length 1.
        where: number of a row to how messages call it.

    Raises:
        Refused: a number is not finite, or too large for the type; a row is too small for it, or not of length 1.
    """
    step = _rows_at_a_time(embeddings)
    for start in range(0, len(embeddings), step):
        given = embeddings[start : start + step]
        stored = _cast(given, np.dtype(dtype))
        finite = np.isfinite(stored)
        if not finite.all():
            row = int(np.argmin(finite.all(axis=1)))
            column = int(np.argmin(finite[row]))
            value = given[row, column]
            if np.isfinite(value):
                problem = f"value {column} is {value}, too large for {dtype}"
                raise Refused(
                    where(start + row), problem, "Pass --dtype float32." if dtype == "float16" else "Mend it."
                )
            raise Refused(where(start + row), f"value {column} is {value}", "Mend or leave out that row.")
        largest = np.abs(stored).max(axis=1)
        lost = np.abs(stored - given).max(axis=1) > _ROUNDING * np.abs(given).max(axis=1)
        tiny = lost & (largest < np.finfo(dtype).tiny)
        if tiny.any():
            row = int(np.argmax(tiny))
            problem = f"has no value above {np.abs(given[row]).max():.3g}, too small for {dtype}"
            raise Refused(where(start + row), problem, "Scale the rows, or pass --dtype float32 if it is float16.")
        if normalized:
            lengths = np.sqrt(np.square(stored, dtype=np.float64).sum(axis=1))
            off = np.abs(lengths - 1) > _LENGTH_TOLERANCE[dtype]
            if off.any():
                row = int(np.argmax(off))
                problem = f"has length {lengths[row]:.6g}, and --normalized says 1"
                raise Refused(where(start + row), problem, "Leave --normalized out, or scale the rows first.")


def write_imported(
    out: Path,
    *,
    embeddings: NDArray[Any],
    order: NDArray[np.int64],
    sample_ids: Sequence[str],
    dtype: str,
    model: ModelIdentity,
    normalized: bool,
    metric: str,
    columns: ImportedColumns,
    images: ImportedImages | None,
    created_by: str,
    recipe: dict[str, Any],
    extras: Mapping[str, NDArray[np.float32]] | None = None,
    sharding: Sharding | None = None,
    overwrite: bool = False,
) -> None:
    """Write a store, complete or not at all.

    Args:
        out: the store, ``NAME.h5``.
        embeddings: (n, d) numbers that ``check_rows`` found right, as a rule a map of a file.
        order: (n,) row of ``embeddings`` of each row of the store.
        sample_ids: n names, sorted by their bytes, unique.
        dtype: ``float32`` or ``float16``.
        model: what made them.
        normalized: whether rows have length 1.
        metric: how they are meant to be compared.
        columns: labels and splits.
        images: of the image files; ``None``: not known, and the store says so.
        created_by: program and version.
        recipe: what was imported and how; its digest becomes ``plan_digest``.
        extras: further outputs of the model by name, (n, w), in the order of the store.
        sharding: how the store is split; ``None``: it is one file.
        overwrite: replace a file of this name.

    Raises:
        OutputExistsError: the file is there and is not to be replaced.
        ResourceError: the disk is full, ...
    """
    names = [name_bytes(name) for name in sample_ids]
    contents = Contents.of(
        schema.FORMAT_STORE,
        kind="embeddings",
        requires="" if images is not None else schema.FEATURE_IMAGELESS,
        normalized=int(normalized),
        metric=metric,
        names_are_utf8=int(all(is_utf8(name) for name in names)),
        created_by=created_by,
        plan_digest=plan_digest(recipe),
    )
    model.put(contents)
    kind = np.dtype(dtype).newbyteorder("<")
    contents.datasets["embeddings"] = _in_order(embeddings, order, kind)
    contents.datasets["sample_ids"] = strings(sample_ids)
    if images is not None:
        contents.datasets.update(sha256=images.sha256, file_sizes=images.file_sizes, image_sizes=images.image_sizes)
    contents.datasets.update(_datasets_of(columns))
    contents.datasets.update(extras or {})
    needed = embeddings.size * kind.itemsize + len(names) * (max(map(len, names)) + 64) + (64 << 10)
    check_space(out.with_name(out.name + ".run"), needed, out, "the store")
    try:
        install_store(Image(contents), out, out.parent / temporary_name(), sharding=sharding, replace=overwrite)
    except FileExistsError as error:
        raise output_exists(out) from error
    except OSError as error:
        raise resource_error(error, str(out)) from error


def _in_order(embeddings: NDArray[Any], order: NDArray[np.int64], kind: np.dtype[Any]) -> Stream:
    step = _rows_at_a_time(embeddings)

    def rows(first: int, last: int) -> Iterator[NDArray[Any]]:
        for start in range(first, last, step):
            yield _cast(embeddings[order[start : min(start + step, last)]], kind)

    return Stream(kind, embeddings.shape, partial(rows, 0, len(order)), part=rows)


def _datasets_of(columns: ImportedColumns) -> dict[str, NDArray[Any]]:
    datasets: dict[str, NDArray[Any]] = {}
    if columns.labels is not None:
        datasets["labels"] = columns.labels
        if columns.class_names:
            datasets["class_names"] = strings(columns.class_names)
    if columns.labeled is not None and columns.labels is not None:
        datasets["labeled"] = columns.labeled.astype(np.uint8)
        used = np.zeros(len(columns.class_names), dtype=np.uint8)
        used[columns.labels[columns.labeled]] = 1
        datasets["old_classes"] = used
    if columns.splits is not None:
        datasets.update(splits=columns.splits, split_names=strings(columns.split_names))
    return datasets


def _rows_at_a_time(embeddings: NDArray[Any]) -> int:
    return max(1, schema.BLOCK_BYTES // (8 * int(embeddings.shape[1])))


def _cast(values: NDArray[Any], kind: np.dtype[Any]) -> NDArray[Any]:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(values).astype(kind, copy=False)

"""The index of a store in the user's cache: a file that is found by what the rows of the store hold.

An index is never read from beside a store: the reader of faiss is not safe on foreign bytes. In the cache a file is
``NAME-<kind>-<digest of settings>-<digest of its rows>.index``: the index as faiss writes it, then a number for each
row, which follows from what the row holds. The .json beside it says what the index is of, how well it was found to
search, and the SHA-256 of the file.

A file serves a store that has all of its rows, wherever they stand: images stand in the order of their names, so that
new ones come between old ones. Rows that the file lacks are added to the index. An index of rows that are gone is never
used for the store.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.indexes import Kind, empty_index, index_format, read_index, write_index
from labelkit.algorithms.neighbors import Metric, as_rows
from labelkit.algorithms.row_blocks import StoredRows
from labelkit.cache import cache_folder
from labelkit.errors import LabelkitError
from labelkit.files import open_regular, read_record, sha256_file
from labelkit.progress import current_progress
from labelkit.store.commit import canonical_json, commit_file, commit_json

_FORMAT, _FORMAT_VERSION = "labelkit.index", "4.0"
_CHUNK_BYTES = 1 << 20
# Rows added at once: between these, a signal is answered.
_ROWS_AT_ONCE = 4096
# Of a store this many times as large as the one they were trained on, lists would be too long.
_OUTGROWN = 4
_MEASURED: dict[str, type | tuple[type, ...]] = {
    "width": int, "recall": float, "k": int, "sampled": int, "exact_ms": float, "index_ms": float,
}  # fmt: skip
_LINE = {"settings": str, "rows": int, "trained_rows": int, "store": str, "sha256": str, **_MEASURED}


@dataclass(frozen=True)
class IndexQuality:
    """Speed and recall of an index compared with exact search, with rows of the store as queries.

    Attributes:
        width: of the search.
        recall: share of the exact ``k`` nearest other rows that are found.
        k: neighbors per row.
        sampled: rows that were looked up.
        exact_ms, index_ms: milliseconds of one query alone, median.
    """

    width: int
    recall: float
    k: int
    sampled: int
    exact_ms: float
    index_ms: float


@dataclass(frozen=True)
class CachedIndex:
    """Cached index of a gallery, and the rows that it lacks.

    Attributes:
        kind: of index.
        order: (g,) places of rows in the gallery: first those of the file, in its order, then the others.
        path: of the file; ``None``: there is none, or it could not be kept.
        rows: of the file, before any were added now.
        trained_rows: of the store that the lists of the file were trained for.
        store: that it was built for.
        measured: how well it searches.
    """

    kind: Kind
    order: NDArray[np.int64]
    path: Path | None = None
    rows: int = 0
    trained_rows: int = 0
    store: str = ""
    measured: IndexQuality | None = None

    @property
    def missing(self) -> int:
        """Number of gallery rows that the cached file lacks."""
        return len(self.order) - self.rows

    @property
    def size_bytes(self) -> int:
        """Size of the index file in bytes; 0 if there is none."""
        return 0 if self.path is None else self.path.stat().st_size

    @property
    def origin(self) -> str:
        """Where the index comes from, in words."""
        if self.rows and self.missing:
            return f"extended by {self.missing:,} rows"
        return "built now" if self.missing else "from the cache"

    def to_json(self) -> dict[str, object]:
        """Return the description of an index that is ready, as JSON."""
        return {
            "kind": self.kind,
            "path": self.path,
            "built": self.rows == 0,
            "added_rows": self.missing,
            "bytes": self.size_bytes,
            "measured": None if self.measured is None else asdict(self.measured),
        }


def find_cached_index(gallery: StoredRows, kind: Kind, metric: Metric) -> CachedIndex:
    """Find the cached index that covers the most rows of a gallery (g, d), and delete damaged ones with a warning."""
    settings, best = _settings(kind, metric, gallery.shape[1]), CachedIndex(kind, np.arange(len(gallery)))
    keys: NDArray[np.uint64] | None = None
    for path in sorted(_folder().glob(f"*-{kind}-{settings[:16]}-*.index")):
        try:
            line = read_record(path.parent, path.with_suffix(".json").name, _LINE)
            if line is None:
                raise ValueError("it does not record its store")
            if line["settings"] != settings or not best.rows < line["rows"] <= len(gallery):
                continue
            if kind == "ivfpq" and len(gallery) > _OUTGROWN * line["trained_rows"]:
                continue
            keys = _row_keys(gallery) if keys is None else keys
            places = _places(_keys_of(path, line["rows"]), keys)
            if places is None:
                continue
            if sha256_file(path) != line["sha256"]:
                raise ValueError("its content has changed")
        except (OSError, ValueError, LabelkitError) as error:
            reason = error.problem if isinstance(error, LabelkitError) else str(error)
            current_progress().warning(f"{path} is damaged ({reason}); the index is rebuilt")
            discard(path)
            continue
        rest = np.ones(len(gallery), dtype=np.bool_)
        rest[places] = False
        order = np.concatenate([places, np.flatnonzero(rest)])
        measured = IndexQuality(**{key: line[key] for key in _MEASURED})
        best = CachedIndex(kind, order, path, line["rows"], line["trained_rows"], line["store"], measured)
    return best


def extend_index(gallery: StoredRows, found: CachedIndex, metric: Metric) -> Any:
    """Return an index of all gallery rows: the cached one extended by the missing rows, or a new one.

    Raises:
        ValueError: too few rows for the kind of index.
    """
    if found.path is None:
        index = empty_index(gallery, found.kind, metric=metric)
    else:
        index = read_index(found.path, is_extended=True)
    verb = "building" if found.path is None else "extending"
    with current_progress().task(
        f"{verb} the {found.kind} index of {len(gallery):,} rows", total=found.missing
    ) as task:
        for start in range(found.rows, len(gallery), _ROWS_AT_ONCE):
            part = gallery[found.order[start : start + _ROWS_AT_ONCE]]
            index.add(as_rows(part, "gallery", metric))
            task.advance(len(part))
    return index


def keep_index(
    store: Path, index: Any, gallery: StoredRows, found: CachedIndex, metric: Metric, measured: IndexQuality
) -> Path | None:
    """Write an index to the cache completely or not at all, replacing an older one that it extends.

    Returns:
        Its file; ``None`` if it cannot be written, which is said.
    """
    settings = _settings(found.kind, metric, gallery.shape[1])
    keys = _row_keys(gallery)[found.order]
    line: dict[str, Any] = {
        "settings": settings,
        "rows": len(keys),
        "trained_rows": found.trained_rows or len(keys),
        "store": str(store.absolute()),
        **measured.__dict__,
    }
    name = f"{store.stem}-{found.kind}-{settings[:16]}-{hashlib.sha256(keys.tobytes()).hexdigest()[:24]}.index"
    path = _folder() / name

    digest = hashlib.sha256()

    def write(file: BinaryIO) -> None:
        def take(data: Any) -> None:
            digest.update(data)
            file.write(data)

        write_index(index, take)
        take(keys.tobytes())

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        commit_file(path, write)
        commit_json(path.with_suffix(".json"), {**line, "sha256": digest.hexdigest()})
    except (OSError, LabelkitError) as error:
        current_progress().warning(f"the index could not be cached and will be rebuilt next time: {error}")
        return None
    if found.path is not None and found.store == line["store"] and found.path != path:
        discard(found.path)
    return path


def discard(path: Path) -> None:
    """Delete an index file and its record, if the system allows it."""
    with contextlib.suppress(OSError):
        path.unlink()
        path.with_suffix(".json").unlink()


def _folder() -> Path:
    return cache_folder() / "indexes"


def _settings(kind: Kind, metric: Metric, dim: int) -> str:
    """The digest of what an index depends on besides its rows."""
    values = [_FORMAT, _FORMAT_VERSION, index_format(), kind, metric, dim]
    return hashlib.sha256(canonical_json(values).encode()).hexdigest()


def _row_keys(gallery: StoredRows) -> NDArray[np.uint64]:
    """A number for each row: equal for equal rows, and hardly ever for others."""
    dim = gallery.shape[1]
    factors = np.random.default_rng(0).integers(0, 1 << 63, dim, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    keys = np.empty(len(gallery), dtype="<u8")
    step = max(1, _CHUNK_BYTES // (4 * dim))
    for first in range(0, len(gallery), step):
        bits = np.ascontiguousarray(gallery[first : first + step]).view(np.uint32).astype(np.uint64)
        keys[first : first + step] = (bits * factors).sum(axis=1, dtype=np.uint64)
    return keys


def _places(wanted: NDArray[np.uint64], keys: NDArray[np.uint64]) -> NDArray[np.int64] | None:
    """Return where each wanted key stands, equal ones at places of their own; ``None``: one is missing."""
    order, order_wanted = np.argsort(keys, kind="stable"), np.argsort(wanted, kind="stable")
    ascending, wanted = keys[order], wanted[order_wanted]
    turn = np.arange(len(wanted)) - np.searchsorted(wanted, wanted)
    at = np.searchsorted(ascending, wanted) + turn
    if len(at) and (at.max() >= len(keys) or (ascending[at] != wanted).any()):
        return None
    places = np.empty(len(wanted), dtype=np.int64)
    places[order_wanted] = order[at]
    return places


def _keys_of(path: Path, count: int) -> NDArray[np.uint64]:
    """Return the keys of the rows of an index file."""
    with open_regular(path) as file:
        file.seek(-8 * count, os.SEEK_END)
        return np.frombuffer(file.read(), dtype="<u8")

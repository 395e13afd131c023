"""The index of a store in the user's cache: a file for each block of its rows, found by what these rows hold.

An index is never read from beside a store: the reader of faiss is not safe on foreign bytes. In the cache a file is
``NAME-<kind>-<digest of settings>-<digest of its rows>.index``: the index as faiss writes it, a number for each row,
which follows from what the row holds, then a line of JSON. The line says what the index is of, and the SHA-256 of all
that is before it and of what it says.

A file is found for a block if the digest of its rows is that of the first rows of the block. If it has all of them, it
is used as it is; if it has fewer, it is extended by the others. So rows that were added to a store are added to its
index, and a block whose rows changed is built anew, whatever shards the store has. A block that is ready stays when the
process is killed.

Images stand in a store in the order of their names, so that new ones come between old ones. Where blocks do not fit as
the rows stand, the numbers of rows say which order of the rows fits; whether it does is for the digests to say.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.indexes import (
    BuiltIndex,
    HNSWRecipe,
    IVFPQRecipe,
    Piece,
    empty_index,
    extend_index,
    index_format,
    num_threads,
    use_threads,
    without_rows,
)
from labelkit.algorithms.neighbor_scores import Metric
from labelkit.algorithms.row_blocks import StoredRows
from labelkit.cache import cache_folder
from labelkit.errors import LabelkitError
from labelkit.reading import open_regular, parse_object
from labelkit.stages.progress import Task, current_progress
from labelkit.store.commit import canonical_json, commit_file

Kind = Literal["hnsw", "ivfpq"]

_FORMAT, _FORMAT_VERSION = "labelkit.index", "2.0"
_MAX_LINE = 1 << 16
_CHUNK_BYTES = 1 << 20
# Rows added at once: between these, a signal is answered.
_ROWS_AT_ONCE = 4096
# Of a store this many times as large as the one they were trained on, lists would be too long.
_OUTGROWN = 4
_LINE: dict[str, type | tuple[type, ...]] = {
    "settings": str,
    "rows": int,
    "rows_sha256": str,
    "trained": str,
    "trained_rows": int,
    "store": str,
    "sha256": str,
}


@dataclass(frozen=True)
class IndexPlan:
    """What index is wanted.

    Attributes:
        kind: of index.
        metric: of the rows.
        recipe: how it is built; lists of ``None`` follow from the rows.
        block_rows: rows that share a file.
        at_once: blocks that are built at the same time, at most; more need more memory.
    """

    kind: Kind
    metric: Metric
    recipe: HNSWRecipe | IVFPQRecipe
    block_rows: int
    at_once: int

    def settings(self, dim: int) -> str:
        """Return the digest of what an index depends on besides its rows."""
        values = {
            "format": _FORMAT,
            "format_version": _FORMAT_VERSION,
            "written_by": index_format(),
            "kind": self.kind,
            "metric": self.metric,
            "dim": dim,
            "recipe": asdict(self.recipe),
        }
        return hashlib.sha256(canonical_json(values).encode()).hexdigest()


@dataclass(frozen=True)
class KeptIndex:
    """The index of all rows.

    Attributes:
        pieces: of it, in the order of the rows.
        names: of the pieces: other content has other names.
        built_rows: rows that were added just now.
        size_bytes: of all pieces.
    """

    pieces: tuple[Piece, ...]
    names: tuple[str, ...]
    built_rows: int
    size_bytes: int

    @property
    def path(self) -> Path | None:
        """The first file; ``None`` if it could not be kept."""
        return next((piece for piece in self.pieces if isinstance(piece, Path)), None)


@dataclass(frozen=True)
class _File:
    """An index file in the cache, by its last line."""

    path: Path
    rows: int
    rows_sha256: str
    trained: str
    trained_rows: int
    store: str
    size: int


@dataclass(frozen=True)
class Block:
    """Rows of a gallery that share a file.

    Attributes:
        start, stop: of the rows.
        sha256: of them.
        found: file of the first rows; ``None``: there is none.
    """

    start: int
    stop: int
    sha256: str
    found: _File | None

    @property
    def missing(self) -> int:
        """Rows that no file has."""
        return self.stop - self.start - (0 if self.found is None else self.found.rows)


@dataclass(frozen=True)
class Found:
    """What the cache has of the index of a gallery.

    Attributes:
        order: (g,) places of rows in the gallery, in the order of the index; ``None``: they stand so.
        blocks: of the rows in that order.
    """

    order: NDArray[np.int64] | None
    blocks: list[Block]

    @property
    def missing(self) -> int:
        """Rows that no file has."""
        return sum(block.missing for block in self.blocks)


def look_up(gallery: StoredRows, plan: IndexPlan, *, reorder: bool = True) -> Found:
    """Find what the cache has of the index of a gallery; damaged files are said and removed.

    Args:
        gallery: (g, d) rows.
        plan: of the index.
        reorder: whether the rows may come in another order.
    """
    settings = plan.settings(gallery.shape[1])
    files = _files(_folder(), f"*-{plan.kind}-{settings[:16]}-*.index", settings)
    found = Found(None, _blocks(gallery, plan, files))
    order = _fitting_order(gallery, plan, files) if reorder and files and found.missing else None
    if order is None:
        return found
    other = Found(order, _blocks(gallery.subset(order), plan, [file for file in files if file.path.exists()]))
    return other if other.missing < found.missing else found


def kept_index(store: Path, gallery: StoredRows, plan: IndexPlan, blocks: list[Block]) -> KeptIndex:
    """Extend what the cache has of the index of a gallery, build what it has not, and keep it.

    Args:
        store: file that the rows are of; names files, and what its index replaces is removed.
        gallery: (g, d) rows, in the order that was found.
        plan: of the index.
        blocks: what is there, by :func:`look_up`.

    Raises:
        ValueError: rows and recipe do not fit.
    """
    folder = _folder()
    settings = plan.settings(gallery.shape[1])
    missing = sum(block.missing for block in blocks)
    progress = current_progress()
    trained, trained_rows = next(
        ((block.found.trained, block.found.trained_rows) for block in blocks if block.found is not None), ("", 0)
    )
    pieces: list[Piece | None] = [block.found.path if block.found and not block.missing else None for block in blocks]
    if missing:
        began = time.monotonic()
        verb = "building" if missing == len(gallery) else "extending"
        with progress.task(f"{verb} the {plan.kind} index of {len(gallery):,} rows", total=missing) as task:
            empty = _empty(gallery, plan, blocks)
            if not trained:
                trained, trained_rows = hashlib.sha256(empty.data).hexdigest(), len(gallery)
            line = {
                "settings": settings,
                "trained": trained,
                "trained_rows": trained_rows,
                "store": str(store.absolute()),
            }
            with contextlib.suppress(OSError):  # said when a file cannot be written there
                folder.mkdir(parents=True, exist_ok=True)
            builder = _Builder(gallery, plan, empty, line, folder / f"{store.stem}-{plan.kind}-{settings[:16]}", task)
            pieces = builder.build(blocks, pieces)
        took = f"in {time.monotonic() - began:.1f} s"
        if missing == len(gallery):
            progress.message(f"built the {plan.kind} index {took}")
        else:
            progress.message(f"extended the {plan.kind} index by {missing:,} rows {took}")
    ready = tuple(piece for piece in pieces if piece is not None)
    names = tuple(_name(trained, block.sha256) for block in blocks)
    return KeptIndex(ready, names, missing, sum(map(_size, ready)))


def _folder() -> Path:
    return cache_folder() / "indexes"


def _name(trained: str, sha256: str) -> str:
    return hashlib.sha256(f"{trained} {sha256}".encode()).hexdigest()[:24]


def _size(piece: Piece) -> int:
    if isinstance(piece, Path):
        return piece.stat().st_size
    sizes: list[int] = []
    assert isinstance(piece, BuiltIndex)
    piece.write(lambda data: sizes.append(len(data)))
    return sum(sizes)


# ---- what is there


def _blocks(gallery: StoredRows, plan: IndexPlan, files: list[_File]) -> list[Block]:
    """Cut the rows into blocks, and find the file of each; all of them were trained together."""
    borders = [(start, min(start + plan.block_rows, len(gallery))) for start in range(0, len(gallery), plan.block_rows)]
    digests, matching = [], []
    for start, stop in borders:
        fitting = [file for file in files if start + file.rows <= stop]
        found = _digests(gallery, start, {stop, *(start + file.rows for file in fitting)})
        digests.append(found[stop])
        matching.append([file for file in fitting if found[start + file.rows] == file.rows_sha256])
    usable = {file.trained: file for files in matching for file in files}
    if isinstance(plan.recipe, IVFPQRecipe) and plan.recipe.num_lists is None:
        usable = {key: file for key, file in usable.items() if len(gallery) <= _OUTGROWN * file.trained_rows}

    def largest(trained: str) -> list[_File | None]:
        return [
            max((file for file in files if file.trained == trained), key=lambda file: file.rows, default=None)
            for files in matching
        ]

    chosen: list[_File | None] = max(
        (largest(trained) for trained in sorted(usable)),
        key=lambda files: sum(file.rows for file in files if file is not None),
        default=[None] * len(borders),
    )
    sound = [None if file is None or not _is_sound(file) else file for file in chosen]
    return [
        Block(start, stop, digest, file) for (start, stop), digest, file in zip(borders, digests, sound, strict=True)
    ]


def _digests(gallery: StoredRows, start: int, stops: set[int]) -> dict[int, str]:
    """SHA-256 of the rows from ``start`` up to each stop."""
    digest, at, found = hashlib.sha256(), start, {}
    step = max(1, _CHUNK_BYTES // (4 * gallery.shape[1]))
    for stop in sorted(stops):
        for first in range(at, stop, step):
            digest.update(np.ascontiguousarray(gallery[first : min(first + step, stop)]).data)
        found[stop], at = digest.hexdigest(), stop
    return found


def _row_keys(gallery: StoredRows, start: int, stop: int) -> NDArray[np.uint64]:
    """A number for each row [start, stop): equal for equal rows, and hardly ever for others."""
    dim = gallery.shape[1]
    factors = np.random.default_rng(0).integers(0, 1 << 63, dim, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    keys = np.empty(stop - start, dtype="<u8")
    step = max(1, _CHUNK_BYTES // (4 * dim))
    for first in range(start, stop, step):
        last = min(first + step, stop)
        bits = np.ascontiguousarray(gallery[first:last]).view(np.uint32).astype(np.uint64)
        keys[first - start : last - start] = (bits * factors).sum(axis=1, dtype=np.uint64)
    return keys


def _fitting_order(gallery: StoredRows, plan: IndexPlan, files: list[_File]) -> NDArray[np.int64] | None:
    """Return an order of the rows that begins with those of files: full ones, and one that has fewer rows.

    Only files of which the gallery has every row are taken. ``None``: there is none.
    """
    keys = _row_keys(gallery, 0, len(gallery))
    best: list[NDArray[np.int64]] = []
    for trained in sorted({file.trained for file in files}):
        mine = sorted((file for file in files if file.trained == trained), key=lambda file: -file.rows)
        taken: list[NDArray[np.int64]] = []
        free = np.arange(len(gallery))
        for file in mine:
            if file.rows > min(plan.block_rows, len(free)):
                continue
            places = _places(_keys_of(file), keys[free])
            if places is not None:
                taken.append(free[places])
                free = np.delete(free, places)
                if file.rows < plan.block_rows:
                    break
        if sum(map(len, taken)) > sum(map(len, best)):
            best = taken
    if not best:
        return None
    rest = np.ones(len(gallery), dtype=np.bool_)
    rest[np.concatenate(best)] = False
    return np.concatenate([*best, np.flatnonzero(rest)])


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


def _keys_of(file: _File) -> NDArray[np.uint64]:
    """The keys of the rows of a file; none, which fits no rows, where they cannot be read."""
    try:
        with _opened(file.path) as opened:
            _, length = _last_line(opened)
            opened.seek(max(0, length - 8 * file.rows))
            keys = np.frombuffer(opened.read(8 * file.rows), dtype="<u8")
    except (OSError, ValueError, LabelkitError) as error:
        _say_damaged(file.path, error)
        return np.zeros(file.rows, dtype="<u8")
    return keys


def _files(folder: Path, pattern: str, settings: str) -> list[_File]:
    """Return the index files of these settings; a damaged one is said and removed."""
    found = []
    for path in sorted(folder.glob(pattern)):
        try:
            with _opened(path) as file:
                line, _ = _last_line(file)
            if line["settings"] == settings:
                del line["settings"], line["sha256"]
                found.append(_File(path=path, size=path.stat().st_size, **line))
        except (OSError, ValueError, LabelkitError) as error:
            _say_damaged(path, error)
    return found


def _opened(path: Path) -> BinaryIO:
    """Open a file of the cache.

    Raises:
        ValueError: it belongs to another user, who may have put anything into it, with a digest to match.
        OSError: it is no regular file, or the system does not let us read it.
    """
    file = open_regular(path)
    if hasattr(os, "getuid") and os.fstat(file.fileno()).st_uid != os.getuid():
        file.close()
        raise ValueError("it belongs to another user")
    return file


def _last_line(file: BinaryIO) -> tuple[dict[str, Any], int]:
    """Return what the last line of an index file says, and the bytes before it.

    Raises:
        ValueError: there is none.
    """
    size = os.fstat(file.fileno()).st_size
    file.seek(max(0, size - _MAX_LINE))
    before, end, line = file.read().rstrip(b"\n").rpartition(b"\n")
    if not end or not before:
        raise ValueError("it has no last line that says what it is of")
    return parse_object(line, _LINE), size - len(line) - 2


def _is_sound(kept: _File) -> bool:
    """Compare a file with its digest; a damaged one is said and removed."""
    try:
        with _opened(kept.path) as file:
            line, length = _last_line(file)
            file.seek(0)
            digest = hashlib.sha256()
            while length:
                data = file.read(min(length, _CHUNK_BYTES))
                if not data:
                    raise ValueError("it was cut")
                digest.update(data)
                length -= len(data)
            expected = line.pop("sha256")
            digest.update(canonical_json(line).encode())
            if digest.hexdigest() != expected:
                raise ValueError("its bytes are not those that were written")
    except (OSError, ValueError, LabelkitError) as error:
        _say_damaged(kept.path, error)
        return False
    return True


def _say_damaged(path: Path, error: Exception) -> None:
    reason = error.problem if isinstance(error, LabelkitError) else str(error)
    current_progress().warning(f"{path} is damaged ({reason}); the index is built again")
    discard(path)


def discard(path: Path) -> None:
    """Remove an index file and what was measured of it, as far as the system lets us."""
    for old in (path, *path.parent.glob(f"{path.stem}-*.json")):
        with contextlib.suppress(OSError):
            old.unlink()


# ---- what is to be built


def _empty(gallery: StoredRows, plan: IndexPlan, blocks: list[Block]) -> NDArray[np.uint8]:
    """An index without rows: as files were built from that are there, or trained now."""
    for block in blocks:
        if block.found is not None:
            return without_rows(block.found.path)
    return empty_index(gallery, plan.recipe, metric=plan.metric)


@dataclass
class _Builder:
    """Builds blocks, several at the same time.

    Attributes:
        gallery: all rows.
        plan: of the index.
        empty: what a block without a file begins with.
        line: what the last line of every file says.
        stem: what the name of every file begins with.
        task: counts rows.
    """

    gallery: StoredRows
    plan: IndexPlan
    empty: NDArray[np.uint8]
    line: dict[str, Any]
    stem: Path
    task: Task

    def __post_init__(self) -> None:
        self._stopped = threading.Event()
        self._counting = threading.Lock()

    def build(self, blocks: list[Block], pieces: list[Piece | None]) -> list[Piece | None]:
        """Return the pieces with those that were missing.

        Raises:
            ValueError: rows do not fit.
        """
        missing = [number for number, block in enumerate(blocks) if block.missing]
        threads = num_threads()
        at_once = min(len(missing), threads, self.plan.at_once)
        built = list(pieces)
        if at_once <= 1:
            for number in missing:
                built[number] = self._keep(blocks[number], self._extended(blocks[number]))
            return built

        def work(number: int) -> BuiltIndex:
            use_threads(max(1, threads // at_once))
            return self._extended(blocks[number])

        with ThreadPoolExecutor(at_once) as pool:
            try:
                # kept by this thread, so that warnings are said by one
                for number, index in zip(missing, pool.map(work, missing), strict=True):
                    built[number] = self._keep(blocks[number], index)
            except BaseException:
                self._stopped.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        return built

    def _extended(self, block: Block) -> BuiltIndex:
        base = self.empty if block.found is None else block.found.path
        return extend_index(base, self._parts(block), metric=self.plan.metric)

    def _parts(self, block: Block) -> Iterator[NDArray[np.float32]]:
        for start in range(block.stop - block.missing, block.stop, _ROWS_AT_ONCE):
            if self._stopped.is_set():
                return
            stop = min(start + _ROWS_AT_ONCE, block.stop)
            yield self.gallery[start:stop]
            with self._counting:
                self.task.advance(stop - start)

    def _keep(self, block: Block, index: BuiltIndex) -> Piece:
        """Write a file, whole or not at all, and remove what it replaces; the index itself if that cannot be."""
        line = {**self.line, "rows": len(index), "rows_sha256": block.sha256}
        path = self.stem.with_name(f"{self.stem.name}-{_name(line['trained'], block.sha256)}.index")

        def write(file: BinaryIO) -> None:
            digest = hashlib.sha256()

            def take(data: bytes) -> None:
                digest.update(data)
                file.write(data)

            index.write(take)
            take(_row_keys(self.gallery, block.start, block.stop).tobytes())
            digest.update(canonical_json(line).encode())
            file.write(b"\n" + canonical_json({**line, "sha256": digest.hexdigest()}).encode() + b"\n")

        try:
            commit_file(path, write)
        except (OSError, LabelkitError) as error:
            current_progress().warning(f"the index could not be kept and will be built again next time: {error}")
            return index
        if block.found is not None and block.found.store == line["store"] and block.found.path != path:
            discard(block.found.path)
        return path

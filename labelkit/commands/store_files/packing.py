"""Put a store and its results into one file, for sending; the originals stay as they are.

The file is a store: commands read it and its results as they do those beside a store. Everything is copied as it is
stored, so that all digests stay what they were, and the same content gives the same bytes. The format is described in
``docs/inside/file_format.txt``.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.results import Cell, SimpleResult, Table
from labelkit.commands.store_files.options import PackConfig
from labelkit.errors import Mismatch, Refused, StoreError, output_exists, resource_error
from labelkit.progress import current_progress
from labelkit.store import schema
from labelkit.store.commit import temporary_name
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.parts import check_space, size_of
from labelkit.store.patches import patches_folder
from labelkit.store.reader import CheckedFile, in_results, open_file, shards_folder
from labelkit.store.results import Result, list_results, open_result, read_result
from labelkit.store.writer import Contents, Image, Sharding, Stream, install_store


def pack_results(config: PackConfig) -> SimpleResult:
    """Write a file with the store and all its results; or the file and shards of it.

    Raises:
        ConfigError: the output is the store itself.
        StoreError: the store or a result cannot be used, results are stale, or the output has other content.
        ResourceError: the disk is full, no permission, ...
    """
    store = open_store(config.index)
    packed = pack_store(
        store,
        config.out,
        sharding=Sharding.of(config.shards, config.shard_rows),
        overwrite=config.overwrite,
    )
    progress = current_progress()
    if packed.already_there:
        progress.message(f"{packed.path} was there already, with the same content")
    has_patches = patches_folder(config.index).is_dir()
    if has_patches:
        progress.message(f"the patches in {patches_folder(config.index)} are files of their own and stay there")
    values: dict[str, object] = {
        "index": config.index,
        "path": packed.path,
        "content_digest": packed.content_digest,
        "rows": store.n,
        "shards": packed.shards,
        "results": list(packed.results),
        "bytes": packed.size,
        "already_there": packed.already_there,
        "patches_left_out": has_patches,
    }
    rows: list[list[Cell]] = [[name] for name in packed.results]
    split = f" in {packed.shards} shards" if packed.shards else ""
    count = "1 result" if len(packed.results) == 1 else f"{len(packed.results)} results"
    title = f"{store.n:,} rows{split} and {count}, {packed.size / 1e6:.2f} MB"
    return SimpleResult(values, (packed.path,), (Table(title, ["result"], rows),))


_SMALL_BYTES = 1 << 16


@dataclass(frozen=True)
class PackedStore:
    """What was packed.

    Attributes:
        path: the file.
        content_digest: of the store, also of the one it was made from.
        results: names of the results in it, sorted.
        size: bytes of the file, and of its shards.
        shards: files that the rows are spread over; 0: they are in the file itself.
        already_there: it existed with the same content, and was left as it is.
    """

    path: Path
    content_digest: str
    results: tuple[str, ...]
    size: int
    shards: int
    already_there: bool


def pack_store(
    store: EmbeddingStore,
    out: Path,
    *,
    sharding: Sharding | None = None,
    overwrite: bool = False,
) -> PackedStore:
    """Write a file with the store and all its results, complete or not at all; arrays are copied block by block.

    Args:
        store: the store; it may be packed itself.
        out: file to write.
        sharding: how the new store is split; ``None``: it is one file, also where the old one is split.
        overwrite: replace a file of other content. The same content written twice is no error.

    Raises:
        StoreError: results cannot be used, all of them named.
        OutputExistsError: the file is there and has other content.
        Damaged: a block of rows is not as it was written.
        ResourceError: the disk is full, no permission, ...
    """
    results = _usable_results(store)
    if not overwrite and out.exists():
        there = _check_same(out, store, results, sharded=sharding is not None)
        size = out.stat().st_size
        return PackedStore(out, store.content_digest, tuple(results), size, there.num_shards, already_there=True)
    with ExitStack() as stack:
        file = stack.enter_context(open_file(store.path, schema.FORMAT_STORE))
        if file.content_digest != store.content_digest:
            raise Mismatch(str(store.path), "was replaced while it was open", "Run the same command again.")
        contents, groups = Contents(), {"results"} if results else set()
        _take(file, "", contents, groups)
        for name in results:
            _take(stack.enter_context(open_result(store, name)), f"results/{name}/", contents, groups)
        whole = Image.verbatim(contents, groups)
        check_space(out, whole.num_bytes, out, "the packed store")
        try:
            shards = len(install_store(whole, out, out.parent / temporary_name(), sharding=sharding, replace=overwrite))
        except FileExistsError:
            # Another process was first, just now.
            shards = _check_same(out, store, results, sharded=sharding is not None).num_shards
        except UnicodeEncodeError as error:
            problem = f"would hold {error.object!r}, a name that is not UTF-8"
            raise Refused(str(out), problem, "Delete the results that other programs made.") from error
        except OSError as error:
            raise resource_error(error, str(out)) from error
    size = size_of(out) + sum(map(size_of, shards_folder(out).glob("*.h5") if shards else ()))
    return PackedStore(out, store.content_digest, tuple(results), size, shards, already_there=False)


def _usable_results(store: EmbeddingStore) -> dict[str, Result]:
    """Read all results, so that none is packed that no command would take."""
    found: dict[str, Result] = {}
    faults: list[StoreError] = []
    for name in list_results(store):
        try:
            found[name] = read_result(store, name)
        except StoreError as error:
            faults.append(error)
    if len(faults) == 1:
        raise faults[0]
    if faults:
        listed = "".join(f"\n{fault.where}: {fault.problem}" for fault in faults)
        remedy = "Make them again with --overwrite, or delete them."
        raise StoreError(str(store.path), f"{len(faults)} of its results cannot be used:{listed}\n", remedy)
    return found


def _check_same(out: Path, store: EmbeddingStore, results: dict[str, Result], *, sharded: bool) -> EmbeddingStore:
    """Accept a file that holds the same already, and return it.

    Raises:
        OutputExistsError: it holds something else.
    """
    try:
        there = open_store(out)
        packed = {name: read_result(there, name, allow_stale=True).content_digest for name in there.packed_results}
    except StoreError as error:
        raise output_exists(out, state=f"and cannot be used ({error.problem})") from error
    wanted = {name: result.content_digest for name, result in results.items()}
    if there.content_digest != store.content_digest or packed != wanted:
        raise output_exists(out, state="and has other content")
    if sharded != bool(there.num_shards):
        raise output_exists(out, state="and holds the same " + ("in one file" if sharded else "in shards"))
    return there


def _take(file: CheckedFile, group: str, contents: Contents, groups: set[str]) -> None:
    """Add all of a file but its packed results; it must stay open until all is written."""
    for path in file.groups:
        if not in_results(path):
            groups.add(f"{group}{path}".strip("/"))
    for path in file.datasets:
        if not in_results(path):
            contents.datasets[group + path] = _data(file, path)
    for path, values in file.stored_attributes.items():
        if not in_results(path):
            contents.attributes[f"{group}{path}".strip("/")] = dict(values)


def _data(file: CheckedFile, path: str) -> NDArray[Any] | Stream:
    info = file.datasets[path]
    if not info.shape or info.nbytes <= _SMALL_BYTES:
        return file.read(path)
    return Stream(
        np.dtype(info.dtype),
        info.shape,
        lambda: file.verified_blocks(path),
        part=lambda start, stop: file.verified_blocks(path, start, stop),
    )

"""Pack a store and its results into one file, for example to send it; the originals are not changed.

The file is itself a store: commands read the results in it like those next to a store. Everything is copied unchanged,
so all digests remain the same, and the same content gives the same bytes. For the format, see
``docs/inside/file_format.txt``.
"""

import math
from contextlib import ExitStack
from itertools import filterfalse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.results import CommandResult, Table
from labelkit.commands.store_files.options import PackConfig
from labelkit.errors import Mismatch, output_exists_error
from labelkit.progress import current_progress
from labelkit.store import schema
from labelkit.store.commit import temporary_name
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.parts import check_disk_space
from labelkit.store.patches import patches_folder
from labelkit.store.reader import CheckedFile, is_in_results, open_checked_file, shards_folder
from labelkit.store.results import list_results, open_result, read_result
from labelkit.store.writer import FileContents, StreamedDataset, write_store_files


def pack_results(config: PackConfig) -> CommandResult:
    """Write a store and all its results to a single file, or to a file with shards.

    Raises:
        OutputExistsError: the output exists.
        StoreError: the store or a result cannot be used, or a result belongs to another version of the store.
        ResourceError: writing failed, for example because the disk is full.
    """
    store = open_store(config.index)
    packed = pack_store(store, config.out, shards=config.shards, overwrite=config.overwrite)
    size = packed.path.stat().st_size
    if packed.num_shards:
        size += sum(path.stat().st_size for path in shards_folder(packed.path).glob("*.h5"))
    patches = patches_folder(config.index)
    if patches.is_dir():
        current_progress().message(f"the patch files in {patches} are stored separately and will not be removed")
    values: dict[str, object] = {
        "index": config.index,
        "path": packed.path,
        "content_digest": packed.content_digest,
        "rows": store.n,
        "shards": packed.num_shards,
        "results": list(packed.packed_results),
        "bytes": size,
        "patches_left_out": patches.is_dir(),
    }
    split = f" in {packed.num_shards} shards" if packed.num_shards else ""
    title = f"{store.n:,} rows{split} and all results, {size / 1e6:.2f} MB"
    return CommandResult(
        values, (packed.path,), (Table(title, ["result"], [[name] for name in packed.packed_results]),)
    )


_SMALL_BYTES = 1 << 16


def pack_store(
    store: EmbeddingStore, out: Path, *, shards: int | None = None, overwrite: bool = False
) -> EmbeddingStore:
    """Write a store and its results to one file, block by block and atomically; return the new store.

    Args:
        store: the store, which may itself be packed.
        out: output file.
        shards: number of shards; ``None``: a single file, even if the old store has shards.
        overwrite: replace an existing file.

    Raises:
        StoreError: a result cannot be used.
        OutputExistsError: the file exists.
        Damaged: a block of rows has changed since it was written.
        ResourceError: writing failed, for example because the disk is full.
    """
    if out.exists() and not overwrite:
        raise output_exists_error(out)
    results = [read_result(store, name).name for name in list_results(store)]
    with ExitStack() as stack:
        file = stack.enter_context(open_checked_file(store.path, schema.FORMAT_STORE))
        if file.content_digest != store.content_digest:
            raise Mismatch(str(store.path), "was replaced while it was open", "Run the same command again.")
        contents = FileContents()
        _add_contents(file, "", contents)
        for name in results:
            _add_contents(stack.enter_context(open_result(store, name)), f"results/{name}/", contents)
        size = sum(data.dtype.itemsize * math.prod(data.shape) for data in contents.datasets.values())
        check_disk_space(out, size, out, "the packed store")
        write_store_files(contents, out, out.parent / temporary_name(), shards=shards, replace=overwrite)
    return open_store(out)


def _add_contents(file: CheckedFile, group: str, contents: FileContents) -> None:
    """Add the contents of a file except packed results; the file must stay open until everything is written."""
    for path in filterfalse(is_in_results, [*file.groups, *file.datasets]):
        contents.attributes[f"{group}{path}".strip("/")] = dict(file.stored_attributes.get(path, {}))
    for path, info in file.datasets.items():
        if not is_in_results(path):

            def read(start: int, stop: int, path: str = path) -> NDArray[Any]:
                return np.concatenate([*file.iterate_verified_blocks(path, start, stop)])

            is_small = not info.shape or info.nbytes <= _SMALL_BYTES
            contents.datasets[group + path] = (
                file.read(path) if is_small else StreamedDataset(info.dtype, info.shape, read)
            )

"""Put a store and its results into one file."""

from __future__ import annotations

from labelkit.commands.common.results import Cell, SimpleResult, Table
from labelkit.commands.store_files.options import PackConfig
from labelkit.progress import current_progress
from labelkit.store.embeddings import open_store
from labelkit.store.packing import pack_store
from labelkit.store.patches import patches_folder
from labelkit.store.shard_writing import Sharding


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
        allow_stale=config.allow_stale,
        overwrite=config.overwrite,
    )
    progress = current_progress()
    if packed.already_there:
        progress.message(f"{packed.path} was there already, with the same content")
    has_patches = patches_folder(config.index).is_dir()
    if has_patches:
        progress.message(f"the patches in {patches_folder(config.index)} are files of their own and stay there")
    if packed.stale:
        progress.warning(f"packed although made from other content: {', '.join(packed.stale)}")
    values: dict[str, object] = {
        "index": config.index,
        "path": packed.path,
        "content_digest": packed.content_digest,
        "rows": store.n,
        "shards": packed.shards,
        "results": list(packed.results),
        "stale": list(packed.stale),
        "bytes": packed.size,
        "already_there": packed.already_there,
        "patches_left_out": has_patches,
    }
    rows: list[list[Cell]] = [[name, "stale" if name in packed.stale else "ok"] for name in packed.results]
    split = f" in {packed.shards} shards" if packed.shards else ""
    count = "1 result" if len(packed.results) == 1 else f"{len(packed.results)} results"
    title = f"{store.n:,} rows{split} and {count}, {packed.size / 1e6:.2f} MB"
    return SimpleResult(values, (packed.path,), (Table(title, ["result", "state"], rows),))

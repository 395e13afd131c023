"""What options say about the shards of a store, and what a user is told about those that were left out."""

from __future__ import annotations

from pathlib import Path

from labelkit.config.mixins import ShardsOptions
from labelkit.stages.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.results import Result
from labelkit.store.shard_writing import Sharding


def sharding_of(config: ShardsOptions) -> Sharding | None:
    """Return how a new store is split; ``None``: it is one file."""
    if config.shards is None and config.shard_rows is None:
        return None
    return Sharding(config.shards, config.shard_rows)


def say_if_split_otherwise(store: EmbeddingStore, asked: Sharding | None) -> None:
    """Warn where a store that was there already is not split as options say: it stays as it is."""
    held = f"in {store.num_shards} shards" if store.num_shards else "in one file"
    wanted: tuple[tuple[int, int], ...] = ()
    if asked is not None:
        columns = {"embeddings": store.embeddings, **store.extras}
        if store.view_embeddings is not None:
            columns["view_embeddings"] = store.view_embeddings.reshape(store.n, -1)
        row_bytes = {name: rows.dtype.itemsize * rows.shape[1] for name, rows in columns.items()}
        wanted = tuple(asked.borders(store.n, row_bytes))
    if store.shard_borders != wanted:
        current_progress().warning(f"{store.path} was there already and stays {held}; `labelkit pack` splits it anew")


def open_rest(path: Path, *, skip_damaged: bool) -> EmbeddingStore:
    """Open a store; where damaged shards may be left out, say which these are.

    Raises:
        StoreError: it cannot be used, or not even in part.
    """
    store = open_store(path, skip_damaged=skip_damaged)
    for fault in store.damaged:
        current_progress().warning(f"left out: {fault.where}: {fault.problem}")
    if store.damaged:
        current_progress().warning(f"{num_left_out(store):,} of {store.n:,} rows of {path} are left out")
    return store


def left_out_params(store: EmbeddingStore) -> dict[str, object]:
    """What a result notes of rows that were left out; nothing where none were."""
    return {"left_out": num_left_out(store)} if store.damaged else {}


def num_left_out(store: EmbeddingStore) -> int:
    """Rows in damaged shards that a store was opened without."""
    return int((~store.sound).sum())


def say_if_made_without_rows(store: EmbeddingStore, result: Result) -> None:
    """Warn where a result was made while shards were left out that the store has again."""
    missing = result.params.get("left_out", 0)
    if isinstance(missing, int) and missing > num_left_out(store):
        current_progress().warning(
            f"{result.name} was made without {missing:,} of the {store.n:,} rows (--skip-damaged), which are there "
            f"again: they have no group until `labelkit {result.stage}` is run again with --overwrite"
        )

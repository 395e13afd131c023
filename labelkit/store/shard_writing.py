"""Write a store in shards: first the shards, then the index, so that the store appears complete or not at all.

The content is that of a store in one file, with the same content digest; see ``labelkit.store.shards``.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from labelkit.errors import StoreError
from labelkit.store import schema
from labelkit.store.commit import fill_new, fsync_folder, install, write_new
from labelkit.store.digests import sha256_of
from labelkit.store.reader import open_file
from labelkit.store.shards import SHARD_NAME, Shard, ShardColumn, Shards, shards_folder
from labelkit.store.writer import Contents, Image, Stream, attribute_text, rows_of

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Sharding:
    """How a store is split; one of the two is given.

    Attributes:
        count: shards of about equal size.
        rows: most rows of a shard.
    """

    count: int | None = None
    rows: int | None = None

    def __post_init__(self) -> None:
        """Check that one is given.

        Raises:
            ValueError: both or none are, or the number is below 1.
        """
        numbers = [number for number in (self.count, self.rows) if number is not None]
        if len(numbers) != 1 or numbers[0] < 1:
            raise ValueError(f"count or rows of shards must be at least 1, got {self.count} and {self.rows}")

    @classmethod
    def of(cls, count: int | None, rows: int | None) -> Sharding | None:
        """Return how a store is split; ``None`` if neither is given: it is one file."""
        return None if count is None and rows is None else cls(count, rows)

    def borders(self, rows: int) -> tuple[tuple[int, int], ...]:
        """Return first row, and the row after the last one, of each shard of a store of so many rows, at least one."""
        if self.rows is not None:
            cuts = [*range(0, rows, max(self.rows, -(-rows // schema.MAX_SHARDS))), rows]
        else:
            count = min(self.count or 1, rows, schema.MAX_SHARDS)
            cuts = [rows * number // count for number in range(count + 1)]
        return tuple(pairwise(cuts))


def sharded_columns(contents: Contents) -> list[str]:
    """Return the columns that lie in shards: the embeddings, those of views, and further outputs of the model."""
    rows = contents.datasets["embeddings"].shape[0]
    found: list[str] = [name for name in ("embeddings", schema.VIEWS) if name in contents.datasets]
    for name, data in sorted(contents.datasets.items()):
        known = name in schema.STORE_COLUMNS or not schema.WORD.fullmatch(name)
        if not known and data.dtype == np.dtype("<f4") and len(data.shape) == 2 and data.shape[0] == rows:
            found.append(name)
    return found


def install_store(
    image: Image, out: Path, temporary: Path, *, sharding: Sharding | None, replace: bool, alone: bool = False
) -> list[str]:
    """Write a store in one file or in shards, complete or not at all, and remove shards that it replaces.

    The store appears when its shards are there. A failure leaves nothing; what a kill leaves has the same names and
    bytes when the same is done again.

    Args:
        image: the store in one file. Its large columns are arrays, or streams that can be read in parts.
        out: its name.
        temporary: a new name for files that are not complete yet, on the same file system.
        sharding: how it is split; ``None``: it is one file.
        replace: whether a store of this name may be replaced.
        alone: no other process writes this store; then shards that a killed one left go too.

    Returns:
        Names of the shards.

    Raises:
        FileExistsError: ``out`` exists and ``replace`` is false.
        OSError: the disk is full, ...
    """
    old = _names_of(out) if replace else []
    folder = shards_folder(out)
    made: list[Path] = []
    names: list[str] = []
    try:
        if sharding is not None:
            shards = _write_shards(image, sharding, out, temporary, made)
            names, image = [shard.name for shard in shards.files], _index_image(image, shards)
        write_new(out, image.write, replace=replace, temporary=temporary)
    except BaseException:
        # of a store that is there already, another process may have made it: then they are its shards
        if not set(_names_of(out)) & {path.name for path in made}:
            _remove([temporary, *made], folder)
        raise
    if alone:
        old = [path.name for path in folder.glob("*.h5") if SHARD_NAME.fullmatch(path.name)]
    _remove([folder / name for name in old if name not in names], folder)
    return names


def _remove(paths: list[Path], folder: Path) -> None:
    """Remove files that are not needed, and their folder if nothing else is in it."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _write_shards(whole: Image, sharding: Sharding, out: Path, temporary: Path, made: list[Path]) -> Shards:
    """Write all shards; ``made`` gets those that were not there."""
    datasets = whole.contents.datasets
    columns = {
        name: ShardColumn(
            np.dtype(datasets[name].dtype),
            datasets[name].shape[1],
            "" if f"digests/{name}" in datasets else sha256_of(rows_of(datasets[name])).hexdigest(),
        )
        for name in sharded_columns(whole.contents)
    }
    folder = shards_folder(out)
    folder.mkdir(exist_ok=True)
    fsync_folder(folder.parent)
    shards: list[Shard] = []
    for number, (start, stop) in enumerate(sharding.borders(datasets["embeddings"].shape[0])):
        shard = fill_new(temporary, partial(_write_shard, whole, columns, number, start, stop))
        path = folder / shard.name
        made += [] if path.exists() else [path]
        install(temporary, path, replace=True)
        shards.append(shard)
    return Shards(out, columns, tuple(shards))


def _write_shard(
    whole: Image, columns: dict[str, ShardColumn], number: int, start: int, stop: int, file: BinaryIO
) -> Shard:
    """Write a shard into a new file, and describe it."""
    datasets = {name: _between(whole.contents.datasets[name], start, stop) for name in columns}
    contents = Contents.of(schema.FORMAT_SHARD, datasets, shard=number, row_start=start, row_stop=stop)
    contents.set("", store_digest=whole.content_digest)
    # A reader of the index compares rows with its digests; of a shard alone, the content digest covers its bytes.
    image = Image(contents, block_bytes=1 << 62)
    places = image.write(file)
    size = file.seek(0, os.SEEK_END)
    frame, at = hashlib.sha256(), 0
    for offset, name in sorted((places[name], name) for name in columns):
        file.seek(at)
        frame.update(file.read(offset - at))
        at = offset + (stop - start) * columns[name].row_bytes
    file.seek(at)
    frame.update(file.read(size - at))
    offsets = {name: places[name] for name in columns}
    return Shard(number, start, stop, size, frame.hexdigest(), offsets, {name: image.sha256[name] for name in columns})


def _names_of(out: Path) -> list[str]:
    """Names of the shards of the store that is there; none where there is none that can be read."""
    if not shards_folder(out).is_dir() or not out.is_file():
        return []
    try:
        with open_file(out, schema.FORMAT_STORE) as file:
            return [] if file.shards is None else [shard.name for shard in file.shards.files]
    except StoreError:
        return []


def _between(data: Array | Stream, start: int, stop: int) -> Array | Stream:
    return data.between(start, stop) if isinstance(data, Stream) else data[start:stop]


def _index_image(whole: Image, shards: Shards) -> Image:
    datasets = {path: data for path, data in whole.contents.datasets.items() if path not in shards.columns}
    attributes = {path: dict(values) for path, values in whole.contents.attributes.items()}
    words = [word for word in attribute_text(attributes[""].get("requires", "")).split(",") if word]
    attributes[""]["requires"] = ",".join([*words, schema.FEATURE_SHARDED])
    contents = Contents(datasets, attributes)
    contents.set_json("", "shards", shards.to_text())
    return Image.verbatim(contents, whole.groups)

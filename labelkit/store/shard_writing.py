"""Write a store in shards: first the shards, then the index, so that the store appears complete or not at all.

The content is that of a store in one file, with the same content digest; see ``labelkit.store.shards``.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass, replace
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
from labelkit.store.shards import SHARD_NAME, Shard, ShardColumn, ShardTable, gaps, shards_folder
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


@dataclass(frozen=True)
class ShardedImage:
    """A store that is to be written in shards.

    Attributes:
        whole: the store in one file. Its large columns are arrays, or streams that can be read in parts.
        columns: that lie in shards.
        borders: first row, and the row after the last one, of each shard.
    """

    whole: Image
    columns: dict[str, ShardColumn]
    borders: list[tuple[int, int]]

    @classmethod
    def of(cls, whole: Image, sharding: Sharding) -> ShardedImage:
        """Split a store."""
        datasets = whole.contents.datasets
        columns = {
            name: ShardColumn(
                np.dtype(datasets[name].dtype),
                datasets[name].shape[1],
                "" if f"digests/{name}" in datasets else sha256_of(rows_of(datasets[name])).hexdigest(),
            )
            for name in sharded_columns(whole.contents)
        }
        return cls(whole, columns, list(sharding.borders(datasets["embeddings"].shape[0])))

    def install(self, out: Path, temporary: Path, *, replace: bool) -> set[str]:
        """Write all files; the store appears when its shards are there.

        A failure leaves nothing; what a kill leaves has the same names and bytes when the same is done again.

        Args:
            out: the store, ``NAME.h5``.
            temporary: a new name for files that are not complete yet, on the same file system.
            replace: whether a store of this name may be replaced.

        Returns:
            Names of the shards.

        Raises:
            FileExistsError: ``out`` exists and ``replace`` is false.
            OSError: the disk is full, ...
        """
        folder = shards_folder(out)
        is_new = not folder.exists()
        folder.mkdir(exist_ok=True)
        fsync_folder(folder.parent)
        made: list[Path] = []
        shards: list[Shard] = []
        try:
            for number in range(len(self.borders)):
                shards.append(fill_new(temporary, partial(self._write, number)))
                path = folder / shards[-1].name
                if not path.exists():
                    made.append(path)
                install(temporary, path, replace=True)
            index = _index_image(self.whole, ShardTable(self.columns, tuple(shards)))
            write_new(out, index.write, replace=replace, temporary=temporary)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            # of a store that is there already, another process may have made it: then they are its shards
            if not set(_names_of(out)) & {path.name for path in made}:
                for path in made:
                    with contextlib.suppress(OSError):
                        path.unlink(missing_ok=True)
                if is_new:
                    with contextlib.suppress(OSError):
                        folder.rmdir()
            raise
        return {shard.name for shard in shards}

    def _write(self, number: int, file: BinaryIO) -> Shard:
        """Write a shard into a new file, and describe it."""
        start, stop = self.borders[number]
        datasets = {name: _between(self.whole.contents.datasets[name], start, stop) for name in self.columns}
        contents = Contents.of(schema.FORMAT_SHARD, datasets, shard=number, row_start=start, row_stop=stop)
        contents.set("", store_digest=self.whole.content_digest)
        # A reader of the index compares rows with its digests; of a shard alone, the content digest covers its bytes.
        image = Image(contents, block_bytes=1 << 62)
        places = image.write(file)
        offsets = {name: places[name] for name in self.columns}
        sha256 = {name: image.sha256[name] for name in self.columns}
        bare = Shard(number, start, stop, file.seek(0, os.SEEK_END), "", offsets, sha256)
        frame = hashlib.sha256()
        for first, last in gaps(bare.size, ShardTable(self.columns, ()).spans(bare)):
            file.seek(first)
            frame.update(file.read(last - first))
        return replace(bare, frame=frame.hexdigest())


def install_store(
    image: Image | ShardedImage, out: Path, temporary: Path, *, replace: bool, alone: bool = False
) -> None:
    """Write a store in one file or in shards, complete or not at all, and remove shards that it replaces.

    Args:
        image: the store.
        out: its name.
        temporary: a new name for files that are not complete yet, on the same file system.
        replace: whether a store of this name may be replaced.
        alone: no other process writes this store; then shards that a killed one left go too.

    Raises:
        FileExistsError: ``out`` exists and ``replace`` is false.
        OSError: the disk is full, ...
    """
    old = _names_of(out) if replace else []
    kept: set[str] = set()
    if isinstance(image, ShardedImage):
        kept = image.install(out, temporary, replace=replace)
    else:
        write_new(out, image.write, replace=replace, temporary=temporary)
    folder = shards_folder(out)
    if alone:
        old = [path.name for path in folder.glob("*.h5") if SHARD_NAME.fullmatch(path.name)]
    for name in old:
        if name not in kept:
            with contextlib.suppress(OSError):
                (folder / name).unlink(missing_ok=True)
    if not kept and folder.is_dir():
        with contextlib.suppress(OSError):
            folder.rmdir()  # files of others stay


def _names_of(out: Path) -> list[str]:
    """Names of the shards of the store that is there; none where there is none that can be read."""
    if not shards_folder(out).is_dir() or not out.is_file():
        return []
    try:
        with open_file(out, schema.FORMAT_STORE) as file:
            return [] if file.shards is None else [shard.name for shard in file.shards.table.shards]
    except StoreError:
        return []


def _between(data: Array | Stream, start: int, stop: int) -> Array | Stream:
    return data.between(start, stop) if isinstance(data, Stream) else data[start:stop]


def _index_image(whole: Image, table: ShardTable) -> Image:
    datasets = {path: data for path, data in whole.contents.datasets.items() if path not in table.columns}
    attributes = {path: dict(values) for path, values in whole.contents.attributes.items()}
    words = [word for word in attribute_text(attributes[""].get("requires", "")).split(",") if word]
    attributes[""]["requires"] = ",".join([*words, schema.FEATURE_SHARDED])
    contents = Contents(datasets, attributes)
    contents.set_json("", "shards", table.to_text())
    return Image.verbatim(contents, whole.groups)

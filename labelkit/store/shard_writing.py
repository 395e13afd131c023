"""Write a store in shards: first the shards, then the index, so that the store appears complete or not at all.

The content is that of a store in one file, with the same content digest; see ``labelkit.store.shards``.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from labelkit.errors import StoreError
from labelkit.store import schema
from labelkit.store.commit import fsync_folder
from labelkit.store.digests import sha256_of
from labelkit.store.hdf5.writing import Contents, Image, Stream, attribute_text
from labelkit.store.opening import open_file
from labelkit.store.run_folder import install_image
from labelkit.store.shards import SHARD_NAME, Shard, ShardColumn, ShardTable, gaps, shards_folder
from labelkit.store.views import COLUMN as VIEWS

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
    found: list[str] = [name for name in ("embeddings", VIEWS) if name in contents.datasets]
    for name, data in sorted(contents.datasets.items()):
        known = name in schema.STORE_COLUMNS or not schema.WORD.fullmatch(name)
        if not known and data.dtype == np.dtype("<f4") and len(data.shape) == 2 and data.shape[0] == rows:
            found.append(name)
    return found


@dataclass(frozen=True)
class ShardedImage:
    """The bytes of a store in shards.

    Attributes:
        shards: names of their files, and the bytes of each.
        index: of the store's own file.
    """

    shards: list[tuple[str, Image]]
    index: Image

    @classmethod
    def of(cls, whole: Image, sharding: Sharding) -> ShardedImage:
        """Split a store.

        Args:
            whole: the store in one file. Its large columns are arrays, or streams that can be read in parts.
            sharding: how it is split.
        """
        contents = whole.contents
        names = sharded_columns(contents)
        data = {name: contents.datasets[name] for name in names}
        widths = {name: data[name].shape[1] for name in names}
        columns = {
            name: ShardColumn(
                np.dtype(data[name].dtype),
                widths[name],
                "" if f"digests/{name}" in contents.datasets else sha256_of(_rows(data[name])).hexdigest(),
            )
            for name in names
        }
        borders = sharding.borders(data[names[0]].shape[0])
        root = contents.attributes[""]
        images: list[tuple[str, Image]] = []
        described: list[Shard] = []
        for number, (start, stop) in enumerate(borders):
            parts = {name: _between(data[name], start, stop) for name in names}
            image = _shard_image(parts, number, start, stop, root)
            shard = _describe(image, ShardTable(columns, ()), number, start, stop)
            described.append(shard)
            images.append((shard.name, image))
        table = ShardTable(columns, tuple(described))
        return cls(images, _index_image(whole, table))

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return self.index.size + sum(image.size for _, image in self.shards)

    def install(self, out: Path, temporary: Path, *, replace: bool) -> None:
        """Write all files; the store appears when its shards are there.

        A failure leaves nothing; what a kill leaves has the same names and bytes when the same is done again.

        Args:
            out: the store, ``NAME.h5``.
            temporary: a new name for files that are not complete yet, on the same file system.
            replace: whether a store of this name may be replaced.

        Raises:
            FileExistsError: ``out`` exists and ``replace`` is false.
            OSError: the disk is full, ...
        """
        folder = shards_folder(out)
        is_new = not folder.exists()
        folder.mkdir(exist_ok=True)
        fsync_folder(folder.parent)
        made: list[Path] = []
        try:
            for name, image in self.shards:
                path = folder / name
                if not path.exists():
                    made.append(path)
                install_image(image, temporary, path, replace=True)
            install_image(self.index, temporary, out, replace=replace)
        except BaseException:
            # of a store that is there already, another process may have made it: then they are its shards
            if not set(_names_of(out)) & {path.name for path in made}:
                for path in made:
                    with contextlib.suppress(OSError):
                        path.unlink(missing_ok=True)
                if is_new:
                    with contextlib.suppress(OSError):
                        folder.rmdir()
            raise


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
    if isinstance(image, ShardedImage):
        image.install(out, temporary, replace=replace)
    else:
        install_image(image, temporary, out, replace=replace)
    kept = {name for name, _ in image.shards} if isinstance(image, ShardedImage) else set()
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
            return [] if file.table is None else [shard.name for shard in file.table.shards]
    except StoreError:
        return []


def _rows(data: Array | Stream) -> Iterator[Array]:
    if isinstance(data, Stream):
        yield from data.blocks()
    else:
        yield data


def _between(data: Array | Stream, start: int, stop: int) -> Array | Stream:
    return data.between(start, stop) if isinstance(data, Stream) else data[start:stop]


def _shard_image(
    parts: Mapping[str, Array | Stream], number: int, start: int, stop: int, root: Mapping[str, Any]
) -> Image:
    contents = Contents(dict(parts))
    contents.set("", format=schema.FORMAT_SHARD, format_version=schema.FORMAT_VERSION, requires="")
    contents.set("", shard=number, row_start=start, row_stop=stop, store_digest=attribute_text(root["content_digest"]))
    # A reader of the index compares rows with its digests; of a shard alone, the content digest covers its bytes.
    return Image(contents, block_bytes=1 << 62)


def _describe(image: Image, columns: ShardTable, number: int, start: int, stop: int) -> Shard:
    sha256 = {name: image.sha256[name] for name in columns.columns}
    offsets = {name: image.offsets[name] for name in columns.columns}
    bare = Shard(number, start, stop, image.size, "", offsets, sha256)
    frame = hashlib.sha256()
    for first, last in gaps(image.size, columns.spans(bare)):
        frame.update(image.metadata(first, last))
    return Shard(number, start, stop, image.size, frame.hexdigest(), offsets, sha256)


def _index_image(whole: Image, table: ShardTable) -> Image:
    datasets = {path: data for path, data in whole.contents.datasets.items() if path not in table.columns}
    attributes = {path: dict(values) for path, values in whole.contents.attributes.items()}
    words = [word for word in attribute_text(attributes[""].get("requires", "")).split(",") if word]
    attributes[""]["requires"] = ",".join([*words, schema.FEATURE_SHARDED])
    contents = Contents(datasets, attributes)
    contents.set_json("", "shards", table.to_text())
    return Image.verbatim(contents, whole.groups)

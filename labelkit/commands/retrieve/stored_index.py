"""Cache ANN indexes in the user's cache folder, in files named by the digest of the indexed rows.

Indexes are never read from the folder of a store, since faiss cannot safely read untrusted files. The .json file next
to an index contains the path of its store, its measured recall and speed, and its SHA-256.
"""

import contextlib
import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, get_type_hints

import numpy as np

from labelkit.algorithms.indexes import Kind, index_format, write_index
from labelkit.algorithms.neighbors import Metric
from labelkit.algorithms.row_blocks import StoredRows, iterate_blocks
from labelkit.cache import cache_folder
from labelkit.errors import LabelkitError
from labelkit.files import read_record, sha256_file
from labelkit.progress import current_progress
from labelkit.store.commit import canonical_json, commit_file, commit_json

_FORMAT, _FORMAT_VERSION = "labelkit.index", "5.0"


@dataclass(frozen=True)
class IndexQuality:
    """Speed and recall of an index relative to exact search, with rows of the store as queries.

    Attributes:
        width: search width.
        recall: fraction of the exact ``k`` nearest other rows that the index finds.
        k: number of neighbors per query.
        sampled: number of queries.
        exact_ms, index_ms: median time per query in milliseconds.
    """

    width: int
    recall: float
    k: int
    sampled: int
    exact_ms: float
    index_ms: float


_MEASURED: dict[str, type] = get_type_hints(IndexQuality)
_RECORD = {"store": str, "sha256": str, **_MEASURED}


@dataclass(frozen=True)
class CachedIndex:
    """Index of the rows of a store, either cached or yet to be built.

    Attributes:
        kind: kind of index.
        path: path of the index file.
        measured: measured quality; ``None``: the index has not been built yet.
        built: whether this command built the index.
    """

    kind: Kind
    path: Path
    measured: IndexQuality | None = None
    built: bool = False

    @property
    def size_bytes(self) -> int:
        """Size of the index file in bytes; 0 if it does not exist."""
        return self.path.stat().st_size if self.path.exists() else 0

    def to_json(self) -> dict[str, object]:
        """Return a description of the index as JSON."""
        return {
            "kind": self.kind,
            "path": self.path if self.path.exists() else None,
            "built": self.built,
            "bytes": self.size_bytes,
            "measured": None if self.measured is None else asdict(self.measured),
        }


def find_cached_index(store: Path, gallery: StoredRows, kind: Kind, metric: Metric) -> CachedIndex:
    """Look up the index of a gallery (g, d) in the cache; if it is damaged, delete it and warn."""
    digest = hashlib.sha256(canonical_json([_FORMAT, _FORMAT_VERSION, index_format(), kind, metric]).encode())
    for _, part in iterate_blocks(gallery):
        digest.update(np.ascontiguousarray(part).data)
    path = cache_folder() / "indexes" / f"{store.stem}-{kind}-{digest.hexdigest()[:24]}.index"
    try:
        record = read_record(path.parent, path.with_suffix(".json").name, _RECORD)
        if record is None:
            return CachedIndex(kind, path)
        if sha256_file(path) != record["sha256"]:
            raise ValueError("its content has changed")
    except (OSError, ValueError, LabelkitError) as error:
        reason = error.problem if isinstance(error, LabelkitError) else str(error)
        current_progress().warning(f"{path} is damaged ({reason}), so the index is rebuilt")
        delete_index(path)
        return CachedIndex(kind, path)
    return CachedIndex(kind, path, IndexQuality(**{key: record[key] for key in _MEASURED}))


def cache_index(store: Path, index: Any, path: Path, quality: IndexQuality) -> None:
    """Cache an index atomically, and delete indexes of earlier versions of the store; warn if this is not possible."""
    digest, kept_for = hashlib.sha256(), str(store.absolute())

    def write(file: BinaryIO) -> None:
        def take(data: Any) -> None:
            digest.update(data)
            file.write(data)

        write_index(index, take)

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        commit_file(path, write)
        commit_json(path.with_suffix(".json"), {"store": kept_for, "sha256": digest.hexdigest(), **asdict(quality)})
        for other in path.parent.glob(f"{path.name.rpartition('-')[0]}-*.json"):
            record = read_record(other.parent, other.name, _RECORD)
            if other.stem != path.stem and record is not None and record["store"] == kept_for:
                delete_index(other.with_suffix(".index"))
    except (OSError, ValueError, LabelkitError) as error:
        current_progress().warning(f"the index could not be cached and will be rebuilt next time: {error}")


def delete_index(path: Path) -> None:
    """Delete an index file and its record, ignoring file-system errors."""
    for file in (path, path.with_suffix(".json")):
        with contextlib.suppress(OSError):
            file.unlink()

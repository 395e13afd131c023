"""Load the queries of ``retrieve``: rows of the store, rows of another store, or images, which the model embeds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.embeddings import find_zero_embeddings, load_finite_embeddings
from labelkit.commands.common.images.read import open_single_image
from labelkit.commands.common.onnx_session import embed_with_onnx
from labelkit.data.datasets import ImageDataset
from labelkit.data.registry import load_dataset
from labelkit.data.tables import is_folder
from labelkit.errors import ConfigError, DatasetError, Mismatch
from labelkit.files import open_regular_file
from labelkit.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.schema import SIGNATURE

# Up to this number of images, ONNX on the CPU is faster than loading PyTorch to use a GPU.
_FEW = 256
_ZERO = "its embedding is all zeros, so it has no nearest neighbors"


@dataclass(frozen=True)
class Queries:
    """Embedded queries of a search.

    Attributes:
        names: (q,) names, for display.
        embeddings: (q, d) float32.
        sha256: (q, 32) uint8 digests of the image files; ``None`` for embeddings imported without images.
        labels: (q,) class names, ``None`` where unknown.
        rows: (q,) int64, rows of the searched store, -1 for queries from elsewhere.
        skipped: (name, reason) of each unusable query.
        images: dataset of the queries, if they are image files.
        image_rows: (q,) int64, rows of the queries in their dataset or store.
    """

    names: tuple[str, ...]
    embeddings: NDArray[np.float32]
    sha256: NDArray[np.uint8] | None
    labels: tuple[str | None, ...]
    rows: NDArray[np.int64]
    skipped: tuple[tuple[str, str], ...]
    images: ImageDataset | None
    image_rows: NDArray[np.int64]


def is_store(path: Path) -> bool:
    """Return whether a path is an embedding store, judging by its extension or its first bytes."""
    if path.suffix == ".h5":
        return True
    try:
        if not path.is_file():
            return False
        with open_regular_file(path) as file:
            return file.read(len(SIGNATURE)) == SIGNATURE
    except OSError:
        return False


def list_query_images(query: Path, **listing: Any) -> ImageDataset:
    """List the query images: one file, or all images of a folder.

    Raises:
        DatasetError: the path does not exist, or is neither an image nor a folder of images.
    """
    if is_folder(query):
        return load_dataset(str(query), data_root=query, **listing)
    return open_single_image(query)


def load_other_store_queries(index: EmbeddingStore, query: Path) -> Queries:
    """Load all rows of another store as queries; both stores must have been created with the same model.

    Raises:
        StoreError: the other store cannot be used.
        Mismatch: it was created with another model or other preprocessing.
        ConfigError: all of its embeddings are zero, with the cosine metric.
    """
    store = open_store(query)
    differing = store.differences(index)
    if differing:
        raise Mismatch(
            str(query),
            f"was embedded differently from {index.path}: {', '.join(differing)} differ",
            f"Embed the queries with the same model: {index.model.name} from {index.model.source}.",
        )
    return load_store_queries(store, np.arange(store.n, dtype=np.int64), index, str(query))


def load_store_queries(store: EmbeddingStore, rows: NDArray[np.int64], index: EmbeddingStore, where: str) -> Queries:
    """Load rows of a store as queries for the store ``index``, which may be the same store.

    Raises:
        ConfigError: all embeddings are zero, with the cosine metric.
    """
    features = load_finite_embeddings(store, rows)
    usable = ~find_zero_embeddings(features) if index.metric == "cosine" else np.ones(len(rows), dtype=np.bool_)
    if not usable.any():
        raise ConfigError(where, f"{store.sample_ids[rows[0]]}: {_ZERO}", "Choose other rows.")
    skipped = _warn_of_skipped((store.sample_ids[row], _ZERO) for row in rows[~usable])
    rows, features = rows[usable], features[usable]
    own = store.content_digest == index.content_digest
    return Queries(
        names=tuple(store.sample_ids[row] for row in rows),
        embeddings=features,
        sha256=store.sha256[rows] if store.has_images else None,
        labels=tuple(find_class_name(index if own else store, int(row)) for row in rows),
        rows=rows if own else np.full(len(rows), -1, dtype=np.int64),
        skipped=skipped,
        images=None,
        image_rows=rows,
    )


def _warn_of_skipped(skipped: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    found = tuple(skipped)
    for name, reason in found:
        current_progress().warning(f"skipped {name}: {reason}")
    return found


def find_class_name(store: EmbeddingStore, row: int) -> str | None:
    """Return the class name of a row, or ``None`` if it has no label."""
    if store.labels is None or store.labels[row] < 0:
        return None
    return store.class_names[int(store.labels[row])]


def parse_patch_position(patch: Sequence[int], grid: tuple[int, int], name: str) -> tuple[int, int]:
    """Return the row and column in ``--patch`` after checking that the patch exists.

    Raises:
        ConfigError: the position is outside the patch grid.
    """
    row, column = patch
    rows, columns = grid
    if row >= rows or column >= columns:
        problem = f"patch {row},{column} is outside the {rows} x {columns} patch grid of {name}"
        raise ConfigError(
            "--patch", problem, f"Choose a row from 0 to {rows - 1} and a column from 0 to {columns - 1}."
        )
    return row, column


def embed_query_images(
    images: ImageDataset, store: EmbeddingStore, *, checkpoint: Path | None, device: str, where: str
) -> Queries:
    """Embed images as queries, using the model of the searched store.

    Raises:
        CheckpointError: the model of the store is not on this machine.
        Mismatch: ``checkpoint`` is a different model.
        DatasetError: no image can be used.
        ResourceError: the device does not exist.
    """
    # --checkpoint and GPUs require PyTorch
    quick = checkpoint is None and (device == "cpu" or (device == "auto" and len(images) <= _FEW))
    found = embed_with_onnx(images, store.model) if quick else None
    if found is None:
        from labelkit.commands.common.networks import embed_queries, load_recorded_network
        from labelkit.commands.common.onnx_export import cache_onnx  # imports PyTorch

        model = load_recorded_network(store.model, checkpoint)
        found = embed_queries(images, model, device)
        if quick:
            cache_onnx(model.network.to("cpu"), store.model)
    embedded, rows, bad = found
    if store.metric == "cosine":
        zero = find_zero_embeddings(embedded)
        bad += [(int(row), _ZERO) for row in rows[zero]]
        embedded, rows = embedded[~zero], rows[~zero]
    if len(rows) == 0:
        reasons = "; ".join(f"{images.sample_ids[row]}: {reason}" for row, reason in bad[:5])
        raise DatasetError(where, f"has no image that can be used as a query ({reasons})", "Pass a JPEG or PNG file.")
    skipped = _warn_of_skipped((images.sample_ids[row], reason) for row, reason in bad)
    digests = [np.frombuffer(images.source.read(int(row)).sha256, dtype=np.uint8) for row in rows]
    labels = [int(images.labels[row]) for row in rows]
    return Queries(
        names=tuple(images.sample_ids[row] for row in rows),
        embeddings=embedded,
        sha256=np.stack(digests),
        labels=tuple(images.class_names[label] if label >= 0 else None for label in labels),
        rows=np.full(len(rows), -1, dtype=np.int64),
        skipped=skipped,
        images=images,
        image_rows=rows,
    )

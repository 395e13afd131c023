"""Use the embeddings of a store as a training dataset in place of images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.row_blocks import row_slices
from labelkit.commands.common.embeddings import check_nonzero_embeddings, load_finite_embeddings, normalize_embeddings
from labelkit.data.datasets import ImageDataset
from labelkit.data.decode import BadImageError, EncodedImage
from labelkit.data.image_bank import EmbeddingBank
from labelkit.errors import CheckpointError, ConfigError, DatasetError, StoreError
from labelkit.store.embeddings import EmbeddingStore, ModelIdentity, open_store


@dataclass(frozen=True, slots=True)
class PlaceholderImageSource:
    """Image source of a dataset that consists of embeddings; reading from it fails."""

    def read(self, index: int) -> EncodedImage:
        """Raise ``BadImageError``, since the dataset has no image files."""
        raise BadImageError(f"row {index} of the training store is an embedding, not an image")


@dataclass(frozen=True, eq=False)
class EmbeddingDataset:
    """Embeddings of a store, used as a training dataset.

    Attributes:
        store: the store.
        features: (n, d) float32, all embeddings of the store, normalized.
        views: (n, v, d), unnormalized embeddings of augmented views for training; ``None``: train on ``features``.
    """

    store: EmbeddingStore
    features: NDArray[np.float32]
    views: NDArray[Any] | None = None

    @classmethod
    def from_store(cls, path: Path, *, views: Literal["auto", "on", "off"] = "off") -> EmbeddingDataset:
        """Load the embeddings of a store as a training dataset, with stored views if requested (auto: if present).

        Raises:
            StoreError: the file is not a store, is damaged, or contains all-zero embeddings.
            ConfigError: views are required, but the store has none.
        """
        store = open_store(path)
        every = np.arange(store.n, dtype=np.int64)
        features = load_finite_embeddings(store, every)
        check_nonzero_embeddings(store, every, features)
        if store.n < 2:
            problem = "contains only one embedding, but training requires at least two"
            raise DatasetError(str(path), problem, "Embed more images.")
        stored = None if views == "off" else _read_stored_views(store, needed=views == "on")
        return cls(store, normalize_embeddings(features), stored)

    def build_bank(self, dataset: ImageDataset, *, num_neighbors: int, device: Any) -> EmbeddingBank:
        """Build a bank for training that contains the embeddings of a dataset's samples, in the same order."""
        places = self._places(dataset)
        return EmbeddingBank(
            dataset,
            np.ascontiguousarray(self.features[places]),
            num_neighbors=num_neighbors,
            stored=self.views,
            stored_rows=None if self.views is None else places,
            sha256=self.store.sha256[places] if self.store.has_images else None,
            device=device,
        )

    def select_embeddings(self, dataset: ImageDataset) -> NDArray[np.float32]:
        """Return the embeddings (m, d) float32 of a dataset's samples."""
        return np.ascontiguousarray(self.features[self._places(dataset)])

    def _places(self, dataset: ImageDataset) -> NDArray[np.int64]:
        place = {name: row for row, name in enumerate(self.store.sample_ids)}
        return np.array([place[name] for name in dataset.sample_ids], dtype=np.int64)

    def to_json(self) -> dict[str, Any]:
        """Return the path, digest, dimension and model of the training store as plain JSON for the run's records."""
        return {
            "index": str(self.store.path),
            "content_digest": self.store.content_digest,
            "dim": self.store.dim,
            "model": self.store.model.to_json(),
        }


def _read_stored_views(store: EmbeddingStore, *, needed: bool) -> NDArray[Any] | None:
    """Return the view embeddings of a store after checking that none is all zeros; ``None`` if there are none."""
    views = store.view_embeddings
    if views is None and needed:
        remedy = "Embed the images with `labelkit embed --views 8`, or remove --row-views."
        raise ConfigError("--row-views on", f"{store.path} has no embeddings of augmented views", remedy)
    if views is None:
        return None
    for where in row_slices(store.n, views.shape[1] * views.shape[2]):
        zero = np.logical_not((views[where] != 0).any(axis=2))
        if zero.any():
            first = store.sample_ids[where.start + int(np.flatnonzero(zero.any(axis=1))[0])]
            problem = f"the embedding of a view of {first} is all zeros, so it has no direction"
            raise StoreError(f"{store.path}:/view_embeddings", problem, "Train with --row-views off.")
    return views


def load_store_as_dataset(store: EmbeddingStore) -> ImageDataset:
    """Return a dataset without images whose samples are the embeddings of a store, identified by the store's digest."""
    n = store.n
    labels = np.full(n, -1, dtype=np.int64) if store.labels is None else np.asarray(store.labels, dtype=np.int64)
    labeled = np.zeros(n, dtype=np.bool_) if store.labeled is None else np.asarray(store.labeled, dtype=np.bool_)
    return ImageDataset(
        name=store.path.stem,
        root=None,
        sample_ids=tuple(store.sample_ids),
        labels=labels,
        given=labeled & (labels >= 0),
        class_names=tuple(store.class_names),
        splits=np.full(n, -1, dtype=np.int16) if store.splits is None else store.splits,
        split_names=tuple(store.split_names),
        in_channels=1,
        chiral=True,
        photographic=False,
        source=PlaceholderImageSource(),
        content=store.content_digest,
    )


def read_embedding_model(saved: Mapping[str, Any], where: str) -> ModelIdentity | None:
    """Read from a run's ``split.json`` which model produced its training embeddings; ``None`` for runs on images.

    Raises:
        CheckpointError: the recorded model cannot be used.
    """
    if "rows" not in saved:
        return None
    try:
        record = {key: value for key, value in saved["rows"]["model"].items() if key != "preprocess_digest"}
        return ModelIdentity(**record)
    except (KeyError, TypeError, AttributeError) as error:
        problem = f"does not record which model computed its embeddings: {error}"
        raise CheckpointError(where, problem, "Restore the file.") from error

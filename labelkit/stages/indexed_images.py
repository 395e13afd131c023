"""The images behind the rows of a store, wherever they are on this machine."""

from __future__ import annotations

from pathlib import Path

from labelkit.data.datasets import ImageDataset, load_dataset
from labelkit.errors import DatasetError, LabelkitError
from labelkit.stages.locations import find_images
from labelkit.store.embeddings import EmbeddingStore


def indexed_images(store: EmbeddingStore, dataset: str | None, data_root: Path) -> ImageDataset:
    """List them; rows of the listing belong to rows of the store by sample id.

    Args:
        store: the store.
        dataset: where they are; default: where they were last seen.
        data_root: folder where named sets live, with ``dataset``.

    Raises:
        DatasetError: they are not where they were.
    """
    place = (dataset, data_root) if dataset is not None else find_images(store.content_digest)
    if place is None:
        raise DatasetError(
            str(store.path), "it is not known on this machine where its images are", "Pass --dataset (and --data-root)."
        )
    try:
        return load_dataset(place[0], data_root=place[1])
    except LabelkitError as error:
        raise DatasetError(
            place[0], f"the images of {store.path} cannot be listed: {error}", "Pass --dataset (and --data-root)."
        ) from error

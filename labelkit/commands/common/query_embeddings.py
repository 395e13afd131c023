"""Embed a few images with a network that is ready."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from labelkit.commands.common.networks import EmbeddingNetwork
from labelkit.commands.common.patch_embeddings import view_regions
from labelkit.data.datasets import ImageDataset
from labelkit.data.decode import Channels
from labelkit.data.loaders import EvalLoader
from labelkit.data.views.spec import Normalize
from labelkit.errors import DatasetError
from labelkit.store.patches import ImagePatches
from labelkit.training.compute_device import compute_device, images_at_once


def embed_queries(
    queries: ImageDataset, model: EmbeddingNetwork, device: str
) -> tuple[NDArray[np.float32], NDArray[np.int64], list[tuple[int, str]]]:
    """Return (embeddings (q, d), their rows in ``queries``, unreadable rows with reasons).

    Raises:
        ResourceError: no such device.
    """
    spec = model.network.input_spec
    place = compute_device(device)
    network = model.network.to(place)
    loader = EvalLoader(
        queries,
        model.view,
        batch_size=images_at_once(place),
        normalize=Normalize(spec.mean, spec.std),
        channels=_channels(spec.channels),
        device=place,
    )
    embedded: list[NDArray[np.float32]] = []
    kept: list[int] = []
    bad: list[tuple[int, str]] = []
    with torch.inference_mode():
        for batch in loader:
            broken = {row for row, _ in batch.bad}
            bad.extend(batch.bad)
            features = network.embed(batch.images).float().cpu().numpy()
            keep = [i for i, row in enumerate(batch.rows) if int(row) not in broken]
            embedded.append(features[keep])
            kept.extend(int(batch.rows[i]) for i in keep)
    return np.concatenate(embedded), np.asarray(kept, dtype=np.int64), bad


def query_patches(query: ImageDataset, model: EmbeddingNetwork, device: str) -> ImagePatches:
    """Return the patches of an image file, a data set of one row.

    Raises:
        UnsupportedBackboneError: the network has no feature map.
        DatasetError: it cannot be read.
        ResourceError: no such device.
    """
    spec, place = model.network.input_spec, compute_device(device)
    network = model.network.to(place)
    loader = EvalLoader(
        query,
        model.view,
        batch_size=1,
        normalize=Normalize(spec.mean, spec.std),
        channels=_channels(spec.channels),
        device=place,
        identify=True,
    )
    batch = next(iter(loader))
    if batch.bad:
        raise DatasetError(query.name, f"cannot be read as an image: {batch.bad[0][1]}", "Give a JPEG or PNG file.")
    assert batch.image_sizes is not None
    with torch.inference_mode():
        maps = network.patch_features(batch.images)[0].float().cpu().numpy()
    left, top, right, bottom = view_regions(batch.image_sizes, model.view)[0].tolist()
    rows, columns = maps.shape[:2]
    cells = np.indices((rows, columns)).reshape(2, -1).T
    return ImagePatches(maps.reshape(-1, maps.shape[2]), cells, (rows, columns), (left, top, right, bottom))


def _channels(number: int) -> Channels:
    return 1 if number == 1 else 3

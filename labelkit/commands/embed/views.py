"""``embed --views``: which augmented views of each image are embedded besides, and their embeddings."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelkit.data.datasets import ImageDataset
from labelkit.data.loaders import EvalBatch
from labelkit.data.views.recipes import StoredRecipe, stored_view
from labelkit.data.views.spec import ViewSpec
from labelkit.options.embed import EmbedConfig
from labelkit.store.schema import name_bytes


@dataclass(frozen=True)
class ViewDraws:
    """Augmented views to embed for each image: their number, recipe and seed.

    Attributes:
        count: of them.
        augmentation: name of their recipe.
        seed: of their random numbers.
        spec: how each of them is made.
    """

    count: int
    augmentation: StoredRecipe
    seed: int
    spec: ViewSpec

    @classmethod
    def from_config(cls, config: EmbedConfig, dataset: ImageDataset, plain: ViewSpec) -> ViewDraws | None:
        """Return the augmented views that the options ask for; ``None`` if they ask for none.

        Args:
            config: the options.
            dataset: the images.
            plain: how the network is shown an image that is not changed.
        """
        if config.views is None:
            return None
        recipe: StoredRecipe
        if config.view_augmentation == "auto":
            recipe = "box" if dataset.photographic else "digits"
        else:
            recipe = config.view_augmentation
        spec = stored_view(
            plain.size,
            recipe,
            interpolation=plain.interpolation,
            chiral=dataset.chiral,
            photographic=dataset.photographic,
        )
        return cls(config.views, recipe, config.view_seed, spec)

    def record(self) -> dict[str, Any]:
        """Return the description of augmented views that a store records, as plain JSON."""
        unchanged = asdict(ViewSpec(self.spec.size))
        numbers = {key: value for key, value in asdict(self.spec).items() if key == "size" or value != unchanged[key]}
        return {"count": self.count, "augmentation": self.augmentation, "seed": self.seed, "view": numbers}

    def loader_options(self, sample_ids: Sequence[str]) -> dict[str, Any]:
        """Return the arguments with which an ``EvalLoader`` also makes the views of these images."""
        return {"more_views": (self.spec,) * self.count, "keys": view_keys(sample_ids), "seed": self.seed}


def view_keys(sample_ids: Sequence[str]) -> NDArray[np.int64]:
    """Return a random-number key (n,) for each image that depends on its name alone."""
    digests = b"".join(hashlib.sha256(name_bytes(name)).digest()[:8] for name in sample_ids)
    return np.frombuffer(digests, dtype="<i8").astype(np.int64)


def embed_views(batch: EvalBatch, keep: NDArray[np.int64], embed: Callable[[Tensor], Tensor]) -> NDArray[np.float32]:
    """Return the embeddings (m, v * d) of the views of the readable images in a batch, view after view.

    Args:
        batch: with views.
        keep: (m,) places in the batch of images that can be read.
        embed: gives (b, d) of (b, c, size, size).
    """
    found = []
    with torch.inference_mode():
        for images in batch.views:
            found.append(embed(images).float().cpu().numpy()[keep])
    return np.concatenate(found, axis=1)

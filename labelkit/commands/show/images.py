"""The images that ``labelkit show`` draws: of a run, of a data set, or single files."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelkit.commands.common.images.read import one_image
from labelkit.commands.common.networks import TrainedRun
from labelkit.commands.common.training_data import prepare_data
from labelkit.commands.show.options import ShowImagesConfig
from labelkit.data.datasets import ImageDataset
from labelkit.data.decode import BadImage, Channels
from labelkit.data.keyed_random import keyed_generator
from labelkit.data.loaders import EvalLoader
from labelkit.data.views.spec import Normalize
from labelkit.errors import ConfigError, DatasetError
from labelkit.progress import current_progress
from labelkit.training.method import Method

DEFAULT_IMAGES = 4


def shown_dataset(config: ShowImagesConfig, run: TrainedRun) -> ImageDataset:
    """Load the images that a run was trained on.

    Raises:
        DatasetError: they are not there.
    """
    own: Any = run.config
    changed = {} if config.data_root is None else {"data_root": config.data_root}
    try:
        # looking fetches nothing
        return prepare_data(own.model_copy(update={**changed, "download": False})).dataset
    except DatasetError as error:
        raise DatasetError(
            error.where,
            f"{error.problem.rstrip('. ')} (the images that {run.folder} was trained on)",
            "Pass --data-root, or --image FILE.",
        ) from error


def shown_images(config: ShowImagesConfig, run: TrainedRun) -> list[tuple[str, ImageDataset, int]]:
    """Return the images to draw, each as (name, data set, row).

    Raises:
        ConfigError, DatasetError: there is no such image, or too few can be read.
    """
    if config.image is not None:
        return [(str(path), one_image(path), 0) for path in config.image]
    dataset = shown_dataset(config, run)
    outside = [row for row in config.rows or () if not 0 <= row < len(dataset)]
    if outside:
        raise ConfigError(
            "--rows",
            f"row {', '.join(map(str, outside))} is out of range: {dataset.name} has {len(dataset)} images",
            f"Rows count from 0 to {len(dataset) - 1}.",
        )
    rows = _drawn_rows(config, run, dataset) if config.rows is None else config.rows
    return [(dataset.sample_ids[row], dataset, row) for row in rows]


def class_name(dataset: ImageDataset, row: int) -> str | None:
    """Return the class name of an image; ``None`` if it has no label."""
    label = int(dataset.labels[row])
    return dataset.class_names[label] if label >= 0 else None


def image_channels(method: Method[Any]) -> Channels:
    """Return the number of image channels that the network of a method takes, 1 or 3."""
    return 1 if method.network.input_spec.channels == 1 else 3


def network_input(run: TrainedRun, dataset: ImageDataset, row: int, device: torch.device) -> Tensor:
    """Load an image as the normalized input (1, c, h, w) with which a run's network embeds it.

    Raises:
        DatasetError: it cannot be read.
    """
    spec = run.method.network.input_spec
    loader = EvalLoader(
        dataset,
        run.method.eval_view(),
        rows=[row],
        batch_size=1,
        normalize=Normalize(spec.mean, spec.std),
        channels=image_channels(run.method),
        device=device,
    )
    (batch,) = loader
    if batch.bad:
        raise DatasetError(dataset.sample_ids[row], f"cannot be read: {batch.bad[0][1]}", "Choose another image.")
    return batch.images


def as_pixels(view: Tensor, method: Method[Any]) -> NDArray[np.float32]:
    """Convert a normalized network input (1, c, h, w) back to an image (h, w, c) in [0, 1]."""
    spec = method.network.input_spec
    mean, std = (torch.tensor(value)[:, None, None] for value in (spec.mean, spec.std))
    pixels: NDArray[np.float32] = (view[0].cpu() * std + mean).clamp(0, 1).permute(1, 2, 0).numpy()
    return pixels


def _drawn_rows(config: ShowImagesConfig, run: TrainedRun, dataset: ImageDataset) -> list[int]:
    """Rows that can be read, in order; those that cannot are said and passed over."""
    wanted = config.num_images if config.num_images is not None else min(DEFAULT_IMAGES, len(dataset))
    if wanted > len(dataset):
        raise ConfigError(
            "--num-images", f"{dataset.name} has only {len(dataset)} images, not {wanted}", "Request fewer images."
        )
    rows: list[int] = []
    for row in keyed_generator(config.seed, "show attention").permutation(len(dataset)).tolist():
        if len(rows) == wanted:
            break
        try:
            dataset.source.read(row).decode(image_channels(run.method))
        except BadImage as error:
            current_progress().warning(f"{dataset.sample_ids[row]}: {error.reason}; using another image")
            continue
        rows.append(row)
    if len(rows) < wanted:
        raise DatasetError(
            dataset.name, f"only {len(rows)} of {len(dataset)} images can be read", f"Request at most {len(rows)}."
        )
    return sorted(rows)

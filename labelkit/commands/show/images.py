"""The images that ``labelkit show`` draws: of a run, of a data set, or single files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.networks import TrainedRun
from labelkit.commands.common.training_data import choose_split_rows, prepare_data
from labelkit.commands.show.options import ShowImagesConfig
from labelkit.data.datasets import ImageDataset
from labelkit.data.decode import BadImage, Channels
from labelkit.data.keyed_random import keyed_generator
from labelkit.data.registry import load_dataset
from labelkit.errors import ConfigError, DatasetError
from labelkit.progress import current_progress
from labelkit.training.method import Method

DEFAULT_IMAGES = 4


def shown_dataset(config: ShowImagesConfig, run: TrainedRun) -> ImageDataset:
    """The images of the run, or those that were asked for."""
    own: Any = run.config
    changed = {key: value for key in ("dataset", "data_root") if (value := getattr(config, key)) is not None}
    own = own.model_copy(update={**changed, "download": False})  # looking fetches nothing
    try:
        if config.dataset is None and config.split is None:
            return prepare_data(own).dataset
        listed = load_dataset(own.dataset, data_root=own.data_root, **own.listing())
    except DatasetError as error:
        if config.dataset is not None:
            raise
        raise DatasetError(
            error.where,
            f"{error.problem.rstrip('. ')} (the images that {run.folder} was trained on)",
            "Pass --dataset and --data-root, or --image FILE.",
        ) from error
    return listed.select(choose_split_rows(listed, config.split or "auto"))


def shown_rows(config: ShowImagesConfig, run: TrainedRun, dataset: ImageDataset) -> NDArray[np.int64]:
    """The rows that were asked for, or some drawn by the seed, in order.

    Raises:
        ConfigError, DatasetError: there is no such row, or too few can be read.
    """
    return _given_rows(config.rows, dataset) if config.rows is not None else _drawn_rows(config, run, dataset)


def image_channels(method: Method[Any]) -> Channels:
    """Channels that the network of a method looks at."""
    return 1 if method.network.input_spec.channels == 1 else 3


def _given_rows(rows: Sequence[int], dataset: ImageDataset) -> NDArray[np.int64]:
    outside = [row for row in rows if not 0 <= row < len(dataset)]
    if outside:
        raise ConfigError(
            "--rows",
            f"no row {', '.join(map(str, outside))} in {dataset.name}, which has {len(dataset)} images",
            f"Rows count from 0 to {len(dataset) - 1}.",
        )
    return np.asarray(rows, dtype=np.int64)


def _drawn_rows(config: ShowImagesConfig, run: TrainedRun, dataset: ImageDataset) -> NDArray[np.int64]:
    """Rows that can be read, in order; those that cannot are said and passed over."""
    wanted = config.num_images if config.num_images is not None else min(DEFAULT_IMAGES, len(dataset))
    if wanted > len(dataset):
        raise ConfigError(
            "--num-images", f"{wanted} images of {dataset.name}, which has {len(dataset)}", "Ask for fewer."
        )
    rows: list[int] = []
    for row in keyed_generator(config.seed, "show attention").permutation(len(dataset)).tolist():
        if len(rows) == wanted:
            break
        try:
            dataset.source.read(row).decode(image_channels(run.method))
        except BadImage as error:
            current_progress().warning(f"{dataset.sample_ids[row]}: {error.reason}; another one is taken")
            continue
        rows.append(row)
    if len(rows) < wanted:
        raise DatasetError(
            dataset.name, f"only {len(rows)} of {len(dataset)} images can be read", f"Ask for at most {len(rows)}."
        )
    return np.array(sorted(rows), dtype=np.int64)

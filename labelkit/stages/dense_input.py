"""What the commands on patch features start from: a network, images with masks, and what is told about both."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelkit.config.dense import DenseConfig
from labelkit.data.datasets import ImageDataset, load_dataset
from labelkit.data.keyed_random import keyed_generator
from labelkit.data.transforms import ViewSpec
from labelkit.engine.devices import Runtime
from labelkit.engine.segmentation import FrozenNetwork
from labelkit.errors import ConfigError, DatasetError
from labelkit.metrics.segmentation import SegmentationScores
from labelkit.models.pixel_patches import PixelPatchNetwork
from labelkit.models.weights import fingerprint
from labelkit.stages.networks import EmbeddingNetwork, embedding_network
from labelkit.stages.pictures import check_new_picture
from labelkit.stages.result import Cell, Table, jsonable
from labelkit.store.commit import commit_bytes

_PIXEL_SIZE = 64


@dataclass(frozen=True)
class DenseInput:
    """A network on its device, and the data set.

    Attributes:
        frozen: the network.
        dataset: has masks.
        record: both, as plain JSON.
    """

    frozen: FrozenNetwork
    dataset: ImageDataset
    record: dict[str, object]


def open_dense(config: DenseConfig, *, classes: bool) -> DenseInput:
    """Load the network and list the data set.

    Args:
        config: the options.
        classes: the masks must hold classes, not objects of films; else the reverse.

    Raises:
        ConfigError: a file to write is there already, or the network has no patch features.
        DatasetError: the set is not there, has no masks, or has masks of the other kind.
        CheckpointError: the network cannot be loaded.
    """
    for path, option in ((config.out, "--out"), (config.sheet, "--sheet")):
        if path is not None:
            check_new_picture(path, overwrite=config.overwrite, option=option)
    dataset = load_dataset(config.dataset, data_root=config.data_root)
    if dataset.masks is None:
        raise DatasetError(
            config.dataset, "has no masks", "Choose a set that has them (`labelkit datasets`: mask classes)."
        )
    if bool(dataset.mask_classes) != classes:
        kind = "number the objects of films" if classes else "are classes, not objects of films"
        raise DatasetError(
            config.dataset, f"its masks {kind}", f"Use `evaluate {'tracking' if classes else 'segmentation'}` for it."
        )
    runtime = Runtime(device=config.device, threads=config.threads)
    model = _network(config, dataset)
    spec = model.network.input_spec
    if spec.channels != dataset.in_channels:
        raise ConfigError(
            "--dataset",
            f"{config.dataset} has {dataset.in_channels} channels, the network takes {spec.channels}",
            "Choose another network or set.",
        )
    size = config.image_size or spec.size
    frozen = FrozenNetwork(model.network.to(runtime.device).eval(), size, config.batch_size)
    return DenseInput(frozen, dataset, {"network": _network_record(model, size), "data": _data_record(dataset)})


def _network(config: DenseConfig, dataset: ImageDataset) -> EmbeddingNetwork:
    if config.backbone != "pixels":
        return embedding_network(config, dataset.in_channels)
    size = config.image_size or _PIXEL_SIZE
    network = PixelPatchNetwork(size, dataset.in_channels, config.patch_size)
    return EmbeddingNetwork(
        network.eval(), ViewSpec(size), source=f"pixels of {config.patch_size} x {config.patch_size}"
    )


def _network_record(model: EmbeddingNetwork, size: int) -> dict[str, object]:
    return {
        **model.network.patch_identity,
        "source": model.source,
        "weights_fingerprint": fingerprint(model.network),
        "weights_file_sha256": model.weights_sha256,
        "image_size": size,
    }


def _data_record(dataset: ImageDataset) -> dict[str, object]:
    return {"dataset": dataset.name, "digest": dataset.digest(), "mask_classes": list(dataset.mask_classes)}


def choose_rows(
    dataset: ImageDataset, split: str, order: Sequence[str], *, option: str, limit: int | None = None, seed: int = 0
) -> tuple[str, NDArray[np.int64]]:
    """Return a split's name and its rows.

    Args:
        dataset: the set.
        split: what was asked for; ``auto`` = the first of ``order`` that the set has.
        order: names, ``all`` among them if all images will do.
        option: that asked, for messages.
        limit: rows at most, drawn by the seed.
        seed: of the draw.

    Raises:
        ConfigError: there is none of these splits.
        DatasetError: there is no such split, or it is empty.
    """
    if split == "auto":
        known = [name for name in order if name in dataset.split_names or name == "all"]
        if not known:
            raise ConfigError(
                option,
                f"{dataset.name} has none of the splits {', '.join(order)}",
                f"Name one of: {', '.join(dataset.split_names) or 'all'}.",
            )
        split = known[0]
    rows = dataset.in_split(None if split == "all" else split)
    if limit is not None and len(rows) > limit:
        rows = np.sort(keyed_generator(seed, f"images of {split}").choice(rows, limit, replace=False))
    return split, rows


def write_record(path: Path, values: Mapping[str, object]) -> Path:
    """Write a result as indented JSON."""
    commit_bytes(path, (json.dumps(jsonable(values), indent=1, ensure_ascii=False) + "\n").encode())
    return path


def mean_and_spread(values: Sequence[float]) -> dict[str, object]:
    """Return mean and standard deviation (of the sample; null for one value) of numbers, and the numbers."""
    numbers = np.asarray(values, dtype=np.float64)
    spread = float(numbers.std(ddof=1)) if len(numbers) > 1 else None
    return {"mean": float(numbers.mean()), "sd": spread, "values": numbers.tolist()}


def percent(score: dict[str, object]) -> str:
    """Return ``12.34 ± 0.56`` of what ``mean_and_spread`` made, in %."""
    mean, spread = score["mean"], score["sd"]
    assert isinstance(mean, float)
    return f"{100 * mean:.2f}" + (f" ± {100 * spread:.2f}" if isinstance(spread, float) else "")


def class_means(scores: Sequence[SegmentationScores]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the (c,) means of IoU and accuracy of every class over several scores, NaN where there is none."""
    means = []
    for values in (np.stack([score.iou for score in scores]), np.stack([score.class_accuracy for score in scores])):
        known = np.isfinite(values)
        total = np.where(known, values, 0).sum(axis=0)
        means.append(np.divide(total, known.sum(axis=0), out=np.full(len(total), np.nan), where=known.any(axis=0)))
    return means[0], means[1]


def class_table(title: str, names: Sequence[str], iou: NDArray[np.float64], accuracy: NDArray[np.float64]) -> Table:
    """Return the table of the scores of every class in %."""
    rows: list[list[Cell]] = [[name, 100 * float(iou[i]), 100 * float(accuracy[i])] for i, name in enumerate(names)]
    return Table(title, ["class", "IoU", "accuracy"], rows)

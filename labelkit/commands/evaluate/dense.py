"""Shared parts of the evaluations of patch features: inputs, scores, and contact sheets of masks."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from labelkit.commands.common.images.contact_sheet import SheetCell, write_contact_sheet
from labelkit.commands.common.networks import EmbeddingNetwork, build_embedding_network
from labelkit.commands.common.results import Cell, CommandResult, Table
from labelkit.commands.evaluate.options import DenseConfig, EvaluateDetectionConfig, EvaluateSegmentationConfig
from labelkit.data.datasets import IGNORE, ImageDataset
from labelkit.data.keyed_random import keyed_generator
from labelkit.data.registry import load_dataset
from labelkit.data.views.spec import Normalize, ViewSpec
from labelkit.data.views.transforms import read_whole_images
from labelkit.errors import ConfigError, DatasetError
from labelkit.formatting import percent
from labelkit.metrics.segmentation import SegmentationCounts, SegmentationScores
from labelkit.models.inference import InferenceNetwork, PixelNetwork
from labelkit.models.weights.files import fingerprint
from labelkit.protocols.segmentation.segmenter import Segmenter
from labelkit.training.devices import Runtime


class PixelPatchNetwork(PixelNetwork):
    """Network without weights whose patch features are the pixels of each patch (1 or 3 channels; sizes in pixels)."""

    def __init__(self, size: int, channels: int, patch_size: int) -> None:
        super().__init__(size, channels)
        self.patch_size = patch_size

    def patch_features(self, images: Tensor) -> Tensor:
        """Return the pixels of each image patch as features (b, rows, cols, c * patch_size**2).

        Raises:
            ConfigError: the image size is not a multiple of the patch size.
        """
        height, width = images.shape[-2:]
        side = self.patch_size
        if height % side or width % side or min(height, width) < side:
            problem = f"height and width must be multiples of the patch size ({side} pixels), got {height} x {width}"
            raise ConfigError("--image-size", problem, f"Choose a multiple of {side}.")
        return functional.pixel_unshuffle(images, side).permute(0, 2, 3, 1)


_PIXEL_SIZE = 64


@dataclass(frozen=True)
class FrozenNetwork:
    """Frozen network whose patch features are evaluated.

    Attributes:
        network: network on its device, in evaluation mode.
        size: side length of resized whole images in pixels.
        batch_size: images per forward pass.
    """

    network: InferenceNetwork | Segmenter
    size: int
    batch_size: int

    @property
    def device(self) -> torch.device:
        """Device of the network."""
        return next(itertools.chain(self.network.parameters(), self.network.buffers())).device

    @torch.inference_mode()
    def features(self, images: Tensor) -> Tensor:
        """Return float32 patch features (b, rows, cols, f) of images (b, c, h, w) in [0, 1]."""
        spec = self.network.input_spec
        prepared = Normalize(spec.mean, spec.std)(images.to(self.device))
        return self.network.patch_features(prepared).float()


class ImageBatch(NamedTuple):
    """Batch of whole images with their patch features and masks.

    Attributes:
        rows: (b,) rows of the dataset.
        features: (b, rows, cols, f) patch features.
        pixels: (h, w, c) for each image.
        masks: (h, w) for each image.
    """

    rows: NDArray[np.int64]
    features: Tensor
    pixels: list[NDArray[np.uint8]]
    masks: list[NDArray[np.uint8]]


def iterate_image_batches(
    frozen: FrozenNetwork, dataset: ImageDataset, rows: NDArray[np.int64]
) -> Iterator[ImageBatch]:
    """Yield batches of whole images with their patch features and masks, in order."""
    for start in range(0, len(rows), frozen.batch_size):
        part = rows[start : start + frozen.batch_size]
        images, pixels, masks = read_whole_images(dataset, part, frozen.size)
        yield ImageBatch(part, frozen.features(images), pixels, masks)


class DenseInput(NamedTuple):
    """Network and dataset for an evaluation of patch features.

    Attributes:
        frozen: frozen network.
        dataset: dataset with masks.
        record: description of both, as plain JSON.
        network: name of the network in tables.
    """

    frozen: FrozenNetwork
    dataset: ImageDataset
    record: dict[str, object]
    network: str


def load_dense_input(config: DenseConfig, *, classes: bool) -> DenseInput:
    """Load the network and the dataset for an evaluation of patch features.

    Masks must contain classes or, if ``classes`` is false, objects in videos.

    Raises:
        ConfigError: an output file already exists, or the network has no patch features.
        DatasetError: the dataset does not exist, has no masks, or has masks of the other kind.
        CheckpointError: the network cannot be loaded.
    """
    dataset = load_dataset(config.dataset, data_root=config.data_root, **config.listing_kwargs())
    if dataset.masks is None:
        raise DatasetError(config.dataset, "has no masks", "Choose a dataset with masks (see `labelkit datasets`).")
    if bool(dataset.mask_classes) != classes:
        kind = "mark objects in videos, not classes" if classes else "mark classes, not objects in videos"
        remedy = f"Use `labelkit evaluate {'tracking' if classes else 'segmentation'}` instead."
        raise DatasetError(config.dataset, f"its masks {kind}", remedy)
    runtime, channels = Runtime(device=config.device, threads=config.threads), dataset.in_channels
    if config.backbone == "pixels":
        side = config.patch_size
        network = PixelPatchNetwork(config.image_size or _PIXEL_SIZE, channels, side).eval()
        model = EmbeddingNetwork(network, ViewSpec(network.input_spec.size), source=f"pixels of {side} x {side}")
    else:
        model = build_embedding_network(config, channels)
    check_channels(model, dataset)
    size = config.image_size or model.network.input_spec.size
    frozen = FrozenNetwork(model.network.to(runtime.device).eval(), size, config.batch_size)
    record: dict[str, object] = {
        "network": describe_dense_network(model) | {"image_size": size},
        "data": {"dataset": dataset.name, "digest": dataset.digest(), "mask_classes": list(dataset.mask_classes)},
    }
    return DenseInput(frozen, dataset, record, model.source)


def describe_dense_network(model: EmbeddingNetwork) -> dict[str, object]:
    """Return the identity of a network whose patch features are evaluated, as plain JSON."""
    return {
        **model.network.patch_identity,
        "source": model.source,
        "weights_fingerprint": fingerprint(model.network),
        "weights_file_sha256": model.weights_sha256,
    }


def check_channels(model: EmbeddingNetwork, dataset: ImageDataset) -> None:
    """Check that the network and the images have the same number of channels.

    Raises:
        ConfigError: the numbers differ.
    """
    channels = model.network.input_spec.channels
    if channels != dataset.in_channels:
        problem = f"images of {dataset.name} have {dataset.in_channels} channels, but the network requires {channels}"
        raise ConfigError("--dataset", problem, "Choose another network or dataset.")


def choose_split_rows(
    dataset: ImageDataset, split: str, order: Sequence[str], *, option: str, limit: int | None = None, seed: int = 0
) -> tuple[str, NDArray[np.int64]]:
    """Choose a split of a dataset, and at most ``limit`` of its rows; return its name and the rows.

    Args:
        dataset: the dataset.
        split: the requested split; ``auto`` = the first split in ``order`` that the dataset has.
        order: names of splits, including ``all`` if all images may be used.
        option: option that specifies the split, for messages.
        limit: maximum number of rows; more are sampled at random.
        seed: random seed for sampling.

    Raises:
        ConfigError: the dataset has none of these splits.
        DatasetError: the split does not exist, or is empty.
    """
    if split == "auto":
        known = [name for name in order if name in dataset.split_names or name == "all"]
        if not known:
            raise ConfigError(
                option,
                f"{dataset.name} has none of the splits {', '.join(order)}",
                f"Choose one of: {', '.join(dataset.split_names) or 'all'}.",
            )
        split = known[0]
    rows = dataset.rows_in_split(None if split == "all" else split)
    if limit is not None and len(rows) > limit:
        rows = np.sort(keyed_generator(seed, f"images of {split}").choice(rows, limit, replace=False))
    return split, rows


class ChosenSplits(NamedTuple):
    """Names and rows of the training and evaluation splits."""

    train: str
    train_rows: NDArray[np.int64]
    eval: str
    eval_rows: NDArray[np.int64]

    def to_json(self) -> dict[str, object]:
        """Return the names and numbers of images of both splits."""
        sizes = {"train_images": len(self.train_rows), "eval_images": len(self.eval_rows)}
        return {"train_split": self.train, "eval_split": self.eval, **sizes}


def choose_splits(
    config: EvaluateSegmentationConfig | EvaluateDetectionConfig, dataset: ImageDataset, order: Sequence[str]
) -> ChosenSplits:
    """Choose a split for training (``auto``: the first available split in ``order``) and another for evaluation.

    Raises:
        ConfigError: there are no such splits, or they have images in common.
        DatasetError: a split does not exist, or is empty.
    """
    (train, train_rows), (scored, eval_rows) = (
        choose_split_rows(dataset, split, names, option=option, limit=config.max_images, seed=config.seed)
        for split, names, option in (
            (config.split, order, "--split"),
            (config.eval_split, ("val", "test"), "--eval-split"),
        )
    )
    if len(np.intersect1d(train_rows, eval_rows)):
        raise ConfigError(
            "--eval-split", f"images of {scored} are used for training (--split {train})", "Choose different splits."
        )
    return ChosenSplits(train, train_rows, scored, eval_rows)


def compute_mask_scores(counts: SegmentationCounts, dataset: ImageDataset) -> SegmentationScores:
    """Compute segmentation scores from pixel counts.

    Raises:
        DatasetError: all pixels are ignored.
    """
    if counts.counts.any():
        return counts.scores()
    remedy = "Check that the masks contain class indices other than 255."
    raise DatasetError(dataset.name, "all pixels in the masks have the ignore value (255)", remedy)


def average_mask_scores(scores: Sequence[SegmentationScores], names: Sequence[str]) -> dict[str, Any]:
    """Average segmentation scores of c classes over several seeds, and return them as plain JSON.

    Returns:
        ``mean_iou`` and ``pixel_accuracy`` as from :func:`mean_and_std`, and ``per_class`` with the mean IoU and
        accuracy of each class, NaN where undefined.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Mean of empty slice")
        iou, accuracy = (
            np.nanmean([getattr(score, name) for score in scores], axis=0) for name in ("iou", "class_accuracy")
        )
    return {
        "mean_iou": mean_and_std([score.mean_iou for score in scores]),
        "pixel_accuracy": mean_and_std([score.pixel_accuracy for score in scores]),
        "per_class": [
            {"class": name, "iou": float(iou[i]), "accuracy": float(accuracy[i])} for i, name in enumerate(names)
        ],
    }


def write_mask_result(
    config: DenseConfig,
    values: dict[str, object],
    pictures: Sequence[MaskExample],
    names: Sequence[str],
    title: str,
    columns: Sequence[str],
    row: Sequence[Cell],
) -> CommandResult:
    """Write a contact sheet of masks, if requested, and return a result with a table of one row."""
    if config.sheet is not None:
        write_mask_sheet(config.sheet, pictures, names)
    made = () if config.sheet is None else (config.sheet,)
    return CommandResult(values, made, (Table(title, columns, [row]),))


def mean_and_std(values: Sequence[float]) -> dict[str, object]:
    """Return the mean, the sample standard deviation (None for a single value) and the values as a JSON object."""
    numbers = np.asarray(values, dtype=np.float64)
    spread = float(numbers.std(ddof=1)) if len(numbers) > 1 else None
    return {"mean": float(numbers.mean()), "sd": spread, "values": numbers.tolist()}


def format_percent_and_std(score: dict[str, object]) -> str:
    """Format the mean and standard deviation from ``mean_and_std`` as percentages, such as ``12.3 ± 0.6``."""
    mean, spread = score["mean"], score["sd"]
    assert isinstance(mean, float)
    if math.isnan(mean):
        return "-"
    return str(percent(mean)) + (f" ± {percent(spread)}" if isinstance(spread, float) else "")


_LEGEND_WIDTH = 4


class MaskExample(NamedTuple):
    """Image with its true and predicted masks.

    Attributes:
        name: caption of the image.
        pixels: (h, w, c) uint8.
        truth: (h, w) uint8; 255 is ignored and drawn in white.
        prediction: (h, w) uint8.
    """

    name: str
    pixels: NDArray[np.uint8]
    truth: NDArray[np.uint8]
    prediction: NDArray[np.uint8]


def _mask_colors() -> NDArray[np.uint8]:
    """Return the PASCAL VOC colormap (256, 3), which starts with black; ignored pixels are white."""
    labels, bits = np.arange(IGNORE + 1)[:, None, None], np.arange(8)
    # bit 3 k + channel of a label is bit 7 - k of its color
    colors = (((labels >> (3 * bits + np.arange(3)[:, None])) & 1) << (7 - bits)).sum(axis=2)
    colors[IGNORE] = 255
    return np.asarray(colors, dtype=np.uint8)


def write_mask_sheet(path: Path, pictures: Sequence[MaskExample], names: Sequence[str]) -> None:
    """Write a PNG with one row per image (image, true mask, predicted mask), followed by a legend of the classes.

    An existing file is replaced. The legend contains only classes that occur.

    Raises:
        ResourceError: the file cannot be written.
    """
    rows: list[list[SheetCell]] = []
    met: set[int] = set()
    colors = _mask_colors()
    for name, pixels, truth, prediction in pictures:
        met |= set(np.unique(truth)) | set(np.unique(prediction))
        counts = SegmentationCounts(IGNORE)
        counts.add(prediction, truth)
        right = f"{percent(counts.scores().pixel_accuracy)}% of pixels correct" if counts.counts.any() else "ignored"
        shown = SheetCell(pixels, ("/".join(name.split("/")[-2:]),))
        rows.append([shown, SheetCell(colors[truth], ("truth",)), SheetCell(colors[prediction], ("prediction", right))])
    legend = [
        SheetCell(colors[np.full((8, 8), label)], (names[label] if label < len(names) else str(label),))
        for label in sorted(met - {IGNORE})
    ]
    rows += [legend[start : start + _LEGEND_WIDTH] for start in range(0, len(legend), _LEGEND_WIDTH)]
    write_contact_sheet(path, rows)

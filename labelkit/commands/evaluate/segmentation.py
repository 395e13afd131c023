"""Evaluate a network by training a segmentation head on its frozen patch features, or together with the network.

Source: labelkit's CoTAP specification, section 6.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from labelkit.commands.common.results import Cell, CommandResult
from labelkit.commands.evaluate import dense
from labelkit.commands.evaluate.options import EvaluateSegmentationConfig
from labelkit.data.datasets import IGNORE, ImageDataset
from labelkit.data.keyed_random import keyed_generator
from labelkit.data.views.spec import Normalize, ViewSpec
from labelkit.data.views.transforms import crop_images_and_masks, read_whole_images, resize_mask
from labelkit.errors import ConfigError, DivergenceError
from labelkit.metrics.segmentation import SegmentationCounts, SegmentationScores
from labelkit.models.inference import InferenceNetwork
from labelkit.options.shared import IMAGES_PER_SHEET
from labelkit.progress import current_progress
from labelkit.protocols.segmentation.segmenter import Segmenter, build_segmentation_head

_FCN_FINAL_LR = 1e-4
WEIGHT_DECAY = 0.05
# Range of the area fraction of training crops.
_AREA = (0.8, 1.0)


def evaluate_segmentation(config: EvaluateSegmentationConfig) -> CommandResult:
    """Train segmentation heads on frozen features, or together with the network, and evaluate their masks by mean IoU.

    Raises:
        ConfigError: a split does not exist, the splits overlap, or the network cannot be fine-tuned.
        DatasetError: there are no masks, or they cannot be used.
        CheckpointError: the network cannot be loaded.
        DivergenceError: training of a head failed.
    """
    given = dense.load_dense_input(config, classes=True)
    rows = dense.choose_splits(config, given.dataset, ("probe", "train"))
    names = given.dataset.mask_classes
    lr, sweep = _choose_lr(config, given, rows)
    scores: list[SegmentationScores] = []
    pictures: list[dense.MaskExample] = []
    for seed in range(config.seed, config.seed + config.seeds):
        network, head = train_segmenter(config, given.frozen, given.dataset, rows.train_rows, lr, seed=seed)
        found, drawn = _score(network, given, head, rows.eval_rows, 0 if scores else IMAGES_PER_SHEET)
        scores.append(found)
        pictures += drawn
    summary = dense.average_mask_scores(scores, names)
    values: dict[str, object] = {
        "measured": f"{config.head} segmentation of {given.dataset.name}/{rows.eval}",
        **summary,
        **given.record,
        "protocol": {
            "head": config.head,
            **rows.to_json(),
            "samples": config.samples,
            "batch_size": config.batch_size,
            "tune": config.tune,
            "optimizer": "adamw" if config.tune else "adam",
            "lr": lr,
            "final_lr": _final_lr(config, lr),
            "train_size": config.train_size or given.frozen.size,
            "augment": config.augment,
            "mirror": config.augment and not given.dataset.chiral,
            "absent_as_zero": False,
            "select_split": None,
            "seeds": list(range(config.seed, config.seed + config.seeds)),
            "sweep": sweep,
        },
    }
    what = "networks and heads" if config.tune else "heads"
    row: list[Cell] = [
        given.network, config.head, f"{given.dataset.name}/{rows.eval}", len(rows.eval_rows), lr,
        dense.format_percent_and_std(summary["mean_iou"]), dense.format_percent_and_std(summary["pixel_accuracy"]),
    ]  # fmt: skip
    title = f"segmentation in %: {what} trained on {len(rows.train_rows)} images of {rows.train}, {config.seeds} seeds"
    columns = ["network", "head", "split", "images", "lr", "mean IoU", "pixel accuracy"]
    return dense.write_mask_result(config, values, pictures, names, title, columns, row)


def _final_lr(config: EvaluateSegmentationConfig, lr: float) -> float | None:
    """Return the final learning rate of the cosine schedule; ``None`` for linear heads, whose rate is constant."""
    return 0.0 if config.tune else min(_FCN_FINAL_LR, lr) if config.head == "fcn" else None


def _score(
    frozen: dense.FrozenNetwork,
    given: dense.DenseInput,
    head: nn.Module,
    rows: NDArray[np.int64],
    num_pictures: int = 0,
) -> tuple[SegmentationScores, list[dense.MaskExample]]:
    counts = SegmentationCounts(len(given.dataset.mask_classes))
    pictures: list[dense.MaskExample] = []
    with current_progress().task("score", total=len(rows)) as task:
        for batch in dense.iterate_image_batches(frozen, given.dataset, rows):
            predictions = predict_masks(head, batch)
            for row, pixels, truth, prediction in zip(batch.rows, batch.pixels, batch.masks, predictions, strict=True):
                counts.add(prediction, truth)
                if len(pictures) < num_pictures:
                    pictures.append(dense.MaskExample(given.dataset.sample_ids[row], pixels, truth, prediction))
            task.advance(len(batch.rows))
    return dense.compute_mask_scores(counts, given.dataset), pictures


def _choose_lr(
    config: EvaluateSegmentationConfig, given: dense.DenseInput, rows: dense.ChosenSplits
) -> tuple[float, list[dict[str, float]]]:
    """Return the learning rate with the best mean IoU on a held-out fifth of the training images, and all scores."""
    if len(config.learning_rates) == 1:
        return config.learning_rates[0], []
    order = keyed_generator(config.seed, "choose lr").permutation(rows.train_rows)
    cut = max(1, len(order) // 5)
    validation, trained = np.sort(order[:cut]), np.sort(order[cut:])
    if not len(trained):
        problem = "at least two training images are required to choose among learning rates"
        raise ConfigError("--lr", problem, "Pass a single learning rate.")
    tried = []
    for lr in config.learning_rates:
        network, head = train_segmenter(config, given.frozen, given.dataset, trained, lr, seed=config.seed)
        found, _ = _score(network, given, head, validation)
        tried.append({"lr": lr, "mean_iou": found.mean_iou})
    return max(tried, key=lambda entry: entry["mean_iou"])["lr"], tried


def train_segmenter(
    config: EvaluateSegmentationConfig,
    frozen: dense.FrozenNetwork,
    dataset: ImageDataset,
    rows: NDArray[np.int64],
    lr: float,
    *,
    seed: int,
) -> tuple[dense.FrozenNetwork, nn.Module]:
    """Train a head on frozen features with Adam or, with ``--tune``, a head and a copy of the network with AdamW.

    The loss is the cross-entropy over all pixels that are not ignored.

    Returns:
        A network that maps images to features, and a module that maps features to logits, in evaluation mode. With
        ``--tune``, the first is the fine-tuned copy with its head, and the second is the identity.

    Raises:
        ConfigError: the network has no backbone to fine-tune, or no feature maps at several depths.
        DivergenceError: the loss is not finite.
        DatasetError: an image or mask cannot be used.
    """
    what, num_classes = "network and head" if config.tune else "head", len(dataset.mask_classes)
    with current_progress().task(f"train {what} (seed {seed}, lr {lr:g})", total=config.samples) as task:
        if config.tune:
            size = config.train_size or frozen.size
            assert isinstance(frozen.network, InferenceNetwork)
            tuned = Segmenter(frozen.network, config.head, num_classes, size=size, seed=seed).train()
            # no weight decay for biases and normalization layers
            groups = [
                {"params": [one for one in tuned.parameters() if (one.ndim >= 2) == decays], "weight_decay": decay}
                for decays, decay in ((True, WEIGHT_DECAY), (False, 0.0))
            ]
            normalize = Normalize(tuned.input_spec.mean, tuned.input_spec.std)
            crops = iterate_training_crops(config, dataset, rows, frozen.size, seed)
            tuning = ((normalize(images.to(frozen.device)), labels) for images, labels in crops)
            _fit(config, tuned.logits, torch.optim.AdamW(groups, lr=lr), tuning, lr, task.advance)
            return dense.FrozenNetwork(tuned.eval(), frozen.size, frozen.batch_size), nn.Identity()
        if config.augment:
            crops = iterate_training_crops(config, dataset, rows, frozen.size, seed)
            source: Iterator[tuple[Tensor, Tensor]] = ((frozen.features(images), labels) for images, labels in crops)
        else:
            source = _iterate_cached_batches(config, frozen, dataset, rows, seed)
        first = next(source)
        head = build_segmentation_head(config.head, first[0].shape[3], num_classes, seed).to(frozen.device)
        # clone, so that features are no longer inference tensors
        batches = ((found.permute(0, 3, 1, 2).clone(), labels) for found, labels in itertools.chain([first], source))
        _fit(config, head, torch.optim.Adam(head.parameters(), lr=lr), batches, lr, task.advance)
        return frozen, head.eval()


def _fit(
    config: EvaluateSegmentationConfig,
    logits_of: Callable[[Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    batches: Iterable[tuple[Tensor, Tensor]],
    lr: float,
    advance: Callable[[int], None],
) -> None:
    final_lr, steps = _final_lr(config, lr), -(-config.samples // config.batch_size)
    for step, (inputs, labels) in enumerate(batches):
        if final_lr is not None:
            for group in optimizer.param_groups:
                group["lr"] = final_lr + (lr - final_lr) * 0.5 * (1 + math.cos(math.pi * step / steps))
        loss = pixel_cross_entropy(logits_of(inputs), labels.to(inputs.device))
        if not torch.isfinite(loss):
            remedy = "Lower --lr, or check the features."
            raise DivergenceError(f"step {step}", "the segmentation loss is not finite", remedy)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        advance(len(labels))


def pixel_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the mean cross-entropy in nats of logits (b, c, h', w') resized to labels (b, h, w), ignoring label 255.

    The loss is 0 if all labels are 255.
    """
    stretched = functional.interpolate(logits, labels.shape[-2:], mode="bilinear", align_corners=False)
    total = functional.cross_entropy(stretched, labels, ignore_index=IGNORE, reduction="sum")
    return total / (labels != IGNORE).sum().clamp(min=1)


@torch.inference_mode()
def predict_masks(head: nn.Module, batch: dense.ImageBatch) -> list[NDArray[np.uint8]]:
    """Predict the class of each pixel of whole images, at the resolution of their masks."""
    logits = head(batch.features.permute(0, 3, 1, 2))
    resized = (
        functional.interpolate(one[None], mask.shape, mode="bilinear", align_corners=False)[0]
        for one, mask in zip(logits, batch.masks, strict=True)
    )
    return [one.argmax(0).to(torch.uint8).cpu().numpy() for one in resized]


def _draw_batches(config: EvaluateSegmentationConfig, count: int, seed: int) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Yield batches of positions below ``count`` and the number of samples before each; reshuffle in each epoch."""
    passes = -(-config.samples // count)
    orders = [keyed_generator(seed, "segmentation", epoch).permutation(count) for epoch in range(passes)]
    order = np.concatenate(orders)[: config.samples]
    for start in range(0, len(order), config.batch_size):
        yield order[start : start + config.batch_size], start


def iterate_training_crops(
    config: EvaluateSegmentationConfig, dataset: ImageDataset, rows: NDArray[np.int64], size: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of images (b, c, s, s) in [0, 1] and masks (b, s, s) of size ``--train-size`` or ``size``."""
    size = config.train_size or size
    view = ViewSpec(size, area_range=_AREA, hflip=0.0 if dataset.chiral else 0.5, interpolation="bilinear")
    for places, drawn in _draw_batches(config, len(rows), seed):
        if config.augment:
            keys = np.arange(drawn, drawn + len(places), dtype=np.int64)
            yield crop_images_and_masks(dataset, rows[places], keys, view, seed=seed)
            continue
        images, _, masks = read_whole_images(dataset, rows[places], size)
        yield images, _resize_labels(masks, size)


def _iterate_cached_batches(
    config: EvaluateSegmentationConfig,
    frozen: dense.FrozenNetwork,
    dataset: ImageDataset,
    rows: NDArray[np.int64],
    seed: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of features and masks of whole images, after computing all features once."""
    size = config.train_size or frozen.size
    batches = list(
        dense.iterate_image_batches(dense.FrozenNetwork(frozen.network, size, frozen.batch_size), dataset, rows)
    )
    features = torch.cat([batch.features for batch in batches])
    labels = _resize_labels([mask for batch in batches for mask in batch.masks], size)
    for places, _ in _draw_batches(config, len(rows), seed):
        yield features[places], labels[places]


def _resize_labels(masks: list[NDArray[np.uint8]], size: int) -> Tensor:
    return torch.from_numpy(np.stack([resize_mask(mask, size, size) for mask in masks]).astype(np.int64))

"""Judge a network by a head that is trained to name the class of every pixel, on its patch features or with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from labelkit.commands.common.images.masks import MaskPicture
from labelkit.commands.common.results import Cell, SimpleResult, Table
from labelkit.commands.evaluate.dense import (
    DenseInput,
    MaskScores,
    choose_rows,
    open_dense,
    percent_and_spread,
    write_asked,
)
from labelkit.commands.evaluate.dense_options import EvaluateSegmentationConfig
from labelkit.commands.evaluate.segmentation_head import (
    FrozenNetwork,
    HeadPlan,
    pixel_loss,
    predict_masks,
    train_head,
    training_crops,
    whole_batches,
)
from labelkit.data.datasets import ImageDataset
from labelkit.data.keyed_random import keyed_generator
from labelkit.data.views.spec import Normalize
from labelkit.errors import ConfigError, DatasetError, DivergenceError
from labelkit.metrics.segmentation import SegmentationCounts, SegmentationScores
from labelkit.options.shared import PICTURES
from labelkit.progress import current_progress
from labelkit.protocols.segmentation.segmenter import Segmenter

_FCN_FINAL_LR = 1e-4
WEIGHT_DECAY = 0.05


@dataclass(frozen=True)
class _Rows:
    """Rows and names of the splits."""

    train: str
    train_rows: NDArray[np.int64]
    eval: str
    eval_rows: NDArray[np.int64]


def evaluate_segmentation(config: EvaluateSegmentationConfig) -> SimpleResult:
    """Train heads, with the network or on features that stay as they are, and score their masks by mean IoU.

    Raises:
        ConfigError: no such split, the images scored were trained on, or a network that cannot be tuned.
        DatasetError: no masks, or masks that cannot be used.
        CheckpointError: the network cannot be loaded.
        DivergenceError: training of a head failed.
    """
    given = open_dense(config, classes=True)
    rows = _choose(config, given)
    names = given.dataset.mask_classes
    lr, sweep = _choose_lr(config, given, rows)
    scores: list[SegmentationScores] = []
    pictures: list[MaskPicture] = []
    for seed in range(config.seed, config.seed + config.seeds):
        network, head = _train(config, given, rows.train_rows, lr, seed)
        counts, drawn = _score(network, given, head, rows.eval_rows, 0 if scores else PICTURES)
        scores.append(counts.scores(absent_as_zero=config.absent_as_zero))
        pictures += drawn
    summary = MaskScores.of(scores, names)
    values: dict[str, object] = {
        "measured": f"{config.head} segmentation of {given.dataset.name}/{rows.eval}",
        **summary.values(),
        **given.record,
        "protocol": _protocol(config, given, rows, lr) | {"sweep": sweep},
    }
    made = write_asked(config, values, pictures, names)
    what = "networks and heads" if config.tune else "heads"
    row: list[Cell] = [
        given.network, config.head, f"{given.dataset.name}/{rows.eval}", len(rows.eval_rows), lr,
        percent_and_spread(summary.mean_iou), percent_and_spread(summary.pixel_accuracy),
    ]  # fmt: skip
    tables = [
        Table(
            f"segmentation in %: {what} trained on {len(rows.train_rows)} images of {rows.train}, {config.seeds} seeds",
            ["network", "head", "scored on", "images", "lr", "mean IoU", "pixels right"],
            [row],
        )
    ]
    if config.per_class:
        tables.append(summary.class_table())
    return SimpleResult(values, made, tuple(tables))


def _choose(config: EvaluateSegmentationConfig, given: DenseInput) -> _Rows:
    (train, train_rows), (scored, eval_rows) = (
        choose_rows(given.dataset, split, order, option=option, limit=config.max_images, seed=config.seed)
        for split, order, option in (
            (config.split, ("probe", "train"), "--split"),
            (config.eval_split, ("val", "test"), "--eval-split"),
        )
    )
    if len(np.intersect1d(train_rows, eval_rows)):
        raise ConfigError("--eval-split", f"images of {scored} are trained on (--split {train})", "Choose two splits.")
    return _Rows(train, train_rows, scored, eval_rows)


def _plan(config: EvaluateSegmentationConfig, given: DenseInput, lr: float) -> HeadPlan:
    # at the end of a cosine; a linear head is trained without decay
    final_lr = 0.0 if config.tune else min(_FCN_FINAL_LR, lr) if config.head == "fcn" else None
    return HeadPlan(
        kind=config.head,
        num_classes=len(given.dataset.mask_classes),
        lr=lr,
        final_lr=final_lr,
        samples=config.samples,
        batch_size=config.batch_size,
        size=config.train_size or given.frozen.size,
        augment=config.augment,
        mirror=not given.dataset.chiral,
    )


def _train(
    config: EvaluateSegmentationConfig, given: DenseInput, rows: NDArray[np.int64], lr: float, seed: int
) -> tuple[FrozenNetwork, nn.Module]:
    """Return what makes features of images, and logits of these."""
    plan = _plan(config, given, lr)
    what = "network and head" if config.tune else "head"
    with current_progress().task(f"train {what} (seed {seed}, lr {lr:g})", total=config.samples) as task:
        if config.tune:
            tuned = tune_network(given.frozen, given.dataset, rows, plan, seed=seed, advance=task.advance)
            return tuned, nn.Identity()
        return given.frozen, train_head(given.frozen, given.dataset, rows, plan, seed=seed, advance=task.advance)


def _score(
    frozen: FrozenNetwork, given: DenseInput, head: nn.Module, rows: NDArray[np.int64], num_pictures: int = 0
) -> tuple[SegmentationCounts, list[MaskPicture]]:
    counts = SegmentationCounts(len(given.dataset.mask_classes))
    pictures: list[MaskPicture] = []
    with current_progress().task("score", total=len(rows)) as task:
        for batch in whole_batches(frozen, given.dataset, rows):
            predictions = predict_masks(head, batch)
            for row, pixels, truth, prediction in zip(batch.rows, batch.pixels, batch.masks, predictions, strict=True):
                counts.add(prediction, truth)
                if len(pictures) < num_pictures:
                    pictures.append(MaskPicture(given.dataset.sample_ids[row], pixels, truth, prediction))
            task.advance(len(batch.rows))
    if not counts.counts.any():
        raise DatasetError(given.dataset.name, "all pixels that are scored are ignored (255)", "Look at the masks.")
    return counts, pictures


def _choose_lr(
    config: EvaluateSegmentationConfig, given: DenseInput, rows: _Rows
) -> tuple[float, list[dict[str, float]]]:
    """Return the learning rate of highest mean IoU on images that are neither trained on nor scored, and all tried."""
    if len(config.rates) == 1:
        return config.rates[0], []
    if config.select_split is None:
        order = keyed_generator(config.seed, "choose lr").permutation(rows.train_rows)
        cut = max(1, len(order) // 5)
        judged, trained = np.sort(order[:cut]), np.sort(order[cut:])
    else:
        _, judged = choose_rows(
            given.dataset, config.select_split, (), option="--select-split", limit=config.max_images, seed=config.seed
        )
        trained = rows.train_rows
    if not len(trained) or len(np.intersect1d(judged, trained)):
        raise ConfigError("--select-split", "has images that are trained on, or leaves none", "Choose another split.")
    tried = []
    for lr in config.rates:
        network, head = _train(config, given, trained, lr, config.seed)
        counts, _ = _score(network, given, head, judged)
        tried.append({"lr": lr, "mean_iou": counts.scores(absent_as_zero=config.absent_as_zero).mean_iou})
    return max(tried, key=lambda entry: entry["mean_iou"])["lr"], tried


def _protocol(config: EvaluateSegmentationConfig, given: DenseInput, rows: _Rows, lr: float) -> dict[str, object]:
    plan = _plan(config, given, lr)
    return {
        "head": config.head,
        "train_split": rows.train,
        "train_images": len(rows.train_rows),
        "eval_split": rows.eval,
        "eval_images": len(rows.eval_rows),
        "samples": config.samples,
        "batch_size": config.batch_size,
        "tune": config.tune,
        "optimizer": "adamw" if config.tune else "adam",
        "lr": lr,
        "final_lr": plan.final_lr,
        "train_size": plan.size,
        "augment": config.augment,
        "mirror": config.augment and plan.mirror,
        "absent_as_zero": config.absent_as_zero,
        "select_split": config.select_split,
        "seeds": list(range(config.seed, config.seed + config.seeds)),
    }


def tune_network(
    frozen: FrozenNetwork,
    dataset: ImageDataset,
    rows: NDArray[np.int64],
    plan: HeadPlan,
    *,
    seed: int,
    advance: Callable[[int], None] = lambda number: None,
) -> FrozenNetwork:
    """Train a copy of a network and a head by cross-entropy over all pixels that are not ignored, by AdamW.

    Args:
        frozen: the network; it stays as it is.
        dataset: has masks.
        rows: images to train on.
        plan: how.
        seed: of the head's weights, the order and the crops.
        advance: told how many images were seen.

    Returns:
        the copy and its head, in evaluation mode: its features are logits.

    Raises:
        ConfigError: the network has no backbone, or no maps of several depths.
        DivergenceError: the loss is no number.
        DatasetError: an image or mask cannot be used.
    """
    tuned = Segmenter(frozen.network, plan.kind, plan.num_classes, size=plan.size, seed=seed)
    tuned.train()
    # a bias or a norm has nothing to decay toward
    decayed = [parameter for parameter in tuned.parameters() if parameter.ndim >= 2]
    others = [parameter for parameter in tuned.parameters() if parameter.ndim < 2]
    groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=plan.lr)
    normalize = Normalize(tuned.input_spec.mean, tuned.input_spec.std)
    steps = -(-plan.samples // plan.batch_size)
    for step, (images, labels) in enumerate(training_crops(dataset, rows, plan, seed)):
        if plan.final_lr is not None:
            cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
            for group in optimizer.param_groups:
                group["lr"] = plan.final_lr + (plan.lr - plan.final_lr) * cosine
        loss = pixel_loss(tuned.logits(normalize(images.to(frozen.device))), labels.to(frozen.device))
        if not torch.isfinite(loss):
            raise DivergenceError(f"step {step}", "the loss is no number", "Use a smaller --lr.")
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call] # torch does not say
        optimizer.step()
        advance(len(labels))
    return FrozenNetwork(tuned.eval(), frozen.size, frozen.batch_size)

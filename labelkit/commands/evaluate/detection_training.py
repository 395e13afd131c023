"""Train a detector on a copy of a network's backbone, and detect with it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.commands.evaluate.dense_options import EvaluateDetectionConfig
from labelkit.data.datasets import ImageDataset
from labelkit.data.keyed_random import keyed_generator, keyed_uniform
from labelkit.data.object_images import ExamplePlan, encode_mask, read_examples
from labelkit.errors import ConfigError, DivergenceError
from labelkit.models.inference import InferenceNetwork
from labelkit.models.seeding import seeded_init
from labelkit.protocols.detection.detector import (
    DetectionBackbone,
    DetectorSize,
    build_detector,
    keep_statistics,
)
from labelkit.training.devices import Runtime

_WARMUP = 500
# Shares of all steps after which the learning rate drops to a tenth (published: after 9 and 11 of 12 epochs).
_LR_DROPS = (0.75, 0.9167)
_PLACES = ("pos_embed", "cls_token", "reg_token")
_BLOCK = re.compile(r"(?:^|\.)blocks\.(\d+)\.")


class Updates(NamedTuple):
    """How many updates a training takes, in which of the first its rate rises, and after which it is a tenth."""

    steps: int
    warmup: int
    drops: tuple[int, ...]

    @classmethod
    def of(cls, config: EvaluateDetectionConfig, num_images: int) -> Updates:
        """Return those for so many training images."""
        steps = config.steps or -(-config.epochs * num_images // config.batch_size)
        return cls(steps, min(_WARMUP, steps // 10), tuple(round(share * steps) for share in _LR_DROPS))

    def factor(self, step: int) -> float:
        """Return what the learning rate is multiplied by in a step, counted from 0."""
        rise = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        return rise * 0.1 ** sum(step >= drop for drop in self.drops)


def train_detector(
    config: EvaluateDetectionConfig,
    network: InferenceNetwork,
    dataset: ImageDataset,
    rows: NDArray[np.int64],
    runtime: Runtime,
    *,
    seed: int,
    advance: Callable[[int], None] = lambda number: None,
) -> nn.Module:
    """Train a detector by the sum of its losses, by AdamW.

    Args:
        config: which detector, and how it is trained.
        network: it stays as it is.
        dataset: has boxes.
        rows: images to train on, each with an object.
        runtime: where, and in which precision.
        seed: of the new weights, the order, mirror images and samples.
        advance: told how many steps were done.

    Returns:
        torchvision's model, in evaluation mode.

    Raises:
        ConfigError: the network has no backbone, or none that fits.
        DivergenceError: a loss is no number.
        DatasetError: an image or an outline cannot be used.
    """
    updates, num_classes = Updates.of(config, len(rows)), len(dataset.object_classes)
    size = DetectorSize(config.shorter_side, config.longest_side, config.proposals, config.samples_per_image)
    detector = build_detector(network, config.detector, num_classes, size=size, seed=seed)
    body: DetectionBackbone = detector.backbone
    body.autocast = runtime.autocast
    if not config.tune:
        body.backbone.requires_grad_(False)
    optimizer = torch.optim.AdamW(_groups(detector, body, config), lr=config.lr)
    rates = [group["lr"] for group in optimizer.param_groups]
    detector.train()
    keep_statistics(body.backbone)
    if not config.tune:
        body.backbone.eval()
    detector.transform.min_size = config.train_sizes or (config.shorter_side,)
    with _seeded(runtime.device, seed):
        for step, (images, targets) in enumerate(_batches(dataset, rows, config, updates.steps, seed)):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * updates.factor(step)
            losses = detector(_on(images, runtime), [_moved(target, runtime) for target in targets])
            loss = torch.stack([value.float() for value in losses.values()]).sum()
            if not torch.isfinite(loss):
                bad = ", ".join(name for name, value in losses.items() if not torch.isfinite(value))
                raise DivergenceError(f"step {step}", f"no number: {bad or 'the sum of losses'}", "Use a smaller --lr.")
            runtime.backward(loss)
            runtime.clip_and_step(optimizer, [], None)
            advance(1)
    detector.transform.min_size = (config.shorter_side,)
    trained: nn.Module = detector.eval()
    return trained


@contextmanager
def _seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Draw from a seed what torchvision draws from torch's global generators, and put these back."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), seeded_init(seed):
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def _groups(detector: nn.Module, body: DetectionBackbone, config: EvaluateDetectionConfig) -> list[dict[str, Any]]:
    """Return groups of parameters by rate and decay."""
    depth = len(getattr(body.backbone.net, "blocks", ())) if body.plain else 0
    if config.layer_decay < 1 and not depth:
        raise ConfigError(
            "--layer-decay", f"{body.backbone.info.name} is no plain ViT with blocks", "Leave it out, or use a ViT."
        )
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in detector.named_parameters():
        if not parameter.requires_grad:
            continue
        decay = 0.0 if parameter.ndim < 2 or name.endswith(_PLACES) else config.weight_decay
        rate = config.lr * config.layer_decay ** depth_below(name, depth)
        groups.setdefault((rate, decay), []).append(parameter)
    return [{"params": own, "lr": rate, "weight_decay": decay} for (rate, decay), own in groups.items()]


def depth_below(name: str, depth: int) -> int:
    """Return how many blocks, and what follows them, stand between a parameter of the backbone and the pyramid."""
    if not depth or not name.startswith("backbone.backbone.net."):
        return 0
    block = _BLOCK.search(name)
    if block:
        return depth - int(block[1])
    return 0 if ".norm." in name or ".fc_norm." in name else depth + 1


def _batches(
    dataset: ImageDataset, rows: NDArray[np.int64], config: EvaluateDetectionConfig, steps: int, seed: int
) -> Iterator[tuple[list[Tensor], list[dict[str, Tensor]]]]:
    """Yield images (c, h, w) and what is in them, pass after pass in new orders."""
    plans = _plans(dataset, rows, steps * config.batch_size, seed, masks=config.detector != "faster-rcnn")
    examples = read_examples(dataset, plans, config.num_workers or 0)
    while batch := list(itertools.islice(examples, config.batch_size)):
        yield [example.image for example in batch], [example.target for example in batch]


def _plans(
    dataset: ImageDataset, rows: NDArray[np.int64], wanted: int, seed: int, *, masks: bool
) -> Iterator[ExamplePlan]:
    assert dataset.objects is not None
    for drawn in range(wanted):
        epoch, place = divmod(drawn, len(rows))
        if not place:
            order = keyed_generator(seed, "detection", epoch).permutation(len(rows))
            mirrored = keyed_uniform(seed, epoch, np.arange(len(rows)), 0, "mirrored objects", 1)[:, 0] < 0.5
        row, mirror = int(rows[order[place]]), not dataset.chiral and bool(mirrored[place])
        objects = dataset.objects.read(row)
        yield ExamplePlan.of(dataset, row, objects=objects.select(objects.learnable()), mirror=mirror, masks=masks)


def detect(
    detector: nn.Module,
    dataset: ImageDataset,
    rows: NDArray[np.int64],
    runtime: Runtime,
    *,
    masks: bool,
    num_workers: int = 0,
    advance: Callable[[int], None] = lambda number: None,
) -> list[dict[str, Any]]:
    """Return the detections in images, as `labelkit.data.object_images.coco_scores` takes them.

    Args:
        detector: in evaluation mode.
        dataset: the set.
        rows: images; image i is row ``rows[i]``.
        runtime: where.
        masks: also return run lengths of their masks.
        num_workers: processes that decode images.
        advance: told how many images were done.
    """
    found: list[dict[str, Any]] = []
    plans = (ExamplePlan.of(dataset, int(row)) for row in rows)
    for image, example in enumerate(read_examples(dataset, plans, num_workers)):
        with torch.inference_mode():
            (result,) = detector(_on([example.image], runtime))
        boxes = result["boxes"].float().cpu().numpy()
        scores, labels = result["scores"].float().cpu().numpy(), result["labels"].cpu().numpy() - 1
        shapes = (result["masks"][:, 0] > 0.5).cpu().numpy() if masks else None
        for place in range(len(boxes)):
            entry = {"image": image, "label": int(labels[place]), "box": boxes[place], "score": float(scores[place])}
            if shapes is not None:
                entry["mask"] = encode_mask(shapes[place])
            found.append(entry)
        advance(1)
    return found


def _on(images: Sequence[Tensor], runtime: Runtime) -> list[Tensor]:
    """Bring images to the device, as numbers in [0, 1]."""
    return [image.to(runtime.device).float().div_(255) for image in images]


def _moved(target: Mapping[str, Tensor], runtime: Runtime) -> dict[str, Tensor]:
    return {name: value.to(runtime.device) for name, value in target.items()}

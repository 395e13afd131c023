"""Evaluate a backbone by training an object detector on it; boxes and masks are scored by COCO's metrics."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.commands.common.networks import build_embedding_network
from labelkit.commands.common.results import Cell, CommandResult, Table
from labelkit.commands.evaluate import dense
from labelkit.commands.evaluate.options import EvaluateDetectionConfig
from labelkit.data.datasets import ImageDataset
from labelkit.data.keyed_random import KeyedRNG, keyed_generator
from labelkit.data.object_images import (
    BOXES_REMEDY,
    SCORES,
    ExamplePlan,
    compute_coco_scores,
    encode_mask,
    encode_outline,
    read_example,
    read_examples,
    require_pycocotools,
)
from labelkit.data.registry import load_dataset
from labelkit.errors import ConfigError, DatasetError, DivergenceError
from labelkit.models.inference import InferenceNetwork
from labelkit.models.seeding import seeded_init
from labelkit.progress import current_progress
from labelkit.protocols.detection.detector import DetectionBackbone, build_detector, freeze_batch_statistics
from labelkit.training.devices import Runtime

_WARMUP = 500
# Fractions of training after which the learning rate is divided by 10 (published: after 9 and 11 of 12 epochs).
_LR_DROPS = (0.75, 0.9167)
_PLACES = ("pos_embed", "cls_token", "reg_token")


class UpdateSchedule(NamedTuple):
    """Learning-rate schedule of a detector: numbers of updates in total, in warm-up and before each tenfold drop."""

    steps: int
    warmup: int
    drops: tuple[int, ...]

    @classmethod
    def for_images(cls, config: EvaluateDetectionConfig, num_images: int) -> UpdateSchedule:
        """Compute the schedule for a number of training images."""
        steps = config.steps or -(-config.epochs * num_images // config.batch_size)
        return cls(steps, min(_WARMUP, steps // 10), tuple(round(share * steps) for share in _LR_DROPS))

    def lr_factor(self, step: int) -> float:
        """Return the learning-rate factor for a step (counted from 0)."""
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
) -> nn.Module:
    """Train a detector on top of a backbone with AdamW, minimizing the sum of its losses.

    The network is not changed; every training image must contain an object.

    Returns:
        torchvision's model, in evaluation mode.

    Raises:
        ConfigError: the network has no suitable backbone.
        DivergenceError: a loss is not finite.
        DatasetError: an image or a segmentation polygon cannot be used.
    """
    updates, num_classes = UpdateSchedule.for_images(config, len(rows)), len(dataset.object_classes)
    detector = build_detector(
        network,
        config.detector,
        num_classes,
        shorter_side=config.shorter_side,
        longer_side=config.longer_side,
        proposals=config.proposals,
        samples=config.samples_per_image,
        seed=seed,
    )
    body: DetectionBackbone = detector.backbone
    body.autocast = runtime.autocast
    if not config.tune:
        body.backbone.requires_grad_(False)
    groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in detector.named_parameters():
        if parameter.requires_grad:
            decay = 0.0 if parameter.ndim < 2 or name.endswith(_PLACES) else config.weight_decay
            groups.setdefault(decay, []).append(parameter)
    optimizer = torch.optim.AdamW([{"params": own, "weight_decay": decay} for decay, own in groups.items()], config.lr)
    detector.train()
    freeze_batch_statistics(body.backbone)
    if not config.tune:
        body.backbone.eval()
    progress = current_progress().task(f"train {config.detector} (seed {seed})", total=updates.steps)
    devices = [runtime.device] if runtime.device.type == "cuda" else []
    # torchvision uses torch's global random generators
    with torch.random.fork_rng(devices), seeded_init(seed), progress as task:
        for device in devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        for step, (images, targets) in enumerate(_batches(dataset, rows, config, updates.steps, seed)):
            for group in optimizer.param_groups:
                group["lr"] = config.lr * updates.lr_factor(step)
            moved = [{name: value.to(runtime.device) for name, value in target.items()} for target in targets]
            losses = detector([image.to(runtime.device).float().div_(255) for image in images], moved)
            loss = torch.stack([value.float() for value in losses.values()]).sum()
            if not torch.isfinite(loss):
                bad = ", ".join(name for name, value in losses.items() if not torch.isfinite(value))
                problem = f"the loss is not finite ({bad or 'the sum of all terms'})"
                raise DivergenceError(f"step {step}", problem, "Lower --lr.")
            runtime.backward(loss)
            runtime.clip_and_step(optimizer, [], None)
            task.advance(1)
    trained: nn.Module = detector.eval()
    return trained


def _batches(
    dataset: ImageDataset, rows: NDArray[np.int64], config: EvaluateDetectionConfig, steps: int, seed: int
) -> Iterator[tuple[list[Tensor], list[dict[str, Tensor]]]]:
    """Yield batches of images (c, h, w) and targets, in a new order in each epoch."""
    annotations, masks = dataset.objects, config.detector != "faster-rcnn"
    assert annotations is not None

    def plans() -> Iterator[ExamplePlan]:
        for drawn in range(steps * config.batch_size):
            epoch, place = divmod(drawn, len(rows))
            if not place:
                order = keyed_generator(seed, "detection", epoch).permutation(len(rows))
                mirrored = KeyedRNG(seed, epoch, np.arange(len(rows))).uniform(0, "mirrored objects", 1)[:, 0] < 0.5
            row, mirror = int(rows[order[place]]), not dataset.chiral and bool(mirrored[place])
            objects = annotations.read(row)
            objects = objects.select(objects.find_trainable_objects())
            yield ExamplePlan.for_image(dataset, row, objects=objects, mirror=mirror, masks=masks)

    examples = read_examples(dataset, plans(), config.num_workers or 0)
    while batch := list(itertools.islice(examples, config.batch_size)):
        yield [image for image, _ in batch], [target for _, target in batch]


def detect_objects(
    detector: nn.Module,
    dataset: ImageDataset,
    rows: NDArray[np.int64],
    runtime: Runtime,
    *,
    masks: bool,
    num_workers: int,
) -> list[dict[str, Any]]:
    """Detect objects in images, and return them in the format of `labelkit.data.object_images.compute_coco_scores`.

    Image i is row ``rows[i]``; with ``masks``, detections include run-length encoded masks.
    """
    found: list[dict[str, Any]] = []
    plans = (ExamplePlan.for_image(dataset, int(row)) for row in rows)
    with current_progress().task("detect", total=len(rows)) as task, torch.inference_mode():
        for image, (pixels, _) in enumerate(read_examples(dataset, plans, num_workers)):
            (result,) = detector([pixels.to(runtime.device).float().div_(255)])
            boxes = result["boxes"].float().cpu().numpy()
            scores, labels = result["scores"].float().cpu().numpy(), result["labels"].cpu().numpy() - 1
            shapes = (result["masks"][:, 0] > 0.5).cpu().numpy() if masks else None
            for place, (label, box, score) in enumerate(zip(labels.tolist(), boxes, scores.tolist(), strict=True)):
                mask = {} if shapes is None else {"mask": encode_mask(shapes[place])}
                found.append({"image": image, "label": label, "box": box, "score": score, **mask})
            task.advance(1)
    return found


def evaluate_detection(config: EvaluateDetectionConfig) -> CommandResult:
    """Train detectors on a frozen or fine-tuned backbone, and score their detections.

    Raises:
        ConfigError: a split is missing, the splits overlap, the masks are missing, or pycocotools is not installed.
        DatasetError: there are no boxes, or boxes or images cannot be used.
        CheckpointError: the network cannot be loaded.
        DivergenceError: training of a detector failed.
    """
    dataset = load_dataset(config.dataset, data_root=config.data_root, **config.listing_kwargs())
    if dataset.objects is None:
        raise DatasetError(config.dataset, "has no boxes", BOXES_REMEDY)
    masks = config.detector != "faster-rcnn"
    if masks and not dataset.objects.has_outlines:
        problem = f"{config.dataset} has boxes but no masks, and {config.detector} requires both"
        raise ConfigError("--detector", problem, "Use --detector faster-rcnn.")
    require_pycocotools()
    rows = _choose(config, dataset)
    runtime = Runtime(device=config.device, threads=config.threads, precision=config.precision)
    model = build_embedding_network(config.model_copy(update={"image_size": None}), dataset.in_channels)
    dense.check_channels(model, dataset)
    network = model.network.to(runtime.device).eval()
    updates = UpdateSchedule.for_images(config, len(rows.train_rows))
    truth = collect_true_objects(dataset, rows.eval_rows, masks=masks)
    parts: dict[str, list[tuple[dict[str, float], NDArray[np.float64]]]] = {}
    for seed in range(config.seed, config.seed + config.seeds):
        detector = train_detector(config, network, dataset, rows.train_rows, runtime, seed=seed)
        workers = config.num_workers or 0
        found = detect_objects(detector, dataset, rows.eval_rows, runtime, masks=masks, num_workers=workers)
        sizes = {"num_images": len(rows.eval_rows), "num_classes": len(dataset.object_classes)}
        for part in ("box", "mask")[: 1 + masks]:
            parts.setdefault(part, []).append(compute_coco_scores(truth, found, **sizes, masks=part == "mask"))
    means = {
        part: {name: dense.mean_and_std([scores[name] for scores, _ in seeds]) for name in SCORES}
        for part, seeds in parts.items()
    }
    per_class = {part: np.mean([own for _, own in seeds], axis=0) for part, seeds in parts.items()}
    names = list(dataset.object_classes)
    shown = "detector batch_size tune lr weight_decay proposals samples_per_image precision".split()
    values: dict[str, object] = {
        "measured": f"{config.detector} on {dataset.name}/{rows.eval}",
        **means,
        "per_class": [
            {"class": name, **{f"{part}_ap": float(own[i]) for part, own in per_class.items()}}
            for i, name in enumerate(names)
        ],
        "network": dense.describe_dense_network(model),
        "data": {"dataset": dataset.name, "digest": dataset.digest(), "object_classes": names, "scoring": "coco"},
        "protocol": {
            **{name: getattr(config, name) for name in shown},
            **rows.to_json(),
            "steps": updates.steps,
            "optimizer": "adamw",
            "lr_drop_steps": list(updates.drops),
            "warmup_steps": updates.warmup,
            "shorter_side": config.shorter_side,
            "longer_side": config.longer_side,
            "train_sizes": [config.shorter_side],
            "mirror": not dataset.chiral,
            "seeds": list(range(config.seed, config.seed + config.seeds)),
        },
    }
    what = "backbone and detector" if config.tune else "detector"
    source = re.sub("^random:", "random weights with seed ", model.source)
    title = f"detection in %: {config.detector} on {source}, {what} trained on {len(rows.train_rows)} images of "
    title += f"{rows.train} for {updates.steps} steps, {config.seeds} {'seed' if config.seeds == 1 else 'seeds'}; "
    title += f"{dataset.name}/{rows.eval}, {len(rows.eval_rows)} images"
    lines: list[list[Cell]] = [[part, *map(dense.format_percent_and_std, own.values())] for part, own in means.items()]
    columns = ["type", "AP", "AP50", "AP75", "AP small", "AP medium", "AP large"]
    return CommandResult(values, (), (Table(title, columns, lines),))


def _choose(config: EvaluateDetectionConfig, dataset: ImageDataset) -> dense.ChosenSplits:
    chosen = dense.choose_splits(config, dataset, ("train",))
    assert dataset.objects is not None
    objects = dataset.objects
    kept = [row for row in chosen.train_rows if len(objects.read(int(row)).find_trainable_objects())]
    if not kept:
        problem = f"no image in {chosen.train} has a box to train on"
        raise DatasetError(config.dataset, problem, "Choose another --split.")
    if all(objects.read(int(row)).ignored.all() for row in chosen.eval_rows):
        problem = f"no image in {chosen.eval} has a box to detect"
        raise DatasetError(config.dataset, problem, "Choose another --eval-split.")
    return chosen._replace(train_rows=np.array(kept))


def collect_true_objects(dataset: ImageDataset, rows: NDArray[np.int64], *, masks: bool) -> list[dict[str, Any]]:
    """Return the annotated objects of images, in the format of `compute_coco_scores`.

    Raises:
        DatasetError: a segmentation polygon cannot be read.
    """
    assert dataset.objects is not None
    entries: list[dict[str, Any]] = []
    for image, row in enumerate(rows):
        objects = dataset.objects.read(int(row))
        plan = ExamplePlan.for_image(dataset, int(row))
        height, width = plan.size
        if masks and not height:  # the annotations do not contain the image size
            height, width = read_example(dataset.source, dataset.in_channels, plan)[0].shape[-2:]
        for place in range(len(objects)):
            entry = {
                "image": image, "label": int(objects.labels[place]), "box": objects.boxes[place],
                "area": float(objects.areas[place]), "ignored": bool(objects.ignored[place]),
            }  # fmt: skip
            if masks:
                assert objects.outlines is not None
                try:
                    entry["mask"] = encode_outline(objects.outlines[place], height, width)
                except ValueError as error:
                    raise DatasetError(plan.name, str(error), "Correct its annotation, or remove the image.") from error
            entries.append(entry)
    return entries

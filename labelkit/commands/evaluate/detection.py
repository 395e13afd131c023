"""Judge a backbone by a detector that is trained on it: boxes and masks of objects, scored as COCO or VOC does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.networks import EmbeddingNetwork, embedding_network
from labelkit.commands.common.results import Cell, SimpleResult, Table
from labelkit.commands.evaluate.dense import (
    ChosenSplits,
    check_channels,
    choose_splits,
    mean_and_spread,
    network_record,
    percent_and_spread,
    write_scores,
)
from labelkit.commands.evaluate.dense_options import EvaluateDetectionConfig
from labelkit.commands.evaluate.detection_training import Updates, detect, train_detector
from labelkit.data.datasets import ImageDataset
from labelkit.data.object_images import (
    HAVE_BOXES,
    SCORES,
    ExamplePlan,
    check_sizes,
    coco_scores,
    encode_outline,
    need_pycocotools,
    read_example,
)
from labelkit.data.registry import load_dataset
from labelkit.errors import ConfigError, DatasetError
from labelkit.formatting import percent
from labelkit.progress import current_progress
from labelkit.protocols.detection.average_precision import Boxes, voc_scores
from labelkit.training.devices import Runtime

_VOC_SCORES = ("ap50_11_point", "ap50")
Entries = list[dict[str, Any]]
Scores = tuple[dict[str, float], NDArray[np.float64]]


def evaluate_detection(config: EvaluateDetectionConfig) -> SimpleResult:
    """Train detectors on a backbone, with it or on what it gives, and score what they find.

    Raises:
        ConfigError: no such split, the images scored were trained on, no outlines for masks, or no pycocotools.
        DatasetError: no boxes, or boxes or images that cannot be used.
        CheckpointError: the network cannot be loaded.
        DivergenceError: training of a detector failed.
    """
    dataset = load_dataset(config.dataset, data_root=config.data_root, **config.listing())
    if dataset.objects is None:
        raise DatasetError(config.dataset, "has no boxes", HAVE_BOXES)
    masks = config.detector != "faster-rcnn"
    if masks and not dataset.objects.has_outlines:
        raise ConfigError(
            "--detector", f"{config.dataset} has boxes without outlines, {config.detector} needs both",
            "Use --detector faster-rcnn.",
        )  # fmt: skip
    if masks or dataset.objects.scoring == "coco":
        need_pycocotools("reading outlines" if masks else "scoring by COCO's rules")
    rows = _choose(config, dataset)
    runtime = Runtime(device=config.device, threads=config.threads, precision=config.precision)
    model = embedding_network(config.model_copy(update={"image_size": None}), dataset.in_channels)
    check_channels(model, dataset)
    network = model.network.to(runtime.device).eval()
    used = [*rows.train_rows.tolist(), *rows.eval_rows.tolist()]
    with current_progress().task("check sizes of images", total=len(used)) as task:
        check_sizes(dataset, used, task.advance)
    updates = Updates.of(config, len(rows.train_rows))
    truth = true_objects(dataset, rows.eval_rows, masks=masks)
    parts: dict[str, list[Scores]] = {}
    for seed in range(config.seed, config.seed + config.seeds):
        with current_progress().task(f"train {config.detector} (seed {seed})", total=updates.steps) as task:
            trained_on = rows.train_rows
            detector = train_detector(config, network, dataset, trained_on, runtime, seed=seed, advance=task.advance)
        with current_progress().task("detect", total=len(rows.eval_rows)) as task:
            found = detect(
                detector,
                dataset,
                rows.eval_rows,
                runtime,
                masks=masks,
                num_workers=config.num_workers or 0,
                advance=task.advance,
            )
        for part, scores in score(dataset, truth, found, len(rows.eval_rows), masks=masks).items():
            parts.setdefault(part, []).append(scores)
    return _result(config, dataset, rows, updates, model, parts)


def _choose(config: EvaluateDetectionConfig, dataset: ImageDataset) -> ChosenSplits:
    chosen = choose_splits(config, dataset, ("train",))
    assert dataset.objects is not None
    objects = dataset.objects
    kept = np.array([row for row in chosen.train_rows if len(objects.read(int(row)).learnable())], dtype=np.int64)
    if not len(kept):
        raise DatasetError(config.dataset, f"no image of {chosen.train} has a box to learn", "Choose another --split.")
    if all(objects.read(int(row)).ignored.all() for row in chosen.eval_rows):
        problem = f"no image of {chosen.eval} has a box to find"
        raise DatasetError(config.dataset, problem, "Choose another --eval-split.")
    return chosen._replace(train_rows=kept)


def true_objects(dataset: ImageDataset, rows: NDArray[np.int64], *, masks: bool) -> Entries:
    """Return the true objects of some rows, as `coco_scores` takes them.

    Raises:
        DatasetError: an outline cannot be read.
    """
    assert dataset.objects is not None
    entries: Entries = []
    for image, row in enumerate(rows):
        objects = dataset.objects.read(int(row))
        plan = ExamplePlan.of(dataset, int(row))
        height, width = plan.size
        if masks and not height:  # the annotation does not say it
            height, width = read_example(dataset.source, dataset.in_channels, plan).image.shape[-2:]
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
                    raise DatasetError(plan.name, str(error), "Mend its annotation, or take it out.") from error
            entries.append(entry)
    return entries


def score(dataset: ImageDataset, truth: Entries, found: Entries, num_images: int, *, masks: bool) -> dict[str, Scores]:
    """Score detections by the rules of the set.

    Args:
        dataset: says which rules, and the classes.
        truth: see ``labelkit.data.object_images.coco_scores``.
        found: likewise.
        num_images: that were looked at.
        masks: score masks, too.

    Returns:
        scores, and those of every class, of ``box`` and perhaps ``mask``.
    """
    assert dataset.objects is not None
    num_classes = len(dataset.object_classes)
    if dataset.objects.scoring == "voc":
        return {"box": voc_scores(_by_class(truth, num_classes), _by_class(found, num_classes))}
    return {
        part: coco_scores(truth, found, num_images=num_images, num_classes=num_classes, masks=part == "mask")
        for part in ("box", "mask")[: 1 + masks]
    }


def _by_class(entries: Sequence[Mapping[str, Any]], num_classes: int) -> list[Boxes]:
    groups: list[Entries] = [[] for _ in range(num_classes)]
    for entry in entries:
        groups[entry["label"]].append(dict(entry))
    return [
        Boxes(
            np.array([entry["image"] for entry in group], dtype=np.int64),
            np.array([entry["box"] for entry in group], dtype=np.float64).reshape(-1, 4),
            np.array([entry.get("ignored", False) for entry in group], dtype=bool),
            np.array([entry.get("score", 1.0) for entry in group], dtype=np.float64),
        )
        for group in groups
    ]


def _result(
    config: EvaluateDetectionConfig,
    dataset: ImageDataset,
    rows: ChosenSplits,
    updates: Updates,
    model: EmbeddingNetwork,
    parts: Mapping[str, Sequence[Scores]],
) -> SimpleResult:
    assert dataset.objects is not None
    names = SCORES if dataset.objects.scoring == "coco" else _VOC_SCORES
    means = {
        part: {name: mean_and_spread([scores[name] for scores, _ in seeds]) for name in names}
        for part, seeds in parts.items()
    }
    per_class = {part: np.mean([own for _, own in seeds], axis=0) for part, seeds in parts.items()}
    values: dict[str, object] = {
        "measured": f"{config.detector} on {dataset.name}/{rows.eval}",
        **means,
        "per_class": [
            {"class": name, **{f"{part}_ap": float(own[i]) for part, own in per_class.items()}}
            for i, name in enumerate(dataset.object_classes)
        ],
        "network": network_record(model),
        "data": {
            "dataset": dataset.name,
            "digest": dataset.digest(),
            "object_classes": list(dataset.object_classes),
            "scoring": dataset.objects.scoring,
        },
        "protocol": _protocol(config, dataset, rows, updates),
    }
    made = write_scores(config.out, values)
    what = "backbone and detector" if config.tune else "detector"
    title = (
        f"detection in %: {config.detector} on {model.told_source}, {what} trained on {len(rows.train_rows)} images of "
    )
    title += f"{rows.train} for {updates.steps} steps, {config.seeds} {'seed' if config.seeds == 1 else 'seeds'}; "
    title += f"{dataset.name}/{rows.eval}, {len(rows.eval_rows)} images"
    lines: list[list[Cell]] = [
        [part, *(percent_and_spread(own[name]) for name in names)] for part, own in means.items()
    ]
    tables = [Table(title, ["of", *(_HEADERS[name] for name in names)], lines)]
    if config.per_class:
        classes: list[list[Cell]] = [
            [name, *(percent(float(own[i])) for own in per_class.values())]
            for i, name in enumerate(dataset.object_classes)
        ]
        kind = "AP" if dataset.objects.scoring == "coco" else "AP50"
        tables.append(Table("every class in %", ["class", *(f"{part} {kind}" for part in per_class)], classes))
    return SimpleResult(values, made, tuple(tables))


_HEADERS = {
    "ap": "AP", "ap50": "AP50", "ap75": "AP75", "ap_small": "AP small", "ap_medium": "AP medium",
    "ap_large": "AP large", "ap50_11_point": "AP50, 11 points",
}  # fmt: skip


def _protocol(
    config: EvaluateDetectionConfig, dataset: ImageDataset, rows: ChosenSplits, updates: Updates
) -> dict[str, object]:
    as_asked = ("detector", "batch_size", "tune", "lr", "weight_decay", "layer_decay", "proposals", "samples_per_image")
    return {
        **{name: getattr(config, name) for name in (*as_asked, "precision")},
        "train_split": rows.train,
        "train_images": len(rows.train_rows),
        "eval_split": rows.eval,
        "eval_images": len(rows.eval_rows),
        "steps": updates.steps,
        "optimizer": "adamw",
        "lr_drop_steps": list(updates.drops),
        "warmup_steps": updates.warmup,
        "shorter_side": config.shorter_side,
        "longer_side": config.longest_side,
        "train_sizes": list(config.train_sizes or (config.shorter_side,)),
        "mirror": not dataset.chiral,
        "seeds": list(range(config.seed, config.seed + config.seeds)),
    }

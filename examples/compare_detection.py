"""Compare detectors on a backbone with pretrained and with random weights; the boxes are derived from masks.

    python examples/compare_detection.py --dataset camvid --classes car pedestrian bicyclist --out cars.json

Each connected component of a class in a mask becomes an object with a box and an outline in COCO format, unless it is
smaller than --min-area pixels. Touching objects of the same class are merged, so these boxes for CamVid differ from
those that a person would draw. The rows are the backbone with published and with random weights, each with and without
fine-tuning.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import labelkit
import numpy as np
from labelkit.data.datasets import read_image_and_mask
from labelkit.data.registry import load_dataset
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

SCORES = {"ap": "AP", "ap50": "AP50", "ap75": "AP75"}


def run_lengths(inside: NDArray[np.bool_]) -> dict[str, Any]:
    """Return COCO's run-length encoding of a mask: column by column, counts of pixels outside, inside, outside."""
    flat = inside.T.reshape(-1)
    ends = np.flatnonzero(np.diff(flat, prepend=False, append=False))
    counts = [int(count) for count in np.diff(ends, prepend=0, append=len(flat))]
    return {"size": list(inside.shape), "counts": counts}


def parts(mask: NDArray[np.uint8], label: int, min_area: int) -> list[NDArray[np.bool_]]:
    """Return the sufficiently large connected components of a class."""
    numbered, count = ndimage.label(mask == label, structure=np.ones((3, 3)))
    found = [numbered == number for number in range(1, count + 1)]
    return [inside for inside in found if inside.sum() >= min_area]


def write_boxes(options: argparse.Namespace, folder: Path) -> dict[str, int]:
    """Write the images and annotations of the splits ``train`` and ``val``; return the number of objects in each."""
    dataset = load_dataset(options.dataset, data_root=options.data_root)
    labels = [dataset.mask_classes.index(name) for name in options.classes]
    counts = {}
    for split in ("train", "val"):
        (folder / split).mkdir(parents=True)
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for number, row in enumerate(dataset.rows_in_split(split)[: options.max_images], start=1):
            pixels, mask = read_image_and_mask(dataset, int(row))
            name = f"{number:05d}.png"
            Image.fromarray(pixels).save(folder / split / name)
            images.append({"id": number, "file_name": name, "height": mask.shape[0], "width": mask.shape[1]})
            for category, label in enumerate(labels, start=1):
                for inside in parts(mask, label, options.min_area):
                    rows, columns = (np.flatnonzero(inside.any(axis=axis)) for axis in (1, 0))
                    box = [columns[0], rows[0], columns[-1] + 1 - columns[0], rows[-1] + 1 - rows[0]]
                    annotations.append(
                        {
                            "id": len(annotations) + 1, "image_id": number, "category_id": category,
                            "bbox": [int(side) for side in box], "area": int(inside.sum()), "iscrowd": 0,
                            "segmentation": run_lengths(inside),
                        }
                    )  # fmt: skip
        categories = [{"id": category, "name": name} for category, name in enumerate(options.classes, start=1)]
        table = {"images": images, "annotations": annotations, "categories": categories}
        (folder / "annotations").mkdir(exist_ok=True)
        (folder / f"annotations/instances_{split}.json").write_text(json.dumps(table))
        counts[split] = len(annotations)
    return counts


def main() -> None:
    """Create the boxes, train and score every row, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="digit_scenes", help="dataset with masks and the splits train and val")
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--classes", nargs="+", default=[str(digit) for digit in range(10)], help="classes in masks")
    parser.add_argument("--min-area", type=int, default=40, help="minimum object size in pixels")
    parser.add_argument("--max-images", type=int, help="number of images per split, from the start")
    parser.add_argument("--backbone", default="tf_efficientnet_lite0.in1k")
    parser.add_argument("--weights", nargs="+", choices=("pretrained", "random"), default=["pretrained", "random"])
    parser.add_argument("--detector", default="mask-rcnn")
    parser.add_argument("--image-size", type=int, default=192)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--samples-per-image", type=int, default=64)
    parser.add_argument("--proposals", type=int, default=100)
    parser.add_argument("--tuned-only", action="store_true", help="skip the rows with a frozen backbone")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        counts = write_boxes(options, Path(name) / "boxes")
        print(f"{counts['train']} training objects, {counts['val']} test objects", flush=True)
        for weights in options.weights:
            for tune in (True, False)[: 1 + (not options.tuned_only)]:
                started = time.monotonic()
                result = labelkit.evaluate.detection(
                    dataset=str(Path(name) / "boxes"),
                    backbone=options.backbone,
                    pretrained=weights == "pretrained",
                    random_weights=weights == "random",
                    detector=options.detector,
                    image_size=options.image_size,
                    steps=options.steps,
                    batch_size=options.batch_size,
                    lr=options.lr,
                    seeds=options.seeds,
                    samples_per_image=options.samples_per_image,
                    proposals=options.proposals,
                    tune=tune,
                ).values
                row = {"backbone": options.backbone, "weights": weights, "tune": tune}
                for part in ("box", "mask"):
                    if part in result:
                        row |= {f"{part}_{key}": 100 * result[part][key]["mean"] for key in SCORES}
                        spreads = {key: result[part][key]["sd"] for key in SCORES}
                        row |= {f"{part}_{key}_sd": 100 * sd for key, sd in spreads.items() if sd is not None}
                rows.append(row | {"seconds": round(time.monotonic() - started)})
                told = ", ".join(f"{key} {value:.1f}" for key, value in row.items() if isinstance(value, float))
                print(f"{weights} weights, {'tuned' if tune else 'as they are'}: {told}", flush=True)
    if options.out is not None:
        record = {
            "command": " ".join(["python examples/compare_detection.py", *sys.argv[1:]]),
            "objects": counts,
            "cores": os.cpu_count(),
            "rows": rows,
        }
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()

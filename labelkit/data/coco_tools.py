"""The one use of pycocotools: outlines as masks, and the official scores of detections."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelkit.errors import ConfigError

SCORES: Final = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")
"""As COCO lists them first: AP over IoU .5 to .95, at .5, at .75, and of small, medium and large objects."""

Encoded = dict[str, Any]
"""A mask as run lengths."""


def need_pycocotools(why: str) -> None:
    """Look whether pycocotools is there.

    Raises:
        ConfigError: it is not.
    """
    try:
        import pycocotools.mask  # noqa: F401
    except ImportError as error:
        raise ConfigError("evaluate detection", f"{why} needs pycocotools", "pip install pycocotools.") from error


def rasterize(outlines: Sequence[Any], height: int, width: int) -> NDArray[np.uint8]:
    """Return outlines as masks.

    Args:
        outlines: of each object, as COCO's files have it: polygons, or run lengths, compressed or not.
        height: of the image.
        width: of the image.

    Returns:
        (m, h, w) uint8, 1 inside.

    Raises:
        ValueError: one of them is no outline.
    """
    from pycocotools import mask

    if not outlines:
        return np.zeros((0, height, width), dtype=np.uint8)
    return np.stack([mask.decode(encode_outline(outline, height, width)) for outline in outlines])


def encode_outline(outline: Any, height: int, width: int) -> Encoded:
    """Return an outline of COCO's files as run lengths.

    Raises:
        ValueError: it is no outline, or one of another image.
    """
    from pycocotools import mask

    if isinstance(outline, list):
        parts = [part for part in outline if _is_polygon(part)]
        if not parts or len(parts) < len(outline):
            raise ValueError("segmentation is no list of polygons of three points or more")
        merged: Encoded = mask.merge(mask.frPyObjects(parts, height, width))
        return merged
    if not isinstance(outline, dict) or outline.get("size") != [height, width]:
        raise ValueError(f"segmentation is neither polygons nor run lengths of {height} rows and {width} columns")
    counts = outline.get("counts")
    if isinstance(counts, list) and all(type(count) is int and count >= 0 for count in counts):
        if sum(counts) != height * width:
            raise ValueError(f"run lengths add up to {sum(counts)}, not to {height * width}")
        encoded: Encoded = mask.frPyObjects(outline, height, width)
        return encoded
    if not isinstance(counts, str):
        raise ValueError("run lengths are neither a list of whole numbers nor a text")
    return {"size": [height, width], "counts": counts}


def _is_polygon(part: object) -> bool:
    return (
        isinstance(part, list)
        and len(part) >= 6
        and len(part) % 2 == 0
        and all(type(number) in (int, float) for number in part)
    )


def encode_mask(pixels: NDArray[np.bool_]) -> Encoded:
    """Return a mask (h, w) as run lengths."""
    from pycocotools import mask

    encoded: Encoded = mask.encode(np.asfortranarray(pixels.astype(np.uint8)))
    return encoded


def coco_scores(
    truth: Sequence[Mapping[str, Any]],
    found: Sequence[Mapping[str, Any]],
    *,
    num_images: int,
    num_classes: int,
    masks: bool,
) -> tuple[dict[str, float], NDArray[np.float64]]:
    """Score detections by COCO's official code.

    Args:
        truth: of each true object ``image``, ``label``, ``box`` (left, top, right, bottom), ``area``, ``ignored``, and
            for masks ``mask``, its run lengths.
        found: of each detection ``image``, ``label``, ``box``, ``score``, and for masks ``mask``.
        num_images: n, numbered from 0.
        num_classes: c, numbered from 0.
        masks: compare masks, not boxes.

    Returns:
        ``SCORES``, each in [0, 1] or NaN where there is no true object; and the (c,) AP of every class, likewise.
    """
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    images: list[dict[str, int]] = [{"id": number} for number in range(num_images)]
    for entry in (*truth, *found) if masks else ():  # it asks for the size of an image whose mask it compares
        images[entry["image"]]["height"], images[entry["image"]]["width"] = entry["mask"]["size"]
    categories = [{"id": number} for number in range(num_classes)]
    with contextlib.redirect_stdout(io.StringIO()):  # it prints what it does
        true, detected = COCO(), COCO()
        for table, entries in ((true, truth), (detected, found)):
            # numbers of objects begin with 1: 0 stands for none in its matches
            annotations = [_annotation(number, entry, masks) for number, entry in enumerate(entries, start=1)]
            table.dataset = {"images": images, "categories": categories, "annotations": annotations}
            table.createIndex()
        scorer = COCOeval(true, detected, "segm" if masks else "bbox")
        scorer.evaluate()
        scorer.accumulate()
        scorer.summarize()
    numbers = [float(value) if value >= 0 else float("nan") for value in scorer.stats[: len(SCORES)]]
    precision = scorer.eval["precision"][..., 0, -1]  # IoU, recall, class
    known = precision > -1
    total = np.where(known, precision, 0).sum(axis=(0, 1))
    count = known.sum(axis=(0, 1))
    per_class = np.divide(total, count, out=np.full(num_classes, np.nan), where=count > 0)
    return dict(zip(SCORES, numbers, strict=True)), per_class


def _annotation(number: int, entry: Mapping[str, Any], masks: bool) -> dict[str, Any]:
    left, top, right, bottom = (float(side) for side in entry["box"])
    width, height = right - left, bottom - top
    annotation: dict[str, Any] = {
        "id": number,
        "image_id": int(entry["image"]),
        "category_id": int(entry["label"]),
        "bbox": [left, top, width, height],
        "iscrowd": int(entry.get("ignored", False)),
        "area": float(entry["area"]) if "area" in entry else width * height,
    }
    if "score" in entry:
        annotation["score"] = float(entry["score"])
    if masks:
        from pycocotools import mask

        annotation["segmentation"] = entry["mask"]
        if "area" not in entry:
            annotation["area"] = float(mask.area(entry["mask"]))
    return annotation

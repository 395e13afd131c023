"""Labels in the JSON files of other programs, as the text of a CSV that ``labelkit.data.tables`` reads."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Collection
from typing import Any

from labelkit.errors import DatasetError
from labelkit.files import parse_json

_SHOWN = 5


def json_as_csv(text: str, where: str, label_columns: Collection[str]) -> str:
    """Convert JSON (COCO, FiftyOne, Label Studio, ``{path: label}``, or a list or lines of objects) to CSV text.

    Raises:
        DatasetError: it is none of these, or an image has several labels.
    """
    table = io.StringIO()
    try:
        rows = [
            {key: _unwrap_single(row, one, where) if key.lower() in label_columns else one for key, one in row.items()}
            for row in _rows(text)
        ]
        writer = csv.DictWriter(table, list(dict.fromkeys(key for row in rows for key in row)), restval="")
        writer.writeheader()
        writer.writerows(rows)
        table.getvalue().encode()  # JSON may contain halves of characters, which no file name or class has
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        remedy = "Pass COCO, FiftyOne or Label Studio JSON, {path: label}, objects with keys path and label, or a CSV."
        raise DatasetError(where, "is not JSON with image labels in a known format", remedy) from error
    return table.getvalue()


def _rows(text: str) -> list[dict[str, Any]]:
    """Return the rows of a table."""
    try:
        value = parse_json(text)
    except ValueError:  # one object in each line
        value = [parse_json(line) for line in text.split("\n") if line.strip()]
    if isinstance(value, list):
        return [_task(one) if isinstance(one.get("data"), dict) else one for one in value]
    if {"images", "annotations", "categories"} <= value.keys():
        names = {one["id"]: one["name"] for one in value["categories"]}
        found = defaultdict(list)
        for one in value["annotations"]:
            found[one["image_id"]].append(names[one["category_id"]])
        return [{"path": one["file_name"], "label": found[one["id"]]} for one in value["images"]]
    if {"classes", "labels"} == value.keys():
        classes = dict(enumerate(value["classes"])) | {None: None}
        value = {path: classes[at] for path, at in value["labels"].items()}
    if any(isinstance(label, list) for label in value.values()):
        raise ValueError("lists, as of the images of each split")
    return [{"path": path, "label": label} for path, label in value.items()]


def _task(task: dict[str, Any]) -> dict[str, Any]:
    """Return the image and the choices of a task of Label Studio."""
    results = [one for answer in task["annotations"] if not answer.get("was_cancelled") for one in answer["result"]]
    choices = [choice for one in results if one["type"] == "choices" for choice in one["value"]["choices"]]
    return {"path": _image(task["data"]), "label": choices}


def _image(row: dict[str, Any]) -> object:
    return row.get("image") or next((one for one in row.values() if isinstance(one, str)), "?")


def _unwrap_single(row: dict[str, Any], label: Any, where: str) -> object:
    """Return the only label of an image; empty without any."""
    several = label["choices"] if isinstance(label, dict) else label
    found = list(dict.fromkeys(several if isinstance(several, list) else [several]))
    if len(found) > 1:
        problem = f"the image {_image(row)!r} has {len(found)} labels: {', '.join(map(str, found[:_SHOWN]))}"
        raise DatasetError(where, problem, "Keep only one label per image.")
    return found[0] if found else ""

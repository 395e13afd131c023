"""What of a named data set is on disk, against the published figures; nothing is decoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from labelkit.data.named.layouts import DatasetSpec, compare_counts
from labelkit.errors import DatasetAbsent, DatasetError, DatasetIncomplete


@dataclass(frozen=True)
class Inventory:
    """What was found of one data set.

    Attributes:
        state: ``whole`` if every count is the published one, ``absent`` if nothing is there.
        folder: the set's folder, if it lies in one and can be listed.
        found: images of each split; splits that could not be counted are left out.
        num_classes: classes found, ``None`` if they could not be counted.
        fault: what is wrong and what to do; ``None`` for a whole set.
        num_mask_classes: classes of pixels found, likewise.
        num_object_classes: classes of objects found, likewise.
    """

    state: Literal["whole", "incomplete", "absent"]
    folder: Path | None
    found: Mapping[str, int]
    num_classes: int | None
    fault: DatasetError | None
    num_mask_classes: int | None = None
    num_object_classes: int | None = None


def take_inventory(spec: DatasetSpec, data_root: Path) -> Inventory:
    """Count a data set and compare it with what its authors published.

    A set that agrees with its own lists but not with the published figures can be read all the same; it is
    ``incomplete`` here.
    """
    try:
        dataset = spec.load(data_root)
    except DatasetAbsent as absent:
        return Inventory("absent", None, {}, None, absent)
    except DatasetIncomplete as incomplete:
        return Inventory("incomplete", None, incomplete.found, incomplete.num_classes, incomplete)
    except DatasetError as damaged:
        return Inventory("incomplete", None, {}, None, damaged)
    found = {name: int((dataset.splits == i).sum()) for i, name in enumerate(dataset.split_names)}
    num_classes, num_mask_classes = len(dataset.class_names), len(dataset.mask_classes)
    num_object_classes = len(dataset.object_classes)
    problems = []
    if not all(count.agrees(found.get(split, 0)) for split, count in spec.num_images.items()):
        problems.append(compare_counts(found, spec.num_images))
    if num_classes != spec.num_classes:
        problems.append(f"expected {spec.num_classes:,} classes, found {num_classes:,}")
    if num_mask_classes != spec.num_mask_classes:
        problems.append(f"expected {spec.num_mask_classes:,} classes of pixels, found {num_mask_classes:,}")
    if num_object_classes != spec.num_object_classes:
        problems.append(f"expected {spec.num_object_classes:,} classes of objects, found {num_object_classes:,}")
    if not problems:
        return Inventory("whole", dataset.root, found, num_classes, None, num_mask_classes, num_object_classes)
    fault = DatasetIncomplete(
        str(dataset.root or spec.name),
        "; ".join(problems),
        "Fetch it again if it should be the published set; what is there fits together and can be used as it is.",
        found=found,
        num_classes=num_classes,
    )
    return Inventory("incomplete", dataset.root, found, num_classes, fault, num_mask_classes, num_object_classes)

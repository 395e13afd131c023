"""What the commands on patch features report: scores of masks, and the files that were asked for."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.images.masks import MaskPicture, write_mask_sheet
from labelkit.commands.common.results import Cell, Table, jsonable
from labelkit.commands.evaluate.dense_options import DenseConfig
from labelkit.formatting import percent
from labelkit.metrics.segmentation import SegmentationScores
from labelkit.store.commit import commit_bytes


@dataclass(frozen=True)
class MaskScores:
    """Scores of masks over several seeds.

    Attributes:
        names: the c classes.
        mean_iou: mean, spread and values, see :func:`mean_and_spread`.
        pixel_accuracy: likewise.
        iou: (c,) mean of every class, NaN where there is none.
        accuracy: (c,) likewise.
    """

    names: Sequence[str]
    mean_iou: dict[str, object]
    pixel_accuracy: dict[str, object]
    iou: NDArray[np.float64]
    accuracy: NDArray[np.float64]

    @classmethod
    def of(cls, scores: Sequence[SegmentationScores], names: Sequence[str]) -> MaskScores:
        """Sum up one score per seed."""
        iou, accuracy = class_means(scores)
        return cls(
            names,
            mean_and_spread([score.mean_iou for score in scores]),
            mean_and_spread([score.pixel_accuracy for score in scores]),
            iou,
            accuracy,
        )

    def values(self) -> dict[str, object]:
        """Return them as plain JSON."""
        return {
            "mean_iou": self.mean_iou,
            "pixel_accuracy": self.pixel_accuracy,
            "per_class": [
                {"class": name, "iou": float(self.iou[i]), "accuracy": float(self.accuracy[i])}
                for i, name in enumerate(self.names)
            ],
        }

    def class_table(self) -> Table:
        """Return the table of the scores of every class in %."""
        rows: list[list[Cell]] = [
            [name, percent(float(self.iou[i])), percent(float(self.accuracy[i]))] for i, name in enumerate(self.names)
        ]
        return Table("every class in %", ["class", "IoU", "accuracy"], rows)


def write_asked(
    config: DenseConfig, values: Mapping[str, object], pictures: Sequence[MaskPicture], names: Sequence[str]
) -> tuple[Path, ...]:
    """Write the result as indented JSON and the pictures, each if the command was told where."""
    made = []
    if config.out is not None:
        text = json.dumps(jsonable(values), indent=1, ensure_ascii=False) + "\n"
        commit_bytes(config.out, text.encode())
        made.append(config.out)
    if config.sheet is not None:
        made.append(write_mask_sheet(config.sheet, pictures, names))
    return tuple(made)


def mean_and_spread(values: Sequence[float]) -> dict[str, object]:
    """Return mean and standard deviation (of the sample; null for one value) of numbers, and the numbers."""
    numbers = np.asarray(values, dtype=np.float64)
    spread = float(numbers.std(ddof=1)) if len(numbers) > 1 else None
    return {"mean": float(numbers.mean()), "sd": spread, "values": numbers.tolist()}


def percent_and_spread(score: dict[str, object]) -> str:
    """Return ``12.3 ± 0.6`` of what ``mean_and_spread`` made, in %."""
    mean, spread = score["mean"], score["sd"]
    assert isinstance(mean, float)
    if math.isnan(mean):
        return "-"
    return str(percent(mean)) + (f" ± {percent(spread)}" if isinstance(spread, float) else "")


def class_means(scores: Sequence[SegmentationScores]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the (c,) means of IoU and accuracy of every class over several scores, NaN where there is none."""
    means = []
    for values in (np.stack([score.iou for score in scores]), np.stack([score.class_accuracy for score in scores])):
        known = np.isfinite(values)
        total = np.where(known, values, 0).sum(axis=0)
        means.append(np.divide(total, known.sum(axis=0), out=np.full(len(total), np.nan), where=known.any(axis=0)))
    return means[0], means[1]

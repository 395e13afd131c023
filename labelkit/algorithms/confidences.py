"""Convert group probabilities to confidences: a softmax of their logarithms at the fitted temperature."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.calibration import column_probability, softmax

Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

_BLOCK_ROWS: Final = 1 << 15
_EPSILON: Final = 1e-12


@dataclass(frozen=True)
class Predictions:
    """Predicted groups of all samples, with calibrated confidences."""

    named: Ints  # (n,) int64, the most probable group
    confidence: Doubles  # (n,) float64 in [0, 1], calibrated
    margin: Doubles  # (n,) float64, the confidence minus that of the second most probable group
    runner_up: Ints  # (n,) int64, the second most probable group; -1 if there is none
    uncalibrated: Doubles  # (n,) float64, probability before calibration
    best_class: Ints  # (n,) int64, the most probable known group; -1 if there is none
    best_confidence: Doubles  # (n,) float64 in [0, 1], calibrated probability of ``best_class``; 0 if there is none
    new_chance: Doubles  # (n,) float64 in [0, 1], sum of the calibrated probabilities of all new groups


def compute_log_probabilities(group_probabilities: Doubles) -> Doubles:
    """Compute the logarithms of group probabilities, which are clipped from below to avoid log 0."""
    return np.log(np.maximum(group_probabilities, _EPSILON))


def calibrate_predictions(group_probabilities: Doubles, class_of_group: Ints, temperature: float) -> Predictions:
    """Convert group probabilities to predictions with calibrated confidences.

    Args:
        group_probabilities: (n, k), rows sum to 1.
        class_of_group: (k,), -1 = new.
        temperature: > 0.
    """
    new, known = class_of_group < 0, np.flatnonzero(class_of_group >= 0)
    parts: list[tuple[NDArray[np.generic], ...]] = []
    for start in range(0, len(group_probabilities), _BLOCK_ROWS):
        block = group_probabilities[start : start + _BLOCK_ROWS]
        every = np.arange(len(block))
        scores, named = compute_log_probabilities(block), block.argmax(axis=1).astype(np.int64)
        found, chances = column_probability(scores, named, temperature), softmax(scores, temperature)
        best, best_confidence = np.full(len(block), -1, dtype=np.int64), np.zeros(len(block))
        if len(known):
            best = known[block[:, known].argmax(axis=1)]
            best_confidence = chances[every, best]
        new_chance = chances[:, new].sum(axis=1)
        columns = (named, found.confidence, found.margin, found.runner_up, block[every, named])
        parts.append((*columns, best, best_confidence, new_chance))
    return Predictions(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def join_predictions(parts: Sequence[Predictions]) -> Predictions:
    """Concatenate the predictions for several sets of samples."""
    return Predictions(
        *(np.concatenate(column) for column in zip(*(vars(part).values() for part in parts), strict=True))
    )


def select_predictions(predictions: Predictions, positions: Ints) -> Predictions:
    """Return the predictions of the samples at the given positions, in that order."""
    return Predictions(*(column[positions] for column in vars(predictions).values()))

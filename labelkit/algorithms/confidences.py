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

    group: Ints  # (n,) int64, the most probable group
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


def calibrate_predictions(
    group_probabilities: Doubles,
    class_of_group: Ints,
    temperature: float,
    ruled_out: NDArray[np.bool_] | None = None,
) -> Predictions:
    """Convert group probabilities to predictions with calibrated confidences.

    Args:
        group_probabilities: (n, k), rows sum to 1.
        class_of_group: (k,), -1 = new.
        temperature: > 0.
        ruled_out: (n, k) groups not to predict, which leaves the confidences of the others unchanged. If all groups of
            a sample are ruled out, this is ignored, but the confidence is 0.
    """
    new, known = class_of_group < 0, np.flatnonzero(class_of_group >= 0)
    parts: list[tuple[NDArray[np.generic], ...]] = []
    for start in range(0, len(group_probabilities), _BLOCK_ROWS):
        block = group_probabilities[start : start + _BLOCK_ROWS]
        every = np.arange(len(block))
        scores, left = compute_log_probabilities(block), np.ones(len(block))
        chances = softmax(scores, temperature)
        if ruled_out is not None:
            out = ruled_out[start : start + _BLOCK_ROWS]
            chances = np.where(out, 0, chances)
            out, left = out & ~out.all(axis=1, keepdims=True), chances.sum(axis=1)
            block, scores = np.where(out, -1, block), np.where(out, -np.inf, scores)
        named = block.argmax(axis=1).astype(np.int64)
        found = column_probability(scores, named, temperature)
        best, best_confidence = np.full(len(block), -1, dtype=np.int64), np.zeros(len(block))
        if len(known):
            best = known[block[:, known].argmax(axis=1)]
            best_confidence = chances[every, best]
            best = np.where(block[every, best] < 0, -1, best)  # ruled out
        new_chance = chances[:, new].sum(axis=1)
        second = np.where(block[every, found.runner_up] < 0, -1, found.runner_up)
        columns = (named, found.confidence * left, found.margin * left, second, block[every, named])
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

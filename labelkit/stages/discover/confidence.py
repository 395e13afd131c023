"""From shares to a confidence: the softmax of their logarithms, at a temperature each for known and new answers.

How the temperatures are found is in ``calibrate``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.calibration import named_probability, softmax

_BLOCK_ROWS: Final = 1 << 15
_LEAST: Final = 1e-12


@dataclass(frozen=True)
class Temperatures:
    """What turns shares into confidences.

    Attributes:
        known, new: temperatures of answers that name a known class, or a new group.
        threshold: of the conformal rule; ``None`` = not asked for.
    """

    known: float
    new: float
    threshold: float | None


@dataclass(frozen=True)
class Confidences:
    """Of all rows that are answered.

    Attributes:
        named: (n,) int64, the group of the largest share.
        confidence: (n,) float64 in [0, 1], calibrated.
        margin: (n,) float64, the same less that of the next group.
        runner_up: (n,) int64, the next group; -1 if there is none.
        uncalibrated: (n,) float64, the share itself.
        is_single: (n,) bool, no other group is left by the conformal rule.
    """

    named: NDArray[np.int64]
    confidence: NDArray[np.float64]
    margin: NDArray[np.float64]
    runner_up: NDArray[np.int64]
    uncalibrated: NDArray[np.float64]
    is_single: NDArray[np.bool_]


def log_shares(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logarithms of shares, as scores that a temperature can sharpen; 0 counts as a very small share."""
    return np.log(np.maximum(shares, _LEAST))


def named_probabilities(
    scores: NDArray[np.float64],
    named: NDArray[np.int64],
    is_new: NDArray[np.bool_],
    known: float,
    new: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Confidence, margin and next group of each row, by the temperature of what it names."""
    confidence, margin = np.empty(len(named)), np.empty(len(named))
    runner_up = np.empty(len(named), dtype=np.int64)
    for kind, temperature in ((~is_new, known), (is_new, new)):
        if kind.any():
            found = named_probability(scores[kind], named[kind], temperature)
            confidence[kind], margin[kind], runner_up[kind] = found.confidence, found.margin, found.runner_up
    return confidence, margin, runner_up


def confidences(
    shares: NDArray[np.float64], class_of_group: NDArray[np.int64], temperatures: Temperatures
) -> Confidences:
    """Turn the shares of all rows into answers, block by block.

    Args:
        shares: (n, k), rows sum to 1.
        class_of_group: (k,), -1 = new.
        temperatures: that make a confidence of shares.
    """
    parts: list[tuple[NDArray[np.generic], ...]] = []
    for start in range(0, len(shares), _BLOCK_ROWS):
        block = shares[start : start + _BLOCK_ROWS]
        scores, named = log_shares(block), block.argmax(axis=1).astype(np.int64)
        confidence, margin, runner_up = named_probabilities(
            scores, named, class_of_group[named] < 0, temperatures.known, temperatures.new
        )
        single = np.ones(len(named), dtype=bool)
        if temperatures.threshold is not None:
            candidates = softmax(scores, temperatures.known) >= 1 - temperatures.threshold
            single = (candidates.sum(axis=1) == 1) & candidates[np.arange(len(named)), named]
        parts.append((named, confidence, margin, runner_up, block[np.arange(len(named)), named], single))
    return Confidences(*(np.concatenate(column) for column in zip(*parts, strict=True)))

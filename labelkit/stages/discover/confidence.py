"""From shares to a confidence that means what it says: a temperature each for known classes and new groups.

The confidence of an answer is the softmax of the logarithms of its shares at a fitted temperature. One number for each
kind is all that some twenty labels can bear, and a probability is what ``--min-confidence`` asks for. Labels are not
judged by a model that was fitted to them (``held_out``). Conformal prediction bounds errors without trusting the
softmax, but only for classes with labels, since nothing true is known of new ones: it is a second condition
(``--coverage``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.calibration import (
    Reliability,
    conformal_threshold,
    fit_temperature,
    named_probability,
    reliability,
    softmax,
)
from labelkit.errors import DatasetError
from labelkit.stages.discover.classify import log_shares
from labelkit.stages.discover.held_out import Evidence

_BLOCK_ROWS: Final = 1 << 15
#: Answers of a kind that a temperature of its own needs.
_FEWEST_ROWS: Final = 10
#: Standard errors that temperatures are set to the cautious side.
_CAUTION: Final = 0.5


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


@dataclass(frozen=True)
class Calibration:
    """Temperatures and conformal threshold with what they rest on.

    Attributes:
        evidence: answers that are known to be right or wrong.
        known, new: temperatures of answers that name a known class, or a new group.
        threshold: of the conformal rule; ``None`` = not asked for.
        before, after: reliability of shares and of confidences, on the evidence.
    """

    evidence: Evidence
    known: float
    new: float
    threshold: float | None
    before: Reliability
    after: Reliability


def calibrate(evidence: Evidence, coverage: float | None) -> Calibration:
    """Fit the temperatures; a kind with few answers takes that of all.

    Raises:
        DatasetError: a coverage is asked for, and no label of a known class is among the evidence.
    """
    scores, named, correct, weights = evidence.scores, evidence.named, evidence.correct, evidence.weights
    both = fit_temperature(scores, named, correct, weights=weights, caution=_CAUTION)
    temperatures = []
    for kind in (~evidence.named_new, evidence.named_new):
        enough = kind.sum() >= _FEWEST_ROWS and weights[kind].any()
        if not enough:
            temperatures.append(both)
            continue
        temperatures.append(
            fit_temperature(scores[kind], named[kind], correct[kind], weights=weights[kind], caution=_CAUTION)
        )
    known, new = temperatures
    before = reliability(named_probability(scores, named, 1.0).confidence, correct, weights=weights)
    stated = _named_probabilities(scores, named, evidence.named_new, known, new)[0]
    after = reliability(stated, correct, weights=weights)
    return Calibration(evidence, known, new, _threshold(evidence, known, coverage), before, after)


def _threshold(evidence: Evidence, temperature: float, coverage: float | None) -> float | None:
    if coverage is None:
        return None
    old = evidence.own >= 0
    if not old.any():
        raise DatasetError("--coverage", "no label of a known class to calibrate with", "Label such images.")
    probabilities = softmax(evidence.scores[old], temperature)
    nonconformity = 1 - probabilities[np.arange(int(old.sum())), evidence.own[old]]
    weights = evidence.weights[old]
    amounts = weights / weights.sum() * evidence.num_labels * float(old.mean())
    return conformal_threshold(nonconformity, coverage, weights=amounts)


def _named_probabilities(
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


def evidence_confidences(calibration: Calibration) -> NDArray[np.float64]:
    """Calibrated confidences of the evidence itself, (m,)."""
    evidence = calibration.evidence
    return _named_probabilities(
        evidence.scores, evidence.named, evidence.named_new, calibration.known, calibration.new
    )[0]


def confidences(
    shares: NDArray[np.float64], class_of_group: NDArray[np.int64], calibration: Calibration
) -> Confidences:
    """Turn the shares of all rows into answers, block by block.

    Args:
        shares: (n, k), rows sum to 1.
        class_of_group: (k,), -1 = new.
        calibration: what was fitted.
    """
    parts: list[tuple[NDArray[np.generic], ...]] = []
    for start in range(0, len(shares), _BLOCK_ROWS):
        block = shares[start : start + _BLOCK_ROWS]
        scores, named = log_shares(block), block.argmax(axis=1).astype(np.int64)
        confidence, margin, runner_up = _named_probabilities(
            scores, named, class_of_group[named] < 0, calibration.known, calibration.new
        )
        single = np.ones(len(named), dtype=bool)
        if calibration.threshold is not None:
            candidates = softmax(scores, calibration.known) >= 1 - calibration.threshold
            single = (candidates.sum(axis=1) == 1) & candidates[np.arange(len(named)), named]
        parts.append((named, confidence, margin, runner_up, block[np.arange(len(named)), named], single))
    return Confidences(*(np.concatenate(column) for column in zip(*parts, strict=True)))

"""Fit the temperatures that make confidences mean what they say: one each for known classes and new groups.

The confidence of an answer is the softmax of the logarithms of its shares at a fitted temperature. One number for each
kind is all that some twenty labels can bear, and a probability is what ``--min-confidence`` asks for. Labels are not
judged by a model that was fitted to them (``held_out``). Conformal prediction bounds errors without trusting the
softmax, but only for classes with labels, since nothing true is known of new ones: it is a second condition
(``--coverage``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.calibration import (
    Reliability,
    conformal_threshold,
    fit_temperatures,
    named_probability,
    reliability,
    softmax,
)
from labelkit.errors import DatasetError
from labelkit.stages.discover.confidence import Temperatures, named_probabilities
from labelkit.stages.discover.held_out import Evidence

#: Answers of a kind that a temperature of its own needs.
_FEWEST_ROWS: Final = 10
#: Standard errors that temperatures are set to the cautious side. With new groups, where less is known: the upper end
#: of nine of ten.
_CAUTION: Final = 0.5
_CAUTION_WITH_NEW: Final = 1.28
#: Standard errors to either side, between which the share of all answers that is right is expected.
_RANGE: Final = 2.0


@dataclass(frozen=True)
class Calibration(Temperatures):
    """Temperatures and conformal threshold with what they rest on.

    Attributes:
        evidence: answers that are known to be right or wrong.
        before, after: reliability of shares and of confidences, on the evidence.
        lower, upper: temperatures whose confidences add up to the ends of the range of how many answers are right.
    """

    evidence: Evidence
    before: Reliability
    after: Reliability
    lower: Temperatures
    upper: Temperatures


def calibrate(evidence: Evidence, coverage: float | None) -> Calibration:
    """Fit the temperatures; a kind with few answers takes that of all.

    Raises:
        DatasetError: a coverage is asked for, and no label of a known class is among the evidence.
    """
    scores, named, correct, weights = evidence.scores, evidence.named, evidence.correct, evidence.weights
    caution = _CAUTION_WITH_NEW if evidence.named_new.any() or (evidence.own < 0).any() else _CAUTION
    (known, new), *ends = _temperatures(evidence, (caution, _RANGE, -_RANGE))
    before = reliability(named_probability(scores, named, 1.0).confidence, correct, weights=weights)
    stated = named_probabilities(scores, named, evidence.named_new, known, new)[0]
    after = reliability(stated, correct, weights=weights)
    lower, upper = (Temperatures(*end, threshold=None) for end in ends)
    return Calibration(known, new, _threshold(evidence, known, coverage), evidence, before, after, lower, upper)


def _temperatures(evidence: Evidence, cautions: Sequence[float]) -> list[tuple[float, float]]:
    """For each caution, that of answers that name a known class, and that of those that name a new group."""
    scores, named, correct, weights = evidence.scores, evidence.named, evidence.correct, evidence.weights
    kinds = []
    for kind in (~evidence.named_new, evidence.named_new):
        if kind.sum() < _FEWEST_ROWS or not weights[kind].any():
            kind = np.ones(len(named), dtype=bool)
        kinds.append(
            fit_temperatures(scores[kind], named[kind], correct[kind], weights=weights[kind], cautions=cautions)
        )
    return list(zip(*kinds, strict=True))


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


def evidence_confidences(calibration: Calibration) -> NDArray[np.float64]:
    """Calibrated confidences of the evidence itself, (m,)."""
    evidence = calibration.evidence
    return named_probabilities(evidence.scores, evidence.named, evidence.named_new, calibration.known, calibration.new)[
        0
    ]

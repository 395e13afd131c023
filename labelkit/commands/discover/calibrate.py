"""Calibrate predictions by fitting a softmax temperature to labels that the predictions did not use.

The confidence of a prediction is the softmax of its log scores, with one temperature for all: twenty or so labels do
not support more parameters, and a second temperature for new groups made confidences worse. The temperature is fitted
to rows whose class is known:
    - held-out labels: prediction is repeated five times without a third of the labels of each class and, if there may
      be new classes, without any labels of a fifth of the classes. A row of a held-out class counts as correct if its
      new group agrees with that of the other rows of its class; it never does if there are no new groups.
      The best temperature falls as labels are added (on six datasets as 1 + 1 / m, with 1 to 10 labels per class), so
      it is rescaled from the number of labels in a round to the number of all labels.
    - ``--calibration-labels``: the predictions themselves are compared with labels that no step has used.

If no class has two labels, none can be held out: a typical temperature for one label per class is used, and the
confidences are not verified.

The groups, the classifier and the propagation do not see held-out labels. A network that was trained with these labels
has seen them, and the number of groups also depends on them.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.calibration import (
    ReliabilityCurve,
    column_probability,
    fit_temperatures,
    leave_one_out_agreement,
    reliability_curve,
    risk_coverage_curve,
)
from labelkit.algorithms.confidences import compute_log_probabilities
from labelkit.algorithms.few_label_classifier import RefittableClassifier
from labelkit.algorithms.hierarchy import build_hierarchy
from labelkit.algorithms.one_thread import one_blas_thread
from labelkit.algorithms.projection import principal_directions
from labelkit.commands.discover.label_weights import drop_low_weight_labels
from labelkit.data.keyed_random import keyed_generator
from labelkit.progress import current_progress

Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

_ROUNDS: Final = 5
_HIDDEN_LABELS: Final = 0.3
_HIDDEN_CLASSES: Final = 0.2
#: Number of principal components for clustering in each round; ten times as fast as with 1,280 dimensions.
_DIRECTIONS: Final = 128
#: Number of standard errors by which the temperature is raised, to avoid overconfidence.
_CAUTION: Final = 0.5
#: Temperature with one label per class, conservatively above the mean: on six datasets with 4 to 81 classes and 600 to
#: 3,000 images, the best temperatures were 0.4 to 2.8, with a mean of 1.1.
_USUAL: Final = 1.5


@dataclass(frozen=True)
class CalibrationEvidence:
    """Predictions for labeled rows whose labels were not used by the predictions.

    Attributes:
        scores: (m, k) float64, log scores of the groups.
        correct: (m,) float64 in [0, 1], 1 = correct, 0 = wrong; values in between if the other rows are inconclusive.
        of_new: (m,) bool, whether the row's class has no group, and is thus new.
        weights: (m,) float64, which sum to ``num_labels``, or to less if some labels have lower weights.
        num_labels: number of distinct labels.
        more_labels: factor in (0, 1] that converts the temperature to the case that no labels are held out.
    """

    scores: Doubles
    correct: Doubles
    of_new: NDArray[np.bool_]
    weights: Doubles
    num_labels: int
    more_labels: float = 1.0

    @property
    def predicted_groups(self) -> Ints:
        """Predicted group (m,) of each row."""
        return np.asarray(self.scores.argmax(axis=1), dtype=np.int64)

    def accuracy(self, *, new: bool) -> float:
        """Return the accuracy on rows of new (``new``) or labeled classes; NaN if there are no such rows."""
        chosen = self.of_new == new
        return float(self.correct[chosen].mean()) if chosen.any() else float("nan")


@dataclass(frozen=True)
class Calibration:
    """Fitted temperatures, with the predictions to which they were fitted.

    Attributes:
        cautious: temperature for the confidence of a single prediction.
        likeliest: temperature at which the confidences sum to the expected number of correct predictions.
        evidence: predictions that are known to be correct or wrong.
        before, after: reliability of these predictions before and after calibration; ``None`` without evidence.
        aurc: area under their risk-coverage curve after calibration.
    """

    cautious: float
    likeliest: float
    evidence: CalibrationEvidence
    before: ReliabilityCurve | None
    after: ReliabilityCurve | None
    aurc: float | None


def collect_held_out_evidence(
    classifier: RefittableClassifier,
    labels: Ints,
    group_ids: Ints,
    class_of_group: Ints,
    new_share: float,
    *,
    min_size: int,
    seed: int,
    group_weight: float = 1.0,
) -> CalibrationEvidence:
    """Collect evidence for calibration by repeating the prediction with some labels held out.

    Args:
        classifier: classifier of the rows.
        labels: (n,) int64, -1 = none.
        group_ids: (n,) in ``[0, k)``; each round forms as many groups as contain rows here.
        class_of_group: (k,) int64, -1 = new.
        new_share: fraction of the unlabeled rows assumed to belong to new classes; also the total weight of held-out
            classes in the evidence.
        min_size: minimum number of rows in a group without labels.
        seed: random seed for choosing the held-out labels.
        group_weight: weight of new groups, in (0, 1].

    Returns:
        The evidence, without rows if no class has two labels.
    """
    classes, counts = np.unique(labels[labels >= 0], return_counts=True)
    if not (counts > 1).any():
        none = np.zeros(0)
        return CalibrationEvidence(np.zeros((0, len(class_of_group))), none, none > 0, none, 0)
    in_use = np.bincount(group_ids, minlength=len(class_of_group)) > 0
    has_new = bool((class_of_group[in_use] < 0).any())
    # holding out the only class yields no evidence; if one of two classes is held out, only a new group can match it
    hide_whole = new_share > 0 and len(classes) > 2 - has_new
    num_whole = max(1, round(_HIDDEN_CLASSES * len(classes))) if hide_whole else 0
    num_groups = int(in_use.sum()) - (0 if has_new else num_whole)
    turn = keyed_generator(seed, "calibration-classes").permutation(classes)
    features = classifier.features
    if features.shape[1] > _DIRECTIONS:
        features = features @ principal_directions(features, _DIRECTIONS)[0].astype(np.float32)
    scored: list[tuple[Doubles, Doubles, NDArray[np.bool_], Ints]] = []
    own = np.ones(len(labels)) if classifier.label_weights is None else classifier.label_weights
    factors = []
    with current_progress().task("rounds with hidden labels", total=_ROUNDS) as task:
        for number in range(_ROUNDS):
            generator = keyed_generator(seed, "calibration", epoch=number)
            whole = np.take(turn, np.arange(num_whole) + number * num_whole, mode="wrap")
            kept, tested = _hide_labels(labels, own, whole, generator)
            left = own[kept >= 0].sum() / len(np.unique(kept[kept >= 0]))
            factors.append((1 + len(classes) / own[labels >= 0].sum()) / (1 + 1 / left))
            with one_blas_thread:
                tree = build_hierarchy(features, drop_low_weight_labels(kept, own), generator=generator)
            ids, count = tree.cut(tree.clamp(num_groups), min_size=min_size)
            # all rounds have the same number of columns: groups that a round cannot form are empty
            of_group = np.full(max(count, int(in_use.sum())), -1, dtype=np.int64)
            of_group[: len(tree.labels)] = tree.labels
            probabilities = classifier.fit_and_predict(kept, ids, of_group, group_weight=group_weight)
            scored.append(
                (*_score_predictions(probabilities[:, : int(in_use.sum())], tested, of_group, labels[tested]), tested)
            )
            task.advance(1)
    scores, correct, of_new, rows = (np.concatenate(part) for part in zip(*scored, strict=True))
    weights, num_labels = own[rows], len(np.unique(rows))
    total = float(own[np.unique(rows)].sum())
    share = new_share if of_new.any() and not of_new.all() else float(of_new.all())
    for kind, amount in ((of_new, share), (~of_new, 1 - share)):
        weights[kind] *= amount * total / max(float(weights[kind].sum()), 1e-12)
    return CalibrationEvidence(scores, correct, of_new, weights, num_labels, float(np.mean(factors)))


def collect_unused_label_evidence(probabilities: Doubles, class_of_group: Ints, labels: Ints) -> CalibrationEvidence:
    """Collect evidence for calibration from rows whose labels the predictions did not use.

    Args:
        probabilities: (n, k) probabilities of the groups.
        class_of_group: (k,) int64, -1 = new.
        labels: (n,) int64, -1 = none, at least one label; a class without a group counts as new.
    """
    rows = np.flatnonzero(labels >= 0)
    return CalibrationEvidence(
        *_score_predictions(probabilities, rows, class_of_group, labels[rows]), np.ones(len(rows)), len(rows)
    )


def _score_predictions(
    probabilities: Doubles, rows: Ints, class_of_group: Ints, classes: Ints
) -> tuple[Doubles, Doubles, NDArray[np.bool_]]:
    """Return the log scores, the correctness, and whether the class is new, for the given rows."""
    named = probabilities[rows].argmax(axis=1)
    named_new, of_new = class_of_group[named] < 0, ~np.isin(classes, class_of_group)
    correct = (class_of_group[named] == classes).astype(np.float64)
    if of_new.any():
        groups = np.where(named_new[of_new], named[of_new], -1)
        correct[of_new] = np.nan_to_num(leave_one_out_agreement(groups, classes[of_new]), nan=0.5)
    return compute_log_probabilities(probabilities[rows]), correct, of_new


def _hide_labels(labels: Ints, weights: Doubles, whole: Ints, generator: np.random.Generator) -> tuple[Ints, Ints]:
    """Hold out all labels of the classes ``whole`` and some of each other class; return the labels kept and those rows.

    Labels with the largest weights are held out first, but at least one label of each other class remains.
    """
    kept, tested = np.where(np.isin(labels, whole), -1, labels), []
    for label, count in zip(*np.unique(labels[labels >= 0], return_counts=True), strict=True):
        rows = generator.permutation(np.flatnonzero(labels == label))
        if count > 1:
            rows = rows[np.argsort(-weights[rows], kind="stable")]
            number = max(1, round(_HIDDEN_LABELS * weights[rows].sum()))
            rows = rows if label in whole else rows[: min(count - 1, number)]
            kept[rows] = -1
            tested.append(rows)
    return kept, np.concatenate(tested)


def fit_calibration(evidence: CalibrationEvidence) -> Calibration:
    """Fit the temperatures with which the confidences are calibrated."""
    if not evidence.num_labels:
        return Calibration(_USUAL, _USUAL, evidence, None, None, None)
    scores, named, correct, weights = evidence.scores, evidence.predicted_groups, evidence.correct, evidence.weights
    cautious, likeliest = fit_temperatures(scores, named, correct, weights=weights, cautions=(_CAUTION, 0.0))
    before, after = (column_probability(scores, named, value).confidence for value in (1.0, cautious))
    curves = (reliability_curve(before, correct, weights=weights), reliability_curve(after, correct, weights=weights))
    cautious, likeliest = cautious * evidence.more_labels, likeliest * evidence.more_labels
    return Calibration(cautious, likeliest, evidence, *curves, risk_coverage_curve(after, correct).aurc)

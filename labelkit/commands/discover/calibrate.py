"""How sure answers are: two temperatures, fitted to labels that the answers were made without.

The confidence of an answer is the softmax of the logarithms of its shares, at one temperature for known classes and one
for new groups: all that some twenty labels can bear. They are fitted to rows whose answer is known:
    - labels hidden: answers are made again, five times, without a third of the labels of each class and, where
      there may be new classes, without a fifth of the classes. Rows of these are right if the other ones agree that
      their new group is that of their class; where there are no new groups, never.
      The best temperature falls as labels are added, on six sets as 1 + 1 / m for 1 to 10 labels in a class; so it is
      brought from those that a round kept to all.
    - labels given: rows whose label nothing was made with are looked up in the answers themselves.

Where no class has two labels, nothing can be hidden: confidences rest on a temperature that is usual for one label in a
class, and are not checked.

Hidden labels are held out from groups, classifier and spreading, but not from a network that was trained with them, and
not from the number of groups.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.calibration import (
    Reliability,
    fit_temperatures,
    leave_one_out_agreement,
    named_probability,
    reliability,
    risk_coverage,
)
from labelkit.algorithms.confidences import Temperatures, calibrated_confidences, log_shares
from labelkit.algorithms.few_label_classifier import RowClassifier
from labelkit.algorithms.hierarchy import build_hierarchy
from labelkit.algorithms.one_thread import one_blas_thread
from labelkit.algorithms.projection import principal_directions
from labelkit.commands.discover.label_weights import without_corrections
from labelkit.data.keyed_random import keyed_generator
from labelkit.progress import current_progress

Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

_ROUNDS: Final = 5
_HIDDEN_LABELS: Final = 0.3
_HIDDEN_CLASSES: Final = 0.2
#: Principal directions in which rounds make their groups, which takes a tenth of the time at 1,280 dimensions.
_DIRECTIONS: Final = 128
#: Answers of a kind that a temperature of its own needs.
_FEWEST_ROWS: Final = 10
#: Standard errors that temperatures are set to the cautious side. With new groups, where less is known: the upper end
#: of nine of ten.
_CAUTION: Final = 0.5
_CAUTION_WITH_NEW: Final = 1.28
#: Temperature with one label in each class: on six sets, 4 to 81 classes and 600 to 3,000 images, the best one was .4
#: to 2.8, in the mean 1.1; this is the cautious side of it.
_USUAL: Final = 1.5


@dataclass(frozen=True)
class Evidence:
    """Rows with a known label, and the predictions that were made for them without that label.

    Attributes:
        scores: (m, k) float64, logarithms of the shares.
        named_new: (m,) whether the largest is that of a new group.
        correct: (m,) float64 in [0, 1], 1 = right, 0 = not; between: the other rows cannot tell.
        of_new: (m,) whether no group is named by the class of the row.
        weights: (m,) float64, sum to ``num_labels``, or to less where some labels count less.
        num_labels: distinct labels behind the rows.
        more_labels: factor of the temperature of known classes where no label is hidden, in (0, 1].
    """

    scores: Doubles
    named_new: NDArray[np.bool_]
    correct: Doubles
    of_new: NDArray[np.bool_]
    weights: Doubles
    num_labels: int
    more_labels: float = 1.0

    @property
    def named(self) -> Ints:
        """Predicted group of each row, (m,)."""
        return np.asarray(self.scores.argmax(axis=1), dtype=np.int64)

    def accuracy(self, *, new: bool) -> float:
        """Return the accuracy on rows of labeled classes, or of new classes (``new``); NaN without such rows."""
        chosen = self.of_new == new
        return float(self.correct[chosen].mean()) if chosen.any() else float("nan")


@dataclass(frozen=True)
class Calibration:
    """Fitted confidence temperatures, with the evidence that they were fitted on.

    Attributes:
        cautious: of the confidence of a single answer.
        likeliest: whose confidences add up to how many answers are right.
        evidence: answers that are known to be right or wrong.
        before, after: reliability of shares and of confidences, on the evidence; ``None``: there is none.
        aurc: area under the risk-coverage curve of the confidences on the evidence.
    """

    cautious: Temperatures
    likeliest: Temperatures
    evidence: Evidence
    before: Reliability | None
    after: Reliability | None
    aurc: float | None


def hidden_label_evidence(
    judge: RowClassifier,
    labels: Ints,
    group_ids: Ints,
    class_of_group: Ints,
    new_share: float,
    *,
    min_size: int,
    seed: int,
    group_weight: float = 1.0,
) -> Evidence:
    """Predict again with some labels hidden, and compare the predictions with the hidden labels.

    Args:
        judge: the rows.
        labels: (n,) int64, -1 = none.
        group_ids: (n,) in ``[0, k)``; rounds make as many groups as are in use.
        class_of_group: (k,) int64, -1 = new.
        new_share: of the rows without a label, those taken to be of new classes; hidden classes weigh as much.
        min_size: rows of a group without a label.
        seed: of what is hidden.
        group_weight: of new groups, in (0, 1].

    Returns:
        The evidence, without a row if no class has two labels.
    """
    classes, counts = np.unique(labels[labels >= 0], return_counts=True)
    if not (counts > 1).any():
        none = np.zeros(0)
        return Evidence(np.zeros((0, len(class_of_group))), none > 0, none, none > 0, none, 0)
    in_use = np.bincount(group_ids, minlength=len(class_of_group)) > 0
    has_new = bool((class_of_group[in_use] < 0).any())
    # one class alone says nothing if it is hidden; of two, one is looked for among new groups
    hide_whole = new_share > 0 and len(classes) > 2 - has_new
    num_whole = max(1, round(_HIDDEN_CLASSES * len(classes))) if hide_whole else 0
    num_groups = int(in_use.sum()) - (0 if has_new else num_whole)
    turn = keyed_generator(seed, "calibration-classes").permutation(classes)
    features = _on_main_directions(judge.features)
    looks: list[tuple[Doubles, NDArray[np.bool_], Doubles, NDArray[np.bool_], Ints]] = []
    own = np.ones(len(labels)) if judge.label_weights is None else judge.label_weights
    factors = []
    with current_progress().task("rounds with hidden labels", total=_ROUNDS) as task:
        for number in range(_ROUNDS):
            generator = keyed_generator(seed, "calibration", epoch=number)
            whole = np.take(turn, np.arange(num_whole) + number * num_whole, mode="wrap")
            kept, tested = _hide(labels, own, whole, generator)
            left = own[kept >= 0].sum() / len(np.unique(kept[kept >= 0]))
            factors.append((1 + len(classes) / own[labels >= 0].sum()) / (1 + 1 / left))
            with one_blas_thread:
                tree = build_hierarchy(features, without_corrections(kept, own), generator=generator)
            wanted = min(max(num_groups, tree.fewest), tree.most)
            ids, count = tree.cut(wanted, min_size=min_size)
            # as many shares in every round: groups that a round cannot make are empty
            of_group = np.full(max(count, int(in_use.sum())), -1, dtype=np.int64)
            of_group[: len(tree.labels)] = tree.labels
            shares = judge.shares(kept, ids, of_group, group_weight=group_weight)[:, : int(in_use.sum())]
            looks.append((*_look(shares, tested, of_group, labels[tested]), tested))
            task.advance(1)
    scores, named_new, correct, of_new, rows = (np.concatenate(part) for part in zip(*looks, strict=True))
    weights, num_labels = own[rows], len(np.unique(rows))
    total = float(own[np.unique(rows)].sum())
    share = new_share if of_new.any() and not of_new.all() else float(of_new.all())
    for kind, amount in ((of_new, share), (~of_new, 1 - share)):
        weights[kind] *= amount * total / max(float(weights[kind].sum()), 1e-12)
    return Evidence(scores, named_new, correct, of_new, weights, num_labels, float(np.mean(factors)))


def labeled_evidence(shares: Doubles, class_of_group: Ints, labels: Ints) -> Evidence:
    """Collect evidence for calibration from rows whose labels the predictions did not use.

    Args:
        shares: (n, k) of the groups.
        class_of_group: (k,) int64, -1 = new.
        labels: (n,) int64, the labels of these rows, -1 = none, at least one; a class that no group is named by counts
            as new.
    """
    rows = np.flatnonzero(labels >= 0)
    return Evidence(*_look(shares, rows, class_of_group, labels[rows]), np.ones(len(rows)), len(rows))


def _look(
    shares: Doubles, rows: Ints, class_of_group: Ints, classes: Ints
) -> tuple[Doubles, NDArray[np.bool_], Doubles, NDArray[np.bool_]]:
    """Scores, whether a new group is named, verdicts, and whether the class is new, of rows of these classes."""
    named = shares[rows].argmax(axis=1)
    named_new, of_new = class_of_group[named] < 0, ~np.isin(classes, class_of_group)
    correct = (class_of_group[named] == classes).astype(np.float64)
    if of_new.any():
        groups = np.where(named_new[of_new], named[of_new], -1)
        correct[of_new] = np.nan_to_num(leave_one_out_agreement(groups, classes[of_new]), nan=0.5)
    return log_shares(shares[rows]), named_new, correct, of_new


def _hide(labels: Ints, weights: Doubles, whole: Ints, generator: np.random.Generator) -> tuple[Ints, Ints]:
    """Labels that a round keeps, and the rows that are looked for; a class keeps a label unless it is hidden whole.

    Labels that count less are hidden later, and leave those that count.
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


def _on_main_directions(features: NDArray[np.float32]) -> NDArray[np.float32]:
    if features.shape[1] <= _DIRECTIONS:
        return features
    directions, _ = principal_directions(features, _DIRECTIONS)
    return features @ directions.astype(np.float32)


def calibrate(evidence: Evidence) -> Calibration:
    """Fit the confidence temperatures of known and new groups; a kind with few predictions takes those of all."""
    if not evidence.num_labels:
        return Calibration(Temperatures(_USUAL, _USUAL), Temperatures(_USUAL, _USUAL), evidence, None, None, None)
    scores, named, correct, weights = evidence.scores, evidence.named, evidence.correct, evidence.weights
    caution = _CAUTION_WITH_NEW if evidence.named_new.any() else _CAUTION
    kinds = []
    for kind in (~evidence.named_new, evidence.named_new):
        if kind.sum() < _FEWEST_ROWS or not weights[kind].any():
            kind = np.ones(len(named), dtype=np.bool_)
        kinds.append(
            fit_temperatures(scores[kind], named[kind], correct[kind], weights=weights[kind], cautions=(caution, 0.0))
        )
    fitted = [Temperatures(*pair) for pair in zip(*kinds, strict=True)]
    cautious, likeliest = (replace(found, known=found.known * evidence.more_labels) for found in fitted)
    before = reliability(named_probability(scores, named, 1.0).confidence, correct, weights=weights)
    confident = calibrated_confidences(scores, named, evidence.named_new, fitted[0])[0]
    after = reliability(confident, correct, weights=weights)
    return Calibration(cautious, likeliest, evidence, before, after, risk_coverage(confident, correct).aurc)

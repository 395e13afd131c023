"""Collect evidence of how often answers are right, from labels that they were made without.

Two sources:
    - labels hidden: answers are made again, several times, each time without some of the labels. Hidden rows of classes
      that keep a label show how often a known class is named rightly; classes hidden whole show what becomes of classes
      without labels: taken for a known class, scattered, or kept together in one new group.
    - labels given: rows whose label nothing was made with are looked up in the answers themselves.

Whether the new group of a row is "the" group of its class is judged by the few rows there are, in two ways whose
errors have opposite signs: by one-to-one matching of all of them, in which a row votes for itself, and by the other
rows alone. A row gets the mean of both verdicts. On digits with 20 to 100 labels the mean over rows came within 0.05
of the true accuracy, where the first was too high by up to 0.08 and the second too low by as much.

Three things make labels that are hidden look easier than classes that nobody has named, and are set right:
    - a class fights for its group with all classes without labels, of which only those hidden are seen. Where its rows
      can be less than half of their group, by its labels in it and the mean size of a group, a verdict counts less.
    - while classes are hidden, fewer known ones are there to be taken for: rows called known weigh more by that.
    - images called known by mistake are missing from the share that is named new: see ``Looks.finish``.

What is held out from what: hidden labels are held out from classifier, groups and spreading, but not from the network
that made the features if that was trained with them, and not from the number of groups, which stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.calibration import leave_one_out_agreement
from labelkit.algorithms.matching import match_clusters
from labelkit.algorithms.one_thread import one_blas_thread
from labelkit.algorithms.projection import principal_directions
from labelkit.data.keyed_random import keyed_generator
from labelkit.stages.discover.classify import DEFAULT, Recipe, RowJudge
from labelkit.stages.discover.confidence import log_shares
from labelkit.stages.discover.made_groups import GroupingRule, make_groups
from labelkit.stages.progress import current_progress

_HIDDEN_CLASSES = 0.2
"""Share of the labeled classes that a round hides whole."""

_DIRECTIONS = 128
"""Principal directions in which rounds make their groups, which takes a tenth of the time at 1,280 dimensions."""

_MOST_ON_ONE_THREAD = 20_000
"""Rows up to which rounds make their groups on one thread: of fewer rows, products are too small for more."""


@dataclass(frozen=True)
class Grouping:
    """Groups of some rows of a store, the known ones named by a class.

    Attributes:
        name: of the result.
        stage: the command that made it.
        rows: (n,) int64, rows of the store.
        features: (n, d) float32, as they were clustered.
        group_ids: (n,) int64 in ``[0, k)``, as the result has them.
        class_of_group: (k,) int64, class of the store, -1 = new.
        names: of the groups.
        rule: how rounds make their groups: as the result did.
        unit_rows: whether features are embeddings scaled to length 1.
        levels: what the result keeps of levels above its groups, by the name of the array.
    """

    name: str
    stage: str
    rows: NDArray[np.int64]
    features: NDArray[np.float32]
    group_ids: NDArray[np.int64]
    class_of_group: NDArray[np.int64]
    names: list[str]
    rule: GroupingRule
    unit_rows: bool = True
    levels: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)

    @property
    def in_use(self) -> NDArray[np.bool_]:
        """Which groups have rows, (k,): one that kept its name from an earlier time may have none."""
        return np.bincount(self.group_ids, minlength=len(self.class_of_group)) > 0

    @property
    def has_new(self) -> bool:
        """Whether a group with rows is new."""
        return bool((self.class_of_group[self.in_use] < 0).any())


@dataclass(frozen=True)
class Evidence:
    """Rows with a known answer, and what a grouping made without their label said.

    Attributes:
        scores: (m, k) float64, logarithms of the shares.
        named: (m,) int64, the group named.
        named_new: (m,) whether that is a new one.
        correct: (m,) float64 in [0, 1], 1 = the class was named, or the new group is the one of the row's class, 0 =
            not; between: the two judges of new groups differ, or the class may be a small part of its group.
        own: (m,) int64, the group of the row's class; -1 for a class without labels.
        weights: (m,) float64, sum to ``num_labels``.
        num_labels: distinct labels behind the rows.
    """

    scores: NDArray[np.float64]
    named: NDArray[np.int64]
    named_new: NDArray[np.bool_]
    correct: NDArray[np.float64]
    own: NDArray[np.int64]
    weights: NDArray[np.float64]
    num_labels: int

    def accuracy(self, *, new: bool) -> float:
        """Return the share right among rows of classes with labels, or without (``new``); NaN if there are none."""
        chosen = (self.own < 0) == new
        return float(self.correct[chosen].mean()) if chosen.any() else float("nan")


@dataclass
class Looks:
    """Gathers the rows of several looks at a grouping, as one recipe names them."""

    recipe: Recipe = DEFAULT
    scores: list[NDArray[np.float64]] = field(default_factory=list)
    named: list[NDArray[np.int64]] = field(default_factory=list)
    named_new: list[NDArray[np.bool_]] = field(default_factory=list)
    correct: list[NDArray[np.float64]] = field(default_factory=list)
    own: list[NDArray[np.int64]] = field(default_factory=list)
    sources: list[NDArray[np.int64]] = field(default_factory=list)
    weights: list[NDArray[np.float64]] = field(default_factory=list)

    def add(
        self,
        shares: NDArray[np.float64],
        rows: NDArray[np.int64],
        class_of_group: NDArray[np.int64],
        classes: NDArray[np.int64],
        num_known: int,
    ) -> None:
        """Judge rows, which are of the classes given.

        Args:
            shares: (n, k) of all rows.
            rows: (m,) that are judged.
            class_of_group: (k,) class of each group, -1 = new.
            classes: (m,) of the rows.
            num_known: classes that have labels when none is hidden.
        """
        everywhere = shares.argmax(axis=1)
        scores, named = log_shares(shares[rows]), everywhere[rows]
        group_of_class = {int(label): group for group, label in enumerate(class_of_group) if label >= 0}
        own = np.array([group_of_class.get(int(label), -1) for label in classes], dtype=np.int64)
        verdict = (named == own).astype(np.float64)
        new = own < 0
        if new.any():
            groups = np.where(class_of_group[named[new]] < 0, named[new], -1)
            sizes = np.bincount(everywhere, minlength=len(class_of_group))
            verdict[new] = _judge_new(groups, classes[new]) * _may_own(groups, classes[new], sizes)
        self.scores.append(scores)
        self.named.append(named)
        self.named_new.append(class_of_group[named] < 0)
        self.correct.append(verdict)
        self.own.append(own)
        self.sources.append(rows)
        taken = new & (class_of_group[named] >= 0)
        self.weights.append(np.where(taken, num_known / max(len(group_of_class), 1), 1.0))

    def right_of_known(self) -> NDArray[np.float64]:
        """Share of the looks in which each hidden label was named rightly, where its class kept another."""
        known = np.concatenate(self.own) >= 0
        _, which = np.unique(np.concatenate(self.sources)[known], return_inverse=True)
        found: NDArray[np.float64] = np.bincount(which, np.concatenate(self.correct)[known]) / np.bincount(which)
        return found

    def finish(self, new_share: float) -> Evidence:
        """Return all rows; those of new classes together weigh ``new_share``."""
        own, sources = np.concatenate(self.own), np.concatenate(self.sources)
        weights = np.concatenate(self.weights)
        new = own < 0
        num_labels = len(np.unique(sources))
        share = new_share if new.any() and not new.all() else float(new.all())
        for kind, amount in ((new, share), (~new, 1 - share)):
            weights[kind] *= amount * num_labels / max(float(weights[kind].sum()), 1.0)
        correct, named_new = np.concatenate(self.correct), np.concatenate(self.named_new)
        return Evidence(
            np.concatenate(self.scores), np.concatenate(self.named), named_new, correct, own, weights, num_labels
        )


def _judge_new(group_ids: NDArray[np.int64], classes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Verdict on rows of new classes in new groups, -1 = in a known one, which is wrong."""
    verdict = leave_one_out_agreement(group_ids, classes)
    inside = group_ids >= 0
    if inside.any():
        matched = match_clusters(group_ids[inside], classes[inside]).class_of_cluster
        by_matching = (matched[group_ids[inside]] == classes[inside]).astype(np.float64)
        by_others = verdict[inside]
        verdict[inside] = np.where(np.isnan(by_others), by_matching, (by_matching + by_others) / 2)
    return verdict


def _may_own(
    group_ids: NDArray[np.int64], classes: NDArray[np.int64], group_sizes: NDArray[np.int64]
) -> NDArray[np.float64]:
    """How likely no unseen class has more rows in the group of a row than its own, (m,) in [0, 1].

    The rows of the class in the group are reckoned from the part of its labels there, as if it were as large as a group
    is in the mean. Twice their share of the group, at most 1: with less than half, another class can have more.

    Args:
        group_ids: (m,), -1 = in no new group.
        classes: (m,) of the same rows.
        group_sizes: (k,) rows of each group.
    """
    likely = np.ones(len(group_ids))
    for place in np.flatnonzero(group_ids >= 0):
        own = classes == classes[place]
        there = np.mean(group_ids[own] == group_ids[place]) * group_sizes.mean()
        likely[place] = min(1.0, 2 * there / group_sizes[group_ids[place]])
    return likely


def hidden_label_looks(
    judge: RowJudge,
    recipes: Sequence[Recipe],
    grouping: Grouping,
    labels: NDArray[np.int64],
    *,
    share: float,
    num_rounds: int,
    seed: int,
) -> Looks | None:
    """Answer again without some of the labels, and look what their rows are called.

    Each round hides ``share`` of the labels of every class that has two or more (at least one, and one is kept), and
    a fifth of the classes whole (at least one) if there are new groups at all and another class is left. All classes
    take their turn. A class with one label is never tested; it is hidden with the others. Each round makes its own
    groups, as those of the result were made.

    Args:
        judge: the rows.
        recipes: how classes may be told apart. Another one than the first is taken if it names more of the hidden
            labels of known classes rightly by more than one standard error.
        grouping: what is to be judged; its number of groups and settings are used.
        labels: (n,) int64, usable labels of the rows of the grouping, -1 = none.
        share: see above.
        num_rounds: rounds.
        seed: of what is hidden and of the starts.

    Returns:
        The looks of the recipe taken; None if no label can be hidden.
    """
    classes, counts = np.unique(labels[labels >= 0], return_counts=True)
    num_hidden = max(1, round(_HIDDEN_CLASSES * len(classes))) if grouping.has_new and len(classes) > 1 else 0
    if not (counts > 1).any():
        return None
    turn = keyed_generator(seed, "calibration-classes").permutation(classes)
    tried = [Looks(recipe) for recipe in recipes]
    rows_of_groups = _on_main_directions(judge.features)
    with current_progress().task("rounds with hidden labels", total=num_rounds) as task:
        for number in range(num_rounds):
            generator = keyed_generator(seed, "calibration", epoch=number)
            whole = np.take(turn, np.arange(num_hidden) + number * num_hidden, mode="wrap")
            hidden, tested = _hide(labels, classes, counts, whole, share, generator)
            kept = np.where(hidden, -1, labels)
            group_ids, class_of_group = _groups_without(rows_of_groups, grouping, kept, generator)
            rows, remaining = np.flatnonzero(tested), np.unique(kept[kept >= 0])
            found = judge.class_shares(kept, remaining, recipes[0].classifier)
            for looks in tried:
                shares = judge.shares(kept, looks.recipe, group_ids, class_of_group, found=found)
                looks.add(shares, rows, class_of_group, labels[rows], len(classes))
            task.advance(1)
    return best_looks(tried)


def best_looks(tried: Sequence[Looks]) -> Looks:
    """Return the first, or the best of those ahead of it by more than one standard error of the same hidden labels."""
    best, lead = tried[0], 0.0
    for looks in tried[1:]:
        gain = looks.right_of_known() - tried[0].right_of_known()
        if len(gain) and gain.mean() > max(lead, gain.std() / np.sqrt(len(gain))):
            best, lead = looks, float(gain.mean())
    return best


def _hide(
    labels: NDArray[np.int64],
    classes: NDArray[np.int64],
    counts: NDArray[np.int64],
    whole: NDArray[np.int64],
    share: float,
    generator: np.random.Generator,
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Rows whose label is hidden in a round, and those of them that are looked for; both (n,)."""
    hidden = np.isin(labels, whole) & (labels >= 0)
    tested = np.zeros(len(labels), dtype=bool)
    for label, count in zip(classes, counts, strict=True):
        rows = np.flatnonzero(labels == label)
        if count < 2:
            continue
        if label in whole:
            tested[rows] = True
        else:
            chosen = generator.permutation(rows)[: min(count - 1, max(1, round(share * count)))]
            hidden[chosen] = tested[chosen] = True
    return hidden, tested


def _on_main_directions(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows on the directions in which they vary most, (n, at most ``_DIRECTIONS``)."""
    if features.shape[1] <= _DIRECTIONS:
        return features
    directions, _ = principal_directions(features, _DIRECTIONS)
    return features @ directions.astype(np.float32)


def _groups_without(
    features: NDArray[np.float32], grouping: Grouping, kept: NDArray[np.int64], generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Groups made with the labels that are kept, and the class of each, -1 = new.

    Their number is that of the grouping, but for groups that the rows left over cannot start.
    """
    free = kept < 0
    num_classes = len(np.unique(kept[~free]))
    num_groups = min(num_classes + int(free.sum()), max(int(grouping.in_use.sum()), num_classes))
    with one_blas_thread if len(features) <= _MOST_ON_ONE_THREAD else nullcontext():
        made = make_groups(features, kept, num_groups, grouping.rule, generator=generator)
    # as many shares in every round: groups that a round cannot make are empty
    empty = max(0, num_groups - len(made.labels))
    return made.ids, np.concatenate([made.labels, np.full(empty, -1, dtype=np.int64)])


def given_label_evidence(grouping: Grouping, shares: NDArray[np.float64], labels: NDArray[np.int64]) -> Evidence:
    """Look up rows whose label the answers were made without.

    Args:
        grouping: the groups.
        shares: (n, k) of the groups, made without these labels.
        labels: (n,) int64, the given labels of the rows of the grouping, -1 = none, at least one; a class that no
            group is named by counts as new.

    Returns:
        The evidence, every row with weight 1.
    """
    rows = np.flatnonzero(labels >= 0)
    looks = Looks()
    looks.add(shares, rows, grouping.class_of_group, labels[rows], int((grouping.class_of_group >= 0).sum()))
    return looks.finish(float((looks.own[0] < 0).mean()))

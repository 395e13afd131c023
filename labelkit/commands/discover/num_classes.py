"""Choose the number of classes in a store: set by the user, estimated by a statistical test, or by GCD's criterion."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.hierarchy import Hierarchy
from labelkit.algorithms.num_classes import (
    NumClassesEstimate,
    candidate_class_counts,
    choose_num_classes_by_density,
    estimate_num_classes,
)
from labelkit.algorithms.row_blocks import StoredRows
from labelkit.algorithms.unlabeled_classes import UnlabeledGroupEstimate, estimate_accuracy_by_num_groups
from labelkit.commands.common.labels import check_label_agreement
from labelkit.commands.common.results import Cell, Table
from labelkit.commands.discover.label_weights import informative_label_mask
from labelkit.commands.discover.options import DiscoverCategoriesConfig
from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import ConfigError, DatasetError
from labelkit.progress import current_progress

#: Maximum number of rows for the test and for counting dense groups, which compare all pairs.
_MAX_ROWS = 2000
# Number of labeled rows per class that are always included in this sample.
_LABELS_KEPT = 10
# Maximum to which the search range is extended while its upper end fits best.
_MAX_TRIED = 1000
#: Maximum number of unlabeled classes to try: the larger of the first value and the second times the labeled classes.
#: With few labels, larger numbers cannot be distinguished from none, and hundreds of groups are of no use.
_MIN_NEW, _NEW_PER_LABELED = 10, 2
_NUM_INITS = 10
_STEP = 1.2  # ratio of consecutive numbers of unlabeled groups to try, above five


@dataclass(frozen=True)
class NumClassesChoice:
    """Chosen number of classes, with the evidence for this choice.

    Attributes:
        choice: number, interval, and score curve.
        searched: smallest and largest number to try.
        notes: messages about the limitations of the estimate.
        is_lower_bound: whether the choice is the largest number tried, so that there may be more classes.
        is_upper_bound: whether the choice is the ``--min-classes`` limit, so that there may be fewer classes.
        all_labeled: whether every class has labels, according to the test; ``None``: not tested.
        chance_all_labeled: p-value (approximate) of the hypothesis that every class has labels, if tested.
        group_weight: weight in (0, 1] of unlabeled groups relative to labeled classes in predictions.
        new_share: estimated fraction in [0, 1] of unlabeled images in classes without labels, if tested.
    """

    choice: NumClassesEstimate
    searched: tuple[int, int]
    notes: tuple[str, ...] = ()
    is_lower_bound: bool = False
    is_upper_bound: bool = False
    all_labeled: bool | None = None
    chance_all_labeled: float | None = None
    group_weight: float = 1.0
    new_share: float | None = None

    def to_json(self) -> dict[str, object]:
        """Return the number of classes, its interval, its score curve and notes as JSON."""
        choice = self.choice
        return {
            "num_classes": choice.best,
            "is_lower_bound": self.is_lower_bound,
            "is_upper_bound": self.is_upper_bound,
            "interval": [choice.low, choice.high],
            "searched": list(self.searched),
            "curve": [[number, score] for number, score in zip(choice.numbers, choice.scores, strict=True)],
            "notes": list(self.notes),
            "all_classes_labeled": self.all_labeled,
            "chance_all_classes_labeled": self.chance_all_labeled,
            "group_weight": self.group_weight,
            "new_share": self.new_share,
        }

    def table(self) -> Table | None:
        """Return a table with the estimated number of classes and its interval; ``None`` if it was not estimated."""
        choice = self.choice
        if len(choice.numbers) == 1:
            return None
        bound = "at least " if self.is_lower_bound else "at most " if self.is_upper_bound else ""
        cells: list[Cell] = [f"{bound}{choice.best}", choice.low, None if self.is_lower_bound else choice.high]
        return Table("how many classes?", ["classes", "likely from", "to"], [cells])


def choose_num_classes(
    config: DiscoverCategoriesConfig, where: str, features: StoredRows, labels: NDArray[np.int64], tree: Hierarchy
) -> NumClassesChoice:
    """Determine the number of classes: set by the options, estimated, or chosen by the published criterion.

    Args:
        config: criterion and bounds.
        where: source of the labels, for messages.
        features: (n, d) rows as they are clustered.
        labels: (n,) usable labels, -1 = none.
        tree: hierarchy of these rows.

    Raises:
        DatasetError: the criterion requires labels but there are none, or the rows do not allow an estimate.
        ConfigError: the bounds exclude every number.
    """
    num_old = len(tree.labels)
    if config.num_classes is not None:
        return _use_known_number(config, config.num_classes, tree)
    if config.new_classes not in ("auto", "some"):
        number = num_old + (0 if config.new_classes == "none" else int(config.new_classes))
        if number < 1:
            problem = "has no usable labels, but --new-classes none requires some"
            raise DatasetError(where, problem, "Pass labels, or choose another value for --new-classes.")
        return _use_known_number(config, number, tree)
    if config.criterion == "published":
        return _published(config, where, features[:], labels, tree.max_groups)
    if num_old == 1 and (labels >= 0).all():
        problem = f"all {len(labels)} images are labeled with the same class, so there is nothing to discover"
        raise DatasetError(str(config.index), problem, "Add unlabeled images, or pass --no-own-labels.")
    return _estimated(config, features, labels, tree)


def _use_known_number(config: DiscoverCategoriesConfig, number: int, tree: Hierarchy) -> NumClassesChoice:
    least = len(tree.labels)
    option = "--num-classes" if config.num_classes is not None else "--new-classes"
    if number < least:
        problem = f"{number} is less than {least}, the number of labeled classes"
        raise ConfigError("--num-classes", problem, "Raise --num-classes.")
    if number > tree.max_groups:
        problem = f"the hierarchy of {len(tree.leaves):,} images has at most {tree.max_groups:,} groups, not {number}"
        raise ConfigError(
            option, problem, f"Choose at most {tree.max_groups - (least if option == '--new-classes' else 0)}."
        )
    choice = NumClassesEstimate(number, number, number, (number,), (1.0,))
    return NumClassesChoice(choice, (number, number))


def _estimated(
    config: DiscoverCategoriesConfig, features: StoredRows, labels: NDArray[np.int64], tree: Hierarchy
) -> NumClassesChoice:
    """Estimate whether there are unlabeled classes, and how many; with too few labels, count dense regions instead."""
    num_old = len(tree.labels)
    used = _sample_rows(config, labels, tree.labels)
    used = used[informative_label_mask(np.asarray(features[used]), labels[used])]
    rows = np.asarray(features[used])
    if (labels >= 0).all():
        return _use_known_number(config, num_old, tree)
    if (rows == rows[0]).all():
        problem = f"all {len(labels)} embeddings are identical, so classes cannot be distinguished"
        raise DatasetError(str(config.index), problem, "Embed different images, or use another backbone.")
    wrong = check_label_agreement(lambda places: features[places], labels, config.seed)
    low, high = _bounds(
        config, num_old, min(len(np.unique(rows, axis=0)), len(rows) // 2 - 1, tree.max_groups), len(labels)
    )
    some = config.new_classes == "some" or low > num_old
    tested = None
    if num_old > 1:
        if config.max_classes is None:
            high = max(low, min(high, num_old + max(_MIN_NEW, _NEW_PER_LABELED * num_old)))
        with current_progress().task("checking for classes without labels", total=None):
            tested = estimate_accuracy_by_num_groups(
                rows,
                labels[used],
                [number - num_old for number in sorted({num_old, *_numbers_between(low, high)})],
                generator=keyed_generator(config.seed, "classes without a label"),
                min_size=config.min_size,
            )
    if tested is not None:
        found = _use_test(config, tested, (low, high), tree, some=some)
    elif num_old > 1 and not some:
        note = "no class has two labels, so unlabeled classes cannot be detected; if there are any, pass "
        found = replace(_use_known_number(config, num_old, tree), notes=(f"{note}--new-classes some, or their number",))
    else:
        with current_progress().task("number of classes", total=None):
            choice = choose_num_classes_by_density(rows, candidate_class_counts(low, high))
        note = "for a narrower interval, label two images in each of at least two classes"
        found = NumClassesChoice(choice, (low, high), (note,))
    best, (low, high) = found.choice.best, found.searched
    found = replace(
        found,
        is_lower_bound=best == high and low < high,
        is_upper_bound=best == low and low > max(2, num_old) and low < high,
    )
    warnings = () if wrong is None else (wrong,)
    notes = (*warnings, *found.notes) if tested is None else (*found.notes, *warnings)
    return replace(found, notes=(*notes, *_explain_bound(found)))


def _use_test(
    config: DiscoverCategoriesConfig,
    tested: UnlabeledGroupEstimate,
    searched: tuple[int, int],
    tree: Hierarchy,
    *,
    some: bool,
) -> NumClassesChoice:
    """Choose the number by the test for classes without labels; ``some``: there are some, so only count them."""
    num_old, best = len(tree.labels), tested.best_number(at_least_one=some)
    if best == 0:
        note = "holding out labels revealed no unlabeled classes, but small ones can be missed; if there are any, pass "
        return replace(
            _use_known_number(config, num_old, tree),
            notes=(f"{note}--new-classes some, or their number",),
            all_labeled=True,
            chance_all_labeled=tested.lead_p_value,
            new_share=tested.near.shrunken_estimate,
        )
    low, high = tested.plausible_range(best)
    numbers = tuple(num_old + number for number in tested.numbers)
    note = "some classes seem to have no labels; if every class has one, pass --new-classes none"
    return NumClassesChoice(
        NumClassesEstimate(num_old + best, num_old + low, num_old + high, numbers, tested.expected),
        searched,
        () if some else (note,),
        all_labeled=False,
        chance_all_labeled=None if some or tested.uses_label_counts else tested.lead_p_value,
        group_weight=1.0 if some else tested.group_weight,
        new_share=tested.near.estimate,
    )


def _numbers_between(low: int, high: int) -> list[int]:
    found, more = [low], 1.0
    while low + int(more) < high:
        found.append(low + int(more))
        more = max(more + 1, more * _STEP)
    return [*found, high]


def _explain_bound(judgement: NumClassesChoice) -> list[str]:
    """Return a note with a remedy if the choice is only a bound."""
    best = judgement.choice.best
    if judgement.is_upper_bound:
        return [f"at most {best} classes: the smallest number tried fits best, so lower --min-classes"]
    if judgement.is_lower_bound:
        note = "the largest number tried fits best, so label more images, or raise --max-classes in `discover`"
        return [f"at least {best} classes: {note}"]
    return []


def _sample_rows(
    config: DiscoverCategoriesConfig, labels: NDArray[np.int64], classes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Sample at most ``_MAX_ROWS`` rows, including some labeled rows of each class."""
    if len(labels) <= _MAX_ROWS:
        return np.arange(len(labels), dtype=np.int64)
    kept = max(1, min(_LABELS_KEPT, _MAX_ROWS // max(1, 2 * len(classes))))
    order = keyed_generator(config.seed, "class number").permutation(len(labels))
    chosen = np.zeros(len(labels), dtype=bool)
    for label in classes:
        chosen[order[labels[order] == label][:kept]] = True
    others = order[~chosen[order]]
    chosen[others[: max(0, _MAX_ROWS - int(chosen.sum()))]] = True
    return np.flatnonzero(chosen)


def _bounds(
    config: DiscoverCategoriesConfig, num_old: int, most: int, num_rows: int, share: int = 3
) -> tuple[int, int]:
    """Return the smallest and largest number to try; the default maximum is ``num_rows // share``."""
    least = max(2, num_old)
    for name, number in (("--min-classes", config.min_classes), ("--max-classes", config.max_classes)):
        if number is not None and number < num_old:
            raise ConfigError(name, f"{number} is less than {num_old}, the number of labeled classes", f"Raise {name}.")
    if least > most:
        problem = f"{num_rows} images are too few to distinguish {least} or more classes"
        raise DatasetError(str(config.index), problem, "Embed more images.")
    low = max(config.min_classes or 0, least)
    high = config.max_classes or min(most, max(low, min(_MAX_TRIED, num_rows // share)))
    if not low <= high <= most:
        at_fault = "--min-classes" if low > most else "--max-classes"
        problem = f"cannot search from {low} to {high} classes among {num_rows} images"
        raise ConfigError(at_fault, problem, f"Choose a number from {least if low > most else low} to {most}.")
    return low, high


def _published(
    config: DiscoverCategoriesConfig, where: str, features: NDArray[np.float32], labels: NDArray[np.int64], most: int
) -> NumClassesChoice:
    """Run GCD's search, and extend its range while the maximum fits best."""
    labeled = labels >= 0
    if not labeled.any():
        problem = "has no usable labels, but --criterion published requires some"
        raise DatasetError(where, problem, "Embed a dataset with labels, or remove --criterion published.")
    num_old, count = len(np.unique(labels[labeled])), int(labeled.sum())
    low, high = _bounds(config, num_old, most, len(labels), share=10)
    notes: list[str] = []
    while True:
        with current_progress().task("number of classes", total=None) as task:
            found = estimate_num_classes(
                features,
                labels,
                labeled,
                k_min=low,
                k_max=high,
                seed=config.seed,
                num_inits=_NUM_INITS,
                progress=lambda number, score: task.advance(1, classes=number, score=round(score, 4)),
            )
        further = min(2 * high, most, _MAX_TRIED)
        if config.max_classes is not None or found.best < high or further <= high:
            break
        notes.append(f"the maximum of {high} classes fit best, so up to {further} classes were tried")
        high = further
    numbers, scores = zip(*sorted(found.curve), strict=True)
    top = max(scores)
    # add one correct and one wrong label, so that an accuracy of 1 on few labels also has a standard error
    moved = (top * count + 1) / (count + 2)
    near = [number for number, score in found.curve if score >= top - np.sqrt(moved * (1 - moved) / (count + 2))]
    choice = NumClassesEstimate(found.best, min(near), max(near), numbers, scores)
    judgement = NumClassesChoice(choice, (low, high), is_lower_bound=found.best == numbers[-1] and low < high)
    return replace(judgement, notes=(*notes, *_explain_bound(judgement)))

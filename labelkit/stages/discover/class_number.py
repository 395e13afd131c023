"""Judge how many classes the rows of a store fall into: bounds, rows to use, and what to say of the evidence."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.class_number import ClassNumberChoice, CriterionCurve, class_numbers
from labelkit.algorithms.class_number_belief import MOST_ROWS, believe_num_classes, density_spread
from labelkit.algorithms.over_clustering import estimate_num_classes
from labelkit.algorithms.row_blocks import StoredRows
from labelkit.algorithms.unlabeled_classes import label_coverage
from labelkit.config.discover import DiscoverCategoriesConfig
from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import ConfigError, DatasetError
from labelkit.stages.group.cluster import most_clusters
from labelkit.stages.group.contradiction import contradiction
from labelkit.stages.progress import current_progress
from labelkit.stages.result import Cell, Table

# Labeled rows used of each class with labels, even where few rows are drawn.
_LABELS_KEPT = 10
# The range is widened up to here where its end fits best.
MOST_TRIED = 1000
#: Level of the test whether every class has a label.
RISK = 0.05
#: Up to here it is open, since two or three labels of a class cannot tell by chance alone: there are others if what is
#: missed lies as far from all classes as these from each other, and the belief allows no number as small as theirs.
UNCLEAR_RISK = 0.35
SEPARATE = 0.95
# Above this spread of the logarithms, counts of dense groups disagree.
_UNCLEAR = 0.8


@dataclass(frozen=True)
class Judgement:
    """The number of classes with its evidence.

    Attributes:
        choice: number, interval, and the curve of each criterion.
        searched: smallest and largest number that was to be tried.
        num_rows: rows used.
        notes: what limits the evidence, for people.
        is_lower_bound: the choice is an end of the range beyond which there may be more classes: at least so many.
        is_upper_bound: it is the fewest that ``--min-classes`` allowed: at most so many.
        chance_all_labeled: p-value of "every class has a label", if it was tested.
    """

    choice: ClassNumberChoice
    searched: tuple[int, int]
    num_rows: int
    notes: tuple[str, ...]
    is_lower_bound: bool
    is_upper_bound: bool
    chance_all_labeled: float | None = None

    def to_json(self) -> dict[str, object]:
        """Return number, interval, curves, and how they came about."""
        choice = self.choice
        return {
            "num_classes": choice.best,
            "is_lower_bound": self.is_lower_bound,
            "is_upper_bound": self.is_upper_bound,
            "interval": [choice.low, choice.high],
            "searched": list(self.searched),
            "rows_used": self.num_rows,
            "curve": [[number, score] for number, score in zip(choice.numbers, choice.scores, strict=True)],
            "criteria": [
                {
                    "name": curve.name,
                    "best": curve.best,
                    "interval": [curve.low, curve.high],
                    "best_of_draws": list(curve.best_of_draws),
                    "curve": [
                        [number, score, error]
                        for number, score, error in zip(curve.numbers, curve.scores, curve.errors, strict=True)
                    ],
                }
                for curve in choice.criteria
            ],
            "notes": list(self.notes),
            "chance_all_classes_labeled": self.chance_all_labeled,
        }

    def table(self) -> Table | None:
        """Return one row per criterion, and the choice; ``None`` if the number was given."""
        choice = self.choice
        if not choice.criteria:
            return None
        believed = choice.criteria[-1].name == "density"
        meaning = "holds the true one in nine of ten cases" if believed else "what is within one standard error of it"
        cells: list[list[Cell]] = []
        for curve in choice.criteria:
            place = curve.numbers.index(curve.best)
            score, error = curve.scores[place], curve.errors[place]
            cells.append([curve.name, curve.best, curve.low, curve.high, score, None if believed else error])
        low: Cell = None if self.is_upper_bound else choice.low
        high: Cell = None if self.is_lower_bound else choice.high
        number: Cell = choice.best
        if self.is_lower_bound or self.is_upper_bound:
            number = f"at {'least' if self.is_lower_bound else 'most'} {choice.best}"
        cells.append(["all together", number, low, high, max(choice.scores), None])
        return Table(
            f"how many classes? best number, and from - to: {meaning}",
            ["criterion", "classes", "from", "to", "score", "error"],
            cells,
        )


def judge_class_number(
    config: DiscoverCategoriesConfig,
    where: str,
    features: StoredRows,
    labels: NDArray[np.int64],
) -> Judgement:
    """Choose the number of classes.

    Args:
        config: criterion and bounds.
        where: file that the labels are from, for messages.
        features: (n, d) as they are to be clustered.
        labels: (n,) classes that may be used, -1 where there is none.

    Raises:
        DatasetError: no labels for a criterion that needs them, or rows that tell nothing.
        ConfigError: bounds that leave no choice.
    """
    if config.num_classes is not None:
        return _given(config, config.num_classes, labels)
    if config.new_classes not in ("auto", "some"):
        new = 0 if config.new_classes == "none" else int(config.new_classes)
        if len(np.unique(labels[labels >= 0])) + new < 1:
            raise DatasetError(where, "has no labels that may be used, and --new-classes none", "Give labels.")
        return _given(config, len(np.unique(labels[labels >= 0])) + new, labels)
    if config.criterion == "auto":
        return _by_belief(config, features, labels)
    return _by_published_search(config, where, features[:], labels)


def _by_published_search(
    config: DiscoverCategoriesConfig, where: str, features: NDArray[np.float32], labels: NDArray[np.int64]
) -> Judgement:
    """Choose by GCD's search, over more numbers while the most that were tried fit best."""
    classes = np.unique(labels[labels >= 0])
    if not len(classes):
        raise DatasetError(
            where,
            "has no labels that may be used, and --criterion published needs some",
            "Embed a data set with labels, or leave --criterion out.",
        )
    most = min(len(labels), most_clusters(labels >= 0, labels[labels >= 0]))
    low, high = _bounds(config, labels, len(labels), most)
    notes: list[str] = []
    while True:
        choice = _published(config, features, labels, low, high)
        further = min(2 * high, most, MOST_TRIED)
        if config.max_classes is not None or choice.best < high or further <= high:
            break
        notes.append(f"{high} classes, the most that were tried, fitted best; so up to {further} were tried")
        high = further
    at_least = at_most = False
    if (labels < 0).any():  # else the classes are known
        at_least, at_most = _open_ends(config, choice, (low, high), max(2, len(classes)))
    judgement = Judgement(choice, (low, high), len(labels), tuple(notes), at_least, at_most)
    if not (at_least or at_most):
        return judgement
    return replace(judgement, notes=(*notes, _note_of_end(config, judgement)))


def _given(config: DiscoverCategoriesConfig, number: int, labels: NDArray[np.int64]) -> Judgement:
    """Take a number that is known."""
    least, most = len(np.unique(labels[labels >= 0])), most_clusters(labels >= 0, labels[labels >= 0])
    option = "--num-classes" if config.num_classes is not None else "--new-classes"
    if number < least:
        raise ConfigError("--num-classes", f"{number} is fewer than the {least} classes with labels", "Raise it.")
    if number > most:
        problem = f"{number} classes, but {config.index} has {len(labels)} rows, {int((labels >= 0).sum())} labeled"
        raise ConfigError(option, problem, f"Choose at most {most if option == '--num-classes' else most - least}.")
    choice = ClassNumberChoice(number, number, number, (number,), (1.0,), ())
    return Judgement(choice, (number, number), len(labels), ("the number of classes was given",), False, False)


def _no_others(
    config: DiscoverCategoriesConfig, features: StoredRows, labels: NDArray[np.int64], chance: float
) -> Judgement:
    """Take the classes with labels for all."""
    number = len(np.unique(labels[labels >= 0]))
    said = f"the {number} classes with labels seem to be all there are; if there are others, pass --new-classes some"
    wrong = contradiction(lambda places: features[places], labels, config.seed)
    notes = (said,) if wrong is None else (said, wrong)
    return replace(_given(config, number, labels), notes=notes, chance_all_labeled=chance)


def _by_belief(config: DiscoverCategoriesConfig, features: StoredRows, labels: NDArray[np.int64]) -> Judgement:
    """Choose by the share of the classes with labels, and by dense groups."""
    classes = np.unique(labels[labels >= 0])
    used = _rows_to_use(config, labels, classes)
    rows = np.asarray(features[used])
    if (labels < 0).any() and (rows == rows[0]).all():
        raise DatasetError(
            str(config.index),
            f"the {len(labels)} rows are all equal, so that nothing tells classes apart",
            "Embed different images, or use another backbone.",
        )
    if len(classes) == 1 and (labels >= 0).all():
        raise DatasetError(
            str(config.index),
            f"all {len(labels)} rows have a label of the same class, so that there is nothing to discover",
            "Add images without a label, or pass --no-own-labels.",
        )
    chance = None
    if config.new_classes == "auto" and config.min_classes is None and len(classes) > 1 and (labels < 0).any():
        with current_progress().task("are all classes labeled?", total=None):
            coverage = label_coverage(
                rows, labels[used], generator=keyed_generator(config.seed, "classes without a label")
            )
        chance = coverage.chance
        if chance > (UNCLEAR_RISK if coverage.separation >= SEPARATE else RISK):
            return _no_others(config, features, labels, chance)
    different = len(np.unique(rows, axis=0))
    most = min(different, len(rows) // 2 - 1, most_clusters(labels >= 0, labels[labels >= 0]))
    low, high = _bounds(config, labels, len(used), most, share=3)
    with current_progress().task("number of classes", total=None):
        choice = believe_num_classes(
            rows,
            labels[used],
            class_numbers(low, high),
            generator=keyed_generator(config.seed, "class number belief"),
            num_rows=len(labels),
            num_labels=int((labels >= 0).sum()),
        )
    if (labels >= 0).all():
        return Judgement(choice, (low, high), len(used), (), False, False)
    if chance is not None and chance > RISK and choice.low <= len(classes):
        return _no_others(config, features, labels, chance)
    notes = []
    if chance is not None:
        notes.append("some classes seem to have no label; if all have one, pass --new-classes none")
    if len(used) < len(labels):
        notes.append(f"the number was chosen from {len(used)} of {len(labels)} rows, drawn at random")
    counts = choice.criteria[-1].best_of_draws
    if density_spread(counts) > _UNCLEAR:
        notes.append(
            f"dense groups are {', '.join(map(str, counts))}, by how small they may be: these features have groups at "
            "several levels, or none"
        )
    wrong = contradiction(lambda places: features[places], labels, config.seed)
    notes += [wrong] if wrong is not None else []
    if len(choice.criteria) == 1:
        notes.append("two labels in each of two classes or more would narrow the interval")
    # a single number is an answer if the rows allow no other one, or if it was asked for
    is_open = low < high or (config.max_classes is None and high < different)
    at_least = choice.best == high and is_open
    at_most = choice.best == low and low > max(2, len(classes)) and low < high
    judgement = Judgement(choice, (low, high), len(used), tuple(notes), at_least, at_most, chance)
    return replace(judgement, notes=(*notes, _note_of_end(config, judgement))) if at_least or at_most else judgement


def _open_ends(
    config: DiscoverCategoriesConfig, choice: ClassNumberChoice, searched: tuple[int, int], least: int
) -> tuple[bool, bool]:
    """Whether there may be more classes than chosen, and whether fewer, since the choice is an end of the range.

    The classes with labels are the fewest that there can be: a choice of so many says that no criterion could tell
    more apart, not that there are no more.

    Args:
        config: with the bounds that were asked for.
        choice: the choice.
        searched: smallest and largest number that was to be tried.
        least: the fewest classes that can be tried.
    """
    low, high = searched
    if low == high and config.min_classes is not None and config.max_classes is not None:
        # one number was asked for, and is what it is
        return False, False
    at_top = choice.best == choice.numbers[-1]
    at_bottom = choice.best == low and not at_top
    return at_top or (at_bottom and low <= least), at_bottom and low > least


def _note_of_end(config: DiscoverCategoriesConfig, judgement: Judgement) -> str:
    """Say that the choice is no answer but a bound, and what to do."""
    choice, best = judgement.choice, judgement.choice.best
    if judgement.is_upper_bound:
        return f"at most {best} classes: the fewest that --min-classes allowed fit best; lower it"
    if best == choice.numbers[-1]:
        remedy = "; raise --max-classes" if config.max_classes is not None and best == config.max_classes else ""
        return f"at least {best} classes: the most that were tried fit best, so there may be more{remedy}"
    return (
        f"at least {best} classes: the fewest that could be tried fit best, so the features may not tell more apart; "
        "label images of other classes, or pass --min-classes"
    )


def _rows_to_use(
    config: DiscoverCategoriesConfig, labels: NDArray[np.int64], classes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Draw so many rows that all pairs of them can be compared, with some labeled ones of each class."""
    if len(labels) <= MOST_ROWS:
        return np.arange(len(labels), dtype=np.int64)
    kept = min(_LABELS_KEPT, MOST_ROWS // max(1, 2 * len(classes)))
    if kept < 2:
        raise ConfigError(
            "--criterion",
            f"{MOST_ROWS} rows, which auto draws, are too few for {len(classes)} classes with labels",
            "Pass --criterion published or --num-classes.",
        )
    order = keyed_generator(config.seed, "class number").permutation(len(labels))
    first = [order[labels[order] == label][:kept] for label in classes]
    chosen = np.zeros(len(labels), dtype=bool)
    chosen[np.concatenate([*first, np.empty(0, dtype=np.int64)])] = True
    others = order[~chosen[order]]
    chosen[others[: MOST_ROWS - int(chosen.sum())]] = True
    return np.flatnonzero(chosen)


def _bounds(
    config: DiscoverCategoriesConfig, labels: NDArray[np.int64], num_rows: int, most: int, share: int = 10
) -> tuple[int, int]:
    """Return the smallest and the largest number to try; by itself the largest is one in ``share`` rows."""
    num_old = len(np.unique(labels[labels >= 0]))
    low = max(config.min_classes or 0, num_old, 2)
    high = (
        config.max_classes
        if config.max_classes is not None
        else min(most, max(low, min(MOST_TRIED, num_rows // share)))
    )
    for name, number in (("--min-classes", config.min_classes), ("--max-classes", config.max_classes)):
        if number is not None and number < num_old:
            raise ConfigError(name, f"{number} is fewer than the {num_old} classes with labels", "Raise it.")
    least = max(2, num_old)
    if least > most:
        raise DatasetError(
            str(config.index),
            f"{num_rows} rows are too few to tell {least} classes or more",
            "Embed more images"
            + (
                ", or pass --criterion published, which uses all rows at once."
                if config.criterion == "auto" and num_old
                else "."
            ),
        )
    if not low <= high <= most:
        at_fault = "--min-classes" if low > most else "--max-classes"
        raise ConfigError(
            at_fault,
            f"cannot search from {low} to {high} classes among {num_rows} rows, {int((labels >= 0).sum())} of them "
            "labeled",
            f"Choose it between {least if low > most else low} and {most}.",
        )
    return low, high


def _published(
    config: DiscoverCategoriesConfig, features: NDArray[np.float32], labels: NDArray[np.int64], low: int, high: int
) -> ClassNumberChoice:
    """Run GCD's search; the error of an accuracy is that of a share of the labeled rows."""
    labeled = labels >= 0
    with current_progress().task("number of classes", total=None) as task:
        found = estimate_num_classes(
            features,
            labels,
            labeled,
            k_min=low,
            k_max=high,
            seed=config.seed,
            num_inits=config.num_inits,
            progress=lambda number, score: task.advance(1, classes=number, score=round(score, 4)),
        )
    numbers, scores = zip(*sorted(found.curve), strict=True)
    # as if one label more were right and one more wrong: a share of 1 among few has an error too
    count = int(labeled.sum())
    moved = (np.array(scores) * count + 1) / (count + 2)
    errors = np.sqrt(moved * (1 - moved) / (count + 2))
    top = max(scores)
    near = [number for number, score in found.curve if score >= top - errors[numbers.index(found.best)]]
    curve = CriterionCurve("published", numbers, scores, tuple(errors.tolist()), found.best, min(near), max(near))
    shares = tuple(score / top for score in scores)
    return ClassNumberChoice(curve.best, curve.low, curve.high, numbers, shares, (curve,))

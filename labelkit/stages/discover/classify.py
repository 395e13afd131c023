"""Which class or group each row belongs to: a classifier where there are labels, groups where there are none.

    1. classes: logistic regression on the labeled rows; without groups, also their nearest mean or labels that spread
    2. groups: the one a row is in, and how near it is to the mean of each, in equal parts; what the known ones have
       together, the classifier hands out among them: the more of it the more labels it was fitted to, and less where
       hidden labels show that groups are ahead
    3. shares flow between near rows (``algorithms.label_spreading``); labeled rows keep what is known of them
How far shares flow, and without groups which classifier, is chosen by labels hidden from it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.calibration import group_means, group_scores, softmax
from labelkit.algorithms.label_spreading import neighbor_graph, spread_labels
from labelkit.algorithms.one_thread import one_blas_thread
from labelkit.stages.discover.rule import AnswerRule, LinearShares, nearness

Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Temperature of the nearness to group means, for rows of length 1.
_GROUP_TEMPERATURE: Final = 0.02
#: Of the share that a row has in groups, what goes to its own one; the rest goes by the nearness to means. A group of a
#: tree is no ball, so that its mean says less of where it ends.
_MEMBERSHIP: Final = 0.5
#: What the classifier hands out where groups are ahead; with so many labels a class that its usual share is as large as
#: the second, that is not tried.
_GROUPS_FIRST: Final = 0.25
_GROUPS_LAST: Final = 0.9
#: Mean squared length of the rows that logistic regression sees, and its inverse regularization.
_REGRESSION_SCALE: Final = 100.0
_REGRESSION_C: Final = 10.0
#: Temperature of the nearness to class means, for rows of length 1.
_MEAN_TEMPERATURE: Final = 0.05
_LEAST: Final = 1e-12
_FOLDS: Final = 5


@dataclass(frozen=True)
class Recipe:
    """How classes are told apart.

    Attributes:
        classifier: ``logistic regression``, ``nearest mean``, or ``none``: labels alone, as far as they spread.
        alpha: how far shares flow, in [0, 1); 0: not at all.
        group_share: of the part of a row that known groups have together, what the classifier hands out among them;
            the rest is theirs as groups.
    """

    classifier: Literal["logistic regression", "nearest mean", "none"] = "logistic regression"
    alpha: float = 0.8
    group_share: float = 0.5

    def __str__(self) -> str:
        if self.classifier == "none":
            return "label spreading"
        return self.classifier + (", then label spreading" if self.alpha else "")


DEFAULT: Final = Recipe()
RECIPES: Final = (
    DEFAULT,
    Recipe("logistic regression", 0.95),
    Recipe("logistic regression", 0.0),
    Recipe("nearest mean", 0.8),
    Recipe("nearest mean", 0.0),
    Recipe("none", 0.99),
)


class RowJudge:
    """Rows to be judged again and again, with other labels or other groups.

    Args:
        features: (n, d) float32, as they were grouped; n >= 2.
        labels: (n,), -1 = none: a row without one here has none in any call.
    """

    def __init__(self, features: NDArray[np.float32], labels: Ints) -> None:
        self.features = features
        squares = np.square(features, dtype=np.float64).sum(axis=1)
        # a row of zeros has no direction; it goes with the mean
        joined = np.where(squares[:, None] > 0, features, features.mean(axis=0) + np.float32(_LEAST))
        self.graph: Any = neighbor_graph(joined)
        self._scale = float(squares.mean()) or 1.0
        self._center = features.mean(axis=0)
        self._spread = float(np.sqrt(np.square(features - self._center, dtype=np.float64).sum(axis=1).mean())) or 1.0
        moved, known = features - self._center, labels >= 0
        self._basis: NDArray[np.float32] | None = None
        if 0 < known.sum() < features.shape[1]:
            # the weights of a regression lie in the span of labeled rows, where they are found in fewer dimensions
            with one_blas_thread:
                self._basis = np.linalg.qr(moved[known].T).Q
            moved = moved @ self._basis
        self._moved = moved * np.float32(np.sqrt(_REGRESSION_SCALE) / self._spread)

    def class_shares(self, labels: Ints, classes: Ints, classifier: str) -> Doubles:
        """(n, c) shares of the classes by the classifier alone; rows sum to 1, zeros with ``none``.

        Args:
            labels: (n,), -1 = none; every class has one.
            classes: (c,) labels of the columns.
            classifier: of a :class:`Recipe`.
        """
        rows = np.flatnonzero(labels >= 0)
        columns = np.searchsorted(classes, labels[rows])
        if classifier == "none" or not len(classes):
            return np.zeros((len(labels), len(classes)))
        if len(classes) == 1:
            return np.ones((len(labels), 1))
        if classifier == "nearest mean":
            return softmax(group_scores(self.features, self._means(rows, columns)), _MEAN_TEMPERATURE * self._scale)
        found: Doubles = self._regression(rows, columns).predict_proba(self._moved).astype(np.float64)
        return found

    def _means(self, rows: Ints, columns: Ints) -> Doubles:
        """Mean of the rows of each class, as long as a typical row."""
        means = group_means(self.features[rows], columns, int(columns.max()) + 1)
        means *= np.sqrt(self._scale) / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), _LEAST)
        return means

    def _regression(self, rows: Ints, columns: Ints) -> Any:
        """Fit multinomial logistic regression to centered rows of mean length sqrt(_REGRESSION_SCALE)."""
        from sklearn.exceptions import ConvergenceWarning  # scikit-learn takes a second to load
        from sklearn.linear_model import LogisticRegression

        with warnings.catch_warnings(), one_blas_thread:
            warnings.simplefilter("ignore", ConvergenceWarning)  # the shares hardly change any more by then
            warnings.filterwarnings("ignore", "The number of unique classes")  # classes of one or two labels are usual
            return LogisticRegression(C=_REGRESSION_C, max_iter=200).fit(self._moved[rows], columns)

    def classifier(self, labels: Ints, classes: Ints) -> LinearShares:
        """Return what gives ``class_shares`` of these labels by logistic regression to other images."""
        rows = np.flatnonzero(labels >= 0)
        columns = np.searchsorted(classes, labels[rows])
        if len(classes) == 1:
            return LinearShares(np.zeros((1, self.features.shape[1]), dtype=np.float32), np.zeros(1))
        fitted, basis = self._regression(rows, columns), self._basis
        scale = np.float32(np.sqrt(_REGRESSION_SCALE) / self._spread)
        weights, biases = fitted.coef_, fitted.intercept_
        if len(classes) == 2:  # scikit-learn has one row then, that of the second class
            weights, biases = np.vstack([np.zeros_like(weights), weights]), np.append(0.0, biases)
        weights = np.asarray(weights if basis is None else weights @ basis.T, dtype=np.float64) * scale
        return LinearShares(weights.astype(np.float32), biases - weights @ self._center.astype(np.float64))

    def rule(self, labels: Ints, recipe: Recipe, group_ids: Ints, class_of_group: Ints, shares: Doubles) -> AnswerRule:
        """Return the rule for other images, whose features are scaled as these rows are.

        Args:
            labels: (n,), -1 = none.
            recipe: how classes are told apart, by logistic regression.
            group_ids: (n,) in ``[0, k)``.
            class_of_group: (k,) class of each group, -1 = new.
            shares: (n, k) of these rows, made with all of these.
        """
        classes = np.unique(labels[labels >= 0])
        means = group_means(self.features, group_ids, len(class_of_group))
        return AnswerRule(
            class_of_group=class_of_group,
            unit_rows=False,
            classifier=self.classifier(labels, classes) if len(classes) else None,
            class_columns=_columns(classes, class_of_group),
            groups=nearness(means, _GROUP_TEMPERATURE * self._scale),
            classifier_share=recipe.group_share,
            alpha=recipe.alpha,
            shares=shares.astype(np.float32),
            temperatures=None,
        )

    def shares(
        self,
        labels: Ints,
        recipe: Recipe,
        group_ids: Ints | None = None,
        class_of_group: Ints | None = None,
        *,
        found: Doubles | None = None,
    ) -> Doubles:
        """(n, k) shares of classes, or of groups; rows sum to 1.

        Args:
            labels: (n,), -1 = none.
            recipe: how classes are told apart; with groups, by logistic regression.
            group_ids: (n,) groups in ``[0, k)``; ``None``: only the classes that have labels are known of.
            class_of_group: (k,) class of each group, -1 = new; every labeled class has one.
            found: ``class_shares`` of these labels and the recipe's classifier, if they are known already.
        """
        classes = np.unique(labels[labels >= 0])
        if found is None:
            found = self.class_shares(labels, classes, recipe.classifier)
        columns, start = np.arange(len(classes)), found.copy()
        if group_ids is not None and class_of_group is not None:
            columns = _columns(classes, class_of_group)
            means = group_means(self.features, group_ids, len(class_of_group))
            start = softmax(group_scores(self.features, means), _GROUP_TEMPERATURE * self._scale)
            start *= 1 - _MEMBERSHIP
            start[np.arange(len(start)), group_ids] += _MEMBERSHIP
            part, share = start[:, columns].sum(axis=1, keepdims=True), recipe.group_share
            start[:, columns] = (1 - share) * start[:, columns] + share * part * found
        rows = np.flatnonzero(labels >= 0)
        own = columns[np.searchsorted(classes, labels[rows])]
        start[rows] = 0
        # alone, a class with many labels would win by their number
        start[rows, own] = 1 / np.bincount(own)[own] if recipe.classifier == "none" else 1
        if recipe.alpha == 0:
            return start
        return spread_labels(self.graph, start, alpha=recipe.alpha, num_iterations=100 if recipe.alpha > 0.95 else 30)


def classifier_shares(labels: Ints) -> tuple[float, ...]:
    """Return the values of ``Recipe.group_share`` for these labels: the usual one, and those to try beside it.

    Usual is ``1 - 1 / n`` for n labels a class in the mean. A group holds what many images without a label say, a
    classifier what n labels say: with one or two of them groups tell classes apart better, with twenty the classifier
    does. Where groups are close and far from each other, they are ahead with more labels too, and the classifier gets a
    quarter at most. Measured by `examples/estimated_cases.py`, with other draws than those that chose the rule.

    Args:
        labels: (n,), -1 = none.

    Returns:
        Shares in [0, 1); 0 alone without any label.
    """
    known = labels[labels >= 0]
    if not len(known):
        return (0.0,)
    usual = 1 - len(np.unique(known)) / len(known)
    return (usual, _GROUPS_FIRST) if _GROUPS_FIRST < usual < _GROUPS_LAST else (usual,)


def _columns(classes: Ints, class_of_group: Ints) -> Ints:
    """Group of each class."""
    return np.array([int(np.flatnonzero(class_of_group == label)[0]) for label in classes], dtype=np.int64)


def choose_recipe(
    judge: RowJudge, labels: Ints, generator: np.random.Generator, group_share: float | None = None
) -> tuple[Recipe, dict[str, float]]:
    """Choose a recipe by labels that are hidden from it in turn.

    Another one than the default is taken if it names more of the hidden labels rightly by more than one standard error.
    Where there are groups, only how far shares flow is chosen: groups say what nearest means and spread labels would.

    Args:
        judge: the rows.
        labels: (n,), -1 = none.
        generator: of the folds.
        group_share: of the recipe; ``None``: there are no groups.

    Returns:
        The recipe, and the share of hidden labels that each recipe named rightly; empty where none can be hidden.
    """
    classes, counts = np.unique(labels[labels >= 0], return_counts=True)
    num_folds = int(min(_FOLDS, counts.max(initial=0)))
    if num_folds < 2 or len(classes) < 2:
        return DEFAULT if group_share is None else replace(DEFAULT, group_share=group_share), {}
    fold = np.full(len(labels), -1)
    for label, count in zip(classes, counts, strict=True):
        if count > 1:
            rows = generator.permutation(np.flatnonzero(labels == label))
            fold[rows] = (np.arange(count) + generator.integers(num_folds)) % num_folds
    tried = list(RECIPES)
    if group_share is not None:
        tried = [recipe for recipe in RECIPES if recipe.classifier == DEFAULT.classifier]
    right: dict[Recipe, list[NDArray[np.bool_]]] = {recipe: [] for recipe in tried}
    for number in range(num_folds):
        hidden = fold == number
        kept = np.where(hidden, -1, labels)
        remaining = np.unique(kept[kept >= 0])
        found: dict[str, Doubles] = {}
        for recipe in tried:
            if recipe.classifier not in found:
                found[recipe.classifier] = judge.class_shares(kept, remaining, recipe.classifier)
            shares = judge.shares(kept, recipe, found=found[recipe.classifier])
            right[recipe].append(remaining[shares[hidden].argmax(axis=1)] == labels[hidden])
    scored = {recipe: np.concatenate(parts).astype(np.float64) for recipe, parts in right.items()}
    best = DEFAULT
    for recipe, hits in scored.items():
        gain = hits - scored[DEFAULT]
        if gain.mean() > gain.std() / np.sqrt(len(gain)) and hits.mean() > scored[best].mean():
            best = recipe
    if group_share is not None:
        best = replace(best, group_share=group_share)
    return best, {f"{recipe} ({recipe.alpha:g})": float(hits.mean()) for recipe, hits in scored.items()}

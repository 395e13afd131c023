"""Assign images to labeled classes by a classifier, and to unlabeled classes by their group.

1. classes: probabilities from logistic regression on the labeled images, times those from label diffusion to the power
   of 2 / m, with m labels per class: from one or two labels, a regression learns little about a class
2. groups: the class of an image's own group has three times the weight, and more if the class has fewer than five
   labels, and fewer than others: a regression cannot learn from these how far the class extends
3. probabilities are propagated between neighbors (``algorithms.label_propagation``); labeled images
   start from their known class

``discover`` passes the square roots of non-negative features, scaled to unit length: on groceries (products and
kinds), CIFAR-10, Omniglot and digits, logistic regression and propagation predicted .5 to 2.3% more images correctly,
and grouping 1 to 6% more, except on Omniglot (2% fewer). Square roots did not improve the test for classes without
labels (``unlabeled_classes``), which therefore uses unchanged features.
"""

import warnings
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.answer_rule import (
    LinearSoftmaxClassifier,
    PredictionRule,
    blend_with_classifier,
    build_nearest_mean_classifier,
)
from labelkit.algorithms.calibration import group_means
from labelkit.algorithms.label_propagation import build_neighbor_graph, diffuse_labels, propagate_labels
from labelkit.algorithms.one_thread import one_blas_thread

Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

CLASSIFIER: Final = "logistic regression times label diffusion, then label spreading"
ALPHA: Final = 0.6
#: Factor for the class of an image's own group, if the class has at least five labels or as many as the average class.
OWN_GROUP: Final = 3.0
#: With this limit, classes of 10 labels on average gain as much as without it, and those of 40 lose nothing.
_ENOUGH_LABELS: Final = 5.0
#: Exponent of the diffused labels with one label per class; with m labels, it is divided by m.
_DIFFUSION_POWER: Final = 2.0
#: Added to diffused labels, so that images far from all labels follow the regression.
_DIFFUSION_FLOOR: Final = 1e-3
#: Temperature of the softmax over distances from new images to group means, for unit-norm rows.
_GROUP_TEMPERATURE: Final = 0.02
#: Mean squared norm of the rows passed to logistic regression, and its inverse regularization strength.
_REGRESSION_SCALE: Final = 100.0
_REGRESSION_C: Final = 10.0
_EPSILON: Final = 1e-12
_FOLDS: Final = 5


class RefittableClassifier:
    """Classifier for a fixed set of samples that can be refitted with different labels or groups.

    Args:
        features: (n, d) float32, the same as for the grouping; n >= 2.
        labels: (n,), -1 = none; rows without a label here must not have one in later calls.
        label_weights: (n,) in (0, 1], weight of each label; ``None``: equal weights.
    """

    def __init__(self, features: NDArray[np.float32], labels: Ints, label_weights: Doubles | None = None) -> None:
        self.features, self.label_weights = features, label_weights
        squares = np.square(features, dtype=np.float64).sum(axis=1)
        # an all-zero row has no direction, so it is treated like the mean
        joined = np.where(squares[:, None] > 0, features, features.mean(axis=0) + np.float32(_EPSILON))
        self.graph: Any = build_neighbor_graph(joined)
        self._scale = float(squares.mean()) or 1.0
        self._center = features.mean(axis=0)
        self._spread = float(np.sqrt(np.square(features - self._center, dtype=np.float64).sum(axis=1).mean())) or 1.0
        moved, known = features - self._center, labels >= 0
        self._basis: NDArray[np.float32] | None = None
        if 0 < known.sum() < features.shape[1]:
            # the weights of a regression lie in the span of the labeled rows, so it is fitted in that subspace
            with one_blas_thread:
                self._basis = np.linalg.qr(moved[known].T).Q
            moved = moved @ self._basis
        self._moved = moved * np.float32(np.sqrt(_REGRESSION_SCALE) / self._spread)

    def regression_probabilities(self, labels: Ints, classes: Ints) -> Doubles:
        """Compute class probabilities (n, c) by logistic regression alone, without the neighbor graph; rows sum to 1.

        Args:
            labels: (n,), -1 = none; every class has at least one label.
            classes: (c,) labels of the columns.
        """
        rows = np.flatnonzero(labels >= 0)
        if len(classes) < 2:
            return np.ones((len(labels), len(classes)))
        found = self._regression(rows, np.searchsorted(classes, labels[rows])).predict_proba(self._moved)
        return np.asarray(found, dtype=np.float64)

    def _weights(self, rows: Ints) -> Doubles:
        return np.ones(len(rows)) if self.label_weights is None else self.label_weights[rows]

    def _regression(self, rows: Ints, columns: Ints) -> Any:
        """Fit multinomial logistic regression to centered rows of mean norm sqrt(_REGRESSION_SCALE)."""
        from sklearn.exceptions import ConvergenceWarning  # scikit-learn takes a second to import
        from sklearn.linear_model import LogisticRegression

        # on some processors, BLAS reports invalid values that do not occur
        with warnings.catch_warnings(), np.errstate(invalid="ignore"), one_blas_thread:
            warnings.simplefilter("ignore", ConvergenceWarning)  # probabilities hardly change after that
            warnings.filterwarnings("ignore", "The number of unique classes")  # classes of one or two labels are common
            model = LogisticRegression(C=_REGRESSION_C, max_iter=200)
            return model.fit(self._moved[rows], columns, self._weights(rows))

    def fit_classifier(self, labels: Ints, classes: Ints) -> LinearSoftmaxClassifier:
        """Fit a logistic regression to the labels; it predicts the class probabilities of other images."""
        rows = np.flatnonzero(labels >= 0)
        columns = np.searchsorted(classes, labels[rows])
        if len(classes) == 1:
            return LinearSoftmaxClassifier(np.zeros((1, self.features.shape[1]), dtype=np.float32), np.zeros(1))
        fitted, basis = self._regression(rows, columns), self._basis
        scale = np.float32(np.sqrt(_REGRESSION_SCALE) / self._spread)
        weights, biases = fitted.coef_, fitted.intercept_
        if len(classes) == 2:  # scikit-learn then returns a single row, for the second class
            weights, biases = np.vstack([np.zeros_like(weights), weights]), np.append(0.0, biases)
        weights = np.asarray(weights if basis is None else weights @ basis.T, dtype=np.float64) * scale
        return LinearSoftmaxClassifier(weights.astype(np.float32), biases - weights @ self._center.astype(np.float64))

    def build_rule(
        self, labels: Ints, group_ids: Ints, class_of_group: Ints, probabilities: Doubles, *, group_weight: float = 1.0
    ) -> PredictionRule:
        """Build a rule that predicts the groups of other images; their features must be scaled like the samples'.

        Args:
            labels: (n,), -1 = none.
            group_ids: (n,) in ``[0, k)``.
            class_of_group: (k,) class of each group, -1 = new.
            probabilities: (n, k) group probabilities of these samples, computed from all of the above.
            group_weight: weight of new groups, in (0, 1].
        """
        classes = np.unique(labels[labels >= 0])
        means = group_means(self.features, group_ids, len(class_of_group))
        return PredictionRule(
            class_of_group=class_of_group,
            unit_rows=False,
            classifier=self.fit_classifier(labels, classes) if len(classes) else None,
            class_columns=_columns(classes, class_of_group),
            groups=build_nearest_mean_classifier(means, _GROUP_TEMPERATURE * self._scale),
            own_group=_own_group_factors(np.array([self._weights(np.flatnonzero(labels == c)).sum() for c in classes])),
            alpha=ALPHA,
            probabilities=probabilities.astype(np.float32),
            temperature=None,
            group_weight=group_weight,
        )

    def fit_and_predict(
        self,
        labels: Ints,
        group_ids: Ints | None = None,
        class_of_group: Ints | None = None,
        *,
        group_weight: float = 1.0,
    ) -> Doubles:
        """Compute class or group probabilities (n, k) of all samples; rows sum to 1.

        Args:
            labels: (n,), -1 = none.
            group_ids: (n,) groups in ``[0, k)``; ``None`` to predict only labeled classes.
            class_of_group: (k,) class of each group, -1 = new; every labeled class has a group.
            group_weight: weight of new groups, in (0, 1]; the classifier distributes the rest.
        """
        classes = np.unique(labels[labels >= 0])
        rows = np.flatnonzero(labels >= 0)
        own = np.searchsorted(classes, labels[rows])
        seeds = np.zeros((len(labels), len(classes)))
        seeds[rows, own] = self._weights(rows)
        start = self.regression_probabilities(labels, classes)
        if len(classes) > 1:
            power = _DIFFUSION_POWER * len(classes) / seeds.sum()
            start *= (diffuse_labels(self.graph, seeds) + _DIFFUSION_FLOOR) ** power
            start /= start.sum(axis=1, keepdims=True)
        columns = np.arange(len(classes))
        if group_ids is not None and class_of_group is not None:
            columns = _columns(classes, class_of_group)
            start = blend_with_classifier(
                np.eye(len(class_of_group))[group_ids],
                start,
                columns,
                class_of_group < 0,
                group_weight=group_weight,
                own_group=_own_group_factors(seeds.sum(axis=0)),
            )
        start[rows] = 0
        start[rows, columns[own]] = 1
        return propagate_labels(self.graph, start, alpha=ALPHA)


def _own_group_factors(num_labels: Doubles) -> Doubles:
    """Return by how much each class is weighted for images of its group, from its number of labels (c,)."""
    enough = min(float(num_labels.mean()), _ENOUGH_LABELS) if len(num_labels) else 0.0
    return 1 + (OWN_GROUP - 1) * np.maximum(enough / num_labels, 1)


def _columns(classes: Ints, class_of_group: Ints) -> Ints:
    """Return the group of each class."""
    return np.array([int(np.flatnonzero(class_of_group == label)[0]) for label in classes], dtype=np.int64)


def cross_validate(classifier: RefittableClassifier, labels: Ints, generator: np.random.Generator) -> NDArray[np.bool_]:
    """Cross-validate the labels and return a bool mask (m,) of those predicted correctly.

    Labels that are the only one of their class are skipped.

    Args:
        classifier: classifier for the samples.
        labels: (n,), -1 = none.
        generator: draws the folds.
    """
    classes, counts = np.unique(labels[labels >= 0], return_counts=True)
    fold = np.full(len(labels), -1)
    for label in classes[counts > 1]:
        rows = generator.permutation(np.flatnonzero(labels == label))
        fold[rows] = np.arange(len(rows)) % _FOLDS
    right = [np.zeros(0, dtype=np.bool_)]
    for number in range(_FOLDS):
        hidden = fold == number
        kept = np.where(hidden, -1, labels)
        remaining = np.unique(kept[kept >= 0])
        if hidden.any() and len(remaining) > 1:
            right.append(remaining[classifier.fit_and_predict(kept)[hidden].argmax(axis=1)] == labels[hidden])
    return np.concatenate(right)

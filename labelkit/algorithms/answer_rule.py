"""Prediction rule of ``discover answer`` for images that were not predicted together; it is saved with the predictions.

These are new images, and those of a store beyond the first 50,000.

    1. combine the probabilities of a classifier with those from the distances to the means of all groups; both are
       a softmax of a linear function of the features
    2. average, with weight alpha, in those of the nearest stored images, weighted like the edges of their graph
    3. compute the confidence at the temperature of the stored predictions
Neither scikit-learn nor torch is required.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.calibration import group_means, softmax
from labelkit.algorithms.confidences import Predictions, calibrate_predictions
from labelkit.algorithms.row_blocks import StoredRows, row_slices, rows_per_block, square_roots

Doubles = NDArray[np.float64]

NEIGHBORS: Final = 5
"""Number of nearest stored images to average: on groceries, 5 is at least as good as the 10 of the graph, whose edges
also run in the other direction."""
_GROUP: Final = 64
_POWER: Final = 3
_EPSILON: Final = 1e-12
_PREFIX: Final = "rule_"
_SETTINGS: Final = ("unit_rows", "alpha", "square_roots", "group_weight")


@dataclass(frozen=True)
class LinearSoftmaxClassifier:
    """Linear classifier whose class probabilities are ``softmax(features @ weights.T + biases)``."""

    weights: NDArray[np.float32]  # (c, d) float32
    biases: Doubles  # (c,) float64; ``-inf`` gives a column probability 0

    def __call__(self, features: NDArray[np.float32]) -> Doubles:
        """Compute class probabilities (m, c) from features (m, d); rows sum to 1."""
        return softmax(features.astype(np.float64) @ self.weights.T.astype(np.float64) + self.biases, 1.0)


@dataclass(frozen=True)
class PredictionRule:
    """Fitted rule that predicts the label of an image from its features."""

    class_of_group: NDArray[np.int64]  # (k,) int64, -1 = new; only the sign is used
    unit_rows: bool  # whether features are scaled to length 1 first
    classifier: LinearSoftmaxClassifier | None  # predicts the labeled classes; ``None`` if there is no classifier
    class_columns: NDArray[np.int64]  # (c,) int64, group of each class of the classifier
    # predicts all groups from their means; ``None`` if every group is a labeled class
    groups: LinearSoftmaxClassifier | None
    alpha: float  # weight of the probabilities of the nearest stored images, in [0, 1)
    probabilities: NDArray[np.float32]  # (n, k) float32 group probabilities of stored images; 0 for images not grouped
    temperature: float | None  # for computing confidences; ``None`` if the confidence is unknown
    rows: NDArray[np.int64] | None = None  # (n,) int64, position of each stored image in the store; ``None``: all
    square_roots: bool = False  # whether to use the square roots of embeddings
    group_weight: float = 1.0  # weight of new groups, in (0, 1]; the classifier distributes the rest
    own_group: Doubles | float = 1.0  # (c,) factors >= 1 by which each class is weighted if it is the image's own group

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """Convert the rule to a dictionary of arrays that can be stored in a result."""
        found: dict[str, NDArray[np.generic]] = {
            "class_columns": self.class_columns,
            "shares": self.probabilities,
            "own_group": np.broadcast_to(self.own_group, self.class_columns.shape),
            "settings": np.array([getattr(self, name) for name in _SETTINGS], dtype=np.float64),
        }
        for name, part in (("classifier", self.classifier), ("groups", self.groups)):
            if part is not None:
                found |= {f"{name}_weights": part.weights, f"{name}_biases": part.biases}
        if self.rows is not None:
            found["rows"] = self.rows
        return {_PREFIX + name: values for name, values in found.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], params: Mapping[str, Any]) -> Self | None:
        """Return the rule stored in a ``discover answer`` result, or ``None`` if the result is too old to have one.

        Args:
            arrays: arrays of the result.
            params: parameters of the result.
        """
        own = {name.removeprefix(_PREFIX): values for name, values in arrays.items() if name.startswith(_PREFIX)}
        if not own or len(own["settings"]) != len(_SETTINGS):
            return None

        def linear(name: str) -> LinearSoftmaxClassifier | None:
            there = f"{name}_weights" in own
            return LinearSoftmaxClassifier(own[f"{name}_weights"], own[f"{name}_biases"]) if there else None

        settings = dict(zip(_SETTINGS, own["settings"].tolist(), strict=True))
        return cls(
            class_of_group=np.where(np.asarray(arrays["new_classes"], dtype=bool), -1, 0),
            unit_rows=bool(settings["unit_rows"]),
            classifier=linear("classifier"),
            class_columns=own["class_columns"],
            groups=linear("groups"),
            alpha=settings["alpha"],
            probabilities=own["shares"],
            temperature=float(params["temperature"]),
            rows=own.get("rows"),
            square_roots=bool(settings["square_roots"]),
            group_weight=settings["group_weight"],
            own_group=own["own_group"],
        )

    def predict_without_neighbors(self, features: NDArray[np.float32]) -> Doubles:
        """Compute group probabilities (m, k) from scaled features (m, d) alone; rows sum to at most 1."""
        k = len(self.class_of_group)
        found = np.zeros((len(features), k)) if self.groups is None else self.groups(features)
        if self.classifier is None:
            return found
        columns, by_class = self.class_columns, self.classifier(features)
        if self.groups is None:
            found[:, columns] = by_class
            return found
        return blend_with_classifier(
            found,
            by_class,
            columns,
            self.class_of_group < 0,
            group_weight=self.group_weight,
            own_group=self.own_group,
        )

    def predict_with_neighbors(self, features: NDArray[np.float32], neighbor_average: Doubles | None) -> Doubles:
        """Compute group probabilities (m, k) from scaled features (m, d) and the nearest neighbors; rows sum to 1.

        Args:
            features: scaled features of images that are not stored rows.
            neighbor_average: (m, k) :meth:`average_neighbor_probabilities` of each image; ``None`` to use no neighbors.
        """
        probabilities = self.predict_without_neighbors(features)
        if neighbor_average is not None:
            probabilities = (1 - self.alpha) * probabilities + self.alpha * neighbor_average
        totals = probabilities.sum(axis=1, keepdims=True)
        return np.where(totals > 0, probabilities / np.where(totals > 0, totals, 1), 1 / probabilities.shape[1])

    def average_neighbor_probabilities(self, cosines: NDArray[np.floating[Any]], indices: NDArray[np.int64]) -> Doubles:
        """Average the group probabilities (m, k) of nearby stored images, weighted by cosine; 0 if none is near.

        Args:
            cosines: (m, b) cosines to the nearest stored rows.
            indices: (m, b) indices of these rows in ``probabilities``.
        """
        weights = np.maximum(cosines.astype(np.float64), 0) ** _POWER
        totals = weights.sum(axis=1, keepdims=True)
        mixed: Doubles = np.einsum("mj,mjk->mk", weights, self.probabilities[indices].astype(np.float64))
        return np.where(totals > 0, mixed / np.where(totals > 0, totals, 1), 0)

    def predict(self, embeddings: NDArray[np.float32], stored: Any) -> Predictions:
        """Predict the group and the confidence of each image from its embedding.

        Args:
            embeddings: (m, d), as in the store; m >= 1.
            stored: (n, d) embeddings of the images in ``self.probabilities``, or of the whole store if ``rows`` is set.

        Returns:
            Predictions with confidences, which are NaN without a temperature.
        """
        probabilities = self.predict_probabilities(embeddings, stored)
        if self.temperature is not None:
            return calibrate_predictions(probabilities, self.class_of_group, self.temperature)
        unknown = np.full(len(probabilities), np.nan)
        found = calibrate_predictions(probabilities, self.class_of_group, 1.0)
        return replace(found, confidence=unknown, margin=unknown)

    def predict_probabilities(self, embeddings: NDArray[np.float32], stored: Any) -> Doubles:
        """Predict group probabilities (m, k) from embeddings, with the arguments of :meth:`predict`; rows sum to 1."""
        rows = square_roots(embeddings) if self.square_roots else embeddings
        lengths = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), _EPSILON)
        features = (rows / lengths if self.unit_rows else rows).astype(np.float32)
        average = self._average_nearest(rows / lengths, stored) if self.alpha > 0 else None
        return self.predict_with_neighbors(features, average)

    def _average_nearest(self, queries: NDArray[np.float32], stored: Any) -> Doubles:
        """Average the group probabilities (m, k) of the stored images nearest to unit-norm queries (m, d)."""
        usable: NDArray[np.bool_] = self.probabilities.max(axis=1) > 0
        k = min(NEIGHBORS, int(usable.sum()))
        rows = StoredRows(stored, self.rows, roots=self.square_roots, in_blocks=True)
        best = np.zeros((len(queries), 0), dtype=np.float32)
        places = np.zeros((len(queries), 0), dtype=np.int64)
        all_cosines = np.empty((len(queries), min(len(rows), rows_per_block(rows.shape[1]))), dtype=np.float32)
        for block in row_slices(*rows.shape):
            part = rows[block]
            lengths = np.linalg.norm(part, axis=1)
            cosines = all_cosines[:, : len(part)]  # allocating memory for each block would take a tenth of the time
            np.matmul(queries, (part / np.maximum(lengths, _EPSILON)[:, None]).T, out=cosines)
            cosines[:, ~usable[block] | (lengths == 0)] = 0
            nearest = _largest_columns(cosines, k)
            best = np.hstack([best, np.take_along_axis(cosines, nearest, 1)])
            places = np.hstack([places, nearest + block.start])
            nearest = _largest_columns(best, k)
            best, places = np.take_along_axis(best, nearest, 1), np.take_along_axis(places, nearest, 1)
        return self.average_neighbor_probabilities(best, places)


def _largest_columns(values: NDArray[np.floating[Any]], k: int) -> NDArray[np.int64]:
    """Return the columns of each row's k largest values, ascending; all columns if there are at most k.

    They are in the k blocks of columns with the largest maxima; searching these takes a quarter of the time.
    """
    width = values.shape[1]
    if width <= k:
        return np.broadcast_to(np.arange(width), values.shape)
    if width % _GROUP == 0 and width > 2 * k * _GROUP:
        groups = _largest_columns(np.maximum.reduceat(values, range(0, width, _GROUP), axis=1), k)  # faster than max
        columns = (groups[:, :, None] * _GROUP + np.arange(_GROUP)).reshape(len(values), -1)
        return np.take_along_axis(columns, _largest_columns(np.take_along_axis(values, columns, 1), k), 1)
    return np.sort(np.argpartition(-values, k - 1, axis=1)[:, :k], axis=1)


def blend_with_classifier(
    group_probabilities: Doubles,
    class_probabilities: Doubles,
    columns: NDArray[np.int64],
    is_new: NDArray[np.bool_],
    *,
    group_weight: float,
    own_group: Doubles | float,
) -> Doubles:
    """Blend the group probabilities (m, k) of images with class probabilities (m, c), preserving row sums.

    Args:
        group_probabilities: (m, k) from the groups alone.
        class_probabilities: (m, c) from the classifier.
        columns: (c,) group of each class.
        is_new: (k,) whether a group is a new class.
        group_weight: fraction of new groups' probability that they keep, in (0, 1]; the classifier gets the rest.
        own_group: factor(s) (c,) >= 1 by which the classifier's probability of the class of an image's own group is
            weighted.
    """
    class_probabilities = class_probabilities * (1 + (own_group - 1) * group_probabilities[:, columns])
    class_probabilities /= class_probabilities.sum(axis=1, keepdims=True)
    known = group_probabilities[:, columns].sum(axis=1, keepdims=True)
    lost = (1 - group_weight) * group_probabilities[:, is_new].sum(axis=1, keepdims=True)
    blended = np.where(is_new, group_weight * group_probabilities, group_probabilities)
    blended[:, columns] = (known + lost) * class_probabilities
    return blended


def build_nearest_mean_rule(
    features: NDArray[np.float32],
    group_ids: NDArray[np.int64],
    is_new: NDArray[np.bool_],
    *,
    unit_rows: bool,
    square_roots: bool = False,
) -> PredictionRule:
    """Build a rule that assigns each image to the group with the nearest mean and reports no confidence.

    Args:
        features: (n, d).
        group_ids: (n,) in ``[0, k)``.
        is_new: (k,).
        unit_rows: whether features are embeddings scaled to unit length.
        square_roots: whether features are the square roots of embeddings.
    """
    means = group_means(features, group_ids, len(is_new))
    return PredictionRule(
        class_of_group=np.where(is_new, -1, 0),
        unit_rows=unit_rows,
        classifier=None,
        class_columns=np.zeros(0, dtype=np.int64),
        groups=build_nearest_mean_classifier(means, 1.0),
        alpha=0.0,
        probabilities=np.zeros((0, len(is_new)), dtype=np.float32),
        temperature=None,
        square_roots=square_roots,
    )


def build_nearest_mean_classifier(means: Doubles, temperature: float) -> LinearSoftmaxClassifier:
    """Build a nearest-mean classifier: a softmax over ``-0.5 * squared_distance / temperature``.

    This is the posterior for spherical groups of equal size whose variance is the temperature.

    Args:
        means: (k, d); NaN for an empty group.
        temperature: > 0.
    """
    empty: NDArray[np.bool_] = np.isnan(means[:, 0])
    places = np.where(empty[:, None], 0, means)
    biases = np.where(empty, -np.inf, -0.5 * np.square(places).sum(axis=1) / temperature)
    return LinearSoftmaxClassifier((places / temperature).astype(np.float32), biases)

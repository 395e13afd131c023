r"""Label weights: labels that correct a wrong prediction get a lower weight.

Labels of randomly drawn images represent the images around them. Labels from a person who reviews predictions and
corrects only the wrong ones do not: each lies among images of another class that were predicted correctly and received
no label. A classifier that treats corrections like random labels misclassifies their neighbors, and when they are held
out for calibration, all predictions look worse than they are. Corrections are recognized among the labels added since
an earlier prediction. Of n such labels, v contradict the prediction; if the images had been drawn at random, its
probabilities would predict b contradictions. The weight of each of the v labels is

.. math:: \min\Bigl(1, \frac{(n - v) b + 1}{(n - b) v + 1}\Bigr)

so that the ratio of wrong to correct predictions is the same among the new labels as among all images. If all new
labels are corrections, they affect only near-duplicates; a few labels change little. Labels of classes that had no
labels at the time have weight 1. Propagation between neighboring images gives all labels full weight, so that corrected
images and their neighbors stay corrected. With (b + 1) / (v + 1), 48 corrections left 4% fewer other images correct
(five datasets, 900 images).
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.neighbors import knn
from labelkit.commands.common.labels import UsableLabels
from labelkit.commands.common.stable_ids import pair_shared_rows
from labelkit.commands.common.stored_predictions import read_stored_predictions
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.results import read_result

_FULL_WEIGHT = 0.5
# Number of neighbors by which a label is recognized as one of a group that was labeled as a whole.
_NEIGHBORS = 10
# Weight that the labels of such a group keep in total, as a number of labels.
_KEPT = 2
LABEL_WEIGHTS = "label_weights"
"""Name of the result's array with the weight of each label, (n,) float32."""


def compute_label_weights(
    store: EmbeddingStore, rows: NDArray[np.int64], usable_labels: UsableLabels, previous: Path, result: str
) -> NDArray[np.float64]:
    """Return label weights (n,) in (0, 1]: computed for labels added since the prediction, unchanged for others.

    Args:
        store: store of the labeled images.
        rows: (n,) row numbers in the store.
        usable_labels: labels of these rows.
        previous: store of the earlier predictions.
        result: name of the earlier predictions; new labels have weight 1 if its probabilities are not stored.
    """
    before = open_store(previous)
    earlier = read_result(before, result)
    found = read_stored_predictions(earlier)
    old, new = pair_shared_rows(before, store)
    row_then = np.full(store.n, -1, dtype=np.int64)
    row_then[new] = old
    then = row_then[rows]
    weights = np.ones(len(rows))
    kept = np.asarray(earlier.arrays.get(LABEL_WEIGHTS, np.ones(before.n)), dtype=np.float64)
    names, kinds = np.array([*found.labels, ""]), np.array([*found.kinds, ""])
    now = np.array([*usable_labels.class_names, ""])[usable_labels.labels]
    known = (then >= 0) & usable_labels.labeled
    same = known & (kinds[then] == "given") & (names[then] == now)
    weights[same] = kept[then[same]]
    fresh = known & np.isin(kinds[then], ("known", "new", "unsure")) & np.isin(now, names[kinds == "given"])
    wrong = fresh & (names[then] != now)
    if found.expected is not None and wrong.any():
        by_chance, n, v = float((1 - found.expected[then[fresh]]).sum()), int(fresh.sum()), int(wrong.sum())
        weights[wrong] = min(1.0, ((n - v) * by_chance + 1) / ((n - by_chance) * v + 1))
    return weights


def drop_low_weight_labels(labels: NDArray[np.int64], weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Replace labels (n,) whose weight is below one half with -1, except in classes that have no other labels.

    With such labels, groups would extend into other classes, and the images around them would look like new classes.
    """
    full = (labels >= 0) & (weights >= _FULL_WEIGHT)
    return np.where(full | ~np.isin(labels, labels[full]), labels, -1)


def downweight_group_labels(features: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Compute label weights (n,) in (0, 1], which are below 1 for groups whose images were all labeled at once.

    Held-out labels of such a group are nearer to other labels than any unlabeled image is, so that all other images
    look like new classes; and predictions favor its class, although few of its images are left. The weight is the
    fraction of unlabeled images among the nearest neighbors, and at least two labels in total remain. It is 1 if this
    fraction is at least half of that among all images, or if at least half of all images are labeled.

    Args:
        features: (n, d).
        labels: (n,) int64, -1 = unlabeled.
    """
    weights, labeled = np.ones(len(labels)), np.flatnonzero(labels >= 0)
    unlabeled_share = 1 - len(labeled) / len(labels)
    if unlabeled_share > 0.5 and len(labeled) > _NEIGHBORS:
        _, near = knn(features[labeled], features, min(_NEIGHBORS + 1, len(labels)), metric="l2")
        share = ((labels[near] < 0) & (near != labeled[:, None])).sum(axis=1) / _NEIGHBORS
        counts = np.unique(labels[labeled], return_inverse=True, return_counts=True)
        least = np.minimum(1, _KEPT / counts[2])[counts[1]]
        weights[labeled] = np.where(share < unlabeled_share / 2, np.maximum(share, least), 1.0)
    return weights


def surrounded_labels_message(count: int) -> str:
    """Return a message that states how many labels have a weight below 1, and why."""
    labels, them = ("1 label counts", "it") if count == 1 else (f"{count} labels count", "them")
    return f"{labels} less, because most images around {them} are labeled, too"


def informative_label_mask(features: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a mask (n,) without the labels of groups whose images were all labeled at once, except two per class."""
    weights = downweight_group_labels(features, labels)
    kept = weights == 1
    for label in np.unique(labels[~kept]):
        mine = np.flatnonzero(labels == label)
        kept[mine[np.argsort(-weights[mine], kind="stable")[:_KEPT]]] = True
    return kept

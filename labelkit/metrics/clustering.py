"""Score cluster ids against labels: accuracy by matching for old and new classes, NMI, ARI.

Sources: protocols of S. Vaze et al., "Generalized Category Discovery" (v1, v2) and of the code
of "SimGCD" (v2b); error kinds of "Flipped Classroom", Fig. 2 and App. B.3; L. Hubert and
P. Arabie, "Comparing partitions" (ARI).
Departure: the released codes match a square matrix of counts, padded with zeros. All is the same; Old and New can
differ where several matchings have the same All (``algorithms.matching``).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.matching import as_ids, contingency, match_counts

Protocol = Literal["v2", "v1", "v2b"]


@dataclass(frozen=True, slots=True)
class ClusterAccuracy:
    """Clustering accuracy over all, old and new classes, after matching clusters to classes.

    Attributes:
        protocol: how the three accuracies were made, see :func:`cluster_accuracy`.
        all_accuracy: over all samples, in [0, 1].
        old_accuracy: over samples of old classes; NaN if there is none.
        new_accuracy: over samples of new classes; NaN if there is none.
        true_old: old samples given another old class, as a share of the old samples.
        false_old: old samples given a new class or none, as a share of the old samples.
        true_new: new samples given another new class or none, as a share of the new samples.
        false_new: new samples given an old class, as a share of the new samples.
        mapping: (k,) int64, class of each cluster, -1 = unmatched; the matching over all samples
            (or the one handed in), whatever the protocol. The error kinds follow it, so
            ``1 - old_accuracy = true_old + false_old`` and the same for new hold under v2.
        confusion: (k, c) int64, samples per cluster (rows) and class (columns).
        used_clusters: clusters with at least one sample.
        num_samples: samples scored.
        num_old_samples: of these, samples of old classes.
        num_new_samples: the others.
    """

    protocol: Protocol
    all_accuracy: float
    old_accuracy: float
    new_accuracy: float
    true_old: float
    false_old: float
    true_new: float
    false_new: float
    mapping: NDArray[np.int64]
    confusion: NDArray[np.int64]
    used_clusters: int
    num_samples: int
    num_old_samples: int
    num_new_samples: int

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain numbers and lists for JSON, with ``None`` in place of NaN."""
        values: dict[str, Any] = {}
        for name, value in asdict(self).items():
            if isinstance(value, np.ndarray):
                values[name] = value.tolist()
            elif isinstance(value, float) and np.isnan(value):
                values[name] = None
            else:
                values[name] = value
        return values


def cluster_accuracy(
    labels: ArrayLike,
    cluster_ids: ArrayLike,
    old_mask_per_class: ArrayLike,
    *,
    protocol: Protocol = "v2",
    mapping: ArrayLike | None = None,
) -> ClusterAccuracy:
    """Compute the clustering accuracy over all, old and new classes, after matching clusters to classes.

    Protocols:
        - ``v2``: one matching over all samples, used for all three numbers, so that
          ``All = s Old + (1 - s) New`` with s the share of old samples. The one to report.
        - ``v1``: a matching of its own for old samples and for new ones, and All the mean
          weighted by their share. Legacy; at least as high as v2 in each number.
        - ``v2b``: the matching of v2, but means of per-class accuracies over the classes present.

    All is unique under v2; Old and New may differ between matchings of equal All, and the choice
    is then scipy's. Pairs of cluster and class without a common sample count as no match.

    Args:
        labels: (n,) integers in ``[0, c)``.
        cluster_ids: (n,) integers >= 0; clusters and classes need not be equally many.
        old_mask_per_class: (c,) bool, true for the old classes, in any order.
        protocol: see above.
        mapping: (k,) integers, class of each cluster or -1, fitted elsewhere and kept as it is;
            by default it is fitted here. Not with ``v1``, which fits two.

    Raises:
        ValueError: lengths differ, nothing is there, an id is out of range, an unknown protocol,
            or a mapping that does not fit or names a class twice.
    """
    old_classes = np.asarray(old_mask_per_class)
    if old_classes.ndim != 1 or old_classes.dtype != np.bool_:
        raise ValueError(f"old_mask_per_class must be bool (c,), got {old_classes.dtype} {old_classes.shape}")
    if protocol not in ("v2", "v1", "v2b"):
        raise ValueError(f"protocol must be 'v2', 'v1' or 'v2b', got {protocol!r}")
    if mapping is None:
        counts = contingency(cluster_ids, labels, num_classes=len(old_classes))
        class_of_cluster = match_counts(counts).class_of_cluster
    else:
        if protocol == "v1":
            raise ValueError("protocol v1 fits a matching to each subset; a mapping goes with v2 or v2b")
        class_of_cluster = _as_mapping(mapping, len(old_classes))
        counts = contingency(cluster_ids, labels, num_clusters=len(class_of_cluster), num_classes=len(old_classes))

    per_class = counts.sum(axis=0)
    num_old, num_new = int(per_class[old_classes].sum()), int(per_class[~old_classes].sum())
    matched = class_of_cluster >= 0
    hits = np.zeros(len(old_classes), dtype=np.int64)
    hits[class_of_cluster[matched]] = counts[matched, class_of_cluster[matched]]
    says_old = np.zeros(len(counts), dtype=bool)
    says_old[matched] = old_classes[class_of_cluster[matched]]
    old_said_old = int(counts[says_old][:, old_classes].sum())
    new_said_old = int(counts[says_old][:, ~old_classes].sum())
    old_hits, new_hits = int(hits[old_classes].sum()), int(hits[~old_classes].sum())

    all_accuracy, old_accuracy, new_accuracy = _accuracies(protocol, counts, hits, old_classes)
    return ClusterAccuracy(
        protocol=protocol,
        all_accuracy=all_accuracy,
        old_accuracy=old_accuracy,
        new_accuracy=new_accuracy,
        true_old=_share(old_said_old - old_hits, num_old),
        false_old=_share(num_old - old_said_old, num_old),
        true_new=_share(num_new - new_said_old - new_hits, num_new),
        false_new=_share(new_said_old, num_new),
        mapping=class_of_cluster,
        confusion=counts,
        used_clusters=int((counts.sum(axis=1) > 0).sum()),
        num_samples=num_old + num_new,
        num_old_samples=num_old,
        num_new_samples=num_new,
    )


def _accuracies(
    protocol: Protocol, counts: NDArray[np.int64], hits: NDArray[np.int64], old_classes: NDArray[np.bool_]
) -> tuple[float, float, float]:
    """Return the accuracy of all, of old and of new samples; ``hits`` are those of one matching, per class."""
    per_class = counts.sum(axis=0)
    if protocol == "v2b":
        present = per_class > 0
        share = hits / np.maximum(per_class, 1)
        every, old, new = (
            float(share[group].mean()) if group.any() else float("nan")
            for group in (present, present & old_classes, present & ~old_classes)
        )
        return every, old, new
    if protocol == "v1":
        old_score = match_counts(counts[:, old_classes]).num_matched
        new_score = match_counts(counts[:, ~old_classes]).num_matched
    else:
        old_score, new_score = int(hits[old_classes].sum()), int(hits[~old_classes].sum())
    num_old, num_new = int(per_class[old_classes].sum()), int(per_class[~old_classes].sum())
    return (old_score + new_score) / (num_old + num_new), _share(old_score, num_old), _share(new_score, num_new)


def normalized_mutual_information(labels: ArrayLike, cluster_ids: ArrayLike) -> float:
    """Compute the normalized mutual information of labels and clusters, in [0, 1].

    That is ``2 I(labels; clusters) / (H(labels) + H(clusters))``. By scikit-learn. 1 if the partitions are the same up
    to names (also if both have a single group), 0 if they are independent.

    Args:
        labels: (n,) integers >= 0.
        cluster_ids: (n,) integers >= 0.

    Raises:
        ValueError: lengths differ, nothing is there, or an id is not an integer >= 0.
    """
    from sklearn.metrics import normalized_mutual_info_score

    return float(normalized_mutual_info_score(*_same_length(labels, cluster_ids)))


def adjusted_mutual_information(labels: ArrayLike, cluster_ids: ArrayLike) -> float:
    """Compute the mutual information of labels and clusters, adjusted for chance, at most 1.

    That is ``(I - E) / ((H(labels) + H(clusters)) / 2 - E)``, by scikit-learn. E is the mean of I over all ways to deal
    the samples into groups of these sizes. 1 if the partitions are the same up to names, 0 on average for random groups
    of the same sizes, and below 0 for worse ones. Other than NMI, it does not grow with the number of clusters alone.

    Args:
        labels: (n,) integers >= 0.
        cluster_ids: (n,) integers >= 0.

    Raises:
        ValueError: lengths differ, nothing is there, or an id is not an integer >= 0.
    """
    from sklearn.metrics import adjusted_mutual_info_score

    return float(adjusted_mutual_info_score(*_same_length(labels, cluster_ids)))


def adjusted_rand_index(labels: ArrayLike, cluster_ids: ArrayLike) -> float:
    """Compute the Rand index of labels and clusters, adjusted for chance, in [-0.5, 1], by scikit-learn.

    With S the pairs together in both, A and B the pairs together in one, N all pairs and
    ``E = A B / N``: ``(S - E) / ((A + B) / 2 - E)``. 1 for equal partitions, 0 on average for
    random ones with the same group sizes.

    Args:
        labels: (n,) integers >= 0.
        cluster_ids: (n,) integers >= 0.

    Raises:
        ValueError: lengths differ, nothing is there, or an id is not an integer >= 0.
    """
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(*_same_length(labels, cluster_ids)))


def majority_accuracy(labels: ArrayLike, cluster_ids: ArrayLike) -> float:
    """Compute the purity: the share of samples that have the most frequent class of their cluster, in (0, 1].

    For clusterings with more clusters than classes, where a one-to-one matching would leave most of them out. It grows
    with the number of clusters, up to 1 for clusters of one sample each.

    Args:
        labels: (n,) integers >= 0.
        cluster_ids: (n,) integers >= 0.

    Raises:
        ValueError: shapes that do not fit, negative ids, or nothing to score.
    """
    counts = _compact_counts(labels, cluster_ids)
    return float(counts.max(axis=0).sum() / counts.sum())


def _as_mapping(mapping: ArrayLike, num_classes: int) -> NDArray[np.int64]:
    array = np.asarray(mapping)
    if array.ndim != 1 or not array.size or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"mapping must be integers (k,), got {array.dtype} {array.shape}")
    if array.min() < -1 or array.max() >= num_classes:
        raise ValueError(f"mapping must be in [-1, {num_classes}), got {array.min()} to {array.max()}")
    named, times = np.unique(array[array >= 0], return_counts=True)
    if (times > 1).any():
        raise ValueError(f"mapping names class {named[times > 1][0]} more than once")
    return array.astype(np.int64)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")


def _same_length(labels: ArrayLike, cluster_ids: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    rows, columns = as_ids(labels, "labels"), as_ids(cluster_ids, "cluster_ids")
    if rows.shape != columns.shape or not len(rows):
        raise ValueError(f"labels and cluster_ids must have the same length >= 1, got {rows.shape} and {columns.shape}")
    return rows, columns


def _compact_counts(labels: ArrayLike, cluster_ids: ArrayLike) -> NDArray[np.int64]:
    """Count labels (rows) by clusters (columns), without empty ones: ids may be far apart."""
    rows, columns = _same_length(labels, cluster_ids)
    return contingency(np.unique(rows, return_inverse=True)[1], np.unique(columns, return_inverse=True)[1])

"""Clustering accuracy after matching clusters to classes, for old and new classes, with bootstrap intervals.

Sources: protocols of S. Vaze et al., "Generalized Category Discovery" (v1, v2) and of the code of "SimGCD" (v2b);
the four error rates of "Flipped Classroom", Fig. 2 and App. B.3, named there true old, false old, true new and false
new, after whether the side of the prediction is right; B. Efron, "Bootstrap Methods: Another Look at the Jackknife"
(percentile intervals).
Departure: the released code pads the count matrix with zeros to a square before matching. All is the same; Old and New
can differ if several matchings have the same All (``algorithms.matching``).
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.matching import cross_tabulate, match_counts

_LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class ClusterAccuracy:
    """Clustering accuracy over all, old and new classes, after matching clusters to classes.

    Attributes:
        all_accuracy: over all samples, in [0, 1].
        old_accuracy: over samples of old classes; NaN if there are none.
        new_accuracy: over samples of new classes; NaN if there are none.
        old_as_wrong_old: old samples assigned to another old class, as a share of the old samples.
        old_as_new: old samples assigned to a new class or none, as a share of the old samples.
        new_as_wrong_new: new samples assigned to another new class or none, as a share of the new samples.
        new_as_old: new samples assigned to an old class, as a share of the new samples.
        mapping: (k,) int64, class of each cluster, -1 = unmatched; the matching over all samples.
            ``1 - old_accuracy = old_as_wrong_old + old_as_new``, and likewise for new.
        confusion: (k, c) int64, samples per cluster (rows) and class (columns).
        used_clusters: number of clusters with at least one sample.
        num_samples: number of samples scored.
        num_old_samples: number of these samples in old classes.
        num_new_samples: number of these samples in new classes.
    """

    all_accuracy: float
    old_accuracy: float
    new_accuracy: float
    old_as_wrong_old: float
    old_as_new: float
    new_as_wrong_new: float
    new_as_old: float
    mapping: NDArray[np.int64]
    confusion: NDArray[np.int64]
    used_clusters: int
    num_samples: int
    num_old_samples: int
    num_new_samples: int

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain numbers and lists for JSON, with ``None`` in place of NaN."""
        values: dict[str, Any] = {"protocol": "v2"}
        for name, value in asdict(self).items():
            if isinstance(value, np.ndarray):
                values[name] = value.tolist()
            elif isinstance(value, float) and np.isnan(value):
                values[name] = None
            else:
                values[name] = value
        return values


def cluster_accuracy(labels: ArrayLike, cluster_ids: ArrayLike, old_mask_per_class: ArrayLike) -> ClusterAccuracy:
    """Match clusters to classes, and compute the clustering accuracy over all, old and new classes.

    One matching over all samples is used for all three numbers (protocol ``v2``), so that
    ``All = s Old + (1 - s) New`` with s the share of old samples. All is unique; Old and New may differ between
    matchings of equal All, in which case scipy's choice is used. A cluster and a class without a sample in common
    are never matched.

    Args:
        labels: (n,) integers in ``[0, c)``.
        cluster_ids: (n,) integers >= 0; the numbers of clusters and classes may differ.
        old_mask_per_class: (c,) bool, true for the old classes, in any order.

    Raises:
        ValueError: lengths differ, arrays are empty, or an id is out of range.
    """
    old_classes = np.asarray(old_mask_per_class)
    if old_classes.ndim != 1 or old_classes.dtype != np.bool_:
        raise ValueError(f"old_mask_per_class must be bool of shape (c,), got {old_classes.dtype} {old_classes.shape}")
    counts = cross_tabulate(cluster_ids, labels, num_classes=len(old_classes))
    class_of_cluster = match_counts(counts).class_of_cluster
    per_class, hits = counts.sum(axis=0), _count_correct(counts, class_of_cluster)
    num_old, num_new = int(per_class[old_classes].sum()), int(per_class[~old_classes].sum())
    says_old = (class_of_cluster >= 0) & old_classes[class_of_cluster]
    old_said_old = int(counts[says_old][:, old_classes].sum())
    new_said_old = int(counts[says_old][:, ~old_classes].sum())
    old_hits, new_hits = int(hits[old_classes].sum()), int(hits[~old_classes].sum())
    return ClusterAccuracy(
        all_accuracy=(old_hits + new_hits) / (num_old + num_new),
        old_accuracy=_share(old_hits, num_old),
        new_accuracy=_share(new_hits, num_new),
        old_as_wrong_old=_share(old_said_old - old_hits, num_old),
        old_as_new=_share(num_old - old_said_old, num_old),
        new_as_wrong_new=_share(num_new - new_said_old - new_hits, num_new),
        new_as_old=_share(new_said_old, num_new),
        mapping=class_of_cluster,
        confusion=counts,
        used_clusters=int((counts.sum(axis=1) > 0).sum()),
        num_samples=num_old + num_new,
        num_old_samples=num_old,
        num_new_samples=num_new,
    )


def score_other_protocols(score: ClusterAccuracy, old_mask_per_class: ArrayLike) -> dict[str, dict[str, float]]:
    """Compute the accuracies for ``all``, ``old`` and ``new`` classes under the protocols v1 and v2b.

    - ``v1`` matches old and new samples separately; its accuracies are never below those of v2.
    - ``v2b`` uses the matching of v2, and averages the accuracies of the classes that have samples.

    Args:
        score: result of :func:`cluster_accuracy` (v2).
        old_mask_per_class: (c,) bool, the same as for ``score``.

    Returns:
        Accuracy in [0, 1] by protocol and group; NaN for groups without samples.
    """
    old, counts = np.asarray(old_mask_per_class, dtype=bool), score.confusion
    sizes, groups = counts.sum(axis=0), {"all": np.ones_like(old), "old": old, "new": ~old}
    apart = {name: match_counts(counts[:, groups[name]]).num_matched for name in ("old", "new") if groups[name].any()}
    apart["all"] = sum(apart.values())
    by_class = np.divide(_count_correct(counts, score.mapping), sizes, out=np.full(len(sizes), np.nan), where=sizes > 0)
    return {
        "v1": {name: _share(apart.get(name, 0), int(sizes[group].sum())) for name, group in groups.items()},
        "v2b": {
            name: float(by_class[group & (sizes > 0)].mean()) if sizes[group].any() else float("nan")
            for name, group in groups.items()
        },
    }


def accuracy_intervals(
    score: ClusterAccuracy, old_mask_per_class: ArrayLike, *, num_resamples: int = 1000, generator: np.random.Generator
) -> dict[str, tuple[float, float]]:
    """Compute 95% bootstrap percentile intervals of the accuracies for ``all``, ``old`` and ``new`` classes.

    Every resample keeps the clusters and the matching found on all samples: the intervals reflect
    the choice of evaluated samples, but not the variation from repeated clustering, matching or
    training. Since only the class and correctness of a sample then matter, n draws with replacement
    reduce to one multinomial draw for any n.

    Args:
        score: result of :func:`cluster_accuracy`.
        old_mask_per_class: (c,) bool, the same as for ``score``.
        num_resamples: number of resamples, at least 1.
        generator: random number generator.

    Returns:
        (low, high) of each accuracy in [0, 1]; NaN for groups without samples.
    """
    sizes = score.confusion.sum(axis=0)
    present = np.flatnonzero(sizes)
    hits, sizes = _count_correct(score.confusion, score.mapping)[present], sizes[present]
    is_old = np.asarray(old_mask_per_class, dtype=bool)[present]
    drawn = generator.multinomial(sizes.sum(), np.concatenate([hits, sizes - hits]) / sizes.sum(), size=num_resamples)
    right, wrong = drawn[:, : len(sizes)], drawn[:, len(sizes) :]
    intervals = {}
    for name, group in (("all", np.ones_like(is_old)), ("old", is_old), ("new", ~is_old)):
        found, count = right[:, group].sum(axis=1), (right + wrong)[:, group].sum(axis=1)
        shares = found[count > 0] / count[count > 0]
        ends = np.quantile(shares, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2]) if len(shares) else np.full(2, np.nan)
        intervals[name] = (float(ends[0]), float(ends[1]))
    return intervals


def _count_correct(counts: NDArray[np.int64], mapping: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of correct samples of each class, (c,), under a matching."""
    hits, matched = np.zeros(counts.shape[1], dtype=np.int64), np.flatnonzero(mapping >= 0)
    hits[mapping[matched]] = counts[matched, mapping[matched]]
    return hits


def majority_accuracy(labels: ArrayLike, cluster_ids: ArrayLike) -> float:
    """Compute the purity, in (0, 1]: the fraction of samples that belong to their cluster's most frequent class.

    Use it if there are more clusters than classes, so that a one-to-one matching would leave most clusters
    unmatched. It tends to grow with the number of clusters and is 1 if every cluster has one sample.

    Args:
        labels: (n,) integers >= 0.
        cluster_ids: (n,) integers >= 0.

    Raises:
        ValueError: lengths differ, or there are no samples.
    """
    # ids may be sparse
    classes, clusters = (np.unique(np.asarray(ids), return_inverse=True)[1] for ids in (labels, cluster_ids))
    counts = cross_tabulate(classes, clusters)
    return float(counts.max(axis=0).sum() / counts.sum())


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")

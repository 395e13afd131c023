"""Match clusters to classes one-to-one, so that as many samples as possible agree.

Source: H. W. Kuhn, "The Hungarian method for the assignment problem", as implemented in scipy.
Departure: published code for category discovery pads the count matrix to a square. The number of matched samples is the
same, but the solver may choose another matching with this number.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, slots=True)
class Matching:
    """One-to-one matching of k clusters to c classes.

    Attributes:
        class_of_cluster: (k,) int64, -1 = unmatched.
        counts: (k, c) int64, number of samples of each cluster and class.
        num_matched: number of samples whose cluster is matched to their class, which is the maximum possible.
    """

    class_of_cluster: NDArray[np.int64]
    counts: NDArray[np.int64]
    num_matched: int


def cross_tabulate(
    cluster_ids: ArrayLike, labels: ArrayLike, *, num_clusters: int | None = None, num_classes: int | None = None
) -> NDArray[np.int64]:
    """Count the samples in each pair of a cluster and a class.

    Args:
        cluster_ids: (n,) integers >= 0.
        labels: (n,) integers >= 0.
        num_clusters: k; by default the largest cluster id + 1.
        num_classes: c; by default the largest label + 1.

    Returns:
        (k, c) int64; rows are clusters, columns are classes.

    Raises:
        ValueError: lengths differ, arrays are empty, or an id is negative, out of range, or not an integer.
    """
    rows, columns = validate_ids(cluster_ids, "cluster_ids"), validate_ids(labels, "labels")
    if len(rows) != len(columns):
        raise ValueError(f"cluster_ids and labels must have the same length, got {len(rows)} and {len(columns)}")
    num_rows = _number(rows, num_clusters, "cluster_ids", "num_clusters")
    num_columns = _number(columns, num_classes, "labels", "num_classes")
    flat = np.bincount(rows * num_columns + columns, minlength=num_rows * num_columns)
    return flat.reshape(num_rows, num_columns).astype(np.int64, copy=False)


def match_clusters(
    cluster_ids: ArrayLike, labels: ArrayLike, *, num_clusters: int | None = None, num_classes: int | None = None
) -> Matching:
    """Match clusters to classes one to one, maximizing the number of agreeing samples.

    The number of matched samples is unique, but the matching may not be; ties are resolved by
    ``scipy.optimize.linear_sum_assignment``. A cluster and a class without a common sample are not matched.

    Args:
        cluster_ids: (n,) integers >= 0.
        labels: (n,) integers >= 0.
        num_clusters: k; by default the largest cluster id + 1.
        num_classes: c; by default the largest label + 1.

    Raises:
        ValueError: as in :func:`cross_tabulate`.
    """
    return match_counts(cross_tabulate(cluster_ids, labels, num_clusters=num_clusters, num_classes=num_classes))


def match_counts(counts: NDArray[np.int64]) -> Matching:
    """Match rows to columns of a (k, c) count matrix, maximizing the matched count; see :func:`match_clusters`."""
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(counts, maximize=True)
    weights = counts[rows, columns]
    class_of_cluster = np.full(counts.shape[0], -1, dtype=np.int64)
    class_of_cluster[rows[weights > 0]] = columns[weights > 0]
    return Matching(class_of_cluster, counts, int(weights.sum()))


def validate_ids(values: ArrayLike, name: str) -> NDArray[np.int64]:
    """Check that ids are a one-dimensional array of integers >= 0, and return them as int64.

    Args:
        values: (n,) integers, n >= 1.
        name: name for error messages.

    Raises:
        ValueError: not one-dimensional, empty, not integers, or negative.
    """
    array = np.asarray(values)
    if array.ndim != 1 or not array.size:
        raise ValueError(f"{name} must have shape (n,) with n >= 1, got {array.shape}")
    if not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"{name} must be integers, got {array.dtype}")
    if array.min() < 0:
        raise ValueError(f"{name} must be >= 0, got {array.min()} (exclude the samples without a value)")
    return array.astype(np.int64, copy=False)


def _number(ids: NDArray[np.int64], number: int | None, ids_name: str, number_name: str) -> int:
    largest = int(ids.max())
    if number is None:
        return largest + 1
    if largest >= number:
        raise ValueError(f"{ids_name} must be below {number_name}={number}, got {largest}")
    return number

r"""Mutual information of two partitions less what chance gives.

Source: N. X. Vinh, J. Epps and J. Bailey, "Information Theoretic Measures for Clusterings Comparison" (JMLR 2010).
The mean over all ways to deal n samples into groups of the given sizes is, with the sizes a of the rows and b of the
columns of the table of counts,

.. math:: E = \sum_{a, b} \sum_m \frac{m}{n} \log \frac{n m}{a b} \;
          \frac{a!\, b!\, (n - a)!\, (n - b)!}{n!\, m!\, (a - m)!\, (b - m)!\, (n - a - b + m)!}

over the counts m that such groups can share. Groups of equal sizes have equal terms, which are computed once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.matching import as_ids, contingency


def adjusted_mutual_information(labels: ArrayLike, cluster_ids: ArrayLike) -> float:
    """Return ``(I - E) / ((H(labels) + H(clusters)) / 2 - E)``, at most 1.

    1 if the partitions are the same up to names, 0 on average for random groups of the same sizes, and below 0 for
    worse ones. Other than NMI, it does not grow with the number of clusters alone.

    Args:
        labels: (n,) integers >= 0.
        cluster_ids: (n,) integers >= 0.

    Raises:
        ValueError: lengths differ, nothing is there, or an id is not an integer >= 0.
    """
    rows = np.unique(as_ids(labels, "labels"), return_inverse=True)[1]
    columns = np.unique(as_ids(cluster_ids, "cluster_ids"), return_inverse=True)[1]
    counts = contingency(rows, columns)
    of_label, of_cluster = counts.sum(axis=1), counts.sum(axis=0)
    # all together in both, or all apart in both: nothing is left to chance
    if len(of_label) == len(of_cluster) and len(of_label) in (1, len(rows)):
        return 1.0
    entropies = _entropy(of_label) + _entropy(of_cluster)
    mutual = entropies - _entropy(counts[counts > 0])
    expected = expected_mutual_information(of_label, of_cluster)
    room = entropies / 2 - expected
    # a partition into single samples, or into one group, tells nothing beyond chance: both differences are 0
    smallest = np.finfo(np.float64).eps
    return min(1.0, float((mutual - expected) / (max(room, smallest) if room >= 0 else min(room, -smallest))))


def expected_mutual_information(row_sizes: NDArray[np.int64], column_sizes: NDArray[np.int64]) -> float:
    """Return the mean mutual information, in nats, of random partitions into groups of these sizes.

    Args:
        row_sizes: (c,) sizes of the groups of one, >= 1.
        column_sizes: (k,) of the other; the same sum.

    Raises:
        ValueError: the sums differ.
    """
    from scipy.special import gammaln

    total = int(row_sizes.sum())
    if total != int(column_sizes.sum()):
        raise ValueError(f"sizes sum to {total} and to {int(column_sizes.sum())}")
    log_factorial = gammaln(np.arange(total + 1) + 1.0)
    sizes, times = np.unique(column_sizes, return_counts=True)
    mean = 0.0
    for a, times_a in zip(*(part.tolist() for part in np.unique(row_sizes, return_counts=True)), strict=True):
        least, most = np.maximum(1, a + sizes - total), np.minimum(a, sizes)
        spans = most - least + 1
        # all counts m of all column sizes one after the other: the sizes differ, so that there are n at most
        which = np.repeat(np.arange(len(sizes)), spans)
        b = sizes[which]
        m = np.arange(len(which)) - np.repeat(np.cumsum(spans) - spans, spans) + least[which]
        log_chance = (
            log_factorial[a] + log_factorial[b] + log_factorial[total - a] + log_factorial[total - b]
            - log_factorial[total] - log_factorial[m] - log_factorial[a - m] - log_factorial[b - m]
            - log_factorial[total - a - b + m]
        )  # fmt: skip
        gain = m / total * (np.log(total * m.astype(np.float64)) - np.log(float(a) * b))
        mean += times_a * float((times[which] * gain * np.exp(log_chance)).sum())
    return mean


def _entropy(sizes: NDArray[np.int64]) -> float:
    shares = sizes / sizes.sum()
    return float(-(shares * np.log(shares)).sum())

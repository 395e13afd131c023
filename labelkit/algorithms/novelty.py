"""Score how likely it is that images belong to none of the labeled classes.

For all unlabeled images, the mean of two ranks (``score_class_novelty``):
    - groups: the probability that an image belongs to a group without a label
    - nearest: the distance to the nearest labeled image
The first finds classes with many images, which have a group of their own; the second also finds those with few.

For images added later (``score_arrival_novelty``): whether they are closer to each other than to all earlier images.
This is much more informative, since the earlier unlabeled images also represent the known classes.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

# distance up to which two images count as copies
_SAME = 1e-6


def score_class_novelty(new_probabilities: NDArray[np.float64], cosines: NDArray[np.float64]) -> NDArray[np.float64]:
    """Score the novelty (n,) float64, in ``[0, 1]``, of each unlabeled image relative to the labeled classes.

    It is the mean of two ranks, not a probability. Other combinations of groups, nearest labels, class means and a
    classifier were not much better on the splits used to choose it; `examples/novel_cases.py` evaluates it on others.

    Args:
        new_probabilities: (n,) in ``[0, 1]``, probability of each image to belong to a group without a label.
        cosines: (n,) cosine to the nearest labeled image.
    """
    return np.asarray((fractional_ranks(new_probabilities) + fractional_ranks(-cosines)) / 2, dtype=np.float64)


def score_arrival_novelty(earlier: NDArray[np.floating[Any]], later: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Score the novelty (n,) float64, in ``[0, 1]``, of each later image relative to all earlier images.

    It is a / (a + b), where a and b are the mean distances to the nearest earlier images and to the nearest other later
    images, and 0 for a copy of an earlier image. Above 0.5, an image is closer to the other later images. It is
    evaluated by `examples/novel_cases.py`.

    Args:
        earlier: (n, k) cosines to the nearest earlier images, k >= 1.
        later: (n, l) cosines to the nearest other later images, l >= 1.
    """
    to_earlier = 1 - earlier.astype(np.float64).mean(axis=1)
    to_later = 1 - later.astype(np.float64).mean(axis=1)
    both = to_earlier + to_later
    score = np.where(both > 0, to_earlier / np.where(both > 0, both, 1), 0.5)
    return np.asarray(np.where(earlier.max(axis=1) > 1 - _SAME, 0.0, score))


def fractional_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the ranks (n,) float64 of values, scaled to ``[0, 1]``; tied values get their mean rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    upto = np.cumsum(counts)
    return np.asarray((upto - (counts + 1) / 2)[place] / max(1, len(values) - 1))

"""Score how likely images belong to none of the labeled classes.

For all images without a label, the mean of two ranks (``novelty``):
    - groups: the share of an image that belongs to groups without a label
    - nearest: the distance of the nearest image with a label
The first finds classes with many images, which have a group of their own; the second also those with few.

For images added later (``score_arrival_novelty``): whether they are nearer to each other than to all earlier images.
This is much more informative, since earlier images without a label represent the known classes too.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

# distance up to which two images count as copies
_SAME = 1e-6


def novelty(new_shares: NDArray[np.float64], cosines: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the novelty (n,) float64 in ``[0, 1]`` of each unlabeled image compared with the labeled classes.

    It is the mean of two ranks, not a probability. Other ways to combine groups, nearest labels, class means and a
    classifier were not much better on the draws used to choose it; `examples/novel_cases.py` measures it on others.

    Args:
        new_shares: (n,) in ``[0, 1]``, share of each image that belongs to groups without a label.
        cosines: (n,) cosine to the nearest image with a label.

    Raises:
        ValueError: shapes differ.
    """
    if new_shares.shape != cosines.shape or new_shares.ndim != 1:
        raise ValueError(f"shares {new_shares.shape} and cosines {cosines.shape} must refer to the same images")
    return np.asarray((mid_ranks(new_shares) + mid_ranks(-cosines)) / 2, dtype=np.float64)


def score_arrival_novelty(earlier: NDArray[np.floating[Any]], later: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Compute the novelty (n,) float64 in ``[0, 1]`` of each later image compared with all earlier ones.

    Above 0.5, it is closer to the other later images. A copy of an earlier image has 0. Otherwise, it is a / (a + b),
    where a and b are the mean distances to the nearest earlier images and to the nearest other later ones; measured by
    `examples/novel_cases.py`.

    Args:
        earlier: (n, k) cosines to the nearest earlier images, k >= 1.
        later: (n, l) cosines to the nearest other later images, l >= 1.
    """
    to_earlier = 1 - earlier.astype(np.float64).mean(axis=1)
    to_later = 1 - later.astype(np.float64).mean(axis=1)
    both = to_earlier + to_later
    score = np.where(both > 0, to_earlier / np.where(both > 0, both, 1), 0.5)
    return np.asarray(np.where(earlier.max(axis=1) > 1 - _SAME, 0.0, score))


def mid_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the fractional ranks (n,) float64 of values, in ``[0, 1]``; tied values share their mean rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    upto = np.cumsum(counts)
    return np.asarray((upto - (counts + 1) / 2)[place] / max(1, len(values) - 1))

"""Average precision of a class that an image may have or not: over all recalls, and at the eleven of VOC 2007."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

_ELEVEN: Final = np.arange(11)


def average_precision(scores: ArrayLike, present: ArrayLike) -> float:
    r"""Return the area under precision over recall, in [0, 1]; NaN if the class is in no image.

    .. math:: AP = \sum_n (R_n - R_{n-1}) P_n

    over all thresholds n, one for each distinct score: tied images come in together. 1 if all images with the class
    are ahead of all others; the share of images with the class if all scores are equal.

    Args:
        scores: (n,), larger = more likely.
        present: (n,) bool, whether the image has the class.

    Raises:
        ValueError: shapes that do not fit, or NaN.

    Source:
        That of scikit-learn's ``average_precision_score``, by which DeepCluster's ``eval_voc_classif.py`` scores.
    """
    precision, hits = _curve(scores, present)
    if not len(hits):
        return float("nan")
    gained = np.diff(hits, prepend=0)
    return float((gained * precision).sum() / hits[-1])


def eleven_point_average_precision(scores: ArrayLike, present: ArrayLike) -> float:
    """Return the mean of the highest precision at recall 0, 0.1, ..., 1 or more; NaN if the class is in no image.

    Args:
        scores: (n,), larger = more likely.
        present: (n,) bool, whether the image has the class.

    Raises:
        ValueError: shapes that do not fit, or NaN.

    Source:
        M. Everingham et al., "The PASCAL Visual Object Classes (VOC) Challenge" (IJCV 2010), Sec. 4.2: until VOC 2009.
        There images with one score are ranked by their place in the file; here they come in together.
    """
    precision, hits = _curve(scores, present)
    if not len(hits):
        return float("nan")
    # as whole numbers: 3 of 10 is a recall of 0.3
    reached = 10 * hits >= _ELEVEN[:, None] * hits[-1]
    return float(np.where(reached, precision, 0.0).max(axis=1).mean())


def _curve(scores: ArrayLike, present: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Precision and images with the class at or above each distinct score; nothing if none has it."""
    values, has = np.asarray(scores, dtype=np.float64), np.asarray(present, dtype=np.bool_)
    if values.ndim != 1 or values.shape != has.shape:
        raise ValueError(f"scores and present must have one shape (n,), got {values.shape} and {has.shape}")
    if np.isnan(values).any():
        raise ValueError(f"{int(np.isnan(values).sum())} of {len(values)} scores are NaN")
    if not has.any():
        return np.zeros(0), np.zeros(0, dtype=np.int64)
    order = np.argsort(-values, kind="stable")
    last = np.append(np.flatnonzero(np.diff(values[order])), len(order) - 1)  # of each group of ties
    hits = np.cumsum(has[order])[last]
    return hits / (last + 1), hits.astype(np.int64)

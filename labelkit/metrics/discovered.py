"""Score labels that were found for unlabeled rows against the true classes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

FIRST = (20, 40, 80, 160)
"""Numbers of best-ranked rows whose precision is shown."""


def discovery_errors(
    labels: ArrayLike,
    truth: ArrayLike,
    rounds: ArrayLike,
    ranks: ArrayLike,
    *,
    num_given: int,
    class_names: Sequence[str],
) -> dict[str, Any]:
    """Compute the error rates of found labels by comparing them with the true classes.

    Args:
        labels: (s,) integers, predicted classes.
        truth: (s,) integers, true classes, -1 = unknown.
        rounds: (s,) integers from 1.
        ranks: (s,) integers, 1 = best.
        num_given: number of labels that existed before.
        class_names: by number.

    Returns:
        ``found``, rows whose truth is known; ``wrong``, number of wrong labels among them; ``error`` = wrong /
        found, NaN without any; ``held_error`` = wrong / (given + found), the error in the training set of a classifier
        that uses all of them; the first three for each ``round`` in ``per_round`` and each predicted ``class`` in
        ``per_class``, in order; and ``precision_of_first``, the share of correct labels among the first by rank, for
        each of :data:`FIRST` up to their number.
    """
    columns = [np.asarray(column, dtype=np.int64) for column in (labels, truth, rounds, ranks)]
    is_known = columns[1] >= 0
    named, true, when, rank = (column[is_known] for column in columns)
    wrong = named != true
    by_rank = wrong[np.argsort(rank, kind="stable")]

    def share(of: Any = slice(None), given: int = 0) -> dict[str, Any]:
        found, bad = len(wrong[of]), int(wrong[of].sum())
        return {"found": found, "wrong": bad, "error": bad / (found + given) if found + given else float("nan")}

    return {
        **share(),
        "held_error": share(given=num_given)["error"],
        "per_round": [{"round": number, **share(when == number)} for number in np.unique(when).tolist()],
        "per_class": [{"class": class_names[one], **share(named == one)} for one in np.unique(named).tolist()],
        "precision_of_first": {first: float(1 - by_rank[:first].mean()) for first in FIRST if first <= len(wrong)},
    }

"""Error rates of labels discovered for unlabeled images, compared with the true classes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

FIRST = (20, 40, 80, 160)
"""Numbers of top-ranked labels for which precision is reported."""


def discovery_errors(
    labels: ArrayLike,
    truth: ArrayLike,
    rounds: ArrayLike,
    ranks: ArrayLike,
    *,
    num_given: int,
    class_names: Sequence[str],
) -> dict[str, Any]:
    """Compute the error rates of discovered labels by comparing them with the true classes.

    Args:
        labels: (s,) integers, predicted classes.
        truth: (s,) integers, true classes, -1 = unknown.
        rounds: (s,) integers from 1.
        ranks: (s,) integers, 1 = best.
        num_given: number of labels given before discovery.
        class_names: names of the classes, by class number.

    Returns:
        ``found``: number of labels whose true class is known; ``wrong``: number of these that are wrong; ``error`` =
        wrong / found, NaN if there are none; ``held_error`` = wrong / (given + found), the label error in a training
        set that contains all of them; ``per_round`` and ``per_class``: the first three for each ``round`` and each
        predicted ``class``, in order; ``precision_of_first``: precision of the top-ranked labels, for each number in
        :data:`FIRST` up to the number of labels.
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

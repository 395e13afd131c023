"""Which class owns which prototype: solved again from the class means, at fixed times of a run (DL2PA).

The main process solves, the others are told, so that all agree whatever their arithmetic. Source: DL2PA, Eq. 8 to 10;
ties, classes without an image and the times are ours (specification 3.4).
"""

from __future__ import annotations

import time

import numpy as np
import torch
from numpy.typing import NDArray

from labelkit.methods.prototypes.networks import PrototypeHead
from labelkit.training.method import TrainState

# An unseen class keeps its prototype unless a seen one gains more than this by taking it.
UNSEEN_PULL = 1e-3
# Mean gain for which classes are moved; below it a tie decides.
SMALLEST_GAIN = 1e-6


def is_due(state: TrainState, updates_per_epoch: float) -> bool:
    """Return whether classes must be reassigned to prototypes before the next step.

    Every ``steps_per_epoch / updates_per_epoch`` steps (rounded down, at least 1), but not before the first one: with
    one update per epoch at the start of every epoch but the first, so that an epoch is scored and saved with the
    assignment that it was trained with; with a tenth of one, at the start of every tenth epoch.

    Args:
        state: where the run is.
        updates_per_epoch: assignments per epoch, > 0; below 1, an assignment every ``1 / updates_per_epoch`` epochs.
    """
    # 1e-9: 3 / 0.1 may be a little less than 30
    period = max(1, int(state.steps_per_epoch / updates_per_epoch + 1e-9))
    return state.step > 0 and state.step % period == 0


@torch.no_grad()
def reassign(head: PrototypeHead, state: TrainState) -> dict[str, float]:
    """Reassign classes to prototypes to maximize the sum of their cosines with the class means.

    Returns:
        Values for the log: ``objective``, mean cosine of class means and their prototypes, over the classes;
        ``changed``, classes that have another prototype than before; ``seconds``, time it took.

    Raises:
        ValueError: a class mean is not finite; the message names the class.
    """
    started = time.perf_counter()
    before = head.assignment.cpu().numpy().copy()
    columns, value = np.zeros_like(before), 0.0
    if state.is_main:
        similarity = similarities(head)
        columns = best_assignment(similarity, before)
        value = float(similarity[np.arange(len(columns)), columns].sum())
    told = state.combine(torch.from_numpy(columns), "sum")
    objective = state.combine(torch.tensor(value, dtype=torch.float32), "sum")
    head.assignment.copy_(told)
    changed = float((told.cpu().numpy() != before).sum())
    return {"objective": float(objective) / len(before), "changed": changed, "seconds": time.perf_counter() - started}


def similarities(head: PrototypeHead) -> NDArray[np.float64]:
    """Compute the cosines (c, k) of class means and prototypes; a class without images keeps its own prototype."""
    table = (head.class_means.double().cpu() @ head.prototypes.double().cpu().T).numpy()
    unseen = np.flatnonzero(head.seen.cpu().numpy() == 0)
    table[unseen] = 0.0
    table[unseen, head.assignment.cpu().numpy()[unseen]] = UNSEEN_PULL
    return np.asarray(table, dtype=np.float64)


def best_assignment(similarity: NDArray[np.float64], before: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the optimal assignment (by scipy), or the previous one unless the gain exceeds rounding.

    Args:
        similarity: (c, k), c <= k.
        before: (c,) columns that rows have now.

    Returns:
        (c,) int64, no column twice.

    Raises:
        ValueError: a similarity is not finite; names the row.
    """
    from scipy.optimize import linear_sum_assignment

    strange = np.flatnonzero(~np.isfinite(similarity).all(axis=1))
    if len(strange):
        raise ValueError(f"scores of row {strange[0]} are not all finite")
    rows, columns = linear_sum_assignment(similarity, maximize=True)
    gain = float(similarity[rows, columns].sum() - similarity[rows, before].sum())
    return columns if gain > SMALLEST_GAIN * len(similarity) else before

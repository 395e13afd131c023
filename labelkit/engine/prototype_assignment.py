"""Which class owns which prototype: solved again from the class means, at fixed times of a run (DL2PA).

The main process solves, the others are told, so that all agree whatever their arithmetic. Source: DL2PA, Eq. 8 to 10;
ties, classes without an image and the times are ours (specification 3.4).
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from labelkit.engine.method import TrainState
from labelkit.models.prototype_head import PrototypeHead

# An unseen class keeps its prototype unless a seen one gains more than this by taking it.
UNSEEN_PULL = 1e-3
# Mean gain for which classes are moved; below it a tie decides.
SMALLEST_GAIN = 1e-6


@dataclass(frozen=True, slots=True)
class AssignmentRecord:
    """What one assignment came to.

    Attributes:
        objective: mean cosine of class means and their prototypes, over the classes.
        changed: classes that have another prototype than before.
        seconds: time it took.
    """

    objective: float
    changed: int
    seconds: float

    def to_dict(self) -> dict[str, float]:
        """For the log."""
        return {name: float(value) for name, value in asdict(self).items()}


def is_due(state: TrainState, updates_per_epoch: int, last_epoch: float) -> bool:
    """Whether an assignment is to be made before the coming step.

    Every ``steps_per_epoch / updates_per_epoch`` steps (rounded down, at least 1), but not before the first one: with
    one update per epoch at the start of every epoch but the first, so that an epoch is scored and saved with the
    assignment that it was trained with.

    Args:
        state: where the run is.
        updates_per_epoch: assignments per epoch.
        last_epoch: none from this epoch on.
    """
    period = max(1, state.steps_per_epoch // updates_per_epoch)
    return state.step > 0 and state.step % period == 0 and state.epoch < last_epoch


@torch.no_grad()
def reassign(head: PrototypeHead, state: TrainState) -> AssignmentRecord:
    """Give each class the prototype that makes the sum of cosines with the class means largest.

    Raises:
        ValueError: a class mean is not finite.
    """
    started = time.perf_counter()
    before = head.assignment.cpu().numpy().copy()
    found, objective = before, 0.0
    if state.is_main:
        similarity = similarities(head)
        found, objective = best_assignment(similarity, before)
    told = state.combine(torch.from_numpy(found if state.is_main else np.zeros_like(before)), "sum")
    objective = float(state.combine(torch.tensor(objective, dtype=torch.float64), "sum"))
    head.assignment.copy_(told)
    changed = int((told.numpy() != before).sum())
    return AssignmentRecord(objective / len(before), changed, time.perf_counter() - started)


def similarities(head: PrototypeHead) -> NDArray[np.float64]:
    """(c, k) cosines of class means and prototypes; a class without an image only leans to its own prototype.

    Raises:
        ValueError: one is not finite.
    """
    means, prototypes = head.class_means.double().cpu(), head.prototypes.double().cpu()
    table = (means @ prototypes.T).numpy()
    bad = np.flatnonzero(~np.isfinite(table).all(axis=1))
    if len(bad):
        raise ValueError(f"the mean of class {bad[0]} is not finite")
    unseen = np.flatnonzero(head.seen.cpu().numpy() == 0)
    table[unseen] = 0.0
    table[unseen, head.assignment.cpu().numpy()[unseen]] = UNSEEN_PULL
    return np.asarray(table, dtype=np.float64)


def best_assignment(
    similarity: NDArray[np.float64], before: NDArray[np.int64]
) -> tuple[NDArray[np.int64], float]:
    """Return the assignment of the largest sum, and that sum; the former one unless the gain is real.

    Args:
        similarity: (c, k) finite, c <= k.
        before: (c,) prototype of each class.
    """
    rows = np.arange(len(before))
    kept = float(similarity[rows, before].sum())
    # a bound that is met needs no solver: late in training every class is nearest to its own prototype
    if kept >= float(similarity.max(axis=1).sum()) - 1e-9:
        return before, kept
    _, columns = linear_sum_assignment(similarity, maximize=True)
    value = float(similarity[rows, columns].sum())
    if value - kept <= SMALLEST_GAIN * len(before):
        return before, kept
    return columns.astype(np.int64), value

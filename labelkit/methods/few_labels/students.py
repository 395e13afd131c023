"""The exchangeable part of methods for few labels: how a student learns from one batch.

A method owns networks, phases and labels; its objective says which views it needs and what one batch costs. So the same
growth of labels runs on Mean Teacher, MixMatch or FixMatch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from labelkit.data.batch import Batch
from labelkit.data.views.spec import ViewSpec
from labelkit.models.classifier_network import ClassifierNetwork
from labelkit.models.heads import LinearHeads
from labelkit.training.method import StepOutput, TrainState

StudentNetwork = ClassifierNetwork[LinearHeads]


@dataclass(frozen=True, slots=True)
class StudentNetworks:
    """The networks of a step, all in training mode.

    Attributes:
        student: the one that is trained.
        teacher: its average.
        master: the teacher's average once it is formed, else ``None``.
    """

    student: StudentNetwork
    teacher: StudentNetwork
    master: StudentNetwork | None = None


def _itself(count: float) -> float:
    return count


def _alone(value: Tensor) -> Tensor:
    return value


@dataclass(frozen=True, slots=True)
class StudentClock:
    """Where the run is, for weights that change.

    Attributes:
        step: updates of the run that are finished, from 0.
        step_in_phase: of these, in the running phase.
        phase: number of the running phase; labels grow between phases.
        fresh: the networks were new when the phase began.
        mean_count: a count of this process to its mean over processes.
        total: a small tensor of this process to its sum over processes.
    """

    step: int = 0
    step_in_phase: int = 0
    phase: int = 0
    fresh: bool = True
    mean_count: Callable[[float], float] = _itself
    total: Callable[[Tensor], Tensor] = _alone

    @classmethod
    def of(cls, state: TrainState | None, *, fresh: bool = True) -> StudentClock:
        """Read it off the trainer's state; ``None`` is a step outside of a run."""
        if state is None:
            return cls()

        def mean_count(count: float) -> float:
            # one exchange for both: the sum of the counts and the number of processes
            total, processes = state.combine(torch.tensor([count, 1.0], dtype=torch.float64), "sum").tolist()
            return float(total / processes)

        def total(value: Tensor) -> Tensor:
            return state.combine(value, "sum")

        return cls(state.step, state.step_in_phase, state.phase, fresh, mean_count, total)


class StudentObjective(nn.Module, ABC):
    """Turns a batch into a loss.

    In a batch, rows with a label (``labels >= 0``) are those of the labeled stream and come first; the others have -1.
    Where labels grow, discovered images are labeled rows like any other. Gradients are averaged over processes, so a
    mean over labeled rows, of which processes may have different numbers, is their sum over ``clock.mean_count``.

    Attributes:
        runs_teacher: a step runs the teacher, in training mode, so that it has running statistics of its own.
        runs_master: likewise the master, once it is formed.
    """

    runs_teacher: bool
    runs_master: bool

    @abstractmethod
    def views(self) -> tuple[ViewSpec, ...]:
        """What is made of each image of a batch."""

    @abstractmethod
    def forward(self, batch: Batch, networks: StudentNetworks, clock: StudentClock) -> StepOutput:
        """Return the loss, with gradients for the student alone, and what to log."""

    def __call__(self, batch: Batch, networks: StudentNetworks, clock: StudentClock) -> StepOutput:
        """Call ``forward``, with its types."""
        output: StepOutput = super().__call__(batch, networks, clock)
        return output

    def extra_state(self) -> dict[str, Any]:
        """JSON values beyond parameters and buffers that a resumed run needs."""
        return {}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Take back what ``extra_state`` gave."""


def logits_of(network: StudentNetwork, images: Tensor) -> tuple[Tensor, ...]:
    """Images (b, c, h, w) to the logits (b, k) of each head; the first one predicts."""
    return network.head.every(network.embed(images))


def labeled_and_others(batch: Batch) -> tuple[Tensor, Tensor]:
    """Where a batch has labels and where not, (m,) and (u,) int64; no GPU is waited for."""
    labeled = batch.on_host.labels >= 0
    return batch.places(labeled), batch.places(~labeled)

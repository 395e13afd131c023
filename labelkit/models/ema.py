"""Exponential moving averages (EMA) of a network's weights, and EMAs of an EMA."""

import copy
from typing import Any, Generic, Literal, Self, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T", bound=nn.Module)


def copy_for_ema(module: T) -> T:
    """Copy a module in float32, without gradients; a bfloat16 average would not follow changes of 0.1%."""
    return copy.deepcopy(module).float().requires_grad_(False)


@torch.no_grad()
def ema_update(target: nn.Module, source: nn.Module, decay: float, *, buffers: Literal["copy", "counters"]) -> None:
    r"""Update a target network by an exponential moving average: :math:`t \leftarrow m t + (1 - m) s`.

    The parameters move one step toward the source.

    Args:
        target: the module to update; its parameters are float32.
        source: a module with the same parameters and buffers.
        decay: m in [0, 1).
        buffers: ``copy`` copies all buffers from the source, for a target that never runs in training mode and thus has
            no statistics of its own (``google-research/mixmatch``); ``counters`` copies only integer buffers, so that a
            target that runs in training mode keeps its own running statistics (``CuriousAI/mean-teacher``).

    Raises:
        KeyError: the source lacks a parameter or buffer of the target.
    """
    parameters, sources = dict(target.named_parameters()), dict(source.named_parameters())
    # all at once, because a GPU then updates a hundred small tensors in a few launches
    if parameters:
        moved = [sources[name].to(value) for name, value in parameters.items()]
        torch._foreach_lerp_(list(parameters.values()), moved, 1 - decay)
    own, other = dict(target.named_buffers()), dict(source.named_buffers())
    taken = [name for name, value in own.items() if buffers == "copy" or not value.is_floating_point()]
    if taken:
        torch._foreach_copy_([own[name] for name in taken], [other[name] for name in taken])


class EMATeacher(nn.Module):
    r"""Exponential moving average of a network's weights: :math:`t \leftarrow m t + (1 - m) s`.

    The copy stays in evaluation mode, needs no gradients, and starts equal to the network.
    Buffers (running statistics, counters) are copied at each update, not averaged.

    Args:
        module: the network to follow; it is copied and not changed.
        decay: m in [0, 1); 0 makes the teacher equal to the student after each update.

    Attributes:
        module: the copy.
        decay: m; may be changed between updates.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        super().__init__()
        self.decay = decay
        self.module = copy.deepcopy(module).requires_grad_(False)
        self.train(False)

    def train(self, mode: bool = True) -> Self:
        """Keep the teacher in evaluation mode, whatever ``mode`` is."""
        del mode
        return super().train(False)

    @torch.no_grad()
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the teacher without gradients on the given arguments."""
        return self.module(*args, **kwargs)

    @torch.no_grad()
    def update(self, student: nn.Module) -> None:
        """Move the weights one EMA step toward ``student``; ``KeyError`` if it lacks parameters or buffers."""
        ema_update(self.module, student, self.decay, buffers="copy")


class EMAChain(nn.Module, Generic[T]):
    """A teacher, the EMA of a student's weights, and a master, the EMA of the teacher's weights (snowball).

    The master is updated only after it is formed. Both have the student's architecture and initial weights. A copy that
    runs in training mode keeps its own batch statistics; a copy that never runs takes those of the network that it
    follows.

    Args:
        student: the network to follow; it is copied and not changed.
        with_master: whether to allocate a master.

    Attributes:
        teacher: the average of the student.
        slow_master: the average of the teacher, or ``None`` without a master; meaningless before the
            master is created.
        has_master: () bool, whether the master is formed.
    """

    def __init__(self, student: T, *, with_master: bool) -> None:
        super().__init__()
        self.teacher: T = copy_for_ema(student)
        self.slow_master: T | None = copy_for_ema(student) if with_master else None
        self.has_master: Tensor = nn.Buffer(torch.zeros((), dtype=torch.bool))
        # copy of has_master on the CPU, to avoid waiting for a GPU at every step; None: to be read from the buffer
        self._is_formed: bool | None = False

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._is_formed = None

    @property
    def master(self) -> T | None:
        """Return the master network, or ``None`` before it is created."""
        if self._is_formed is None:
            self._is_formed = bool(self.has_master)
        return self.slow_master if self._is_formed else None

    @torch.no_grad()
    def create_master_network(self) -> None:
        """Create the master as a copy of the teacher."""
        assert self.slow_master is not None
        self.slow_master.load_state_dict(self.teacher.state_dict())
        self.has_master.fill_(True)
        self._is_formed = True

    def update(
        self,
        student: nn.Module,
        teacher_decay: float,
        master_decay: float = 0.0,
        *,
        teacher_in_training: bool,
        master_in_training: bool = False,
    ) -> None:
        """Move the teacher one EMA step toward the student and then, if it exists, the master toward the teacher.

        Args:
            student: the student after its step.
            teacher_decay: decay of the teacher, in [0, 1).
            master_decay: decay of the master, in [0, 1).
            teacher_in_training: whether the teacher ran in training mode in this step.
            master_in_training: the same for the master.
        """
        ema_update(self.teacher, student, teacher_decay, buffers="counters" if teacher_in_training else "copy")
        if self.master is not None:
            ema_update(self.master, self.teacher, master_decay, buffers="counters" if master_in_training else "copy")

"""A step of every method under CUDA's own rules of half precision, on tensors without numbers (``tests/fake_cuda.py``).

What CUDA refuses to mix fails here: a half matrix in a solve, half values written into float32 images, a device that
was forgotten. Gradients need a GPU; see ``examples/gpu_check.py``.
"""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from labelkit.methods.dense.objective import CoTAPObjective
from labelkit.training.method import TrainState
from tests.fake_cuda import fake_cuda
from tests.short_runs import EACH_LIGHT
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

NUMBERS = {torch.bool: np.bool_, torch.float32: np.float32, torch.int64: np.int64}


@pytest.fixture(autouse=True)
def _no_numbers_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What reads numbers on the CPU, of which there are none, gets ones."""
    monkeypatch.setattr(CoTAPObjective, "_check_finite", lambda self, projections, state: None)
    monkeypatch.setattr(TrainState, "mean_count", lambda self, count: count)
    monkeypatch.setattr(
        FakeTensor, "numpy", lambda self: np.ones(tuple(self.shape), dtype=NUMBERS[self.dtype]), raising=False
    )


def _move(module: nn.Module, fake: Callable[[Tensor], Tensor]) -> None:
    """Give all parts fake parameters and buffers; those in float64 stay on the CPU, where solvers want them."""
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                part._parameters[name] = nn.Parameter(fake(parameter), requires_grad=False)
        for name, buffer in part._buffers.items():
            if buffer is not None and buffer.dtype != torch.float64:
                part._buffers[name] = fake(buffer)


@pytest.mark.parametrize("name", EACH_LIGHT)
def test_a_step_in_half_precision_mixes_nothing_that_cuda_refuses(make: Callable[..., Any], name: str) -> None:
    # the mix of the kept classes has a length that no fake tensor knows
    setup = make(name, **({"fairness_weight": 0} if name == "freematch" else {}))
    setup.method.state = state = setup.trainer._state(log_now=False)
    for event in ("on_train_start", "on_phase_start", "on_epoch_start", "on_step_start"):
        getattr(setup.method, event)(state)
    bank = setup.bank = copy.copy(setup.bank)
    with fake_cuda(torch.float16) as cuda:

        def fake(tensor: Tensor) -> Tensor:
            return torch.empty(tensor.shape, dtype=tensor.dtype, device=cuda)

        _move(setup.method, fake)
        # as in a run: images lie on cuda:0, and the run was told cuda, which torch holds for another device
        bank.images, bank.device = fake(bank.images), torch.device(cuda.type)
        torch.set_autocast_enabled("cuda", False)  # views are made outside of it
        batch = next(setup.batches())
        torch.set_autocast_enabled("cuda", True)
        assert {tensor.device for tensor in (*batch.views, batch.labels, batch.sample_index)} == {cuda}
        loss = setup.method.training_step(batch).loss
        assert (loss.dtype, loss.device) == (torch.float32, cuda)

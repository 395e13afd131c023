"""A step of training asks a GPU at most once for a number, so that the GPU never runs out of work; see pretend_gpu."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from labelkit.methods.registry import METHODS

ROOT = Path(__file__).parents[2]


@cache
def waits(methods: tuple[str, ...], *options: str) -> dict[str, Any]:
    """What ``python -m tests.pretend_gpu`` found; in a process of its own, whose device is for good."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "waits.json"
        command = [sys.executable, "-m", "tests.pretend_gpu", *options, "--methods", *methods, "--out", str(out)]
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(out.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_step_of_every_method_waits_for_a_gpu_once_at_most(method: str) -> None:
    found = waits(tuple(METHODS))[method]
    assert found.get("code") == 0, found
    assert found["steps"] >= 4
    assert found["usual"] <= 1, found["worst"]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_fixed_order_of_additions(method: str) -> None:
    found = waits(tuple(METHODS), "--deterministic")[method]["unordered"]
    # torchvision replaces this one on CUDA
    assert set(found) == ({"_roi_align_backward"} if method == "cotap" else set())


PROBE = """
import numpy as np
import torch
from labelkit.data.batch import move_arrays_to_device
from tests.pretend_gpu import GPU, LEDGER, PretendGpu

def count(work):
    LEDGER.begin()
    with PretendGpu():
        work(torch.arange(4.0).to(GPU, non_blocking=True))
    return len(LEDGER.running)

expected = {
    "item": (1, lambda x: x.sum().item()),
    "bool": (1, lambda x: bool(x.any())),
    "list": (1, lambda x: x.tolist()),
    "cpu": (1, lambda x: x.cpu()),
    "mask": (1, lambda x: x[x > 1]),
    "nonzero": (1, lambda x: x.nonzero()),
    "bins": (1, lambda x: torch.bincount(x.long())),
    "pageable": (1, lambda x: torch.ones(4).to(GPU)),
    "inverse": (1, lambda x: torch.linalg.inv(torch.diag(x + 1))),
    "asynchronous": (0, lambda x: torch.ones(4).to(GPU, non_blocking=True)),
    "sum": (0, lambda x: (x * 2).sum()),
    "fill": (0, lambda x: x.masked_fill_(x > 1, 0)),
    "places": (0, lambda x: x[x.long()]),
}
found = {name: count(work) for name, (_, work) in expected.items()}
assert found == {name: number for name, (number, _) in expected.items()}, found
arrays = [np.arange(5, dtype=np.int64), np.zeros((0, 2), np.float32), np.array([True, False, True]),
          np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(8.0)[::2]]
LEDGER.begin()
before = LEDGER.copies
with PretendGpu():
    sent = move_arrays_to_device(arrays, GPU)
    assert LEDGER.copies - before == 1  # they travel together
    assert LEDGER.running == []
    for there, here in zip(sent, arrays, strict=True):
        assert there.device == GPU
        found = there.cpu().numpy()
        assert (found.shape, found.dtype) == (here.shape, here.dtype)
        assert (found == here).all()

try:
    with PretendGpu():
        torch.ones(4).to(GPU) + torch.ones(4)
except RuntimeError as error:
    assert "same device" in str(error)
else:
    raise AssertionError("devices were mixed")
"""


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_what_a_gpu_is_waited_for_is_counted() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

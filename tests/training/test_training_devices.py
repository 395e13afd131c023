import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from labelkit.errors import ResourceError
from labelkit.training import devices
from labelkit.training.devices import Runtime, explain_nondeterminism, generator_states, restore_generators, seed_step
from labelkit.training.saving import reproducibility_properties
from safetensors.torch import load, save

TWO_PROCESSES = """
import torch
from labelkit.training.devices import Runtime

runtime = Runtime(device="cpu")
rank, size = runtime.rank, runtime.world_size
assert size == 2
assert runtime.reduce_flags([False, rank == 1, True]) == [False, True, True]
assert runtime.mean(torch.tensor(float(rank))).item() == 0.5
table = torch.arange(30.0).reshape(10, 3)
for positions in ([[0, 1, 2, 3, 9, 8, 7], [6, 5, 4]], [list(range(10)), []], [[], list(range(10))]):
    own = torch.tensor(positions[rank], dtype=torch.int64)
    values = table[own] if len(own) else torch.zeros((0, 0))  # a process without rows does not know their width
    assert torch.equal(runtime.gather_rows(values, own, 10), table), positions
runtime.close()
"""

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _keep_generators() -> Any:
    states = generator_states(CPU)
    yield
    restore_generators(states, CPU)


def test_the_global_generator_goes_on_where_it_was() -> None:
    states = load(save(generator_states(CPU)))  # as a checkpoint stores them
    expected = torch.rand(3)
    torch.rand(3)
    restore_generators(states, CPU)
    assert torch.equal(torch.rand(3), expected)


def test_the_generators_of_a_step_depend_on_seed_step_and_rank_alone() -> None:
    draws = {}
    for key in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)):
        torch.rand(random.randrange(1, 9))
        seed_step(*key)
        draws[key] = (torch.rand(()).item(), np.random.random(), random.random())
    assert len({number for drawn in draws.values() for number in drawn}) == 12
    seed_step(0, 1, 0)
    assert (torch.rand(()).item(), np.random.random(), random.random()) == draws[0, 1, 0]


def test_one_process_may_use_one_precision_after_another() -> None:
    product = {}
    for precision in ("float32", "bf16", "float32"):
        runtime = Runtime(device="cpu", precision=precision)
        with runtime.autocast():
            product[precision] = torch.ones(2, 2) @ torch.ones(2, 2)
    assert product["float32"].dtype == torch.float32
    assert product["bf16"].dtype == torch.bfloat16


def test_rows_are_put_where_they_belong() -> None:
    runtime = Runtime(device="cpu")
    table = runtime.gather_rows(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([2, 0, 1]), 3)
    assert table.tolist() == [[2.0], [3.0], [1.0]]


def test_a_long_gradient_is_cut_to_the_limit() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    runtime = Runtime(device="cpu")
    runtime.backward((parameter * torch.tensor([3.0, 4.0])).sum())
    runtime.clip_and_step(optimizer, [parameter], 0.5)
    assert parameter.tolist() == pytest.approx([-0.3, -0.4], rel=1e-4)
    assert parameter.grad is None


@pytest.mark.slow
def test_two_processes_agree(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TWO_PROCESSES)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*launcher, str(script)], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr


def test_a_run_on_the_cpu_leaves_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: object) -> None:
        raise AssertionError("a CUDA context was opened")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name in ("get_rng_state", "set_rng_state", "_lazy_init"):
        monkeypatch.setattr(torch.cuda, name, opened)
    states = generator_states(CPU)
    assert "cuda" not in states
    restore_generators({**states, "cuda": torch.zeros(16, dtype=torch.uint8)}, CPU)  # of a run on a GPU


def test_processes_wait_for_hours_for_the_one_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "29999")

    def join(**options: Any) -> None:
        asked.update(options)
        raise InterruptedError

    monkeypatch.setattr(torch.distributed, "init_process_group", join)
    AcceleratorState._reset_state(reset_partial_state=True)
    with pytest.raises(InterruptedError):
        Runtime(device="cpu")
    AcceleratorState._reset_state(reset_partial_state=True)
    assert asked["timeout"] >= timedelta(hours=12)


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Runtime]]:
    """Return a function: options to a runtime that takes a GPU for being there."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    joined = SimpleNamespace(device=torch.device("cuda", 0), process_index=0, num_processes=1)
    monkeypatch.setattr(devices, "Accelerator", lambda **options: joined)
    yield lambda device="cuda", **options: Runtime(device=device, **options)
    torch.use_deterministic_algorithms(False)


def test_single_precision_on_a_gpu_is_not_tf32(on_cuda: Callable[..., Runtime]) -> None:
    on_cuda()
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32


def test_processes_do_not_share_one_gpu(on_cuda: Callable[..., Runtime], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        ResourceError, match="--device cuda:1: selects one GPU, but each of the 2 processes requires its own"
    ):
        on_cuda("cuda:1")


def test_a_gpu_is_told_to_do_the_same_twice(on_cuda: Callable[..., Runtime]) -> None:
    on_cuda()
    assert not torch.are_deterministic_algorithms_enabled()
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    on_cuda(deterministic=True)
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.benchmark
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    on_cuda()  # another run of the same process
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_resume_on_a_gpu_compares_what_decides_about_its_bits(
    on_cuda: Callable[..., Runtime], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU of {device}")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    runtime = on_cuda("cuda:1", deterministic=True)
    facts = reproducibility_properties(runtime)
    assert (facts["gpu"], facts["cuda"], facts["deterministic"]) == ("GPU of cuda:1", torch.version.cuda, True)
    assert facts["cudnn"] == 91002


def test_an_operation_that_differs_each_time_is_named(on_cuda: Callable[..., Runtime]) -> None:
    on_cuda(deterministic=True)
    with pytest.raises(ResourceError, match="--deterministic: torch has no deterministic GPU version of put_"):
        with explain_nondeterminism():
            torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2))
    with pytest.raises(RuntimeError, match="shape"), explain_nondeterminism():
        torch.zeros(3) @ torch.zeros(4, 4)


@pytest.mark.parametrize(("precision", "last"), [("float32", False), ("bf16", True), ("fp16", True)])
def test_half_precision_on_a_gpu_has_channels_last(
    on_cuda: Callable[..., Runtime], monkeypatch: pytest.MonkeyPatch, precision: str, last: bool
) -> None:
    module = torch.nn.Conv2d(3, 4, 3)
    move = torch.nn.Module.to
    monkeypatch.setattr(
        torch.nn.Module, "to", lambda self, *where, **how: self if where else move(self, **how)
    )  # there is no GPU to move it to
    prepared = on_cuda(precision=precision).prepare(module)
    assert prepared.weight.is_contiguous(memory_format=torch.channels_last) == last
    assert on_cuda(precision="float32").prepare(torch.nn.Conv2d(3, 4, 3)).weight.is_contiguous()

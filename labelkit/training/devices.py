"""Device, processes and precision of a run, managed by accelerate (imported only here)."""

import ctypes
import os
import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache, lru_cache
from typing import Any, Literal, TypeVar

import numpy as np
import psutil
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import InitProcessGroupKwargs, gather_object
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from labelkit.algorithms.precision import without_autocast
from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import ResourceError
from labelkit.models.backbones.registry import Backbone
from labelkit.training.compute_device import resolve_device
from labelkit.training.distributed import LONGEST_WAIT, count_processes

T = TypeVar("T", bound=nn.Module)
Precision = Literal["float32", "bf16", "fp16"]


class Runtime:
    """Device, precision and communication of one process of a run.

    Args:
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:NUMBER`` or ``mps``.
        precision: compute type of the network; ``fp16`` needs a GPU.
        threads: number of torch's CPU threads; ``None`` keeps torch's setting.
        deterministic: whether to use only bit-reproducible algorithms on a GPU; on a CPU, all are.

    Raises:
        ResourceError: the device is not available, or does not support the options.
    """

    def __init__(
        self,
        *,
        device: str = "auto",
        precision: Precision = "float32",
        threads: int | None = None,
        deterministic: bool = False,
    ) -> None:
        chosen = resolve_device(device)
        use_cpu = chosen.type == "cpu"
        if chosen.index is not None and count_processes() > 1:
            problem = f"selects one GPU, but each of the {count_processes()} processes requires its own"
            raise ResourceError(f"--device {device}", problem, "Use --device cuda.")
        if precision == "fp16" and use_cpu:
            raise ResourceError("--precision fp16", "requires a GPU", "On a CPU, use --precision bf16 or float32.")
        if use_cpu:
            keep_freed_memory()
        else:
            _set_up_gpu(chosen, deterministic=deterministic)
        if threads is not None:
            torch.set_num_threads(threads)
        mixed = "no" if precision == "float32" else precision
        if count_processes() == 1:
            # accelerate fixes device and precision for the whole process, but a notebook may change them
            AcceleratorState._reset_state(reset_partial_state=True)
        waits = InitProcessGroupKwargs(timeout=LONGEST_WAIT)
        self._accelerator = Accelerator(cpu=use_cpu, mixed_precision=mixed, kwargs_handlers=[waits])
        self.device: torch.device = self._accelerator.device if chosen.index is None else chosen
        self.compiles = False
        self._is_half = precision != "float32"
        self.rank: int = self._accelerator.process_index
        self.world_size: int = self._accelerator.num_processes

    @property
    def is_main(self) -> bool:
        """Return whether this process is the main one, which writes files."""
        return self.rank == 0

    def synchronize(self) -> None:
        """Wait until the device has finished all queued work, for time measurements."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def peak_memory(self) -> int:
        """Return the peak memory use so far in bytes: of the GPU, if one is used, or of this process."""
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device))
        try:
            import resource
        except ImportError:  # Windows
            memory = psutil.Process().memory_info()
            return int(getattr(memory, "peak_wset", memory.rss))
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    def barrier(self) -> None:
        """Wait until all processes have reached this point."""
        self._accelerator.wait_for_everyone()

    @property
    def has_slow_communication(self) -> bool:
        """Return whether communication between processes is slow, because it must wait for GPUs."""
        return self.world_size > 1 and self.device.type == "cuda"

    def reduce_flags(self, flags: Sequence[bool]) -> list[bool]:
        """Return for each flag whether any process has set it, using a single exchange."""
        if self.world_size == 1:
            return list(flags)
        counts = torch.tensor([float(flag) for flag in flags], device=self.device)
        return [count > 0 for count in self.combine(counts, "sum").tolist()]

    def mean(self, value: Tensor) -> Tensor:
        """Return the mean of a tensor over all processes."""
        return value if self.world_size == 1 else self.combine(value.detach().float(), "sum") / self.world_size

    def combine(self, value: Tensor, operation: Literal["sum", "max"]) -> Tensor:
        """Reduce a tensor over processes by sum or maximum, with bit-identical results on every process.

        This is ``algorithms.sinkhorn.Reduce``, the only communication of solvers with rows distributed over processes.
        """
        if self.world_size == 1:
            return value
        combined = value.detach().to(self.device, copy=True).contiguous()
        kinds = {"sum": torch.distributed.ReduceOp.SUM, "max": torch.distributed.ReduceOp.MAX}
        torch.distributed.all_reduce(combined, op=kinds[operation])
        return combined.to(value.device)

    def gather_rows(self, values: Tensor, positions: Tensor, total: int) -> Tensor:
        """Gather the rows computed by each process into one table.

        Args:
            values: (m, ...) rows of this process; m may differ between processes.
            positions: (m,) int64, positions of these rows in the table, in [0, total).
            total: number of rows of the table.

        Returns:
            (total, ...) on the CPU, equal on every process.
        """
        parts = [(values.cpu(), positions.cpu())]
        if self.world_size > 1:
            parts = gather_object(parts)
        # whole batches are distributed, so a process may have no rows and thus not know their width
        table = torch.zeros((total, *max(rows.shape for rows, _ in parts)[1:]), dtype=values.dtype)
        for rows, places in parts:
            if len(rows):
                table[places] = rows
        return table

    def prepare(self, module: T) -> T:
        """Move a module to the device and, in a process group, wrap it so that gradients are averaged."""
        module = module.to(self.device)
        if self._is_half and self.device.type in ("cuda", "cpu"):
            # half-precision convolutions need channels-last memory; other layouts would be copied each time
            module = module.to(memory_format=torch.channels_last)
        if self.world_size == 1:
            return module
        # torch's own attribute for tensors that need not be synchronized at every step
        module._ddp_params_and_buffers_to_ignore = list(getattr(module, "equal_buffers", ()))  # type: ignore[assignment] # not annotated there
        return self._accelerator.prepare_model(module)

    def compile(self, module: nn.Module) -> None:
        """Arrange for the backbones in a module to be compiled on their first forward pass."""
        # variants: student, teacher and master; in training, in evaluation and with batch statistics
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
        for part in module.modules():
            if isinstance(part, Backbone):
                part.compile()
        self.compiles = True

    def share_statistics(self, module: nn.Module) -> None:
        """Copy the main process's running statistics of batch normalization to every process, in place.

        Each process updates its own in a step; checkpoints store those of the main process.
        """
        if self.world_size == 1:
            return
        for name, value in module.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                torch.distributed.broadcast(value, src=0)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context manager that runs the network in the chosen precision."""
        return self._accelerator.autocast()

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of a loss, with loss scaling if the precision requires it."""
        scaler = self._accelerator.scaler
        (loss if scaler is None else scaler.scale(loss)).backward()

    def clip_and_step(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: list[nn.Parameter],
        limit: float | None,
        *,
        per_parameter: bool = False,
    ) -> None:
        """Clip the gradients, jointly or ``per_parameter``, step the optimizer, and clear the gradients."""
        scaler = self._accelerator.scaler
        if scaler is not None:
            scaler.unscale_(optimizer)
        if limit is not None:
            for group in [[one] for one in parameters] if per_parameter else [parameters]:
                torch.nn.utils.clip_grad_norm_(group, limit)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad(set_to_none=True)

    def scaler_state(self) -> dict[str, Any]:
        """Return the state of the loss scaler, or an empty dictionary without one."""
        return dict(self._accelerator.scaler.state_dict()) if self._accelerator.scaler is not None else {}

    def load_scaler_state(self, state: dict[str, Any]) -> None:
        """Restore the state returned by ``scaler_state``."""
        if self._accelerator.scaler is not None and state:
            self._accelerator.scaler.load_state_dict(state)

    def close(self) -> None:
        """Leave the process group."""
        if self.world_size > 1:
            self.barrier()
            self._accelerator.end_training()
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()


@cache
def keep_freed_memory() -> None:
    """Configure the C library to keep large freed memory blocks instead of returning them to the system.

    A forward pass allocates and frees blocks of many MiB at every layer. By default, glibc maps each block anew and the
    system zeroes it, which takes about as long as the network itself. Other C libraries and systems are not affected.
    """
    with suppress(OSError, AttributeError, TypeError):  # another C library, or system
        mallopt = ctypes.CDLL(None).mallopt
        # <malloc.h>: M_MMAP_MAX (mapped blocks), then M_TRIM_THRESHOLD (free memory above which some is returned)
        mallopt(-4, 0)
        mallopt(-1, 2**31 - 1)


def _set_up_gpu(device: torch.device, *, deterministic: bool) -> None:
    """Configure GPU computation in this process; ``ResourceError``: deterministic algorithms are not available."""
    if deterministic and device.type != "cuda":
        raise ResourceError(
            "--deterministic", f"torch has no deterministic algorithms for {device.type}", "Use --device cpu."
        )
    # by default, torch computes convolutions in TF32, which has ten bits, even in views and under float32
    torch.backends.cudnn.allow_tf32 = False
    if device.type != "cuda":
        return
    if device.index is not None:
        torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = deterministic
    torch.use_deterministic_algorithms(deterministic)
    # this would only fill uninitialized memory, at a cost
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined] # a property of the module
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts


@contextmanager
def explain_nondeterminism() -> Iterator[None]:
    """Context manager in which a nondeterministic operation raises an error that suggests a remedy.

    In deterministic mode, `DeterministicResize` gives bicubic resizing a deterministic form.

    Raises:
        ResourceError: torch refused an operation.
    """
    try:
        with DeterministicResize() if torch.are_deterministic_algorithms_enabled() else nullcontext():
            yield
    except RuntimeError as error:
        operation = re.match(r"(\w+) does not have a deterministic implementation", str(error))
        if operation is None:
            raise
        raise ResourceError(
            "--deterministic",
            f"torch has no deterministic GPU version of {operation[1]}",
            "Remove --deterministic (results then differ slightly between runs), change the options that need the "
            "operation, or use --device cpu.",
        ) from error


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed the global generators of torch, NumPy and Python for one training step.

    NumPy and Python are seeded for third-party code.
    """
    generator = keyed_generator(seed, "step", step, rank)
    torch.manual_seed(int(generator.integers(2**63 - 1)))
    np.random.seed(int(generator.integers(2**32)))
    random.seed(int(generator.integers(2**63 - 1)))


def generator_states(device: torch.device) -> dict[str, Tensor]:
    """Return the states of torch's global generators, which hooks after the last step of an epoch may use."""
    states = {"torch": torch.get_rng_state()}
    if device.type == "cuda":  # in a CPU run, the query would allocate GPU memory
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore_generators(states: dict[str, Tensor], device: torch.device) -> None:
    """Restore the states returned by ``generator_states``, possibly on another device."""
    torch.set_rng_state(states["torch"])
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)


class DeterministicResize(TorchFunctionMode):
    """Context manager that replaces differentiable bicubic resizing with deterministic matrix products.

    Results differ from torch's own only by rounding; autocast is disabled for the products.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if func is F.interpolate and named.get("mode") == "bicubic" and named.get("antialias"):
            images = args[0] if args else named["input"]
            size = named.get("size", args[1] if len(args) > 1 else None)
            has_gradient = torch.is_grad_enabled() and images.requires_grad
            if size is not None and not named.get("align_corners") and has_gradient:
                height, width = (size, size) if isinstance(size, int) else size
                return resize_bicubic(images, height, width)
        return func(*args, **named)


def resize_bicubic(images: Tensor, height: int, width: int) -> Tensor:
    """Resize images (b, c, h, w) by matrix products, as ``interpolate(mode="bicubic", antialias=True)`` does.

    The result is (b, c, height, width), float32 or float64 like the images.
    """
    rows, columns = (
        _weights(old, new, images.device, images.dtype)
        for old, new in zip(images.shape[-2:], (height, width), strict=True)
    )
    with without_autocast(images):
        return rows @ images @ columns.T


@lru_cache(maxsize=64)
def _weights(old: int, new: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return resizing weights (new, old); cached, since copying them to a GPU in each step would stall it."""
    identity = torch.eye(old)[None, None]
    return F.interpolate(identity, size=(new, old), mode="bicubic", antialias=True)[0, 0].to(device, dtype)

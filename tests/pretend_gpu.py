"""A GPU that is not there: tensors on a device of their own, whose numbers are computed on the CPU behind it.

    python -m tests.pretend_gpu --methods dl2pa cotap --out waits.json

Trains each method in short runs through the command line, and lists for each training step what a real GPU would have
to be waited for: numbers that are read (``.item()``, ``bool()``, ``.tolist()``), copies either way that are not
asynchronous, positions of a mask, bins. What mixes devices fails here as it does there. Steps that are logged, and
ends of epochs, are left out. Also lists operations that CUDA carries out differently each time.

The device is torch's own stand-in for those of other makers (``privateuse1``), set up for this process for good.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
import torch.utils.backend_registration
from labelkit.cli.main import main as labelkit
from labelkit.methods.registry import METHODS
from labelkit.training import devices, trainer
from tests.short_runs import short_run
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

torch.utils.backend_registration._setup_privateuseone_for_python_backend("pretend")
GPU = torch.device("pretend", 0)
aten = torch.ops.aten

#: Operations that a host waits for, whatever they are given.
_WAITS = {
    "_linalg_check_errors", "_local_scalar_dense", "bincount", "equal", "masked_select", "nonzero",
    "unique_consecutive", "unique_dim", "_unique2", "linalg_eigh", "_linalg_eigh", "_linalg_svd",
    "linalg_lstsq", "histc",
}  # fmt: skip
#: Operations whose order of additions differs from time to time (``torch.use_deterministic_algorithms``).
_UNORDERED = {
    "_adaptive_avg_pool2d_backward", "adaptive_max_pool2d_backward", "avg_pool3d_backward", "grid_sampler_2d_backward",
    "max_pool3d_with_indices_backward", "reflection_pad1d_backward", "reflection_pad2d_backward",
    "replication_pad2d_backward", "_roi_align_backward", "roi_align_backward", "upsample_bicubic2d_backward",
    "upsample_bilinear2d_backward", "upsample_linear1d_backward", "upsample_trilinear3d_backward",
    "_upsample_bicubic2d_aa_backward", "_upsample_bilinear2d_aa_backward",
    "kthvalue", "put_", "histc", "_ctc_loss", "nll_loss2d_forward", "nll_loss2d_backward", "cumsum",
}  # fmt: skip


class Held(Tensor):
    """A tensor on the device."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Held:
        held: Held = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined] # not annotated there
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=GPU,
        )  # fmt: skip
        held.inner = inner
        return held

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return carry_out(func, args, kwargs or {})

    # torch makes these without asking a subclass
    def tolist(self) -> Any:
        return self.detach().cpu().tolist()

    def new_tensor(self, data: Any, *, dtype: torch.dtype | None = None, **others: Any) -> Tensor:
        return torch.tensor(data, dtype=self.dtype if dtype is None else dtype, **others).to(self.device)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Held({self.inner})"


class Ledger:
    """What was waited for in each step: operation and line of labelkit."""

    def __init__(self) -> None:
        self.steps: list[list[str]] = []
        self.running: list[str] | None = None
        self.unordered: Counter[str] = Counter()
        self.copies = 0

    def note(self, what: str) -> None:
        if self.running is not None:
            self.running.append(f"{what} at {_place()}")

    def begin(self) -> None:
        self.end(whole=True)
        self.running = []

    def end(self, *, whole: bool) -> None:
        if self.running is not None and whole:
            self.steps.append(self.running)
        self.running = None


LEDGER = Ledger()


def _place() -> str:
    frames = [frame for frame in traceback.extract_stack() if "/labelkit/" in frame.filename]
    if not frames:
        return "?"
    return f"{frames[-1].filename.rpartition('/labelkit/')[2]}:{frames[-1].lineno}"


def carry_out(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Do an operation on the CPU, and give its results to the device that they belong to."""
    given = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
    on_gpu = [value for value in given if isinstance(value, Held)]
    name = func.overloadpacket.__name__
    target = kwargs.get("device")
    is_held = bool(on_gpu) if target is None else torch.device(target).type == GPU.type
    _check_devices(name, func, given, on_gpu)
    _account(name, func, args, kwargs, is_held, bool(on_gpu))
    wrappers = {id(value.inner): value for value in on_gpu}
    plain = [tree_map(lambda value: value.inner if isinstance(value, Held) else value, part) for part in (args, kwargs)]
    if target is not None:
        plain[1]["device"] = torch.device("cpu")
    plain[1].pop("pin_memory", None)
    result = func(*plain[0], **plain[1])
    if name == "_to_copy" and target is not None and result is plain[0][0]:
        result = result.clone()

    def hold(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        known = wrappers.get(id(value))
        return known if known is not None else Held(value) if is_held else value

    if name in ("copy_", "set_") and args and isinstance(args[0], Tensor):
        return args[0]
    return tree_map(hold, result)


def _check_devices(name: str, func: Any, given: Sequence[Tensor], on_gpu: Sequence[Tensor]) -> None:
    others = [value for value in given if not isinstance(value, Held) and value.ndim > 0]
    allowed = name in ("_to_copy", "copy_", "index", "index_put", "index_put_", "_index_put_impl_", "_foreach_copy_")
    if on_gpu and others and not allowed:
        shapes = [tuple(value.shape) for value in others]
        raise RuntimeError(f"{func}: expected all tensors on the same device; on the CPU: {shapes}")


def _account(name: str, func: Any, args: Sequence[Any], kwargs: dict[str, Any], is_held: bool, has_gpu: bool) -> None:
    if not (is_held or has_gpu):
        return
    if name in _UNORDERED and not (name == "cumsum" and not args[0].is_floating_point()):
        LEDGER.unordered[name] += LEDGER.running is not None
    if name in _WAITS:
        LEDGER.note(name)
    if name in ("_to_copy", "copy_"):
        source = args[0] if name == "_to_copy" else args[1]
        comes, goes = isinstance(source, Held), is_held if name == "_to_copy" else isinstance(args[0], Held)
        is_async = bool(kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2]))
        if comes != goes:
            LEDGER.copies += LEDGER.running is not None
            if comes or not is_async:
                LEDGER.note("copy to the CPU" if comes else "copy to the GPU that waits")
    if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
        places = [value for value in args[1] if isinstance(value, Tensor)]
        masks = any(value.dtype in (torch.bool, torch.uint8) for value in places)
        fills = name != "index" and args[2].numel() == 1  # torch makes it masked_fill
        if masks and not fills:
            LEDGER.note(f"{name} with a mask")
        if any(not isinstance(value, Held) for value in places):
            LEDGER.note(f"{name} with places on the CPU")
    if name == "repeat_interleave" and not isinstance(args[1] if len(args) > 1 else 0, int):
        if kwargs.get("output_size") is None:
            LEDGER.note(name)


class PretendGpu(TorchDispatchMode):
    """Inside, tensors can be made on the device."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return carry_out(func, args, kwargs or {})


def install() -> None:
    """Let every run of this process compute on the device, and count its steps."""
    joined = SimpleNamespace(
        device=GPU, process_index=0, num_processes=1, scaler=None, autocast=nullcontext, wait_for_everyone=lambda: None
    )
    devices.resolve_device = lambda device: GPU  # type: ignore[assignment]
    devices.Accelerator = lambda **options: joined  # type: ignore[assignment,misc]
    seed_step, finish, log = trainer.seed_step, trainer.Trainer._finish_epoch, trainer.Trainer._log_step

    def begin(seed: int, step: int, rank: int) -> None:
        seed_step(seed, step, rank)
        LEDGER.begin()

    def around(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            LEDGER.end(whole=function is finish)
            return function(*args, **options)

        return call

    trainer.seed_step = begin  # type: ignore[assignment]
    trainer.Trainer._finish_epoch = around(finish)  # type: ignore[method-assign]
    trainer.Trainer._log_step = around(log)  # type: ignore[method-assign]


def waits_of(method: str, words: Sequence[str] = ()) -> dict[str, Any]:
    """Train a method for a short time; what its steps wait for, by operation and line."""
    LEDGER.__init__()  # type: ignore[misc] # begin anew
    with TemporaryDirectory() as folder, PretendGpu(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        line = f"train {method} --dataset digits --preset digits {short_run(method)} --log-every-steps 1000000"
        extra = [] if "--out" in words else ["--out", str(Path(folder) / "run")]
        code = labelkit([*line.split(), "--max-per-class", "16", *extra, "-q", *words])
    LEDGER.end(whole=False)
    worst = max(LEDGER.steps, key=len, default=[])
    return {
        "code": code,
        "steps": len(LEDGER.steps),
        "usual": sorted(map(len, LEDGER.steps))[len(LEDGER.steps) // 2] if LEDGER.steps else 0,
        "most": len(worst),
        "worst": dict(Counter(worst)),
        "unordered": dict(LEDGER.unordered),
        "copies": LEDGER.copies,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Print what each method waits for, and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--deterministic", action="store_true", help="ask torch for fixed orders, and warn")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    install()
    torch.use_deterministic_algorithms(options.deterministic, warn_only=True)
    found = {}
    for method in options.methods:
        try:
            found[method] = waits_of(method)
        except Exception as error:
            found[method] = {"error": "".join(traceback.format_exception(error)[-12:])}
        print(f"{method}: {json.dumps(found[method], indent=1)}", flush=True)  # noqa: T201 - a table for people
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Run as a script in a child process: turn a torch checkpoint into safetensors, tensors only.

    python pickle_reader.py CHECKPOINT OUT.safetensors

Prints one JSON object: {} when OUT holds every tensor, else {"refused": [global names]} or
{"error": text}. Imports nothing of labelkit but what confines it, so that hostile bytes meet an almost empty
process with bounded memory. Called by `labelkit.models.weights`.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from labelkit.sandbox import confine

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
MAX_TENSORS = 50_000
MAX_DEPTH = 8


def limit_memory(file_size: int) -> None:
    """Allow what torch has mapped by now, plus 512 MiB, plus twice the file."""
    try:
        import resource

        mapped = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (ImportError, OSError, ValueError):  # no such limit on this system
        return
    limit = mapped + 512 * 2**20 + 2 * file_size
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def flatten(value: object, name: str, depth: int, out: dict[str, torch.Tensor]) -> None:
    """Collect the tensors of nested dictionaries under dotted names; other values are left out."""
    if isinstance(value, torch.Tensor):
        out[name] = value
    elif isinstance(value, dict) and depth < MAX_DEPTH and all(isinstance(key, str) for key in value):
        for key, item in value.items():
            flatten(item, f"{name}.{key}" if name else key, depth + 1, out)
    if len(out) > MAX_TENSORS:
        raise ValueError(f"more than {MAX_TENSORS} tensors")


def check(tensors: dict[str, torch.Tensor], file_size: int) -> None:
    """Refuse tensors that are not plain, and sizes that the file cannot back."""
    total = 0
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.dtype not in DTYPES:
            raise ValueError(f"{name}: not a plain tensor ({tensor.dtype}, {tensor.layout}, {tensor.device.type})")
        size = tensor.numel() * tensor.element_size()
        if size > tensor.untyped_storage().nbytes():
            raise ValueError(f"{name}: {size} bytes claimed, {tensor.untyped_storage().nbytes()} stored")
        total += size
    # Tied weights are written once per name; more repetition than this is no honest network.
    if total > 4 * file_size + 16 * 2**20:
        raise ValueError(f"{total} bytes of tensors in a file of {file_size} bytes")


def write(tensors: dict[str, torch.Tensor], out: Path) -> None:
    """Write safetensors one tensor at a time, so that memory stays near the size of the file."""
    header: dict[str, Any] = {}
    offset = 0
    for name, tensor in tensors.items():
        stop = offset + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, stop]}
        offset = stop
    text = json.dumps(header).encode()
    with out.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
            file.write(plain.reshape(-1).view(torch.uint8).numpy().data)


def forbidden_names(path: Path, error: Exception) -> list[str]:
    """List the functions and classes that the file wants called, as far as they can be told."""
    try:
        found = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:  # only archives can be searched; any failure leaves the message
        found = []
    return sorted({*found, *re.findall(r"GLOBAL (\S+)", str(error))})


def explain(error: Exception) -> str:
    """Return one line; torch's own advice on refused pickles is to trust them, and not passed on."""
    if isinstance(error, pickle.UnpicklingError):
        return "its pickle is damaged or builds more than tensors"
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}".removesuffix(": ")


def convert(path: Path, out: Path) -> dict[str, Any]:
    """Write the tensors of ``path`` to ``out`` and return what to print."""
    # Any failure here is the file's: it must reach the caller as text, never as a crash.
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Spelled out: an environment variable can turn the default off.
            # Released checkpoints of DINO and iBOT keep the options of their command line: a bag of values, left out.
            with torch.serialization.safe_globals([argparse.Namespace]):
                value = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:
        names = forbidden_names(path, error)
        return {"refused": names} if names else {"error": explain(error)}
    try:
        tensors: dict[str, torch.Tensor] = {}
        flatten(value, "", 0, tensors)
        check(tensors, path.stat().st_size)
        write(tensors, out)
    except OSError as error:
        return {"errno": error.errno}  # of the disk that is written to, not of the file
    except Exception as error:
        return {"error": str(error) or type(error).__name__}
    return {}


if __name__ == "__main__":
    source = Path(sys.argv[1])
    limit_memory(source.stat().st_size)
    confine(read=[source], write=[Path(sys.argv[2]).parent])
    sys.stdout.write(json.dumps(convert(source, Path(sys.argv[2]))))

"""Weights files made to run code, to fill the memory, or to be taken for something else."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import tarfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch


class Calls:
    """Pickles as a call of a function, by its dotted name, with arguments."""

    def __init__(self, name: str, *arguments: object) -> None:
        self.name, self.arguments = name, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return _resolve(self.name), self.arguments


class Sets(dict):  # type: ignore[type-arg]  # a plain dictionary with state
    """A dictionary whose state is set by a call."""

    def __init__(self, inner: object) -> None:
        super().__init__(weight=torch.ones(2))
        self.inner = inner

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (), self.inner, None, iter({"weight": torch.ones(2)}.items())


def _resolve(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(__import__(module, fromlist=[attribute]), attribute)


def payloads(canary: Path) -> dict[str, object]:
    """Return objects that make the file ``canary`` when they are unpickled without care."""
    touch = f"touch {canary}"
    code = f"open({str(canary)!r}, 'w')"
    call = Calls("os.system", touch)
    return {
        "os.system": call,
        "posix.system": Calls("posix.system", touch),
        "subprocess": Calls("subprocess.getoutput", touch),
        "Popen": Calls("subprocess.Popen", ["touch", str(canary)]),
        "eval": Calls("builtins.eval", code),
        "exec": Calls("builtins.exec", code),
        "open": Calls("builtins.open", str(canary), "w"),
        "mkdir": Calls("os.mkdir", str(canary)),
        "runpy": Calls("runpy.run_path", str(canary.with_name("script.py"))),
        "torch.load": Calls("torch.load", str(canary.with_name("inner.pt"))),
        "nested": {"state_dict": {"weight": torch.ones(2), "deep": [(1, {"x": OrderedDict(y=call)})]}},
        "beside weights": {"weight": torch.ones(2), "bias": torch.ones(2), "hook": call},
        "as state": Sets(call),
        "as key": {(1, call): torch.ones(2)},
    }


def _zip(entries: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return stream.getvalue()


def _saved(value: object, **options: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream, **options)
    return stream.getvalue()


def _legacy(value: object) -> bytes:
    return _saved(value, _use_new_zipfile_serialization=False)


def _archive(value: object, name: str) -> bytes:
    """Put a pickle into an archive under a name of our choice."""
    return _zip({name: pickle.dumps(value, 2), "archive/version": b"3\n", "archive/byteorder": b"little"})


def _tar(value: object) -> bytes:
    """Write the oldest format of torch: a tar of pickles."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name in ("storages", "tensors", "pickle"):
            data = pickle.dumps(value if name == "pickle" else 0, 2)
            if name != "pickle":
                data += pickle.dumps(value, 2)
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


WRAPPERS: dict[str, Callable[[object], bytes]] = {
    "torch.save": _saved,
    "torch.save, before archives": _legacy,
    "bare pickle": lambda value: pickle.dumps(value, 2),
    "bare pickle of protocol 0": lambda value: pickle.dumps(value, 0),
    "archive": lambda value: _archive(value, "archive/data.pkl"),
    "archive, packed": lambda value: _zip({"archive/data.pkl": pickle.dumps(value, 2)}, zipfile.ZIP_DEFLATED),
    "archive, two folders": lambda value: _zip(
        {"a/data.pkl": pickle.dumps({"w": 1}, 2), "b/data.pkl": pickle.dumps(value, 2), "a/version": b"3\n"}
    ),
    "archive, outside": lambda value: _archive(value, "../../data.pkl"),
    "archive, as a program": lambda value: _zip(
        {
            "archive/data.pkl": pickle.dumps({}, 2),
            "archive/constants.pkl": pickle.dumps(value, 2),
            "archive/version": b"3\n",
        }
    ),
    "tar": _tar,
    "archive behind other bytes": lambda value: b"#!/bin/sh\n" + _saved(value),
}


def _opcodes(canary: Path) -> Iterator[tuple[str, bytes]]:
    """Yield pickles that no pickler writes."""
    touch = str(canary).encode()
    yield "inst", b"(S'touch " + touch + b"'\nios\nsystem\n."
    yield "obj", b"(cos\nsystem\nS'touch " + touch + b"'\no."
    yield (
        "stack global",
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c" + bytes([6 + len(touch)]) + b"touch " + touch + b"\x85R.",
    )
    yield "newobj", b"\x80\x02csubprocess\nPopen\n]S'touch'\naS'" + touch + b"'\na\x85\x81."
    yield "extension", b"\x80\x02\x82\x01."
    yield "persistent", b"\x80\x02Ptouch\n."
    yield "persistent by stack", b"\x80\x02cos\nsystem\nS'touch " + touch + b"'\n\x85RQ."
    yield (
        "dotted",
        b"\x80\x04\x8c\x05torch\x8c\x12serialization.os.system\x93\x8c"
        + bytes([6 + len(touch)])
        + b"touch "
        + touch
        + b"\x85R.",
    )
    yield (
        "rebuild with a hook",
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\ncos\nsystem\nS'touch " + touch + b"'\n\x85R\x85R.",
    )
    yield "endless memo", b"\x80\x02" + b"]" + b"q\x00h\x00a" * 10 + b"."
    yield "long number", b"\x80\x02\x8b" + struct.pack("<i", 1 << 30) + b"\x01."
    yield "long text", b"\x80\x02X" + struct.pack("<I", 1 << 31) + b"abc."
    yield "deep lists", b"\x80\x02" + b"(" * 100_000 + b"l" * 100_000 + b"."
    yield "no stop", b"\x80\x02}q\x00"


def _bombs() -> Iterator[tuple[str, bytes]]:
    zeros = bytes(64 << 20)
    yield "bomb.pth", _zip({"archive/data.pkl": zeros, "archive/version": b"3\n"}, zipfile.ZIP_DEFLATED)
    yield "bomb-lzma.pth", _zip({"archive/data/0": zeros, "archive/data.pkl": b"."}, zipfile.ZIP_LZMA)
    yield "gzip.pth", gzip.compress(pickle.dumps({"w": 1}))
    archive = bytearray(_saved({"w": torch.ones(4)}))
    central = archive.rfind(b"PK\x01\x02")
    archive[central + 24 : central + 28] = struct.pack("<I", 1 << 31)
    yield "claimed.pth", bytes(archive)
    yield "expanded.pth", _saved({"w": torch.ones(1).expand(1 << 34)})
    with torch.sparse.check_sparse_tensor_invariants(True):  # torch 2.11 warns of the argument of the same name
        sparse = torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1), (9,))
    yield "sparse.pth", _saved({"w": sparse})
    yield "meta.pth", _saved({"w": torch.empty(1 << 40, device="meta")})
    yield "quantized.pth", _saved({"w": torch.zeros(2, dtype=torch.complex64)})
    yield "repeated.pth", _saved({f"w{i}": torch.ones(1 << 20).expand(64, 1 << 20) for i in range(8)})
    yield "many.pth", _saved({f"w{i}": 0 for i in range(60_000)})


def hostile_pickles(canary: Path) -> Iterator[tuple[str, bytes]]:
    """Yield (name, bytes) of more than a hundred files, none of which may be taken for weights or run."""
    found = payloads(canary)
    for number, (wrapper, wrap) in enumerate(WRAPPERS.items()):
        for place, (name, value) in enumerate(found.items()):
            # every payload comes in torch's own archives, the others share them
            if number < 2 or (place + number) % 2:
                yield f"{name}, {wrapper}.pth".replace("/", "-"), wrap(value)
    for name, data in _opcodes(canary):
        yield f"{name}.pkl.pt", data
        yield f"{name}, archive.pt", _zip({"archive/data.pkl": data, "archive/version": b"3\n"})
    yield from _bombs()


def _tensors(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def _entry(start: int, stop: int, shape: list[Any] | None = None, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [(stop - start) // 4] if shape is None else shape, "data_offsets": [start, stop]}


def hostile_safetensors() -> Iterator[tuple[str, bytes]]:
    """Yield (name, bytes) of safetensors files that must be refused."""
    yield "header of 2^40", struct.pack("<Q", 1 << 40) + b"{}"
    yield "header of 2^64-1", struct.pack("<Q", (1 << 64) - 1) + b"{}"
    yield "header of 17 MiB", _tensors(b" " * (17 << 20))
    yield "60,000 tensors", _tensors({f"t{i}": _entry(0, 0, [0]) for i in range(60_000)})
    yield "overlap", _tensors({"a": _entry(0, 8), "b": _entry(4, 12)}, bytes(12))
    yield "same bytes twice", _tensors({"a": _entry(0, 8), "b": _entry(0, 8)}, bytes(8))
    yield "gap", _tensors({"a": _entry(0, 4), "b": _entry(8, 12)}, bytes(12))
    yield "wrong sum", _tensors({"a": _entry(0, 8, [3])}, bytes(8))
    yield "product beyond 64 bits", _tensors({"a": _entry(0, 0, [1 << 33, 1 << 33])})
    yield "zero times much", _tensors({"a": _entry(0, 0, [0, 1 << 62, 1 << 62])}, b"x")
    yield "NaN in a shape", _tensors(b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}', bytes(4))
    yield "NaN in metadata", _tensors(b'{"__metadata__":{"a":NaN}}')
    yield "infinite offset", _tensors(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,1e999]}}', bytes(4))
    yield "offset as fraction", _tensors(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4.0]}}', bytes(4))
    yield "true as extent", _tensors({"a": _entry(0, 4, [True])}, bytes(4))
    yield "negative", _tensors({"a": _entry(0, 8, [-1, -2])}, bytes(8))
    yield "deep", _tensors(b"[" * 200_000)
    yield "deep metadata", _tensors(b'{"__metadata__":' + b'{"a":' * 100_000)
    yield "name twice", _tensors(b'{"a":1,"a":1}')
    yield "metadata alone", _tensors({"__metadata__": {"format": "pt"}})
    yield "unknown type", _tensors({"a": _entry(0, 8, [2], "F99")}, bytes(8))
    yield "a pickle", pickle.dumps({"w": 1})
    yield "an archive", _saved({"w": torch.ones(2)})
    yield "empty", b""
    yield "bytes behind", _tensors({"a": _entry(0, 4)}, bytes(5))
    yield "no UTF-8", _tensors(b'{"\xff":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', bytes(4))

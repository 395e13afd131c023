"""HDF5 files made to do harm; each is a store as labelkit writes it, and one thing more."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from labelkit.store.writer import FileContents
from store_samples import contents_of

Add = Callable[[Any, str], object]


def _virtual(file: Any, outside: str) -> None:
    layout = h5py.VirtualLayout((4,), "f4")
    layout[:] = h5py.VirtualSource(outside, "x", (4,))
    file.create_virtual_dataset("virtual", layout)


def _cycle(file: Any, outside: str) -> None:
    file["model/again"] = file["/"]


def _long_cycle(file: Any, outside: str) -> None:
    file.create_group("p/q")
    file["p/q/r"] = file["p"]


def _named_type(file: Any, outside: str) -> None:
    file["type"] = np.dtype("f4")


def _external_group_link(file: Any, outside: str) -> None:
    file.create_group("results")["r"] = h5py.ExternalLink(outside, "/")


def _soft(target: str) -> Add:
    def add(file: Any, outside: str) -> None:
        file["soft"] = h5py.SoftLink(target)

    return add


def _external(file: Any, outside: str) -> None:
    file["external"] = h5py.ExternalLink(outside, "/x")


def _dataset(name: str, *args: Any, **options: Any) -> Add:
    return lambda file, outside: file.create_dataset(name, *args, **options)


def _attribute(name: str, value: object, **options: Any) -> Add:
    return lambda file, outside: file.attrs.create(name, value, **options)


def _outside(file: Any, outside: str) -> None:
    file.create_dataset("outside", (8,), "u1", external=[(outside, 0, 8)])


def _outside_twice(file: Any, outside: str) -> None:
    file.create_dataset("outside", (1 << 30,), "u1", external=[(outside, 0, 8), ("/dev/zero", 0, h5py.h5f.UNLIMITED)])


def _reference(file: Any, outside: str) -> None:
    file.create_dataset("reference", data=[file["labels"].ref], dtype=h5py.ref_dtype)


def _region(file: Any, outside: str) -> None:
    file.create_dataset("region", data=[file["labels"].regionref[:2]], dtype=h5py.regionref_dtype)


def _reference_attribute(file: Any, outside: str) -> None:
    file.attrs.create("reference", file["labels"].ref, dtype=h5py.ref_dtype)


def _low_level(kind: Any, shape: tuple[int, ...] = (2,)) -> Add:
    def add(file: Any, outside: str) -> None:
        h5py.h5d.create(file.id, b"odd", kind(), h5py.h5s.create_simple(shape))

    return add


def _odd_float() -> Any:
    kind = h5py.h5t.IEEE_F32LE.copy()
    kind.set_fields(31, 20, 11, 0, 20)
    return kind


def _array() -> Any:
    return h5py.h5t.array_create(h5py.h5t.STD_I8LE, (1 << 20, 1 << 8))


def _opaque() -> Any:
    kind = h5py.h5t.create(h5py.h5t.OPAQUE, 16)
    kind.set_tag(b"code")
    return kind


def _wide_string() -> Any:
    kind = h5py.h5t.C_S1.copy()
    kind.set_size(1 << 30)
    return kind


def _sequence() -> Any:
    return h5py.h5t.vlen_create(h5py.h5t.STD_I8LE)


def _bits() -> Any:
    return h5py.h5t.STD_B64LE


def _early(file: Any, outside: str) -> None:
    """Chunks that were all allocated and never written."""
    create = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    create.set_chunk((1 << 16,))
    create.set_fill_value(np.array(7, "u1"))
    h5py.h5d.create(file.id, b"fill", h5py.h5t.STD_U8LE, h5py.h5s.create_simple((1 << 44,)), dcpl=create)


LINK, TYPE, FILTER = "a soft or external link", "a type other than", "filters that are not allowed here"
BOMB, NAMED = "bytes declared", "a named type"

ADDITIONS: dict[str, tuple[Add, str]] = {
    "soft link": (_soft("/embeddings"), LINK),
    "soft link to itself": (_soft("/soft"), LINK),
    "dangling soft link": (_soft("/nowhere"), LINK),
    "external link": (_external, LINK),
    "external link as results": (_external_group_link, LINK),
    "cycle": (_cycle, "nested deeper"),
    "longer cycle": (_long_cycle, "nested deeper"),
    "deep tree": (lambda file, outside: file.create_group("a/b/c/d/e/f/g"), "nested deeper than 6"),
    "very deep tree": (lambda file, outside: file.create_group("/".join("x" * 3000)), "nested deeper than 6"),
    "named type": (_named_type, NAMED),
    "variable-length string": (_dataset("text", data=["a"], dtype=h5py.string_dtype()), TYPE),
    "variable-length attribute": (_attribute("text", "abc", dtype=h5py.string_dtype()), TYPE),
    "variable-length sequence": (_low_level(_sequence), TYPE),
    "compound": (_dataset("pairs", data=np.zeros(2, dtype=[("a", "f4"), ("b", "i8")])), TYPE),
    "object reference": (_reference, TYPE),
    "region reference": (_region, TYPE),
    "reference as attribute": (_reference_attribute, TYPE),
    "opaque": (_low_level(_opaque), TYPE),
    "bit field": (_low_level(_bits), BOMB),
    "array type of 256 MiB": (_low_level(_array, (1 << 20,)), TYPE),
    "string of 1 GiB": (_low_level(_wide_string), ""),
    "float of no machine": (_low_level(_odd_float), ""),
    "outside storage": (_outside, "storage outside of the file"),
    "outside storage without end": (_outside_twice, "storage outside of the file"),
    "virtual": (_virtual, "a virtual dataset"),
    "gzip": (_dataset("packed", data=np.zeros(1000), compression="gzip"), FILTER),
    "lzf": (_dataset("packed", data=np.zeros(1000), compression="lzf"), FILTER),
    "scale and offset": (_dataset("packed", data=np.zeros(1000, "i4"), scaleoffset=True), FILTER),
    "chunks never written": (_dataset("bomb", (1 << 40,), "u1", chunks=(1 << 20,)), BOMB),
    "chunks of a fill value": (_early, BOMB),
    "contiguous and never written": (_dataset("bomb", (1 << 50,), "u1"), BOMB),
    "shape beyond 64 bits": (_dataset("bomb", (1 << 31, 1 << 31, 1), "u1", chunks=(1, 1, 1)), BOMB),
    "huge chunk": (
        _dataset("chunk", (1,), "u1", maxshape=(None,), chunks=((64 << 20) + 1,)),
        "chunks above 64 MiB",
    ),
    "large attribute": (_attribute("large", np.zeros(9000)), "an attribute above 64 KiB"),
    "no data space": (_dataset("nothing", data=h5py.Empty("f4")), "no data space"),
}


def _rebuilt(change: Callable[[FileContents], object]) -> Callable[[bytes, Path], bytes]:
    def make(data: bytes, path: Path) -> bytes:
        path.write_bytes(data)
        contents = contents_of(path)
        change(contents)
        return contents.sealed().to_bytes()

    return make


def _user_block(data: bytes, path: Path) -> bytes:
    with h5py.File(path, "w", userblock_size=512) as file:
        file["embeddings"] = np.zeros((2, 2))
    block = path.read_bytes()
    return b"#!/bin/sh\ntouch canary\n".ljust(512, b"\n") + block[512:]


def _end_beyond(data: bytes, path: Path) -> bytes:
    """The superblock says that the file is larger than it is; its checksum is right for nothing."""
    return data[:28] + struct.pack("<Q", 1 << 62) + data[36:]


CHANGES: dict[str, Callable[[bytes, Path], bytes]] = {
    "empty": lambda data, path: b"",
    "signature only": lambda data, path: data[:8],
    "cut in half": lambda data, path: data[: len(data) // 2],
    "cut by one byte": lambda data, path: data[:-1],
    "end beyond the file": _end_beyond,
    "root beyond the file": lambda data, path: data[:36] + struct.pack("<Q", 1 << 62) + data[44:],
    "user block": _user_block,
    "store behind other bytes": lambda data, path: bytes(512) + data,
    "newer superblock": lambda data, path: data[:8] + b"\xff" + data[9:],
    "text for numbers": _rebuilt(lambda contents: contents.datasets.update(labels=np.array([b"1"] * 8))),
    "no rows": _rebuilt(lambda contents: contents.datasets.update(embeddings=contents.datasets["embeddings"][:0])),
    "only zeros": lambda data, path: bytes(len(data)),
    "a pickle": lambda data, path: b"\x80\x04cposix\nsystem\n(S'touch canary'\ntR.",
}


def crafted(name: str, data: bytes, path: Path, outside: str) -> str:
    """Write a file that does harm.

    Args:
        name: of the file, in ``ADDITIONS`` or ``CHANGES``.
        data: a store.
        path: where to write.
        outside: a file that must not be touched.

    Returns:
        What the refusal has to say; may be empty.
    """
    if name in CHANGES:
        path.write_bytes(CHANGES[name](data, path))
        return ""
    add, message = ADDITIONS[name]
    path.write_bytes(data)
    with h5py.File(path, "r+", libver=("v108", "latest")) as file:
        add(file, outside)
    return message

"""CIFAR-10 and CIFAR-100 from their official Python or binary files, or from extracted images.

The Python files are pickles of unknown origin, so they are read by an unpickler that can build
nothing but containers, numbers, bytes and numeric arrays.
"""

from __future__ import annotations

import io
import pickle
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelkit.data.datasets import ArraySource, ImageDataset
from labelkit.data.folders import load_folder
from labelkit.data.named.layouts import Layout, refuse_elsewhere
from labelkit.errors import DatasetAbsent, DatasetError, DatasetIncomplete
from labelkit.reading import read_bytes


@dataclass(frozen=True)
class CifarLayout:
    """Names of folders, files and keys of one of the two sets."""

    name: str
    python_folder: str
    python_files: Mapping[str, tuple[str, ...]]
    python_names: tuple[str, bytes]
    python_label_key: bytes
    binary_folder: str
    binary_files: Mapping[str, tuple[str, ...]]
    binary_names: str
    binary_label_bytes: int
    num_classes: int
    torchvision_class: str
    archives: Mapping[str, str]


CIFAR10: Final = CifarLayout(
    name="cifar10",
    python_folder="cifar-10-batches-py",
    python_files={"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)},
    python_names=("batches.meta", b"label_names"),
    python_label_key=b"labels",
    binary_folder="cifar-10-batches-bin",
    binary_files={"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)},
    binary_names="batches.meta.txt",
    binary_label_bytes=1,
    num_classes=10,
    torchvision_class="CIFAR10",
    archives={"python": "cifar-10-python.tar.gz", "binary": "cifar-10-binary.tar.gz"},
)
CIFAR100: Final = CifarLayout(
    name="cifar100",
    python_folder="cifar-100-python",
    python_files={"train": ("train",), "test": ("test",)},
    python_names=("meta", b"fine_label_names"),
    python_label_key=b"fine_labels",
    binary_folder="cifar-100-binary",
    binary_files={"train": ("train.bin",), "test": ("test.bin",)},
    binary_names="fine_label_names.txt",
    binary_label_bytes=2,
    num_classes=100,
    torchvision_class="CIFAR100",
    archives={"python": "cifar-100-python.tar.gz", "binary": "cifar-100-binary.tar.gz"},
)
_PIXEL_BYTES: Final = 3 * 32 * 32
_MAX_PICKLE_BYTES: Final = 1 << 28


def load_cifar(layout: CifarLayout, data_root: Path, *, download: bool) -> ImageDataset:
    """List CIFAR-10 or CIFAR-100 in any of its layouts.

    Raises:
        DatasetAbsent: not there and not to be fetched.
        DatasetIncomplete: somewhere else, not unpacked, or with files missing.
        DatasetError: the download failed; files are damaged.
    """
    found = _find_cifar(layout, data_root)
    if found is None and download:
        _download_cifar(layout, data_root)
        found = _find_cifar(layout, data_root)
    if found is None:
        _refuse_misplaced(layout, data_root)
        raise DatasetAbsent(
            layout.name,
            f"not found in {data_root}: looked for {layout.python_folder}/, {layout.binary_folder}/ "
            f"and {layout.name}/{{train,test}}/<class>/",
            "Pass --download, or put one of them there, or name another place with --data-root.",
        )
    kind, folder = found
    if kind == "images":
        return load_folder(folder, name=layout.name)
    _refuse_missing_files(layout, kind, folder)
    read = _read_cifar_python if kind == "python" else _read_cifar_binary
    class_names, parts = read(layout, folder)
    # "test" sorts before "train".
    order = ("test", "train")
    images = np.concatenate([parts[split][0] for split in order])
    labels = np.concatenate([parts[split][1] for split in order])
    counts = [len(parts[split][1]) for split in order]
    if labels.min(initial=0) < 0 or labels.max(initial=0) >= len(class_names):
        raise _cifar_fault(folder, f"labels outside of {len(class_names)} classes")
    return ImageDataset(
        name=layout.name,
        root=None,
        sample_ids=tuple(
            f"{split}/{i:05d}.png" for split, count in zip(order, counts, strict=True) for i in range(count)
        ),
        labels=labels,
        given=np.ones(len(labels), dtype=np.bool_),
        class_names=class_names,
        splits=np.repeat(np.array([1, 0], dtype=np.int16), counts),
        split_names=("train", "test"),
        in_channels=3,
        chiral=False,
        photographic=True,
        source=ArraySource(images),
    )


def _find_cifar(layout: CifarLayout, data_root: Path) -> tuple[str, Path] | None:
    for base in (data_root, data_root / layout.name):
        for kind, name in (("python", layout.python_folder), ("binary", layout.binary_folder)):
            if (base / name).is_dir():
                return kind, base / name
    for kind in ("python", "binary"):
        if all((data_root / file).is_file() for file in _files(layout, kind)):
            return kind, data_root
    folder = data_root / layout.name
    if (folder / "train").is_dir() and (folder / "test").is_dir():
        return "images", folder
    return None


def _files(layout: CifarLayout, kind: str) -> tuple[str, ...]:
    """Names of the files in the python or binary folder."""
    names = layout.python_names[0] if kind == "python" else layout.binary_names
    parts = layout.python_files if kind == "python" else layout.binary_files
    return (names, *(file for files in parts.values() for file in files))


def _refuse_misplaced(layout: CifarLayout, data_root: Path) -> None:
    """Raise if the official folder lies deeper in the data root, or in its archive still."""
    for kind, folder in (("python", layout.python_folder), ("binary", layout.binary_folder)):
        files = _files(layout, kind)
        place = Layout(layout.name, (folder,), tuple((file,) for file in files), {layout.archives[kind]: files}, "")
        refuse_elsewhere(place, data_root, (data_root / folder, data_root, data_root / layout.name), files)


def _refuse_missing_files(layout: CifarLayout, kind: str, folder: Path) -> None:
    files = _files(layout, kind)
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        raise DatasetIncomplete(
            str(folder),
            f"expected {len(files)} files, found {len(files) - len(missing)}; missing: {', '.join(missing)}",
            "Remove this folder and fetch it again with --download.",
        )


def _cifar_fault(where: Path, problem: str) -> DatasetError:
    return DatasetError(str(where), problem, "Remove this folder and fetch it again with --download.")


_CifarParts = dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]


def _read_cifar_python(layout: CifarLayout, folder: Path) -> tuple[tuple[str, ...], _CifarParts]:
    names_file, names_key = layout.python_names
    meta = _unpickle(folder / names_file)
    names = meta.get(names_key)
    if not isinstance(names, list) or not all(isinstance(name, bytes | str) for name in names):
        raise _cifar_fault(folder / names_file, f"no list {names_key.decode()!r}")
    class_names = tuple(name.decode("utf-8", "replace") if isinstance(name, bytes) else name for name in names)
    parts: _CifarParts = {}
    for split, files in layout.python_files.items():
        images, labels = [], []
        for file in files:
            record = _unpickle(folder / file)
            data, label = record.get(b"data"), record.get(layout.python_label_key)
            if not (isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.shape[1:] == (_PIXEL_BYTES,)):
                raise _cifar_fault(folder / file, "'data' is not an array of 3,072 bytes per image")
            if not (isinstance(label, list) and all(type(value) is int for value in label)):
                raise _cifar_fault(folder / file, f"no list {layout.python_label_key.decode()!r} of integers")
            if len(label) != len(data):
                raise _cifar_fault(folder / file, f"{len(label)} labels for {len(data)} images")
            images.append(data)
            labels.append(np.array(label, dtype=np.int64))
        parts[split] = (_planes_to_images(np.concatenate(images)), np.concatenate(labels))
    return class_names, parts


def _read_cifar_binary(layout: CifarLayout, folder: Path) -> tuple[tuple[str, ...], _CifarParts]:
    class_names = tuple(_read_bytes(folder / layout.binary_names).decode("utf-8", "replace").split())
    row_bytes = layout.binary_label_bytes + _PIXEL_BYTES
    parts: _CifarParts = {}
    for split, files in layout.binary_files.items():
        records = []
        for file in files:
            raw = _read_bytes(folder / file)
            if not raw or len(raw) % row_bytes:
                raise _cifar_fault(folder / file, f"{len(raw):,} bytes are not a multiple of {row_bytes:,}")
            records.append(np.frombuffer(raw, dtype=np.uint8).reshape(-1, row_bytes))
        table = np.concatenate(records)
        # CIFAR-100 has a coarse label before the fine one.
        labels = table[:, layout.binary_label_bytes - 1].astype(np.int64)
        parts[split] = (_planes_to_images(table[:, layout.binary_label_bytes :]), labels)
    return class_names, parts


def _planes_to_images(planes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _read_bytes(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except OSError as error:
        raise _cifar_fault(path, f"cannot be read: {error.strerror}") from error


def _plain_dtype(spec: object, align: object = False, copy: object = True) -> np.dtype[Any]:
    """Build a dtype for a pickle; only plain numbers and fixed-length strings."""
    if not isinstance(spec, str | bytes):
        raise pickle.UnpicklingError("a dtype that is not plain")
    dtype = np.dtype(spec.decode("ascii") if isinstance(spec, bytes) else spec)
    if dtype.kind not in "biufSU":
        raise pickle.UnpicklingError(f"dtype {dtype} is not allowed")
    return dtype


def _encode_bytes(text: object, encoding: object = "latin1") -> bytes:
    """Stand in for ``_codecs.encode``, by which old protocols write bytes."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1", b"latin1"):
        raise pickle.UnpicklingError("only latin-1 bytes are allowed")
    return text.encode("latin1")


# Taken from an array's own pickle instruction, so that no private module of numpy is named.
_NUMPY_RECONSTRUCT: Final[Any] = np.empty(0).__reduce__()[0]
_ALLOWED_GLOBALS: Final[Mapping[tuple[str, str], Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _NUMPY_RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _NUMPY_RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _plain_dtype,
    ("_codecs", "encode"): _encode_bytes,
}


class ArrayUnpickler(pickle.Unpickler):
    """Reads pickles of plain containers, numbers, bytes and numeric arrays, and nothing else."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Return one of a few harmless globals.

        Raises:
            pickle.UnpicklingError: any other global.
        """
        try:
            return _ALLOWED_GLOBALS[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}, which is not allowed") from None


def _unpickle(path: Path) -> dict[Any, Any]:
    try:
        if path.stat().st_size > _MAX_PICKLE_BYTES:
            raise _cifar_fault(path, f"larger than {_MAX_PICKLE_BYTES:,} bytes")
    except OSError as error:
        raise _cifar_fault(path, f"cannot be read: {error.strerror}") from error
    raw = _read_bytes(path)
    try:
        record = ArrayUnpickler(io.BytesIO(raw), encoding="bytes").load()
    except Exception as error:
        # A damaged pickle can fail in any way; none of them may look like a bug of ours.
        raise _cifar_fault(path, f"cannot be unpickled safely: {error}") from error
    if not isinstance(record, dict):
        raise _cifar_fault(path, f"holds a {type(record).__name__}, not a dictionary")
    return {key.encode() if isinstance(key, str) else key: value for key, value in record.items()}


def _fetch_archive(url: str, folder: Path, filename: str, md5: str) -> None:
    """Download an archive, check its MD5 and unpack it; the only place here that uses the network."""
    from torchvision.datasets.utils import download_and_extract_archive

    download_and_extract_archive(url, str(folder), filename=filename, md5=md5, remove_finished=True)


def _download_cifar(layout: CifarLayout, data_root: Path) -> None:
    from torchvision import datasets as torchvision_datasets

    published = getattr(torchvision_datasets, layout.torchvision_class)
    try:
        data_root.mkdir(parents=True, exist_ok=True)
        # Unpacked elsewhere and renamed: a killed download leaves no half data set.
        with tempfile.TemporaryDirectory(prefix=".download-", dir=data_root) as folder:
            _fetch_archive(published.url, Path(folder), published.filename, published.tgz_md5)
            (Path(folder) / layout.python_folder).replace(data_root / layout.python_folder)
    except (OSError, RuntimeError) as error:
        raise DatasetError(
            layout.name,
            f"download from {published.url} failed ({error}); this computer may be offline",
            f"Fetch the archive elsewhere and unpack it into {data_root}.",
        ) from error

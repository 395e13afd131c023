"""Embed a few images with a store's network in ONNX format, without loading PyTorch.

``onnx_export`` fills the cache, and compares each network with PyTorch. Images are preprocessed with Pillow and NumPy,
which gives the same pixels as elsewhere. Only this module imports ONNX Runtime.
"""

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelkit.cache import cache_folder
from labelkit.data.center_crop import compute_center_boxes, compute_resized_side, crop_and_resize_pixels
from labelkit.data.datasets import ImageDataset
from labelkit.data.decode import BadImageError, Channels
from labelkit.files import read_record, sha256_file
from labelkit.progress import current_progress
from labelkit.store.commit import canonical_json
from labelkit.store.embeddings import ModelIdentity

DECODER: Final = "labelkit-1"
_BATCH: Final = 32


class OnnxNetwork:
    """Embedding network for ONNX Runtime, loaded from a path or bytes; by default with one thread per core."""

    def __init__(self, content: bytes | Path, threads: int | None = None) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if threads is not None:
            options.intra_op_num_threads = threads
        model = content if isinstance(content, bytes) else str(content)
        self._session: Any = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._input = self._session.get_inputs()[0].name

    def embed(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return embeddings (b, d) of normalized images (b, c, h, w)."""
        found: NDArray[np.float32] = self._session.run(None, {self._input: images})[0]
        return found


def is_onnx_enabled() -> bool:
    """Return whether ONNX Runtime is installed and not disabled by ``LABELKIT_ONNX=0``."""
    return os.environ.get("LABELKIT_ONNX") != "0" and find_spec("onnxruntime") is not None


def get_onnx_runtime_version() -> str:
    """Return the version of ONNX Runtime."""
    import onnxruntime

    return str(onnxruntime.__version__)


def get_onnx_cache_path(model: ModelIdentity) -> Path:
    """Return the path of a network in the ONNX cache, derived from its weights and preprocessing."""
    parts = [model.weights_fingerprint, model.layer, model.pooling, model.preprocess_digest]
    return cache_folder() / "onnx" / f"{hashlib.sha256(canonical_json(parts).encode()).hexdigest()}.onnx"


def read_onnx_record(model: ModelIdentity) -> dict[str, Any] | None:
    """Read a network's record in the ONNX cache (``sha256`` or ``failed``); ``None`` if export was never tried."""
    path = get_onnx_cache_path(model)
    try:
        return read_record(path.parent, f"{path.stem}.json", {})
    except ValueError as error:
        current_progress().warning(f"{error}; the network will be exported again")
        return None


def load_cached_onnx_network(model: ModelIdentity, threads: int | None = None) -> OnnxNetwork | None:
    """Load the network of a store from the ONNX cache; ``None`` if it is not cached or ONNX Runtime is missing."""
    record = read_onnx_record(model) if is_onnx_enabled() else None
    path = get_onnx_cache_path(model)
    if record is None or "sha256" not in record or not path.is_file() or sha256_file(path) != record["sha256"]:
        return None
    return OnnxNetwork(path, threads)


def embed_with_onnx(
    images: ImageDataset, model: ModelIdentity
) -> tuple[NDArray[np.float32], NDArray[np.int64], list[tuple[int, str]]] | None:
    """Embed images without PyTorch, with the same return values as ``embed_queries``; ``None`` if not possible."""
    record = model.preprocess
    if record.get("decoder") != DECODER or record.get("crop") != "center":
        return None
    network = None
    if not (model.source == model.name == "pixels") and (network := load_cached_onnx_network(model)) is None:
        return None
    kept: list[int] = []
    bad: list[tuple[int, str]] = []
    pixels: list[NDArray[np.float32]] = []
    embedded: list[NDArray[np.float32]] = []
    with current_progress().task("embed", total=len(images)) as task:
        for row in range(len(images)):
            task.advance()
            try:
                pixels.append(preprocess_image(images, row, record))
                kept.append(row)
            except BadImageError as error:
                bad.append((row, error.reason))
            if pixels and (len(pixels) == _BATCH or row + 1 == len(images)):
                images_in = np.stack(pixels)
                embedded.append(images_in.reshape(len(pixels), -1) if network is None else network.embed(images_in))
                pixels = []
    if not embedded:
        return np.zeros((0, 1), dtype=np.float32), np.zeros(0, dtype=np.int64), bad
    return np.concatenate(embedded), np.array(kept, dtype=np.int64), bad


def preprocess_image(images: ImageDataset, row: int, record: dict[str, Any]) -> NDArray[np.float32]:
    """Read an image and preprocess it to (c, size, size) float32 according to a store's ``preprocess`` record.

    Raises:
        BadImageError: the image cannot be read.
    """
    size, channels = int(record["size"]), int(record["channels"])
    kind: Channels = 1 if channels == 1 else 3
    pixels, _ = images.source.read(row).decode_reduced(kind)
    side = compute_resized_side(size, float(record["resize_ratio"]))
    box = compute_center_boxes(size, side, [pixels.shape[0]], [pixels.shape[1]])[0]
    resized = crop_and_resize_pixels(
        pixels, box, size, "bilinear" if record["interpolation"] == "bilinear" else "bicubic"
    )
    values = resized.transpose(2, 0, 1).astype(np.float32) / np.float32(255)
    mean, std = (np.array(record[key], dtype=np.float32)[:, None, None] for key in ("mean", "std"))
    return (values - mean) / std

"""Export networks to ONNX, for other programs and so that later runs of ``predict`` and ``retrieve`` start faster."""

import logging
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor, nn

from labelkit.commands.common.onnx_session import OnnxNetwork, get_onnx_cache_path, is_onnx_enabled, read_onnx_record
from labelkit.errors import LabelkitError
from labelkit.files import read_bytes, sha256_file
from labelkit.models.inference import InferenceNetwork, PixelNetwork
from labelkit.progress import current_progress
from labelkit.store.commit import commit_bytes, commit_json
from labelkit.store.embeddings import ModelIdentity

MIN_COSINE = 0.99999
"""Minimum cosine similarity between the embeddings of PyTorch and ONNX Runtime, for each compared image."""

_CHECKED = 8
_NEEDED = ("onnx", "onnxscript", "onnxruntime")


class _EmbeddingModule(nn.Module):
    def __init__(self, network: InferenceNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return self.network.embed(images)


def find_missing_packages() -> list[str]:
    """Find the packages that are required for ONNX export but not installed."""
    return [name for name in _NEEDED if find_spec(name) is None]


def cache_onnx(network: InferenceNetwork, model: ModelIdentity) -> None:
    """Export a store's network to the ONNX cache, on the CPU, unless it is already there or cannot be exported."""
    if isinstance(network, PixelNetwork) or not is_onnx_enabled() or find_missing_packages():
        return
    path, record = get_onnx_cache_path(model), read_onnx_record(model)
    if record is not None and ("failed" in record or path.is_file()):
        return
    progress = current_progress()
    progress.message(f"caching {model.name} as ONNX (only once), so that later commands start without PyTorch")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        commit_bytes(path, export_onnx_bytes(network))
        commit_json(path.with_suffix(".json"), {"name": model.name, "sha256": sha256_file(path)})
    except OnnxExportError as error:
        progress.message(f"{model.name} cannot be cached as ONNX: {error}")
        commit_json(path.with_suffix(".json"), {"name": model.name, "failed": str(error)})
    except (OSError, LabelkitError) as error:
        progress.message(f"{model.name} could not be cached in {path.parent}: {error}")


class OnnxExportError(Exception):
    """Raised for a network that cannot be exported to ONNX without changing its embeddings."""


def export_onnx_bytes(network: InferenceNetwork, notes: Mapping[str, str] | None = None) -> bytes:
    """Export a network as an ONNX model that maps normalized ``images`` (b, c, h, w) to ``embeddings`` (b, d).

    The network must be on the CPU, in evaluation mode; ``notes`` become metadata of the model.

    Raises:
        OnnxExportError: PyTorch cannot export the network, ONNX Runtime cannot run it, or its embeddings differ.
    """
    spec = network.input_spec
    shape = (2, spec.channels, spec.size, spec.size)
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from the exporter's own code
        path = Path(folder) / "network.onnx"
        try:
            with torch.no_grad():
                torch.onnx.export(
                    _EmbeddingModule(network).eval(),
                    (torch.zeros(shape),),
                    path,
                    dynamo=True,
                    input_names=["images"],
                    output_names=["embeddings"],
                    dynamic_shapes={"images": {0: torch.export.Dim("b")}},
                    external_data=False,
                    verbose=False,
                )
        except (torch.onnx.OnnxExporterError, RuntimeError, ValueError, TypeError) as error:
            raise OnnxExportError(str(error).partition("\n")[0]) from error
        finally:
            logger.setLevel(level)
        content = read_bytes(path)
    if notes:
        import onnx

        proto = onnx.load_model_from_string(content)
        onnx.helper.set_model_props(proto, dict(notes))
        content = proto.SerializeToString()
    try:
        least = _compute_min_cosine(network, OnnxNetwork(content))
    except Exception as error:  # the runtime's errors have no common base class
        raise OnnxExportError(f"ONNX Runtime cannot run it: {' '.join(str(error).split())}") from error
    if not least >= MIN_COSINE:
        raise OnnxExportError(f"its embeddings differ from PyTorch's (cosine similarity {least:.6f})")
    return content


def _compute_min_cosine(network: InferenceNetwork, other: OnnxNetwork) -> float:
    """Return the minimum cosine similarity of both networks' embeddings of smooth random images, batched and single."""
    spec = network.input_spec
    generator = np.random.default_rng(0)
    coarse = generator.normal(size=(_CHECKED, spec.channels, 4, 4))
    fine = generator.normal(scale=0.3, size=(_CHECKED, spec.channels, spec.size, spec.size))
    images = torch.nn.functional.interpolate(torch.from_numpy(coarse), size=spec.size, mode="bicubic").numpy() + fine
    pixels = images.astype(np.float32)
    with torch.inference_mode():
        expected = network.embed(torch.from_numpy(pixels)).float().numpy()
    found = np.concatenate([other.embed(pixels[1:]), other.embed(pixels[:1])])
    torchs, onnxs = (torch.from_numpy(rows).double() for rows in (expected, np.roll(found, 1, axis=0)))
    return float(torch.nn.functional.cosine_similarity(torchs, onnxs).min())

"""How the rows of a store are computed: precision, run time and batch, chosen once and recorded.

What is chosen here decides about the last bits of rows. So an unfinished run goes on as it began, and a finished store
is recognized, whatever would be chosen today.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import torch
from torch import Tensor, nn

from labelkit.commands.common.networks import EmbeddingNetwork, numerics_record
from labelkit.commands.common.onnx_export import cache_onnx, missing_packages
from labelkit.commands.common.onnx_session import OnnxNetwork, cached_onnx_network, has_onnx, onnx_record, onnx_version
from labelkit.data.datasets import ImageDataset
from labelkit.errors import ConfigError
from labelkit.formatting import percent
from labelkit.models.inference import InferenceNetwork
from labelkit.options.embed import EmbedConfig
from labelkit.progress import current_progress
from labelkit.store.embeddings import ModelIdentity
from labelkit.store.plans import recorded_numerics
from labelkit.training.compute_device import has_native_bf16, images_at_once
from labelkit.training.devices import Precision, Runtime

TRIED: Final = 64
"""Images that both precisions embed before bf16 is taken."""
LEAST_COSINE: Final = 0.999
LEAST_NEIGHBORS: Final = 0.99
#: The export takes as long as a hundred images or more; it happens once for a network.
_WORTH_AN_EXPORT: Final = 200
_ONNX: Final = "onnxruntime"
_TRIAL: Final = "trial"


@dataclass(frozen=True)
class Computing:
    """Precision, runtime and batch size chosen for embedding.

    Attributes:
        precision: compute type of the network.
        runtime: what computes it.
        batch_size: images per forward pass.
        numerics: what a store records of it.
    """

    precision: Precision
    runtime: Literal["torch", "onnx"]
    batch_size: int
    numerics: Mapping[str, Any]


def choose_computing(
    config: EmbedConfig, runtime: Runtime, model: EmbeddingNetwork, dataset: ImageDataset, *, with_logits: bool
) -> Computing:
    """Choose precision, runtime and batch size from the options, else from an earlier run, else by measuring.

    Args:
        config: the options.
        runtime: computes in float32 where ``--precision`` is auto; it is told if that is to be bf16.
        model: the network, on its device.
        dataset: images to embed; 64 of them are embedded twice for ``--precision auto``.
        with_logits: whether the output of a classifier is stored besides.

    Raises:
        ConfigError: ``--runtime onnx`` cannot be.
    """
    before = recorded_numerics(config.out, overwrite=config.overwrite)
    batch_size = config.batch_size or int(before.get("batch_size") or images_at_once(runtime.device))
    trial: object = None
    precision: Precision = "float32"
    if config.precision != "auto":
        precision = config.precision
    elif _TRIAL in before:
        precision, trial = "bf16" if before.get("compute") == "bf16" else "float32", before[_TRIAL]
    else:
        precision, trial = _tried(runtime, model, dataset, batch_size)
    if config.precision == "auto" and precision == "bf16":
        runtime.use_bf16()
    name = _chosen_runtime(config, runtime, model, len(dataset), precision, before, with_logits=with_logits)
    numerics = numerics_record(runtime, precision, batch_size)
    if trial is not None:
        numerics[_TRIAL] = trial
    if config.fast_decode:
        numerics["fast_decode"] = True
    if name == "onnx":
        numerics[_ONNX] = onnx_version()
    return Computing(precision, name, batch_size, numerics)


def onnx_network(network: InferenceNetwork, model: ModelIdentity) -> OnnxNetwork:
    """Return the network as an ONNX Runtime session with as many threads as torch, exporting it if it is not cached.

    Raises:
        ConfigError: it cannot be exported.
    """
    cache_onnx(network, model)
    found = cached_onnx_network(model, threads=torch.get_num_threads())
    if found is None:
        reason = (onnx_record(model) or {}).get("failed", "it could not be kept in the cache")
        raise ConfigError("--runtime onnx", f"{model.name} is not available as ONNX: {reason}", "Use --runtime torch.")
    return found


def _chosen_runtime(
    config: EmbedConfig,
    runtime: Runtime,
    model: EmbeddingNetwork,
    count: int,
    precision: Precision,
    before: Mapping[str, Any],
    *,
    with_logits: bool,
) -> Literal["torch", "onnx"]:
    if config.runtime == "torch":
        return "torch"
    if runtime.device.type != "cpu" or precision != "float32":
        needs = "a CPU and float32"
    elif config.dense or with_logits:
        needs = "the embeddings alone (--no-logits, and no --dense)"
    elif not has_onnx() or missing_packages():
        needs = "the packages of `pip install onnx onnxruntime onnxscript`"
    else:
        needs = ""
    if config.runtime == "onnx":
        if needs:
            raise ConfigError("--runtime onnx", f"requires {needs}", "Use --runtime torch or auto.")
        return "onnx"
    if needs:
        return "torch"
    if before:
        return "onnx" if _ONNX in before else "torch"
    if count < _WORTH_AN_EXPORT or not _is_depthwise(model.network):
        return "torch"
    identity = model.identity({})
    if not config.dry_run:
        cache_onnx(model.network, identity)
    record = onnx_record(identity)
    if record is None:
        return "onnx" if config.dry_run else "torch"  # a run would have exported it by now
    return "torch" if "failed" in record else "onnx"


def _is_depthwise(network: nn.Module) -> bool:
    """Return whether it has convolutions of single channels, which torch is slow with on a CPU."""
    convolutions = (module for module in network.modules() if isinstance(module, nn.Conv2d))
    return any(one.groups == one.in_channels > 1 and max(one.kernel_size) > 1 for one in convolutions)


def _tried(
    runtime: Runtime, model: EmbeddingNetwork, dataset: ImageDataset, batch_size: int
) -> tuple[Precision, dict[str, Any]]:
    """Compare bf16 with float32 on a few images; return what to compute in, and why."""
    if runtime.device.type != "cpu":
        return "float32", {"bf16": "tried on a CPU only"}
    if not has_native_bf16():
        return "float32", {"bf16": "not native to this processor"}
    count = min(TRIED, len(dataset))
    rows = np.arange(count, dtype=np.int64) * len(dataset) // count
    exact, rough = _both(model, dataset, rows, batch_size)
    found = {"images": len(exact), **embedding_agreement(exact, rough)}
    agrees = found["cosine"] > LEAST_COSINE and found["neighbors"] >= LEAST_NEIGHBORS
    current_progress().message(
        f"precision {'bf16' if agrees else 'float32'}: in bf16, embeddings of {len(exact)} images have a cosine of at "
        f"least {found['cosine']:.4f} to those in float32, and {percent(found['neighbors'])} % have the same nearest "
        "neighbor"
    )
    return "bf16" if agrees else "float32", found


def _both(
    model: EmbeddingNetwork, dataset: ImageDataset, rows: np.ndarray[Any, np.dtype[np.int64]], batch_size: int
) -> tuple[Tensor, Tensor]:
    """Return embeddings in float32 and in bf16 of the images that can be read."""
    exact, rough = [], []
    for batch in model.loader(dataset, batch_size, rows=rows):
        keep = torch.from_numpy(batch.readable)
        with torch.inference_mode():
            exact.append(model.network.embed(batch.images)[keep].float())
            with torch.autocast("cpu", torch.bfloat16):
                rough.append(model.network.embed(batch.images)[keep].float())
    return torch.cat(exact), torch.cat(rough)


def embedding_agreement(exact: Tensor, rough: Tensor) -> dict[str, float]:
    """Measure how well two embeddings (n, d) of the same images agree; fewer than two images do not agree.

    Returns:
        ``cosine``: the least over images; ``neighbors``: share with the same nearest one.
    """
    if len(exact) < 2:
        return {"cosine": 0.0, "neighbors": 0.0}
    a, b = (nn.functional.normalize(rows.double(), dim=1) for rows in (exact, rough))
    cosine = (a * b).sum(dim=1).min().item()
    nearest = [(rows @ rows.T).fill_diagonal_(-torch.inf).argmax(dim=1) for rows in (a, b)]
    # of another run on this machine, the digits behind may differ; the plan of a store holds these
    return {
        "cosine": round(cosine, 4) if np.isfinite(cosine) else 0.0,
        "neighbors": round((nearest[0] == nearest[1]).double().mean().item(), 4),
    }

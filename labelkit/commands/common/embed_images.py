"""How the rows of a store are computed: run time and batch, chosen once and recorded.

What is chosen here decides about the last bits of rows. So an unfinished run goes on as it began, and a finished store
is recognized, whatever would be chosen today.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import nn

from labelkit.commands.common.networks import EmbeddingNetwork, numerics_record
from labelkit.commands.common.onnx_export import cache_onnx, missing_packages
from labelkit.commands.common.onnx_session import OnnxNetwork, cached_onnx_network, has_onnx, onnx_record, onnx_version
from labelkit.errors import ConfigError
from labelkit.models.inference import InferenceNetwork
from labelkit.options.embed import EmbedConfig
from labelkit.store.embeddings import ModelIdentity
from labelkit.store.plans import recorded_numerics
from labelkit.training.compute_device import images_at_once
from labelkit.training.devices import Runtime

#: The export takes as long as a hundred images or more; it happens once for a network.
_WORTH_AN_EXPORT: Final = 200
_ONNX: Final = "onnxruntime"


@dataclass(frozen=True)
class Computing:
    """Runtime and batch size chosen for embedding.

    Attributes:
        runtime: what computes it.
        batch_size: images per forward pass.
        numerics: what a store records of it.
    """

    runtime: Literal["torch", "onnx"]
    batch_size: int
    numerics: Mapping[str, Any]


def choose_computing(
    config: EmbedConfig, runtime: Runtime, model: EmbeddingNetwork, num_images: int, *, with_logits: bool
) -> Computing:
    """Choose runtime and batch size from the options, else from an earlier run, else by the network.

    Args:
        config: the options.
        runtime: computes in the precision of the options.
        model: the network, on its device.
        num_images: to embed.
        with_logits: whether the output of a classifier is stored besides.

    Raises:
        ConfigError: ``--runtime onnx`` cannot be.
    """
    before = recorded_numerics(config.out, overwrite=config.overwrite)
    batch_size = config.batch_size or int(before.get("batch_size") or images_at_once(runtime.device))
    name = _chosen_runtime(config, runtime, model, num_images, before, with_logits=with_logits)
    numerics = numerics_record(runtime, config.precision, batch_size)
    if config.fast_decode:
        numerics["fast_decode"] = True
    if name == "onnx":
        numerics[_ONNX] = onnx_version()
    return Computing(name, batch_size, numerics)


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
    before: Mapping[str, Any],
    *,
    with_logits: bool,
) -> Literal["torch", "onnx"]:
    if config.runtime == "torch":
        return "torch"
    if runtime.device.type != "cpu" or config.precision != "float32":
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

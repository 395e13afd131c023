"""What ``embed --dry-run`` tells: sizes and an estimate of the time, from two batches; nothing is written."""

from __future__ import annotations

import time

import numpy as np
import torch

from labelkit.commands.common.embed_images import Computing, color_channels
from labelkit.commands.common.networks import EmbeddingNetwork
from labelkit.commands.common.onnx_session import OnnxNetwork, quick_network
from labelkit.commands.common.patch_embeddings import plan_patches
from labelkit.commands.common.results import SimpleResult, Table
from labelkit.commands.embed.views import ViewDraws
from labelkit.data.datasets import ImageDataset
from labelkit.data.loaders import EvalLoader
from labelkit.data.views.spec import Normalize
from labelkit.options.base import value_text
from labelkit.options.embed import EmbedConfig
from labelkit.store.plans import EmbeddingPlan
from labelkit.training.devices import Runtime


def _embed(
    plan: EmbeddingPlan,
    runtime: Runtime,
    model: EmbeddingNetwork,
    quick: OnnxNetwork | None,
    dataset: ImageDataset,
    draws: ViewDraws | None,
    count: int,
) -> None:
    """Embed the first images, and wait until that is done."""
    spec = model.network.input_spec
    loader = EvalLoader(
        dataset,
        model.view,
        rows=np.arange(count, dtype=np.int64),
        batch_size=plan.batch_size,
        normalize=Normalize(spec.mean, spec.std),
        channels=color_channels(spec.channels),
        device=runtime.device,
        fast_decode="fast_decode" in plan.model.numerics,
        **({} if draws is None else draws.loading(dataset.sample_ids)),
    )
    for batch in loader:
        for images in (batch.images, *batch.views):
            with torch.inference_mode(), runtime.autocast():
                if quick is not None:
                    quick.embed(images.contiguous().numpy())
                else:
                    model.network.embed(images).float().cpu()
    runtime.wait()


def describe_plan(
    config: EmbedConfig,
    runtime: Runtime,
    computing: Computing,
    model: EmbeddingNetwork,
    dataset: ImageDataset,
    plan: EmbeddingPlan,
    shape: tuple[int, int, int] | None,
    draws: ViewDraws | None,
) -> SimpleResult:
    """Time two batches on real images, after one that is not timed; write nothing.

    A network that is to be computed by ONNX Runtime, and was not exported yet, is timed by torch, which takes longer.
    """
    quick = quick_network(plan.model, threads=torch.get_num_threads()) if computing.runtime == "onnx" else None
    timed = min(len(dataset), 2 * plan.batch_size)
    _embed(
        plan, runtime, model, quick, dataset, draws, min(timed, plan.batch_size)
    )  # a device starts up, and chooses kernels
    started = time.perf_counter()
    _embed(plan, runtime, model, quick, dataset, draws, timed)
    seconds = (time.perf_counter() - started) / timed
    width = (1 + plan.num_views) * plan.dim * (2 if config.dtype == "float16" else 4)
    parameters = sum(p.numel() for p in model.network.parameters())
    values: dict[str, object] = {
        "config": config.to_yaml_dict(),
        "images": len(dataset),
        "dim": plan.dim,
        **({} if draws is None else {"views": f"{draws.count}, {draws.augmentation}"}),
        **({"reused": plan.num_reused} if plan.reused is not None else {}),
        "model": model.network.identity["name"],
        "parameters": parameters,
        "store_mib": round(len(dataset) * (width + 48) / 2**20, 2),
        "memory_mib": round(runtime.peak_memory() / 2**20),
        "estimated_minutes": round((len(dataset) - plan.num_reused) * seconds / 60, 2),
        "device": str(runtime.device),
        "batch_size": plan.batch_size,
        "precision": computing.precision,
        "runtime": computing.runtime,
    }
    if shape is not None:
        patches = plan_patches(config, model.network, plan, shape)
        values["patches"] = f"{patches.count} of {shape[0]} x {shape[1]}, {shape[2]} values, {patches.dtype}"
        values["patches_mib"] = round(patches.estimated_bytes() / 2**20, 2)
    rows_shown = [[key, str(value)] for key, value in values.items() if key != "config"]
    options = [[key, value_text(value, longest=None)] for key, value in config.to_yaml_dict().items()]
    shown = (
        Table("configuration", ["option", "value"], options),
        Table("plan (nothing was written)", ["what", "value"], rows_shown),
    )
    return SimpleResult(values, (), shown)

"""Whether embedding fits into ``--max-memory``: what a batch and a part take, found with one blank image."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from labelkit.config.embed import EmbedConfig
from labelkit.models.inference import InferenceNetwork
from labelkit.stages.memory import Memory
from labelkit.store.plans import EmbeddingPlan

# Listed names, labels and the plan; and what is read when the finished store is opened.
_LISTING_BYTES = 900
# Rows of a part: as they come, joined, as the file that is written, and as it is read for the store.
_PART_COPIES = 4
# Values of an image: decoded, resized, in a batch, normalized.
_IMAGE_BYTES = 16


def check_embed_memory(
    config: EmbedConfig, network: InferenceNetwork, plan: EmbeddingPlan, patch_values: int = 0
) -> None:
    """Refuse a batch or part that would not fit; images decode one by one, and a large one takes more for a moment.

    Args:
        config: the bound.
        network: on its device, ready.
        plan: what is to be embedded.
        patch_values: numbers of all patches of an image that are kept.

    Raises:
        ConfigError: it does not fit.
    """
    memory = Memory.of(config)
    if memory.limit is None:
        return
    spec = network.input_spec
    values = spec.channels * spec.size**2
    per_image = _IMAGE_BYTES * (1 + plan.num_views) * values + (
        _activation_bytes(network, plan) if network_is_on_cpu(network) else 0
    )
    row_bytes = 4 * (1 + plan.num_views) * plan.dim + 4 * sum((plan.extras or {}).values()) + 48 + 8 * patch_values
    part_rows = min(plan.part_rows, len(plan.sample_ids))
    batch = min(plan.batch_size, len(plan.sample_ids))
    needed = batch * per_image + _PART_COPIES * part_rows * row_bytes + _LISTING_BYTES * len(plan.sample_ids)
    memory.require(
        needed,
        f"embedding {len(plan.sample_ids):,} images, {batch} at a time and {part_rows:,} in a part,",
        "lower --batch-size or --part-rows",
    )


def network_is_on_cpu(network: InferenceNetwork) -> bool:
    """Whether its numbers are in this process's memory."""
    return all(parameter.device.type == "cpu" for parameter in network.parameters())


def _activation_bytes(network: InferenceNetwork, plan: EmbeddingPlan) -> int:
    """Three times what the widest layer reads and gives for one image.

    Its neighbors' outputs are alive besides, and so is what the C library keeps. Peaks of ViT-S/16, ResNet-18,
    ResNet-50 and EfficientNet-Lite0 with 16 to 64 images at a time were 1.6 to 2.8 times.
    """
    spec = network.input_spec
    image = torch.zeros(1, spec.channels, spec.size, spec.size)
    with _widest(network) as widest, torch.inference_mode():
        features = network.embed(image)
        if plan.extras:
            network.classify(features)
    return 3 * max(widest, default=0)


@contextmanager
def _widest(network: nn.Module) -> Iterator[list[int]]:
    """Note the bytes that every module without parts reads and gives."""
    noted: list[int] = []

    def note(module: nn.Module, given: tuple[object, ...], found: object) -> None:
        tensors = [value for value in (*given, found) if isinstance(value, Tensor)]
        noted.append(sum(tensor.numel() * tensor.element_size() for tensor in tensors))

    hooks = [
        module.register_forward_hook(note) for module in network.modules() if next(module.children(), None) is None
    ]
    try:
        yield noted
    finally:
        for hook in hooks:
            hook.remove()

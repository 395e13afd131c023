"""Train a whole network with a segmentation head: fine-tuning, where the network does not stay as it is."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from labelkit.data.datasets import ImageDataset
from labelkit.data.views.spec import Normalize
from labelkit.errors import DivergenceError
from labelkit.models.segmenter import Segmenter
from labelkit.stages.evaluate.segmentation_head import FrozenNetwork, HeadPlan, pixel_loss, training_crops

WEIGHT_DECAY = 0.05


def tune_network(
    frozen: FrozenNetwork,
    dataset: ImageDataset,
    rows: NDArray[np.int64],
    plan: HeadPlan,
    *,
    seed: int,
    advance: Callable[[int], None] = lambda number: None,
) -> FrozenNetwork:
    """Train a copy of a network and a head by cross-entropy over all pixels that are not ignored, by AdamW.

    Args:
        frozen: the network; it stays as it is.
        dataset: has masks.
        rows: images to train on.
        plan: how.
        seed: of the head's weights, the order and the crops.
        advance: told how many images were seen.

    Returns:
        the copy and its head, in evaluation mode: its features are logits.

    Raises:
        ConfigError: the network has no backbone, or no maps of several depths.
        DivergenceError: the loss is no number.
        DatasetError: an image or mask cannot be used.
    """
    tuned = Segmenter(frozen.network, plan.kind, plan.num_classes, size=plan.size, seed=seed)
    tuned.train()
    # a bias or a norm has nothing to decay toward
    decayed = [parameter for parameter in tuned.parameters() if parameter.ndim >= 2]
    others = [parameter for parameter in tuned.parameters() if parameter.ndim < 2]
    groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=plan.lr)
    normalize = Normalize(tuned.input_spec.mean, tuned.input_spec.std)
    steps = -(-plan.samples // plan.batch_size)
    for step, (images, labels) in enumerate(training_crops(dataset, rows, plan, seed)):
        if plan.final_lr is not None:
            cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
            for group in optimizer.param_groups:
                group["lr"] = plan.final_lr + (plan.lr - plan.final_lr) * cosine
        loss = pixel_loss(tuned.logits(normalize(images.to(frozen.device))), labels.to(frozen.device))
        if not torch.isfinite(loss):
            raise DivergenceError(f"step {step}", "the loss is no number", "Use a smaller --lr.")
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call] # torch does not say
        optimizer.step()
        advance(len(labels))
    return FrozenNetwork(tuned.eval(), frozen.size, frozen.batch_size)

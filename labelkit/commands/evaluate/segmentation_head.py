"""Train a segmentation head on patch features of a network that stays as it is, and predict masks with it.

Source: our CoTAP specification, section 6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from labelkit.data.datasets import IGNORE, ImageDataset
from labelkit.data.keyed_random import keyed_generator
from labelkit.data.views.spec import Normalize, ViewSpec
from labelkit.data.views.transforms import masked_crops, resize_mask, whole_images
from labelkit.errors import DivergenceError
from labelkit.models.inference import InferenceNetwork
from labelkit.protocols.segmentation.segmenter import HeadKind, build_segmentation_head

_AREA = (0.8, 1.0)


@dataclass(frozen=True)
class FrozenNetwork:
    """A network whose patch features are judged.

    Attributes:
        network: on the device, in evaluation mode.
        size: side of whole images in pixels.
        batch_size: images per forward pass.
    """

    network: InferenceNetwork
    size: int
    batch_size: int

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        tensors = [*self.network.parameters(), *self.network.buffers()]
        return tensors[0].device

    @torch.inference_mode()
    def features(self, images: Tensor) -> Tensor:
        """Return (b, rows, cols, f) float32 features of images (b, c, h, w) with values in [0, 1]."""
        spec = self.network.input_spec
        prepared = Normalize(spec.mean, spec.std)(images.to(self.device))
        return self.network.patch_features(prepared).float()


@dataclass(frozen=True)
class WholeBatch:
    """A few whole images.

    Attributes:
        rows: (b,) of the data set.
        features: (b, rows, cols, f).
        pixels: (h, w, c) of each image.
        masks: (h, w) of each image.
    """

    rows: NDArray[np.int64]
    features: Tensor
    pixels: list[NDArray[np.uint8]]
    masks: list[NDArray[np.uint8]]


def whole_batches(frozen: FrozenNetwork, dataset: ImageDataset, rows: NDArray[np.int64]) -> Iterator[WholeBatch]:
    """Yield the features and masks of images, in order."""
    for start in range(0, len(rows), frozen.batch_size):
        part = rows[start : start + frozen.batch_size]
        images, pixels, masks = whole_images(dataset, part, frozen.size)
        yield WholeBatch(part, frozen.features(images), pixels, masks)


@dataclass(frozen=True)
class HeadPlan:
    """How a head is trained.

    Attributes:
        kind: ``linear`` or ``fcn``; of a network that is trained too, also ``fpn`` or ``upernet``.
        num_classes: c.
        lr: learning rate of Adam at the start.
        final_lr: at the end, on a cosine; ``None`` = no decay.
        samples: images drawn.
        batch_size: images per step.
        size: side of training images.
        augment: random crops; else whole images, whose features are computed once.
        mirror: crops may be mirrored.
    """

    kind: HeadKind
    num_classes: int
    lr: float
    final_lr: float | None
    samples: int
    batch_size: int
    size: int
    augment: bool
    mirror: bool


def train_head(
    frozen: FrozenNetwork,
    dataset: ImageDataset,
    rows: NDArray[np.int64],
    plan: HeadPlan,
    *,
    seed: int,
    advance: Callable[[int], None] = lambda number: None,
) -> nn.Module:
    """Train a head by cross-entropy over all pixels that are not ignored.

    Args:
        frozen: the network.
        dataset: has masks.
        rows: images to train on.
        plan: how.
        seed: of the head's weights, the order and the crops.
        advance: told how many images were seen.

    Raises:
        DivergenceError: the loss is no number.
        DatasetError: an image or mask cannot be used.
    """
    source = _crops(frozen, dataset, rows, plan, seed) if plan.augment else _cached(frozen, dataset, rows, plan, seed)
    head: nn.Module | None = None
    optimizer: torch.optim.Optimizer | None = None
    steps = -(-plan.samples // plan.batch_size)
    for step, (features, labels) in enumerate(source):
        maps = features.permute(0, 3, 1, 2).clone()  # no longer of inference mode
        if head is None:
            head = build_segmentation_head(plan.kind, maps.shape[1], plan.num_classes, seed).to(maps.device)
            optimizer = torch.optim.Adam(head.parameters(), lr=plan.lr)
        assert optimizer is not None
        if plan.final_lr is not None:
            cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
            for group in optimizer.param_groups:
                group["lr"] = plan.final_lr + (plan.lr - plan.final_lr) * cosine
        loss = pixel_loss(head(maps), labels.to(maps.device))
        if not torch.isfinite(loss):
            raise DivergenceError(
                f"step {step}", "the loss of the head is no number", "Use a smaller --lr, or look at the features."
            )
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call] # torch does not say
        optimizer.step()
        advance(len(labels))
    assert head is not None
    return head.eval()


def pixel_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats of logits (b, c, h', w'), stretched to labels (b, h, w); 255 is left out.

    0 if every label is 255.
    """
    stretched = functional.interpolate(logits, labels.shape[-2:], mode="bilinear", align_corners=False)
    total = functional.cross_entropy(stretched, labels, ignore_index=IGNORE, reduction="sum")
    return total / (labels != IGNORE).sum().clamp(min=1)


@torch.inference_mode()
def predict_masks(head: nn.Module, batch: WholeBatch) -> list[NDArray[np.uint8]]:
    """Return the most likely class of every pixel of whole images, each as large as its mask."""
    logits = head(batch.features.permute(0, 3, 1, 2))
    return [
        functional.interpolate(one[None], mask.shape, mode="bilinear", align_corners=False)[0]
        .argmax(0)
        .to(torch.uint8)
        .cpu()
        .numpy()
        for one, mask in zip(logits, batch.masks, strict=True)
    ]


def _drawn_rows(rows: NDArray[np.int64], plan: HeadPlan, seed: int) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Yield positions in ``rows``, batch by batch, and how many were drawn before: pass after pass in new orders."""
    passes = -(-plan.samples // len(rows))
    order = np.concatenate(
        [keyed_generator(seed, "segmentation", epoch).permutation(len(rows)) for epoch in range(passes)]
    )[: plan.samples]
    for start in range(0, len(order), plan.batch_size):
        yield order[start : start + plan.batch_size], start


def training_crops(
    dataset: ImageDataset, rows: NDArray[np.int64], plan: HeadPlan, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield images (b, c, size, size) in [0, 1] and masks (b, size, size), as they are trained on."""
    view = ViewSpec(plan.size, area_range=_AREA, hflip=0.5 if plan.mirror else 0.0, interpolation="bilinear")
    for places, drawn in _drawn_rows(rows, plan, seed):
        if plan.augment:
            keys = np.arange(drawn, drawn + len(places), dtype=np.int64)
            yield masked_crops(dataset, rows[places], keys, view, seed=seed)
            continue
        images, _, masks = whole_images(dataset, rows[places], plan.size)
        resized = [resize_mask(mask, plan.size, plan.size) for mask in masks]
        yield images, torch.from_numpy(np.stack(resized).astype(np.int64))


def _crops(
    frozen: FrozenNetwork, dataset: ImageDataset, rows: NDArray[np.int64], plan: HeadPlan, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    for images, labels in training_crops(dataset, rows, plan, seed):
        yield frozen.features(images), labels


def _cached(
    frozen: FrozenNetwork, dataset: ImageDataset, rows: NDArray[np.int64], plan: HeadPlan, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    batches = list(whole_batches(FrozenNetwork(frozen.network, plan.size, frozen.batch_size), dataset, rows))
    features = torch.cat([batch.features for batch in batches])
    masks = [resize_mask(mask, plan.size, plan.size) for batch in batches for mask in batch.masks]
    labels = torch.from_numpy(np.stack(masks).astype(np.int64))
    for places, _ in _drawn_rows(rows, plan, seed):
        yield features[places], labels[places]

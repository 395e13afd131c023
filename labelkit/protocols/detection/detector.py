"""A backbone with torchvision's detection parts around it: Faster R-CNN, Mask R-CNN, Cascade Mask R-CNN.

Sources: S. Ren et al., "Faster R-CNN" (NeurIPS 2015); K. He et al., "Mask R-CNN" (ICCV 2017); for the cascade see
``cascade_heads.py``. Region proposals, sampling, pooling, heads and losses are torchvision's, with its
numbers unless told: a quarter of the sampled boxes are objects, boxes that overlap by an IoU of .5 are suppressed,
boxes below a score of .05 left out, 100 kept. The box heads of a cascade have four convolutions and a layer, with group
normalization in place of batch normalization, which small batches disturb.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import nn
from torchvision.models.detection import FasterRCNN, MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.ops import MultiScaleRoIAlign
from torchvision.ops.poolers import initLevelMapper

from labelkit.errors import ConfigError
from labelkit.models.backbones.registry import Backbone
from labelkit.models.inference import InferenceNetwork
from labelkit.models.seeding import seeded_init
from labelkit.protocols.detection.cascade_heads import CascadeRoIHeads, ClassAgnosticPredictor
from labelkit.protocols.detection.detection_pyramid import WIDTH, DetectionBackbone, anchor_sizes

DetectorKind = Literal["faster-rcnn", "mask-rcnn", "cascade-mask-rcnn"]
_RATIOS = (0.5, 1.0, 2.0)
_BOX_SIDE, _MASK_SIDE, _FC = 7, 14, 1024
_CONVS = (WIDTH,) * 4
_SCORE, _OVERLAP, _KEPT = 0.05, 0.5, 100
_OBJECTS = 0.25


@dataclass(frozen=True)
class DetectorSize:
    """How much a detector looks at.

    Attributes:
        shorter_side: of resized images in pixels.
        longer_side: most that it may become.
        proposals: regions that are proposed in each image, twice as many in training.
        samples: of these and the true boxes, those that the heads learn from.
    """

    shorter_side: int = 800
    longer_side: int = 1333
    proposals: int = 1000
    samples: int = 512


def build_detector(
    inner: InferenceNetwork, kind: DetectorKind, num_classes: int, *, size: DetectorSize, seed: int
) -> FasterRCNN:
    """Build a detector on a copy of a network's backbone.

    Args:
        inner: a network on a backbone; what stands on the backbone is left out.
        kind: of the detector.
        num_classes: of objects, c; class i has the label i + 1, 0 is the background.
        size: of images and samples.
        seed: of the weights that are not the backbone's.

    Returns:
        torchvision's model on the backbone's device: a list of images (c, h, w) in [0, 1] of any size, and targets in
        training; images are resized, normalized and padded in it.

    Raises:
        ConfigError: no backbone in it, or images of a size that it cannot take.
        UnsupportedBackboneError: the backbone has no maps.
    """
    backbone = getattr(inner, "backbone", None)
    if not isinstance(backbone, Backbone):
        raise ConfigError(
            "evaluate detection", f"{inner.identity['name']} has no backbone to detect with", "Choose another network."
        )
    device = next(backbone.parameters()).device
    with seeded_init(seed):
        body = DetectionBackbone(copy.deepcopy(backbone).cpu().eval().requires_grad_(True), size.shorter_side)
        pools = [_pool(body, side) for side in (_BOX_SIDE, _MASK_SIDE)]
        spec = inner.input_spec
        options = {
            "min_size": size.shorter_side, "max_size": size.longer_side, "image_mean": spec.mean, "image_std": spec.std,
            "size_divisible": body.divisible, "box_roi_pool": pools[0],
            "rpn_anchor_generator": AnchorGenerator(
                anchor_sizes(body.strides), (_RATIOS,) * (len(body.strides) + 1)
            ),
            "rpn_pre_nms_top_n_train": 2 * size.proposals, "rpn_post_nms_top_n_train": 2 * size.proposals,
            "rpn_pre_nms_top_n_test": size.proposals, "rpn_post_nms_top_n_test": size.proposals,
            "box_batch_size_per_image": size.samples,
        }  # fmt: skip
        if kind == "mask-rcnn":
            return MaskRCNN(body, num_classes + 1, mask_roi_pool=pools[1], **options).to(device)
        detector = FasterRCNN(body, num_classes + 1, **options)
        if kind == "cascade-mask-rcnn":
            detector.roi_heads = CascadeRoIHeads(partial(_stage, pools[0], pools[1], num_classes + 1, size.samples))
        return detector.to(device)


def _pool(body: DetectionBackbone, side: int) -> MultiScaleRoIAlign:
    pool = MultiScaleRoIAlign(body.names, side, 2)
    # torchvision guesses them from the first images, before these are padded
    pool.scales = [1 / stride for stride in body.strides]
    lowest, highest = (stride.bit_length() - 1 for stride in (body.strides[0], body.strides[-1]))
    pool.map_levels = initLevelMapper(lowest, highest)
    return pool


def _stage(
    box_pool: MultiScaleRoIAlign,
    mask_pool: MultiScaleRoIAlign,
    num_classes: int,
    samples: int,
    iou: float,
    weights: tuple[float, ...],
) -> RoIHeads:
    """Return the heads of one stage of a cascade: four convolutions and a layer for boxes, four for masks."""
    norm = partial(nn.GroupNorm, 32)
    return RoIHeads(
        box_pool,
        FastRCNNConvFCHead((WIDTH, _BOX_SIDE, _BOX_SIDE), _CONVS, (_FC,), norm_layer=norm),
        ClassAgnosticPredictor(_FC, num_classes),
        iou, iou, samples, _OBJECTS, weights, _SCORE, _OVERLAP, _KEPT,
        mask_pool,
        MaskRCNNHeads(WIDTH, _CONVS, 1),
        MaskRCNNPredictor(WIDTH, WIDTH, num_classes),
    )  # fmt: skip

"""Object detectors: a feature pyramid on a backbone, followed by torchvision's detection components.

Feature maps: a simple pyramid on the last map of a plain ViT, or an FPN on the stages of a CNN.

Sources: Y. Li et al., "Exploring Plain Vision Transformer Backbones for Object Detection" (ECCV 2022), Sec. 3: strides
4, 8, 16 and 32 from the last map alone by (de)convolutions; T.-Y. Lin et al., "Feature Pyramid Networks" (CVPR 2017).
Departures: ViTs use full attention in every block instead of windows; if the patch size is not a power of two, maps are
resampled to the nearest one, because torchvision's components require strides that are powers of two.

Detectors: Faster R-CNN, Mask R-CNN, Cascade Mask R-CNN.

Sources: S. Ren et al., "Faster R-CNN" (NeurIPS 2015); K. He et al., "Mask R-CNN" (ICCV 2017); for the cascade, see
below. Region proposals, sampling, pooling, heads and losses are torchvision's, with its defaults unless noted: a
quarter of the sampled boxes are objects, boxes that overlap by an IoU of .5 are suppressed, boxes with a score below
.05 are dropped, and at most 100 are kept. The box heads of a cascade have four convolutions and a linear layer, with
group normalization instead of batch normalization, which works poorly with small batches.

Cascade: three successive box heads, each trained on the boxes of the previous one with a stricter IoU threshold.

Source: Z. Cai and N. Vasconcelos, "Cascade R-CNN: High Quality Object Detection and Instance Segmentation" (TPAMI
2019), Sec. 4 and 5. In stages 1 to 3, boxes with an IoU of at least .5, .6 and .7 count as objects; box regression is
class-agnostic, with offsets scaled by 10, 20, 30 for positions and 5, 10, 15 for the logarithms of width and height.
The paper's best variant has a mask head in each stage and averages their masks. The losses have the weights 1, 1/2 and
1/4, as in ``open-mmlab/mmdetection``. Sampling, matching, box coding and suppression are torchvision's.
Each stage samples anew from the boxes of the previous stage and the ground-truth boxes.
"""

import copy
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.convnext import LayerNorm2d
from torchvision.models.detection import FasterRCNN, MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import RoIHeads, maskrcnn_inference, maskrcnn_loss
from torchvision.ops import FeaturePyramidNetwork, MultiScaleRoIAlign, clip_boxes_to_image
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool
from torchvision.ops.poolers import initLevelMapper

from labelkit.errors import ConfigError
from labelkit.models.backbones.registry import Backbone
from labelkit.models.backbones.vit import find_patch_embedding, patch_size
from labelkit.models.inference import InferenceNetwork
from labelkit.models.seeding import seeded_init
from labelkit.protocols.segmentation.pyramid_heads import extract_level_maps

WIDTH = 256
"""Width of each pyramid level."""
_STRIDES = (4, 8, 16, 32)
_TOP = "pool"


class SimplePyramid(nn.Module):
    """Simple feature pyramid (ViTDet) that turns one feature map into four, using convolutions and deconvolutions.

    Each level ends with a 1 x 1 and a 3 x 3 convolution with LayerNorm.

    Args:
        width: width of the map, f.
        stride: stride of the map in pixels, a power of two.
        out: width of each level.

    Shape:
        - map: ``(b, f, rows, cols)``.
        - returns: four tensors ``(b, out, rows s, cols s)``, s = stride / 4, / 8, / 16, / 32.
    """

    def __init__(self, width: int, stride: int, out: int = WIDTH) -> None:
        super().__init__()
        self.levels = nn.ModuleList(_build_level(width, out, int(math.log2(stride / goal))) for goal in _STRIDES)

    def forward(self, feature_map: Tensor) -> list[Tensor]:
        """Compute the four pyramid levels, finest first, from one feature map (b, f, rows, cols)."""
        return [level(feature_map) for level in self.levels]


def _build_level(width: int, out: int, doublings: int) -> nn.Sequential:
    """Build one level, which doubles the resolution ``doublings`` times, or halves it if negative."""
    parts: list[nn.Module] = []
    for number in range(doublings):
        if number:
            parts += [LayerNorm2d(width, eps=1e-6), nn.GELU()]
        parts.append(nn.ConvTranspose2d(width, width // 2, 2, 2))
        width //= 2
    if doublings < 0:
        parts.append(nn.MaxPool2d(2**-doublings, 2**-doublings))
    parts += [nn.Conv2d(width, out, 1, bias=False), LayerNorm2d(out, eps=1e-6)]
    parts += [nn.Conv2d(out, out, 3, padding=1, bias=False), LayerNorm2d(out, eps=1e-6)]
    return nn.Sequential(*parts)


class DetectionBackbone(nn.Module):
    """Backbone with a feature pyramid, in the form that torchvision's detectors expect.

    Args:
        backbone: used in full; the caller decides which parts are trained.
        image_size: side in pixels of the images in a trial pass that determines the strides.

    Shape:
        - images: ``(b, c, h, w)``, with sides that are multiples of ``divisible``.
        - returns: levels by name, each ``(b, 256, h / stride, w / stride)``; the last is half the size of the previous.

    Attributes:
        out_channels: width of each level.
        names: names of the levels, finest first, without the last.
        strides: strides of these levels in pixels.
        divisible: number that image sides must be multiples of.
        autocast: autocast context of the forward pass; the levels are float32 nevertheless, because box decoding rounds
            positions to the dtype of the offsets, in bf16 to whole pixels or worse.

    Raises:
        UnsupportedBackboneError: the backbone does not provide the required feature maps.
        ConfigError: its strides are not powers of two, or it accepts only one image size.
    """

    def __init__(self, backbone: Backbone, image_size: int) -> None:
        super().__init__()
        self.backbone, self.out_channels = backbone, WIDTH
        self.plain = find_patch_embedding(backbone.net) is not None
        if self.plain:
            side = patch_size(backbone.net)
            self.strides: tuple[int, ...] = _STRIDES
            self.stride = 2 ** round(math.log2(side))
            self.divisible = math.lcm(_STRIDES[-1], side)
            self.pyramid: nn.Module = SimplePyramid(backbone.info.feature_dim, self.stride)
        else:
            self.divisible = _STRIDES[-1]
            widths, self.strides = self._stages(image_size)
            self.pyramid = FeaturePyramidNetwork(widths, WIDTH)
        self.names = [str(number) for number in range(len(self.strides))]
        self.top = LastLevelMaxPool()
        self.autocast: Callable[[], AbstractContextManager[object]] = nullcontext

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        """Compute the pyramid levels of images (b, c, h, w), by name."""
        with self.autocast():
            levels = [level.float() for level in self._levels(images)]
        levels, names = self.top(levels, levels, list(self.names))
        return OrderedDict(zip(names, levels, strict=True))

    def _levels(self, images: Tensor) -> list[Tensor]:
        if not self.plain:
            return list(self.pyramid(dict(zip(self.names, self._maps(images), strict=True))).values())
        single = self.backbone.patch_features(images).permute(0, 3, 1, 2)
        wanted = [side // self.stride for side in images.shape[-2:]]
        if list(single.shape[-2:]) != wanted:
            single = F.interpolate(single, wanted, mode="bilinear", align_corners=False)
        return self.pyramid(single)

    def _maps(self, images: Tensor) -> list[Tensor]:
        return extract_level_maps(self.backbone.net, images, self.backbone.info.name)

    def _stages(self, image_size: int) -> tuple[list[int], tuple[int, ...]]:
        side = -(-image_size // self.divisible) * self.divisible
        info = self.backbone.info
        device = next(self.backbone.parameters()).device
        # not square, like most images
        images = torch.zeros(1, info.in_channels, side, side + self.divisible, device=device)
        try:
            with torch.no_grad():
                maps = self._maps(images)
        except AssertionError as error:  # raised by timm for a wrong size
            problem = f"does not accept images of arbitrary size ({error})"
            raise ConfigError(info.name, problem, "Choose a plain ViT or a convolutional network.") from error
        strides = tuple(side // one.shape[-2] for one in maps)
        if any(2 ** round(math.log2(stride)) != stride for stride in strides):
            raise ConfigError(info.name, f"strides {strides} are not powers of two", "Choose another network.")
        return [one.shape[1] for one in maps], strides


def freeze_batch_statistics(net: nn.Module) -> None:
    """Make batch normalization use running statistics, since the statistics of small batches are too noisy."""
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


def anchor_sizes(strides: Sequence[int]) -> tuple[tuple[int], ...]:
    """Return the anchor sizes, eight times the stride, for each pyramid level and the additional top level."""
    return tuple((8 * stride,) for stride in (*strides, 2 * strides[-1]))


IOUS = (0.5, 0.6, 0.7)
BOX_WEIGHTS = ((10.0, 10.0, 5.0, 5.0), (20.0, 20.0, 10.0, 10.0), (30.0, 30.0, 15.0, 15.0))
STAGE_WEIGHTS = (1.0, 0.5, 0.25)
_BETA = 1 / 9
Targets = list[dict[str, Tensor]]


class ClassAgnosticPredictor(nn.Module):
    """Box predictor with class logits and a single box shared by all classes.

    Args:
        width: width of the features, f.
        num_classes: number of classes c, including the background.

    Shape:
        - features: ``(m, f)``.
        - returns: ``(m, c)`` and ``(m, 4)``.
    """

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.classes = nn.Linear(width, num_classes)
        self.boxes = nn.Linear(width, 4)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Compute class logits (m, c) and box offsets (m, 4) from features (m, f)."""
        return self.classes(features), self.boxes(features)


def stage_losses(logits: Tensor, offsets: Tensor, labels: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    r"""Compute the losses of one stage: cross-entropy for the classes and smooth L1 loss for the box offsets.

    .. math:: L_{box} = \frac{1}{m} \sum_{i: y_i > 0} \sum_{k=1}^4 s(o_{ik} - w_{ik}),
              \quad s(x) = \frac{9 x^2}{2} \text{ if } |x| < \frac19 \text{ else } |x| - \frac{1}{18}

    Both are >= 0; the second is 0 if there are no objects.

    Shape:
        - logits: ``(m, c)`` float; class 0 is the background.
        - offsets: ``(m, 4)`` float.
        - labels: ``(m,)`` int64 in ``[0, c)``.
        - targets: ``(m, 4)`` float, no gradient.
        - returns: two ``()`` float tensors.

    Source:
        Cascade R-CNN, Eq. 2 and 5, with the averages of torchvision's ``fastrcnn_loss``.
    """
    found = labels > 0
    distance = F.smooth_l1_loss(offsets[found], targets[found], beta=_BETA, reduction="sum")
    return F.cross_entropy(logits, labels), distance / max(1, len(labels))


class CascadeRoIHeads(nn.Module):
    """Three-stage cascade of torchvision's ``RoIHeads``, for use as the ``roi_heads`` of ``GeneralizedRCNN``.

    ``make_stage`` maps a stage's IoU and box weights to its heads, with a `ClassAgnosticPredictor`.
    """

    def __init__(self, make_stage: Callable[[float, tuple[float, ...]], RoIHeads]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(make_stage(iou, weights) for iou, weights in zip(IOUS, BOX_WEIGHTS, strict=True))

    def forward(
        self,
        features: Mapping[str, Tensor],
        proposals: list[Tensor],
        image_shapes: list[tuple[int, int]],
        targets: Targets | None = None,
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        """Return each image's detections, or the losses in training; arguments are those of ``RoIHeads``."""
        if self.training:
            assert targets is not None
            return [], self._losses(features, proposals, image_shapes, targets)
        return self._detections(features, proposals, image_shapes), {}

    def _losses(
        self,
        features: Mapping[str, Tensor],
        proposals: list[Tensor],
        image_shapes: list[tuple[int, int]],
        targets: Targets,
    ) -> dict[str, Tensor]:
        losses: dict[str, Tensor] = {}
        for number, (stage, weight) in enumerate(zip(self._heads(), STAGE_WEIGHTS, strict=True), start=1):
            # the sampler appends the ground-truth boxes to its argument
            proposals, matched, labels, wanted = stage.select_training_samples(list(proposals), targets)
            logits, offsets = _predict(stage, features, proposals, image_shapes)
            classes, boxes = stage_losses(logits, offsets, torch.cat(labels), torch.cat(wanted))
            losses[f"stage{number}_classes"], losses[f"stage{number}_boxes"] = weight * classes, weight * boxes
            found = [torch.where(own > 0)[0] for own in labels]
            masked = [boxes[rows] for boxes, rows in zip(proposals, found, strict=True)]
            losses[f"stage{number}_masks"] = weight * maskrcnn_loss(
                _mask_logits(stage, features, masked, image_shapes),
                masked,
                [target["masks"] for target in targets],
                [target["labels"] for target in targets],
                [own[rows] for own, rows in zip(matched, found, strict=True)],
            )
            proposals = apply_offsets(stage, offsets.detach(), proposals, image_shapes)
        return losses

    def _detections(
        self, features: Mapping[str, Tensor], proposals: list[Tensor], image_shapes: list[tuple[int, int]]
    ) -> list[dict[str, Tensor]]:
        total: Tensor | None = None
        *earlier, last = self._heads()
        for stage in earlier:
            logits, offsets = _predict(stage, features, proposals, image_shapes)
            total = logits.softmax(-1) if total is None else total + logits.softmax(-1)
            proposals = apply_offsets(stage, offsets, proposals, image_shapes)
        logits, offsets = _predict(last, features, proposals, image_shapes)
        assert total is not None
        scores = (total + logits.softmax(-1)) / len(self.stages)
        # torchvision expects logits and one box per class; softmax turns log scores back into scores
        boxes, shares, labels = last.postprocess_detections(
            scores.clamp(min=1e-30).log(), offsets.repeat(1, scores.shape[1]), proposals, image_shapes
        )
        found = [
            {"boxes": own, "scores": share, "labels": label}
            for own, share, label in zip(boxes, shares, labels, strict=True)
        ]
        parts = [
            maskrcnn_inference(_mask_logits(stage, features, boxes, image_shapes), labels) for stage in self._heads()
        ]
        for entry, *masks in zip(found, *parts, strict=True):
            entry["masks"] = torch.stack(masks).mean(dim=0)
        return found

    def _heads(self) -> Sequence[RoIHeads]:
        return list(self.stages)


def apply_offsets(
    stage: RoIHeads, offsets: Tensor, proposals: list[Tensor], image_shapes: list[tuple[int, int]]
) -> list[Tensor]:
    """Adjust proposal boxes by predicted offsets (m, 4), and clip them to their images."""
    moved = stage.box_coder.decode(offsets, proposals).reshape(-1, 4)
    parts = moved.split([len(boxes) for boxes in proposals])
    return [clip_boxes_to_image(boxes, shape) for boxes, shape in zip(parts, image_shapes, strict=True)]


def _predict(
    stage: RoIHeads, features: Mapping[str, Tensor], proposals: list[Tensor], image_shapes: list[tuple[int, int]]
) -> tuple[Tensor, Tensor]:
    pooled = stage.box_roi_pool(features, proposals, image_shapes)
    logits, offsets = stage.box_predictor(stage.box_head(pooled))
    return logits, offsets


def _mask_logits(
    stage: RoIHeads, features: Mapping[str, Tensor], boxes: list[Tensor], image_shapes: list[tuple[int, int]]
) -> Tensor:
    pooled = stage.mask_roi_pool(features, boxes, image_shapes)
    return stage.mask_predictor(stage.mask_head(pooled))


DetectorKind = Literal["faster-rcnn", "mask-rcnn", "cascade-mask-rcnn"]
_RATIOS = (0.5, 1.0, 2.0)
_BOX_SIDE, _MASK_SIDE, _FC = 7, 14, 1024
_CONVS = (WIDTH,) * 4
_SCORE, _OVERLAP, _KEPT = 0.05, 0.5, 100
_OBJECTS = 0.25


def build_detector(
    network: InferenceNetwork,
    kind: DetectorKind,
    num_classes: int,
    *,
    shorter_side: int = 800,
    longer_side: int = 1333,
    proposals: int = 1000,
    samples: int = 512,
    seed: int,
) -> FasterRCNN:
    """Build a torchvision detector on a copy of a network's backbone.

    Args:
        network: a network with a backbone; its layers on top of the backbone are not used.
        kind: kind of the detector.
        num_classes: number of object classes, c; class i has the label i + 1, 0 is the background.
        shorter_side: shorter side of resized images in pixels.
        longer_side: maximum longer side of resized images in pixels.
        proposals: number of proposed regions per image, doubled in training.
        samples: number of proposals and ground-truth boxes per image on which the heads are trained.
        seed: seed for initializing the weights outside the backbone.

    Returns:
        torchvision's model on the backbone's device. It takes a list of images (c, h, w) in [0, 1] of any size, and
        targets in training, and resizes, normalizes and pads the images itself.

    Raises:
        ConfigError: the network has no backbone, or does not accept images of this size.
        UnsupportedBackboneError: the backbone has no feature maps.
    """
    backbone = getattr(network, "backbone", None)
    if not isinstance(backbone, Backbone):
        problem = f"{network.identity['name']} has no backbone that a detector can use"
        raise ConfigError("evaluate detection", problem, "Choose another network.")
    device = next(backbone.parameters()).device
    with seeded_init(seed):
        body = DetectionBackbone(copy.deepcopy(backbone).cpu().eval().requires_grad_(True), shorter_side)
        pools = [_pool(body, side) for side in (_BOX_SIDE, _MASK_SIDE)]
        spec = network.input_spec
        options = {
            "min_size": shorter_side, "max_size": longer_side, "image_mean": spec.mean, "image_std": spec.std,
            "size_divisible": body.divisible, "box_roi_pool": pools[0],
            "rpn_anchor_generator": AnchorGenerator(
                anchor_sizes(body.strides), (_RATIOS,) * (len(body.strides) + 1)
            ),
            "rpn_pre_nms_top_n_train": 2 * proposals, "rpn_post_nms_top_n_train": 2 * proposals,
            "rpn_pre_nms_top_n_test": proposals, "rpn_post_nms_top_n_test": proposals,
            "box_batch_size_per_image": samples,
        }  # fmt: skip
        if kind == "mask-rcnn":
            return MaskRCNN(body, num_classes + 1, mask_roi_pool=pools[1], **options).to(device)
        detector = FasterRCNN(body, num_classes + 1, **options)
        if kind == "cascade-mask-rcnn":
            detector.roi_heads = CascadeRoIHeads(partial(_build_stage, pools[0], pools[1], num_classes + 1, samples))
        return detector.to(device)


def _pool(body: DetectionBackbone, side: int) -> MultiScaleRoIAlign:
    pool = MultiScaleRoIAlign(body.names, side, 2)
    # set here, because torchvision would infer them from the first images before padding
    pool.scales = [1 / stride for stride in body.strides]
    lowest, highest = (stride.bit_length() - 1 for stride in (body.strides[0], body.strides[-1]))
    pool.map_levels = initLevelMapper(lowest, highest)
    return pool


def _build_stage(
    box_pool: MultiScaleRoIAlign,
    mask_pool: MultiScaleRoIAlign,
    num_classes: int,
    samples: int,
    iou: float,
    weights: tuple[float, ...],
) -> RoIHeads:
    """Return the heads of a cascade stage: four convolutions and a linear layer for boxes, four for masks."""
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

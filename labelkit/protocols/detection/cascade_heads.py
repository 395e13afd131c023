"""Three box heads in a row, each trained on the boxes of the one before and asking more of them.

Source: Z. Cai and N. Vasconcelos, "Cascade R-CNN: High Quality Object Detection and Instance Segmentation" (TPAMI
2019), Sec. 4 and 5. Stage t takes boxes with an IoU of .5, .6, .7 for objects; boxes are corrected without regard to
class, by offsets that are scaled by 10, 20, 30 (5, 10, 15 for the places of width and height: twice as much as for
their logarithms). Its best variant has a mask head in each stage and averages their masks. Weights of the losses are
1, 1/2, 1/4, as in ``open-mmlab/mmdetection``. Sampling, matching, coding and suppression are torchvision's.
Each stage samples again, from the boxes of the one before and the true ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection.roi_heads import RoIHeads, maskrcnn_inference, maskrcnn_loss
from torchvision.ops import clip_boxes_to_image

IOUS = (0.5, 0.6, 0.7)
BOX_WEIGHTS = ((10.0, 10.0, 5.0, 5.0), (20.0, 20.0, 10.0, 10.0), (30.0, 30.0, 15.0, 15.0))
STAGE_WEIGHTS = (1.0, 0.5, 0.25)
_BETA = 1 / 9
Targets = list[dict[str, Tensor]]


class ClassAgnosticPredictor(nn.Module):
    """Box predictor with class logits and a single box shared by all classes.

    Args:
        width: of the features, f.
        num_classes: c, with the background.

    Shape:
        - features: ``(m, f)``.
        - returns: ``(m, c)`` and ``(m, 4)``.
    """

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.classes = nn.Linear(width, num_classes)
        self.boxes = nn.Linear(width, 4)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return class logits (m, c) and box offsets (m, 4) of features (m, f)."""
        return self.classes(features), self.boxes(features)


def stage_loss(logits: Tensor, offsets: Tensor, labels: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    r"""Compute the cross-entropy of the classes and the smooth L1 loss of the box offsets of one stage.

    .. math:: L_{box} = \frac{1}{m} \sum_{i: y_i > 0} \sum_{k=1}^4 s(o_{ik} - w_{ik}),
              \quad s(x) = \frac{9 x^2}{2} \text{ if } |x| < \frac19 \text{ else } |x| - \frac{1}{18}

    Both >= 0; the second is 0 without objects.

    Shape:
        - logits: ``(m, c)`` float; class 0 is the background.
        - offsets: ``(m, 4)`` float.
        - labels: ``(m,)`` int64 in ``[0, c)``.
        - wanted: ``(m, 4)`` float, no gradient.
        - returns: two of ``()`` float.

    Source:
        Cascade R-CNN, Eq. 2 and 5, with the averages of torchvision's ``fastrcnn_loss``.
    """
    found = labels > 0
    distance = F.smooth_l1_loss(offsets[found], wanted[found], beta=_BETA, reduction="sum")
    return F.cross_entropy(logits, labels), distance / max(1, len(labels))


class CascadeRoIHeads(nn.Module):
    """Three-stage cascade of torchvision's ``RoIHeads``, to be used as ``roi_heads`` of ``GeneralizedRCNN``.

    Args:
        make_stage: a stage's IoU and box weights to its heads, with a `ClassAgnosticPredictor`.

    Raises:
        ValueError: a stage has no predictor of this kind.
    """

    def __init__(self, make_stage: Callable[[float, tuple[float, ...]], RoIHeads]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(make_stage(iou, weights) for iou, weights in zip(IOUS, BOX_WEIGHTS, strict=True))
        for stage in self.stages:
            if not isinstance(stage.box_predictor, ClassAgnosticPredictor):
                raise ValueError(f"a stage predicts by {type(stage.box_predictor).__name__}")

    def forward(
        self,
        features: Mapping[str, Tensor],
        proposals: list[Tensor],
        image_shapes: list[tuple[int, int]],
        targets: Targets | None = None,
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        """Return the detections of each image, or the losses in training, with arguments as of ``RoIHeads``."""
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
            # the sampler appends the true boxes to what it is given
            proposals, matched, labels, wanted = stage.select_training_samples(list(proposals), targets)
            logits, offsets = _predicted(stage, features, proposals, image_shapes)
            classes, boxes = stage_loss(logits, offsets, torch.cat(labels), torch.cat(wanted))
            losses[f"stage{number}_classes"], losses[f"stage{number}_boxes"] = weight * classes, weight * boxes
            if stage.has_mask():
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
            logits, offsets = _predicted(stage, features, proposals, image_shapes)
            total = logits.softmax(-1) if total is None else total + logits.softmax(-1)
            proposals = apply_offsets(stage, offsets, proposals, image_shapes)
        logits, offsets = _predicted(last, features, proposals, image_shapes)
        assert total is not None
        scores = (total + logits.softmax(-1)) / len(self.stages)
        # torchvision takes logits, and a box of each class; the softmax of logarithms of shares is these
        boxes, shares, labels = last.postprocess_detections(
            scores.clamp(min=1e-30).log(), offsets.repeat(1, scores.shape[1]), proposals, image_shapes
        )
        found = [
            {"boxes": own, "scores": share, "labels": label}
            for own, share, label in zip(boxes, shares, labels, strict=True)
        ]
        if last.has_mask():
            parts = [
                maskrcnn_inference(_mask_logits(stage, features, boxes, image_shapes), labels)
                for stage in self._heads()
            ]
            for entry, *masks in zip(found, *parts, strict=True):
                entry["masks"] = torch.stack(masks).mean(dim=0)
        return found

    def _heads(self) -> Sequence[RoIHeads]:
        return list(self.stages)


def apply_offsets(
    stage: RoIHeads, offsets: Tensor, proposals: list[Tensor], image_shapes: list[tuple[int, int]]
) -> list[Tensor]:
    """Shift boxes by predicted offsets (m, 4) and clip them to their images."""
    moved = stage.box_coder.decode(offsets, proposals).reshape(-1, 4)
    parts = moved.split([len(boxes) for boxes in proposals])
    return [clip_boxes_to_image(boxes, shape) for boxes, shape in zip(parts, image_shapes, strict=True)]


def _predicted(
    stage: RoIHeads, features: Mapping[str, Tensor], proposals: list[Tensor], image_shapes: list[tuple[int, int]]
) -> tuple[Tensor, Tensor]:
    pooled = stage.box_roi_pool(features, proposals, image_shapes)
    logits, offsets = stage.box_predictor(stage.box_head(pooled))
    return logits, offsets


def _mask_logits(
    stage: RoIHeads, features: Mapping[str, Tensor], boxes: list[Tensor], image_shapes: list[tuple[int, int]]
) -> Tensor:
    pooled = stage.mask_roi_pool(features, boxes, image_shapes)
    logits: Tensor = stage.mask_predictor(stage.mask_head(pooled))
    return logits

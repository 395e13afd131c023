"""Detectors: shapes and sizes known from their parts, and the loss of a stage of the cascade, computed again."""

import math

import pytest
import torch
from labelkit.errors import ConfigError
from labelkit.models.inference import BackboneNetwork, PixelNetwork
from labelkit.protocols.detection.detector import (
    STAGE_WEIGHTS,
    CascadeRoIHeads,
    DetectionBackbone,
    SimplePyramid,
    anchor_sizes,
    build_detector,
    freeze_batch_statistics,
    stage_losses,
)
from torch import Tensor
from torchvision.ops import box_iou

SIZE = {"shorter_side": 64, "longer_side": 96, "proposals": 12, "samples": 8}


def _targets() -> list[dict[str, Tensor]]:
    masks = torch.zeros(2, 48, 64, dtype=torch.uint8)
    masks[0, 4:20, 4:30], masks[1, 20:44, 30:60] = 1, 1
    boxes = torch.tensor([[4.0, 4, 30, 20], [30, 20, 60, 44]])
    return [{"boxes": boxes, "labels": torch.tensor([1, 2]), "masks": masks}]


def test_a_simple_pyramid_has_four_strides_and_the_parameters_of_its_parts() -> None:
    width, out = 32, 16
    pyramid = SimplePyramid(width, 16, out)

    levels = pyramid(torch.zeros(2, width, 6, 4))

    assert [tuple(level.shape) for level in levels] == [(2, 16, 24, 16), (2, 16, 12, 8), (2, 16, 6, 4), (2, 16, 3, 2)]
    ends = [width // 4, width // 2, width, width]  # the width before the last two convolutions
    after = sum(own * out + 2 * out + 9 * out * out + 2 * out for own in ends)
    doubled = width * (width // 2) * 4 + width // 2  # a deconvolution to half the width
    doubled_again = (width // 2) * (width // 4) * 4 + width // 4 + 2 * (width // 2)  # and its norm
    assert sum(weights.numel() for weights in pyramid.parameters()) == after + 2 * doubled + doubled_again


@pytest.mark.parametrize("name", ["vit_micro_p8_64", "resnet18"])
def test_maps_of_a_backbone_have_the_strides_that_it_says(name: str) -> None:
    body = DetectionBackbone(BackboneNetwork(name, seed=0).backbone.eval(), 64)
    levels = body(torch.zeros(1, 3, 64, 128))
    assert (body.strides, body.divisible) == ((4, 8, 16, 32), 32)
    assert [tuple(level.shape) for level in levels.values()] == [
        (1, 256, 64 // stride, 128 // stride) for stride in (4, 8, 16, 32, 64)
    ]
    assert list(levels) == [*body.names, "pool"]
    assert anchor_sizes(body.strides) == tuple((8 * stride,) for stride in (4, 8, 16, 32, 64))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["faster-rcnn", "mask-rcnn", "cascade-mask-rcnn"])
def test_a_detector_learns_and_finds_boxes_within_its_images(kind: str) -> None:
    network = BackboneNetwork("vit_micro_p8_64", seed=0).eval()
    detector = build_detector(network, kind, 2, **SIZE, seed=0)  # type: ignore[arg-type]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        losses = detector.train()([torch.rand(3, 48, 64)], _targets())
    sum(losses.values()).backward()
    assert all(torch.isfinite(value) for value in losses.values())
    # each weight but those that no class or level asked for has a gradient; those of the first block among them
    assert detector.backbone.backbone.net.blocks[0].attn.qkv.weight.grad.abs().max() > 0
    assert network.backbone.net.blocks[0].attn.qkv.weight.grad is None
    parts = 3 if kind == "cascade-mask-rcnn" else 1
    assert len(losses) == 2 + parts * (2 if kind == "faster-rcnn" else 3)

    with torch.inference_mode():
        (found,) = detector.eval()([torch.rand(3, 48, 64)])

    count = len(found["boxes"])
    assert found["boxes"].shape == (count, 4)
    assert count
    assert found["labels"].min() >= 1
    assert found["labels"].max() <= 2
    assert (found["boxes"][:, 2] <= 64 + 1e-3).all()
    assert ("masks" in found) == (kind != "faster-rcnn")
    if kind != "faster-rcnn":
        assert found["masks"].shape == (count, 1, 48, 64)


def test_the_loss_of_a_stage_is_what_plain_loops_give() -> None:
    generator = torch.Generator().manual_seed(3)
    logits, offsets = torch.randn(6, 4, generator=generator), torch.randn(6, 4, generator=generator) / 4
    wanted = torch.randn(6, 4, generator=generator) / 4
    labels = torch.tensor([0, 2, 1, 0, 3, 0])

    classes, boxes = stage_losses(logits, offsets, labels, wanted)

    crossed, distance = 0.0, 0.0
    for row, label in enumerate(labels.tolist()):
        numbers = [math.exp(value) for value in logits[row].tolist()]
        crossed -= math.log(numbers[label] / sum(numbers)) / 6
        for own, goal in zip(offsets[row].tolist(), wanted[row].tolist(), strict=True):
            x = abs(own - goal)
            if label:
                distance += (9 * x * x / 2 if x < 1 / 9 else x - 1 / 18) / 6
    assert classes.item() == pytest.approx(crossed, rel=1e-5)
    assert boxes.item() == pytest.approx(distance, rel=1e-5)
    assert stage_losses(logits, offsets, torch.zeros(6, dtype=torch.int64), wanted)[1] == 0


def test_the_second_stage_learns_from_the_boxes_of_the_first_and_asks_for_an_iou_of_six_tenths() -> None:
    network = BackboneNetwork("vit_micro_p8_64", seed=0).eval()
    detector = build_detector(network, "cascade-mask-rcnn", 2, **{**SIZE, "samples": 64}, seed=0)
    heads: CascadeRoIHeads = detector.roi_heads.train()
    features = {
        str(level): torch.rand(1, 256, 64 // 2**level, 96 // 2**level, generator=torch.Generator().manual_seed(level))
        for level in range(4)
    }
    for level in list(features):  # of strides 4 to 32
        features[level] = features[level][..., : 16 // 2 ** int(level) or 1, : 24 // 2 ** int(level) or 1]
    truth = {"boxes": torch.tensor([[10.0, 10, 40, 40]]), "labels": torch.tensor([2])}
    truth["masks"] = torch.zeros(1, 64, 96, dtype=torch.uint8)
    # an IoU of 0.56 with the true box: an object for the first stage alone, if its box stays where it is
    proposals = [torch.tensor([[10.0, 10, 40, 26.8], [60, 40, 90, 60]])]
    assert box_iou(truth["boxes"], proposals[0])[0, 0].item() == pytest.approx(0.56)
    for stage in heads.stages:
        torch.nn.init.zeros_(stage.box_predictor.boxes.weight)
        torch.nn.init.zeros_(stage.box_predictor.boxes.bias)

    losses = heads(features, proposals, [(64, 96)], [truth])[1]

    # all are sampled: two proposals and the true box, whose offsets are zero; in the first stage the first proposal
    # is an object, too, which must grow by 13.2 / 16.8 of its height and move by half of that
    grown = 30 / 16.8
    wanted = [10 * (grown - 1) / 2, 5 * math.log(grown)]
    distance = sum(x - 1 / 18 for x in wanted)
    assert losses["stage1_boxes"].item() == pytest.approx(STAGE_WEIGHTS[0] * distance / 3, rel=1e-4)
    assert losses["stage2_boxes"].item() == pytest.approx(0, abs=1e-6)


def test_statistics_of_batch_normalization_stay_as_they_are() -> None:
    network = BackboneNetwork("resnet18", seed=0)
    detector = build_detector(network, "faster-rcnn", 2, **SIZE, seed=0).train()
    freeze_batch_statistics(detector.backbone.backbone)
    before = {name: value.clone() for name, value in detector.named_buffers() if "running" in name}
    detector([torch.rand(3, 48, 64)], _targets())
    after = dict(detector.named_buffers())
    assert before
    assert all(value.equal(after[name]) for name, value in before.items())


def test_what_has_no_backbone_or_no_maps_is_refused() -> None:
    with pytest.raises(ConfigError, match="no backbone that a detector can use"):
        build_detector(PixelNetwork(8, 3), "mask-rcnn", 2, **SIZE, seed=0)
    with pytest.raises(ConfigError, match="has no feature maps from several depths"):
        build_detector(BackboneNetwork("resnet20_cifar", seed=0), "mask-rcnn", 2, **SIZE, seed=0)
    with pytest.raises(ConfigError, match="does not accept images of arbitrary size"):
        build_detector(BackboneNetwork("swin_tiny_patch4_window7_224", seed=0), "mask-rcnn", 2, **SIZE, seed=0)

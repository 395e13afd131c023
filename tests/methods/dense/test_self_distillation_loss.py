"""Losses of DINO and iBOT against plain loops in float64."""

import math

import pytest
import torch
from labelkit.methods.dense.distillation import MaskedPatchLoss


def softmax(values: list[float], temperature: float) -> list[float]:
    powers = [math.exp(value / temperature) for value in values]
    return [power / sum(powers) for power in powers]


def cross_entropy(target: list[float], output: list[float], temperature: float) -> float:
    named = softmax(output, temperature)
    return -sum(q * math.log(p) for q, p in zip(target, named, strict=True))


def test_hidden_patches_count_by_image() -> None:
    generator = torch.Generator().manual_seed(1)
    outputs = torch.rand(5, 4, generator=generator, dtype=torch.float64)
    targets = torch.softmax(torch.rand(5, 4, generator=generator, dtype=torch.float64) * 9, dim=1)
    owners = torch.tensor([0, 0, 0, 2, 2])  # image 1 has no hidden patch

    found = MaskedPatchLoss(0.2)(outputs, targets, owners, 3)

    each = [cross_entropy(q, s, 0.2) for q, s in zip(targets.tolist(), outputs.tolist(), strict=True)]
    assert float(found) == pytest.approx((sum(each[:3]) / 3 + 0 + sum(each[3:]) / 2) / 3, rel=1e-12)


def test_no_hidden_patch_is_no_loss_and_has_a_gradient() -> None:
    outputs = torch.zeros(0, 4, requires_grad=True)
    loss = MaskedPatchLoss(0.1)(outputs, torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), 3)
    loss.backward()
    assert (float(loss.detach()), outputs.grad.shape) == (0.0, (0, 4))

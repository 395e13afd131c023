"""Losses of DINO and iBOT against plain loops in float64."""

import math

import numpy as np
import pytest
import torch
from labelkit.methods.dense.distillation import MaskedPatchLoss, MultiViewDistillationLoss, centered_targets


def softmax(values: list[float], temperature: float) -> list[float]:
    powers = [math.exp(value / temperature) for value in values]
    return [power / sum(powers) for power in powers]


def cross_entropy(target: list[float], output: list[float], temperature: float) -> float:
    named = softmax(output, temperature)
    return -sum(q * math.log(p) for q, p in zip(target, named, strict=True))


def test_targets_are_measured_from_the_center_and_sharpened() -> None:
    outputs, center = torch.tensor([[0.5, 0.25, 0.0], [0.1, 0.1, 0.4]]), torch.tensor([0.25, 0.0, 0.1])

    found = centered_targets(outputs, center, 0.1)

    # 0.5 - 0.25, 0.25 - 0 and 0 - 0.1; then 0.1 - 0.25, 0.1 - 0 and 0.4 - 0.1
    expected = [softmax([0.25, 0.25, -0.1], 0.1), softmax([-0.15, 0.1, 0.3], 0.1)]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)
    assert not found.requires_grad


def test_the_loss_is_the_mean_over_pairs_of_different_views() -> None:
    generator = torch.Generator().manual_seed(0)
    views = torch.rand(4, 3, 5, generator=generator, dtype=torch.float64)
    teacher = torch.rand(2, 3, 5, generator=generator, dtype=torch.float64)
    targets = [centered_targets(view, torch.full((5,), 0.1, dtype=torch.float64), 0.05) for view in teacher]

    found = MultiViewDistillationLoss(0.1)(list(views), targets)

    total, pairs = 0.0, 0
    for a in range(2):
        for v in range(4):
            if a != v:
                pairs += 1
                for i in range(3):
                    target = softmax((teacher[a, i] - 0.1).tolist(), 0.05)
                    total += cross_entropy(target, views[v, i].tolist(), 0.1) / 3
    assert pairs == 6
    assert float(found) == pytest.approx(total / pairs, rel=1e-12)


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

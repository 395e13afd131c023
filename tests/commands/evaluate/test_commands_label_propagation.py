"""Masks carried along by similar features: against plain loops, and where the answer is known."""

import math

import pytest
import torch
from labelkit.commands.evaluate.tracking import propagate_masks, rescale_masks
from torch import Tensor
from torch.nn.functional import normalize


def by_loops(features: Tensor, context: Tensor, masks: Tensor, radius: int, top_k: int, temperature: float) -> Tensor:
    rows, columns, _ = features.shape
    result = torch.zeros(rows, columns, masks.shape[-1], dtype=features.dtype)
    for y in range(rows):
        for x in range(columns):
            near = [
                (float(features[y, x] @ context[f, v, u]), f, v, u)
                for f in range(len(context))
                for v in range(rows)
                for u in range(columns)
                if not radius or max(abs(v - y), abs(u - x)) <= radius
            ]
            best = sorted(near, reverse=True)[:top_k]
            weights = [math.exp(cosine / temperature) for cosine, *_ in best]
            for weight, (_, f, v, u) in zip(weights, best, strict=True):
                result[y, x] += weight / sum(weights) * masks[f, v, u]
    return result


@pytest.mark.parametrize(("radius", "top_k"), [(0, 3), (1, 5), (2, 100), (1, 1)])
def test_masks_are_the_mean_of_the_most_similar_patches_near(radius: int, top_k: int) -> None:
    generator = torch.Generator().manual_seed(0)
    features = normalize(torch.randn(3, 4, 6, generator=generator, dtype=torch.float64), dim=-1)
    context = normalize(torch.randn(2, 3, 4, 6, generator=generator, dtype=torch.float64), dim=-1)
    masks = torch.rand(2, 3, 4, 3, generator=generator, dtype=torch.float64)
    found = propagate_masks(features, context, masks, radius=radius, top_k=top_k, temperature=0.1)
    # more sources than the window holds: those out of it have weight 0
    torch.testing.assert_close(found, by_loops(features, context, masks, radius, top_k, 0.1))


def test_shares_are_stretched_for_each_object() -> None:
    shares = torch.tensor([[0.2, 0.5], [0.4, 0.5], [0.3, 0.5]])
    torch.testing.assert_close(rescale_masks(shares), torch.tensor([[0.0, 0.5], [1.0, 0.5], [0.5, 0.5]]))

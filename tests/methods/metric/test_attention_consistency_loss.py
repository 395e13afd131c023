"""Attention that moves with the image: the worked numbers of the method's description."""

import math

import numpy as np
import pytest
import torch
from labelkit.algorithms.attention import keypoint_heatmaps
from labelkit.algorithms.homographies import (
    apply_homographies,
    crop_homographies,
    rotation_homographies,
    sample_second_views,
    zoom_homographies,
)
from labelkit.methods.metric.tac_ccl import FeatureSimilarityLoss, TransformedAttentionLoss

NINE = torch.arange(1, 10, dtype=torch.float64).view(1, 3, 3) / 10
SIXTEEN = torch.arange(16, dtype=torch.float64).view(1, 4, 4) / 16
QUARTER = torch.from_numpy(rotation_homographies([math.pi / 2]))
QUADRANT = torch.from_numpy(crop_homographies([[-1, -1, 0, 0]]))
SAME = torch.eye(3, dtype=torch.float64)[None]
MEAN = TransformedAttentionLoss()


def total(first: torch.Tensor, second: torch.Tensor, homographies: torch.Tensor) -> float:
    """The printed sum (Eq. 4.2) of one pair: the mean times the places that the second view shows."""
    _, visible = sample_second_views(second[:, None], homographies, (first.shape[1], first.shape[2]))
    return float(MEAN(first, second, homographies)) * int(visible.sum())


def test_a_map_turned_with_its_image_costs_nothing() -> None:
    assert float(MEAN(NINE, torch.rot90(NINE, 1, (1, 2)), QUARTER)) == pytest.approx(0, abs=1e-12)


def test_a_map_that_stays_while_its_image_turns() -> None:
    assert total(NINE, NINE, QUARTER) == pytest.approx(1.2)
    assert float(MEAN(NINE, NINE, QUARTER)) == pytest.approx(1.2 / 9)


def test_a_quadrant_enlarged_by_the_nearest_value_costs_nothing() -> None:
    enlarged = SIXTEEN[:, :2, :2].repeat_interleave(2, 1).repeat_interleave(2, 2)
    assert float(MEAN(SIXTEEN, enlarged, QUADRANT)) == pytest.approx(0, abs=1e-12)


def test_a_quadrant_enlarged_bilinearly_costs_what_interpolation_loses() -> None:
    enlarged = torch.nn.functional.interpolate(
        SIXTEEN[:, None, :2, :2], size=(4, 4), mode="bilinear", align_corners=False
    )[:, 0]
    assert total(SIXTEEN, enlarged, QUADRANT) == pytest.approx(0.004150, abs=1e-6)
    assert float(MEAN(SIXTEEN, enlarged, QUADRANT)) == pytest.approx(0.001038, abs=1e-6)


@pytest.mark.parametrize(
    ("maps", "homographies", "expected"),
    [
        (SIXTEEN, crop_homographies([[-0.5, -0.5, 0.5, 0.5]]), 0.066406),
        (SIXTEEN, zoom_homographies([0.5]), 0.332031),
        (NINE, rotation_homographies([math.pi / 4]), 0.317157),
        (NINE, np.array([[[1.0, 0, 0], [0, 1, 0], [0.25, 0, 1]]]), 0.004286),
    ],
    ids=["center crop", "zoom", "45 degrees", "perspective"],
)
def test_maps_that_stay_under_a_transform(maps: torch.Tensor, homographies: np.ndarray, expected: float) -> None:
    assert total(maps, maps, torch.from_numpy(homographies)) == pytest.approx(expected, abs=1e-6)


def test_pairs_without_a_common_place_do_not_count() -> None:
    away = torch.eye(3, dtype=torch.float64)[None].clone()
    away[0, 0, 2] = 10
    maps = NINE.repeat(2, 1, 1).requires_grad_()
    loss = MEAN(maps, maps.flip(1), torch.cat((SAME, away)))
    assert float(loss.detach()) == pytest.approx(float(MEAN(NINE, NINE.flip(1), SAME)))

    alone = MEAN(maps[:1], maps[:1], away)
    alone.backward()
    assert float(alone.detach()) == 0


def test_both_maps_get_gradients() -> None:
    first, second = NINE.clone().requires_grad_(), NINE.clone().requires_grad_()
    MEAN(first, second, QUARTER).backward()
    assert float(first.grad.abs().sum()) > 0
    assert float(second.grad.abs().sum()) > 0


def test_masked_maps_of_matched_images() -> None:
    present = torch.ones(1, 3, dtype=torch.bool)
    spots = torch.tensor([[[-2 / 3, -2 / 3], [0, -2 / 3], [0.1, 0.2]]], dtype=torch.float64)
    turned, _ = apply_homographies(spots, QUARTER)
    first = NINE * keypoint_heatmaps(spots, present, (3, 3))
    second = torch.rot90(NINE, 1, (1, 2)) * keypoint_heatmaps(turned, present, (3, 3))

    assert total(first, second, QUARTER) == pytest.approx(0, abs=1e-12)
    assert total(first, second, SAME) == pytest.approx(0.644501, abs=1e-6)


def test_distance_of_embeddings_and_its_gradient_at_zero() -> None:
    first = torch.tensor([[1.0, 0], [1, 0]], dtype=torch.float64, requires_grad=True)
    second = torch.tensor([[0.8, 0.6], [1, 0]], dtype=torch.float64)
    loss = FeatureSimilarityLoss()(first, second)
    loss.backward()

    assert float(loss.detach()) == pytest.approx((math.sqrt(0.4) + 1e-6) / 2)
    assert torch.isfinite(first.grad).all()

"""Views have the bits of plain operations: earlier runs go on as they were."""

import numpy as np
import pytest
import torch
from labelkit.data.keyed_random import KeyedRNG
from labelkit.data.views.colors import rgb_to_gray
from labelkit.data.views.spec import Normalize, ViewSpec
from labelkit.data.views.transforms import finish_view


def test_gray_is_the_weighted_sum_from_red_to_blue() -> None:
    red, green, blue = torch.rand((3, 50, 50), generator=torch.Generator().manual_seed(0))
    assert torch.equal(
        rgb_to_gray(torch.stack((red, green, blue))[None])[0, 0], 0.2989 * red + 0.587 * green + 0.114 * blue
    )


@pytest.mark.parametrize(
    "normalize", [Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), Normalize((0.5,) * 3, (0.3,) * 3)]
)
def test_finished_views_have_the_bits_of_one_division_one_mirror_and_one_normalization(normalize: Normalize) -> None:
    crops = torch.arange(4 * 3 * 16 * 16).remainder(256).to(torch.uint8).view(4, 3, 16, 16)
    kept = crops.clone()
    boxes, sizes = np.tile([0.0, 0.0, 16.0, 16.0], (4, 1)), np.full((4, 2), 16)
    spec = ViewSpec(16, hflip=0.5)
    made, geometry = finish_view(crops, boxes, sizes, spec, KeyedRNG(0, 0, np.arange(4)), 0, normalize=normalize)
    mirrored = geometry.matrices[:, 0, 0] < 0
    assert 0 < mirrored.sum() < 4
    plain = kept.float() / 255
    plain[mirrored] = plain[mirrored].flip(-1)
    mean, std = (torch.tensor(values)[:, None, None] for values in (normalize.mean, normalize.std))
    assert torch.equal(made, (plain - mean) / std)
    assert torch.equal(crops, kept)

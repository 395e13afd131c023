"""Views that are finished one image after the other have the bits of a batch: earlier runs go on as they were."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from labelkit.data.views.colors import (
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
    jitter_colors,
    rgb_to_gray,
)
from labelkit.data.views.spec import Normalize, ViewSpec
from labelkit.data.views.transforms import finish_view
from torch import Tensor

STRENGTHS = (0.4, 0.8, 0.4, 0.2)
# all orders of the four operations, as itertools lists them
ORDERS = [
    (a, b, c, d) for a in range(4) for b in range(4) for c in range(4) for d in range(4) if len({a, b, c, d}) == 4
]


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compute with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def jittered_as_batches(images: Tensor, u: np.ndarray, rows: np.ndarray) -> Tensor:
    """Apply each operation at once to all images whose turn it has."""
    orders = [ORDERS[min(int(drawn * 24), 23)] for drawn in u[:, 4]]
    for position in range(4):
        for number, operation in enumerate((adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue)):
            at = [row for row in rows.tolist() if orders[row][position] == number]
            low, span = (
                (-STRENGTHS[3], 2 * STRENGTHS[3]) if number == 3 else (1 - STRENGTHS[number], 2 * STRENGTHS[number])
            )
            factors = torch.from_numpy((low + span * u[at, number]).astype(np.float32))
            if at:
                images[at] = operation(images[at], factors)
    return images


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("channels", [1, 3])
def test_jittered_images_have_the_bits_of_jittered_batches(channels: int) -> None:
    # more pixels than torch gives one thread
    images = torch.rand((9, channels, 208, 190), generator=torch.Generator().manual_seed(0))
    u = np.random.default_rng(0).random((9, 5), dtype=np.float32)
    rows = np.array([0, 1, 2, 4, 5, 7, 8])
    expected = jittered_as_batches(images.clone(), u, rows)
    assert torch.equal(jitter_colors(images, STRENGTHS, u, rows), expected)


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
    made, geometry = finish_view(crops, boxes, sizes, spec, np.arange(4), seed=0, epoch=0, view=0, normalize=normalize)
    mirrored = geometry.matrices[:, 0, 0] < 0
    assert 0 < mirrored.sum() < 4
    plain = kept.float() / 255
    plain[mirrored] = plain[mirrored].flip(-1)
    mean, std = (torch.tensor(values)[:, None, None] for values in (normalize.mean, normalize.std))
    assert torch.equal(made, (plain - mean) / std)
    assert torch.equal(crops, kept)


def test_normalizing_in_place_has_the_bits_of_normalizing() -> None:
    images = torch.rand((3, 3, 7, 9), generator=torch.Generator().manual_seed(0))
    normalize = Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    expected = normalize(images)
    assert normalize.in_place(images) is images
    assert torch.equal(images, expected)

"""Masks of blocks: never more than the share, near it on average, and made of rectangles of the published shapes."""

import numpy as np
import pytest
from labelkit.methods.dense.ibot import SMALLEST_ASPECT, draw_block_mask, draw_mask_ratio


@pytest.mark.parametrize(("rows", "columns", "ratio"), [(14, 14, 0.3), (14, 14, 0.5), (4, 4, 0.4), (6, 10, 0.2)])
def test_masks_hide_at_most_the_share_and_on_average_nearly_it(rows: int, columns: int, ratio: float) -> None:
    generator = np.random.default_rng(0)
    shares = [draw_block_mask(rows, columns, ratio, generator).mean() for _ in range(300)]
    assert max(shares) <= ratio
    assert np.mean(shares) > 0.75 * ratio


def test_nothing_is_hidden_for_a_share_below_one_patch() -> None:
    generator = np.random.default_rng(0)
    assert not any(draw_block_mask(14, 14, share, generator).any() for share in (0, 1 / 197) for _ in range(20))


def test_a_first_block_is_a_rectangle_of_the_published_shape() -> None:
    # of a mask that has room for one block of the least size alone: 16 patches on a map of 14
    generator, found = np.random.default_rng(3), set()
    for _ in range(400):
        mask = draw_block_mask(14, 14, 16 / 196, generator)
        if mask.any():
            height, width = (int(mask.any(axis=axis).sum()) for axis in (1, 0))
            if mask.sum() == height * width:  # one block, or several that make one
                found.add((height, width))
    areas = {height * width for height, width in found}
    assert max(areas) <= 16
    # sides are rounded: sqrt(16 / 0.3) = 7.3 and sqrt(16 * 0.3) = 2.2
    assert {(4, 4), (7, 2), (2, 7)} <= found
    assert all(SMALLEST_ASPECT / 2 <= h / w <= 2 / SMALLEST_ASPECT for h, w in found if h * w >= 12)


def test_sides_and_axes_of_a_map_are_hidden_alike_in_the_long_run() -> None:
    generator = np.random.default_rng(1)
    shares = sum(draw_block_mask(14, 14, 0.3, generator).astype(int) for _ in range(1000)) / 1000
    for flipped in (shares[::-1], shares[:, ::-1], shares.T):
        assert np.abs(flipped - shares).max() < 0.08
    assert shares[0].mean() > 0.05  # blocks reach the border


def test_ratios_are_drawn_around_one_of_those_given() -> None:
    generator = np.random.default_rng(0)
    drawn = np.array([draw_mask_ratio(generator) for _ in range(4000)])
    moved = drawn[drawn != 0]
    assert len(moved) / 4000 == pytest.approx(0.5, abs=0.03)
    assert (moved.min(), moved.max()) == (pytest.approx(0.1, abs=0.005), pytest.approx(0.5, abs=0.005))
    assert moved.mean() == pytest.approx(0.3, abs=0.01)
    assert moved.std() == pytest.approx(0.4 / 12**0.5, abs=0.01)  # uniform

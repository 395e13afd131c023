"""Comparing pictures pixel by pixel: what a crop, a change and an empty picture give."""

import numpy as np
import pytest
from labelkit.algorithms.near_duplicates import SIDE, compare_image_pairs, compute_thumbnail_vectors
from numpy.typing import NDArray
from PIL import Image

PAIR = np.array([[0, 1]])


def texture(seed: int, side: int = 256) -> Image.Image:
    """A picture with structure at every scale."""
    generator = np.random.default_rng(seed)
    values = np.zeros((side, side))
    for cells in (4, 8, 16, 32, 64):
        noise = Image.fromarray(generator.normal(size=(cells, cells)).astype(np.float32))
        values += np.asarray(noise.resize((side, side), Image.Resampling.BICUBIC)) * (4 / cells) ** 0.5
    low, high = values.min(), values.max()
    return Image.fromarray(((values - low) / (high - low) * 255).astype(np.uint8))


def square(image: Image.Image) -> NDArray[np.uint8]:
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.LANCZOS))


def compared(left: Image.Image, right: Image.Image, side: int = 256) -> tuple[float, float, float]:
    agreement = compare_image_pairs(np.stack([square(left), square(right)]), np.array([side, side]), PAIR)
    return float(agreement.gray[0]), float(agreement.detail[0]), float(agreement.weakest[0])


@pytest.mark.parametrize("box", [(13, 0, 256, 243), (0, 13, 243, 256), (12, 12, 244, 244), (0, 0, 256, 231)])
def test_crop_by_a_tenth_agrees_everywhere(box: tuple[int, int, int, int]) -> None:
    gray, detail, weakest = compared(texture(1), texture(1).crop(box))
    assert (gray > 0.99, detail > 0.93, weakest > 0.85) == (True, True, True)
    back = compared(texture(1).crop(box), texture(1))
    assert (back[0] > 0.99, back[1] > 0.93, back[2] > 0.85) == (True, True, True)


def test_brightness_and_contrast_do_not_matter() -> None:
    darker = texture(2).point(lambda value: round(0.5 * value + 20))
    assert compared(texture(2), darker) == pytest.approx((1, 1, 1), abs=0.01)


def test_other_pictures_do_not_agree() -> None:
    assert compared(texture(3), texture(4))[1] < 0.3


def test_something_that_moved_shows_in_the_weakest_part() -> None:
    changed = texture(5)
    changed.paste(texture(6).crop((0, 0, 128, 64)), (64, 96))
    _, detail, weakest = compared(texture(5), changed)
    assert detail > 0.7
    assert weakest < 0.5


@pytest.mark.parametrize(
    ("sides", "level"),
    [((80, 500), 64), ((79, 500), 32), ((64, 60), 64), ((30, 32), 32), ((39, 500), 16), ((8, 8), 16)],
)
def test_pairs_are_compared_at_the_pixels_that_the_smaller_one_has(sides: tuple[int, int], level: int) -> None:
    pictures = np.stack([square(texture(8)), square(texture(8))])
    assert compare_image_pairs(pictures, np.array(sides), PAIR).levels.tolist() == [level]


def test_pairs_come_back_in_their_order_whatever_is_between_them() -> None:
    pictures = np.stack([square(texture(9)), square(texture(10)), square(texture(9))])
    pairs = np.array([[0, 1], [0, 2]] * 300)
    done: list[int] = []
    agreement = compare_image_pairs(pictures, np.full(3, 256), pairs, done.append)
    assert np.array_equal(agreement.detail > 0.9, np.arange(600) % 2 == 1)
    assert sum(done) == 600


def test_coarse_rows_have_correlations_as_products() -> None:
    left, right = square(texture(11)), square(texture(12))
    rows = compute_thumbnail_vectors(np.stack([left, right, np.full((SIDE, SIDE), 7, np.uint8)]))
    means = [one.reshape(16, 4, 16, 4).mean(axis=(1, 3)).ravel() for one in (left.astype(float), right.astype(float))]
    assert rows[0] @ rows[1] == pytest.approx(np.corrcoef(means)[0, 1], abs=1e-5)
    assert rows[0] @ rows[0] == pytest.approx(1, abs=1e-5)
    assert not rows[2].any()

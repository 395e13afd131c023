"""RandAugment and Cutout against Pillow's operations and hand-made geometry."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from labelkit.data.keyed_random import KeyedRNG
from labelkit.data.views.colors import (
    OPERATIONS,
    apply_color_operations,
    compose_geometric_maps,
    cut_out,
    sample_operations,
)
from labelkit.data.views.recipes import semi_supervised_views
from labelkit.data.views.spec import Normalize
from labelkit.data.views.transforms import apply_views
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

PLAIN = Normalize((0.0,) * 3, (1.0,) * 3)
NAMES = OPERATIONS["photo"]


@pytest.fixture
def photo(rng: np.random.Generator) -> np.ndarray:
    """One image of (20, 24, 3) bytes that do not span all levels."""
    return rng.integers(30, 200, (20, 24, 3), dtype=np.uint8)


def one(photo: np.ndarray, name: str, strength: float) -> Tensor:
    images = torch.from_numpy(photo.copy()).permute(2, 0, 1)[None].float() / 255
    return apply_color_operations(images, np.array([[NAMES.index(name)]]), np.array([[strength]]), NAMES)


@pytest.mark.parametrize(
    ("name", "pillow"),
    [
        ("autocontrast", ImageOps.autocontrast),
        ("equalize", ImageOps.equalize),
        ("posterize", lambda image: ImageOps.posterize(image, 6)),
        ("solarize", lambda image: ImageOps.solarize(image, 153)),
        ("brightness", lambda image: ImageEnhance.Brightness(image).enhance(0.05 + 0.9 * 0.6)),
        ("contrast", lambda image: ImageEnhance.Contrast(image).enhance(0.05 + 0.9 * 0.6)),
        ("color", lambda image: ImageEnhance.Color(image).enhance(0.05 + 0.9 * 0.6)),
        ("sharpness", lambda image: ImageEnhance.Sharpness(image).enhance(0.05 + 0.9 * 0.6)),
        ("identity", lambda image: image),
    ],
)
def test_an_operation_is_that_of_pillow_up_to_its_rounding(
    photo: np.ndarray, name: str, pillow: Callable[[Image.Image], Image.Image]
) -> None:
    expected = torch.from_numpy(np.array(pillow(Image.fromarray(photo)))).permute(2, 0, 1)[None].float() / 255
    torch.testing.assert_close(one(photo, name, 0.6), expected, atol=1.6 / 255, rtol=0)


def test_operations_follow_each_other_and_each_image_has_its_own() -> None:
    images = torch.full((2, 3, 4, 4), 0.8)
    invert, darken = NAMES.index("solarize"), NAMES.index("brightness")
    out = apply_color_operations(
        images, np.array([[invert, darken], [darken, invert]]), np.array([[0.5, 0.5]] * 2), NAMES
    )
    # (1 - 0.8) * 0.5, and 0.8 * 0.5 = 0.4, which is below the threshold
    torch.testing.assert_close(out[:, 0, 0, 0], torch.tensor([0.1, 0.4]))


def test_every_operation_is_drawn_and_as_often_as_any_other(rng: np.random.Generator) -> None:
    chosen, strengths, names = sample_operations(rng.random((14_000, 4), dtype=np.float32), "photo")
    assert len(names) == 14
    counts = np.bincount(chosen.ravel(), minlength=14)
    assert counts.min() > 1800  # 2000 expected, deviation 43
    assert strengths.min() < 0.01
    assert strengths.max() > 0.99
    assert "solarize" not in OPERATIONS["plain"]


def test_geometry_is_turned_slanted_and_moved_by_its_limits() -> None:
    def matrix(*steps: tuple[str, float]) -> np.ndarray:
        chosen = np.array([[NAMES.index(name) for name, _ in steps]])
        return compose_geometric_maps(chosen, np.array([[strength for _, strength in steps]]), NAMES)[0]

    sine, cosine = 0.5, np.sqrt(3) / 2
    np.testing.assert_allclose(matrix(("rotate", 1.0)), [[cosine, -sine, 0], [sine, cosine, 0]], atol=1e-12)
    np.testing.assert_allclose(matrix(("shear-x", 0.0)), [[1, -0.3, 0], [0, 1, 0]])
    np.testing.assert_allclose(matrix(("shear-y", 1.0)), [[1, 0, 0], [0.3, 1, 0]])
    np.testing.assert_allclose(matrix(("shift-x", 1.0)), [[1, 0, 0.6], [0, 1, 0]])
    np.testing.assert_allclose(matrix(("shift-y", 0.5)), [[1, 0, 0], [0, 1, 0]])
    np.testing.assert_allclose(matrix(("shift-x", 1.0), ("rotate", 1.0)), [[cosine, -sine, 0.6], [sine, cosine, 0]])
    np.testing.assert_allclose(matrix(("equalize", 1.0)), np.eye(3)[:2])


def test_the_painted_square_has_its_side_and_its_center() -> None:
    images = torch.zeros(2, 3, 16, 16)
    draws = np.array([[1.0, 0.5, 0.5], [0.5, 0.0, 0.5]], dtype=np.float32)
    out = cut_out(images, draws, max_side=0.5, fill=0.25)
    assert torch.equal(out[:, 0], out[:, 2])
    expected = torch.zeros(2, 16, 16)
    expected[0, 4:12, 4:12] = 0.25
    expected[1, :2, 6:10] = 0.25  # half of it is beyond the upper border
    assert torch.equal(out[:, 0], expected)


@pytest.mark.parametrize("recipe", ["digits", "crop-flip"])
@pytest.mark.parametrize("channels", [1, 3])
def test_strong_views_are_keyed_and_stay_in_range(recipe: str, channels: int, rng: np.random.Generator) -> None:
    images = torch.from_numpy(rng.integers(0, 256, (64, channels, 16, 16), dtype=np.uint8))
    views = semi_supervised_views(16, recipe, chiral=recipe == "digits")  # type: ignore[arg-type] # a Literal
    plain = Normalize((0.0,) * channels, (1.0,) * channels)
    keys = np.arange(64)
    (weak, strong), _ = apply_views(images.clone(), KeyedRNG(0, 0, keys), views, normalize=plain)
    (_, again), _ = apply_views(images.clone()[10:20], KeyedRNG(0, 0, keys[10:20]), views, normalize=plain)
    (_, later), _ = apply_views(images.clone(), KeyedRNG(0, 1, keys), views, normalize=plain)
    torch.testing.assert_close(strong[10:20], again, atol=1e-6, rtol=0)
    assert not torch.equal(strong, later)
    assert not torch.equal(weak, strong)
    for view in (weak, strong):
        assert 0 <= float(view.min())
        assert float(view.max()) <= 1


def test_a_strong_view_without_its_operations_is_the_weak_one(rng: np.random.Generator) -> None:
    images = torch.from_numpy(rng.integers(0, 256, (8, 3, 16, 16), dtype=np.uint8))
    weak, strong = semi_supervised_views(16, "crop-flip", chiral=False)
    assert replace(strong, random_operations=0, cutout=0.0) == weak
    made = [
        apply_views(images.clone(), KeyedRNG(0, 0, np.arange(8)), (view,), normalize=PLAIN)[0][0]
        for view in (weak, replace(strong, random_operations=0))
    ]
    painted = made[1] == 0.5
    assert 0.01 < float(painted.float().mean()) < 0.25
    assert torch.equal(made[0][~painted], made[1][~painted])


def test_weak_views_move_by_whole_pixels_within_an_eighth(rng: np.random.Generator) -> None:
    image = torch.from_numpy(rng.integers(0, 256, (1, 3, 32, 32), dtype=np.uint8))
    images = image.expand(40, -1, -1, -1).contiguous()
    weak = semi_supervised_views(32, "crop-flip", chiral=True)[0]
    (view,), geometry = apply_views(images, KeyedRNG(0, 0, np.arange(40)), (weak,), normalize=PLAIN)
    shifts = geometry[0].matrices[:, :, 2] * 16
    torch.testing.assert_close(shifts, shifts.round())
    assert int(shifts.abs().max()) == 4
    inner = image[0, :, 8:24, 8:24].float() / 255
    for row, (x, y) in enumerate(shifts.round().long().tolist()):
        torch.testing.assert_close(view[row, :, 8 - y : 24 - y, 8 - x : 24 - x], inner, atol=1e-4, rtol=0)

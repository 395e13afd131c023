"""Views: geometry against its recorded matrix, colors against torchvision and plain loops."""

from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as reference
from labelkit.data.keyed_random import KeyedRNG
from labelkit.data.views import recipes as view_recipes
from labelkit.data.views.boxes import box_to_image_matrices, draw_crop_boxes
from labelkit.data.views.colors import (
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
    gaussian_blur,
    rgb_to_gray,
    solarize,
)
from labelkit.data.views.recipes import simgcd_view, strong_view, weak_view
from labelkit.data.views.spec import Normalize, ViewSpec
from labelkit.data.views.transforms import (
    apply_views,
    augment_colors,
    compose_maps,
    crop_and_resize,
    draw_affine_maps,
    finish_view,
    resize_and_center_crop,
    resize_box,
)
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2

PLAIN1 = Normalize((0.0,), (1.0,))
PLAIN3 = Normalize((0.0,) * 3, (1.0,) * 3)


@pytest.fixture
def photos() -> Tensor:
    """Six random images, (6, 3, 20, 20) float32 in [0, 1]."""
    return torch.rand((6, 3, 20, 20), generator=torch.Generator().manual_seed(0))


def coordinates(height: int, width: int, copies: int) -> Tensor:
    """Images whose first channel is x and second is y, both scaled to 20..235."""
    x = 20 + 215 * (np.arange(width) + 0.5) / width
    y = 20 + 215 * (np.arange(height) + 0.5) / height
    image = np.stack([np.tile(x, (height, 1)), np.tile(y[:, None], (1, width)), np.zeros((height, width))])
    return torch.from_numpy(np.rint(image).astype(np.uint8)).expand(copies, -1, -1, -1).contiguous()


def looked_up(matrices: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Values of ``coordinates`` where the view's pixels come from, and how far that is from the center (edge = 1)."""
    centers = (torch.arange(size) + 0.5) * 2 / size - 1
    y, x = torch.meshgrid(centers, centers, indexing="ij")
    points = torch.stack((x, y, torch.ones_like(x))).reshape(3, -1)
    original = (matrices @ points).reshape(-1, 2, size, size)
    return (20 + 215 * (original + 1) / 2) / 255, original.abs().amax(1)


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("shape", [(32, 32), (24, 40)])
@pytest.mark.parametrize(
    "options",
    [
        {"resize_ratio": 1 / 0.875, "crop": "random", "hflip": 0.5},
        {"area_range": (0.3, 1.0), "hflip": 0.5},
        {"zoom_range": (1.0, 1.67), "shift_px": 2.0, "rotation_rad": 0.2},
        {"area_range": (0.5, 1.0), "zoom_range": (1.0, 1.5), "rotation_rad": 0.5, "hflip": 0.5, "shift_px": 3.0},
        {"hflip": 0.5},
        {},
    ],
)
def test_views_in_memory_show_what_their_matrix_says(
    interpolation: Any, shape: tuple[int, int], options: dict[str, Any]
) -> None:
    spec = ViewSpec(32, interpolation=interpolation, **options)
    (view,), (geometry,) = apply_views(coordinates(*shape, 16), KeyedRNG(1, 2, np.arange(16)), [spec], normalize=PLAIN3)
    expected, distance = looked_up(geometry.matrices, 32)
    inside = (distance < 1 - 5 / min(shape)).unsqueeze(1).expand_as(expected)
    assert inside.float().mean() > 0.2
    # A linear ramp survives interpolation, up to the rounding of its 8 bits.
    assert (view[:, :2] - expected)[inside].abs().max() < 2 / 255


@pytest.mark.parametrize(
    "options",
    [
        {"resize_ratio": 1 / 0.875, "crop": "random", "hflip": 0.5},
        {"area_range": (0.3, 1.0), "hflip": 0.5, "rotation_rad": 0.3, "zoom_range": (1.0, 1.2)},
    ],
)
def test_views_of_files_have_the_geometry_of_views_in_memory(options: dict[str, Any]) -> None:
    spec = ViewSpec(16, **options)
    images = coordinates(48, 60, 8)
    keys = np.arange(8)
    heights, widths = np.full(8, 48), np.full(8, 60)
    boxes = draw_crop_boxes(spec, heights, widths, KeyedRNG(0, 0, keys), 1)
    crops = np.stack(
        [resize_box(image.permute(1, 2, 0).numpy(), box, spec) for image, box in zip(images, boxes, strict=True)]
    )
    view, geometry = finish_view(
        torch.from_numpy(crops).permute(0, 3, 1, 2),
        boxes,
        np.stack((heights, widths), axis=1),
        spec,
        KeyedRNG(0, 0, keys),
        1,
        normalize=PLAIN3,
    )
    expected, distance = looked_up(geometry.matrices, 16)
    inner = draw_affine_maps(spec, KeyedRNG(0, 0, keys), 1)
    # What the second stage shows from outside of the box is padding.
    _, within_box = looked_up(torch.from_numpy(inner).float(), 16)
    inside = ((distance < 0.8) & (within_box < 0.8)).unsqueeze(1).expand_as(expected)
    assert inside.float().mean() > 0.2
    assert (view[:, :2] - expected)[inside].abs().max() < 3 / 255
    total = compose_maps(box_to_image_matrices(boxes, heights, widths), inner)
    assert torch.allclose(geometry.matrices, torch.from_numpy(total).float())


def test_mirrors_happen_as_often_as_asked() -> None:
    matrices = draw_affine_maps(ViewSpec(8, hflip=0.3), KeyedRNG(0, 0, np.arange(4000)), 0)
    # Standard deviation of the share 0.007.
    assert abs((matrices[:, 0, 0] < 0).mean() - 0.3) < 0.03


@pytest.mark.parametrize("shape", [(20, 20), (33, 47), (300, 200)])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_the_test_view_is_torchvisions_resize_and_center_crop(shape: tuple[int, int], interpolation: Any) -> None:
    values = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    mode = InterpolationMode(interpolation)
    picture = reference.resize(Image.fromarray(values), 36, mode)
    expected = np.asarray(reference.center_crop(picture, [32])).astype(int)
    spec = ViewSpec(32, resize_ratio=1 / 0.875, interpolation=interpolation)
    box = draw_crop_boxes(spec, [shape[0]], [shape[1]], KeyedRNG(0, 0, np.array([0])), 0)[0]
    assert np.abs(resize_box(values, box, spec).astype(int) - expected).max() <= 1
    in_memory = resize_and_center_crop(torch.from_numpy(values).permute(2, 0, 1)[None], spec)[0].permute(1, 2, 0) * 255
    difference = np.abs(in_memory.numpy() - expected)
    assert difference.max() <= 1.001
    assert (difference > 0.5).mean() < 1e-3


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("box", [(10, 20, 210, 200), (0, 0, 30, 40), (0, 0, 400, 300)])
def test_a_random_box_is_cut_as_torchvision_cuts_tensors(
    box: tuple[int, int, int, int], channels: int, interpolation: Any
) -> None:
    values = np.random.default_rng(0).integers(0, 256, (300, 400, channels), dtype=np.uint8)
    spec = ViewSpec(64, area_range=(0.1, 1.0), interpolation=interpolation)
    left, top, right, bottom = box
    tensor = torch.from_numpy(values).permute(2, 0, 1)
    mode = InterpolationMode(interpolation)
    expected = v2.functional.resized_crop(tensor, top, left, bottom - top, right - left, [64, 64], mode, antialias=True)
    view = crop_and_resize(values, box, spec)
    assert view.shape == (64, 64, channels)
    assert np.abs(view.astype(int) - expected.permute(1, 2, 0).numpy()).max() <= 1
    cut = Image.fromarray(values[top:bottom, left:right].squeeze())
    by_pillow = np.asarray(cut.resize((64, 64), Image.Resampling[interpolation.upper()])).reshape(view.shape)
    difference = np.abs(view.astype(int) - by_pillow)
    assert difference.max() <= 2
    assert (difference > 0).mean() < 0.1


@pytest.mark.parametrize(
    ("spec", "box"),
    [
        (ViewSpec(16, area_range=(0.1, 1.0)), (1.5, 2, 30, 40)),
        (ViewSpec(16, area_range=(0.1, 1.0)), (0, 0, 61, 48)),  # past the edge
        (ViewSpec(16, crop="random"), (0, 0, 40, 40)),
        (ViewSpec(16), (6, 0, 54, 48)),
    ],
)
def test_any_other_box_is_resized_by_pillow(spec: ViewSpec, box: tuple[float, ...]) -> None:
    values = np.random.default_rng(0).integers(0, 256, (48, 60, 3), dtype=np.uint8)
    assert np.array_equal(crop_and_resize(values, box, spec), resize_box(values, box, spec))


def test_random_crops_reach_every_whole_pixel_offset_and_no_other() -> None:
    spec = ViewSpec(32, resize_ratio=36 / 32, crop="random")
    boxes = draw_crop_boxes(spec, np.full(2000, 72), np.full(2000, 72), KeyedRNG(0, 0, np.arange(2000)), 0)
    assert set(boxes[:, 0]) == set(boxes[:, 1]) == {0, 2, 4, 6, 8}
    assert np.allclose(boxes[:, 2:] - boxes[:, :2], 64)
    # 400 expected each, standard deviation 18.
    assert min(np.unique(boxes[:, 0], return_counts=True)[1]) > 310


@pytest.mark.parametrize(("shape", "expected"), [((100, 1000), (434, 0, 567, 100)), ((1000, 100), (0, 433, 100, 566))])
def test_an_area_that_fits_nowhere_falls_back_to_the_center(
    shape: tuple[int, int], expected: tuple[int, int, int, int]
) -> None:
    box = draw_crop_boxes(
        ViewSpec(32, area_range=(0.9, 1.0)), [shape[0]], [shape[1]], KeyedRNG(0, 0, np.array([0])), 0
    )[0]
    # torchvision: largest box of an allowed aspect, 133 x 100 or 100 x 133, centered.
    assert np.abs(box - expected).max() <= 1


def test_digit_views_stay_within_the_ranges_of_the_specification() -> None:
    keys = np.arange(3000)
    weak = draw_affine_maps(weak_view(32, "digits", chiral=True), KeyedRNG(0, 0, keys), 0)
    assert np.allclose(weak[:, :, :2], np.eye(2))
    assert 1.98 / 16 < np.abs(weak[:, :, 2]).max() <= 2 / 16
    strong = draw_affine_maps(strong_view(32, "digits", chiral=True), KeyedRNG(0, 0, keys), 1)
    zoom = 1 / np.sqrt(np.linalg.det(strong[:, :, :2]))
    angle = np.arctan2(strong[:, 1, 0], strong[:, 0, 0])
    assert (1.0, 1.67) == (round(zoom.min(), 2), round(zoom.max(), 2))
    assert 0.199 < np.abs(angle).max() <= 0.2
    assert (np.linalg.det(strong[:, :, :2]) > 0).all()


@pytest.mark.parametrize("build", [weak_view, strong_view, simgcd_view])
def test_chiral_images_are_never_mirrored(build: Any) -> None:
    assert build(32, "generic", chiral=True).hflip == 0
    assert build(32, "digits", chiral=False).hflip == 0
    assert build(32, "generic", chiral=False).hflip == 0.5


def test_strength_scales_what_the_schedule_scales() -> None:
    spec = strong_view(32, "generic", chiral=False)
    assert spec.with_strength(1.0) == spec
    half = spec.with_strength(0.5)
    assert half.area_range == (0.65, 1.0)
    assert (half.jitter_prob, half.gray_prob, half.solarize_prob, half.blur_prob) == (0.4, 0.1, 0.1, 0.25)
    assert half.blur_sigma == (0.05, 1.0)
    assert spec.with_strength(0.0).area_range == (1.0, 1.0)
    assert half.hflip == 0.5


def test_blur_is_torchvisions(photos: Tensor) -> None:
    for kernel in (1, 3, 7):
        expected = torch.cat([reference.gaussian_blur(photos[i : i + 1], [kernel] * 2, [0.1 + i]) for i in range(6)])
        assert torch.allclose(gaussian_blur(photos, 0.1 + torch.arange(6.0), kernel), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("ours", "theirs", "factors"),
    [
        (adjust_brightness, reference.adjust_brightness, [0.0, 0.6, 1.0, 1.4, 2.0, 0.9]),
        (adjust_contrast, reference.adjust_contrast, [0.0, 0.6, 1.0, 1.4, 2.0, 0.9]),
        (adjust_saturation, reference.adjust_saturation, [0.0, 0.6, 1.0, 1.4, 2.0, 0.9]),
        (adjust_hue, reference.adjust_hue, [-0.5, -0.1, 0.0, 0.1, 0.3, 0.5]),
    ],
)
def test_color_operations_are_torchvisions(photos: Tensor, ours: Any, theirs: Any, factors: list[float]) -> None:
    photos[0, :, 0] = photos[0, :1, 0]  # gray pixels have no hue
    photos[1, :, 1] = 0
    expected = torch.stack([theirs(image, factor) for image, factor in zip(photos, factors, strict=True)])
    assert torch.allclose(ours(photos, torch.tensor(factors)), expected, atol=2e-6)


def test_gray_and_solarize_are_torchvisions(photos: Tensor) -> None:
    assert torch.allclose(rgb_to_gray(photos), reference.rgb_to_grayscale(photos), atol=1e-6)
    assert torch.equal(solarize(photos, 128 / 255), reference.solarize(photos, 128 / 255))


@pytest.mark.parametrize(
    ("options", "share"),
    [
        ({"gray_prob": 0.2}, 0.2),
        ({"blur_prob": 0.5, "blur_sigma": (1.0, 2.0)}, 0.5),
        ({"solarize_prob": 0.2}, 0.2),
        ({"jitter_prob": 0.8, "jitter": (0.4, 0.0, 0.0, 0.0)}, 0.8),
        ({"brightness_range": (0.6, 0.9)}, 1.0),
        ({}, 0.0),
    ],
)
def test_operations_happen_as_often_as_asked(options: dict[str, Any], share: float) -> None:
    images = torch.rand((3000, 3, 4, 4), generator=torch.Generator().manual_seed(0))
    changed = augment_colors(images.clone(), ViewSpec(4, **options), KeyedRNG(0, 0, np.arange(3000)), 0)
    happened = ((changed - images).abs().amax(dim=(1, 2, 3)) > 1e-4).float().mean()
    # Standard deviation at most 0.009.
    assert abs(happened - share) < 0.035


@pytest.mark.parametrize("domain", ["digits", "fine", "generic"])
def test_views_do_not_depend_on_how_batches_are_cut(domain: Any) -> None:
    channels = 1 if domain == "digits" else 3
    images = torch.randint(0, 256, (9, channels, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    keys = np.array([4, 7, 1, 900, 33, 2, 8, 5, 6])
    views = [weak_view(32, domain, chiral=False), strong_view(32, domain, chiral=False)]
    normalize = PLAIN1 if channels == 1 else PLAIN3
    whole, geometry = apply_views(images, KeyedRNG(0, 0, keys), views, normalize=normalize)
    for part in (slice(0, 1), slice(1, 4), slice(4, 9)):
        pieces, piece_geometry = apply_views(images[part], KeyedRNG(0, 0, keys[part]), views, normalize=normalize)
        for view in range(2):
            assert torch.allclose(pieces[view], whole[view][part], atol=1e-6)
            assert torch.equal(piece_geometry[view].matrices, geometry[view].matrices[part])


def test_normalizing_subtracts_the_mean_and_divides_by_the_std() -> None:
    images = torch.full((1, 3, 1, 1), 0.5)
    assert torch.allclose(Normalize((0.1, 0.2, 0.3), (1, 2, 4))(images).flatten(), torch.tensor([0.4, 0.15, 0.05]))
    assert Normalize((0.5,), (0.5,))(torch.ones(1, 1, 1, 1)).item() == 1
    with pytest.raises(ValueError, match="must have 1 channels, one per mean, got 3"):
        PLAIN1(images)


@pytest.mark.gpu
def test_views_on_a_gpu_are_those_of_the_cpu() -> None:
    images = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    views = [
        weak_view(32, "generic", chiral=False),
        strong_view(32, "generic", chiral=False),
        view_recipes.test_view(32),
    ]
    on_cpu, _ = apply_views(images, KeyedRNG(0, 0, np.arange(8)), views, normalize=PLAIN3)
    on_gpu, _ = apply_views(images.cuda(), KeyedRNG(0, 0, np.arange(8)), views, normalize=PLAIN3)
    for ours, theirs in zip(on_cpu, on_gpu, strict=True):
        # Solarize may flip a value that rounds to the other side of its threshold.
        assert ((ours - theirs.cpu()).abs() > 1e-3).float().mean() < 1e-3


def test_noise_comes_last_with_numbers_of_its_own_for_each_sample_and_view(photos: Tensor) -> None:
    images = (photos * 255).to(torch.uint8)
    plain, noisy = ViewSpec(20), ViewSpec(20, noise=0.15)
    keys = np.arange(6)
    clean = apply_views(images, KeyedRNG(0, 0, keys), (plain, plain), normalize=Normalize((0.5,) * 3, (0.5,) * 3))[0]
    views = apply_views(images, KeyedRNG(0, 0, keys), (noisy, noisy), normalize=Normalize((0.5,) * 3, (0.5,) * 3))[0]
    added = [view - base for view, base in zip(views, clean, strict=True)]
    assert float(added[0].std()) == pytest.approx(0.15, rel=0.03)
    assert float(added[0].mean()) == pytest.approx(0, abs=0.01)
    assert float(torch.corrcoef(torch.stack([added[0].flatten(), added[1].flatten()]))[0, 1]) < 0.05
    half = (0.5,) * 3
    alone, _ = apply_views(images[2:3], KeyedRNG(0, 0, keys[2:3]), (noisy,), normalize=Normalize(half, half))
    assert torch.equal(alone[0][0], views[0][2])

"""Second views that follow a first one: geometry, kinds, and two images that match."""

from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labelkit.algorithms.homographies import compute_view_homographies, sample_second_views
from labelkit.data.decode import EncodedImage
from labelkit.data.image_bank import ImageBank
from labelkit.data.keyed_random import KeyedRNG
from labelkit.data.loaders import TrainLoader
from labelkit.data.registry import load_dataset
from labelkit.data.samplers import UniformSampler
from labelkit.data.views.spec import (
    PAIR_KINDS,
    Normalize,
    PairKind,
    PairPlan,
    PairTransform,
    ViewSpec,
    draw_pair_homographies,
)
from labelkit.data.views.transforms import apply_views
from labelkit.data.workers import BatchPlan, _read_crops
from numpy.typing import NDArray
from PIL import Image

KEYS = np.arange(200, dtype=np.int64)
PLAIN = Normalize((0.0,), (1.0,))


def homographies(transform: PairTransform, epoch: int = 0) -> np.ndarray:
    return draw_pair_homographies(transform, KeyedRNG(0, epoch, KEYS), 1)


def smooth_images(count: int) -> torch.Tensor:
    y, x = torch.meshgrid(torch.linspace(0, 3, 32), torch.linspace(0, 3, 32), indexing="ij")
    waves = [torch.sin(x + i) * torch.cos(y - 0.3 * i) for i in range(count)]
    return ((torch.stack(waves)[:, None] + 1) * 127).to(torch.uint8)


class Ramps:
    """JPEG files of several sizes, each of which turns from black to white."""

    sizes = ((640, 1280), (240, 320))

    def read(self, row: int) -> EncodedImage:
        height, width = self.sizes[row]
        pixels = np.broadcast_to(np.linspace(0, 255, width).astype(np.uint8), (height, width))
        file = BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=95)
        return EncodedImage(file.getvalue())


@pytest.mark.parametrize("shown", [0, 1])
@pytest.mark.parametrize("second", [{"partner": True}, {"follows": PairTransform()}])
@pytest.mark.parametrize("link", [-1, 3])
def test_a_reduced_second_image_shows_the_same_part(shown: int, second: dict[str, Any], link: int) -> None:
    first = ViewSpec(16, area_range=(0.05, 0.1))
    pairs = PairPlan(np.array([shown]), np.array([link]), np.array([[[-0.9, -0.5, -0.2, 0.5], [0.2, -0.5, 0.9, 0.5]]]))
    plan = BatchPlan(np.array([0]), KeyedRNG(0, 0, np.array([0])), (first, replace(first, **second)), pairs=pairs)

    whole, reduced = (_read_crops(Ramps(), 1, replace(plan, min_side=side)) for side in (None, 80))

    assert reduced.partner_sizes[0].tolist() == list(Ramps.sizes[shown])
    for view in range(2):
        assert np.array_equal(whole.boxes[view], reduced.boxes[view])
        assert np.allclose(whole.crops[view].float(), reduced.crops[view].float(), atol=3)


def test_crops_show_a_square_of_the_asked_for_area_inside() -> None:
    found = homographies(PairTransform(kinds=("crop",), hflip=0))
    corners = np.linalg.inv(found) @ np.array([[-1, 1], [-1, 1], [1, 1]])
    sides = (corners[:, :2, 1] - corners[:, :2, 0]) / 2
    np.testing.assert_allclose(sides[:, 0], sides[:, 1])
    assert np.abs(corners[:, :2]).max() <= 1 + 1e-9
    assert 0.36 <= (sides[:, 0] ** 2).min() < 0.45
    assert 0.9 < (sides[:, 0] ** 2).max() <= 1


def test_rotations_and_zooms_stay_in_their_ranges() -> None:
    turns = homographies(PairTransform(kinds=("rotation",), hflip=0))
    angles = np.degrees(np.arctan2(turns[:, 0, 1], turns[:, 0, 0]))
    assert -30 <= angles.min() < -25 < 25 < angles.max() <= 30
    zooms = homographies(PairTransform(kinds=("zoom",), hflip=0))[:, 0, 0]
    assert 0.7 <= zooms.min() < 0.75 < 1.3 < zooms.max() <= 1.4


def test_perspectives_move_corners_inward() -> None:
    found = homographies(PairTransform(kinds=("perspective",), hflip=0))
    arrived = found @ np.array([[-1, 1, 1, -1], [-1, -1, 1, 1], [1, 1, 1, 1]])
    corners = np.abs(arrived[:, :2] / arrived[:, 2:])
    assert 0.7 - 1e-9 <= corners.min() < 0.72 < 0.98 < corners.max() <= 1 + 1e-9


def test_all_kinds_are_drawn() -> None:
    found = homographies(PairTransform(hflip=0))
    perspective = (np.abs(found[:, 2, :2]) > 1e-9).any(axis=1)
    rotation = ~perspective & (np.abs(found[:, 0, 1]) > 1e-9)
    crop = ~perspective & ~rotation & (np.abs(found[:, :2, 2]) > 1e-9).any(axis=1)
    assert min(perspective.sum(), rotation.sum(), crop.sum(), (~perspective & ~rotation & ~crop).sum()) > 25


@pytest.mark.parametrize("kind", PAIR_KINDS)
def test_recorded_geometry_leads_from_first_to_second_view(kind: PairKind) -> None:
    images = smooth_images(8)
    first = ViewSpec(32, interpolation="bilinear", area_range=(0.5, 0.9), hflip=0.5)
    transform = PairTransform(kinds=(kind,))
    second = ViewSpec(32, interpolation="bilinear", area_range=(0.5, 0.9), hflip=0.5, follows=transform)
    views, geometry = apply_views(images, KeyedRNG(0, 3, KEYS[:8]), (first, second), normalize=PLAIN)

    between = compute_view_homographies(geometry[0].matrices, geometry[1].matrices)
    drawn = draw_pair_homographies(transform, KeyedRNG(0, 3, KEYS[:8]), 1)
    np.testing.assert_allclose(between / between[:, 2:, 2:], drawn / drawn[:, 2:, 2:], atol=2e-5)
    # what the second view shows where the first view's pixels went is what the first view shows
    found, visible = sample_second_views(views[1], between, (32, 32))
    assert float(((found - views[0]).abs()[:, 0] * visible).max()) < 0.05


def test_views_of_the_whole_image_are_the_image_looked_up_where_it_comes_from() -> None:
    images = smooth_images(4)
    first, second = (
        ViewSpec(32, interpolation="bilinear"),
        ViewSpec(32, interpolation="bilinear", padding="reflection", follows=PairTransform()),
    )
    views, _ = apply_views(images, KeyedRNG(0, 0, KEYS[:4]), (first, second), normalize=PLAIN)
    drawn = torch.from_numpy(draw_pair_homographies(PairTransform(), KeyedRNG(0, 0, KEYS[:4]), 1))
    torch.testing.assert_close(views[0], images / 255)
    expected, _ = sample_second_views(images.double() / 255, torch.linalg.inv(drawn), (32, 32), padding="reflection")
    torch.testing.assert_close(views[1], expected.float(), atol=1e-4, rtol=0)


def test_matched_images_show_their_boxes_and_others_follow_themselves() -> None:
    images = smooth_images(3)
    spec = ViewSpec(16, interpolation="bilinear", area_range=(0.5, 0.9), hflip=1.0)
    following = ViewSpec(
        16, interpolation="bilinear", area_range=(0.5, 0.9), hflip=1.0, follows=PairTransform(kinds=(), hflip=0)
    )
    boxes = np.tile(np.array([[-1.0, -1, 0, 0], [0, 0, 1, 1]]), (3, 1, 1))
    plan = PairPlan(np.array([1, 1, 2]), np.array([7, -1, -1]), boxes)
    views, geometry = apply_views(
        images, KeyedRNG(0, 0, KEYS[:3]), (spec, following), normalize=PLAIN, pairs=plan, partners=images[[1, 1, 2]]
    )

    torch.testing.assert_close(views[0][0], images[0, :, :16, :16] / 255)
    torch.testing.assert_close(views[1][0], images[1, :, 16:, 16:] / 255)
    torch.testing.assert_close(views[0][1:], views[1][1:])
    torch.testing.assert_close(geometry[0].matrices[0], torch.tensor([[0.5, 0, -0.5], [0, 0.5, -0.5]]))
    assert (geometry[0].matrices[1:, 0, 0] < 0).all()


@dataclass(frozen=True)
class NextImage:
    """Pairs every image with the one after it: the left half of one, the right half of the other."""

    count: int

    def plan(self, rows: NDArray[np.int64], keys: NDArray[np.int64], *, seed: int, epoch: int) -> PairPlan:
        boxes = np.tile(np.array([[-1.0, -1, 0, 1], [0, -1, 1, 1]]), (len(rows), 1, 1))
        return PairPlan((rows + 1) % self.count, rows.copy(), boxes)


@pytest.mark.parametrize("side", [32, 80], ids=["in memory", "from files"])
def test_the_loader_reads_both_images_of_a_match(tmp_path: Path, side: int) -> None:
    for shade in range(4):
        pixels = np.full((side, side, 3), 20 * shade, dtype=np.uint8)
        pixels[:, side // 2 :] += 100
        Image.fromarray(pixels).save(tmp_path / f"{shade}.png")
    bank = ImageBank(load_dataset(str(tmp_path), data_root=tmp_path))
    spec = ViewSpec(side, interpolation="bilinear")
    loader = TrainLoader(
        bank,
        (spec, ViewSpec(side, interpolation="bilinear", follows=PairTransform())),
        UniformSampler(bank.rows, seed=0),
        np.full(4, -1),
        batch_size=4,
        seed=0,
        normalize=Normalize((0.0,) * 3, (1.0,) * 3),
        pairing=NextImage(4),
    )
    (batch,) = loader.epoch_batches(0)

    assert bank.in_memory == (side <= 64)
    assert batch.links is not None
    assert batch.links.tolist() == batch.sample_index.tolist()
    middle = side // 2
    shades = [(255 * view[:, 0, middle, middle // 2]).round().int().tolist() for view in batch.views]
    assert shades[0] == [20 * row for row in batch.sample_index.tolist()]
    assert shades[1] == [20 * ((row + 1) % 4) + 100 for row in batch.sample_index.tolist()]

"""Crops that overlap, mirrored together; and two datasets as one."""

from dataclasses import replace

import numpy as np
import torch
from labelkit.algorithms.regions import crop_boxes_in_original
from labelkit.data.datasets import ImageDataset, join_datasets
from labelkit.data.keyed_random import KeyedRNG
from labelkit.data.views.boxes import compute_overlap_areas, sample_crop_boxes
from labelkit.data.views.recipes import multi_crop_views, siamese_views
from labelkit.data.views.spec import Normalize, ViewSpec
from labelkit.data.views.transforms import apply_views, draw_affine_maps
from tests.textures import dataset_of

KEYS = np.arange(400)
SIDES = (np.full(400, 60), np.full(400, 90))


def views(**options: object) -> tuple[ViewSpec, ...]:
    settings: dict[str, object] = {
        "global_scale": (0.25, 1.0),
        "local_scale": (0.05, 0.25),
        "min_overlap": (0.02, 0.01),
        "chiral": False,
    }
    return multi_crop_views((32, 16), 2, "none", **(settings | options))  # type: ignore[arg-type] # passed through


def dataset(n: int, side: int = 40, name: str = "set", labels: int = 0) -> ImageDataset:
    pixels = np.random.default_rng(n).integers(0, 256, (n, side, side, 3), dtype=np.uint8)
    return dataset_of(pixels, np.full(n, labels), name=name)


def test_views_have_the_asked_for_part_in_common() -> None:
    found = sample_crop_boxes(views(), SIDES, SIDES, KeyedRNG(0, 0, KEYS))
    free = sample_crop_boxes([replace(v, anchors=()) for v in views()], SIDES, SIDES, KeyedRNG(0, 0, KEYS))
    least = 0.01 * 60 * 90
    assert (compute_overlap_areas(found[0], found[1]) >= 2 * least).all()
    for local in found[2:]:
        # a box that was drawn too often is half to all of what the large views have in common, on each side
        common = compute_overlap_areas(found[0], found[1])
        for anchor in found[:2]:
            assert (compute_overlap_areas(local, anchor) >= np.minimum(least, common / 4) - 1e-6).all()
    # without the rule, some have not
    assert (compute_overlap_areas(free[2], free[0]) < least).any()


def test_two_views_have_one_box_where_it_is_drawn_for_both() -> None:
    for crop in ("same", "independent"):
        made = siamese_views(32, crop=crop, scale=(0.1, 0.9), flip=0.5, jitter=0, gray=0, blur=0)
        first, second = sample_crop_boxes(made, SIDES, SIDES, KeyedRNG(4, 2, KEYS))
        assert (first == second).all() == (crop == "same")
        # each is mirrored by itself all the same
        mirrored = [draw_affine_maps(view, KeyedRNG(4, 2, KEYS), i)[:, 0, 0] for i, view in enumerate(made)]
        assert 100 < (mirrored[0] != mirrored[1]).sum() < 300


def test_a_box_depends_on_its_own_image_alone() -> None:
    every = sample_crop_boxes(views(), SIDES, SIDES, KeyedRNG(0, 0, KEYS))
    sides = (SIDES[0][7:9], SIDES[1][7:9])
    some = sample_crop_boxes(views(), sides, sides, KeyedRNG(0, 0, KEYS[7:9]))
    for whole, part in zip(every, some, strict=True):
        assert np.array_equal(whole[7:9], part)


def test_a_box_that_never_fits_ends_in_its_anchors() -> None:
    small = ViewSpec(32, area_range=(0.1, 0.2))
    never = replace(small, area_range=(0.3, 1.0), anchors=(0,), min_overlap=0.5)
    of_two = replace(never, anchors=(0, 1))
    first, second, third = sample_crop_boxes((small, never, of_two), SIDES, SIDES, KeyedRNG(0, 0, KEYS))
    assert np.array_equal(second, first)
    # what both have in common is the first box: sides of half to all of it, anywhere inside
    assert (third[:, :2] >= first[:, :2]).all()
    assert (third[:, 2:] <= first[:, 2:] + 1e-9).all()
    shares = (third[:, 2:] - third[:, :2]) / (first[:, 2:] - first[:, :2])
    assert shares.min() >= 0.5 - 1e-9
    assert 0.7 < shares.mean() < 0.8


def test_all_views_of_an_image_are_mirrored_or_none() -> None:
    images = torch.zeros(400, 3, 40, 40, dtype=torch.uint8)
    _, geometry = apply_views(images, KeyedRNG(0, 0, KEYS), views(), normalize=Normalize((0.5,) * 3, (0.5,) * 3))
    mirrored = torch.stack([view.matrices[:, 0, 0] < 0 for view in geometry])
    assert torch.equal(mirrored, mirrored[:1].expand(4, -1))
    assert 120 < int(mirrored[0].sum()) < 280
    assert not any(view.hflip for view in views(chiral=True))


def test_places_of_a_mirrored_image_are_found_in_all_of_its_views() -> None:
    """The same pixel of two views, by their boxes, is the same pixel of the image."""
    ramp = torch.arange(40, dtype=torch.uint8).expand(4, 3, 40, 40) * 6
    specs = [replace(view, hflip=1.0, interpolation="bilinear") for view in views()[:2]]
    made, geometry = apply_views(ramp, KeyedRNG(1, 0, np.arange(4)), specs, normalize=Normalize((0.0,) * 3, (1.0,) * 3))
    for pixels, view in zip(made, geometry, strict=True):
        box = crop_boxes_in_original(view.matrices)
        centers = (torch.arange(32) + 0.5) / 32
        x = box[:, :1] + centers * (box[:, 2:3] - box[:, :1])  # in the mirrored image
        expected = ((1 - x) / 2 * 40 - 0.5).clamp(0, 39) * 6 / 255
        assert torch.allclose(pixels[:, 0, 16], expected, atol=0.02)


def test_two_sets_become_one_with_the_labels_of_the_first() -> None:
    objects, scenes = dataset(3, name="objects"), dataset(2, name="scenes")
    joined = join_datasets(objects, scenes)
    assert joined.sample_ids == ("object/000", "object/001", "object/002", "scene/000", "scene/001")
    assert joined.labels.tolist() == [0, 0, 0, -1, -1]
    for row, (source, own) in enumerate([(objects, 0), (objects, 1), (objects, 2), (scenes, 0), (scenes, 1)]):
        assert joined.source.read(row).sha256 == source.source.read(own).sha256
    some = joined.select([1, 4])
    assert some.source.read(0).sha256 == objects.source.read(1).sha256
    assert some.source.read(1).sha256 == scenes.source.read(1).sha256

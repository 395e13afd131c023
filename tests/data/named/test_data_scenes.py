"""Generated scenes: the same again from the same numbers, the statistics of the specification, and the cache."""

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from labelkit.data.datasets import ImageDataset
from labelkit.data.named import generated, scenes
from labelkit.data.named.generated import read_generated
from labelkit.data.named.scenes import DIGITS, OBJECTS, draw_scene, draw_video, find_scene_label
from labelkit.data.named.scenes import SCENES as SOURCE
from labelkit.data.registry import DATASETS


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("LABELKIT_CACHE", str(tmp_path / "cache"))
    # drawing a hundred images takes a second
    monkeypatch.setattr("labelkit.data.named.generated._BLOCK", 4)
    yield tmp_path / "cache"
    generated._read_block.cache_clear()


def listed(name: str, counts: dict[str, int]) -> ImageDataset:
    generated._read_block.cache_clear()  # as in a new process
    spec = replace(DATASETS[name], num_images={"train": 0} | counts)
    return read_generated(spec, Path(), False)


@pytest.mark.parametrize("source", [OBJECTS, SOURCE, DIGITS])
def test_an_image_depends_on_its_numbers_only(source: int) -> None:
    first = draw_scene(3, 1, source, 5)
    draw_scene(3, 1, source, 4)
    again = draw_scene(3, 1, source, 5)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    others = [draw_scene(4, 1, source, 5), draw_scene(3, 0, source, 5), draw_scene(3, 1, source, 6)]
    assert not any(np.array_equal(first.image, other.image) for other in others)


def test_the_first_draws_are_those_of_the_specification() -> None:
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([0, 0, 0, 7])))
    for low, high in ((0, 1), (0, 0.5), (0.25, 0.75), (0, 1), (0, 0.5), (0.25, 0.75), *[(0, 1)] * 16):
        generator.uniform(low, high)
    for _ in range(generator.integers(6, 12, endpoint=True)):
        for low, high in ((0, 64), (0, 64), (10, 40), (0, np.pi), (0.5, 1), *[(-0.25, 0.25)] * 3):
            generator.uniform(low, high)
    label = int(generator.integers(0, 5, endpoint=True))
    radius = 64 * generator.uniform(0.30, 0.42)
    x, y = generator.uniform(25.6, 38.4), generator.uniform(25.6, 38.4)
    drawn = draw_scene(0, 0, OBJECTS, 7)
    assert find_scene_label(0, 0, 7) == label
    assert set(np.unique(drawn.mask)) == {0, label + 1}
    rows, columns = np.nonzero(drawn.mask)
    # the mask samples the first of the four points of a pixel, a quarter to the left of and above its center
    assert np.hypot(columns + 0.25 - x, rows + 0.25 - y).max() <= 1.2 * radius


def test_scenes_have_the_statistics_of_the_specification() -> None:
    drawn = [draw_scene(0, 0, SOURCE, i) for i in range(60)]
    masks = np.stack([one.mask for one in drawn])
    share = np.bincount(masks.ravel(), minlength=7) / masks.size
    # section 2.5: 74% background, 3 to 6% per class, 2.4 objects; standard errors of 60 scenes about 1.5%, 0.14
    assert share[0] == pytest.approx(0.74, abs=0.05)
    assert np.all((share[1:] > 0.015) & (share[1:] < 0.09))
    assert np.mean([one.instance.max() for one in drawn]) == pytest.approx(2.4, abs=0.4)
    assert {int(one.instance.max()) for one in drawn} <= {1, 2, 3, 4}


@pytest.mark.parametrize("source", [OBJECTS, SOURCE, DIGITS])
def test_masks_and_instances_cover_the_same_pixels_and_an_object_has_one_class(source: int) -> None:
    for index in range(6):
        drawn = draw_scene(1, 0, source, index)
        assert np.array_equal(drawn.mask > 0, drawn.instance > 0)
        for number in np.unique(drawn.instance[drawn.instance > 0]):
            assert len(np.unique(drawn.mask[drawn.instance == number])) == 1


def test_a_film_moves_its_objects_before_a_background_that_stays() -> None:
    frames = draw_video(0, 1, 1)
    assert len(frames) == 8
    assert all(np.unique(frame.instance).tolist() == np.unique(frames[0].instance).tolist() for frame in frames)
    assert not np.array_equal(frames[0].instance, frames[7].instance)
    still = np.all([frame.instance == 0 for frame in frames], axis=0)
    change = np.abs(frames[0].image[still].astype(int) - frames[7].image[still].astype(int))
    # twice noise of 0.02 * 255 = 5.1: nothing but noise differs
    assert 0 < change.mean() < 10


def test_digits_of_validation_are_never_shown_in_training() -> None:
    from sklearn.datasets import load_digits

    target = load_digits().target
    assert len(scenes._digits(1)[1]) == len(target[::5])
    assert len(scenes._digits(0)[1]) == len(target) - len(target[::5])
    assert np.array_equal(scenes._digits(0)[1], scenes._digits(2)[1])


def test_listing_draws_nothing_and_rows_are_images_of_their_numbers(cache: Path) -> None:
    dataset = listed("scenes", {"train": 6, "val": 2})
    assert not cache.exists()
    row = dataset.sample_ids.index("train/00005.png")
    pixels = dataset.source.read(row).decode(3)
    assert dataset.masks is not None
    assert np.array_equal(pixels, draw_scene(0, 0, SOURCE, 5).image)
    assert np.array_equal(dataset.masks.read(row), draw_scene(0, 0, SOURCE, 5).mask)
    assert dataset.mask_classes[0] == "background"
    assert len(list(cache.rglob("*.npz"))) == 1


def test_selected_rows_and_copies_for_workers_read_the_same() -> None:
    dataset = listed("scene_objects", {"train": 3, "val": 3}).select([1, 4])
    copy = pickle.loads(pickle.dumps(dataset))
    for row, (split, number) in enumerate(((0, 1), (1, 1))):
        drawn = draw_scene(0, split, OBJECTS, number)
        assert np.array_equal(copy.source.read(row).decode(3), drawn.image)
        assert np.array_equal(copy.masks.read(row), drawn.mask)
        assert dataset.labels[row] == drawn.mask.max() - 1


def test_films_are_folders_of_frames_with_object_numbers() -> None:
    dataset = listed("scene_videos", {"val": 16})
    assert dataset.sample_ids[8] == "val/00001/00.png"
    assert dataset.mask_classes == ()
    assert dataset.masks is not None
    for row in (3, 8, 15):
        frame = draw_video(0, 1, row // 8)[row % 8]
        assert np.array_equal(dataset.source.read(row).decode(3), frame.image)
        assert np.array_equal(dataset.masks.read(row), frame.instance)


def test_what_was_drawn_is_read_again_and_damage_is_noticed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = listed("scenes", {"val": 2}).source.read(0).decode(3)
    (path,) = cache.rglob("*.npz")
    content = path.read_bytes()
    path.write_bytes(content[:500] + bytes([content[500] ^ 1]) + content[501:])
    assert np.array_equal(listed("scenes", {"val": 2}).source.read(0).decode(3), first)
    assert path.read_bytes()[500] == content[500]
    path.write_bytes(content[:100])
    assert np.array_equal(listed("scenes", {"val": 2}).source.read(0).decode(3), first)
    monkeypatch.delattr("labelkit.data.named.scenes.draw_scene")
    assert np.array_equal(listed("scenes", {"val": 2}).source.read(0).decode(3), first)

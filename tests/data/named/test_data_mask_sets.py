"""Datasets with masks in their official layouts, folders of images and masks, and masks that cannot be used."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from labelkit.commands.datasets.datasets import count_dataset_files
from labelkit.data.datasets import ImageDataset, read_image_and_mask
from labelkit.data.named.masks import COCO_STUFF_CLASSES
from labelkit.data.registry import DATASETS, load_dataset
from labelkit.errors import DatasetAbsent, DatasetError, DatasetIncomplete
from tests.miniature_sets import (
    jpeg,
    mask_png,
    put,
    write_ade20k,
    write_camvid,
    write_cityscapes,
    write_coco_stuff,
    write_davis,
    write_voc,
)


def load(name: str | Path, data_root: Path) -> ImageDataset:
    return load_dataset(str(name), data_root=data_root)


def first_mask(dataset: ImageDataset) -> list[int]:
    """The values of the first mask, by column."""
    pixels, mask = read_image_and_mask(dataset, 0)
    assert mask.shape == pixels.shape[:2]
    return mask[0].tolist()


@pytest.mark.parametrize(
    ("name", "folder", "write", "splits", "columns"),
    [
        ("camvid", "camvid", write_camvid, (2, 2, 2), [*range(11), 255]),
        ("camvid", "CamVid", lambda root: write_camvid(root, tutorial=True), (2, 2, 2), [*range(11), 255]),
        ("voc_2012", "VOCdevkit/VOC2012", write_voc, (2, 1), [0, 20, 255] * 4),
        # 0 is what no class is for, class i has the value i + 1
        ("ade20k", "ADEChallengeData2016", write_ade20k, (2, 1), [255, 0, 2] * 4),
        # unlabeled, road, sidewalk, bicycle, parking, trailer
        ("cityscapes", "cityscapes", write_cityscapes, (2, 1), [255, 0, 1, 18, 255, 255] * 2),
        # person, bicycle (vehicle), hair brush (indoor), banner (textile), wood (solid), unlabeled
        ("coco_stuff_27", "cocostuff/dataset", write_coco_stuff, (2, 1), [0, 1, 11, 12, 24, 255] * 2),
    ],
)
def test_masks_of_official_layouts_are_classes(
    name: str, folder: str, write: Callable[[Path], None], splits: tuple[int, ...], columns: list[int], tmp_path: Path
) -> None:
    write(tmp_path / folder)
    dataset = load(name, tmp_path)
    assert tuple(len(dataset.rows_in_split(split)) for split in dataset.split_names) == splits
    assert first_mask(dataset) == columns
    assert dataset.class_names == ()
    assert not dataset.given.any()
    selected = dataset.select([1, 2])
    assert selected.masks is not None
    assert selected.masks.read(0).shape == (10, 12)


@pytest.mark.parametrize(
    ("name", "write", "num_classes"),
    [
        ("camvid", write_camvid, 11),
        ("voc_2012", write_voc, 21),
        ("cityscapes", write_cityscapes, 19),
        ("coco_stuff_27", write_coco_stuff, 27),
    ],
)
def test_inventory_counts_classes_of_pixels(
    name: str, write: Callable[[Path], None], num_classes: int, tmp_path: Path
) -> None:
    write(tmp_path / name)
    counts = dict.fromkeys(DATASETS[name].num_images, 0)
    root = tmp_path / name
    found = count_dataset_files(replace(DATASETS[name], num_images=counts), root)
    assert (found.found["classes"], found.found["mask_classes"]) == (0, num_classes)
    assert "expected 0 images" in str(found.fault)


def test_stuff_has_twelve_kinds_of_things_and_fifteen_of_stuff_and_every_label_is_in_one() -> None:
    labels = [label for group in COCO_STUFF_CLASSES.values() for label in group]
    assert sorted(labels) == list(range(1, 183))
    things = [name for name, group in COCO_STUFF_CLASSES.items() if max(group) <= 91]
    assert (len(things), len(COCO_STUFF_CLASSES)) == (12, 27)


def test_films_of_davis_are_folders_whose_masks_number_objects(tmp_path: Path) -> None:
    write_davis(tmp_path / "DAVIS")
    dataset = load("davis_2017", tmp_path)
    assert dataset.sample_ids[0] == "JPEGImages/480p/bear/00000.jpg"
    assert dataset.mask_classes == ()
    assert [len(dataset.rows_in_split(split)) for split in ("train", "val")] == [8, 4]
    assert np.unique(read_image_and_mask(dataset, 0)[1]).tolist() == [0, 1, 2]
    (tmp_path / "DAVIS/Annotations/480p/bear/00002.png").unlink()
    with pytest.raises(DatasetIncomplete, match=r"1 of 12 images have no mask; missing: .*bear/00002.png"):
        load("davis_2017", tmp_path)


@pytest.mark.parametrize("name", ["camvid", "voc_2012", "ade20k", "cityscapes", "coco_stuff_27", "davis_2017"])
def test_what_is_not_there_says_where_to_get_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetAbsent, match=r"https?://") as caught:
        load(name, tmp_path)
    assert "does not download" in caught.value.remedy


def test_a_folder_of_images_and_masks_has_its_classes_from_a_list(tmp_path: Path) -> None:
    put(tmp_path / "images/a/b.jpg")
    put(tmp_path / "masks/a/b.png", mask_png((2, 0, 1, 255)))
    put(tmp_path / "classes.txt", "road\n-\ncar\n")
    dataset = load(tmp_path, tmp_path)
    assert dataset.mask_classes == ("road", "car")
    assert first_mask(dataset)[:4] == [1, 0, 255, 255]
    assert dataset.split_names == ()


def test_folders_of_images_and_masks_are_splits_and_need_a_list(tmp_path: Path) -> None:
    for split, values in (("train", (0, 1)), ("validation", (1, 255))):
        put(tmp_path / split / "images/x.jpg")
        put(tmp_path / split / "masks/x.png", mask_png(values))
    with pytest.raises(DatasetError, match=r"classes\.txt: is missing"):
        load(tmp_path, tmp_path)
    put(tmp_path / "classes.txt", "road\ncar\n")
    assert load(tmp_path, tmp_path).split_names == ("train", "val")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    put(tmp_path / "images/a.jpg")
    put(tmp_path / "masks/a.png", mask_png((0, 1)))
    put(tmp_path / "classes.txt", "road\ncar\n")
    return tmp_path


def test_a_mask_of_another_size_names_both_sizes(folder: Path) -> None:
    put(folder / "masks/a.png", mask_png(size=(6, 5)))
    with pytest.raises(DatasetError, match=r"images/a.jpg: the image has 12 x 10 pixels, but its mask has 6 x 5"):
        read_image_and_mask(load(folder, folder), 0)


def test_a_class_out_of_range_names_value_place_and_range(folder: Path) -> None:
    put(folder / "masks/a.png", mask_png((0, 1, 2)))
    with pytest.raises(
        DatasetError,
        match=r"a.png: value 2 in row 0, column 2 is not a class number; known values are 0 to 1, 255",
    ):
        read_image_and_mask(load(folder, folder), 0)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(jpeg(), "JPEG changes pixel"), (b"no image", "not an image"), (mask_png()[:45], "damaged"), (b"", "empty file")],
)
def test_a_file_that_is_no_mask_says_why(content: bytes, reason: str, folder: Path) -> None:
    dataset = load(folder, folder)
    put(folder / "masks/a.png", content)
    with pytest.raises(DatasetError, match=reason):
        read_image_and_mask(dataset, 0)


def test_a_colored_picture_of_a_mask_is_refused(folder: Path) -> None:
    import io

    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (12, 10)).save(buffer, "PNG")
    put(folder / "masks/a.png", buffer.getvalue())
    with pytest.raises(DatasetError, match="pixels are RGB, not 8-bit class numbers"):
        read_image_and_mask(load(folder, folder), 0)

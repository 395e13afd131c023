"""SVHN, STL-10, ImageNet-200, ImageNet-LT: read as published, refused when damaged or half there."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from labelkit.data.datasets import ImageDataset
from labelkit.data.registry import DATASETS, load_dataset
from labelkit.errors import DatasetError, DatasetIncomplete
from scipy.io import savemat
from tests.miniature_sets import STL_CLASSES, put, write_imagenet_lt, write_stl10, write_svhn, write_tiny_imagenet

WNIDS = ("n01440764", "n01443537", "n01484850")
TINY = replace(DATASETS["imagenet_200"], num_classes=3)


def load(name: str, data_root: Path) -> ImageDataset:
    return load_dataset(name, data_root=data_root)


def labels_of(dataset: ImageDataset, split: str) -> list[int]:
    return dataset.labels[dataset.rows_in_split(split)].tolist()


def test_svhn_calls_ten_zero_and_keeps_pixels_upright(tmp_path: Path) -> None:
    write_svhn(tmp_path / "svhn")
    dataset = load("svhn", tmp_path)
    assert labels_of(dataset, "train") == [0, 9, 8, 7, 6, 5]
    assert labels_of(dataset, "test") == [0, 9, 8, 7]
    assert dataset.chiral
    pixels = dataset.source.read(dataset.sample_ids.index("train/00002.png")).decode(3)
    assert pixels.shape == (32, 32, 3)
    assert (pixels[0] == 255).all()
    assert (pixels[1:] == 20).all()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.ones((3, 1), np.uint8)}, "expected uint8"),
        ({"X": np.zeros((2, 32, 32, 3), np.uint8), "y": np.ones((2, 1), np.uint8)}, "expected uint8"),
        ({"X": np.zeros((32, 32, 3, 2)), "y": np.ones((2, 1), np.uint8)}, "expected uint8"),
        ({"y": np.ones((2, 1), np.uint8)}, "has no variable 'X'"),
    ],
)
def test_svhn_that_is_not_as_published_is_refused(tmp_path: Path, content: dict[str, np.ndarray], message: str) -> None:
    write_svhn(tmp_path / "svhn")
    savemat(tmp_path / "svhn/train_32x32.mat", content)
    with pytest.raises(DatasetError, match=message):
        load("svhn", tmp_path)


def test_stl10_planes_lie_column_by_column_and_classes_count_from_one(tmp_path: Path) -> None:
    write_stl10(tmp_path / "stl10_binary")
    dataset = load("stl10", tmp_path)
    assert dataset.class_names == STL_CLASSES
    assert dataset.split_names == ("train", "test")
    assert labels_of(dataset, "train") == [0, 1, 2, 0, 1]
    row = dataset.sample_ids.index("train/000003.png")
    pixels = dataset.select([row]).source.read(0).decode(3)
    assert pixels[:, :, 0].tolist() == [[4] + [0] * 95] * 96
    assert (pixels[0, :, 1] == 7).all()
    assert (pixels[1:, :, 1] == 0).all()
    assert (pixels[..., 2] == 9).all()


def test_stl10_has_its_unlabeled_images_if_they_are_there(tmp_path: Path) -> None:
    write_stl10(tmp_path / "stl10_binary", unlabeled=4)
    dataset = load("stl10", tmp_path)
    assert labels_of(dataset, "unlabeled") == [-1] * 4
    assert not dataset.given[dataset.rows_in_split("unlabeled")].any()


def test_tiny_imagenet_classes_are_sorted_and_validation_follows_its_list(tmp_path: Path) -> None:
    write_tiny_imagenet(tmp_path / "tiny-imagenet-200", WNIDS)
    dataset = replace(TINY, num_images={"train": 6, "val": 3}).load(tmp_path)
    assert dataset.class_names == WNIDS
    assert labels_of(dataset, "train") == [0, 0, 1, 1, 2, 2]
    assert labels_of(dataset, "val") == [2, 1, 0]
    assert all("test" not in sample_id for sample_id in dataset.sample_ids)


def test_tiny_imagenet_must_have_its_classes_and_images(tmp_path: Path) -> None:
    write_tiny_imagenet(tmp_path / "tiny-imagenet-200", WNIDS)
    with pytest.raises(DatasetIncomplete, match="train: expected 7 images, found 6"):
        replace(TINY, num_images={"train": 7, "val": 3}).load(tmp_path)
    put(tmp_path / "tiny-imagenet-200/val/val_annotations.txt", "val_0.JPEG\tn99\t0\t0\t9\t9\n")
    with pytest.raises(DatasetError, match="has damaged file lists: 'n99'"):
        TINY.load(tmp_path)


@pytest.mark.parametrize("place", ["imagenet_lt", "imagenet"])
def test_imagenet_lt_lists_lie_beside_or_in_imagenet(tmp_path: Path, place: str) -> None:
    write_imagenet_lt(tmp_path / place, tmp_path / "imagenet", WNIDS)
    dataset = load("imagenet_lt", tmp_path)
    assert labels_of(dataset, "train") == [0, 0, 1, 1, 2]
    assert labels_of(dataset, "val") == [0, 1, 2]
    assert labels_of(dataset, "test") == [0, 1, 2]
    assert dataset.split_names == ("train", "val", "test")

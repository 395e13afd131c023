"""CUB, Stanford Cars, FGVC-Aircraft, ImageNet, Herbarium: whole, half-unpacked, mislaid, contradicting themselves."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.data.datasets import ImageDataset
from labelkit.data.registry import DATASETS, load_dataset
from labelkit.data.splits import ClassLabels, make_gcd_split
from labelkit.errors import DatasetAbsent, DatasetError, DatasetIncomplete
from tests.miniature_sets import (
    CAR_CLASSES,
    CUB_CLASSES,
    VARIANTS,
    imagenet_names,
    put,
    write_aircraft,
    write_cars,
    write_cub,
    write_herbarium,
    write_imagenet,
)


def miniature(name: str, data_root: Path, train: int, val: int, **changed: Any) -> ImageDataset:
    """Load a set of class folders, of which fewer images are expected than are published."""
    counts = {"train": train, "val": val}
    return replace(DATASETS[name], num_images=counts, **changed).load(data_root)


def load(name: str, data_root: Path) -> ImageDataset:
    return load_dataset(name, data_root=data_root)


def labels_by_id(dataset: ImageDataset) -> dict[str, int]:
    return dict(zip(dataset.sample_ids, dataset.labels.tolist(), strict=True))


def test_cub_classes_count_from_zero_and_splits_are_the_official_ones(tmp_path: Path) -> None:
    write_cub(tmp_path / "CUB_200_2011")
    dataset = load("cub", tmp_path)
    assert dataset.class_names == CUB_CLASSES
    assert dataset.split_names == ("train", "test")
    assert len(dataset.rows_in_split("train")) == 6
    assert [dataset.sample_ids[row] for row in dataset.rows_in_split("test")] == [
        "images/001.Auk/Auk_0009.jpg",
        "images/002.Big_Bee_eater/Big_Bee_eater_0009.jpg",
        "images/003.Crow/Crow_0009.jpg",
    ]
    assert labels_by_id(dataset)["images/002.Big_Bee_eater/Big_Bee_eater_0046.jpg"] == 1
    # images.txt names it first, so that its gray is 20; JPEG may be a step off
    row = dataset.sample_ids.index("images/001.Auk/Auk_0046.jpg")
    assert dataset.source.read(row).decode(1)[0, 0, 0] == pytest.approx(20, abs=2)


def test_cub_labels_are_drawn_in_the_order_of_images_txt(tmp_path: Path) -> None:
    in_order = [sample_id for sample_id in write_cub(tmp_path / "CUB_200_2011") if "0009" not in sample_id]
    dataset = load("cub", tmp_path)
    train = dataset.select(dataset.rows_in_split("train"))
    assert train.draw_order is not None
    split = make_gcd_split(
        ClassLabels(train.labels, train.given, 3),
        old_classes=[2, 0],
        new_classes=[1],
        draw_order=train.draw_order,
        label_ratio=0.25,
    )
    pool = [sample_id for sample_id in in_order if "/002." not in sample_id]
    # choice without replacement takes the head of a permutation of the same generator
    head = np.random.RandomState(0).permutation(len(pool))[: len(pool) // 4]
    labeled = {train.sample_ids[row] for row in np.flatnonzero(split.labeled)}
    assert labeled == {pool[i] for i in head}
    by_name = sorted(pool)
    assert labeled != {by_name[i] for i in head}
    assert split.class_order == (2, 0, 1)


def test_images_that_the_list_names_and_that_are_not_there_are_counted(tmp_path: Path) -> None:
    root = tmp_path / "CUB_200_2011"
    write_cub(root)
    shutil.rmtree(root / "images/003.Crow")
    (root / "images/002.Big_Bee_eater/Big_Bee_eater_0002.jpg").unlink()
    with pytest.raises(DatasetIncomplete) as caught:
        load("cub", tmp_path)
    text = str(caught.value)
    assert "train: expected 6 images, found 3; test: expected 3 images, found 2" in text
    assert "missing: images/002.Big_Bee_eater/Big_Bee_eater_0002.jpg, images/003.Crow/Crow_0046.jpg" in text
    assert "and 1 more" in text
    assert "unpack it into" in text


CONTRADICTIONS: list[tuple[str, Callable[[str], str], str]] = [
    ("images.txt", lambda text: text.replace("2 001", "1 001"), r"images\.txt: line 2: repeats the key 1"),
    ("images.txt", lambda text: text + "10\n", r"images\.txt: line 10: '10' is not `<key> <value>`"),
    ("images.txt", lambda text: text.replace("Auk_0009", "Auk_0046"), r"lists images/001\.Auk/Auk_0046\.jpg 2 times"),
    ("image_class_labels.txt", lambda text: text.replace("9 3", "9 4"), "has damaged file lists: list index"),
    ("image_class_labels.txt", lambda text: text.replace("9 3", "9 1"), r"image 9 is 003\.Crow/.*its class is 001"),
    ("image_class_labels.txt", lambda text: text.replace("9 3\n", ""), "has damaged file lists: '9'"),
    ("classes.txt", lambda text: text.replace("3 003", "4 003"), "has damaged file lists: '3'"),
]


@pytest.mark.parametrize(("file", "change", "problem"), CONTRADICTIONS)
def test_lists_of_cub_that_contradict_each_other_are_named(
    tmp_path: Path, file: str, change: Callable[[str], str], problem: str
) -> None:
    write_cub(tmp_path / "CUB_200_2011")
    path = tmp_path / "CUB_200_2011" / file
    path.write_text(change(path.read_text()))
    with pytest.raises(DatasetError, match=problem):
        load("cub", tmp_path)


@pytest.mark.parametrize("test_labels", ["cars_test_annos_withlabels.mat", "devkit/cars_test_annos_withlabels.mat"])
@pytest.mark.parametrize("place", ["stanford_cars", "scars", "."])
def test_cars_are_read_from_the_devkit(tmp_path: Path, place: str, test_labels: str) -> None:
    write_cars(tmp_path / place, test_labels=test_labels)
    dataset = load("scars", tmp_path)
    assert dataset.class_names == CAR_CLASSES
    assert labels_by_id(dataset) == {
        "cars_test/00001.jpg": 0,
        "cars_test/00002.jpg": 1,
        "cars_train/00001.jpg": 1,
        "cars_train/00002.jpg": 0,
        "cars_train/00003.jpg": 1,
        "cars_train/00004.jpg": 0,
    }
    assert [dataset.sample_ids[row] for row in dataset.rows_in_split("test")] == [
        "cars_test/00001.jpg",
        "cars_test/00002.jpg",
    ]


@pytest.mark.parametrize("content", [b"", b"MATLAB 5.0 MAT-file", b"\x00" * 200, b"\x89HDF\r\n\x1a\n" + b"\x00" * 500])
def test_damaged_annotations_are_named(tmp_path: Path, content: bytes) -> None:
    write_cars(tmp_path / "stanford_cars")
    (tmp_path / "stanford_cars/devkit/cars_train_annos.mat").write_bytes(content)
    with pytest.raises(DatasetError, match=r"cars_train_annos\.mat: "):
        load("scars", tmp_path)


def test_aircraft_classes_are_ranks_of_the_variants_names(tmp_path: Path) -> None:
    train = write_aircraft(tmp_path / "fgvc-aircraft-2013b")
    dataset = load("aircraft", tmp_path)
    assert dataset.class_names == VARIANTS
    assert dataset.split_names == ("train", "test")
    assert (len(dataset.rows_in_split("train")), len(dataset.rows_in_split("test"))) == (8, 4)
    assert labels_by_id(dataset)["data/images/72.jpg"] == VARIANTS.index("Cessna 172")
    assert dataset.draw_order is not None
    rows = sorted(dataset.rows_in_split("train").tolist(), key=lambda row: int(dataset.draw_order[row]))  # type: ignore[index]  # checked above
    assert [dataset.sample_ids[row] for row in rows] == train


def test_imagenet_folders_are_classes_in_the_order_of_their_names(tmp_path: Path) -> None:
    names = imagenet_names()
    write_imagenet(tmp_path / "imagenet", names)
    put(tmp_path / f"imagenet/train/{names[0]}/notes.txt", "no image")
    dataset = miniature("imagenet_100", tmp_path, 200, 100)
    assert dataset.class_names == names
    assert dataset.split_names == ("train", "val")
    first = [f"train/{names[0]}/{names[0]}_0.JPEG", f"train/{names[0]}/{names[0]}_1.JPEG"]
    assert dataset.sample_ids[:3] == (*first, f"train/{names[1]}/{names[1]}_0.JPEG")
    assert dataset.labels.tolist() == [i // 2 for i in range(200)] + list(range(100))
    assert dataset.splits.tolist() == [0] * 200 + [1] * 100
    assert dataset.source.read(0).decode(3).shape == (10, 12, 3)


@pytest.mark.slow
def test_imagenet_100_is_cut_from_all_of_imagenet(tmp_path: Path) -> None:
    names = imagenet_names("imagenet_1k")
    write_imagenet(tmp_path / "imagenet", names, train=1)
    dataset = miniature("imagenet_100", tmp_path, 100, 100)
    assert len(dataset.class_names) == 100
    # T19: the first sampled classes are 1, 14, 27, 31, 45, the last is 996
    assert dataset.class_names[:5] == tuple(names[i] for i in (1, 14, 27, 31, 45))
    assert dataset.class_names[-1] == names[996]
    assert len(dataset) == 200
    assert len(miniature("imagenet_1k", tmp_path, 1000, 1000)) == 2000


@pytest.mark.parametrize("folder", ["imagenet_100", "imagenet", "imagenet_100/imagenet", "."])
def test_imagenet_100_is_read_from_a_folder_of_its_classes(tmp_path: Path, folder: str) -> None:
    write_imagenet(tmp_path / folder, imagenet_names(), train=1)
    assert len(miniature("imagenet_100", tmp_path, 100, 100)) == 200


def test_a_registered_imagenet_must_have_the_published_number_of_images(tmp_path: Path) -> None:
    write_imagenet(tmp_path / "imagenet_100", imagenet_names(), train=1)
    with pytest.raises(
        DatasetIncomplete, match=r"train: expected 127,100 to 127,300 images, found 100; val: .*found 100"
    ):
        load("imagenet_100", tmp_path)


def test_herbarium_classes_are_ranks_of_folder_names_as_text(tmp_path: Path) -> None:
    write_herbarium(tmp_path / "herbarium_19")
    dataset = miniature("herbarium_19", tmp_path, 6, 3, num_classes=3)
    assert dataset.class_names == ("1", "10", "2")
    assert dataset.split_names == ("train", "val")
    assert labels_by_id(dataset)["small-train/10/00001.jpg"] == 1
    assert labels_by_id(dataset)["small-validation/2/00000.jpg"] == 2
    assert (len(dataset.rows_in_split("train")), len(dataset.rows_in_split("val"))) == (6, 3)


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("cub", "CUB_200_2011"),
        ("scars", "stanford_cars"),
        ("aircraft", "fgvc-aircraft-2013b"),
        ("herbarium_19", "herbarium_19"),
        ("imagenet_1k", "imagenet"),
        ("imagenet_100", "imagenet_100"),
    ],
)
def test_a_set_that_is_not_there_says_what_was_looked_for(tmp_path: Path, name: str, folder: str) -> None:
    with pytest.raises(DatasetAbsent, match=rf"not found in {tmp_path}: looked for {folder}/ with .*labelkit does not"):
        load(name, tmp_path)
    with pytest.raises(DatasetAbsent, match="no such folder"):
        load(name, tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "archive", "command"),
    [
        ("cub", "CUB_200_2011.tgz", "tar -xf"),
        ("aircraft", "fgvc-aircraft-2013b.tar.gz", "tar -xf"),
        ("scars", "stanford_cars/cars_train.tgz", "tar -xf"),
        ("herbarium_19", "herbarium_19/herbarium-2019-fgvc6.zip", "unzip -q"),
        ("imagenet_1k", "imagenet/ILSVRC2012_img_train.tar", "tar -xf"),
        ("cifar10", "cifar-10-python.tar.gz", "tar -xf"),
    ],
)
def test_an_archive_that_is_not_unpacked_is_met_with_the_command(
    tmp_path: Path, name: str, archive: str, command: str
) -> None:
    put(tmp_path / archive)
    with pytest.raises(DatasetIncomplete, match="is not unpacked") as caught:
        load(name, tmp_path)
    assert caught.value.remedy.startswith(f"Run `{command} {tmp_path / archive} ")

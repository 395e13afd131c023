"""Inventories: absent, incomplete and whole sets, with what was expected and found."""

from dataclasses import replace
from pathlib import Path

from labelkit.commands.datasets.datasets import count_dataset_files
from labelkit.data.registry import DATASETS
from tests.miniature_sets import write_cub, write_herbarium

MINI_CUB = replace(DATASETS["cub"], num_classes=3, num_images={"train": 6, "test": 3})


def test_digits_are_always_whole(tmp_path: Path) -> None:
    found = count_dataset_files(DATASETS["digits"], tmp_path)
    assert (found.state, found.fault) == ("whole", None)
    assert found.found == {"train": 1797, "classes": 10, "mask_classes": 0, "object_classes": 0}


def test_every_other_set_is_absent_from_an_empty_folder(tmp_path: Path) -> None:
    states = {name: count_dataset_files(spec, tmp_path).state for name, spec in DATASETS.items()}
    generated = ("digits", "scene_objects", "scenes", "digit_scenes", "scene_videos")
    assert states == dict.fromkeys(DATASETS, "absent") | dict.fromkeys(generated, "whole")


def test_a_miniature_that_fits_together_is_counted_against_the_published_figures(tmp_path: Path) -> None:
    write_cub(tmp_path / "CUB_200_2011")
    found = count_dataset_files(DATASETS["cub"], tmp_path)
    assert (found.state, *map(found.found.get, ("train", "test", "classes"))) == ("incomplete", 6, 3, 3)
    assert "train: expected 5,994 images, found 6; test: expected 5,794 images, found 3" in str(found.fault)
    assert "expected 200 classes, found 3" in str(found.fault)


def test_a_set_with_the_published_counts_is_whole_and_what_a_half_unpacked_one_has_is_told(tmp_path: Path) -> None:
    write_cub(tmp_path / "CUB_200_2011")
    found = count_dataset_files(MINI_CUB, tmp_path)
    assert (found.state, *map(found.found.get, ("train", "test", "classes"))) == ("whole", 6, 3, 3)
    assert found.folder == tmp_path / "CUB_200_2011"
    (tmp_path / "CUB_200_2011/images/001.Auk/Auk_0046.jpg").unlink()
    found = count_dataset_files(MINI_CUB, tmp_path)
    assert found.state == "incomplete"
    assert "train: expected 6 images, found 5; test: expected 3 images, found 3" in str(found.fault)
    write_herbarium(tmp_path)
    found = count_dataset_files(DATASETS["herbarium_19"], tmp_path)
    assert found.state == "incomplete"
    assert "train: expected 34,225 images, found 6" in str(found.fault)


def test_a_damaged_list_is_a_fault_of_the_set(tmp_path: Path) -> None:
    write_cub(tmp_path / "CUB_200_2011")
    (tmp_path / "CUB_200_2011/classes.txt").write_text("")
    found = count_dataset_files(DATASETS["cub"], tmp_path)
    assert (found.state, found.found) == ("incomplete", {})
    assert "classes.txt: is empty" in str(found.fault)

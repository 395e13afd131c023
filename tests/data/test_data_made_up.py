"""Made-up images: as many as published, as large, in as many classes."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from labelkit.data.image_bank import ImageBank
from labelkit.data.joined import join_datasets
from labelkit.data.made_up import PHOTO, made_up_dataset
from labelkit.data.named.layouts import Count
from labelkit.data.registry import DATASETS

FEW = [name for name, spec in DATASETS.items() if sum(count.low for count in spec.num_images.values()) < 200_000]


@pytest.mark.parametrize("name", FEW)
def test_numbers_are_the_published_ones(name: str) -> None:
    spec, dataset = DATASETS[name], made_up_dataset(DATASETS[name])
    counts = {split: len(dataset.in_split(split)) for split in dataset.split_names}
    assert counts == {split: count.low for split, count in spec.num_images.items()}
    assert len(dataset.class_names) == spec.num_classes
    if spec.num_classes:
        assert set(dataset.labels.tolist()) == set(range(spec.num_classes))


def test_a_number_that_is_published_rounded_is_the_lowest() -> None:
    assert DATASETS["imagenet_100"].num_images["train"] == Count(127_100, 127_300)
    assert len(made_up_dataset(DATASETS["imagenet_100"]).in_split("train")) == 127_100


@pytest.mark.parametrize(("name", "trained"), [("sop", 11_318), ("in_shop", 3_997)])
def test_classes_to_search_among_are_others_than_those_trained_on(name: str, trained: int) -> None:
    dataset = made_up_dataset(DATASETS[name])
    rows = dataset.in_split("train")
    others = np.setdiff1d(np.arange(len(dataset)), rows)
    assert set(dataset.labels[rows].tolist()) == set(range(trained))
    assert min(dataset.labels[others]) == trained


@pytest.mark.parametrize(("name", "size"), [("cifar10", (32, 32)), ("stl10", (96, 96)), ("cub", PHOTO)])
def test_images_have_the_size_of_the_set_and_differ(name: str, size: tuple[int, int]) -> None:
    dataset = made_up_dataset(DATASETS[name])
    chosen = pickle.loads(pickle.dumps(dataset.source.select(np.array([3, 4, 4]))))
    images = [chosen.read(i).decode(3) for i in range(3)]
    assert {image.shape for image in images} == {(*size, 3)}
    assert not np.array_equal(images[0], images[1])
    np.testing.assert_array_equal(images[1], images[2])


def test_photos_have_about_the_bytes_of_photos() -> None:
    # ImageNet: 138 GB of 1,281,167 images
    assert 80_000 < made_up_dataset(DATASETS["cub"]).source.read(0).size < 160_000


def test_large_ones_are_not_decoded_to_see_whether_they_are_whole() -> None:
    birds, scenes = made_up_dataset(DATASETS["cub"]), made_up_dataset(DATASETS["voc_2012"])
    for dataset, count in ((birds, 11_788), (join_datasets(birds, scenes), 11_788 + 2_913)):
        bank = ImageBank(dataset)
        assert (len(bank.rows), bank.bad, bank.image_size, bank.in_memory) == (count, {}, PHOTO, False)

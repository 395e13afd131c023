"""The published class lists: complete, disjoint, in published order, and what happens when they do not fit the data."""

from pathlib import Path

import numpy as np
import pytest
from labelkit.data.named.benchmark_classes import read_benchmark_classes
from labelkit.data.registry import DATASETS, load_dataset
from labelkit.data.splits import ClassLabels, make_gcd_split
from labelkit.errors import DatasetError
from tests.miniature_sets import write_cub

NAMES = [name for name, spec in DATASETS.items() if spec.num_classes]


@pytest.mark.parametrize("name", NAMES)
def test_old_and_new_classes_are_disjoint_and_complete(name: str) -> None:
    classes = read_benchmark_classes(name)
    assert not set(classes.old_classes) & set(classes.new_classes)
    assert sorted(classes.old_classes + classes.new_classes) == list(range(DATASETS[name].num_classes))
    assert classes.source


@pytest.mark.parametrize(
    ("name", "first_old", "first_new"),
    [("cub", (150, 70, 34), (29, 110, 3)), ("scars", (1, 11, 25), (23, 42, 83)), ("aircraft", (0, 1, 2), (6, 7, 8))],
)
def test_lists_of_the_semantic_shift_benchmark_are_the_published_ones(
    name: str, first_old: tuple[int, ...], first_new: tuple[int, ...]
) -> None:
    classes = read_benchmark_classes(name)
    assert (classes.old_classes[:3], classes.new_classes[:3]) == (first_old, first_new)


def test_imagenet_100_is_what_the_published_rule_draws() -> None:
    drawn = np.sort(np.random.RandomState(0).choice(range(1000), 100, replace=False))
    names = read_benchmark_classes("imagenet_1k").folder_names
    assert read_benchmark_classes("imagenet_100").folder_names == tuple(names[i] for i in drawn)
    assert drawn[[0, 1, 2, 3, 4, -1]].tolist() == [1, 14, 27, 31, 45, 996]
    assert read_benchmark_classes("imagenet_100").old_classes == tuple(range(50))


def test_imagenet_folder_names_are_a_thousand_sorted_wordnet_ids() -> None:
    names = read_benchmark_classes("imagenet_1k").folder_names
    assert len(set(names)) == 1000
    assert list(names) == sorted(names)
    # the first class is the tench, the last one toilet tissue
    assert (names[0], names[-1]) == ("n01440764", "n15075141")


def test_old_classes_of_herbarium_are_what_the_published_rule_draws() -> None:
    classes = read_benchmark_classes("herbarium_19")
    assert classes.old_classes == tuple(np.random.RandomState(0).choice(range(683), 341, replace=False))
    assert classes.new_classes == tuple(sorted(set(range(683)) - set(classes.old_classes)))


@pytest.mark.parametrize(
    ("name", "num_images", "labeled", "unlabeled"),
    # specification 4.2, in thousands; images spread evenly over classes, as they nearly are
    [
        ("cifar10", 50_000, 12.5, 37.5),
        ("cifar100", 50_000, 20.0, 30.0),
        ("cub", 5_994, 1.5, 4.5),
        ("scars", 8_144, 2.0, 6.1),
        ("aircraft", 6_667, 1.7, 5.0),
    ],
)
def test_splits_have_the_published_sizes(name: str, num_images: int, labeled: float, unlabeled: float) -> None:
    classes = read_benchmark_classes(name)
    assert DATASETS[name].num_images["train"] == num_images
    labels = np.sort(np.arange(num_images) % classes.num_classes)
    split = make_gcd_split(
        ClassLabels(labels, np.ones(num_images, dtype=np.bool_), classes.num_classes),
        old_classes=classes.old_classes,
        new_classes=classes.new_classes,
    )
    assert round(int(split.labeled.sum()) / 1000, 1) == labeled
    assert round(int((~split.labeled).sum()) / 1000, 1) == unlabeled
    assert set(labels[split.labeled]) <= set(classes.old_classes)
    assert split.class_order == classes.old_classes + classes.new_classes
    # position in the published order is the training label
    assert split.to_training_labels(labels).max() == len(classes.old_classes) - 1
    row = int(np.flatnonzero(split.labeled)[0])
    assert classes.old_classes[split.to_training_labels(labels)[row]] == labels[row]


def test_a_class_list_that_does_not_match_the_data_says_expected_and_found(tmp_path: Path) -> None:
    write_cub(tmp_path / "CUB_200_2011")
    dataset = load_dataset("cub", data_root=tmp_path)
    with pytest.raises(DatasetError, match=r"expected 200 classes, found 3.*labelkit datasets --dataset cub"):
        read_benchmark_classes("cub").check_num_classes("cub", len(dataset.class_names))

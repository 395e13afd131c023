"""Splits: published counts and draws, few labels, halves, long tails, and what never leaves."""

from typing import Any

import numpy as np
import pytest
from labelkit.data.splits import (
    ClassLabels,
    LabelSplit,
    compute_long_tail_counts,
    draw_holdout_rows,
    make_dataset_label_split,
    make_few_labels_split,
    make_gcd_split,
    make_long_tail_split,
    select_first_per_class,
)
from labelkit.errors import DatasetError


def balanced(num_classes: int, per_class: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.random.default_rng(3).permutation(np.repeat(np.arange(num_classes), per_class))


def all_given(labels: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.ones(len(labels), dtype=np.bool_)


def test_digits_split_has_the_sizes_of_the_specification() -> None:
    from sklearn.datasets import load_digits

    labels = load_digits().target
    split = make_gcd_split(ClassLabels(labels, all_given(labels), 10))
    assert split.labeled.sum() == 450
    assert ((labels < 5) & ~split.labeled).sum() == 451
    assert (labels >= 5).sum() == 896


def test_labeled_images_are_those_that_the_released_code_draws() -> None:
    labels = np.array([0, 3, 1, 0, 2, 1, 0, 3, 1, 0, 1])
    # choice without replacement takes the head of a permutation of the same generator.
    pool = [row for row, label in enumerate(labels) if label in (0, 1)]
    head = np.random.RandomState(0).permutation(len(pool))[: int(0.5 * len(pool))]
    split = make_gcd_split(ClassLabels(labels, all_given(labels), 4), label_ratio=0.5, seed=0)
    assert np.flatnonzero(split.labeled).tolist() == sorted(pool[i] for i in head)


def test_old_classes_come_first_in_the_order_given() -> None:
    labels = np.array([4, 2, 0, 1, 3])
    split = make_gcd_split(ClassLabels(labels, all_given(labels), 5), old_classes=[4, 2], label_ratio=1.0)
    assert split.class_order == (4, 2, 0, 1, 3)
    assert split.to_training_labels(labels).tolist() == [0, 1, -1, -1, -1]


def test_labels_that_are_not_given_are_never_drawn() -> None:
    labels = np.array([0, 0, 0, 0, 1])
    given = np.array([True, False, True, False, True])
    split = make_gcd_split(ClassLabels(labels, given, 2), label_ratio=1.0)
    assert split.labeled.tolist() == [True, False, True, False, False]


def test_an_old_class_without_labeled_image_is_reported() -> None:
    labels = np.array([0, 0, 0, 0, 2])
    split = make_gcd_split(ClassLabels(labels, all_given(labels), 4), num_old_classes=2)
    # it has no image at all, which no other draw changes
    assert split.warnings == ("1 of 2 old classes have no labeled image: 1",)


def test_old_classes_that_the_draw_missed_are_all_named_with_what_may_help() -> None:
    # one image each of six rare classes beside 60 of class 0: at most 6 of 66 labels can reach all, 3 cannot
    labels = np.array([0] * 60 + [1, 2, 3, 4, 5, 6])
    names = [f"c{i}" for i in range(8)]
    split = make_gcd_split(ClassLabels(labels, all_given(labels), 8, names), num_old_classes=7, label_ratio=3 / 66)
    (warning,) = split.warnings
    missed = [f"'{names[i]}'" for i in range(7) if not split.labeled[labels == i].any()]
    assert len(missed) >= 4
    assert warning.startswith(f"{len(missed)} of 7 old classes have no labeled image: {', '.join(missed)}; ")
    assert "not per class: a larger label ratio or another split seed may include them" in warning


def test_many_classes_without_labeled_image_are_one_warning() -> None:
    names = [f"c{i}" for i in range(44)]
    split = make_gcd_split(ClassLabels(np.array([0]), np.ones(1, dtype=bool), 44, names), label_ratio=1.0)
    (warning,) = split.warnings
    assert warning.startswith("21 of 22 old classes have no labeled image: 'c1', 'c2', ")
    assert warning.endswith("'c20' and 1 more")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"old_classes": [0, 9]},
            "2 old and 3 new classes do not contain each of the 4 classes once.* extra class is 9",
        ),
        (
            {"old_classes": [0, 0]},
            "2 old and 3 new classes do not contain each of the 4 classes once.* extra class is 0",
        ),
        ({"old_classes": []}, "there are no old classes"),
        ({"num_old_classes": 5}, "cannot use 5 of 4 classes as old classes"),
        ({"num_old_classes": 0}, "cannot use 0 of 4 classes as old classes"),
        ({"label_ratio": 0.1}, "no image would be labeled"),
    ],
)
def test_splits_that_cannot_be_are_refused(options: dict[str, Any], problem: str) -> None:
    labels = np.array([0, 1, 2, 3])
    with pytest.raises(DatasetError, match=problem):
        make_gcd_split(ClassLabels(labels, all_given(labels), 4), **options)


def test_json_has_the_names_of_the_labeled_images() -> None:
    split = LabelSplit("given", np.array([False, True]), (0,), (1,))
    record = split.to_json(["a.png", "b.png"])
    assert (record["labeled"], record["old_classes"], record["new_classes"]) == (["b.png"], [0], [1])
    assert (record["format"], record["version"]) == ("labelkit.split", 1)


def test_few_labels_are_equally_many_per_class() -> None:
    labels = balanced(5, 30)
    split = make_few_labels_split(ClassLabels(labels, all_given(labels), 5), total=20, seed=1)
    assert np.bincount(labels[split.labeled]).tolist() == [4] * 5
    assert split.new_classes == ()
    other = make_few_labels_split(ClassLabels(labels, all_given(labels), 5), total=20, seed=2)
    assert not np.array_equal(split.labeled, other.labeled)


def test_a_total_of_few_labels_is_spread_over_the_classes() -> None:
    labels = balanced(3, 10)
    split = make_few_labels_split(ClassLabels(labels, all_given(labels), 3), total=8)
    assert np.bincount(labels[split.labeled]).tolist() == [3, 3, 2]


def test_more_labels_than_images_names_the_class() -> None:
    labels = np.array([0, 0, 0, 1])
    with pytest.raises(DatasetError, match="2 labeled images per class were requested, but class 1 has 1"):
        make_few_labels_split(ClassLabels(labels, all_given(labels), 2), total=4)
    with pytest.raises(DatasetError, match="1 labels are too few for 2 classes"):
        make_few_labels_split(ClassLabels(labels, all_given(labels), 2), total=1)


def test_given_labels_are_used_as_they_are() -> None:
    labels = np.array([2, -1, 0, 2, 1])
    given = np.array([True, False, True, False, False])
    split = make_dataset_label_split(ClassLabels(labels, given, 3))
    assert (split.old_classes, split.new_classes) == ((0, 2), (1,))
    assert split.to_training_labels(labels).tolist() == [1, -1, 0, -1, -1]


def test_the_first_rows_of_each_class_in_each_split_are_kept() -> None:
    labels = [0, 1, 0, 0, -1, 1, -1, -1, 0]
    splits = [0, 0, 0, 0, 0, 1, 0, 0, 1]
    assert select_first_per_class(labels, splits, 2).tolist() == [0, 1, 2, 4, 5, 6, 8]
    assert select_first_per_class(labels, splits, 9).tolist() == list(range(9))


def test_long_tailed_cifar_has_the_published_class_sizes() -> None:
    # Class sizes of CIFAR-10-LT with imbalance 100 in the literature.
    assert compute_long_tail_counts(5000, 10, 0.01).tolist() == [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    assert compute_long_tail_counts(500, 100, 0.01)[[0, -1]].tolist() == [500, 5]
    assert compute_long_tail_counts(7, 1, 0.5).tolist() == [7]


def test_a_long_tail_starts_from_the_mean_class_size_with_its_fraction() -> None:
    # training images of SVHN; the released code: int(73257 / 10 * factor ** (i / 9))
    sizes = [4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659]
    labels = np.repeat(np.arange(10), sizes)
    expected = [min(int(7325.7 * 0.02 ** (i / 9)), sizes[i]) for i in range(10)]
    assert expected != [min(int(7325 * 0.02 ** (i / 9)), sizes[i]) for i in range(10)]
    rows = make_long_tail_split(ClassLabels(labels, all_given(labels), 10), imbalance_factor=0.02)
    assert np.bincount(labels[rows]).tolist() == expected


def test_a_long_tail_that_would_leave_a_class_empty_is_refused() -> None:
    labels = np.array([0] * 10 + [1] * 2 + [2] * 10)
    with pytest.raises(DatasetError, match=r"class 1 would be left without images \(it has 2\)"):
        make_long_tail_split(ClassLabels(labels, all_given(labels), 3), imbalance_factor=0.01)


@pytest.mark.parametrize(("factor", "total"), [(0.005, 11203), (0.01, 12406), (0.02, 13996)])
def test_long_tailed_cifar10_has_the_published_total(factor: float, total: int) -> None:
    labels = balanced(10, 5000)
    rows = make_long_tail_split(ClassLabels(labels, all_given(labels), 10), imbalance_factor=factor)
    assert len(rows) == total


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.97])
def test_a_holdout_takes_the_same_share_of_each_class(share: float, rng: np.random.Generator) -> None:
    labels = rng.integers(-1, 5, 203)
    rows = draw_holdout_rows(labels, share)
    assert (np.diff(rows) > 0).all()
    for label in range(-1, 5):
        size, taken = (labels == label).sum(), (labels[rows] == label).sum()
        assert abs(taken - share * size) <= 1
        assert taken < size
    assert np.array_equal(rows, draw_holdout_rows(labels, share))
    assert not np.array_equal(rows, draw_holdout_rows(labels, share, seed=1)) or len(rows) == 203 - 6

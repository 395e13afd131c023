"""The share of rows that belong to classes with labels."""

from __future__ import annotations

import numpy as np
import pytest
from labelkit.algorithms.labeled_share import LabeledShare, label_agreement, labeled_share
from numpy.typing import NDArray


def clouds(sizes: list[int], spread: float = 0.25, dim: int = 24) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    rng = np.random.default_rng(3)
    truth = np.repeat(np.arange(len(sizes)), sizes)
    centers = rng.normal(size=(len(sizes), dim))
    return (centers[truth] + spread * rng.normal(size=(len(truth), dim))).astype(np.float32), truth


def keep(truth: NDArray[np.int64], classes: int, per_class: int) -> NDArray[np.int64]:
    labels = np.full(len(truth), -1)
    for label in range(classes):
        labels[np.flatnonzero(truth == label)[:per_class]] = label
    return labels


@pytest.mark.parametrize(("classes", "expected"), [(8, 35 * 8 / 435), (4, 35 * 4 / 460), (12, 1.0)])
def test_the_share_is_that_of_the_classes_with_labels(classes: int, expected: float) -> None:
    # twelve classes of 40, five labels in each of some of them: 35 rows of such a class have no label
    rows, truth = clouds([40] * 12)
    expected = 35 * classes / (480 - 5 * classes)

    found = labeled_share(rows, keep(truth, classes, 5), generator=np.random.default_rng(0))

    assert found is not None
    assert found.share == pytest.approx(expected, abs=0.06)
    assert (found.num_classes, found.num_labels, found.num_rows) == (classes, 5 * classes, 480)


def test_single_labels_do_not_take_part() -> None:
    rows, truth = clouds([40] * 12)
    labels = keep(truth, 6, 5)
    # the image that most others are near to, of each of three more classes
    for label in (6, 7, 8):
        members = np.flatnonzero(truth == label)
        labels[members[np.linalg.norm(rows[members] - rows[members].mean(axis=0), axis=1).argmin()]] = label

    found = labeled_share(rows, labels, generator=np.random.default_rng(0))

    assert found is not None
    assert (found.num_classes, found.num_labels) == (6, 30)
    assert found.share == pytest.approx(35 * 6 / 450, abs=0.06)


def test_sizes_that_differ_are_seen() -> None:
    rows, truth = clouds([100, 20, 100, 20])
    found = labeled_share(rows, keep(truth, 4, 5), generator=np.random.default_rng(0))
    assert found is not None
    # sizes 100 and 20: deviation 40 of a mean of 60
    assert found.size_spread == pytest.approx(2 / 3, abs=0.05)


def test_labels_that_say_nothing_have_a_large_error() -> None:
    rows, truth = clouds([40] * 12)
    random_labels = np.random.default_rng(1).permutation(keep(truth, 6, 5))
    found = labeled_share(rows, random_labels, generator=np.random.default_rng(0))
    good = labeled_share(rows, keep(truth, 6, 5), generator=np.random.default_rng(0))
    assert found is not None
    assert good is not None
    assert found.error(0.5) > 3 * good.error(0.5)


def test_one_class_hidden_of_two_is_no_reason_to_see_no_other_class() -> None:
    # with one of two classes hidden, no label of another class is there to be nearer than
    rows, truth = clouds([40] * 5, spread=0.8)
    found = labeled_share(rows, keep(truth, 2, 8), generator=np.random.default_rng(0))
    assert found is not None
    assert found.share == pytest.approx(64 / 184, abs=0.1)


def test_the_error_mixes_that_of_both_kinds_of_classes() -> None:
    found = LabeledShare(0.5, 0.1, 0.3, 5, 50, 300, 0.0)
    # all rows are of classes with labels, none is, half are; twice the variance of each
    assert found.error([1.0, 0.0, 1.5, -1.0]) == pytest.approx(np.sqrt(2) * np.array([0.1, 0.3, 0.1, 0.3]))
    assert found.error(0.5) == pytest.approx(np.sqrt(2 * (0.05**2 + 0.15**2)))


@pytest.mark.parametrize(("classes", "per_class"), [(1, 5), (4, 1), (0, 0), (4, 40)])
def test_too_few_labels_or_no_row_without_one_tell_nothing(classes: int, per_class: int) -> None:
    rows, truth = clouds([40] * 4)
    assert labeled_share(rows, keep(truth, classes, per_class), generator=np.random.default_rng(0)) is None


def test_shapes_must_fit() -> None:
    with pytest.raises(ValueError, match="do not fit together"):
        labeled_share(np.ones((3, 2)), np.zeros(4), generator=np.random.default_rng(0))


def test_labels_agree_where_classes_are_apart_and_by_chance_where_they_are_drawn(rng: np.random.Generator) -> None:
    truth = np.repeat(np.arange(4), 25)
    x = 5 * np.eye(4)[truth] + rng.normal(0, 0.3, (100, 4))
    labels = np.where(np.arange(100) % 25 < 10, truth, -1)
    drawn = np.where(labels >= 0, rng.permutation(100) % 4, -1)

    right, wrong = label_agreement(x, labels), label_agreement(x, drawn)

    assert right is not None
    assert wrong is not None
    # 40 labels, ten of each class: nine of the other 39 have the same
    assert (right.share, right.by_chance, right.is_chance) == (1.0, pytest.approx(9 / 39), False)
    assert wrong.is_chance


def test_one_class_or_few_labels_show_no_agreement(rng: np.random.Generator) -> None:
    x = rng.normal(size=(30, 3))
    assert label_agreement(x, np.where(np.arange(30) < 20, 0, -1)) is None
    assert label_agreement(x, np.where(np.arange(30) < 9, np.arange(30) % 2, -1)) is None


def test_classes_with_one_label_say_nothing_of_agreement(rng: np.random.Generator) -> None:
    x = np.repeat(np.eye(6)[:2] * 5, 6, axis=0) + rng.normal(0, 0.1, (12, 6))
    x = np.concatenate([x, rng.normal(size=(20, 6))])
    labels = np.array([0] * 6 + [1] * 6 + list(range(2, 22)))

    found = label_agreement(x, labels)

    assert found is not None
    assert found.num_labels == 12
    # five of the other 31 labels are the same
    assert found.by_chance == pytest.approx(5 / 31)
    assert label_agreement(x, np.arange(32)) is None

from typing import Any

import numpy as np
import pytest
from labelkit.methods.few_labels.snowball_search import discover_confident_samples, fuse_class_distances, mean_ranks
from numpy.typing import NDArray

Array = NDArray[Any]

# The toy set of the specification: rows 0 to 3 have labels.
TOY = np.array(
    [
        *[(0, 0), (2, 0), (10, 0), (10, 2)],
        *[(1, 0), (1, 1), (1, -1), (10, 1), (9, 1), (4, 0), (6, 0.5), (5.5, 0.5), (20, 0), (10, 4)],
    ],
    dtype=float,
)
TOY_LABELS = np.array([0, 0, 1, 1] + [-1] * 10)


def cloud(seed: int, num_rows: int = 40, num_classes: int = 3, per_class: int = 3) -> tuple[Array, Array]:
    """Random rows without ties, the first few of them labeled."""
    rows = np.random.default_rng(seed).standard_normal((num_rows, 4))
    labels = np.full(num_rows, -1)
    labels[: num_classes * per_class] = np.arange(num_classes * per_class) % num_classes
    return rows, labels


def test_toy_distances_classes_and_order_are_those_of_the_specification() -> None:
    found = discover_confident_samples(TOY, TOY_LABELS, 10, balance="global")

    assert found.indices.tolist() == [4, 7, 5, 6, 8, 9, 13, 10, 11, 12]
    by_row = np.argsort(found.indices)
    expected = [0, 1, 1, 0, 1, 3, 4.031129, 4.527693, 10.049876, 3]
    np.testing.assert_allclose(found.distance[by_row], expected, atol=1e-6)
    # row 11 is as far from both means: the lower class
    assert found.labels[by_row].tolist() == [0, 0, 0, 1, 1, 0, 1, 0, 1, 1]


@pytest.mark.parametrize(
    ("options", "count", "expected"),
    [
        ({"balance": "global"}, 2, [4, 7]),
        ({"balance": "global"}, 3, [4, 7, 5]),
        ({"balance": "global"}, 4, [4, 7, 5, 6]),
        ({}, 4, [4, 5, 7, 8]),
        ({"balance": "global", "select": "max"}, 2, [12, 11]),
        ({"balance": "global", "select": "far"}, 2, [6, 8]),
    ],
)
def test_toy_selection_is_that_of_the_specification(options: dict[str, Any], count: int, expected: list[int]) -> None:
    assert discover_confident_samples(TOY, TOY_LABELS, count, **options).indices.tolist() == expected


@pytest.mark.parametrize(
    ("select", "balance", "wrong", "index_sum"),
    [
        ("min", "balanced", 0, 31549),
        ("min", "global", 0, 35104),
        ("far", "balanced", 3, 45979),
        ("max", "balanced", 33, 54020),
        ("max", "global", 31, 54768),
    ],
)
def test_digits_give_the_specified_rows(
    labeled_digits: tuple[Array, Array, Array], select: Any, balance: Any, wrong: int, index_sum: int
) -> None:
    pixels, labels, truth = labeled_digits
    found = discover_confident_samples(pixels, labels, 50, select=select, balance=balance)

    assert int((found.labels != truth[found.indices]).sum()) == wrong
    assert int(found.indices.sum()) == index_sum


def test_fusion_of_three_networks_is_that_of_the_specification() -> None:
    parts = [
        np.array([[1, 3], [2, 2.5], [4, 1]]),
        np.array([[2, 1], [1, 4], [5, 2.0]]),
        np.array([[3, 2], [0.5, 3], [6, 0.5]]),
    ]

    labels, distance = fuse_class_distances(parts, "distance")
    np.testing.assert_allclose(distance[:, 0], [2.0, 1.166667, 1.166667], atol=1e-6)
    assert labels.tolist() == [0, 0, 1]
    labels, distance = fuse_class_distances(parts, "cascade")
    np.testing.assert_allclose(distance[:, 0], [3.741657, 2.291288, 2.291288], atol=1e-6)
    assert labels.tolist() == [0, 0, 1]
    # row 0: class 0 by distance and cascade, class 1 by rank
    labels, nearest = fuse_class_distances(parts, "rank")
    np.testing.assert_allclose(mean_ranks(nearest), [1.666667, 2.0, 2.333333], atol=1e-6)
    assert labels.tolist() == [1, 0, 1]


def test_majority_tie_goes_to_the_class_with_the_smallest_mean_distance() -> None:
    labels, _ = fuse_class_distances([np.array([[1.0, 2.0]]), np.array([[4.0, 2.5]])], "rank")
    assert labels.tolist() == [1]  # means 2.5 and 2.25


def test_random_selection_is_the_specified_draw() -> None:
    rows, labels = cloud(0)
    every = discover_confident_samples(rows, labels, 31, balance="global")
    generator = np.random.RandomState(5)
    expected = []
    for c in range(3):
        group = every.indices[every.labels == c]
        expected += group[generator.permutation(len(group))][:3].tolist()

    assert discover_confident_samples(rows, labels, 9, select="random", seed=5).indices.tolist() == expected


def test_cascade_is_the_distance_between_features_side_by_side() -> None:
    first, labels = cloud(5)
    second, _ = cloud(6)
    side_by_side = discover_confident_samples(np.hstack([first, second]), labels, 9)
    found = discover_confident_samples([first, second], labels, 9, fusion="cascade")

    assert found.indices.tolist() == side_by_side.indices.tolist()
    np.testing.assert_allclose(found.distance, side_by_side.distance, rtol=1e-12)


def test_ranks_let_the_classes_take_turns() -> None:
    rows, labels = cloud(10, num_rows=60)
    found = discover_confident_samples(rows, labels, 12)
    first = found.indices[found.rank <= 6]

    assert sorted(found.rank.tolist()) == list(range(1, 13))
    assert sorted(first.tolist()) == sorted(discover_confident_samples(rows, labels, 6).indices.tolist())


def test_rounds_are_single_discoveries_one_after_the_other() -> None:
    rows, labels = cloud(12, num_rows=60)
    rounds = discover_confident_samples(rows, labels, 6, 2)
    first = discover_confident_samples(rows, labels, 6)
    second = discover_confident_samples(rows, first.fill_in(labels), 6, original=labels)

    assert rounds.indices.tolist() == [*first.indices.tolist(), *second.indices.tolist()]
    assert rounds.round.tolist() == [1] * 6 + [2] * 6
    assert sorted(rounds.rank[6:].tolist()) == list(range(7, 13))
    assert [report["round"] for report in rounds.per_class] == [1] * 3 + [2] * 3


def test_shares_follow_the_given_labels_and_not_those_found() -> None:
    rows, labels = cloud(13, num_rows=60)
    grown = labels.copy()
    grown[np.flatnonzero(labels < 0)[:9]] = 0

    found = discover_confident_samples(rows, grown, 9, original=labels)

    assert [report["quota"] for report in found.per_class] == [3, 3, 3]


def test_unbalanced_labels_give_unbalanced_shares() -> None:
    rows, labels = cloud(14, num_rows=60)
    labels[9:18] = 0  # 12 of class 0, 3 each of the others
    assert [report["quota"] for report in discover_confident_samples(rows, labels, 6).per_class] == [4, 1, 1]


def test_a_class_with_too_few_candidates_gives_what_it_has() -> None:
    rows = np.array([[0.0], [10], [1], [2], [3], [9]])
    labels = [0, 1, -1, -1, -1, -1]
    short = discover_confident_samples(rows, labels, 4)

    assert short.indices.tolist() == [2, 3, 5]
    assert short.exhausted
    assert [(report["candidates"], report["quota"], report["taken"]) for report in short.per_class] == [
        (3, 2, 2),
        (1, 2, 1),
    ]


def test_a_class_without_a_label_is_never_named() -> None:
    found = discover_confident_samples(
        TOY, TOY_LABELS, 10, num_classes=3, balance="global", class_names=["ant", "bee", "cat"]
    )
    assert 2 not in found.labels
    assert found.warnings == ("no image is labeled as class 'cat', which will never be predicted",)
    assert np.isfinite(found.distance).all()


@pytest.mark.parametrize(("bad", "message"), [(np.nan, "features contains NaN"), (np.inf, "features contains inf")])
def test_features_that_are_not_finite_are_refused(bad: float, message: str) -> None:
    rows = TOY.copy()
    rows[7, 1] = bad
    with pytest.raises(ValueError, match=message):
        discover_confident_samples(rows, TOY_LABELS, 2)


def test_several_networks_need_a_fusion() -> None:
    with pytest.raises(ValueError, match="2 feature arrays require a fusion method"):
        discover_confident_samples([TOY, TOY], TOY_LABELS, 2)

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labelkit.methods.few_labels.pseudo_label_selection import quotas
from labelkit.methods.few_labels.snowball_search import discover_confident, fuse, mean_ranks
from numpy.typing import NDArray
from sklearn.datasets import load_digits

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


def by_loops(rows: Array, labels: Array, count: int, balance: str, select: str) -> list[tuple[int, int, float]]:
    """The specification's steps as plain loops: (row, class, distance) in selection order."""
    n, dim = rows.shape
    classes = int(labels.max()) + 1
    members = [[i for i in range(n) if labels[i] == c] for c in range(classes)]
    means = [[sum(rows[i, k] for i in group) / len(group) for k in range(dim)] for group in members]
    found = []
    for i in range(n):
        if labels[i] < 0:
            distances = [sum((rows[i, k] - mean[k]) ** 2 for k in range(dim)) ** 0.5 for mean in means]
            found.append((i, min(range(classes), key=lambda c: (distances[c], c)), min(distances)))
    scale = float(np.median([d for _, _, d in found])) or 1.0
    groups = [found] if balance == "global" else [[f for f in found if f[1] == c] for c in range(classes)]
    wants = [count] if balance == "global" else [len(members[c]) * count // (labels >= 0).sum() for c in range(classes)]
    chosen = []
    for group, want in zip(groups, wants, strict=True):
        order = sorted(group, key=lambda f: (round(f[2] / scale, 9), f[0]))
        if select == "max":
            order = sorted(group, key=lambda f: (-round(f[2] / scale, 9), f[0]))[:want]
        elif select == "far":
            order = order[: min(10 * want, max(want, len(group) // 2))][-want:] if want else []
        chosen += order[:want]
    return chosen


@pytest.fixture(scope="module")
def digits() -> tuple[Array, Array, Array]:
    """Pixels, the first five labels of each class, and the truth."""
    bundle = load_digits()
    labels = np.full(len(bundle.target), -1)
    for c in range(10):
        labels[np.flatnonzero(bundle.target == c)[:5]] = c
    return bundle.data / 16, labels, bundle.target


# ---------------------------------------------------------------- the specification's numbers


def test_toy_distances_classes_and_order_are_those_of_the_specification() -> None:
    found = discover_confident(TOY, TOY_LABELS, 10, balance="global")

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
    assert discover_confident(TOY, TOY_LABELS, count, **options).indices.tolist() == expected


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
    digits: tuple[Array, Array, Array], select: Any, balance: Any, wrong: int, index_sum: int
) -> None:
    pixels, labels, truth = digits
    found = discover_confident(pixels, labels, 50, select=select, balance=balance)

    assert int((found.labels != truth[found.indices]).sum()) == wrong
    assert int(found.indices.sum()) == index_sum


def test_digits_give_the_specified_details(digits: tuple[Array, Array, Array]) -> None:
    pixels, labels, truth = digits
    balanced = discover_confident(pixels, labels, 50)
    everything = discover_confident(pixels, labels, 1747, balance="global")
    together = discover_confident(pixels, labels, 50, balance="global")

    assert int(np.flatnonzero(labels >= 0).sum()) == 1290
    assert int((everything.labels != truth[everything.indices]).sum()) == 414
    assert balanced.indices[:5].tolist() == [1663, 335, 877, 166, 812]
    assert balanced.distance.mean() == pytest.approx(1.088320, abs=1e-6)
    assert together.indices[:5].tolist() == [88, 476, 195, 97, 1663]
    assert np.bincount(together.labels, minlength=10).tolist() == [26, 4, 0, 3, 4, 1, 12, 0, 0, 0]


@pytest.mark.parametrize(("balance", "expected"), [("balanced", [0, 1, 8, 44]), ("global", [0, 0, 0, 11])])
def test_four_doublings_of_digits_make_the_specified_errors(
    digits: tuple[Array, Array, Array], balance: Any, expected: list[int]
) -> None:
    pixels, labels, truth = digits
    found = discover_confident(pixels, labels, "double", 4, balance=balance)

    wrong = found.labels != truth[found.indices]
    assert np.bincount(found.round)[1:].tolist() == [50, 100, 200, 400]
    assert [int(wrong[found.round <= number].sum()) for number in (1, 2, 3, 4)] == expected


def test_fusion_of_three_networks_is_that_of_the_specification() -> None:
    parts = [
        np.array([[1, 3], [2, 2.5], [4, 1]]),
        np.array([[2, 1], [1, 4], [5, 2.0]]),
        np.array([[3, 2], [0.5, 3], [6, 0.5]]),
    ]

    labels, distance = fuse(parts, "distance")
    np.testing.assert_allclose(distance[:, 0], [2.0, 1.166667, 1.166667], atol=1e-6)
    assert labels.tolist() == [0, 0, 1]
    labels, distance = fuse(parts, "cascade")
    np.testing.assert_allclose(distance[:, 0], [3.741657, 2.291288, 2.291288], atol=1e-6)
    assert labels.tolist() == [0, 0, 1]
    # row 0: class 0 by distance and cascade, class 1 by rank
    labels, nearest = fuse(parts, "rank")
    np.testing.assert_allclose(mean_ranks(nearest), [1.666667, 2.0, 2.333333], atol=1e-6)
    assert labels.tolist() == [1, 0, 1]


def test_majority_tie_goes_to_the_class_with_the_smallest_mean_distance() -> None:
    labels, _ = fuse([np.array([[1.0, 2.0]]), np.array([[4.0, 2.5]])], "rank")
    assert labels.tolist() == [1]  # means 2.5 and 2.25


# ---------------------------------------------------------------- brute force


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("balance", ["balanced", "global"])
@pytest.mark.parametrize("select", ["min", "far", "max"])
def test_rows_are_those_of_plain_loops(seed: int, balance: Any, select: Any) -> None:
    rows, labels = cloud(seed, num_rows=30)
    found = discover_confident(rows, labels, 9, balance=balance, select=select)
    expected = by_loops(rows, labels, 9, balance, select)

    assert found.indices.tolist() == [row for row, _, _ in expected]
    assert found.labels.tolist() == [label for _, label, _ in expected]
    np.testing.assert_allclose(found.distance, [distance for _, _, distance in expected], rtol=1e-12)


def test_random_selection_is_the_specified_draw() -> None:
    rows, labels = cloud(0)
    every = discover_confident(rows, labels, 31, balance="global")
    generator = np.random.RandomState(5)
    expected = []
    for c in range(3):
        group = every.indices[every.labels == c]
        expected += group[generator.permutation(len(group))][:3].tolist()

    assert discover_confident(rows, labels, 9, select="random", seed=5).indices.tolist() == expected


@pytest.mark.slow
@given(count=st.integers(0, 300), sizes=st.lists(st.integers(0, 50), min_size=1, max_size=8).filter(sum))
def test_quotas_sum_up_and_miss_the_exact_share_by_less_than_one(count: int, sizes: list[int]) -> None:
    found = quotas(count, np.array(sizes))

    assert int(found.sum()) == count
    np.testing.assert_array_less(np.abs(found - count * np.array(sizes) / sum(sizes)), 1)


def test_equal_remainders_go_to_the_lowest_classes() -> None:
    assert quotas(8, np.array([7, 7, 7])).tolist() == [3, 3, 2]


# ---------------------------------------------------------------- invariances


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), scale=st.floats(0.01, 100), shift=st.floats(-10, 10))
def test_moving_turning_and_scaling_all_rows_changes_nothing(seed: int, scale: float, shift: float) -> None:
    rows, labels = cloud(seed)
    turned, _ = np.linalg.qr(np.random.default_rng(seed + 1).standard_normal((4, 4)))

    moved = discover_confident(scale * rows @ turned + shift, labels, 9, select="far")
    still = discover_confident(rows, labels, 9, select="far")

    assert moved.indices.tolist() == still.indices.tolist()
    assert moved.labels.tolist() == still.labels.tolist()


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000))
def test_order_of_the_rows_does_not_matter(seed: int) -> None:
    rows, labels = cloud(seed)
    order = np.random.default_rng(seed).permutation(len(rows))

    shuffled = discover_confident(rows[order], labels[order], 9)

    assert order[shuffled.indices].tolist() == discover_confident(rows, labels, 9).indices.tolist()


def test_repeating_every_labeled_row_changes_nothing() -> None:
    rows, labels = cloud(3)
    given_rows = np.flatnonzero(labels >= 0)
    more, more_labels = np.concatenate([rows, rows[given_rows]]), np.concatenate([labels, labels[given_rows]])

    assert (
        discover_confident(more, more_labels, 9).indices.tolist()
        == discover_confident(rows, labels, 9).indices.tolist()
    )


@pytest.mark.parametrize("fusion", ["distance", "rank", "cascade"])
def test_copies_of_one_network_agree_with_it(fusion: Any) -> None:
    rows, labels = cloud(4)
    single = discover_confident(rows, labels, 9)
    copies = discover_confident([rows, rows, rows], labels, 9, fusion=fusion)

    assert copies.indices.tolist() == single.indices.tolist()
    assert copies.labels.tolist() == single.labels.tolist()


def test_cascade_is_the_distance_between_features_side_by_side() -> None:
    first, labels = cloud(5)
    second, _ = cloud(6)
    side_by_side = discover_confident(np.hstack([first, second]), labels, 9)
    found = discover_confident([first, second], labels, 9, fusion="cascade")

    assert found.indices.tolist() == side_by_side.indices.tolist()
    np.testing.assert_allclose(found.distance, side_by_side.distance, rtol=1e-12)


def test_one_network_needs_no_fusion() -> None:
    rows, labels = cloud(9)
    assert (
        discover_confident([rows], labels, 9, fusion="rank").distance.tolist()
        == discover_confident(rows, labels, 9).distance.tolist()
    )


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), count=st.integers(0, 30))
def test_fewer_rows_are_the_first_of_more(seed: int, count: int) -> None:
    rows, labels = cloud(seed)
    few = discover_confident(rows, labels, count, balance="global")
    more = discover_confident(rows, labels, count + 1, balance="global")

    assert few.indices.tolist() == more.indices[:count].tolist()


def test_ranks_let_the_classes_take_turns() -> None:
    rows, labels = cloud(10, num_rows=60)
    found = discover_confident(rows, labels, 12)
    first = found.indices[found.rank <= 6]

    assert sorted(found.rank.tolist()) == list(range(1, 13))
    assert sorted(first.tolist()) == sorted(discover_confident(rows, labels, 6).indices.tolist())


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_zero_rows_are_empty_arrays_of_the_right_types(dtype: Any) -> None:
    found = discover_confident(TOY.astype(dtype), TOY_LABELS, 0)

    assert [found.indices.dtype, found.labels.dtype, found.distance.dtype, found.round.dtype] == [
        np.int64,
        np.int64,
        np.float64,
        np.int16,
    ]
    assert len(found.indices) == len(found.labels) == len(found.distance) == len(found.round) == 0
    assert not found.exhausted


# ---------------------------------------------------------------- softmax


# ---------------------------------------------------------------- rounds and shares


def test_rounds_are_single_discoveries_one_after_the_other() -> None:
    rows, labels = cloud(12, num_rows=60)
    rounds = discover_confident(rows, labels, 6, 2)
    first = discover_confident(rows, labels, 6)
    second = discover_confident(rows, first.grown(labels), 6, original=labels)

    assert rounds.indices.tolist() == [*first.indices.tolist(), *second.indices.tolist()]
    assert rounds.round.tolist() == [1] * 6 + [2] * 6
    assert sorted(rounds.rank[6:].tolist()) == list(range(7, 13))
    assert [report.round for report in rounds.per_class] == [1] * 3 + [2] * 3


def test_rounds_end_when_nothing_is_left() -> None:
    found = discover_confident(TOY, TOY_LABELS, "double", 9, balance="global")
    assert sorted(found.indices.tolist()) == list(range(4, 14))
    assert found.exhausted


def test_shares_follow_the_given_labels_and_not_those_found() -> None:
    rows, labels = cloud(13, num_rows=60)
    grown = labels.copy()
    grown[np.flatnonzero(labels < 0)[:9]] = 0

    found = discover_confident(rows, grown, 9, original=labels)

    assert [report.quota for report in found.per_class] == [3, 3, 3]


def test_unbalanced_labels_give_unbalanced_shares() -> None:
    rows, labels = cloud(14, num_rows=60)
    labels[9:18] = 0  # 12 of class 0, 3 each of the others
    assert [report.quota for report in discover_confident(rows, labels, 6).per_class] == [4, 1, 1]


def test_counts_per_class_replace_the_shares() -> None:
    rows, labels = cloud(14, num_rows=60)
    labels[9:18] = 0
    found = discover_confident(rows, labels, [2, 2, 1], 2)
    assert [report.quota for report in found.per_class] == [2, 2, 1] * 2
    assert np.bincount(found.labels[found.round == 1]).tolist() == [2, 2, 1]


@pytest.mark.parametrize(
    ("count", "options", "message"),
    [
        ([1, 1, 1], {}, "3 entries for 2 classes"),
        ([1, 1], {"balance": "global"}, "no meaning with balance global"),
        ([1, 1, 1], {"num_classes": 3, "missing_class": "skip"}, "class 2, which has no label"),
        ([1, -1], {}, "count must be a whole number"),
    ],
)
def test_counts_per_class_that_cannot_be_are_refused(count: list[int], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        discover_confident(TOY, TOY_LABELS, count, **options)


def test_a_class_with_too_few_candidates_gives_what_it_has() -> None:
    rows = np.array([[0.0], [10], [1], [2], [3], [9]])
    labels = [0, 1, -1, -1, -1, -1]
    short = discover_confident(rows, labels, 4)

    assert short.indices.tolist() == [2, 3, 5]
    assert short.exhausted
    assert [(report.candidates, report.quota, report.taken) for report in short.per_class] == [(3, 2, 2), (1, 2, 1)]


def test_report_tells_the_distances_of_the_rows_taken() -> None:
    report = discover_confident(TOY, TOY_LABELS, 4).per_class[1]
    assert (report.label, report.candidates, report.taken, report.nearest, report.farthest) == (1, 5, 2, 0, 1)


# ---------------------------------------------------------------- bad input


def test_a_class_without_a_label_is_refused_or_skipped() -> None:
    with pytest.raises(ValueError, match="no row has a label of class 'cat'"):
        discover_confident(TOY, TOY_LABELS, 2, num_classes=3, class_names=["ant", "bee", "cat"])

    found = discover_confident(TOY, TOY_LABELS, 10, num_classes=3, missing_class="skip", balance="global")
    assert 2 not in found.labels
    assert found.warnings == ("no row has a label of class 2: never named",)
    assert np.isfinite(found.distance).all()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.where(np.arange(14) == 5, 7, TOY_LABELS), r"labels must be in \[-1, 2\), row 5 is 7"),
        (np.where(np.arange(14) == 6, -2, TOY_LABELS), "row 6 is -2"),
        (np.where(np.arange(14) == 3, 0.5, TOY_LABELS), r"labels must be integers, got float64 \(row 3: 0.5\)"),
        (TOY_LABELS[:-1], r"labels must have shape \(14,\)"),
        (np.full(14, -1), "0 of 2 classes have labels"),
        (np.minimum(TOY_LABELS, 0), "1 of 2 classes have labels"),
    ],
)
def test_labels_that_cannot_be_are_refused(labels: Array, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        discover_confident(TOY, labels, 2, num_classes=2)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_features_that_are_not_finite_are_refused(bad: float) -> None:
    rows = TOY.copy()
    rows[7, 1] = bad
    with pytest.raises(ValueError, match="features has a value that is not finite in row 7"):
        discover_confident(rows, TOY_LABELS, 2)


@pytest.mark.parametrize("rows", [np.zeros((14, 0)), np.zeros(14), np.full((14, 2), "a")])
def test_features_of_another_shape_or_type_are_refused(rows: Array) -> None:
    with pytest.raises(ValueError, match="features must"):
        discover_confident(rows, TOY_LABELS, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": -1}, "count must be a whole number >= 0, or one per class, got -1"),
        ({"count": 2.5}, "count must be a whole number"),
        ({"balance": "fair"}, "balance"),
        ({"select": "best"}, "select"),
        ({"missing_class": "drop"}, "missing_class"),
        ({"features": [TOY, TOY]}, "2 feature arrays and no fusion"),
        ({"features": [TOY, TOY[1:]], "fusion": "rank"}, r"features\[1\] has 13 rows"),
        ({"original": np.where(TOY_LABELS == 1, 0, TOY_LABELS)}, "original and labels differ in row 2"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(options: dict[str, Any], message: str) -> None:
    arguments = {"features": TOY, "labels": TOY_LABELS, "count": 2, **options}
    with pytest.raises(ValueError, match=message):
        discover_confident(**arguments)


def test_more_than_there_is_takes_everything() -> None:
    found = discover_confident(TOY, TOY_LABELS, 1000)
    assert sorted(found.indices.tolist()) == list(range(4, 14))
    assert found.exhausted


def test_nothing_without_a_label_is_an_empty_result() -> None:
    found = discover_confident(TOY[:4], TOY_LABELS[:4], 2)
    assert len(found.indices) == 0
    assert found.exhausted
    assert "nothing to find" in found.warnings[0]


def test_equal_rows_are_taken_from_the_first() -> None:
    found = discover_confident(np.full((8, 3), 0.1), [0, 1, -1, -1, -1, -1, -1, -1], 2, balance="global")
    assert found.indices.tolist() == [2, 3]
    assert "zero feature spread" in found.warnings[0]


def test_a_crowded_class_is_told_of() -> None:
    rows = np.array([[0.0], [10], [20], [30], *[[0.1]] * 6])
    found = discover_confident(rows, [0, 1, 2, 3] + [-1] * 6, 4, balance="global")
    assert "4 of 4 found rows are of class 0" in found.warnings[0]


def test_a_binding_cap_is_told_of_once() -> None:
    found = discover_confident(TOY, TOY_LABELS, 2, 2, select="far")
    assert found.warnings == ("the confident set of far is cut to 0.5 of the candidates",)


def test_blocks_do_not_change_what_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = cloud(15, num_rows=200)
    whole = discover_confident([rows, rows + 1], labels, 30, fusion="rank")
    monkeypatch.setattr("labelkit.methods.few_labels.snowball_search.BLOCK_ROWS", 7)
    monkeypatch.setattr("labelkit.methods.few_labels.pseudo_label_selection.BLOCK_ROWS", 2)
    parts = discover_confident([rows, rows + 1], labels, 30, fusion="rank")

    assert parts.indices.tolist() == whole.indices.tolist()


@pytest.mark.slow
def test_fifty_thousand_rows_take_seconds() -> None:
    rows = np.random.default_rng(0).standard_normal((50_000, 128)).astype(np.float32)
    labels = np.full(50_000, -1)
    labels[:1000] = np.arange(1000) % 100
    started = time.monotonic()
    discover_confident(rows, labels, 1000)
    assert time.monotonic() - started < 20

"""Whether there are classes without a label: how often that is said, how many, and what is expected, recomputed."""

import numpy as np
import pytest
from labelkit.algorithms import unlabeled_classes
from labelkit.algorithms.unlabeled_classes import (
    NewClassShare,
    UnlabeledGroupEstimate,
    _weighed,
    estimate_accuracy_by_num_groups,
    estimate_from_suggestions,
    estimate_new_share,
)
from numpy.typing import NDArray

NONE = NewClassShare(-0.1, 0.2)


def blobs(seed: int, classes: int = 6, size: int = 40) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Unit rows in classes that overlap a little."""
    random = np.random.default_rng(seed)
    centers = random.standard_normal((classes, 12))
    truth = np.repeat(np.arange(classes), size)
    rows = centers[truth] + 0.5 * random.standard_normal((len(truth), 12))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), truth


def looked(labeled_classes: int, each: int, seed: int) -> UnlabeledGroupEstimate:
    """Label some rows of the first classes, and look for others."""
    rows, truth = blobs(seed)
    random, labels = np.random.default_rng(seed), np.full(len(truth), -1)
    for label in range(labeled_classes):
        labels[random.choice(np.flatnonzero(truth == label), each, replace=False)] = label
    found = estimate_accuracy_by_num_groups(rows, labels, [0, 1, 2, 3, 4, 6, 8], generator=random, min_size=2)
    assert found is not None
    return found


def test_classes_without_a_label_are_noticed_and_counted() -> None:
    found = [looked(3, 5, seed) for seed in range(6)]

    assert np.mean([one.best_number() > 0 for one in found]) >= 5 / 6
    assert abs(np.mean([one.best_number(at_least_one=True) for one in found]) - 3) <= 1
    assert all(
        one.plausible_range(one.best_number())[0] <= one.best_number() <= one.plausible_range(one.best_number())[1]
        for one in found
    )


def test_labels_of_all_classes_are_seldom_doubted() -> None:
    found = [looked(6, 2, seed) for seed in range(6)]

    assert sum(one.best_number() > 0 for one in found) <= 1
    assert all(one.best_number(at_least_one=True) > 0 for one in found)


@pytest.mark.parametrize(("near", "right"), [(NONE, 0.75), (NewClassShare(0.7, 0.2), 0.75), (NONE, 0.4)])
def test_expected_share_is_that_of_the_words(near: NewClassShare, right: float) -> None:
    # of eight hidden labels that weigh the same one is in one of two other groups, which hold a half of the rows
    missed = np.zeros((2, 8))
    missed[1, 0] = 1

    found = _weighed([0, 2], right, missed, np.array([0, 0.5]), np.full(8, 1 / 8), near)

    right = max(right, 0.6)
    share = (1 + 1) / (8 + 1)
    in_groups = (0.5 - share - np.sqrt(share * (1 - share) / 8)) / (1 - share)
    new_share = in_groups if near is NONE else 0.7 - 0.2
    assert found.expected[0] == pytest.approx((1 - new_share) * right)
    second = (1 - new_share) * (1 - share) * right + 0.6 * (0.5 - (1 - new_share) * share)
    assert found.expected[1] == pytest.approx(second)
    gain = (second - found.expected[0]) / ((1 - new_share) * (right + 0.6) * np.sqrt(7 / 64 / 8))
    assert found.max_lead == pytest.approx(gain)


@pytest.mark.parametrize(("lead", "best"), [(3.0, 3), (0.41, 3), (0.39, 0), (-2.0, 0)])
def test_others_are_found_if_predictions_are_expected_to_gain_from_them(lead: float, best: int) -> None:
    found = UnlabeledGroupEstimate((0, 3), (0.5, 0.5 + 0.1 * lead), (0.1, 0.1), NONE)

    assert found.best_number() == best
    assert found.best_number(at_least_one=True) == 3
    assert (found.lead_p_value < 0.0575) == (best > 0)


@pytest.mark.parametrize("each", [2, 5])
@pytest.mark.parametrize("num_labeled", [24, 12])
def test_the_share_of_rows_without_a_class_is_estimated_without_bias(num_labeled: int, each: int) -> None:
    shares, errors = [], []
    for seed in range(10):
        rows, truth = blobs(seed, classes=24, size=20)
        random, labels = np.random.default_rng(seed), np.full(len(truth), -1)
        for label in range(num_labeled):
            labels[random.choice(np.flatnonzero(truth == label), each, replace=False)] = label
        found = estimate_new_share(rows, labels, generator=random)
        shares.append(found.share - np.mean(truth[labels < 0] >= num_labeled))
        errors.append(found.error)

    assert abs(np.mean(shares)) < 0.1
    assert np.std(shares) < 1.3 * np.mean(errors)


def test_labels_that_are_alone_in_their_class_are_evidence_of_other_classes() -> None:
    rows, truth = blobs(0, classes=24, size=20)
    random, labels = np.random.default_rng(0), np.full(len(truth), -1)
    drawn = random.choice(len(truth), 20, replace=False)
    labels[drawn] = truth[drawn]
    alone = (np.bincount(truth[drawn]) == 1).sum() / 20

    found = estimate_new_share(rows, labels, generator=random)

    assert abs(alone - np.mean(~np.isin(truth, truth[drawn]))) < 0.15
    assert found.alone == alone
    assert NewClassShare(-0.3, 0.2, 0.4).estimate == 0.4
    assert NewClassShare(1.3, 0.2, 0.4).estimate == 1.0
    assert NewClassShare(-0.3, 0.2, 0.4).shrunken_estimate == 0.4
    assert NewClassShare(0.6, 0.3).shrunken_estimate == pytest.approx(0.6 * 0.8)


@pytest.mark.parametrize(("unseen", "best"), [(0, 2), (2, 2), (5, 4), (6, 6), (40, 8)])
def test_if_most_labels_are_alone_in_their_class_their_counts_tell_the_number(unseen: int, best: int) -> None:
    numbers = (0, 2, 4, 6, 8)
    found = UnlabeledGroupEstimate(numbers, (0.5, *(0.1,) * 4), (0.1,) * 5, NewClassShare(0.1, 0.2, 0.76, unseen))

    assert found.best_number() == best
    assert found.group_weight == 1
    assert found.plausible_range(2) == (2, 8)
    assert (
        UnlabeledGroupEstimate(
            numbers, found.expected, found.errors, NewClassShare(0.1, 0.2, 0.75, unseen)
        ).best_number()
        == 0
    )


def test_the_number_of_classes_without_labels_is_estimated_from_those_with_one_or_two() -> None:
    rows, truth = blobs(0, classes=24, size=20)
    labels = np.full(len(truth), -1)
    labels[[0, 20, 40, 60, 80, 100, 101, 120, 121]] = [0, 1, 2, 3, 4, 5, 5, 6, 6]

    found = estimate_new_share(rows, labels, generator=np.random.default_rng(0))

    assert (found.alone, found.unseen) == (5 / 9, round(5 * 4 / (2 * (2 + 1))))


@pytest.mark.parametrize(("lead", "weight"), [(-3.0, 0.52), (0.0, 0.52), (2.0, 0.76), (4.0, 1.0), (9.0, 1.0)])
def test_groups_count_as_far_as_they_are_ahead(lead: float, weight: float) -> None:
    found = UnlabeledGroupEstimate((0, 2, 3), (0.5, 0.4, 0.5 + 0.02 * lead), (0.02, 0.02, 0.02), NONE)

    assert found.group_weight == pytest.approx(weight)


def test_numbers_are_near_within_two_standard_errors() -> None:
    found = UnlabeledGroupEstimate((0, 1, 2, 3, 4), (0.2, 0.45, 0.6, 0.41, 0.39), (0.1,) * 5, NONE)

    assert found.plausible_range(2) == (1, 3)


def test_hidden_labels_weigh_as_their_class_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    random, truth = np.random.default_rng(0), np.repeat([0, 1], [90, 30])
    rows = (np.eye(2, 8)[truth] + random.normal(0, 0.1, (120, 8))).astype(np.float32)
    labels = np.full(120, -1)
    labels[[0, 1, 2, 3, 90, 91]] = [0, 0, 0, 0, 1, 1]
    seen = []
    monkeypatch.setattr(unlabeled_classes, "_weighed", lambda *given: seen.append(given[4]))

    estimate_accuracy_by_num_groups(rows, labels, [0, 1], generator=random)

    assert seen[0] == pytest.approx([0.75 / 4] * 4 + [0.25 / 2] * 2)


def test_without_two_labels_of_a_class_nothing_is_said() -> None:
    rows, truth = blobs(0)
    labels = np.full(len(truth), -1)
    labels[::40] = truth[::40]

    assert estimate_accuracy_by_num_groups(rows, labels, [0, 1], generator=np.random.default_rng(0)) is None


def test_labels_of_one_class_are_refused() -> None:
    rows, _ = blobs(0)
    labels = np.full(len(rows), -1)
    labels[:3] = 0

    with pytest.raises(ValueError, match="two classes"):
        estimate_accuracy_by_num_groups(rows, labels, [0, 1], generator=np.random.default_rng(0))


def test_few_labels_of_suggested_photos_or_few_alone_tell_nothing() -> None:
    paths = [str(number) for number in range(30)]
    alone = {path: path for path in paths}

    assert estimate_from_suggestions(paths[:9], alone, 900) is None
    assert estimate_from_suggestions(paths[:10], alone, 900) == {"labels": 10, "alone": 10, "classes": 70}
    assert estimate_from_suggestions(paths[:10], alone | dict.fromkeys(paths[:5], "a"), 900) is None
    # only the last 20 count: five of these are in a class with two labels or more
    latest = alone | dict.fromkeys(paths[9:14], "a")
    assert estimate_from_suggestions(paths, latest, 900) == {"labels": 20, "alone": 16, "classes": 33}

"""Doubts about labels: three views against plain recomputation without each image."""

import numpy as np
import pytest
from labelkit.algorithms import row_blocks
from labelkit.algorithms.label_errors import RIDGE, score_label_errors


def made(rng: np.random.Generator, n: int, dim: int, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    labels = np.concatenate([np.arange(classes), rng.integers(0, classes, n - classes)])
    rows = 1.5 * rng.standard_normal((classes, dim))[labels] + rng.standard_normal((n, dim))
    return rows.astype(np.float32), labels


def without(i: int, rows: np.ndarray, labels: np.ndarray, classes: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Scores of the classes for row i by the other rows: nearest, means, least squares."""
    kept = np.arange(len(rows)) != i
    others, theirs = rows[kept], labels[kept]
    nearest = np.array([(others[theirs == c] @ rows[i]).max() for c in range(classes)])
    sums = [others[theirs == c].sum(axis=0) for c in range(classes)]
    mean = np.array([rows[i] @ total / np.linalg.norm(total) for total in sums])
    left, target = np.c_[others, np.ones(len(others))], np.eye(classes)[theirs]
    weights = np.linalg.solve(left.T @ left + RIDGE * np.eye(left.shape[1]), left.T @ target)
    ridge = np.append(rows[i], 1) @ weights
    return [nearest, mean, ridge], others


@pytest.mark.parametrize(("n", "dim"), [(40, 90), (90, 12)])
@pytest.mark.parametrize("block", [None, 64])
def test_views_are_those_of_all_other_labels(
    n: int, dim: int, block: int | None, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    if block is not None:
        monkeypatch.setattr(row_blocks, "BLOCK_NUMBERS", block)
    features, labels = made(rng, n, dim)
    labels[5:9] = (labels[5:9] + 1) % 4
    centered = features.astype(np.float64) - features.mean(axis=0)
    rows = centered / np.linalg.norm(centered, axis=1, keepdims=True)

    found = score_label_errors(features, labels)

    margins, suggested, doubtful = [], [], []
    for i in range(n):
        views, _ = without(i, rows, labels, 4)
        own = [view[labels[i]] for view in views]
        for view in views:
            view[labels[i]] = -np.inf
        margins.append([view.max() - mine for view, mine in zip(views, own, strict=True)])
        suggested.append(int(views[2].argmax()))
        doubtful.append(all(margin > 0 for margin in margins[-1]))
        cosines = rows @ rows[i]
        cosines[i] = -np.inf
        assert found.same[i] == np.where(labels == labels[i], cosines, -np.inf).argmax()
        assert found.other[i] == np.where(labels == suggested[-1], cosines, -np.inf).argmax()
    assert found.suggested.tolist() == suggested
    assert found.doubtful.tolist() == doubtful
    ranks = np.argsort(np.argsort(np.array(margins), axis=0), axis=0) / (n - 1)
    np.testing.assert_allclose(found.score, ranks.mean(axis=1), atol=1e-9)
    expected = sorted(np.flatnonzero(doubtful), key=lambda i: -found.score[i])
    assert found.most_doubtful().tolist() == expected[: max(10, n // 5)]


def test_at_most_a_fifth_of_the_labels_or_ten_are_listed(rng: np.random.Generator) -> None:
    features, _ = made(rng, 200, 40)
    for count, listed in ((30, 10), (200, 40)):
        labels = np.arange(count) % 10  # unrelated to the features
        found = score_label_errors(features[:count], labels)
        assert found.doubtful.sum() > listed
        assert found.score[found.most_doubtful()].tolist() == sorted(found.score[found.doubtful], reverse=True)[:listed]


def test_a_label_that_no_other_image_has_is_not_judged(rng: np.random.Generator) -> None:
    features, labels = made(rng, 30, 5)
    labels[7] = 4
    found = score_label_errors(features, labels)
    assert np.isnan(found.score[7])
    assert not found.doubtful[7]
    assert found.same[7] == -1
    assert np.isfinite(np.delete(found.score, 7)).all()


def test_equal_images_and_rows_without_direction_are_numbers(rng: np.random.Generator) -> None:
    features = np.repeat(rng.standard_normal((3, 6)).astype(np.float32), 4, axis=0)
    features -= features.mean(axis=0)
    features[0] = 0
    labels = np.array([0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1])
    found = score_label_errors(features, labels)
    assert np.isfinite(found.score).all()
    assert ((0 <= found.score) & (found.score <= 1)).all()


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 2, 2], [0, 1], []])
def test_labels_that_do_not_fit_are_refused(labels: list[int]) -> None:
    with pytest.raises(ValueError, match=r"one row per label|at least 2 classes"):
        score_label_errors(np.eye(3, dtype=np.float32), np.array(labels, dtype=np.int64))

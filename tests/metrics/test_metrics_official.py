"""Metrics on random cases against the codes that publications score with.

Retrieval by pytorch-metric-learning, shares and IoU by scikit-learn, matched accuracy by scipy's assignment
as in GCD's code, J and F by the operations of ``davisvideochallenge/davis2017-evaluation``, and by vos-benchmark where
it is installed (it wants an OpenCV of its own, which would replace ours).
"""

from typing import Any

import numpy as np
import pytest
import torch
from labelkit.algorithms.feature_probes import knn_probabilities
from labelkit.metrics.classification import per_class_accuracy, top_k_accuracy
from labelkit.metrics.clustering import cluster_accuracy
from labelkit.metrics.retrieval import score_retrieval
from labelkit.metrics.segmentation import SegmentationCounts, boundary_accuracy, region_similarity
from numpy.typing import NDArray
from scipy.ndimage import binary_dilation, gaussian_filter
from scipy.optimize import linear_sum_assignment
from sklearn import metrics as sk
from sklearn.neighbors import KNeighborsClassifier

SEEDS = [0, 1, 2]
Array = NDArray[Any]


@pytest.fixture
def random(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def library_scores(*rows: Array) -> list[float]:
    """Precision at 1, R-precision and MAP@R: of queries and labels, and of a gallery and its labels if there is one."""
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    names = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    calculator = AccuracyCalculator(include=names, k="max_bin_count", device=torch.device("cpu"))
    found = calculator.get_accuracy(*(torch.from_numpy(one) for one in rows))
    return [found[name] for name in names]


def class_rows(random: np.random.Generator, count: int, classes: int) -> tuple[Array, Array]:
    """Unit rows around centers, in classes of many sizes."""
    labels = random.integers(0, classes, count) * random.integers(1, 3, count)
    rows = random.standard_normal((2 * classes, 12))[labels] + 1.2 * random.standard_normal((count, 12))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), labels


@pytest.mark.parametrize("seed", SEEDS)
def test_map_at_r_r_precision_and_recall_at_1_are_those_of_pytorch_metric_learning(
    random: np.random.Generator,
) -> None:
    rows, labels = class_rows(random, 300, 40)
    assert (np.bincount(labels) == 1).any()  # queries without a match, which both leave out
    scores = score_retrieval(rows, labels)
    found = [scores.recall_at[1], scores.mean_r_precision, scores.map_at_r]
    assert found == pytest.approx(library_scores(rows, labels), abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_gallery_of_its_own_scores_as_in_pytorch_metric_learning(random: np.random.Generator) -> None:
    rows, labels = class_rows(random, 400, 40)
    queries, gallery = slice(0, 150), slice(150, 400)
    scores = score_retrieval(rows[queries], labels[queries], gallery=rows[gallery], gallery_labels=labels[gallery])
    found = [scores.recall_at[1], scores.mean_r_precision, scores.map_at_r]
    expected = library_scores(rows[queries], labels[queries], rows[gallery], labels[gallery])
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_weighted_votes_of_neighbors_are_those_of_scikit_learn(random: np.random.Generator) -> None:
    rows, labels = class_rows(random, 200, 5)
    labels %= 5
    votes = knn_probabilities(rows[150:], rows[:150], labels[:150], num_classes=5, k=20, temperature=0.07)
    voters = KNeighborsClassifier(20, weights=lambda far: np.exp((1 - far) / 0.07), metric="cosine", algorithm="brute")
    expected = voters.fit(rows[:150], labels[:150]).predict_proba(rows[150:])
    np.testing.assert_allclose(votes, expected, atol=1e-4)


@pytest.mark.parametrize("seed", SEEDS)
def test_shares_are_those_of_scikit_learn(random: np.random.Generator) -> None:
    labels, scores = random.integers(0, 7, 200), random.standard_normal((200, 9))
    predictions = scores.argmax(axis=1)
    expected = sk.recall_score(labels, predictions, labels=range(9), average=None, zero_division=np.nan)
    np.testing.assert_allclose(per_class_accuracy(predictions, labels, 9), expected)
    for k in (1, 2, 5):
        assert top_k_accuracy(scores, labels, k) == sk.top_k_accuracy_score(labels, scores, k=k, labels=range(9))


def matched(labels: Array, cluster_ids: Array, num_classes: int) -> Array:
    """Class of each cluster by scipy's assignment; -1 without one."""
    counts = np.zeros((cluster_ids.max() + 1, num_classes))
    np.add.at(counts, (cluster_ids, labels), 1)
    classes = np.full(len(counts), -1)
    rows, columns = linear_sum_assignment(counts, maximize=True)
    classes[rows] = columns
    return classes


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("num_clusters", [12, 20, 31])
def test_accuracies_of_discovery_are_those_of_gcd_s_code(random: np.random.Generator, num_clusters: int) -> None:
    """Protocol v2 of sgvaze/generalized-category-discovery, project_utils/cluster_and_log_utils.py."""
    labels = random.integers(0, 20, 2000)
    cluster_ids = np.where(random.random(2000) < 0.6, labels % num_clusters, random.integers(0, num_clusters, 2000))
    old = np.arange(20) % 5 < 3
    of_old = old[labels]
    scores = cluster_accuracy(labels, cluster_ids, old)
    right = matched(labels, cluster_ids, 20)[cluster_ids] == labels
    assert scores.all_accuracy == right.mean()
    assert scores.old_accuracy == pytest.approx(right[of_old].mean())
    assert scores.new_accuracy == pytest.approx(right[~of_old].mean())


@pytest.mark.parametrize("seed", SEEDS)
def test_iou_of_classes_is_the_jaccard_score_of_scikit_learn(random: np.random.Generator) -> None:
    labels, predictions = random.integers(0, 6, (2, 4, 30, 20))
    labels[labels == 5] = 255
    predictions[predictions == 3] = 2
    counts = SegmentationCounts(8)
    for prediction, label in zip(predictions, labels, strict=True):
        counts.add(prediction, label)
    scores, seen = counts.scores(), labels != 255
    true, named = labels[seen], predictions[seen]
    expected = sk.jaccard_score(true, named, labels=range(6), average=None)
    np.testing.assert_allclose(scores.iou[:6], expected)
    assert np.isnan(scores.iou[6:]).all()  # neither true nor predicted
    assert scores.mean_iou == pytest.approx(expected.mean())
    assert scores.pixel_accuracy == sk.accuracy_score(true, named)
    assert scores.pixels == seen.sum()
    recalls = sk.recall_score(true, named, labels=range(8), average=None, zero_division=np.nan)
    np.testing.assert_allclose(scores.class_accuracy, recalls)


def blob(random: np.random.Generator, height: int, width: int, *, sigma: float = 4) -> NDArray[np.bool_]:
    """A smooth mask of several parts that may reach the edges."""
    return gaussian_filter(random.standard_normal((height, width)), sigma) > 0.02


def davis_boundary(mask: Array) -> Array:
    """Pixels that differ from the next one to the right, below or both, as in DAVIS: the last row looks right only."""
    inner = mask.astype(bool)
    edges = np.zeros_like(inner)
    edges[:-1, :-1] = (
        (inner[:-1, :-1] ^ inner[:-1, 1:]) | (inner[:-1, :-1] ^ inner[1:, :-1]) | (inner[:-1, :-1] ^ inner[1:, 1:])
    )
    edges[-1, :-1] = inner[-1, :-1] ^ inner[-1, 1:]
    edges[:-1, -1] = inner[:-1, -1] ^ inner[1:, -1]
    return edges


def davis_f(found: Array, true: Array) -> float:
    """F by dilation with a disk of ceil(0.008 of the diagonal) pixels."""
    reach = int(np.ceil(0.008 * np.linalg.norm(true.shape)))
    places = np.arange(-reach, reach + 1)
    disk = (places[:, None] ** 2 + places[None] ** 2 <= reach**2).astype(np.uint8)
    edges = [davis_boundary(mask).astype(np.uint8) for mask in (found, true)]
    near = [binary_dilation(edge, disk).astype(np.uint8) for edge in edges]
    precision = (edges[0] * near[1]).sum() / edges[0].sum()
    recall = (edges[1] * near[0]).sum() / edges[1].sum()
    return float(2 * precision * recall / (precision + recall))


SIZES = [(40, 64), (90, 61), (240, 427)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_boundary_accuracy_is_that_of_the_operations_of_davis(
    random: np.random.Generator, height: int, width: int
) -> None:
    true = blob(random, height, width)
    found = true ^ blob(random, height, width, sigma=2) & (random.random((height, width)) < 0.3)
    assert boundary_accuracy(found, true) == pytest.approx(davis_f(found, true), abs=1e-12)
    other = blob(random, height, width)
    assert boundary_accuracy(other, true) == pytest.approx(davis_f(other, true), abs=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_j_and_f_are_those_of_vos_benchmark(random: np.random.Generator, height: int, width: int) -> None:
    evaluator = pytest.importorskip("vos_benchmark.evaluator", reason="vos-benchmark is not installed").Evaluator()
    frames = []
    for _ in range(4):
        true = blob(random, height, width).astype(np.uint8) + 2 * blob(random, height, width).astype(np.uint8)
        moved = np.roll(true, random.integers(-3, 4, 2), axis=(0, 1))
        frames.append((moved, true))
        evaluator.feed_frame(moved, true)
    regions, boundaries = evaluator.object_iou, evaluator.boundary_f
    for number in (1, 2, 3):
        for place, (found, true) in enumerate(frames):
            masks = found == number, true == number
            assert region_similarity(*masks) == pytest.approx(regions[number][place], abs=1e-12)
            assert boundary_accuracy(*masks) == pytest.approx(boundaries[number][place], abs=1e-12)

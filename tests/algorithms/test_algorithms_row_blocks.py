"""Rows of a file give what the same rows in memory give."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.algorithms import row_blocks
from labelkit.algorithms.clustering import kmeans, semi_supervised_kmeans
from labelkit.algorithms.neighbors import Metric, knn
from labelkit.algorithms.row_blocks import StoredRows, to_unit_length
from numpy.typing import NDArray


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_blocks, "BLOCK_NUMBERS", 64)


@pytest.fixture
def stored(tmp_path: Path, rng: np.random.Generator) -> NDArray[np.float32]:
    values = (rng.standard_normal((150, 5)) + 3).astype(np.float32)
    values.tofile(tmp_path / "rows")
    return np.memmap(tmp_path / "rows", np.float32, "r", 0, values.shape)


def test_chosen_rows_are_scaled_and_moved(stored: NDArray[np.float32]) -> None:
    chosen = np.array([3, 7, 100, 149])
    offset = np.array([1, 2, 3, 4, 5], dtype=np.float32)
    rows = StoredRows(stored, chosen, unit=True, in_blocks=True).centered_at(offset)
    expected = stored[chosen] / np.linalg.norm(stored[chosen], axis=1, keepdims=True) - offset
    np.testing.assert_allclose(rows.to_array(), expected, rtol=1e-6)
    np.testing.assert_array_equal(rows.subset(np.array([2, 0]))[:], rows.to_array()[[2, 0]])


@pytest.mark.parametrize("in_blocks", [True, False])
@pytest.mark.parametrize("spherical", [False, True])
def test_clusters_of_a_file_are_those_of_an_array(
    spherical: bool, in_blocks: bool, stored: NDArray[np.float32]
) -> None:
    of_array, of_file = (
        kmeans(rows, 7, generator=np.random.default_rng(0), num_inits=2, spherical=spherical)
        for rows in (np.array(stored), StoredRows(stored, in_blocks=in_blocks))
    )
    np.testing.assert_array_equal(of_file.cluster_ids, of_array.cluster_ids)
    np.testing.assert_array_equal(of_file.centroids, of_array.centroids)


def test_clusters_with_labels_of_a_file_are_those_of_an_array(stored: NDArray[np.float32]) -> None:
    labels = np.arange(30) % 3
    rows = StoredRows(stored, in_blocks=True)
    found = [
        semi_supervised_kmeans(free, fixed, labels, 6, generator=np.random.default_rng(0), num_inits=2)
        for free, fixed in (
            (np.array(stored[30:]), np.array(stored[:30])),
            (rows.subset(np.arange(30, 150)), rows.subset(np.arange(30))),
        )
    ]
    np.testing.assert_array_equal(found[1].unlabeled_ids, found[0].unlabeled_ids)
    np.testing.assert_array_equal(found[1].centroids, found[0].centroids)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1e30, 1.0, 1e-30])
def test_rows_whose_squares_no_float32_holds_get_length_1(size: float, dtype: Any) -> None:
    rows = np.array([[3, 4], [0, -2]], dtype=dtype) * dtype(size)
    for found in (to_unit_length(rows, "x"), StoredRows(rows.astype(np.float32), unit=True, in_blocks=True)):
        np.testing.assert_allclose(found[:], [[0.6, 0.8], [0, -1]], rtol=1e-6)


@pytest.mark.parametrize("metric", ["cosine", "l2", "dot"])
def test_neighbors_in_a_file_are_those_in_an_array(metric: Metric, stored: NDArray[np.float32]) -> None:
    queries = np.array(stored[:9]) + np.float32(0.01)
    scores, indices = knn(queries, StoredRows(stored, in_blocks=True), 4, metric=metric)
    expected_scores, expected = knn(queries, np.array(stored), 4, metric=metric)
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_array_equal(scores, expected_scores)

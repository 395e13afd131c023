"""Soft labels that flow between near rows: the graph by loops, the fixed point by a linear solve."""

import numpy as np
import pytest
from labelkit.algorithms import label_propagation
from labelkit.algorithms.label_propagation import build_neighbor_graph, diffuse_labels, propagate_labels


def test_graph_has_normalized_cubes_of_cosines_of_near_rows_both_ways(rng: np.random.Generator) -> None:
    rows = rng.normal(size=(12, 4))
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = unit @ unit.T
    weights = np.zeros((12, 12))
    for i in range(12):
        order = [j for j in np.argsort(-cosines[i]) if j != i]
        for j in order[:3]:
            weights[i, j] = weights[j, i] = max(cosines[i, j], 0) ** 3
    degrees = weights.sum(axis=1)

    graph = build_neighbor_graph(rows, 3)

    np.testing.assert_allclose(graph.toarray(), weights / np.sqrt(np.outer(degrees, degrees)), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("columns", [3, 33])  # 16 flow together
def test_values_are_the_solution_of_the_equation(columns: int, rng: np.random.Generator) -> None:
    graph = build_neighbor_graph(rng.normal(size=(15, 3)), 4)
    start = rng.random((15, columns))
    solution = np.linalg.solve(np.eye(15) - 0.7 * graph.toarray(), 0.3 * start)

    found = propagate_labels(graph, start, alpha=0.7, num_iterations=80)

    np.testing.assert_allclose(found, solution / solution.sum(axis=1, keepdims=True), rtol=1e-9)


def test_diffused_labels_count_the_same_for_all_classes(rng: np.random.Generator) -> None:
    graph = build_neighbor_graph(rng.normal(size=(15, 3)), 4)
    seeds = np.zeros((15, 2))
    seeds[[0, 1, 2], 0] = seeds[3, 1] = 1
    solution = np.linalg.solve(np.eye(15) - 0.5 * graph.toarray(), 0.5 * seeds)
    solution /= solution.sum(axis=0)

    found = diffuse_labels(graph, seeds, alpha=0.5, num_iterations=60)

    np.testing.assert_allclose(found, solution / solution.sum(axis=1, keepdims=True), rtol=1e-9)


def test_row_that_nothing_reaches_has_equal_shares() -> None:
    graph = build_neighbor_graph(np.eye(3), 1)  # orthogonal rows: no edge has a weight

    found = propagate_labels(graph, [[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]], alpha=0.5)

    np.testing.assert_allclose(found, [[1, 0], [0.5, 0.5], [0, 1]])


def test_neighbors_that_are_found_nearly_give_about_the_same_graph(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rng.normal(size=(400, 8))
    exact = build_neighbor_graph(rows, 5)
    monkeypatch.setattr(label_propagation, "_MAX_EXACT", 100)

    near = build_neighbor_graph(rows, 5)

    assert abs(exact - near).sum() < 0.02 * abs(exact).sum()

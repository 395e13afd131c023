"""Nearest other rows of each row, against a plain loop."""

import numpy as np
import pytest
from labelkit.commands.find.nearest import find_nearest_other_embeddings


@pytest.mark.parametrize("some", [False, True])
def test_neighbors_are_those_of_a_plain_loop(some: bool) -> None:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(50, 6)).astype(np.float32)
    rows[7] = 0
    among = np.arange(50) % 3 > 0 if some else None

    cosines, places = find_nearest_other_embeddings(rows, 4, "near", among)

    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
    for row in range(50):
        others = [i for i in range(50) if i not in (row, 7) and (among is None or among[i])]
        expected = sorted(others, key=lambda i: -float(unit[row] @ unit[i]))[:4]
        if row == 7:
            assert places[row].tolist() == [-1] * 4
            assert np.isnan(cosines[row]).all()
        else:
            assert places[row].tolist() == expected
            assert cosines[row] == pytest.approx(unit[expected] @ unit[row], abs=1e-5)


def test_equal_rows_are_neighbors_but_never_their_own() -> None:
    cosines, places = find_nearest_other_embeddings(np.ones((30, 3), dtype=np.float32), 5, "near")
    assert (places != np.arange(30)[:, None]).all()
    assert cosines == pytest.approx(1)
    # fewer rows than asked for leave gaps
    cosines, places = find_nearest_other_embeddings(np.eye(3, dtype=np.float32), 4, "near")
    assert sorted(places[0].tolist()) == [-1, -1, 1, 2]
    assert np.isnan(cosines[0]).sum() == 2

"""Products on a device of torch, by tensors on the processor: what numpy and faiss find."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labelkit.algorithms import device_products
from labelkit.algorithms.device_products import DeviceProducts
from labelkit.algorithms.neighbor_scores import Metric
from labelkit.algorithms.neighbors import ExactSearch
from labelkit.algorithms.row_blocks import StoredRows
from numpy.typing import NDArray

Singles = NDArray[np.float32]


@pytest.fixture
def rows(rng: np.random.Generator) -> Singles:
    """20 classes of 60 rows; some rows stand twice."""
    made = (3 * rng.normal(size=(20, 12)))[np.arange(1200) % 20] + rng.normal(size=(1200, 12))
    made[700:720] = made[:20]
    return made.astype(np.float32)


def _noting(asked: list[str], real: Any) -> Any:
    def told(*words: Any, **more: Any) -> Any:
        asked.append(real.__name__)
        return real(*words, **more)

    return told


@pytest.fixture
def asked_of_device(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was computed there."""
    asked: list[str] = []
    monkeypatch.setattr(DeviceProducts, "nearest", _noting(asked, DeviceProducts.nearest))
    return asked


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize("queries", [1, 40])
def test_neighbors_are_those_of_faiss(
    rows: Singles,
    metric: Metric,
    in_blocks: bool,
    queries: int,
    asked_of_device: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("labelkit.algorithms.row_blocks.BLOCK_NUMBERS", 12 * 100)  # 12 blocks
    monkeypatch.setattr(device_products, "_SCORE_NUMBERS", 16 << 12)  # 16 queries at a time
    gallery = StoredRows(rows, in_blocks=True) if in_blocks else rows
    here, there = (ExactSearch(gallery, metric=metric, device=d).search(rows[:queries], 130) for d in (None, "cpu"))

    np.testing.assert_array_equal(there[1], here[1])
    np.testing.assert_array_equal(there[0], here[0])
    assert asked_of_device == ["nearest"]


PRETENDED = """
import numpy as np
from labelkit.algorithms.neighbors import ExactSearch
from tests.pretend_gpu import PretendGpu

rows = np.random.default_rng(0).standard_normal((500, 12), dtype=np.float32)
with PretendGpu():
    for metric in ("cosine", "dot", "l2"):
        found = [ExactSearch(rows, metric=metric, device=d).search(rows[:40], 9) for d in (None, "pretend:0")]
        assert (found[0][1] == found[1][1]).all()
"""


def test_nothing_mixes_devices() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRETENDED], capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stderr


def test_products_are_precise_whatever_the_process_has_set(rows: Singles) -> None:
    seen: list[str] = []

    class Watching(DeviceProducts):
        def _sent(self, values: Singles) -> Any:
            seen.append(torch.get_float32_matmul_precision())
            return super()._sent(values)

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        Watching("cpu").nearest(rows[:3], [(slice(0, 9), rows[:9])], 2, by_distance=True)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert set(seen) == {"highest"}


@pytest.mark.parametrize("by_distance", [False, True])
def test_nearest_gives_products_or_squared_distances(rows: Singles, by_distance: bool) -> None:
    parts = [(slice(0, 5), rows[:5]), (slice(5, 1200), rows[5:])]  # the first has fewer rows than are asked for

    found, places = DeviceProducts("cpu").nearest(rows[:30], parts, 9, by_distance=by_distance)

    exact = rows.astype(np.float64)
    scores = ((exact[:30, None] - exact) ** 2).sum(2) if by_distance else exact[:30] @ exact.T
    best = np.sort(scores, axis=1)[:, :9] if by_distance else -np.sort(-scores, axis=1)[:, :9]
    np.testing.assert_allclose(found, best, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(np.take_along_axis(scores, places, axis=1), best, rtol=1e-4, atol=1e-3)

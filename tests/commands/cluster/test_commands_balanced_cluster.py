"""``labelkit cluster sinkhorn``: groups of equal or given sizes, kept beside the store."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.commands.cluster.cluster import cluster_store
from labelkit.commands.cluster.options import SinkhornConfig
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.results import read_result


@pytest.fixture
def blobs(make_store: Any, rng: np.random.Generator) -> EmbeddingStore:
    rows = np.repeat(np.eye(3), [24, 12, 4], axis=0) + rng.normal(0, 0.05, (40, 3))
    return make_store(rows, labels=[0] * 24 + [1] * 12 + [2] * 4)


def run(store: EmbeddingStore, **options: Any) -> dict[str, Any]:
    return cluster_store(SinkhornConfig(index=store.path, num_clusters=3, **options)).to_json()


def test_given_sizes_find_blobs_of_these_sizes(blobs: EmbeddingStore, tmp_path: Path) -> None:
    (tmp_path / "sizes.txt").write_text("4 24\n12\n")

    found = run(blobs, prior=str(tmp_path / "sizes.txt"))

    ids = read_result(blobs, "sinkhorn").arrays["cluster_ids"]
    assert sorted(found["sizes"]) == [4, 12, 24]
    assert [len(set(ids[part])) for part in (slice(0, 24), slice(24, 36), slice(36, 40))] == [1, 1, 1]
    assert found["converged"]
    assert found["marginal_error"] <= 1e-6


def test_a_result_says_how_it_was_reached(blobs: EmbeddingStore) -> None:
    run(blobs)

    result = read_result(blobs, "sinkhorn")
    arrays = result.arrays
    assert result.kind == "clusters"
    np.testing.assert_allclose(np.linalg.norm(arrays["prototypes"], axis=1), 1, atol=1e-6)
    # what is stored is enough to assign rows again
    logits = blobs.embeddings / np.linalg.norm(blobs.embeddings, axis=1, keepdims=True) @ arrays["prototypes"].T / 0.02
    logits = logits + arrays["potentials"]
    np.testing.assert_array_equal(logits.argmax(axis=1), arrays["cluster_ids"])
    plan = np.exp(logits - logits.max(axis=1, keepdims=True))
    plan /= plan.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(plan.max(axis=1), arrays["confidence"], atol=1e-3)
    np.testing.assert_allclose(plan.mean(axis=0), arrays["prior_shares"], atol=1e-3)
    assert {"marginal_error", "rounds", "passes", "temperature", "prior", "seed"} <= result.params.keys()

"""The index of a store that changes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.commands.retrieve.options import RetrieveConfig
from labelkit.commands.retrieve.retrieve import retrieve_images
from numpy.typing import NDArray

QUERIES = tuple(range(0, 900, 30))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABELKIT_CACHE", str(tmp_path / "cache"))
    # so wide that an index looks at every row
    monkeypatch.setattr("labelkit.algorithms.indexes.WIDTHS", {"hnsw": 3000, "ivfpq": 3000})
    monkeypatch.setattr("labelkit.algorithms.indexes._CANDIDATES", {"hnsw": 3000, "ivfpq": 3000})
    return tmp_path / "cache" / "indexes"


@pytest.fixture
def rows() -> NDArray[np.float64]:
    generator = np.random.default_rng(0)
    return generator.standard_normal((20, 16))[np.arange(1200) % 20] + 0.4 * generator.standard_normal((1200, 16))


def retrieve(index: Path, **options: Any) -> Any:
    return retrieve_images(RetrieveConfig(index=index, query_rows=QUERIES, k=5, **options)).to_json()


def hits(answer: Any) -> list[list[tuple[int, float]]]:
    return [[(hit["row"], hit["score"]) for hit in query["hits"]] for query in answer["queries"]]


def test_the_index_of_a_store_that_changed_is_built_again(make_store: Any, cache: Path, rows: Any) -> None:
    store = make_store(rows[:900]).path
    retrieve(store, search="hnsw")
    (before,) = cache.glob("*.index")
    store.unlink()
    make_store(rows)

    assert [retrieve(store, search="hnsw")["search"]["built"] for _ in range(2)] == [True, False]

    # the index of what the store was before is no longer needed
    assert [path.exists() for path in (before, *cache.glob("*.index"))] == [False, True]
    assert hits(retrieve(store, search="hnsw")) == hits(retrieve(store))

"""The index of a store that changes, and what is searched without one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.commands.retrieve import search
from labelkit.commands.retrieve.options import RetrieveConfig
from labelkit.commands.retrieve.retrieve import retrieve_images
from labelkit.formatting import percent
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


def said_by_auto(labelkit: Any, store: Path, *words: object, queries: str = "0") -> Any:
    answer = labelkit("retrieve", "--index", store, "--query-rows", queries, "--search", "auto", "--json", *words)
    assert answer.code == 0, answer.err
    return answer


def test_auto_compares_few_rows_exactly(labelkit: Any, make_store: Any, cache: Path, rows: Any) -> None:
    answer = said_by_auto(labelkit, make_store(rows).path)

    assert answer.json["search"] == {"kind": "exact"}
    assert "--search auto: exact search, which is fast for 1,200 embeddings of dimension 16" in answer.err
    assert not cache.exists()


@pytest.fixture
def many(labelkit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of 60,000 rows in 200 directions."""
    monkeypatch.setattr(search, "_FEW_ROWS", 1000)
    monkeypatch.setattr(search, "_NUMBERS_PER_ADDED_ROW", 0)  # an index pays for one query
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((200, 16))[np.arange(60_000) % 200]
    np.save(tmp_path / "rows.npy", (rows + 0.4 * generator.standard_normal(rows.shape)).astype(np.float32))
    assert labelkit("import", "--source", tmp_path / "rows.npy", "--out", tmp_path / "many.h5").code == 0
    return tmp_path / "many.h5"


@pytest.mark.slow
def test_auto_takes_the_kind_that_fits_the_memory_and_says_what_it_finds(
    labelkit: Any, many: Path, cache: Path
) -> None:
    found = {}
    for bound in ("1MiB", "4MiB", "64MiB"):
        answer = said_by_auto(labelkit, many, "--max-memory", bound)
        found[answer.json["search"]["kind"]] = answer

    assert list(found) == ["exact", "ivfpq", "hnsw"]
    assert "--search auto: hnsw for 60,000 embeddings of dimension 16 within --max-memory" in found["hnsw"].err
    assert "hnsw would take 22 MiB; ivfpq takes" in found["ivfpq"].err
    assert "hnsw would take 22 MiB; ivfpq would take" in found["exact"].err
    for kind in ("hnsw", "ivfpq"):
        recall = found[kind].json["search"]["measured"]["recall"]
        assert recall >= 0.95
        assert f"the {kind} index finds {percent(recall)}% of the 10 nearest rows" in found[kind].err


def test_auto_builds_no_index_for_fewer_queries_than_pay_for_it(
    labelkit: Any, many: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labelkit.algorithms.indexes._BUILD_WIDTH", 20)
    monkeypatch.setattr(search, "_NUMBERS_PER_ADDED_ROW", 3 * 16)  # 3 queries of 16 numbers take as long as one row

    two, three = (said_by_auto(labelkit, many, queries=rows) for rows in ("0,1", "0,1,2"))
    later = said_by_auto(labelkit, many)

    assert two.json["search"] == {"kind": "exact"}
    assert "60,000 embeddings of dimension 16, since building an index would take longer than 2 queries" in two.err
    assert three.json["search"]["kind"] == "hnsw"
    assert later.json["search"]["kind"] == "hnsw"  # it is there

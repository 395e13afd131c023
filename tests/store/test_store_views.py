"""Embeddings of views in a store: written part by part, and read as (n, v, d)."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.errors import StoreError
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.writing import EmbeddingRun
from store_samples import DIM, SAMPLE_IDS, make_plan, rows_of

RECIPE = {"count": 2, "augmentation": "box", "seed": 0, "view": {"size": 8}}
VIEWS = np.arange(len(SAMPLE_IDS) * 2 * DIM, dtype=np.float32).reshape(-1, 2, DIM) + 1


def make(out: Path, skipped: int | None = None, **changes: Any) -> EmbeddingStore:
    """A store of eight samples with two views each; one sample may be skipped."""
    run = EmbeddingRun.open(out, make_plan(views=RECIPE, **changes))
    for part in run.pending_parts():
        kept = [row for row in range(*run.part_range(part)) if row != skipped]
        values = rows_of(run.plan, kept)
        values["view_embeddings"] = VIEWS[kept].reshape(len(kept), -1)
        bad = [(row, "broken") for row in range(*run.part_range(part)) if row == skipped]
        run.write_part(part, skipped=bad, **values)
    run.publish(max_bad=0.5)
    return open_store(out)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_views_are_those_that_were_written_in_the_type_of_the_rows(tmp_path: Path, dtype: str) -> None:
    store = make(tmp_path / "s.h5", dtype=dtype)

    assert store.view_embeddings is not None
    assert store.view_embeddings.dtype == store.embeddings.dtype == np.dtype(dtype)
    assert np.array_equal(store.view_embeddings, VIEWS)
    assert store.view_recipe == RECIPE
    assert set(store.extras) == {"logits"}


def test_views_of_a_skipped_sample_are_left_out(tmp_path: Path) -> None:
    store = make(tmp_path / "s.h5", skipped=5)

    assert store.sample_ids == [name for row, name in enumerate(SAMPLE_IDS) if row != 5]
    assert np.array_equal(store.view_embeddings, np.delete(VIEWS, 5, axis=0))


def test_a_view_that_is_not_finite_is_named(tmp_path: Path) -> None:
    run = EmbeddingRun.open(tmp_path / "s.h5", make_plan(views=RECIPE))
    values = rows_of(run.plan, [0, 1, 2, 3])
    values["view_embeddings"] = np.full((4, 2 * DIM), np.nan)
    with pytest.raises(StoreError) as caught:
        run.write_part(0, **values)
    assert SAMPLE_IDS[0] in caught.value.where

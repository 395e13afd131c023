"""A small store that many tests of files begin with."""

from pathlib import Path

import pytest
from labelkit.store.embeddings import EmbeddingStore
from store_samples import make_store


@pytest.fixture
def store(tmp_path: Path) -> EmbeddingStore:
    return make_store(tmp_path / "s.h5")

"""A name that a result cannot get is refused before the work, in every command that writes one."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.results import write_result
from tests.tiers import quick_every

Labelkit = Callable[..., Any]

COMMANDS = {
    "cluster k-means": ("--num-clusters", "3"),
    "cluster spherical-k-means": ("--num-clusters", "3"),
    "cluster ss-kmeans": ("--num-clusters", "3"),
    "cluster sinkhorn": ("--num-clusters", "3", "--temperature", "0.1"),
    "discover categories": ("--max-classes", "5"),
    "discover head": (),
    "discover snowball": (),
    "discover lmcs": (),
    "discover answer": ("--grouping", "groups"),
}


@pytest.fixture
def store(make_store: Any, rng: np.random.Generator) -> EmbeddingStore:
    """Three blobs of twelve rows, some with labels that may be used, beside a result named ``taken``."""
    rows = np.repeat(np.eye(3), 12, axis=0) + 0.05 * rng.normal(size=(36, 3))
    labeled = np.tile([1] * 4 + [0] * 8, 3)
    made: EmbeddingStore = make_store(
        rows,
        labels=np.repeat([0, 1, 2], 12).tolist(),
        labeled=labeled.tolist(),
        old_classes=[1, 1, 1],
        splits=np.tile([0, 1], 18).tolist(),
        split_names=("train", "test"),
        logits=rows,
    )
    ids = np.repeat([0, 1, 2], 12)
    names, flags = [f"class-{i}" for i in range(3)], np.zeros(3, dtype=np.uint8)
    arrays: dict[str, Any] = {"cluster_ids": ids, "names": names, "new_classes": flags}
    for name in ("groups", "taken"):
        write_result(made, name, kind="clusters", arrays=arrays, params={}, stage="cluster by hand")
    return made


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the embeddings is an error: names are checked before it."""

    def refuse(self: EmbeddingStore) -> None:
        raise AssertionError("the work began")

    monkeypatch.setattr(EmbeddingStore, "embeddings", property(refuse))


@pytest.mark.parametrize("command", quick_every(3, COMMANDS))
@pytest.mark.usefixtures("no_work")
def test_a_taken_name_is_refused_before_the_work(labelkit: Labelkit, store: EmbeddingStore, command: str) -> None:
    words = (*command.split(), "--index", store.path, *COMMANDS[command], "--result", "taken")
    answer = labelkit(*words)

    assert answer.code == 2, answer.err
    assert "taken.h5: already exists" in answer.err
    assert "--overwrite" in answer.err


@pytest.mark.parametrize("command", quick_every(4, [name for name in COMMANDS if not name.startswith("cluster")]))
@pytest.mark.usefixtures("no_work")
def test_a_result_of_another_kind_is_never_replaced_and_this_is_said_before_the_work(
    labelkit: Labelkit, store: EmbeddingStore, command: str
) -> None:
    words = (*command.split(), "--index", store.path, *COMMANDS[command], "--result", "taken", "--overwrite")
    answer = labelkit(*words)

    assert answer.code == 2, answer.err
    assert "which this command would overwrite" in answer.err

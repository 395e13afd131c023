"""What heads on rows of a store do that use no label (sela), or learn to search (san)."""

from pathlib import Path

import numpy as np
import pytest
from labelkit.algorithms.neighbors import knn
from labelkit.store.embeddings import open_store
from labelkit.training.checkpoint import load_checkpoint
from tests.row_heads import BATCHES, HEADS
from tests.running import Labelkit, MakeStore
from tests.tiers import quick_every


def blobs(rng: np.random.Generator, count: int = 4, size: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Rows around orthogonal directions, far apart, and which of them each is of."""
    ids = np.arange(count * size) % count
    return np.eye(16)[ids] + 0.05 * rng.normal(size=(count * size, 16)), ids


def self_labels(run: Path) -> np.ndarray:
    """Labels (h, n) that a run gave its rows."""
    checkpoint = load_checkpoint(run)
    assert checkpoint is not None
    return checkpoint.tensors("model.safetensors")["labels.pseudo_labels"].numpy()


@pytest.mark.slow
def test_self_labels_find_blobs_of_rows_without_a_label(
    labelkit: Labelkit, make_store: MakeStore, rng: np.random.Generator, tmp_path: Path
) -> None:
    rows, ids = blobs(rng)
    store, out = make_store(rows), tmp_path / "run"
    words = ("--num-heads", 1, "--num-clusters", 4, "--epochs", 12, *BATCHES)
    answer = labelkit("train", "sela", "--index", store.path, *words, "--out", out, "--json")
    assert answer.code == 0, answer.err
    assert answer.json["samples"]["labeled"] == 0
    (found,) = self_labels(out)
    # each blob is one cluster, and no two blobs are the same
    assert len(set(zip(ids.tolist(), found.tolist(), strict=True))) == 4 == len(set(found.tolist()))


@pytest.mark.parametrize(
    ("method", "mode"), quick_every(2, [("sela", ()), ("san", ("--mode", "unsupervised", "--num-clusters", 6))])
)
def test_heads_without_labels_look_at_none(
    labelkit: Labelkit,
    make_store: MakeStore,
    rng: np.random.Generator,
    tmp_path: Path,
    method: str,
    mode: tuple[object, ...],
) -> None:
    rows, ids = blobs(rng)
    prints = []
    for number, labels in enumerate((ids, ids[::-1])):
        store = make_store(rows, name=f"{number}.h5", labels=labels.tolist(), labeled=[1] * len(ids))
        words = ("train", method, "--index", store.path, *HEADS[method], *mode, "--out", tmp_path / f"run-{number}")
        prints.append(labelkit(*words, "--json").json["weights_fingerprint"])
    assert prints[0] == prints[1]


def test_a_head_learns_the_self_labels_of_another_run(labelkit: Labelkit, tmp_path: Path, pixels: Path) -> None:
    words = ("train", "sela", "--index", pixels, *HEADS["sela"])
    assert labelkit(*words, "--out", tmp_path / "first").code == 0
    answer = labelkit(*words, "--seed", 1, "--labels-from", tmp_path / "first", "--out", tmp_path / "second")
    assert answer.code == 0, answer.err
    assert np.array_equal(self_labels(tmp_path / "first"), self_labels(tmp_path / "second"))


@pytest.mark.slow
def test_labels_bring_rows_of_a_class_together(
    labelkit: Labelkit, make_store: MakeStore, rng: np.random.Generator, tmp_path: Path
) -> None:
    classes = np.arange(24) % 4
    rows = rng.normal(size=(24, 16))
    store = make_store(rows, labels=classes.tolist(), labeled=[1] * 24)
    out, made = tmp_path / "run", tmp_path / "better.h5"
    words = (*BATCHES, "--images-per-class", 2, "--epochs", 60, "--lr", 0.003, "--row-mix", 0, "--row-noise", 0)
    assert labelkit("train", "san", "--index", store.path, *words, "--out", out).code == 0
    assert labelkit("embed", "--index", store.path, "--checkpoint", out, "--out", made).code == 0

    def found(rows: np.ndarray) -> float:
        return float((classes[knn(rows, rows, 1, exclude_self=True)[1][:, 0]] == classes).mean())

    # noise says nothing of these classes
    assert found(rows) < 0.5
    assert found(np.asarray(open_store(made).embeddings)) > 0.9

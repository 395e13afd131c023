"""What heads on rows of a store do that use no label (sela), or learn to search (san)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from labelkit.algorithms.neighbors import knn
from labelkit.methods.metric.san import SAN
from labelkit.methods.metric.san_options import SANConfig
from labelkit.store.embeddings import open_store
from labelkit.training.checkpoint import load_checkpoint
from tests.row_heads import BATCHES, HEADS, rows_after
from tests.running import Labelkit, MakeStore
from tests.tiers import quick_every

CLUSTERS = (*HEADS["san"], "--mode", "unsupervised", "--num-clusters", 6, "--refresh-epochs", 1)


# ---------------------------------------------------------------------- heads that use no labels


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


@pytest.mark.parametrize(("method", "mode"), [("sela", ()), ("san", ("--mode", "unsupervised", "--num-clusters", 6))])
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


@pytest.mark.slow
def test_self_labels_are_judged_by_labels_that_are_held_out(labelkit: Labelkit, tmp_path: Path, pixels: Path) -> None:
    words = ("train", "sela", "--index", pixels, *HEADS["sela"], "--holdout", 0.25)
    answer = labelkit(*words, "--out", tmp_path / "run", "--json")
    assert answer.code == 0, answer.err
    assert answer.json["samples"]["images"] == 36
    assert {"knn_accuracy", "nmi"} <= answer.json["metrics"].keys()


@pytest.mark.slow
def test_labels_of_a_file_judge_self_labels(
    labelkit: Labelkit, tmp_path: Path, make_store: MakeStore, rng: np.random.Generator
) -> None:
    rows, ids = blobs(rng)
    store, table = make_store(rows), tmp_path / "known.csv"
    table.write_text("path,label\n" + "".join(f"{row:04d}.png,{'abcd'[ids[row]]}\n" for row in range(20)))
    words = ("train", "sela", "--index", store.path, *HEADS["sela"])
    assert "nmi" not in labelkit(*words, "--out", tmp_path / "other", "--json").json["metrics"]
    answer = labelkit(*words, "--labels", table, "--out", tmp_path / "run", "--json")
    assert answer.code == 0, answer.err
    assert "nmi" in answer.json["metrics"]


@pytest.mark.slow
@pytest.mark.parametrize("method", quick_every(2, ["sela", "san"]))
@pytest.mark.parametrize("change", [("--row-mix", 0), ("--row-noise", 0), ("--row-dropout", 0)])
def test_heads_train_on_changed_rows(
    labelkit: Labelkit, tmp_path: Path, pixels: Path, change: tuple[object, ...], method: str
) -> None:
    changed = rows_after(labelkit, tmp_path, pixels, method=method)
    assert not np.allclose(changed, rows_after(labelkit, tmp_path, pixels, *change, method=method), atol=1e-4)


def test_a_head_learns_the_self_labels_of_another_run(labelkit: Labelkit, tmp_path: Path, pixels: Path) -> None:
    words = ("train", "sela", "--index", pixels, *HEADS["sela"])
    assert labelkit(*words, "--out", tmp_path / "first").code == 0
    answer = labelkit(*words, "--seed", 1, "--labels-from", tmp_path / "first", "--out", tmp_path / "second")
    assert answer.code == 0, answer.err
    assert np.array_equal(self_labels(tmp_path / "first"), self_labels(tmp_path / "second"))


@pytest.mark.parametrize(
    "words", [("--rotation",), ("--label-pass-bn", "running"), ("--freeze-stages", 1), ("--augmentation", "cifar")]
)
def test_self_labels_of_rows_refuse_options_of_images(
    labelkit: Labelkit, tmp_path: Path, pixels: Path, words: tuple[object, ...]
) -> None:
    answer = labelkit("train", "sela", "--index", pixels, *HEADS["sela"], *words, "--out", tmp_path / "run")
    assert answer.code == 2
    assert f"{words[0]} has no meaning with --index" in answer.err
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------------- heads for search


@pytest.mark.slow
def test_before_training_rows_for_search_are_the_centered_rows_of_length_1(
    labelkit: Labelkit, tmp_path: Path, pixels: Path
) -> None:
    made = rows_after(labelkit, tmp_path, pixels, "--lr", 1e-12, "--weight-decay", 0, method="san")
    rows = np.asarray(open_store(pixels).embeddings, dtype=np.float64)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    centered = unit - unit.mean(axis=0)
    assert np.allclose(made, centered / np.linalg.norm(centered, axis=1, keepdims=True), atol=1e-5)


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


@pytest.mark.parametrize(
    "words", [("--loss", "proxy-anchor"), ("--loss", "cross-entropy"), ("--memory", "momentum", "--memory-size", 16)]
)
def test_losses_and_memory_are_as_wide_as_the_rows(
    labelkit: Labelkit, tmp_path: Path, pixels: Path, words: tuple[object, ...]
) -> None:
    plain = rows_after(labelkit, tmp_path, pixels, method="san")
    changed = rows_after(labelkit, tmp_path, pixels, *words, method="san")
    assert changed.shape == plain.shape
    assert not np.allclose(changed, plain, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["none", "momentum"])
def test_a_head_on_clusters_stopped_and_resumed_has_the_same_bits(
    labelkit: Labelkit, tmp_path: Path, pixels: Path, memory: str
) -> None:
    words = ("train", "san", "--index", pixels, *CLUSTERS, "--memory", memory, "--json")
    whole = labelkit(*words, "--out", tmp_path / "whole")
    assert whole.code == 0, whole.err
    assert labelkit(*words, "--out", tmp_path / "cut", "--stop-after-steps", 5).code == 0
    resumed = labelkit(*words, "--out", tmp_path / "cut", "--resume")
    assert resumed.code == 0, resumed.err
    assert resumed.json["weights_fingerprint"] == whole.json["weights_fingerprint"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--san",), "--san moves features between positions"),
        (("--preset", "none"), "pass --no-san"),
        (("--san-before", "block3"), "--san-before has no meaning with --index"),
        (("--coherence-weight", 0), "--coherence-weight has no meaning with --index"),
        (("--pool", "max"), "--pool has no meaning with --index"),
        (("--embed-dim", 64), "--embed-dim has no meaning with --index"),
        (("--new-lr-scale", 2), "--new-lr-scale has no meaning with --index"),
        (("--first-clustering", "pixels"), "--first-clustering has no meaning with --index"),
    ],
)
def test_a_head_for_search_refuses_what_a_row_has_not(
    labelkit: Labelkit, tmp_path: Path, pixels: Path, words: tuple[object, ...], problem: str
) -> None:
    answer = labelkit("train", "san", "--index", pixels, *HEADS["san"], *words, "--out", tmp_path / "run")
    assert answer.code == 2
    assert problem in answer.err
    assert not (tmp_path / "run").exists()


def test_rows_refuse_all_options_of_the_module() -> None:
    panels = {name: (field.json_schema_extra or {}).get("panel") for name, field in SANConfig.model_fields.items()}
    assert {name for name, panel in panels.items() if panel == "Assembly"} - {"san"} <= set(SANConfig.row_refuses)


def test_a_head_has_no_rate_of_new_layers() -> None:
    config = SANConfig(index="photos.h5", san=False)
    assert SAN.group_rates(config).keys() == {"backbone"}

"""SeLa and its features through the command line: held-out images, stores, kNN, a second stage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.algorithms.feature_probes import knn_votes
from labelkit.store.embeddings import open_store
from labelkit.store.results import read_result

SHORT = (
    *("--dataset", "digits", "--max-per-class", "12", "--epochs", "2", "--batch-size", "16", "--device", "cpu"),
    *("--num-heads", "2", "--num-clusters", "8", "--num-optimizations", "2"),
)


@pytest.fixture(scope="module")
def run(labelkit: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run folder of two epochs on a part of the digits."""
    out = tmp_path_factory.mktemp("sela") / "run"
    done = labelkit("train", "sela", *SHORT, "--out", out, "--json")
    assert done.code == 0, done.err
    assert {"knn_accuracy", "nmi", "head1/ari", "labels/churn"} <= done.json["metrics"].keys()
    return out


@pytest.fixture(scope="module")
def store(labelkit: Any, run: Path) -> Path:
    """Return its store of both splits."""
    options = ("--dataset", "digits", "--max-per-class", "12", "--split", "all")
    done = labelkit("embed", "--checkpoint", run, *options, "--out", run.parent / "digits.h5")
    assert done.code == 0, done.err
    return run.parent / "digits.h5"


@pytest.mark.slow
def test_held_out_images_are_named_and_not_trained_on(run: Path) -> None:
    split = json.loads((run / "split.json").read_text())
    assert len(split["held_out"]) == 360
    assert split["split"]["num_samples"] == 120
    assert split["split"]["labeled"] == []


@pytest.mark.slow
def test_the_store_has_the_splits_of_the_run(run: Path, store: Path) -> None:
    opened = open_store(store)
    held_out = set(json.loads((run / "split.json").read_text())["held_out"])
    assert opened.split_names == ("train", "test")
    for row in opened.rows("test"):
        assert opened.sample_ids[int(row)] in held_out
    assert len(opened.rows("train")) == len(opened.rows("test")) == 120


def votes_of_one(queries: Any, gallery: Any, labels: Any) -> Any:
    """The class of the nearest row, by plain numpy."""
    directions = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (queries, gallery)]
    return labels[(directions[0] @ directions[1].T).argmax(1)]


def test_evaluate_linear_agrees_with_the_probe_of_evaluate_knn(labelkit: Any, store: Path) -> None:
    voted = labelkit("evaluate", "knn", "--index", store, "--linear", "--json").json
    passes = labelkit("evaluate", "linear", "--index", store, "--solver", "sgd", "--seeds", "2", "--json").json
    assert passes["accuracy"]["values"][0] == voted["linear_accuracy"]
    assert len(passes["accuracy"]["values"]) == 2
    solved = labelkit("evaluate", "linear", "--index", store, "--l2", "1e-4,1e-2", "--result", "linear", "--json")
    assert solved.code == 0, solved.err
    assert [entry["l2"] for entry in solved.json["protocol"]["sweep"]] == [1e-4, 1e-2]
    assert solved.json["accuracy"]["mean"] == pytest.approx(voted["linear_accuracy"], abs=0.15)
    assert solved.json["top5_accuracy"]["mean"] >= solved.json["accuracy"]["mean"]
    refused = labelkit("evaluate", "linear", "--index", store, "--l2", "-1")
    assert (refused.code, "0 or above" in refused.err) == (2, True)


def test_evaluate_knn_agrees_with_the_monitor_and_with_its_parts(labelkit: Any, run: Path, store: Path) -> None:
    done = labelkit("evaluate", "knn", "--index", store, "-k", "10", "--linear", "--result", "knn", "--json")
    assert done.code == 0, done.err
    metrics = json.loads((run / "summary.json").read_text())["metrics"]
    opened = open_store(store)
    train, test = (np.asarray(opened.rows(name)) for name in ("train", "test"))
    labels = np.asarray(opened.labels)
    votes = knn_votes(opened.embeddings[test], opened.embeddings[train], labels[train], num_classes=10)
    assert done.json["knn_accuracy"] == pytest.approx(float((votes.argmax(1) == labels[test]).mean()))
    assert done.json["knn_accuracy"] == pytest.approx(metrics["knn_accuracy"], abs=0.01)
    assert done.json["queries"] == {"split": "test", "rows": 120}
    assert np.mean(list(done.json["per_class"].values())) == pytest.approx(done.json["knn_accuracy"])
    several = labelkit("evaluate", "knn", "--index", store, "-k", "10,1,200", "--json").json
    assert several["knn_accuracy"] == done.json["knn_accuracy"]
    assert [entry["k"] for entry in several["by_k"]] == [10, 1, 120]
    nearest = votes_of_one(opened.embeddings[test], opened.embeddings[train], labels[train])
    assert several["by_k"][1]["knn_accuracy"] == pytest.approx(float((nearest == labels[test]).mean()))
    kept = json.loads(read_result(opened, "knn").arrays["metrics"])
    assert kept["linear_accuracy"] == done.json["linear_accuracy"]


@pytest.mark.slow
def test_pixels_are_judged_by_the_same_held_out_images(labelkit: Any, tmp_path: Path, store: Path) -> None:
    options = ("--dataset", "digits", "--max-per-class", "12", "--split", "all", "--holdout", "0.2")
    pixels = ("--backbone", "pixels", "--image-size", "8", "--label-split", "none")
    done = labelkit("embed", *pixels, *options, "--out", tmp_path / "pixels.h5")
    assert done.code == 0, done.err
    first, second = open_store(store), open_store(tmp_path / "pixels.h5")
    assert list(first.sample_ids) == list(second.sample_ids)
    assert np.array_equal(first.splits, second.splits)


@pytest.mark.slow
def test_a_second_stage_trains_on_the_labels_of_the_first(labelkit: Any, run: Path, tmp_path: Path) -> None:
    options = ("--labels-from", run, "--rotation", "--seed", "5")
    done = labelkit("train", "sela", *SHORT, *options, "--out", tmp_path / "second", "--json")
    assert done.code == 0, done.err
    from labelkit.training.checkpoint import load_checkpoint

    tables = []
    for folder in (run, tmp_path / "second"):
        checkpoint = load_checkpoint(folder)
        assert checkpoint is not None
        tables.append(checkpoint.tensors("model.safetensors"))
    assert tables[0]["labels.pseudo_labels"].equal(tables[1]["labels.pseudo_labels"])
    assert "network.rotation.weight" in tables[1]
    assert {"rotation", "heads"} <= done.json["metrics"].keys()
    embedded = labelkit("embed", "--checkpoint", tmp_path / "second", "--dataset", "digits", "--out", tmp_path / "s.h5")
    assert embedded.code == 0, embedded.err


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (("--labels-from", "{run}", "--num-clusters", "9"), 3, "has shape"),
        (("--labels-from", "{run}", "--max-per-class", "11"), 3, "other images"),
        (("--labels-from", "{run}/none"), 3, "no checkpoint"),
        (("--num-clusters", "121"), 2, "121 clusters for 120 images"),
        (("--eval-split", "train"), 2, "is trained on"),
        (("--eval-split", "val"), 2, "no split"),
        (("--lr-drop-epochs", "2,1"), 2, "must be positive and increase"),
        (("--lr-drop-epochs", ""), 2, "step needs lr_drop_epochs"),
        (("--split", "test", "--eval-split", "test"), 2, "is trained on"),
    ],
)
def test_what_cannot_be_trained_is_refused(
    labelkit: Any, run: Path, tmp_path: Path, words: tuple[str, ...], code: int, problem: str
) -> None:
    filled = [word.replace("{run}", str(run)) for word in words]
    options = dict(zip(SHORT[::2], SHORT[1::2], strict=True)) | dict(zip(filled[::2], filled[1::2], strict=True))
    done = labelkit(
        "train", "sela", *(word for pair in options.items() for word in pair), "--out", tmp_path / "refused"
    )
    assert done.code == code, done.err
    assert problem in done.err


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (("--queries", "train", "--linear"), 2, "would train on the rows that it is asked for"),
        (("--gallery", "val"), 2, "error: --gallery: "),
        (("--queries", "val"), 2, "error: --queries: "),
        (("-k", "0"), 2, "from 1 on"),
    ],
)
def test_splits_that_cannot_be_compared_are_refused(
    labelkit: Any, store: Path, words: tuple[str, ...], code: int, problem: str
) -> None:
    done = labelkit("evaluate", "knn", "--index", store, *words)
    assert done.code == code
    assert problem in done.err


def test_a_holdout_of_a_set_with_splits_is_refused(labelkit: Any, tmp_path: Path, run: Path) -> None:
    done = labelkit("embed", "--checkpoint", run, "--dataset", "digits", "--holdout", "0.1", "--out", tmp_path / "x.h5")
    assert done.code == 2
    assert "the split of that run is used" in " ".join(done.err.split())

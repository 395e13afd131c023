"""SeLa and its features through the command line: held-out images, stores, kNN, a second stage."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.algorithms.feature_probes import knn_probabilities
from labelkit.store.embeddings import open_store

SHORT = (
    *("--dataset", "digits", "--max-per-class", "12", "--epochs", "2", "--batch-size", "16", "--device", "cpu"),
    *("--num-heads", "2", "--num-clusters", "8", "--num-optimizations", "2"),
)


@pytest.fixture(scope="module")
def run(labelkit: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sela") / "run"
    done = labelkit("train", "sela", *SHORT, "--out", out, "--json")
    assert done.code == 0, done.err
    assert {"knn_accuracy", "nmi", "head1/ari", "labels/churn"} <= done.json["metrics"].keys()
    return out


@pytest.fixture(scope="module")
def store(labelkit: Any, run: Path) -> Path:
    options = ("--dataset", "digits", "--max-per-class", "12", "--split", "all")
    done = labelkit("embed", "--checkpoint", run, *options, "--out", run.parent / "digits.h5")
    assert done.code == 0, done.err
    return run.parent / "digits.h5"


def votes_of_one(queries: Any, gallery: Any, labels: Any) -> Any:
    """The class of the nearest row, by plain numpy."""
    directions = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (queries, gallery)]
    return labels[(directions[0] @ directions[1].T).argmax(1)]


def test_evaluate_linear_agrees_with_the_probe_of_evaluate_knn(labelkit: Any, store: Path) -> None:
    voted = labelkit("evaluate", "knn", "--index", store, "--linear", "--json").json
    passes = labelkit("evaluate", "linear", "--index", store, "--solver", "sgd", "--json").json
    assert passes["accuracy"]["values"] == [voted["linear_accuracy"]]
    solved = labelkit("evaluate", "linear", "--index", store, "--json")
    assert solved.code == 0, solved.err
    assert solved.json["accuracy"]["mean"] == pytest.approx(voted["linear_accuracy"], abs=0.15)
    assert solved.json["top5_accuracy"]["mean"] >= solved.json["accuracy"]["mean"]


def test_evaluate_knn_agrees_with_the_monitor_and_with_its_parts(labelkit: Any, run: Path, store: Path) -> None:
    done = labelkit("evaluate", "knn", "--index", store, "-k", "10", "--linear", "--json")
    assert done.code == 0, done.err
    metrics = json.loads((run / "summary.json").read_text())["metrics"]
    opened = open_store(store)
    train, test = (np.asarray(opened.rows(name)) for name in ("train", "test"))
    labels = np.asarray(opened.labels)
    votes = knn_probabilities(opened.embeddings[test], opened.embeddings[train], labels[train], num_classes=10)
    assert done.json["knn_accuracy"] == pytest.approx(float((votes.argmax(1) == labels[test]).mean()))
    assert done.json["knn_accuracy"] == pytest.approx(metrics["knn_accuracy"], abs=0.01)
    assert done.json["queries"] == {"split": "test", "rows": 120}
    assert np.mean(list(done.json["per_class"].values())) == pytest.approx(done.json["knn_accuracy"])
    several = labelkit("evaluate", "knn", "--index", store, "-k", "10,1,200", "--json").json
    assert several["knn_accuracy"] == done.json["knn_accuracy"]
    assert [entry["k"] for entry in several["by_k"]] == [10, 1, 120]
    nearest = votes_of_one(opened.embeddings[test], opened.embeddings[train], labels[train])
    assert several["by_k"][1]["knn_accuracy"] == pytest.approx(float((nearest == labels[test]).mean()))


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (("--labels-from", "{run}", "--num-clusters", "9"), 3, "has shape"),
        (("--labels-from", "{run}", "--max-per-class", "11"), 3, "other images"),
        (("--labels-from", "{run}/none"), 3, "no checkpoint"),
        (("--num-clusters", "121"), 2, "121 exceeds the number of images (120)"),
        (("--eval-split", "train"), 2, "is used for training"),
        (("--eval-split", "val"), 2, "no split"),
        (("--lr-drop-epochs", "2,1"), 2, "must be positive and increasing"),
        (("--lr-drop-epochs", ""), 2, "step requires --lr-drop-epochs"),
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


def test_labels_and_a_run_are_not_continued_on_other_images_of_the_same_names(
    labelkit: Any, photos: Path, tmp_path: Path
) -> None:
    data = shutil.copytree(photos, tmp_path / "photos")
    words = ("train", "sela", "--dataset", data, "--label-split", "none", *SHORT[4:], "--image-size", 32)
    words += ("--backbone", "smallcnn", "--stop-after-steps", 2)
    done = labelkit(*words, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    assert labelkit(*words, "--labels-from", tmp_path / "run", "--out", tmp_path / "same").code == 0
    shutil.copy(data / "bee" / "00.png", data / "ant" / "00.png")

    copied = labelkit(*words, "--labels-from", tmp_path / "run", "--out", tmp_path / "second")
    resumed = labelkit(*words, "--resume", "--out", tmp_path / "run")

    assert (copied.code, "other images" in copied.err) == (3, True)
    assert (resumed.code, "the images, labels or embeddings have changed" in resumed.err) == (3, True)

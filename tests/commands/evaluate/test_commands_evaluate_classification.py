"""``labelkit evaluate classification`` against counts made by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.cli.main import main
from labelkit.store.embeddings import open_store
from PIL import Image
from sklearn.datasets import load_digits

CLASSES = 6


def write_photos(root: Path, classes: range = range(CLASSES), *, rare: int = 5) -> Path:
    """Write digits in class folders, 20 each, and ``rare`` of the last class."""
    digits = load_digits()
    for label in classes:
        folder = root / f"digit-{label}"
        folder.mkdir(parents=True, exist_ok=True)
        for row in np.flatnonzero(digits.target == label)[: rare if label == CLASSES - 1 else 20]:
            Image.fromarray((digits.images[row] * 15).astype(np.uint8)).save(folder / f"{row}.png")
    return root


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    words = ["--dataset", str(photos), "--preset", "digits", "--device", "cpu", "--threads", "1", "--epochs", "3"]
    assert main(["train", "dl2pa", *words, "--batch-size", "12", "--out", str(out), "-q"]) == 0
    return out


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, photos: Path, run: Path) -> Path:
    out = tmp_path_factory.mktemp("stores") / "photos.h5"
    words = ["--dataset", str(photos), "--checkpoint", str(run), "--split", "all", "--device", "cpu"]
    assert main(["embed", *words, "--out", str(out), "-q"]) == 0
    return out


def evaluate(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["evaluate", "classification", *map(str, words), "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def refuse(capsys: pytest.CaptureFixture[str], code: int, *words: object) -> str:
    capsys.readouterr()
    assert main(["evaluate", "classification", *map(str, words)]) == code
    return " ".join(capsys.readouterr().err.split())


def test_scores_are_those_of_counting(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = evaluate(capsys, "--index", index)
    store = open_store(index)
    rows = store.rows("test")
    assert store.labels is not None
    labels, named = store.labels[rows], store.extras["logits"][rows].argmax(axis=1)
    assert answer["scores"][0]["accuracy"] == pytest.approx(np.mean(labels == named))
    top5 = np.argsort(-store.extras["logits"][rows], axis=1)[:, :5]
    assert answer["scores"][0]["top5_accuracy"] == pytest.approx(np.mean((top5 == labels[:, None]).any(axis=1)))
    # groups follow the training images
    assert {name: len(classes) for name, classes in answer["groups"].items()} == {"few": 6}
    assert [entry["train_images"] for entry in answer["per_class"]] == [16, 16, 16, 16, 16, 4]
    assert sum(entry["images"] for entry in answer["scores"][1:]) == answer["scores"][0]["images"]
    assert evaluate(capsys, "--index", index, "--bootstrap", 0)["scores"][0]["interval"] is None


def test_classes_without_a_training_image_are_named(
    tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "labels.csv").write_text(
        "path,label,split\n"
        + "".join(
            f"{path},{path.parent.name},{'test' if path.parent.name == 'digit-0' or number % 4 == 0 else 'train'}\n"
            for number, path in enumerate(sorted(photos.rglob("*.png")))
        )
    )
    words = ["--dataset", str(tmp_path / "labels.csv"), "--preset", "digits", "--set", "holdout=none"]
    words += "--device cpu --threads 1 --epochs 1 --batch-size 12 -q".split()
    assert main(["train", "dl2pa", *words, "--out", str(tmp_path / "run")]) == 0
    made = tmp_path / "made.h5"
    listed = ["--dataset", str(tmp_path / "labels.csv"), "--checkpoint", str(tmp_path / "run"), "--split", "all"]
    assert main(["embed", *listed, "--device", "cpu", "--out", str(made), "-q"]) == 0
    answer = evaluate(capsys, "--index", made)
    assert answer["classes_without_training_image"] == ["digit-0"]


def test_test_images_alone_are_not_taken_for_training_images(
    tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "other"
    digits = load_digits()
    for row in range(1000, 1200):
        if digits.target[row] < CLASSES:
            path = folder / f"digit-{digits.target[row]}" / f"late-{row}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((digits.images[row] * 15).astype(np.uint8)).save(path)
    words = ["--dataset", str(folder), "--checkpoint", str(run), "--label-split", "given", "--device", "cpu"]
    assert main(["embed", *words, "--out", str(tmp_path / "other.h5"), "-q"]) == 0

    answer = evaluate(capsys, "--index", tmp_path / "other.h5", "--split", "all")

    assert (answer["groups"], answer["classes_without_training_image"]) == ({}, [])
    assert {entry["train_images"] for entry in answer["per_class"]} == {None}


def test_what_cannot_be_scored_is_refused(
    tmp_path: Path, index: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no split 'val'" in refuse(capsys, 2, "--index", index, "--split", "dev")
    bare = tmp_path / "pixels.h5"
    assert main(["embed", "--dataset", str(photos), "--backbone", "pixels", "--out", str(bare), "-q"]) == 0
    assert "contains no classifier logits" in refuse(capsys, 3, "--index", bare)

"""Answers that are calibrated on labels that the network was trained with promise nothing, however the labels came."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from labelkit.store.embeddings import encode_image_set, open_store
from tests.row_heads import BATCHES
from tests.running import Labelkit

NAMES = ("ant", "bee", "cat", "dog")
EMBED = ("--backbone", "pixels", "--image-size", 8, "--label-split", "none")
GROUPED = ("--num-clusters", 4, "--json")


def table(path: Path, numbers: range, folder: str = "") -> Path:
    """Labels of the digits of these numbers, of all four classes."""
    lines = [f"{folder}{number + 12 * k:02d}.png,{name}\n" for k, name in enumerate(NAMES) for number in numbers]
    path.write_text("path,label\n" + "".join(lines))
    return path


@pytest.fixture(scope="module")
def flat(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Path:
    """The 48 digits in one folder, whose names tell no class; their store without labels; labels of half of them."""
    folder = tmp_path_factory.mktemp("flat")
    (folder / "photos").mkdir()
    for place, path in enumerate(sorted(photos.glob("*/*.png"))):
        shutil.copy(path, folder / "photos" / f"{place:02d}.png")
    table(folder / "labels.csv", range(6))
    return folder


@pytest.fixture(scope="module")
def store(labelkit: Labelkit, flat: Path) -> Path:
    answer = labelkit("embed", "--dataset", flat / "photos", *EMBED, "--out", flat / "s.h5")
    assert answer.code == 0, answer.err
    return flat / "s.h5"


@pytest.fixture(scope="module")
def run(labelkit: Labelkit, flat: Path, store: Path) -> Path:
    """A run of MixMatch on rows, with labels of a file."""
    words = ("--labels", flat / "labels.csv", *BATCHES, "--labeled-batch-size", 4, "--steps", 6, "--out", flat / "run")
    answer = labelkit("train", "mixmatch", "--index", store, *words, "-q")
    assert answer.code == 0, answer.err
    return flat / "run"


@pytest.fixture(scope="module")
def made(labelkit: Labelkit, flat: Path, store: Path, run: Path) -> Path:
    answer = labelkit("embed", "--index", store, "--checkpoint", run, "--out", flat / "made.h5")
    assert answer.code == 0, answer.err
    return flat / "made.h5"


@pytest.mark.slow
def test_labels_of_a_file_that_the_network_was_trained_with_promise_nothing(
    labelkit: Labelkit, flat: Path, made: Path
) -> None:
    words = ("discover", "answer", "--index", made, "--labels", flat / "labels.csv", *GROUPED, "--result", "same")
    answer = labelkit(*words)
    assert answer.code == 0, answer.err
    assert answer.json["expected_right"] is None
    assert answer.json["calibration"]["network_saw_labels"] == "yes"
    assert "the number of correct predictions cannot be estimated" in answer.err
    assert "expected right" not in labelkit(*words[:-3], "--result", "again").out


def test_the_same_labels_promise_something_of_a_network_that_did_not_see_them(
    labelkit: Labelkit, flat: Path, store: Path
) -> None:
    answer = labelkit("discover", "answer", "--index", store, "--labels", flat / "labels.csv", *GROUPED)
    assert answer.code == 0, answer.err
    assert 0 < answer.json["expected_right"] <= 1


def test_labels_to_calibrate_on_are_those_that_the_network_did_not_see(
    labelkit: Labelkit, flat: Path, made: Path
) -> None:
    labels, seen = table(flat / "more.csv", range(4, 9)), flat / "labels.csv"
    words = ("discover", "answer", "--index", made, "--grouping", "own", *GROUPED, "--calibration-labels")
    answer = labelkit(*words, labels, "--result", "checked")
    assert answer.code == 0, answer.err
    assert answer.json["calibration"]["labels"] == 12  # three of the five of each class
    assert answer.json["expected_right"] is not None
    assert labelkit(*words[:6], *words[8:], seen, "--result", "seen").code == 3


def test_a_store_knows_the_labels_of_a_run_by_the_files_too(labelkit: Labelkit, flat: Path, run: Path) -> None:
    moved = flat / "moved"
    shutil.copytree(flat / "photos", moved / "some" / "where")
    for path in (moved / "some" / "where").iterdir():
        path.rename(path.with_name(f"img-{path.name}"))
    answer = labelkit("embed", "--dataset", moved, "--checkpoint", run, "--label-split", "none", "--out", flat / "m.h5")
    assert answer.code == 0, answer.err
    assert np.flatnonzero(open_store(flat / "m.h5").trained_rows()).tolist() == [
        place for place in range(48) if place % 12 < 6
    ]


def test_weights_of_a_run_bring_its_labels_along(labelkit: Labelkit, flat: Path, small: tuple[str | Path, ...]) -> None:
    first, second = flat / "first", flat / "second"
    words = ("--dataset", flat / "photos", *small, "-q")
    answer = labelkit("train", "simgcd", *words, "--labels", flat / "labels.csv", "--out", first, "--num-classes", 4)
    assert answer.code == 0, answer.err
    unlabeled = ("--label-split", "none", "--holdout", "none", "--epochs", 1, "--batch-size", 16)
    network = ("--backbone", "vit_nano_p8_32", "--init-from", first)
    answer = labelkit("train", "siamese", *words[:2], *network, *unlabeled, "--out", second)
    assert answer.code == 0, answer.err
    for name in ("first", "second"):
        answer = labelkit("embed", *words[:2], "--checkpoint", flat / name, "--out", flat / f"{name}.h5")
        assert answer.code == 0, answer.err
        assert open_store(flat / f"{name}.h5").trained_rows().sum() == 24
    weights = next((first / "checkpoints").glob("*/model.safetensors"))
    answer = labelkit("embed", *words[:2], "--backbone", "vit_nano_p8_32", "--weights", weights, "--out", flat / "w.h5")
    assert answer.code == 0, answer.err
    assert open_store(flat / "w.h5").trained_rows().sum() == 24


def test_head_knows_the_classes_that_labels_of_a_file_named(labelkit: Labelkit, made: Path) -> None:
    store = open_store(made)
    assert store.class_names == NAMES
    assert np.flatnonzero(store.labeled).tolist() == [place for place in range(48) if place % 12 < 6]
    assert store.extras["logits"].shape == (48, 4)
    answer = labelkit("discover", "head", "--index", made)
    assert answer.code == 0, answer.err


def test_keys_of_images_are_those_of_names_and_of_known_files() -> None:
    known, unknown = np.full((1, 32), 7, dtype=np.uint8), np.zeros((1, 32), dtype=np.uint8)
    by_name = encode_image_set(["a.png"], unknown)
    assert by_name == encode_image_set(["a.png"], None)
    assert len(by_name) == 16
    assert encode_image_set(["a.png"], known) == "".join(sorted([by_name, "07" * 8]))
    assert encode_image_set([], None, by_name, by_name) == by_name

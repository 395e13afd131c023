"""``labelkit predict``: photos named by a folder of ``start`` or by a store, in three formats, and bad input."""

import csv
import io
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.commands.cluster.cluster import cluster_store
from labelkit.commands.cluster.options import SSKMeansConfig
from labelkit.commands.discover.answer import predict_images
from labelkit.commands.discover.options import DiscoverAnswerConfig
from labelkit.errors import StoreError
from labelkit.pipelines.predict.options import PredictConfig
from labelkit.pipelines.predict.predict import predict_photos
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.results import read_result, write_result
from tests.pipelines.squares import COLORS, add_photos, color, run, write_labels


@pytest.fixture(scope="module")
def labeled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of ``start`` for squares of three colors: with labels for red and green, and without labels."""
    folder = tmp_path_factory.mktemp("predict")
    photos = folder / "photos"
    photos.mkdir()
    add_photos(photos, range(30), seed=0)
    known = write_labels(folder / "known.csv", (0, 1, 3, 4, 6, 7))
    run(photos, labels=known, num_classes=3, out=folder / "labeled")
    run(photos, num_classes=3, out=folder / "grouped")
    return folder


@pytest.fixture
def new(tmp_path: Path) -> Path:
    folder = tmp_path / "new"
    folder.mkdir()
    add_photos(folder, range(3), seed=100)
    for path in sorted(folder.iterdir()):
        path.rename(folder / f"{color(path.name)}.png")
    return folder


def lines_of(text: str) -> dict[str, dict[str, str]]:
    return {Path(row["path"]).name: row for row in csv.DictReader(io.StringIO(text))}


def test_given_labels_of_new_photos_say_how_many_answers_are_right(
    labelkit: Any, labeled: Path, new: Path, tmp_path: Path
) -> None:
    truth = tmp_path / "truth.csv"
    # the second is wrong on purpose; the last has its label from this person
    truth.write_text("file,class\nred.png,red\ngreen.png,red\nblue.png,blue\ncopy.png,red\n")
    shutil.copy(labeled / "photos" / "000.png", new / "copy.png")

    told = labelkit("predict", new, "--from", labeled / "labeled", "--labels", truth, "--min-confidence", 0, "--json")

    assert told.json["judged"] == {
        "labels": 3,
        "right": 1,
        "answered": 3,
        "answered_right": 1,
        "of_new_classes": 1,
        "of_new_classes_in_new_groups": 1,
    }
    assert (
        "of 3 photos with a label, 1 have a correct prediction (33.3%); "
        "of the 3 confident predictions, 1 are correct; "
        "photos of classes without labels in the store: 1 (their predictions count as wrong), 1 of them in unnamed "
        "groups"
    ) in told.err


def test_labels_of_photos_that_are_not_asked_for_are_an_error(
    labelkit: Any, labeled: Path, new: Path, tmp_path: Path
) -> None:
    truth = tmp_path / "truth.csv"
    truth.write_text("path,label\nelsewhere.png,red\n")

    told = labelkit("predict", new, "--from", labeled / "labeled", "--labels", truth)

    assert told.code == 3
    assert "1 of 1 images are not in this run, first: elsewhere.png" in told.err

    truth.write_text("path,label\nelsewhere.png,red\nred.png,red\n")
    told = labelkit("predict", new, "--from", labeled / "labeled", "--labels", truth, "--json")

    assert told.json["judged"]["labels"] == 1
    assert re.search(f"{truth}: ignoring 1 of [0-9]+ labels, whose images are not in this run: ", told.err)


def test_new_photos_get_the_class_or_group_of_those_like_them(labelkit: Any, labeled: Path, new: Path) -> None:
    told = labelkit("predict", new, "--from", labeled / "labeled", "--format", "csv", "--min-confidence", 0)

    assert told.code == 0
    quiet = ("--format", "csv", "--min-confidence", 0, "-q")
    assert labelkit("predict", new, "--from", labeled / "labeled", *quiet).out == told.out
    rows = lines_of(told.out)
    assert list(rows["red.png"]) == ["path", "label", "kind", "confidence", "note"]
    assert {name: (row["label"], row["kind"]) for name, row in rows.items() if name != "blue.png"} == {
        "red.png": ("red", "known"),
        "green.png": ("green", "known"),
    }
    table = lines_of((labeled / "labeled" / "labels.csv").read_text())
    assert (rows["blue.png"]["label"], rows["blue.png"]["kind"]) == (table["002.png"]["label"], "new")
    assert all(0 < float(row["confidence"]) <= 1 for row in rows.values())


def test_a_store_answers_as_the_folder_around_it(
    labelkit: Any, labeled: Path, new: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labelkit.cli.progress._SECONDS_BETWEEN_LINES", 0)
    words = ("--format", "jsonl", "--min-confidence", 0)

    by_store = labelkit("predict", new, "--from", labeled / "labeled" / "photos.h5", *words)

    assert "embed: 3/3, done in" in by_store.err
    assert by_store.out == labelkit("predict", new, "--from", labeled / "labeled", *words).out
    first = json.loads(by_store.out.splitlines()[0])
    assert first["path"] == str(new / "blue.png")
    assert list(first) == ["path", "label", "kind", "confidence", "note"]


def test_a_file_that_is_stored_has_its_stored_answer(labelkit: Any, labeled: Path, tmp_path: Path) -> None:
    given, answered = tmp_path / "given.png", tmp_path / "answered.png"
    shutil.copy(labeled / "photos" / "000.png", given)
    shutil.copy(labeled / "photos" / "009.png", answered)

    told = labelkit("predict", answered, given, "--from", labeled / "labeled", "--json").json["images"]

    assert [line["path"] for line in told] == [str(answered), str(given)]
    assert told[1] | {"path": ""} == {
        "path": "", "label": "red", "kind": "given", "confidence": 1.0, "note": "same file as 000.png",
    }  # fmt: skip
    stored = lines_of((labeled / "labeled" / "labels.csv").read_text())["009.png"]
    assert [told[0]["label"], told[0]["kind"]] == [stored["label"], stored["kind"]]
    assert told[0]["confidence"] == pytest.approx(float(stored["confidence"]), abs=1e-4)


def test_below_the_confidence_that_is_asked_for_all_are_unsure_but_what_was_given(
    labelkit: Any, labeled: Path, new: Path
) -> None:
    shutil.copy(labeled / "photos" / "000.png", new / "x-given.png")
    shutil.copy(labeled / "photos" / "009.png", new / "y-stored.png")

    told = labelkit("predict", new, "--from", labeled / "labeled", "--min-confidence", 1, "--json").json

    assert [line["kind"] for line in told["images"]] == ["unsure", "unsure", "unsure", "given", "unsure"]
    assert told["counts"] == {"given": 1, "known": 0, "new": 0, "unsure": 4}
    told = labelkit("predict", new, "--from", labeled / "labeled", "--min-confidence", 0, "--json").json
    assert told["counts"] == {"given": 1, "known": 3, "new": 1, "unsure": 0}


def test_without_labels_photos_get_the_group_of_those_like_them_and_no_confidence(
    labelkit: Any, labeled: Path, new: Path
) -> None:
    rows = lines_of(labelkit("predict", new, "--from", labeled / "grouped", "--format", "csv").out)

    table = lines_of((labeled / "grouped" / "labels.csv").read_text())
    assert [rows[f"{color}.png"]["label"] for color in COLORS] == [table[f"00{i}.png"]["label"] for i in range(3)]
    assert {(row["kind"], row["confidence"]) for row in rows.values()} == {("new", "")}


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("{0}\n\n{1}\r\n", "utf-8"),
        ("{0}\0{1}\0", "utf-8"),
        ("{0}\0{1}", "utf-8-sig"),
        ("{0}\r\n{1}", "utf-8-sig"),
        ("{0}\r\n{1}\r\n", "utf-16"),
    ],
)
def test_paths_come_from_standard_input(
    labelkit: Any, labeled: Path, new: Path, monkeypatch: pytest.MonkeyPatch, text: str, encoding: str
) -> None:
    paths = text.format(new / "red.png", new / "blue.png")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(paths.encode(encoding))))

    told = labelkit("predict", "-", "--from", labeled / "labeled", "--json").json

    assert [line["path"] for line in told["images"]] == [str(new / "red.png"), str(new / "blue.png")]


def test_photos_that_cannot_be_read_are_named_and_the_others_answered(labelkit: Any, labeled: Path, new: Path) -> None:
    (new / "bad.png").write_text("no image")
    words = ("predict", new, new / "gone.png", "--from", labeled / "labeled", "--format", "csv")

    told = labelkit(*words)

    assert told.code == 3
    assert set(lines_of(told.out)) == {"red.png", "green.png", "blue.png"}
    assert "bad.png: not an image" in told.err
    assert "gone.png: the file no longer exists" in told.err
    assert "2 of 5 cannot be read" in told.err
    assert labelkit(*words, "--max-bad", 0.5).code == 0


def test_answers_are_written_to_a_file_as_its_name_says(
    labelkit: Any, labeled: Path, new: Path, tmp_path: Path
) -> None:
    for name in ("answers.csv", "answers.jsonl"):
        told = labelkit("predict", new, "--from", labeled / "labeled", "--out", tmp_path / name, "-q")
        assert (told.code, told.out) == (0, f"{tmp_path / name}\n")

    rows = lines_of((tmp_path / "answers.csv").read_text())
    lines = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [line["label"] for line in lines] == [row["label"] for row in rows.values()]
    again = labelkit("predict", new, "--from", labeled / "labeled", "--out", tmp_path / "answers.csv")
    assert again.code == 2
    assert "exists" in again.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["NEW", "--from", "NEW"], 2, "neither a store nor an output folder of `labelkit start`"),
        (["NEW", "--from", "RUN"], 2, "--checkpoint RUN --out new.h5`, `labelkit discover head --index new.h5`"),
        (["EMPTY", "--from", "LABELED"], 3, "no images"),
        (["gone.jpg", "--from", "LABELED"], 3, "gone.jpg: does not exist. Check the name."),
        (["NEW", "--from", "LABELED", "--result", "lost"], 3, "there is no result 'lost'"),
        (["NEW", "--from", "LABELED", "--format", "table", "--out", "x.csv"], 2, "table cannot be combined with --out"),
        (["--from", "LABELED"], 2, "NEW"),
    ],
)
def test_what_cannot_be_answered_is_said(
    labelkit: Any, labeled: Path, new: Path, tmp_path: Path, words: list[str], code: int, said: str
) -> None:
    for name in ("empty", "run"):
        (tmp_path / name).mkdir()
    (tmp_path / "run" / "split.json").touch()
    places = {"NEW": new, "EMPTY": tmp_path / "empty", "RUN": tmp_path / "run", "LABELED": labeled / "labeled"}

    told = labelkit("predict", *(places.get(word, word) for word in words))

    assert told.code == code
    assert said.replace("RUN", str(places["RUN"])) in " ".join(told.err.split())


@pytest.fixture
def make_blobs(make_store: Callable[..., EmbeddingStore]) -> Callable[..., tuple[EmbeddingStore, EmbeddingStore]]:
    """Return a function: a store of four blobs, two with labels, and a store of other rows of the same model."""

    def made(seed: int, count: int, name: str, labels_each: int) -> EmbeddingStore:
        rng = np.random.default_rng(seed)
        rows = np.repeat(np.eye(4), count, axis=0) + rng.normal(0, 0.2, (4 * count, 4))
        labels = np.repeat(np.arange(4), count)
        labeled = (labels < 2) & (np.arange(4 * count) % count < labels_each)
        return make_store(
            rows, name=name, labels=labels.tolist(), labeled=labeled.astype(int).tolist(), old_classes=[1, 1, 0, 0],
            first_file=1000 * seed,
        )  # fmt: skip

    def make(labels_each: int = 6) -> tuple[EmbeddingStore, EmbeddingStore]:
        store = made(0, 20, "made.h5", labels_each)
        cluster_store(SSKMeansConfig(index=store.path, num_clusters=4))
        return store, made(1, 5, "other.h5", labels_each)

    return make


def test_rows_of_another_store_are_answered_by_the_newest_answers(
    make_blobs: Callable[..., tuple[EmbeddingStore, EmbeddingStore]],
) -> None:
    store, other = make_blobs()
    with pytest.raises(StoreError, match="labelkit discover answer --index"):
        predict_photos(PredictConfig(new=(other.path,), from_=store.path))
    for limit in (0.9, 0.0):
        predict_images(DiscoverAnswerConfig(index=store.path, min_confidence=limit))

    told = predict_photos(PredictConfig(new=(other.path,), from_=store.path)).to_json()

    assert told["result"] == "answer-2"
    labels = [(line["label"], line["kind"]) for line in told["images"]]  # type: ignore[index, attr-defined]
    assert labels[:10] == [("class-0", "known")] * 5 + [("class-1", "known")] * 5
    assert len(set(labels[10:15])) == len(set(labels[15:])) == 1
    assert {kind for _, kind in labels[10:]} == {"new"}

    result = read_result(store, "answer-2")
    arrays = {name: values for name, values in result.arrays.items() if not name.startswith("rule_")}
    write_result(
        store, "answer-2", kind="answers", arrays=arrays, params=result.params, stage=result.stage, overwrite=True
    )
    with pytest.raises(StoreError, match=r"discover answer \.\.\. --overwrite"):
        predict_photos(PredictConfig(new=(other.path,), from_=store.path))


def test_nothing_is_sure_where_no_second_label_could_check_it(
    make_blobs: Callable[..., tuple[EmbeddingStore, EmbeddingStore]],
) -> None:
    store, other = make_blobs(1)
    predict_images(DiscoverAnswerConfig(index=store.path, min_confidence=0.1))

    told = predict_photos(PredictConfig(new=(other.path,), from_=store.path)).to_json()

    assert told["counts"] == {"given": 0, "known": 0, "new": 0, "unsure": other.n}

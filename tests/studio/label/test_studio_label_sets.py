"""``labelkit label --export``: what other programs read, and that labelkit reads its tables and folders back."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.commands.embed.embed import embed_images
from labelkit.data.registry import load_dataset
from labelkit.errors import ConfigError, DatasetError, OutputExistsError
from labelkit.options.embed import EmbedConfig
from labelkit.progress import use_progress
from labelkit.store.embeddings import open_store
from labelkit.store.results import read_result, results_folder, write_result
from labelkit.studio.label.label import label_images
from labelkit.studio.label.options import LabelConfig
from labelkit.studio.label.rounds import StoreLabels, drop_unused_classes
from PIL import Image
from tests.pipelines.squares import add_photos, labels_in, run, table, write_labels
from tests.running import Heard, read_table
from tests.tiers import quick_every

#: the same file name in two folders, the same but for the suffix, and folders that other programs take for splits
NAMES = ("test/deep/a.png", "train/a.png", "train/b.png", "train/b.jpg", "test_c.png")
LABELS = {"test/deep/a.png": "cat", "train/a.png": "cat", "train/b.jpg": "dog, big's", "test_c.png": "öl"}


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """A store of five images of different sizes, without labels."""
    for place, name in enumerate(NAMES):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8 + place, 6), (40 * place, 9, 9)).save(path)
    out = tmp_path / "photos.h5"
    embed_images(
        EmbedConfig(
            dataset=str(tmp_path / "photos"), backbone="pixels", image_size=8, split="all", label_split="none", out=out
        )
    )
    return out


@pytest.fixture
def export(index: Path, tmp_path: Path) -> Callable[..., Any]:
    """Return a function that writes a set with the labels above."""
    table = tmp_path / "labels.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("path", "label"), *LABELS.items()])

    def write(format_name: str, out: Path, **options: Any) -> Any:
        config = LabelConfig(
            **{"index": index, "from_": table, "own_labels": False, "overwrite": True, **options},
            export=format_name,  # type: ignore[arg-type]  # one of them
            out=out,
        )
        return label_images(config).values

    return write


def labels_of(index: Path, table: Path) -> dict[str, str]:
    """The labels that ``label --from`` takes from a table."""
    label_images(LabelConfig(index=index, from_=table, own_labels=False, result="back"))
    result = read_result(open_store(index), "back")
    names = result.arrays["class_names"]
    ids = open_store(index).sample_ids
    return {ids[row]: names[label] for row, label in enumerate(result.arrays["labels"].tolist()) if label >= 0}


def test_folders_of_classes_hold_the_same_bytes_and_are_read_back(export: Any, index: Path, tmp_path: Path) -> None:
    told = export("imagefolder", tmp_path / "set", conflicts="error")
    back = load_dataset(str(tmp_path / "set"), data_root=tmp_path)
    contents = {(tmp_path / "photos" / name).read_bytes(): label for name, label in LABELS.items()}
    found = {
        (tmp_path / "set" / name).read_bytes(): back.class_names[label]
        for name, label in zip(back.sample_ids, back.labels, strict=True)
    }

    assert told["exported"] == 4
    assert found == contents


def test_labels_of_a_test_split_are_left_out_on_request(export: Any, tmp_path: Path) -> None:
    heard = Heard()
    with use_progress(heard):
        export("imagefolder", tmp_path / "both")
        export("imagefolder", tmp_path / "one", split="train")

    assert [told.split(": ", 1)[1].split(";")[0] for told in heard.warnings] == [
        "labels of train and test are exported together"
    ]
    assert {path.name for path in (tmp_path / "one").rglob("*.*")} == {"a.png", "b.jpg"}


def test_metadata_of_hugging_face_names_every_image_and_is_taken_in_again(
    export: Any, index: Path, tmp_path: Path
) -> None:
    export("huggingface", tmp_path / "set")
    with (tmp_path / "set" / "metadata.csv").open(newline="", encoding="utf-8") as file:
        rows = {row["file_name"]: row["label"] for row in csv.DictReader(file)}

    assert rows == {name: LABELS.get(name, "") for name in NAMES}
    assert all((tmp_path / "set" / name).read_bytes() == (tmp_path / "photos" / name).read_bytes() for name in rows)
    assert "path: '**'" in (tmp_path / "set" / "README.md").read_text()
    assert labels_of(index, tmp_path / "set" / "metadata.csv") == LABELS


def test_fiftyone_gets_a_number_or_nothing_by_the_name_without_its_suffix(export: Any, tmp_path: Path) -> None:
    export("fiftyone", tmp_path / "set")
    told = json.loads((tmp_path / "set" / "labels.json").read_text(encoding="utf-8"))
    files = {path.stem: path.read_bytes() for path in (tmp_path / "set" / "data").iterdir()}
    truth = {(tmp_path / "photos" / name).read_bytes(): LABELS.get(name) for name in NAMES}
    found = {
        files[stem]: None if number is None else told["classes"][number] for stem, number in told["labels"].items()
    }

    assert set(told) == {"classes", "labels"}
    assert len(files) == len(told["labels"]) == 5
    assert found == truth


def test_coco_says_labels_of_whole_images(export: Any, tmp_path: Path) -> None:
    export("coco", tmp_path / "set.json")
    told = json.loads((tmp_path / "set.json").read_text(encoding="utf-8"))
    images = {one["id"]: one for one in told["images"]}
    names = {one["id"]: one["name"] for one in told["categories"]}
    found = {images[one["image_id"]]["file_name"]: names[one["category_id"]] for one in told["annotations"]}

    assert {one["file_name"]: (one["width"], one["height"]) for one in told["images"]} == {
        name: (8 + place, 6) for place, name in enumerate(NAMES)
    }
    assert found == LABELS
    assert all(
        one["bbox"] == [0, 0, images[one["image_id"]]["width"], 6] and one["area"] == one["bbox"][2] * 6
        for one in told["annotations"]
    )


def test_folders_whose_names_are_not_labels_are_no_categories(tmp_path: Path) -> None:
    for year in ("2023", "2024"):
        (tmp_path / "photos" / year).mkdir(parents=True)
        add_photos(tmp_path / "photos" / year, range(3), seed=int(year))
    (tmp_path / "known.csv").write_text("path,label\n2023/000.png,red\n2024/001.png,green\n")
    index = tmp_path / "photos.h5"
    folder = EmbedConfig(dataset=str(tmp_path / "photos"), backbone="pixels", split="all", out=index)
    embed_images(folder.model_copy(update={"label_split": "none"}))

    def categories(**options: Any) -> list[str]:
        out = tmp_path / "set.json"
        label_images(LabelConfig(index=index, export="coco", out=out, overwrite=True, **options))
        return [one["name"] for one in json.loads(out.read_text())["categories"]]

    assert open_store(index).class_names == ("2023", "2024")
    assert categories(from_=tmp_path / "known.csv") == ["green", "red"]
    # labels of the store: its classes keep their numbers, even without an image
    embed_images(folder.model_copy(update={"label_split": "given", "overwrite": True}))
    assert categories() == ["2023", "2024"]


def test_classes_without_a_label_stay_where_labels_of_the_store_are_used() -> None:
    given = StoreLabels(np.array([1, -1]), ("cat", "dog"), np.array([0, -1]), 0, {})

    assert drop_unused_classes(given) is given


def test_a_json_file_given_as_a_table_of_labels_is_refused_in_a_few_words(
    export: Any, index: Path, tmp_path: Path
) -> None:
    (tmp_path / "set.json").write_text(json.dumps({"images": [f"image {number}" for number in range(1000)]}))
    with pytest.raises(DatasetError, match="is not JSON with image labels in a known format") as caught:
        label_images(LabelConfig(index=index, from_=tmp_path / "set.json"))
    assert len(str(caught.value)) < 700


def test_an_image_that_changed_is_refused_and_nothing_is_left(export: Any, tmp_path: Path) -> None:
    Image.new("RGB", (9, 9), "white").save(tmp_path / "photos" / "train" / "a.png")
    with pytest.raises(DatasetError, match=r"1 of 4 images cannot be exported: train/a\.png: changed since"):
        export("imagefolder", tmp_path / "set")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith((".tmp", "set"))] == []


@pytest.mark.parametrize("name", quick_every(2, ["../up", "a/b", ".hidden", "x" * 256, "what?"]))
def test_a_class_that_cannot_be_a_folder_is_refused(export: Any, index: Path, tmp_path: Path, name: str) -> None:
    table = tmp_path / "bad.csv"
    table.write_text(f"path,label\ntest_c.png,{name}\n")
    with pytest.raises(ConfigError, match=r"1 of . class names cannot be folder names"):
        export("imagefolder", tmp_path / "set", from_=table)
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("name", quick_every(2, ["NA", "None", "null", "nan"]))
def test_a_word_that_hugging_face_would_read_as_no_label_is_none_here_too(
    export: Any, tmp_path: Path, name: str
) -> None:
    table = tmp_path / "bad.csv"
    table.write_text(f"path,label\ntest_c.png,{name}\n")
    with pytest.raises(DatasetError, match="no rows are labeled"):
        export("huggingface", tmp_path / "set", from_=table)


def test_a_folder_that_holds_something_is_never_replaced(export: Any, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "mine.txt").write_text("mine")
    with pytest.raises(OutputExistsError, match="already exists"):
        export("huggingface", tmp_path / "set")
    assert [path.name for path in (tmp_path / "set").iterdir()] == ["mine.txt"]


def test_predictions_are_exported_where_no_label_is(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    add_photos(tmp_path / "photos", range(30), seed=0)
    labeled = (0, 1, 3, 4, 6, 7, 9, 10, 12, 13)
    told = run(tmp_path / "photos", labels=write_labels(tmp_path / "known.csv", labeled), min_confidence=0.9)
    index, heard = Path(str(told["store"])), Heard()

    def export(**options: Any) -> dict[str, str]:
        out = tmp_path / "set.json"
        with use_progress(heard):
            label_images(LabelConfig(index=index, export="coco", out=out, overwrite=True, **options))
        found = json.loads(out.read_text())
        texts = {one["id"]: one["name"] for one in found["categories"]}
        files = {one["id"]: one["file_name"] for one in found["images"]}
        return {files[one["image_id"]]: texts[one["category_id"]] for one in found["annotations"]}

    newer = index.with_name("photos-2.h5")
    assert LabelConfig(index=index.parent, csv=tmp_path / "some.csv").index == index
    record = index.with_name("start.json")
    kept = record.read_bytes()
    shutil.copy(index, newer)
    shutil.copytree(results_folder(index), results_folder(newer))
    (results_folder(newer) / "answer.h5").rename(results_folder(newer) / "answer-2.h5")
    record.write_text(json.dumps({"version": 1, "steps": {}, "rounds": [{"store": newer.name, "answer": "answer-2"}]}))
    later = LabelConfig(index=index.parent, predictions="newest", csv=tmp_path / "newest.csv")
    assert later.index == newer
    label_images(later)
    assert "".join(labels_in(later.csv).values())
    with use_progress(heard):
        label_images(LabelConfig(index=index, predictions="answer", csv=tmp_path / "older.csv"))
    assert (
        heard.warnings.pop() == f"{index}: photos-2.h5 is newer; to use the newest store, pass --index {index.parent}"
    )
    shutil.copy(results_folder(newer) / "answer-2.h5", results_folder(index))
    with use_progress(heard):
        label_images(LabelConfig(index=index, predictions="answer", csv=tmp_path / "oldest.csv"))
    assert "answer-2 is newer than answer" in heard.warnings[-1]
    heard.warnings.clear()
    newer.unlink()
    (results_folder(index) / "answer-2.h5").unlink()
    record.write_bytes(kept)

    assert export() == {}
    assert heard.warnings == ["no image is labeled; to export predictions, pass --predictions RESULT"]
    found = export(predictions="answer")

    rows = table(tmp_path / "photos-labeled")
    assert found == {path: row["label"] for path, row in rows.items() if row["kind"] != "unsure"}
    assert found.items() >= labels_in(tmp_path / "known.csv").items()
    unsure = 30 - len(found)
    told = f"{len(found) - len(labeled)} predictions are exported as labels; {unsure} unsure images remain unlabeled"
    remedy = ". To export them too, run `labelkit start` or `labelkit discover answer` again with --min-confidence 0"
    assert unsure
    assert told + remedy in heard.messages
    assert len(found) > len(labeled)
    # predictions have their confidence, and labels have none
    sure = {
        path: float(row["confidence"]) if row["kind"] != "given" else None
        for path, row in rows.items()
        if path in found
    }
    label_images(LabelConfig(index=index, predictions="answer", csv=tmp_path / "confident.csv"))
    with (tmp_path / "confident.csv").open(newline="") as lines:
        told = {Path(row["path"]).name: row["confidence"] for row in csv.DictReader(lines)}
    assert {
        Path(path).name: "" if value is None else f"{value:.4f}" for path, value in sure.items()
    }.items() <= told.items()
    assert sum(map(bool, told.values())) == sum(value is not None for value in sure.values())
    coco = json.loads((tmp_path / "set.json").read_text())
    files = {one["id"]: one["file_name"] for one in coco["images"]}
    assert {files[one["image_id"]]: one.get("score") for one in coco["annotations"]} == pytest.approx(sure, abs=1e-3)
    for name in ("fiftyone", "huggingface"):
        label_images(LabelConfig(index=index, predictions="answer", export=name, out=tmp_path / name))
    targets = json.loads((tmp_path / "fiftyone" / "labels.json").read_text())["labels"]
    assert [targets[Path(path).stem]["confidence"] for path in sure if sure[path] is not None] == [
        one["score"] for one in coco["annotations"] if "score" in one
    ]
    lines = read_table(tmp_path / "huggingface" / "metadata.csv")
    assert {row["file_name"] for row in lines if row["confidence"]} == {path for path in sure if sure[path] is not None}
    # with the labels of a session, these decide what is given, and what was rejected stays without a label
    store = open_store(index)
    rejected = list(found).index(next(path for path in found if rows[path]["kind"] != "given"))
    mine = np.zeros(store.n, dtype=bool)
    mine[list(store.sample_ids).index(list(found)[rejected])] = True
    arrays = {"labels": np.full(store.n, -1), "labeled": mine & False, "class_names": ["red"], "rejected": mine}
    arrays["label_rounds"] = np.full(store.n, -1)
    write_result(store, "session", kind="labels", arrays=arrays, params={"round": 1}, stage="label")
    some = export(predictions="answer", labels=Path("session"))
    assert some == {
        path: label for path, label in found.items() if rows[path]["kind"] != "given" and path != list(found)[rejected]
    }
    with pytest.raises(ConfigError, match="Pass one of these: answer"):
        export(predictions="groups")

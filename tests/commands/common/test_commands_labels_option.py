"""``--labels FILE|RESULT``, wherever it is taken."""

import re
import shutil
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.commands.common.labels import choose_usable_labels, override_dataset_labels, override_store_labels
from labelkit.data.registry import load_dataset
from labelkit.errors import ConfigError, DatasetError, StoreError
from labelkit.methods.discovery.options import SimGCDConfig
from labelkit.progress import use_progress
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.results import write_result
from tests.running import Heard

Labelkit = Callable[..., Any]


def write(path: Path, *lines: str, header: str = "path,label") -> Path:
    path.write_text("".join(f"{line}\n" for line in (header, *lines)))
    return path


def used(store: EmbeddingStore, option: Path, **options: Any) -> dict[str, str]:
    given = choose_usable_labels(option, store, np.arange(store.n), **options)
    return {
        store.sample_ids[row]: given.class_names[given.labels[row]] for row in np.flatnonzero(given.labeled).tolist()
    }


@pytest.fixture
def plain(tmp_path: Path, photos: Path, labelkit: Labelkit) -> EmbeddingStore:
    """A store of the photos whose labels must not be used, beside a copy of their folder."""
    shutil.copytree(photos, tmp_path / "photos")
    embed(labelkit, tmp_path / "photos", tmp_path / "photos.h5", "--label-split", "none")
    return open_store(tmp_path / "photos.h5")


def embed(labelkit: Labelkit, dataset: Path, out: Path, *options: object) -> Any:
    words = ("embed", "--dataset", dataset, "--backbone", "pixels", "--image-size", "8", "--out", out)
    answer = labelkit(*words, *options)
    assert answer.code == 0, answer.err
    return answer


def test_paths_may_begin_at_the_store_the_table_or_be_endings(plain: EmbeddingStore, tmp_path: Path) -> None:
    (tmp_path / "photos" / "ant" / "00.png").rename(tmp_path / "photos" / "ant" / "first.png")
    lines = ("bee/01.png,b", "photos/cat/02.png,c", f"{tmp_path}/photos/dog/03.png,d", "./photos/bee/04.png,b")
    assert used(plain, write(tmp_path / "labels.csv", *lines)) == {
        "bee/01.png": "b",
        "cat/02.png": "c",
        "dog/03.png": "d",
        "bee/04.png": "b",
    }


def test_evaluation_ignores_labels_of_a_few_unknown_images(plain: EmbeddingStore, tmp_path: Path) -> None:
    lines = ("bee/01.png,b", "bee/02.png,b", "gone/1.png,b", "gone/2.png,c")
    table, heard = write(tmp_path / "truth.csv", *lines), Heard()
    with use_progress(heard):
        assert used(plain, table, min_found=0.5) == {"bee/01.png": "b", "bee/02.png": "b"}
    ignored = f"{table}: ignoring 2 of 4 labels, whose images are not in {plain.path}: gone/1.png, gone/2.png"
    assert heard.warnings == [ignored]
    with pytest.raises(DatasetError, match="2 of 4 images are not in"):
        used(plain, table)
    with pytest.raises(DatasetError, match="3 of 5 images are not in"):
        used(plain, write(table, *lines, "gone/3.png,c"), min_found=0.5)


def test_the_newest_labels_have_the_highest_number(make_store: Any) -> None:
    store = make_store(np.eye(2))
    for name in ("newest", "nothing", "missing.csv"):
        with pytest.raises(DatasetError, match="neither a file nor a result"):
            used(store, Path(name))
    for result, newest in (("labels", "labels"), ("labels-10", "labels-10"), ("labels-9", "labels-10")):
        arrays = {"labels": np.array([0, -1]), "labeled": np.array([True, False]), "class_names": [result]}
        write_result(store, result, kind="labels", arrays=arrays, params={}, stage="label")
        assert used(store, Path("newest")) == {"0000.png": newest}
    given = write(store.path.with_name("given.csv"), "0000.png,ant")
    with pytest.raises(
        DatasetError, match=re.escape(f"labels of `labelkit start` are in {given}: pass it as --labels")
    ):
        used(store, Path("labels-11"))


def test_a_listing_whose_folders_are_no_classes_takes_only_those_of_the_file(photos: Path, tmp_path: Path) -> None:
    dataset = load_dataset(str(photos), data_root=photos)
    hidden = replace(dataset, given=np.zeros(len(dataset), dtype=bool))  # as a store of `labelkit start`
    heard = Heard()
    for label, names in (("x", ("x",)), ("ant", dataset.class_names)):
        table = write(tmp_path / "labels.csv", f"bee/01.png,{label}")
        with use_progress(heard):
            assert override_dataset_labels(hidden, table, own_labels="keep").class_names == names
    (told,) = (message for message in heard.messages if "ignored, even for evaluation" in message)
    assert str(table) in told
    # another spelling of the same class is that class
    decomposed = replace(hidden, class_names=(unicodedata.normalize("NFD", "Bär"), *dataset.class_names[1:]))
    table = write(tmp_path / "labels.csv", "bee/01.png,Bär")
    assert override_dataset_labels(decomposed, table, own_labels="keep").class_names == decomposed.class_names


def test_a_start_folder_is_the_index_of_training(tmp_path: Path) -> None:
    (tmp_path / "photos.h5.results").mkdir()
    for name in ("photos.h5", "photos.h5.results/answer.h5"):
        (tmp_path / name).touch()
    (tmp_path / "start.json").write_text('{"rounds": [{"store": "photos.h5", "answer": "answer"}]}')
    assert SimGCDConfig(index=tmp_path).dataset == str(tmp_path / "photos.h5")


def test_one_image_by_two_paths_and_with_two_labels_is_an_error(plain: EmbeddingStore, tmp_path: Path) -> None:
    with pytest.raises(
        DatasetError, match=r"'photos/bee/01\.png' is labeled 'y', but 'bee/01\.png', the same image, is labeled 'x'"
    ):
        used(plain, write(tmp_path / "labels.csv", "bee/01.png,x", "photos/bee/01.png,y"))


def test_the_file_wins_over_the_store_and_differences_are_counted(
    labelkit: Labelkit, make_store: Any, tmp_path: Path
) -> None:
    store = make_store(np.eye(4), labels=[0, 1, 0, 1], labeled=[1, 1, 0, 0])
    path = write(tmp_path / "a.csv", "0000.png,class-1", "0002.png,owl")
    whole = {"0000.png": "class-1", "0001.png": "class-1", "0002.png": "owl"}

    assert used(store, path) == whole
    assert used(store, path, own_labels=False) == {"0000.png": "class-1", "0002.png": "owl"}
    answer = labelkit("suggest", "--index", store.path, "--labels", path, "-n", "1", "--out", tmp_path / "next.csv")
    assert f"{path}: 1 images have a different label in {store.path}; the file takes precedence" in answer.err


def test_shown_labels_are_all_of_the_store_and_those_of_the_file(make_store: Any, tmp_path: Path) -> None:
    store = make_store(np.eye(4), labels=[0, 1, 0, -1], labeled=[1, 0, 0, 0])
    seen = override_store_labels(store, write(tmp_path / "a.csv", "0002.png,owl", "0003.png,class-1"))

    assert seen.class_names == ("class-0", "class-1", "owl")
    assert seen.labels is not None
    assert seen.labels.tolist() == [0, 1, 2, 1]
    assert seen.labeled is not None
    assert seen.labeled.tolist() == [True, False, True, True]
    assert store.labels.tolist() == [0, 1, 0, -1]


def test_what_is_no_file_of_labels_says_what_to_give(labelkit: Labelkit, plain: EmbeddingStore, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"is not a CSV\. Pass a CSV, such as one written by"):
        used(plain, plain.path)
    assert labelkit("cluster", "k-means", "--index", plain.path, "--num-clusters", "2").code == 0
    with pytest.raises(StoreError, match="not labels"):
        used(plain, Path("k-means"))
    with pytest.raises(ConfigError, match="requires --labels FILE"):
        choose_usable_labels(None, plain, np.arange(plain.n), label_column="kind")


def test_embed_takes_labels_and_folders_are_no_classes_then_unless_asked(
    labelkit: Labelkit, photos: Path, tmp_path: Path
) -> None:
    path = write(tmp_path / "known.csv", "ant/01.png;7;x", "bee/02.png;8;y", header="filename;number;kind")
    answer = embed(labelkit, photos, tmp_path / "a.h5", "--labels", path, "--label-column", "kind")
    store = open_store(tmp_path / "a.h5")

    assert store.class_names == ("x", "y")
    assert store.labels is not None
    assert store.labeled is not None
    rows = {store.sample_ids[row]: store.class_names[store.labels[row]] for row in np.flatnonzero(store.labels >= 0)}
    assert rows == {"ant/01.png": "x", "bee/02.png": "y"}
    assert store.labeled.tolist() == (store.labels >= 0).tolist()
    assert "not from folder names" in answer.err

    path = write(tmp_path / "known.csv", "ant/01.png,x")
    answer = embed(labelkit, photos, tmp_path / "b.h5", "--labels", path, "--label-split", "given")
    store = open_store(tmp_path / "b.h5")
    assert store.class_names == ("ant", "bee", "cat", "dog", "x")
    assert store.labeled is not None
    assert store.labeled.all()
    assert store.labels is not None
    assert store.labels[:3].tolist() == [0, 4, 0]
    assert f"{path}: 1 images have a different label in photos; the file takes precedence" in answer.err


def test_a_label_is_of_the_class_of_the_store_whatever_its_spelling(
    labelkit: Labelkit, photos: Path, tmp_path: Path
) -> None:
    names = ("1.0", "cafe\u0301")  # folders of a version, and of a system that takes letters apart
    for name, folder in zip(names, ("ant", "bee"), strict=True):
        shutil.copytree(photos / folder, tmp_path / "set" / name)
    embed(labelkit, tmp_path / "set", tmp_path / "a.h5", "--label-split", "given")
    path = write(tmp_path / "known.csv", "1.0/01.png,caf\u00e9", "1.0/02.png,1", "1.0/03.png,1.0")
    store = open_store(tmp_path / "a.h5")
    given = choose_usable_labels(path, store, np.arange(store.n))
    assert given.class_names == names
    assert given.labels[[store.sample_ids.index(f"1.0/0{i}.png") for i in (1, 2, 3)]].tolist() == [1, 0, 0]


def test_embed_keeps_the_truth_of_named_sets_and_uses_only_the_file(labelkit: Labelkit, tmp_path: Path) -> None:
    full = open_store(embed(labelkit, Path("digits"), tmp_path / "a.h5", "--max-images", "40", "--json").json["index"])
    path = write(tmp_path / "known.csv", f"{full.sample_ids[3]},{full.class_names[full.labels[3]]}")
    embed(labelkit, Path("digits"), tmp_path / "b.h5", "--max-images", "40", "--labels", path)
    store = open_store(tmp_path / "b.h5")

    assert store.labels.tolist() == full.labels.tolist()
    assert np.flatnonzero(store.labeled).tolist() == [3]


def test_evaluate_judges_by_given_labels(labelkit: Labelkit, make_store: Any, tmp_path: Path) -> None:
    rows = np.repeat(np.eye(2), 6, axis=0) + 0.01 * np.arange(24).reshape(12, 2)
    store = make_store(rows)
    path = write(tmp_path / "known.csv", *(f"{row:04d}.png,{'ab'[row // 6]}" for row in range(12)))

    assert labelkit("evaluate", "knn", "--index", store.path).code == 3
    knn = labelkit("evaluate", "knn", "--index", store.path, "-k", "3", "--labels", path, "--json")
    assert knn.code == 0, knn.err
    assert knn.json["knn_accuracy"] == 1
    assert labelkit("evaluate", "retrieval", "--index", store.path, "-k", "1").code == 3
    found = labelkit("evaluate", "retrieval", "--index", store.path, "-k", "1", "--labels", path, "--json")
    assert found.code == 0, found.err
    assert found.json["recall"]["1"] == 1

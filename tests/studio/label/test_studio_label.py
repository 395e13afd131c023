"""``labelkit label`` and ``labelkit suggest``: the round trip of labels, and what uses them."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.commands.cluster.cluster import cluster_store
from labelkit.commands.cluster.options import KMeansConfig, SSKMeansConfig
from labelkit.commands.common.labels import find_misspelled_class
from labelkit.commands.evaluate.groups import evaluate_clustering
from labelkit.commands.evaluate.options import EvaluateClusteringConfig
from labelkit.commands.suggest.options import SuggestConfig
from labelkit.commands.suggest.suggest import suggest_images
from labelkit.data.registry import load_dataset
from labelkit.errors import DatasetError
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.results import read_result, write_result
from labelkit.studio.label.label import label_images
from labelkit.studio.label.options import LabelConfig
from tests.running import read_table

Labelkit = Callable[..., Any]

PER_BLOB = 12


@pytest.fixture
def store(make_store: Any, rng: np.random.Generator) -> EmbeddingStore:
    """Three blobs of twelve rows; truth known, none of it given."""
    rows = np.repeat(np.eye(3), PER_BLOB, axis=0) + 0.05 * rng.normal(size=(3 * PER_BLOB, 3))
    truth = np.repeat([0, 1, 2], PER_BLOB)
    made: EmbeddingStore = make_store(rows, labels=truth.tolist(), labeled=[0] * len(rows))
    return made


def write(path: Path, *lines: str) -> Path:
    path.write_text("path,label\n" + "".join(f"{line}\n" for line in lines))
    return path


def label(store: EmbeddingStore, path: Path, **options: Any) -> dict[str, Any]:
    return label_images(LabelConfig(index=store.path, from_=path, **options)).values


def suggest(store: EmbeddingStore, out: Path, **options: Any) -> dict[str, Any]:
    return suggest_images(SuggestConfig(index=store.path, out=out, **{"num_images": 3, **options})).values


def write_groups(store: EmbeddingStore, confidence: Any) -> None:
    arrays = {"cluster_ids": np.repeat([0, 1, 2], PER_BLOB), "confidence": confidence, "names": ["a", "b", "c"]}
    write_result(store, "groups", kind="clusters", arrays=arrays, params={}, stage="test")


def test_labels_are_kept_with_where_they_come_from(store: EmbeddingStore, tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "0000.png,class-0", "0013.png,otter", "0025.png,")
    told = label(store, path, by="Ann")
    result = read_result(store, "labels-1")

    assert (told["added"], told["labels"], told["new_classes"]) == (2, 2, ["otter"])
    assert told["similar_names"] == {}
    assert result.kind == "labels"
    assert result.arrays["class_names"] == ["class-0", "class-1", "class-2", "otter"]
    assert np.flatnonzero(result.arrays["labels"] >= 0).tolist() == [0, 13]
    assert result.arrays["labels"][[0, 13]].tolist() == [0, 3]
    assert result.arrays["labeled"].tolist() == (result.arrays["labels"] >= 0).tolist()
    assert result.params["by"] == "Ann"
    assert result.params["csv_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_later_round_adds_to_an_earlier_one(store: EmbeddingStore, tmp_path: Path) -> None:
    label(store, write(tmp_path / "a.csv", "0000.png,class-0"))
    told = label(store, write(tmp_path / "b.csv", "0000.png,class-0", "0013.png,class-1"), labels=Path("labels-1"))
    result = read_result(store, "labels-2")

    assert (told["round"], told["added"], told["confirmed"], told["labels_before"]) == (2, 1, 1, 1)
    assert result.arrays["label_rounds"][[0, 13, 1]].tolist() == [1, 2, -1]
    assert result.params["base"]["content_digest"] == read_result(store, "labels-1").content_digest


def test_labels_of_the_store_come_first_unless_told_otherwise(make_store: Any, tmp_path: Path) -> None:
    store = make_store(np.eye(4), labels=[0, 1, 0, 1], labeled=[1, 0, 0, 0])
    path = write(tmp_path / "a.csv", "0001.png,class-1")

    assert label(store, path)["labels"] == 2
    assert label(store, path, own_labels=False, result="mine")["labels"] == 1
    assert read_result(store, "labels-1").arrays["label_rounds"].tolist() == [0, 1, -1, -1]


def test_conflicts_are_listed_and_decided(store: EmbeddingStore, tmp_path: Path) -> None:
    label(store, write(tmp_path / "a.csv", "0000.png,class-0"))
    path = write(tmp_path / "b.csv", "0000.png,class-1")
    first = Path("labels-1")

    with pytest.raises(DatasetError, match=r"0000\.png: 'class-0', but 'class-1' here"):
        label(store, path, labels=first)
    new = label(store, path, labels=first, conflicts="new", result="new")
    label(store, path, labels=first, conflicts="old", result="old")

    assert new["conflicts"] == [{"path": "0000.png", "old": "class-0", "new": "class-1"}]
    assert read_result(store, "new").arrays["labels"][0] == 1
    assert read_result(store, "old").arrays["labels"][0] == 0


def test_unknown_paths_are_errors_with_a_guess(store: EmbeddingStore, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"photos/0003\.png \(is it 0003\.png\?\)"):
        label(store, write(tmp_path / "a.csv", "photos/0003.png,class-0", "0004.png,class-0"))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("Class-0", "class-0"),
        ("class 0", "class-0"),
        ("class-3", None),
        ("sparow", "sparrow"),
        ("T-shrit", "T-shirt"),  # two letters in each other's place
        ("cat", None),
        ("bowl", None),  # names of three letters are like many others
        ("gull", None),
        ("sparow on a twig", "sparrow on a twig"),
        ("pigeon on a twig", None),  # the words that differ do not look alike
        ("Sparrow On-A Twig", "sparrow on a twig"),
    ],
)
def test_slips_of_a_class_name_are_noticed(name: str, meant: str | None) -> None:
    known = ["class-0", "class-1", "sparrow", "bat", "owl", "T-shirt", "sparrow on a twig"]
    assert find_misspelled_class(name, known) == meant


def test_suggestions_need_no_label_and_cover_every_blob(store: EmbeddingStore, tmp_path: Path) -> None:
    for strategy in ("both", "coverage", "typical", "k-center"):
        out = tmp_path / f"{strategy}.csv"
        suggest(store, out, strategy=strategy)
        rows = read_table(out)

        assert list(rows[0]) == ["path", "label", "usefulness", "reason", "guess"]
        assert {int(row["path"][:4]) // PER_BLOB for row in rows} == {0, 1, 2}
        assert {(row["label"], row["guess"]) for row in rows} == {("", "")}


def test_the_least_certain_image_is_between_two_classes(make_store: Any, tmp_path: Path) -> None:
    store = make_store([[1, 0], [0.9, 0.3], [0.7, 0.72], [0, 1]], labels=[0, 0, 1, 1], labeled=[1, 0, 0, 1])
    told = suggest(store, tmp_path / "a.csv", strategy="uncertainty", num_images=2)

    assert [image["path"] for image in told["images"]] == ["0002.png", "0001.png"]
    assert [image["guess"] for image in told["images"]] == ["class-1", "class-0"]
    assert told["images"][0]["reason"] == "class-1 or class-0?"


def test_confidence_of_a_result_is_what_is_uncertain(store: EmbeddingStore, tmp_path: Path) -> None:
    write_groups(store, np.linspace(1, 0.5, store.n).astype(np.float32))
    told = suggest(store, tmp_path / "a.csv", strategy="uncertainty", result="groups", duplicate_share=0)

    assert [image["path"] for image in told["images"]] == ["0035.png", "0034.png", "0033.png"]
    assert [image["guess"] for image in told["images"]] == ["c", "c", "c"]


def test_suggestions_say_how_many_images_they_stand_for(store: EmbeddingStore, tmp_path: Path) -> None:
    confidence = np.linspace(0.5, 1, store.n).astype(np.float32)
    write_groups(store, confidence)
    known = write(tmp_path / "known.csv", "0000.png,a", "0012.png,b")
    told = suggest(store, tmp_path / "a.csv", labels=known, result="groups", num_images=1)
    plain = suggest(store, tmp_path / "b.csv", labels=known, num_images=1)

    (chosen,) = (int(image["path"][:4]) for image in told["images"])
    others = [row for row in range(24, 36) if row != chosen]
    assert told["like_them"] == plain["like_them"] == len(others)
    assert told["like_them_wrong"] == pytest.approx((1 - confidence[others].astype(np.float64)).sum())
    assert plain["like_them_wrong"] is None


def test_labeled_images_and_near_duplicates_are_not_suggested(make_store: Any, tmp_path: Path) -> None:
    store = make_store([[1, 0], [1, 1e-4], [0, 1], [1e-4, 1], [1, 1]], labels=[0] * 5, labeled=[1, 0, 0, 0, 0])
    told = suggest(store, tmp_path / "a.csv", num_images=5)

    assert [image["path"] for image in told["images"]] in (["0002.png", "0004.png"], ["0003.png", "0004.png"])


def test_near_duplicates_of_labeled_images_are_suggested_if_nothing_else_is_left(
    make_store: Any, tmp_path: Path
) -> None:
    store = make_store([[1, 0], [1, 1e-4], [0, 1]], labels=[0] * 3, labeled=[1, 0, 1])

    assert [image["path"] for image in suggest(store, tmp_path / "a.csv", num_images=5)["images"]] == ["0001.png"]


def test_skipped_images_are_suggested_only_if_nothing_else_is_left(make_store: Any, tmp_path: Path) -> None:
    store = make_store([[1, 0], [0, 1], [1e-4, 1], [1, 1]], labels=[0] * 4, labeled=[1, 0, 0, 0])

    def suggested(*skipped: str) -> list[str]:
        skip = write(tmp_path / "skipped.csv", *(f"{path}," for path in skipped))
        told = suggest(store, tmp_path / "a.csv", num_images=4, skip=skip, overwrite=True)
        return [image["path"] for image in told["images"]]

    assert len(suggested()) == 2
    # the near-duplicate of a skipped image is no better
    assert suggested("0001.png", "gone.png") == ["0003.png"]
    assert sorted(suggested("0001.png", "0003.png")) == sorted(suggested())


def test_the_round_trip_ends_in_groups_named_by_the_new_labels(store: EmbeddingStore, tmp_path: Path) -> None:
    out = tmp_path / "next.csv"
    suggest(store, out, num_images=6, duplicate_share=0)
    lines = [f"{row['path']},animal-{int(row['path'][:4]) // PER_BLOB + 7}" for row in read_table(out)]
    label(store, write(out, *lines))
    cluster_store(SSKMeansConfig(index=store.path, num_clusters=3, labels=Path("labels-1")))
    result = read_result(store, "ss-kmeans")

    assert sorted(result.arrays["names"]) == ["animal-7", "animal-8", "animal-9"]
    assert [result.arrays["names"][i] for i in result.arrays["cluster_ids"]] == [
        f"animal-{row // PER_BLOB + 7}" for row in range(store.n)
    ]
    assert result.arrays["labeled"].sum() == 6
    assert result.params["labels"]["result"] == "labels-1"
    later = suggest(store, tmp_path / "later.csv", labels=Path("labels-1"))
    assert {image["path"] for image in later["images"]}.isdisjoint({line.split(",")[0] for line in lines})


def test_rows_whose_label_any_grouping_used_are_scored_for_none(store: EmbeddingStore, tmp_path: Path) -> None:
    label(store, write(tmp_path / "a.csv", "0000.png,class-0", "0012.png,class-1", "0024.png,class-2"))
    cluster_store(SSKMeansConfig(index=store.path, num_clusters=3, labels=Path("labels-1")))
    cluster_store(KMeansConfig(index=store.path, num_clusters=3))
    scores = evaluate_clustering(EvaluateClusteringConfig(index=store.path, bootstrap=0)).values["scores"]

    assert {score["result"]: score["rows"] for score in scores} == {"k-means": 33, "ss-kmeans": 33}  # type: ignore[attr-defined]


def test_labels_given_later_are_the_truth_if_told_so(make_store: Any, tmp_path: Path) -> None:
    store = make_store([[1, 0], [1, 0.1], [0, 1], [0.1, 1]])
    label(store, write(tmp_path / "a.csv", "0000.png,x", "0001.png,x", "0003.png,y"))
    cluster_store(KMeansConfig(index=store.path, num_clusters=2))
    config = EvaluateClusteringConfig(index=store.path, bootstrap=0, labels=Path("labels-1"))
    score = evaluate_clustering(config).values["scores"][0]  # type: ignore[index]

    assert (score["rows"], score["nmi"]) == (3, pytest.approx(1))


def test_the_table_to_train_with_is_a_data_set(index: Path, photos: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "ant/00.png,ant", "bee/00.png,wasp")
    out = tmp_path / "train.csv"
    label_images(LabelConfig(index=index, from_=path, own_labels=False, csv=out))
    dataset = load_dataset(str(out), data_root=tmp_path)
    given = [dataset.class_names[value] for value in dataset.labels if value >= 0]

    assert len(dataset.sample_ids) == 48
    assert given == ["ant", "wasp"]


def test_a_sheet_shows_the_images(labelkit: Labelkit, index: Path, tmp_path: Path) -> None:
    from PIL import Image

    out, sheet = tmp_path / "next.csv", tmp_path / "next.png"
    answer = labelkit("suggest", "--index", index, "-n", 4, "--out", out, "--sheet", sheet, "-q")

    assert answer.code == 0, answer.err
    assert (answer.code, answer.out.split()) == (0, [str(out), str(sheet)])
    with Image.open(sheet) as picture:
        assert picture.size == (8 + 4 * 120, 8 + 150)

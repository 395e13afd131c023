"""``labelkit discover snowball`` and ``labelkit discover lmcs``: labels in, labels out, and what can go wrong."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.commands.discover.few import discover_lmcs, discover_snowball
from labelkit.commands.discover.few_options import DiscoverLMCSConfig, DiscoverSnowballConfig
from labelkit.data.splits import ClassLabels, make_few_labels_split
from labelkit.methods.few_labels.critical_samples import discover_critical_samples
from labelkit.methods.few_labels.snowball_search import discover_confident_samples
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.results import read_result
from numpy.typing import NDArray
from tests.running import read_table

Array = NDArray[Any]

PER_CLASS, CLASSES = 20, 3


def blob_rows(seed: int = 0, noise: float = 0.4) -> Array:
    """Three blobs of twenty rows that overlap a little."""
    rng = np.random.default_rng(seed)
    return (np.repeat(np.eye(CLASSES), PER_CLASS, axis=0) + rng.normal(0, noise, (60, CLASSES))).astype(np.float32)


TRUTH = np.repeat(np.arange(CLASSES), PER_CLASS)
LABELED = (np.arange(60) % PER_CLASS < 3).astype(int)
LABELS = np.where(LABELED, TRUTH, -1)


@pytest.fixture
def store(make_store: Any) -> EmbeddingStore:
    """These blobs, the first three of each with a label that may be used."""
    made: EmbeddingStore = make_store(blob_rows(), labels=TRUTH.tolist(), labeled=LABELED.tolist())
    return made


def snowball(store: EmbeddingStore, **options: Any) -> Any:
    return discover_snowball(DiscoverSnowballConfig(index=store.path, **options)).to_json()


def lmcs(store: EmbeddingStore, **options: Any) -> Any:
    return discover_lmcs(DiscoverLMCSConfig(index=store.path, **options)).to_json()


def write_labels(path: Path, labels: dict[int, str]) -> Path:
    path.write_text("path,label\n" + "".join(f"{row:04d}.png,{name}\n" for row, name in labels.items()))
    return path


def test_result_and_table_hold_what_the_algorithm_finds_each_time(store: EmbeddingStore) -> None:
    told = snowball(store, rounds=2)
    expected = discover_confident_samples(blob_rows(), LABELS, "double", 2)
    result = read_result(store, "snowball")
    arrays = result.arrays

    assert told["discovered"] == len(expected.indices) == 27
    assert (result.kind, result.stage) == ("discovered", "discover snowball")
    assert arrays["discovered_rows"].tolist() == expected.indices.tolist()
    assert arrays["discovered_labels"].tolist() == expected.labels.tolist()
    assert arrays["discovered_distance"].tolist() == expected.distance.tolist()
    assert arrays["discovered_scores"].tolist() == expected.distance.tolist()
    assert arrays["discovered_round"].tolist() == expected.round.tolist()
    assert arrays["discovered_rank"].tolist() == expected.rank.tolist()
    assert arrays["pseudo_labels"].tolist() == expected.fill_in(LABELS).tolist()
    assert arrays["names"] == ["class-0", "class-1", "class-2"]
    assert np.flatnonzero(arrays["sources"] == 1).tolist() == np.flatnonzero(LABELED).tolist()
    assert np.flatnonzero(arrays["sources"] == 2).tolist() == sorted(expected.indices.tolist())
    assert arrays["source_names"] == ["unlabeled", "given", "discovered"]

    rows, order = read_table(told["csv"]), np.argsort(expected.rank)
    assert told["csv"] == store.path.with_name("made.snowball.csv")
    assert list(rows[0]) == ["path", "label", "score", "rank", "round"]
    assert [int(row["rank"]) for row in rows] == list(range(1, 28))
    assert [row["path"] for row in rows] == [f"{expected.indices[place]:04d}.png" for place in order]
    assert [row["label"] for row in rows] == [f"class-{expected.labels[place]}" for place in order]
    assert [float(row["score"]) for row in rows] == pytest.approx(expected.distance[order].tolist(), rel=1e-5)

    first = (told["path"].read_bytes(), told["csv"].read_bytes())
    snowball(store, rounds=2, overwrite=True)
    assert (told["path"].read_bytes(), told["csv"].read_bytes()) == first


def test_critical_samples_come_with_soft_labels_entropies_and_the_options(store: EmbeddingStore) -> None:
    lmcs(store, count=9)
    result = read_result(store, "lmcs")
    expected = discover_critical_samples(blob_rows(), LABELS, 9)

    assert result.arrays["discovered_rows"].tolist() == expected.indices.tolist()
    assert result.arrays["discovered_soft"].tolist() == expected.soft.tolist()
    assert result.arrays["discovered_entropy"].tolist() == expected.entropy.tolist()
    assert result.arrays["discovered_scores"].tolist() == expected.entropy.tolist()
    params, first = result.params, expected.per_class[0]
    assert params["beta"] == pytest.approx(1 / 3)
    assert (params["confine"], params["count"], params["rounds"]) == (True, 9, 1)
    assert (params["label_source"], params["given"], params["score"]) == ("store", 9, "entropy")
    assert params["per_class_report"][0]["radius"] == first["radius"]
    assert params["per_class_report"][0]["confined"] == first["confined"]


@pytest.mark.parametrize(
    "options",
    [
        {"count": 12, "select": "far"},
        {"count": 12, "select": "random", "seed": 4},
        {"count": 12, "balance": "global", "select": "max"},
    ],
)
def test_snowball_options_reach_the_algorithm(store: EmbeddingStore, options: dict[str, Any]) -> None:
    snowball(store, **options)
    expected = discover_confident_samples(blob_rows(), LABELS, **options)
    assert read_result(store, "snowball").arrays["discovered_rows"].tolist() == expected.indices.tolist()


@pytest.mark.parametrize("options", [{"criterion": "min_entropy"}, {"confine": False}, {"balance": "global"}])
def test_lmcs_options_reach_the_algorithm(store: EmbeddingStore, options: dict[str, Any]) -> None:
    lmcs(store, count=9, rounds=2, **options)
    expected = discover_critical_samples(blob_rows(), LABELS, 9, 2, **options)
    assert read_result(store, "lmcs").arrays["discovered_rows"].tolist() == expected.indices.tolist()


def test_stores_of_other_networks_are_fused(store: EmbeddingStore, make_store: Any) -> None:
    others = [make_store(blob_rows(seed), name=f"other-{seed}.h5") for seed in (1, 2)]
    snowball(store, fuse_with=tuple(other.path for other in others), fusion="rank", count=12)

    expected = discover_confident_samples([blob_rows(), blob_rows(1), blob_rows(2)], LABELS, 12, fusion="rank")
    result = read_result(store, "snowball")
    assert result.arrays["discovered_rows"].tolist() == expected.indices.tolist()
    assert result.arrays["discovered_scores"].tolist() == expected.distance.tolist()
    assert result.params["fused"] == [other.content_digest for other in others]
    assert result.params["score"] == "mean rank"


def test_only_rows_of_the_split_are_used(make_store: Any) -> None:
    splits = np.arange(60) % 2
    columns = {"labels": TRUTH.tolist(), "labeled": LABELED.tolist(), "splits": splits.tolist()}
    made = make_store(blob_rows(), **columns, split_names=["train", "test"])
    snowball(made, split="train", count=9)

    rows = np.flatnonzero(splits == 0)
    expected = discover_confident_samples(blob_rows()[rows], LABELS[rows], 9)
    assert read_result(made, "snowball").arrays["discovered_rows"].tolist() == rows[expected.indices].tolist()


@pytest.mark.parametrize("own_labels", [True, False])
def test_labels_of_a_file_add_to_those_of_the_store_or_replace_them(
    store: EmbeddingStore, tmp_path: Path, own_labels: bool
) -> None:
    file = write_labels(tmp_path / "few.csv", {5: "class-0", 25: "class-1", 45: "class-2", 46: "class-2"})
    told = snowball(store, labels=file, own_labels=own_labels, count=8, result="near", csv=tmp_path / "near.csv")

    labels = LABELS.copy() if own_labels else np.full(60, -1)
    labels[[5, 25, 45, 46]] = [0, 1, 2, 2]
    expected = discover_confident_samples(blob_rows(), labels, 8)
    result = read_result(store, "near")
    assert told["labels"] == (labels >= 0).sum()
    assert result.arrays["discovered_rows"].tolist() == expected.indices.tolist()
    assert own_labels or result.params["label_source"] == "file"
    assert str(tmp_path) not in str(result.params)
    assert told["csv"] == tmp_path / "near.csv"


def test_a_store_without_labels_takes_its_classes_from_the_file(make_store: Any, tmp_path: Path) -> None:
    bare = make_store(blob_rows())
    file = write_labels(tmp_path / "few.csv", {5: "10", 25: "9", 45: "x"})
    told = snowball(bare, labels=file)

    assert read_result(bare, "snowball").arrays["names"] == ["9", "10", "x"]
    assert told["truth"] is None
    assert {row["label"] for row in read_table(told["csv"])} == {"9", "10", "x"}


def test_report_counts_errors_against_the_hidden_labels(store: EmbeddingStore) -> None:
    told = snowball(store, rounds=2, per_class=6)
    truth = told["truth"]
    found = discover_confident_samples(blob_rows(), LABELS, 18, 2)
    wrong = found.labels != TRUTH[found.indices]

    assert [(row["quota"], row["taken"]) for row in told["per_class"]] == [(6, 6)] * 6  # in each of two rounds
    assert (truth["found"], truth["wrong"]) == (36, int(wrong.sum()))
    assert [row["wrong"] for row in truth["per_round"]] == [
        int(wrong[found.round == number].sum()) for number in (1, 2)
    ]
    assert [row["wrong"] for row in truth["per_class"]] == [int(wrong[found.labels == c].sum()) for c in range(3)]
    assert truth["held_error"] == wrong.sum() / 45
    assert truth["precision_of_first"] == {20: float((~wrong[found.rank <= 20]).mean())}


@pytest.mark.parametrize("discover", [snowball, lmcs])
def test_another_truth_changes_the_report_and_nothing_else(make_store: Any, discover: Any) -> None:
    false = np.where(LABELED, TRUTH, (TRUTH + 1) % 3)
    stores = [
        make_store(blob_rows(), name=name, labels=labels.tolist(), labeled=LABELED.tolist())
        for name, labels in (("true.h5", TRUTH), ("false.h5", false))
    ]
    told = [discover(each, count=12) for each in stores]
    results = [read_result(each, one["result"]) for each, one in zip(stores, told, strict=True)]

    assert told[0]["truth"]["wrong"] != told[1]["truth"]["wrong"]
    assert told[0]["csv"].read_bytes() == told[1]["csv"].read_bytes()
    assert results[0].params == results[1].params
    assert results[0].arrays.keys() == results[1].arrays.keys()
    for name, values in results[0].arrays.items():
        np.testing.assert_array_equal(values, results[1].arrays[name])
    for key in ("discovered", "exhausted", "warnings", "per_class"):
        assert told[0][key] == told[1][key]


def test_a_class_without_a_label_is_refused_or_skipped(labelkit: Any, make_store: Any) -> None:
    made = make_store(blob_rows(), labels=TRUTH.tolist(), labeled=(LABELED * (TRUTH < 2)).tolist())
    refused = labelkit("discover", "snowball", "--index", made.path)
    skipped = labelkit("discover", "snowball", "--index", made.path, "--missing-class", "skip", "--json")

    assert refused.code == 3
    assert "1 of 3 classes have no usable labels: 'class-2'" in refused.err
    assert "--missing-class skip" in refused.err
    assert skipped.code == 0
    assert [row["class"] for row in skipped.json["per_class"]] == ["class-0", "class-1"]
    assert "no image is labeled as class 'class-2', which will never be predicted" in skipped.err


@pytest.mark.parametrize("command", ["snowball", "lmcs"])
def test_one_class_only_is_refused(labelkit: Any, store: EmbeddingStore, tmp_path: Path, command: str) -> None:
    file = write_labels(tmp_path / "one.csv", {1: "class-1", 2: "class-1"})
    answer = labelkit(
        "discover", command, "--index", store.path, "--labels", file, "--no-own-labels", "--missing-class", "skip"
    )

    assert answer.code == 3
    assert f"{file}: all 2 usable labels belong to the same class, 'class-1'" in answer.err
    assert "Label images of at least two classes" in answer.err


def test_more_than_there_is_takes_everything_and_says_so(labelkit: Any, store: EmbeddingStore) -> None:
    answer = labelkit("discover", "snowball", "--index", store.path, "--count", "5000", "--json")

    assert answer.code == 0
    # it is scored as a grouping only by name
    assert labelkit("evaluate", "clustering", "--index", store.path).code == 3
    assert labelkit("evaluate", "clustering", "--index", store.path, "--results", "snowball").code == 0
    assert (answer.json["discovered"], answer.json["exhausted"]) == (51, True)
    assert "only 51 of 5000 images were found" in answer.err


def test_unbalanced_labels_are_used_as_they_are_and_told_of(
    labelkit: Any, store: EmbeddingStore, tmp_path: Path
) -> None:
    rows = {0: "class-0", 1: "class-0", 2: "class-0", 3: "class-0", 20: "class-1", 40: "class-2"}
    file = write_labels(tmp_path / "few.csv", rows)
    answer = labelkit(
        "discover", "snowball", "--index", store.path, "--labels", file, "--no-own-labels", "--count", "12", "--json"
    )

    assert answer.code == 0
    assert [row["quota"] for row in answer.json["per_class"]] == [8, 2, 2]
    assert "classes have 1 to 4 labels each; discovered images are divided among the classes in the" in answer.err


@pytest.mark.parametrize(
    ("columns", "options", "told"),
    [
        ({"labels": TRUTH.tolist(), "labeled": [0] * 60}, [], "has no usable labels"),
        ({}, ["--num-labels", "6"], "has no labels to sample"),
        ({"labels": TRUTH.tolist()}, ["--num-labels", "300"], "100 labeled images per class were requested, but class"),
    ],
)
def test_labels_that_are_not_there_are_refused(
    labelkit: Any, make_store: Any, columns: dict[str, Any], options: list[str], told: str
) -> None:
    answer = labelkit("discover", "snowball", "--index", make_store(blob_rows(), **columns).path, *options)

    assert answer.code == 3
    assert told in answer.err
    assert bool(options) or "--num-labels N" in answer.err


def test_labels_are_drawn_to_measure(store: EmbeddingStore) -> None:
    told = snowball(store, num_labels=6, label_seed=3)
    split = make_few_labels_split(ClassLabels(TRUTH, np.ones(60, dtype=bool), 3), total=6, seed=3)

    assert (read_result(store, "snowball").arrays["sources"] == 1).tolist() == split.labeled.tolist()
    assert told["labels"] == 6


def test_nothing_without_a_label_is_an_empty_result(labelkit: Any, make_store: Any) -> None:
    full = make_store(blob_rows(), labels=TRUTH.tolist(), labeled=[1] * 60)
    for command in ("snowball", "lmcs"):
        answer = labelkit("discover", command, "--index", full.path, "--json")
        assert answer.code == 0, answer.err
        assert answer.json["discovered"] == 0
        assert "every image has a label, so there is nothing to discover" in answer.err
        assert read_table(Path(answer.json["csv"])) == []


def test_stores_of_other_images_cannot_be_fused(labelkit: Any, store: EmbeddingStore, make_store: Any) -> None:
    other = make_store(blob_rows()[:59], name="other.h5")
    answer = labelkit("discover", "snowball", "--index", store.path, "--fuse-with", other.path, "--fusion", "cascade")

    assert answer.code == 3
    assert f"does not contain the same images as {store.path}: 59 images are in both, out of 59 and 60" in answer.err
    assert f"0059.png only in {store.path}" in answer.err


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("snowball", ["--fusion", "rank"], "--fusion requires several stores"),
        ("snowball", ["--fuse-with", "other.h5"], "--fuse-with requires --fusion"),
        ("snowball", ["--count", "4", "--per-class", "2"], "--count or --per-class, not both"),
        ("snowball", ["--per-class", "2", "--balance", "global"], "--per-class requires --balance balanced"),
        ("snowball", ["--labels", "few.csv", "--num-labels", "6"], "--labels FILE or --num-labels N, not both"),
        ("snowball", ["--count", "-3"], "an integer >= 0"),
        ("snowball", ["--count", "twice"], "count"),
        ("snowball", ["--csv", "x.h5"], "ends in .h5, which is reserved for stores"),
        ("snowball", ["--csv", "nowhere/x.csv"], "does not exist"),
        ("lmcs", ["--rounds", "0"], "should be greater than or equal to 1"),
    ],
)
def test_options_that_cannot_be_used_are_refused(
    labelkit: Any, store: EmbeddingStore, command: str, options: list[str], message: str
) -> None:
    answer = labelkit("discover", command, "--index", store.path, *options)
    assert answer.code == 2
    assert message in answer.err

"""``labelkit evaluate clustering``: which rows are scored, and that the numbers are those of the metrics."""

import shutil
from typing import Any

import numpy as np
import pytest
from labelkit.commands.evaluate.groups import evaluate_clustering
from labelkit.commands.evaluate.options import EvaluateClusteringConfig
from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import StoreError
from labelkit.metrics.clustering import accuracy_intervals, cluster_accuracy
from labelkit.progress import use_progress
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.results import write_result
from tests.running import Heard

LABELS = [0, 0, 0, 1, 1, 1, 2, 2]
LABELED = [1, 0, 0, 1, 0, 0, 0, 0]


def put(store: EmbeddingStore, ids: list[int], name: str = "guess", **arrays: Any) -> None:
    found = {"cluster_ids": np.array(ids), **arrays}
    write_result(store, name, kind="clusters", arrays=found, params={}, stage="test", overwrite=True)


def evaluate(store: EmbeddingStore, **options: Any) -> list[dict[str, Any]]:
    scores: Any = evaluate_clustering(EvaluateClusteringConfig(index=store.path, **options)).to_json()["scores"]
    return list(scores)


@pytest.fixture
def store(make_store: Any) -> EmbeddingStore:
    """Eight rows of three classes, the third new; rows 0 and 3 were labeled in training."""
    made: EmbeddingStore = make_store(np.eye(8), labels=LABELS, labeled=LABELED, old_classes=[1, 1, 0])
    return made


def test_rows_whose_label_training_could_use_are_not_scored_unless_asked(store: EmbeddingStore) -> None:
    with pytest.raises(StoreError, match="has no result that groups its images") as caught:
        evaluate(store)
    assert "labelkit cluster" in caught.value.remedy
    # wrong on both labeled rows, right on the others but one
    put(store, [1, 0, 0, 0, 1, 1, 2, 0])

    (score,) = evaluate(store)

    # by hand: rows 1 2 4 5 6 of 1 2 4 5 6 7 are right; old 4 of 4, new 1 of 2
    assert score["rows"] == 6
    assert score["all_accuracy"] == pytest.approx(5 / 6)
    assert (score["old_accuracy"], score["new_accuracy"]) == (1.0, 0.5)
    assert (score["old_as_wrong_old"], score["old_as_new"], score["new_as_wrong_new"], score["new_as_old"]) == (
        0,
        0,
        0,
        0.5,
    )
    (score,) = evaluate(store, rows="all")
    assert (score["rows"], score["all_accuracy"]) == (8, pytest.approx(5 / 8))


def test_rows_without_a_label_or_a_cluster_are_not_scored_and_all_others_if_no_label_could_be_used(
    make_store: Any,
) -> None:
    store = make_store(np.eye(4), labels=[0, 1, -1, 1], labeled=[0] * 4, old_classes=[0, 0])
    put(store, [0, 1, 1, -1])

    (score,) = evaluate(store)

    assert (score["rows"], score["all_accuracy"], score["old_accuracy"]) == (2, 1.0, None)


def test_a_result_is_not_scored_on_the_labels_that_it_used(make_store: Any) -> None:
    store = make_store(np.eye(4), labels=[0, 1, -1, -1], labeled=[1, 1, 0, 0], old_classes=[1, 1])
    put(store, [0, 1, 1, 0], "ss-kmeans", names=["a", "b"], new_classes=np.zeros(2, np.uint8))

    with pytest.raises(StoreError, match="hidden from training") as caught:
        evaluate(store)
    assert "--labels" in caught.value.remedy

    put(store, [0, 0, 1, 1], "k-means")
    progress = Heard()
    with use_progress(progress):
        (score,) = evaluate(store)
    assert (score["result"], score["rows"], score["all_accuracy"]) == ("k-means", 2, 0.5)
    assert "ss-kmeans: not scored" in progress.messages[0]
    assert len(evaluate(store, rows="all")) == 2
    with pytest.raises(StoreError, match="hidden from training"):
        evaluate(store, results=("k-means", "ss-kmeans"))


def test_discovered_images_are_scored_without_those_whose_labels_were_given_or_drawn(make_store: Any) -> None:
    store = make_store(np.eye(4), labels=[0, 1, 0, 1], labeled=[0] * 4)
    put(store, [0, 1, 0, 0], "snowball", sources=np.array([1, 1, 2, 2]), source_names=["unlabeled", "given", "found"])

    (score,) = evaluate(store, results=("snowball",))

    assert (score["rows"], score["all_accuracy"], score["old_accuracy"]) == (2, 0.5, 0.5)


def test_where_nothing_says_which_classes_had_labels_there_is_no_score_of_old_classes(make_store: Any) -> None:
    store = make_store(np.eye(8), labels=LABELS)
    put(store, [0, 0, 0, 1, 1, 1, 2, 2])

    (score,) = evaluate(store, bootstrap=5)

    assert score["all_accuracy"] == 1
    assert score["old_accuracy"] is score["new_accuracy"] is score["num_old_samples"] is None
    assert score["other_protocols"]["v1"] == {"all": 1, "old": None, "new": None}
    assert np.isnan(score["intervals"]["old"]).all()
    tables = evaluate_clustering(EvaluateClusteringConfig(index=store.path, bootstrap=5)).shown
    assert [table.columns[2:] for table in tables] == [["rows", "All", "NMI", "ARI", "clusters"], ["All"]]


def test_intervals_are_those_of_the_metrics_and_equal_for_equal_groupings(
    make_store: Any, rng: np.random.Generator
) -> None:
    labels, ids = rng.integers(0, 4, 200), rng.integers(0, 4, 200)
    ids[:120] = labels[:120]
    store = make_store(np.eye(200), labels=labels, labeled=[0] * 200, old_classes=[1, 1, 0, 0])
    put(store, ids, "one")
    put(store, ids, "two")

    one, two = evaluate(store, bootstrap=500, seed=3)

    score = cluster_accuracy(labels, ids, np.array([True, True, False, False]))
    old, generator = np.array([True, True, False, False]), keyed_generator(3, "bootstrap all")
    expected = accuracy_intervals(score, old, num_resamples=500, generator=generator)
    assert one["intervals"] == expected
    assert one["intervals"] == two["intervals"]
    write_result(store, "note", kind="note", arrays={"metrics": {"x": 1}}, params={}, stage="test")
    # every grouping is scored, or those that are named, and nothing else
    assert [score["result"] for score in evaluate(store)] == ["one", "two"]
    (other,) = evaluate(store, bootstrap=500, seed=4, results=("two",))
    assert other["result"] == "two"
    assert other["intervals"] != one["intervals"]


def test_each_split_is_scored_on_its_own(make_store: Any) -> None:
    splits = [0, 0, 0, 0, 1, 1, 1, -1]
    columns = {"labels": LABELS, "labeled": LABELED, "old_classes": [1, 1, 0], "splits": splits}
    store = make_store(np.eye(8), **columns, split_names=("train", "test"))
    put(store, [0, 0, 0, 1, 1, 1, 2, 0])

    scores = evaluate(store)

    # labeled rows 0 and 3 are left out of train; the row in no split is not forgotten
    assert [(score["split"], score["rows"], score["all_accuracy"]) for score in scores] == [
        ("train", 2, 1.0),
        ("test", 3, 1.0),
        ("(no split)", 1, 1.0),
    ]
    assert [(score["split"], score["rows"]) for score in evaluate(store, split="test")] == [("test", 3)]


def test_undefined_numbers_are_null_in_json_and_a_dash_in_the_table(labelkit: Any, make_store: Any) -> None:
    store = make_store(np.eye(4), labels=[0, 0, 1, 1], labeled=[0] * 4, old_classes=[1, 1])
    put(store, [0, 0, 1, 1])

    answer = labelkit("evaluate", "clustering", "--index", store.path, "--json")
    shown = labelkit("evaluate", "clustering", "--index", store.path)

    assert answer.json["scores"][0]["new_accuracy"] is None
    assert "NaN" not in answer.out
    assert shown.out.splitlines()[2].split()[:6] == ["guess", "all", "4", "100.0", "100.0", "-"]


def test_a_stale_result_among_others_is_passed_over_with_a_warning(store: EmbeddingStore, make_store: Any) -> None:
    heard = Heard()
    other = make_store(2 * np.eye(8), name="other.h5", labels=LABELS, labeled=LABELED, old_classes=[1, 1, 0])
    put(store, LABELS, "old")
    shutil.copytree(store.path.with_name("made.h5.results"), other.path.with_name("other.h5.results"))
    put(other, LABELS, "fresh")

    with use_progress(heard):
        scores = evaluate(other)

    assert [score["result"] for score in scores] == ["fresh"]
    (told,) = heard.warnings
    assert "old.h5" in told

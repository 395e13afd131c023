"""``labelkit discover answer`` and ``labelkit evaluate answer``: known, new or unsure, and how far to trust it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.algorithms.few_label_classifier import RefittableClassifier
from labelkit.algorithms.unlabeled_classes import UnlabeledGroupEstimate
from labelkit.commands.cluster.cluster import cluster_store
from labelkit.commands.cluster.options import SSKMeansConfig
from labelkit.commands.discover import calibrate as calibrate_module
from labelkit.commands.discover import categories
from labelkit.commands.discover.answer import COLUMNS, _estimate_new_fraction, predict_images
from labelkit.commands.discover.calibrate import (
    collect_held_out_evidence,
    collect_unused_label_evidence,
    fit_calibration,
)
from labelkit.commands.discover.categories import classify_by_logits, discover_categories
from labelkit.commands.discover.grouping import Grouping
from labelkit.commands.discover.label_weights import drop_low_weight_labels
from labelkit.commands.discover.options import DiscoverAnswerConfig, DiscoverCategoriesConfig, DiscoverHeadConfig
from labelkit.commands.evaluate.options import EvaluateAnswerConfig
from labelkit.commands.evaluate.predictions import evaluate_predictions
from labelkit.errors import DatasetError, LabelkitError, Mismatch, StoreError
from labelkit.progress import use_progress
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.results import read_result, write_result
from tests.running import Heard, read_table

Build = Callable[..., EmbeddingStore]

CLASSES, OLD, PER_CLASS, LABELED = 6, 3, 20, 6


@pytest.fixture
def build(make_store: Any) -> Build:
    """Return a function: six blobs around unit vectors, three with six labels each, clustered into six groups."""

    def made(noise: float = 0.1, *, clustered: bool = True, seed: int = 0, **changes: Any) -> EmbeddingStore:
        rng = np.random.default_rng(seed)
        rows = np.repeat(np.eye(CLASSES), PER_CLASS, axis=0) + rng.normal(0, noise, (CLASSES * PER_CLASS, CLASSES))
        labels = np.repeat(np.arange(CLASSES), PER_CLASS)
        labeled = (labels < OLD) & (np.arange(len(labels)) % PER_CLASS < LABELED)
        columns = {
            "labels": labels.tolist(),
            "labeled": labeled.astype(int).tolist(),
            "old_classes": [1, 1, 1, 0, 0, 0],
            **changes,
        }
        store: EmbeddingStore = make_store(rows, **columns)
        if clustered:
            cluster_store(SSKMeansConfig(index=store.path, num_clusters=CLASSES))
        return store

    return made


def answer(store: EmbeddingStore, **options: Any) -> Any:
    return predict_images(DiscoverAnswerConfig(index=store.path, **options)).to_json()


def test_a_class_that_is_ruled_out_for_an_image_is_not_predicted_and_others_keep_their_confidence(
    build: Build, tmp_path: Path
) -> None:
    store, table = build(), tmp_path / "not.csv"
    answer(store, min_confidence=0.5)
    before = read_table(store.path.with_name("made.answer.csv"))
    first, every = before[0]["path"], list(read_result(store, "answer").arrays["names"])
    second = before[1]["path"]
    table.write_text(f"path,label\n{first},class-0\n{first},other\n" + "".join(f"{second},{name}\n" for name in every))
    answer(store, min_confidence=0.5, ruled_out=table, result="again")
    after = read_table(store.path.with_name("made.again.csv"))

    assert before[2:] == after[2:]
    assert (before[0]["label_or_group"], before[0]["runner_up"]) == ("class-0", after[0]["label_or_group"])
    second_confidence = float(before[0]["confidence"]) - float(before[0]["margin"])
    assert float(after[0]["confidence"]) == pytest.approx(second_confidence, abs=2e-4)  # rounded
    assert "class-0" not in (after[0]["runner_up"], after[0]["best_class"])
    assert [row["kind"] for row in after[:2]] == ["unsure", "unsure"]
    assert float(after[1]["confidence"]) == 0


def test_far_blobs_are_answered_by_name_or_as_a_new_group(build: Build) -> None:
    store = build()

    result = answer(store, min_confidence=0.5)

    assert result["rows"] == 102
    assert result["counts"] == {"known": 42, "new": 60, "unsure": 0}
    rows = read_table(store.path.with_name("made.answer.csv"))
    assert list(rows[0]) == list(COLUMNS)
    assert [row["path"] for row in rows] == [store.sample_ids[i] for i in np.flatnonzero(~store.labeled)]
    assert {(row["label_or_group"], row["kind"]) for row in rows[:14]} == {("class-0", "known")}
    assert {row["kind"] for row in rows[42:]} == {"new"}
    assert len({row["label_or_group"] for row in rows[42:62]}) == 1
    assert all(0.5 <= float(row["confidence"]) <= 1 and row["runner_up"] != row["label_or_group"] for row in rows)
    arrays = read_result(store, "answer").arrays
    assert {row["best_class"] for row in rows} <= set(np.array(arrays["names"])[np.asarray(arrays["new_classes"]) == 0])
    for row in rows:
        assert 0 <= float(row["best_confidence"]) <= 1
        assert 0 <= float(row["new_chance"]) <= 1 + 1e-9
        assert row["group"] in arrays["names"]
        if row["kind"] == "known":
            assert (row["best_class"], row["best_confidence"]) == (row["label_or_group"], row["confidence"])
            assert float(row["new_chance"]) <= 1 - float(row["confidence"]) + 1e-3
    given = np.asarray(arrays["decisions"]) == 3
    assert (np.asarray(arrays["best_confidence"])[given] == 1).all()
    assert (np.asarray(arrays["new_chance"])[given] == 0).all()


def test_embeddings_that_are_never_negative_count_by_their_square_roots(
    make_store: Any, rng: np.random.Generator
) -> None:
    labels = np.repeat(np.arange(CLASSES), PER_CLASS)
    columns = {
        "labels": labels.tolist(),
        "labeled": (np.arange(len(labels)) % PER_CLASS < LABELED).astype(int).tolist(),
    }
    rows = rng.gamma(0.5, size=(len(labels), 12)) + 0.4 * np.eye(12)[labels]
    plain = make_store(rows, name="plain.h5", **columns)
    # a number below 0 in every row, too small to count
    rooted = make_store(np.column_stack([np.sqrt(rows), np.full(len(rows), -1e-7)]), name="rooted.h5", **columns)

    for store in (plain, rooted):
        answer(store, num_clusters=CLASSES)

    one, two = (read_result(store, "answer").arrays for store in (plain, rooted))
    assert [arrays["rule_settings"][2] for arrays in (one, two)] == [1, 0]
    # rounding moves single images between near groups
    assert (one["group_ids"] == two["group_ids"]).mean() > 0.9
    np.testing.assert_allclose(one["confidence"], two["confidence"], atol=0.2)


@pytest.mark.parametrize(("new_classes", "weight"), [("auto", 0.01), ("some", 1.0)])
def test_groups_count_by_the_evidence_for_them_unless_they_are_said_to_be_there(
    build: Build, monkeypatch: pytest.MonkeyPatch, new_classes: str, weight: float
) -> None:
    monkeypatch.setattr(UnlabeledGroupEstimate, "group_weight", 0.01)
    store = build(0.3, clustered=False)
    groups = discover_categories(DiscoverCategoriesConfig(index=store.path, new_classes=new_classes)).to_json()
    answer(store)

    assert groups["num_classes"] > OLD
    assert groups["group_weight"] == weight
    arrays = read_result(store, "answer").arrays
    assert arrays["rule_settings"][3] == weight
    assert arrays["new_classes"][arrays["group_ids"]].any() == (weight == 1)


def test_a_grouping_with_a_name_of_its_own_is_suggested(build: Build) -> None:
    store = build(0.3, clustered=False)
    discover_categories(DiscoverCategoriesConfig(index=store.path, num_classes=CLASSES, result="mine"))
    with pytest.raises(StoreError, match=r"has no result named .* pass it as --grouping \(existing results: mine\)\."):
        answer(store)


@pytest.mark.slow
def test_grouping_first_answers_as_discovering_and_answering_do(build: Build) -> None:
    one, two = build(0.3), build(0.3, name="two.h5")
    discover_categories(DiscoverCategoriesConfig(index=one.path, num_classes=CLASSES, result="groups", seed=5))
    answer(one, grouping="groups", seed=5)

    made = predict_images(DiscoverAnswerConfig(index=two.path, num_clusters=CLASSES, grouping="groups", seed=5)).paths

    assert [path.name for path in made] == ["answer.h5", "two.answer.csv", "groups.h5"]
    assert two.path.with_name("two.answer.csv").read_bytes() == one.path.with_name("made.answer.csv").read_bytes()


@pytest.mark.slow
def test_result_holds_a_decision_for_every_row(build: Build) -> None:
    store = build(0.3)
    answer(store, result="all", min_confidence=0.0)
    limit = float(np.median(read_result(store, "all").arrays["confidence"][~np.asarray(store.labeled)]))
    answer(store, min_confidence=limit)

    arrays = read_result(store, "answer").arrays
    decisions = np.array(arrays["decision_names"])[arrays["decisions"]]
    given = np.asarray(store.labeled)
    assert set(decisions[given]) == {"given"}
    assert (arrays["confidence"][given] == 1).all()
    np.testing.assert_array_equal(arrays["pseudo_labels"][given], np.asarray(store.labels)[given])
    unsure = decisions == "unsure"
    assert 0 < unsure.sum() < 102
    assert (arrays["confidence"][unsure] < limit).all()
    assert (arrays["confidence"][~unsure] >= limit).all()
    assert (arrays["pseudo_labels"][unsure] == -1).all()
    assert (arrays["group_ids"] >= 0).all()


def test_chances_of_hidden_labels_add_up_to_how_many_are_right(rng: np.random.Generator) -> None:
    truth = np.arange(200) % 5
    features = (np.eye(5)[truth] + rng.normal(0, 0.45, (200, 5))).astype(np.float32)
    labels = np.where(np.arange(200) < 60, truth, -1)
    judge, groups = RefittableClassifier(features, labels), np.arange(5)

    evidence = collect_held_out_evidence(judge, labels, truth, groups, 0.0, min_size=1, seed=0)

    assert evidence.weights.sum() == pytest.approx(evidence.num_labels)
    found = fit_calibration(evidence)
    assert found.cautious > found.likeliest
    assert found.after is not None
    assert found.after.ece < 0.15
    # hidden for the evidence, labels are there for the answers: by more of them, these are surer
    assert evidence.more_labels == pytest.approx((1 + 1 / 12) / (1 + 1 / 8))
    fitted = fit_calibration(replace(evidence, more_labels=1.0)).likeliest
    assert found.likeliest == pytest.approx(fitted * evidence.more_labels)


def test_as_many_images_of_new_classes_are_assumed_as_were_estimated() -> None:
    of_group, ids, labels = np.array([0, 1, -1, -1]), np.repeat(np.arange(4), 5), np.full(20, -1)
    labels[[0, 1, 5, 6]] = [0, 0, 1, 1]
    empty = np.zeros((20, 1), dtype=np.float32)
    grouping = Grouping("", "", np.arange(20), empty, ids, of_group, ["a", "b", "new-1", "new-2"], new_share=0.3)
    shares = np.tile([0.4, 0.3, 0.2, 0.1], (20, 1))

    assert _estimate_new_fraction(grouping, shares, labels) == pytest.approx(0.3)
    assert _estimate_new_fraction(replace(grouping, new_share=None), shares, labels) == pytest.approx(2 / 4 * 20 / 16)
    shares[:15, 2] = 1  # predicted as a new group
    assert _estimate_new_fraction(grouping, shares, labels) == pytest.approx(11 / 16)


@pytest.mark.parametrize("new_classes", ["auto", "none"])
def test_the_share_of_new_classes_comes_from_the_groups_unless_all_are_said_to_have_labels(
    make_store: Any, new_classes: str
) -> None:
    rng, truth = np.random.default_rng(0), np.repeat(np.arange(4), 20)
    rows = np.repeat(np.eye(4), 20, axis=0) + rng.normal(0, 0.1, (80, 4))
    labeled = np.arange(80) % 20 < np.repeat([6, 6, 6, 0], 20)
    store = make_store(rows, labels=truth.tolist(), labeled=labeled.astype(int).tolist(), old_classes=[1, 1, 1, 0])
    found = discover_categories(DiscoverCategoriesConfig(index=store.path, new_classes=new_classes)).to_json()

    calibration = answer(store, grouping="categories")["calibration"]

    if new_classes == "none":
        assert (found["new_share"], calibration["new_share"], calibration["rows_of_new_classes"]) == (None, 0, 0)
    else:
        assert 0.1 < found["new_share"] < 0.7  # the true one is 20 of 62
        assert calibration["new_share"] >= found["new_share"]
        assert calibration["rows_of_new_classes"] > 0


def test_rows_of_a_hidden_class_are_named_wrongly_where_there_is_no_new_group(rng: np.random.Generator) -> None:
    truth = np.arange(200) % 5
    features = (np.eye(5)[truth] + rng.normal(0, 0.2, (200, 5))).astype(np.float32)
    labels = np.where(np.arange(200) < 60, truth, -1)

    evidence = collect_held_out_evidence(
        RefittableClassifier(features, labels), labels, truth, np.arange(5), 0.1, min_size=1, seed=0
    )

    assert evidence is not None
    assert evidence.accuracy(new=True) == 0
    assert evidence.weights[evidence.of_new].sum() == pytest.approx(0.1 * evidence.num_labels)


def test_a_hidden_class_is_right_where_the_others_of_it_are_in_the_same_new_group() -> None:
    shares = np.array([[0.1, 0.9, 0], [0.2, 0.8, 0], [0.3, 0.7, 0], [0.9, 0.1, 0], [0.8, 0.1, 0.1]])
    groups = np.array([4, -1, -1])  # the class of the first group; the others are new

    found = collect_unused_label_evidence(shares, groups, np.array([7, 7, 7, 4, -1]))

    assert found.correct.tolist() == [1, 1, 1, 1]
    assert found.of_new.tolist() == [True, True, True, False]
    assert found.accuracy(new=False) == 1
    assert found.weights.sum() == found.num_labels == 4


def test_labels_that_correct_predictions_count_less_than_labels_drawn_by_chance(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = build(0.45)
    seen: list[Any] = []
    make = categories.build_hierarchy
    monkeypatch.setattr(
        categories,
        "build_hierarchy",
        lambda rows, labels, generator: (seen.append(labels), make(rows, labels, generator=generator))[1],
    )
    truth, names = np.asarray(store.labels), [f"class-{i}" for i in range(CLASSES)]
    known = [i for i in range(60) if i % PER_CLASS < LABELED]

    def predict(rows: list[int], name: str, previous: str | None) -> dict[str, Any]:
        table = tmp_path / f"{name}.csv"
        table.write_text("path,label\n" + "".join(f"{store.sample_ids[i]},{names[truth[i]]}\n" for i in rows))
        earlier = {} if previous is None else {"previous": store.path, "previous_result": previous}
        grouped = {} if previous is None else {"previous": store.path, "previous_answers": previous}
        options = {"index": store.path, "labels": table, "own_labels": False, "new_classes": "some", **grouped}
        discover_categories(DiscoverCategoriesConfig(**options, overwrite=True))
        answer(store, labels=table, own_labels=False, grouping="categories", result=name, **earlier)
        return dict(read_result(store, name).arrays)

    first = predict(known, "first", None)
    guessed = np.array(first["names"])[first["group_ids"]]
    others = [i for i in range(60) if i not in known]
    wrong = [i for i in others if guessed[i] != names[truth[i]]]
    by_chance = float((1 - first["expected"][wrong]).sum())

    corrected = predict([*known, *wrong, 100], "second", "first")
    # made without the corrections, the groups of their classes get them afterwards
    assert (seen[-1][wrong] == -1).all()
    assert (seen[-1][known] >= 0).all()
    groups = read_result(store, "categories").arrays
    assert np.array(groups["names"])[groups["pseudo_labels"][wrong]].tolist() == [names[truth[i]] for i in wrong]
    drawn = predict([*known, *others], "drawn", "first")
    third = predict([*known, *wrong, 100, 101], "third", "second")

    assert len(wrong) >= 3
    weights = corrected["label_weights"]
    np.testing.assert_allclose(weights[wrong], 1 / ((len(wrong) - by_chance) * len(wrong) + 1), rtol=1e-6)
    assert weights[wrong].max() < 1
    assert weights[100] == 1  # its class had no label
    assert (np.delete(weights, wrong) == 1).all()
    assert drawn["label_weights"].min() > weights[wrong].max()
    np.testing.assert_array_equal(third["label_weights"][wrong], weights[wrong])
    assert "label_weights" not in first


def test_one_label_in_each_class_is_enough_for_answers_that_nothing_checks(build: Build) -> None:
    store = build(labeled=[int(row % PER_CLASS == 0 and row < OLD * PER_CLASS) for row in range(CLASSES * PER_CLASS)])
    heard = Heard()

    with use_progress(heard):
        result = answer(store)

    assert result["expected_right"] is None
    assert result["calibration"]["source"] == "none: no class has two labels"
    assert (result["calibration"]["labels"], result["calibration"]["before"]) == (0, None)
    assert "expected" not in read_result(store, "answer").arrays
    assert any("no class has two labels, so confidence cannot be calibrated" in text for text in heard.warnings)


@pytest.mark.slow
def test_truth_that_training_may_not_use_changes_nothing(build: Build, rng: np.random.Generator) -> None:
    store = build(0.3)
    answer(store)
    first = store.path.with_name("made.answer.csv").read_bytes()
    labels = np.repeat(np.arange(CLASSES), PER_CLASS)
    hidden = (labels >= OLD) | (np.arange(len(labels)) % PER_CLASS >= LABELED)
    labels[hidden] = rng.permutation(labels[hidden])
    other = build(0.3, name="other.h5", labels=labels.tolist())

    answer(other)

    assert other.path.with_name("other.answer.csv").read_bytes() == first


def test_groups_are_judged_without_any_label_to_learn_from(build: Build, tmp_path: Path) -> None:
    store = build()
    discover_categories(DiscoverCategoriesConfig(index=store.path, num_classes=5, own_labels=False))
    path = tmp_path / "checked.csv"
    path.write_text("path,label\n" + "".join(f"{row:04d}.png,class-{row // PER_CLASS}\n" for row in range(0, 100, 5)))

    found = answer(store, grouping="categories", own_labels=False, calibration_labels=path, min_confidence=0.0)

    assert found["counts"]["known"] == 0
    assert found["counts"]["new"] > 0
    assert found["calibration"]["rows_of_new_classes"] == 20


def test_given_labels_are_used_instead_of_those_of_the_store(build: Build, tmp_path: Path) -> None:
    store = build()
    path = tmp_path / "checked.csv"
    truth = [
        (row, f"class-{row // PER_CLASS}" if row < 80 else "zebra") for row in range(10, 100, 5) if row % 20 >= LABELED
    ]
    path.write_text("path,label\n" + "".join(f"{row:04d}.png,{text}\n" for row, text in truth))

    found = answer(store, calibration_labels=path, min_confidence=0.0)

    assert found["calibration"]["labels"] == len(truth)
    assert found["calibration"]["accuracy_known"] == found["calibration"]["accuracy_new"] == 1
    used = np.flatnonzero(read_result(store, "answer").arrays["calibration_rows"])
    assert used.tolist() == [row for row, _ in truth]
    scored: Any = evaluate_predictions(EvaluateAnswerConfig(index=store.path)).to_json()
    assert scored["rows"] == 102 - len(truth)


def test_head_is_answered_through_the_features_and_says_that_its_network_saw_the_labels(
    labelkit: Any, build: Build
) -> None:
    labels = np.repeat(np.arange(CLASSES), PER_CLASS)
    store = build(clustered=False, logits=np.eye(CLASSES)[labels])
    classify_by_logits(DiscoverHeadConfig(index=store.path))

    done = labelkit("discover", "answer", "--index", store.path, "--json")

    assert done.code == 0
    assert "confidences are likely too high" in done.err
    assert done.json["grouping"]["result"] == "head"
    assert done.json["calibration"]["network_saw_labels"] == "yes"


@pytest.mark.slow
def test_everything_unsure_is_said_with_the_largest_confidence(labelkit: Any, build: Build) -> None:
    store = build(0.4)
    done = labelkit("discover", "answer", "--index", store.path, "--min-confidence", "1", "--json")
    assert done.code == 0
    assert done.json["counts"] == {"known": 0, "new": 0, "unsure": 102}
    assert "every prediction is unsure (the highest confidence is 0." in done.err
    scored = labelkit("evaluate", "answer", "--index", store.path, "--json")
    assert (scored.code, scored.json["answered"], scored.json["accuracy_answered"]) == (0, 0, None)


@pytest.mark.slow
def test_evaluation_equals_loops_over_the_rows(build: Build) -> None:
    store = build(0.35)
    answer(store, min_confidence=0.7)

    found: Any = evaluate_predictions(EvaluateAnswerConfig(index=store.path)).to_json()

    arrays = read_result(store, "answer").arrays
    truth = np.asarray(store.labels)
    rows = np.flatnonzero(~np.asarray(store.labeled))
    class_of = {name["group"]: name["class"] for name in found["class_of_group"]}
    correct = [class_of[arrays["names"][arrays["group_ids"][row]]] == f"class-{truth[row]}" for row in rows]
    confidence = arrays["confidence"][rows]
    assert [class_of[f"class-{i}"] for i in range(OLD)] == [f"class-{i}" for i in range(OLD)]
    assert found["accuracy"] == pytest.approx(np.mean(correct))
    assert found["accuracy_answered"] == pytest.approx(
        np.mean([c for c, p in zip(correct, confidence, strict=True) if p >= 0.7])
    )
    best_first = np.argsort(-confidence, kind="stable")
    risks = [1 - np.mean([correct[i] for i in best_first[: k + 1]]) for k in range(len(rows))]
    assert found["aurc"] == pytest.approx(np.mean(risks), abs=0.01)
    assert sum(line["rows"] for line in found["outcomes"]) == len(rows)
    assert sum(line["unsure"] for line in found["outcomes"]) == int((confidence < 0.7).sum())
    predicted = np.array([class_of[arrays["names"][arrays["group_ids"][row]]] for row in rows])
    for line in found["by_class"]:
        mine, named = truth[rows] == int(line["class"].removeprefix("class-")), predicted == line["class"]
        assert line["images"] == mine.sum()
        assert line["recall"] == pytest.approx(np.mean(named[mine]))
        assert line["precision"] == (pytest.approx(np.mean(mine[named])) if named.any() else None)
        assert (line["confused_with"] is None) == named[mine].all()
    recalls = [line["recall"] for line in found["by_class"]]
    assert (recalls, len(recalls)) == (sorted(recalls), len(np.unique(truth[rows])))


def test_files_are_made_next_to_the_store_and_not_replaced_unasked(labelkit: Any, build: Build, tmp_path: Path) -> None:
    store = build()
    drawn = tmp_path / "scores.png"
    words = ("discover", "answer", "--index", store.path)
    done = labelkit(*words, "-q")
    made = [tmp_path / "made.h5.results" / "answer.h5", tmp_path / "made.answer.csv"]
    assert (done.code, done.out.split()) == (0, [str(path) for path in made])
    scores = ("evaluate", "clustering", "--index", store.path, "--json")
    assert [score["result"] for score in labelkit(*scores).json["scores"]] == ["ss-kmeans"]
    assert [score["result"] for score in labelkit(*scores, "--results", "answer").json["scores"]] == ["answer"]
    assert labelkit("evaluate", "answer", "--index", store.path, "--plot", drawn, "-q").code == 0
    assert drawn.read_bytes()[:4] == b"\x89PNG"

    again = labelkit(*words, "-q")

    assert again.out.split() == [str(made[0]).replace("answer", "answer-2"), str(made[1]).replace("answer", "answer-2")]
    assert labelkit("evaluate", "answer", "--index", store.path, "--json").json["answer"] == "answer-2"
    named = labelkit(*words, "--result", "answer")
    assert named.code in (2, 3)
    assert "exists" in named.err
    assert labelkit(*words, "--overwrite").code == 0
    assert labelkit(*words, "--result", "second", "-q").code == 0
    assert (tmp_path / "made.second.csv").exists()


@pytest.mark.slow
def test_a_new_group_without_rows_changes_no_name(labelkit: Any, build: Build) -> None:
    """A group that kept its name from an earlier time may be empty."""
    store = build()
    result = read_result(store, "ss-kmeans")
    arrays = {key: np.asarray(value) for key, value in result.arrays.items() if key in ("cluster_ids", "labeled")}
    names, new = list(result.arrays["names"]), np.asarray(result.arrays["new_classes"])
    for more in (0, 2):
        arrays["names"] = [*names, *(f"old-{i}" for i in range(more))]
        arrays["new_classes"] = np.append(new, np.ones(more, dtype=new.dtype))
        write_result(
            store, f"with-{more}", kind="clusters", arrays=arrays, params=dict(result.params), stage="cluster ss-kmeans"
        )
        words = ("--index", store.path, "--grouping", f"with-{more}", "--result", f"answer-{more}")
        assert labelkit("discover", "answer", *words, "-q").code == 0
    first, second = (read_result(store, f"answer-{more}").arrays for more in (0, 2))
    assert np.array_equal(first["group_ids"], second["group_ids"])
    np.testing.assert_allclose(first["confidence"], second["confidence"], atol=0.1)


def test_labels_of_a_class_that_the_groups_do_not_know_are_refused(labelkit: Any, build: Build, tmp_path: Path) -> None:
    store = build()
    labels = tmp_path / "more.csv"
    labels.write_text(f"path,label\n{store.sample_ids[-1]},pear\n{store.sample_ids[-2]},fig\n")
    done = labelkit("discover", "answer", "--index", store.path, "--labels", labels)
    assert done.code == 3
    assert "has no groups for the classes 'fig', 'pear', which were first labeled after" in done.err
    assert "again with these labels" in done.err


def without_labels(build: Build) -> EmbeddingStore:
    store = build(clustered=False, labeled=[0] * CLASSES * PER_CLASS, old_classes=None)
    write_groups(store, "head")
    return store


def with_every_label(build: Build) -> EmbeddingStore:
    store = build(clustered=False, labeled=[1] * CLASSES * PER_CLASS, old_classes=[1] * CLASSES)
    write_groups(store, "head")
    return store


def with_nameless_groups(build: Build) -> EmbeddingStore:
    store = build(clustered=False)
    arrays = {"cluster_ids": np.zeros(store.n, dtype=np.int64)}
    write_result(store, "head", kind="clusters", arrays=arrays, params={}, stage="cluster k-means")
    return store


def with_groups_of_another_store(build: Build) -> EmbeddingStore:
    older = build()
    kept = (older.path.with_name("made.h5.results") / "ss-kmeans.h5").read_bytes()
    store = build(0.2, seed=1, clustered=False)
    (store.path.with_name("made.h5.results") / "ss-kmeans.h5").write_bytes(kept)
    return store


def with_a_class_it_does_not_have(build: Build) -> EmbeddingStore:
    store = build(clustered=False)
    write_groups(store, "head", first="zebra")
    return store


def write_groups(store: EmbeddingStore, name: str, *, first: str = "class-0") -> None:
    arrays = {
        "pseudo_labels": np.arange(store.n) % CLASSES,
        "names": [first, "class-1", "class-2", "new-1", "new-2", "new-3"],
        "new_classes": np.arange(CLASSES) >= OLD,
    }
    write_result(store, name, kind="classes", arrays=arrays, params={}, stage="discover head")


@pytest.mark.parametrize(
    ("made", "error", "message"),
    [
        (without_labels, DatasetError, "has no usable labels"),
        (with_every_label, StoreError, "every grouped image already has a label"),
        (lambda build: build(clustered=False), StoreError, "Pass --num-clusters"),
        (
            lambda build: build(clustered=False, logits=np.zeros((120, 2))),
            StoreError,
            "First run `labelkit discover head` on this store",
        ),
        (with_nameless_groups, StoreError, "does not group the images into known and new classes"),
        (with_groups_of_another_store, Mismatch, "was created from another version of"),
        (with_a_class_it_does_not_have, StoreError, "contains the class 'zebra'"),
    ],
)
def test_store_that_cannot_be_answered_from_says_why(
    build: Build, made: Callable[[Build], EmbeddingStore], error: type[LabelkitError], message: str
) -> None:
    store = made(build)
    with pytest.raises(error) as caught:
        answer(store)
    assert message in str(caught.value)
    assert caught.value.remedy
    assert not store.path.with_name("made.answer.csv").exists()


def test_given_labels_that_do_not_help_are_left_out_or_refused(labelkit: Any, build: Build, tmp_path: Path) -> None:
    store, path = build(), tmp_path / "checked.csv"
    words = ("discover", "answer", "--index", store.path, "--calibration-labels", path, "--json")
    for name, message in (
        ("none.png", "1 of 1 images are not in"),
        ("0000.png", "all labeled images in this file may have been used for training"),
    ):
        path.write_text(f"path,label\n{name},class-0\n")
        refused = labelkit(*words)
        assert refused.code == 3
        assert f"error: {path}: {message}" in refused.err
    path.write_text("path,label\n0000.png,class-0\n0010.png,class-0\n0030.png,class-1\n")
    done = labelkit(*words)
    assert done.code == 0
    assert "1 images are ignored, since training may have used their labels" in done.err
    assert done.json["calibration"]["labels"] == 2


def test_only_answers_whose_truth_is_known_can_be_scored(build: Build, make_store: Any) -> None:
    store = build()
    with pytest.raises(StoreError, match=r"contains clusters .*, not predictions"):
        evaluate_predictions(EvaluateAnswerConfig(index=store.path, answer="ss-kmeans"))

    labels = [row // PER_CLASS if row % PER_CLASS < LABELED and row < OLD * PER_CLASS else -1 for row in range(120)]
    blind = make_store(
        np.asarray(store.embeddings), name="blind.h5", labels=labels, labeled=[int(label >= 0) for label in labels]
    )
    cluster_store(SSKMeansConfig(index=blind.path, num_clusters=CLASSES))
    answer(blind)
    with pytest.raises(StoreError, match="no predicted image has a true label, apart from those used for calibration"):
        evaluate_predictions(EvaluateAnswerConfig(index=blind.path))


def test_labels_that_count_for_less_than_half_are_left_out_but_where_a_class_has_no_others() -> None:
    labels, weights = np.array([0, 0, 1, 1, -1, 2]), np.array([1, 0.4, 0.1, 0.2, 1, 0.5])

    assert drop_low_weight_labels(labels, weights).tolist() == [0, -1, 1, 1, -1, 2]


def test_labels_that_count_are_hidden_before_corrections_which_groups_are_made_without(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = np.arange(200) % 5
    features = (np.eye(5)[truth] + rng.normal(0, 0.3, (200, 5))).astype(np.float32)
    labels, weights = np.where(np.arange(200) < 60, truth, -1), np.where(np.arange(200) < 30, 1.0, 0.01)
    seen: list[Any] = []
    make = calibrate_module.build_hierarchy
    monkeypatch.setattr(
        calibrate_module,
        "build_hierarchy",
        lambda rows, kept, generator: (seen.append(kept), make(rows, kept, generator=generator))[1],
    )
    judge = RefittableClassifier(features, labels, weights)

    evidence = collect_held_out_evidence(judge, labels, truth, np.arange(5), 0.0, min_size=1, seed=0)

    assert evidence.weights.sum() == pytest.approx(evidence.num_labels)
    assert all((kept[30:] == -1).all() and (kept[:30] >= 0).any() for kept in seen)


def test_a_new_group_whose_images_all_get_a_label_of_another_class_is_gone(build: Build, tmp_path: Path) -> None:
    store, table = build(0.05), tmp_path / "labels.csv"
    truth = np.asarray(store.labels)
    known = [i for i in range(OLD * PER_CLASS) if i % PER_CLASS < LABELED]
    lines = [f"{store.sample_ids[i]},class-{truth[i]}\n" for i in known]
    common: dict[str, Any] = {"labels": table, "own_labels": False}
    table.write_text("path,label\n" + "".join(lines))
    discover_categories(DiscoverCategoriesConfig(index=store.path, new_classes="some", **common))
    answer(store, grouping="categories", result="first", **common)
    of_new = np.flatnonzero(truth == CLASSES - 1)
    table.write_text("path,label\n" + "".join([*lines, *(f"{store.sample_ids[i]},class-0\n" for i in of_new)]))
    earlier: dict[str, Any] = {"previous": store.path, "previous_answers": "first", "overwrite": True}

    discover_categories(DiscoverCategoriesConfig(index=store.path, new_classes="some", **earlier, **common))

    groups = read_result(store, "categories").arrays
    assert set(np.array(groups["names"])[groups["pseudo_labels"][of_new]]) == {"class-0"}

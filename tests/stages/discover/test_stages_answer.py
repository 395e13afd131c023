"""``labelkit discover answer`` and ``labelkit evaluate answer``: known, new or unsure, and how far to trust it."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from labelkit.config.cluster import SSKMeansConfig
from labelkit.config.discover import DiscoverAnswerConfig, DiscoverCategoriesConfig, DiscoverHeadConfig
from labelkit.config.evaluate import EvaluateAnswerConfig
from labelkit.errors import DatasetError, LabelkitError, Mismatch, Refused, StoreError
from labelkit.stages.discover import classify, held_out
from labelkit.stages.discover.answer import _csv_text, _new_share, answer_images
from labelkit.stages.discover.calibrate import calibrate
from labelkit.stages.discover.categories import discover_categories, discover_head
from labelkit.stages.discover.classify import DEFAULT, Recipe, RowJudge
from labelkit.stages.discover.confidence import Confidences
from labelkit.stages.discover.held_out import (
    Evidence,
    Grouping,
    Looks,
    _judge_new,
    best_looks,
    given_label_evidence,
    hidden_label_looks,
)
from labelkit.stages.discover.made_groups import GroupingRule
from labelkit.stages.evaluate.answers import evaluate_answer
from labelkit.stages.group.cluster import cluster_store
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.results import read_result, write_result
from labelkit.store.writer import Contents, Image
from numpy.typing import NDArray

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
    return answer_images(DiscoverAnswerConfig(index=store.path, **options)).to_json()


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


def grouping_of(features: NDArray[np.float64], group_ids: list[int], class_of_group: list[int]) -> Grouping:
    rows = np.arange(len(features))
    names = [f"group-{i}" for i in range(len(class_of_group))]
    ids, classes = np.array(group_ids, dtype=np.int64), np.array(class_of_group, dtype=np.int64)
    return Grouping(
        "made",
        "cluster ss-kmeans",
        rows,
        features.astype(np.float32),
        ids,
        classes,
        names,
        GroupingRule("k-means", 1, 3, 50),
    )


def evidence_of(grouping: Grouping, labels: NDArray[np.int64], *, new_share: float, **options: Any) -> Evidence | None:
    looks = hidden_label_looks(RowJudge(grouping.features, labels), [DEFAULT], grouping, labels, seed=0, **options)
    return None if looks is None else looks.finish(new_share)


def test_far_blobs_are_answered_by_name_or_as_a_new_group(build: Build) -> None:
    store = build()

    result = answer(store, min_confidence=0.5)

    assert result["rows"] == 102
    assert result["counts"] == {"known": 42, "new": 60, "unsure": 0}
    rows = table(store.path.with_name("made.answer.csv"))
    assert list(rows[0]) == ["path", "label_or_group", "kind", "confidence", "margin", "runner_up"]
    assert [row["path"] for row in rows] == [store.sample_ids[i] for i in np.flatnonzero(~store.labeled)]
    assert {(row["label_or_group"], row["kind"]) for row in rows[:14]} == {("class-0", "known")}
    assert {row["kind"] for row in rows[42:]} == {"new"}
    assert len({row["label_or_group"] for row in rows[42:62]}) == 1
    assert all(0.5 <= float(row["confidence"]) <= 1 and row["runner_up"] != row["label_or_group"] for row in rows)


def test_grouping_first_answers_as_discovering_and_answering_do(build: Build) -> None:
    one, two = build(0.3), build(0.3, name="two.h5")
    discover_categories(DiscoverCategoriesConfig(index=one.path, num_classes=CLASSES, result="groups", seed=5))
    answer(one, grouping="groups", seed=5)

    made = answer_images(DiscoverAnswerConfig(index=two.path, num_clusters=CLASSES, grouping="groups", seed=5)).paths

    assert [path.name for path in made] == ["answer.h5", "two.answer.csv", "groups.h5"]
    assert two.path.with_name("two.answer.csv").read_bytes() == one.path.with_name("made.answer.csv").read_bytes()


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


def test_the_share_expected_right_is_a_range_around_the_confidences(build: Build) -> None:
    store = build()
    told = answer(store)
    arrays = read_result(store, "answer").arrays
    given = arrays["decisions"] == arrays["decision_names"].index("given")
    low, high = arrays["expected_low"], arrays["expected_high"]
    assert (low[given] == 1).all()
    assert (high[given] == 1).all()
    # the lower end is more cautious than what single images are told
    assert (low <= arrays["confidence"]).all()
    assert (low[~given] < high[~given]).all()
    assert told["expected_right"] == {
        "from": pytest.approx(low[~given].mean(), abs=1e-6),
        "to": pytest.approx(high[~given].mean(), abs=1e-6),
    }


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


def test_same_seed_gives_the_same_files_and_another_hides_other_labels(build: Build) -> None:
    store = build(0.4)
    temperatures = [answer(store, overwrite=True, seed=seed)["calibration"]["temperature"] for seed in (3, 3, 4)]
    assert temperatures[0] == temperatures[1] != temperatures[2]


def test_labels_in_the_grouping_do_not_make_noise_look_calibrated(rng: np.random.Generator) -> None:
    # Features without any relation to the labels: the grouping has all labeled rows right, because they are fixed.
    features, labels = rng.normal(size=(120, 8)), np.full(120, -1)
    labels[:40] = np.arange(40) % 4
    grouping = grouping_of(features, [i % 8 for i in range(120)], [0, 1, 2, 3, -1, -1, -1, -1])

    found = evidence_of(grouping, labels, new_share=0.5, share=0.5, num_rounds=10)

    assert found is not None
    # 1 of 8 groups is right
    assert found.accuracy(new=False) < 0.35
    assert found.num_labels == 40


def test_hidden_classes_weigh_as_much_as_new_images_are_taken_to_be(rng: np.random.Generator) -> None:
    features = np.repeat(np.eye(4), 15, axis=0) + rng.normal(0, 0.05, (60, 4))
    labels = np.where(np.arange(60) < 45, np.where(np.arange(60) % 15 < 5, np.arange(60) // 15, -1), -1)
    grouping = grouping_of(features, [i // 15 for i in range(60)], [0, 1, 2, -1])

    found = evidence_of(grouping, labels, new_share=0.3, share=0.4, num_rounds=6)

    assert found is not None
    assert found.weights.sum() == pytest.approx(found.num_labels) == 15
    assert found.weights[found.own < 0].sum() == pytest.approx(0.3 * 15)
    # 6 rounds: one of three classes hidden whole with its 5 rows, 2 rows of each of the others
    assert ((found.own < 0).sum(), (found.own >= 0).sum()) == (30, 24)
    assert found.accuracy(new=False) == 1


def test_class_with_one_label_is_not_tested(rng: np.random.Generator) -> None:
    features = np.repeat(np.eye(3), 10, axis=0) + rng.normal(0, 0.05, (30, 3))
    labels = np.full(30, -1)
    labels[[0, 1, 2, 10]] = [0, 0, 0, 1]
    grouping = grouping_of(features, [i // 10 for i in range(30)], [0, 1, -1])

    found = evidence_of(grouping, labels, new_share=0.5, share=0.5, num_rounds=4)

    assert found is not None
    assert found.num_labels == 3


def test_one_class_is_never_hidden_whole(build: Build) -> None:
    labels = np.repeat(np.arange(CLASSES), PER_CLASS)
    labeled = (labels == 0) & (np.arange(len(labels)) < 8)
    store = build(labeled=labeled.astype(int).tolist(), old_classes=[1, 0, 0, 0, 0, 0])

    found = answer(store)["calibration"]

    assert found["rows_of_new_classes"] == 0
    assert found["confidence_of_new_groups"].startswith("not tested")


def test_given_labels_judge_the_grouping_itself() -> None:
    # group 0 = class 0, groups 1 and 2 are new; classes 7 and 8 are not known
    features = np.array([[0.0], [0.1], [1.0], [1.1], [1.2], [2.0], [9.0]])
    grouping = grouping_of(features, [0, 0, 1, 1, 1, 2, 2], [0, -1, -1])
    labels = np.array([0, 7, 7, 7, 8, 8, -1])

    found = given_label_evidence(grouping, np.eye(3)[grouping.group_ids], labels)

    assert found is not None
    # row 1 is taken for class 0; row 4 is an 8 among 7s; matching gives row 5 its group, the other 8 does not
    assert found.correct.tolist() == [1, 0, 1, 1, 0, 0.5]
    assert found.own.tolist() == [0, -1, -1, -1, -1, -1]
    assert found.weights.tolist() == pytest.approx([1] * 6)


def test_class_that_may_be_a_small_part_of_its_group_counts_less() -> None:
    # 2 of 4 labels of class 7 are in the large group 1: perhaps 10 of its 40 rows, if classes have 20 rows each
    features = np.arange(60.0)[:, None]
    grouping = grouping_of(features, [0] * 15 + [1] * 40 + [2] * 5, [0, -1, -1])
    labels = np.full(60, -1)
    labels[[0, 15, 16, 55, 56]] = [0, 7, 7, 7, 7]

    found = given_label_evidence(grouping, np.eye(3)[grouping.group_ids], labels)

    verdicts = _judge_new(np.array([1, 1, 2, 2]), np.full(4, 7))
    assert verdicts.max() == 0.5
    assert found.correct.tolist() == pytest.approx([1, *(verdicts * [0.5, 0.5, 1, 1])])


def test_rows_called_known_weigh_more_by_the_classes_that_were_hidden(rng: np.random.Generator) -> None:
    # class 2 lies on class 0: hidden whole, its rows are called known
    features = np.eye(3)[[0, 1, 0, 2]].repeat(15, axis=0) + rng.normal(0, 0.05, (60, 3))
    labels = np.where(np.arange(60) < 45, np.where(np.arange(60) % 15 < 5, np.arange(60) // 15, -1), -1)
    grouping = grouping_of(features, [i // 15 for i in range(60)], [0, 1, 2, -1])

    found = evidence_of(grouping, labels, new_share=0.5, share=0.4, num_rounds=6)

    assert found is not None
    new = found.own < 0
    kinds = [found.weights[new & (found.named_new == kind)] for kind in (False, True)]
    assert all(len(np.unique(kind.round(9))) == 1 for kind in kinds)
    # two of three classes are left in each round
    assert kinds[0][0] == pytest.approx(1.5 * kinds[1][0])


def test_images_called_known_by_mistake_are_missed_by_the_groups() -> None:
    grouping = grouping_of(np.arange(8.0)[:, None], [0, 0, 1, 1, 2, 2, 3, 3], [0, 1, -1, -1])
    unlabeled = np.arange(8) >= 2

    # one of six is named new; two of four groups are new, which is 4 of 8 images, none of them labeled
    named = np.eye(4)[[0, 0, 0, 1, 1, 1, 0, 2]]

    assert _new_share(grouping, named, unlabeled) == pytest.approx(4 / 6)
    assert _new_share(grouping, np.eye(4)[[0, 1, 2, 2, 3, 3, 3, 3]], unlabeled) == 1


def test_confidences_are_more_cautious_where_classes_have_no_labels() -> None:
    scores = np.log(np.array([[0.8, 0.2], [0.7, 0.3], [0.9, 0.1], [0.6, 0.4]] * 5))
    named, correct = np.zeros(20, dtype=np.int64), np.array([1.0, 1, 1, 0] * 5)
    old, new = np.zeros(20, dtype=np.int64), np.full(20, -1)
    without = Evidence(scores, named, np.zeros(20, dtype=bool), correct, old, np.ones(20), 20)

    assert calibrate(replace(without, own=new), None).known > calibrate(without, None).known


def looks_of(right: list[float], share: float, own: list[int] | None = None) -> Looks:
    """Five looks, two at the first label, of answers that are right or wrong."""
    looks = Looks(Recipe(group_share=share))
    looks.correct, looks.sources = [np.array(right)], [np.array([7, 7, 8, 9, 3])]
    looks.own = [np.array([0, 0, 1, 1, 0] if own is None else own)]
    return looks


def test_another_recipe_is_taken_only_where_it_is_clearly_ahead() -> None:
    usual = looks_of([0, 0, 0, 1, 0], 0.75)

    assert best_looks([usual, looks_of([1, 1, 1, 1, 1], 0.25)]).recipe.group_share == 0.25
    assert best_looks([usual, looks_of([1, 1, 0, 0, 0], 0.25)]) is usual  # one label more, one less
    assert best_looks([usual, looks_of([1, 1, 1, 0, 0], 0.25)]) is usual  # two more, one less: within the error
    assert best_looks([usual, looks_of([0, 0, 0, 1, 0], 0.25)]) is usual
    assert (
        best_looks([usual, looks_of([1, 1, 0, 1, 1], 0.5), looks_of([1, 1, 1, 1, 1], 0.25)]).recipe.group_share == 0.25
    )
    np.testing.assert_allclose(looks_of([1, 0, 0, 1, 0], 0.25).right_of_known(), [0, 0.5, 0, 1])
    # classes hidden whole say nothing of how known ones are told apart
    new = [0, 0, -1, -1, -1]
    assert (
        best_looks([looks_of([0, 0, 0, 0, 0], 0.75, new), looks_of([0, 0, 1, 1, 1], 0.25, new)]).recipe.group_share
        == 0.75
    )


def test_groups_come_first_where_they_are_ahead_of_the_classifier(rng: np.random.Generator) -> None:
    truth = np.arange(400) % 4
    # in 200 dimensions three labels a class say little of where its 100 rows are
    features = rng.normal(size=(4, 200))[truth] * 0.27 + rng.normal(size=(400, 200))
    labels = np.where(np.arange(400) < 12, truth, -1)
    grouping = grouping_of(features, truth.tolist(), [0, 1, 2, 3])
    judge = RowJudge(grouping.features, labels)
    usual, groups_first = Recipe(alpha=0.0, group_share=0.9), Recipe(alpha=0.0, group_share=0.25)

    looks = hidden_label_looks(judge, [usual, groups_first], grouping, labels, share=0.3, num_rounds=10, seed=0)

    assert looks is not None
    assert looks.recipe is groups_first
    assert looks.finish(0.0).accuracy(new=False) > 0.8


def test_answers_are_made_by_the_recipe_that_the_rounds_took(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    store = build()
    monkeypatch.setattr(classify, "_GROUPS_LAST", 1.0)

    usual = answer(store, result="usual")["calibration"]["classifier_share"]
    monkeypatch.setattr(held_out, "best_looks", lambda tried: tried[-1])
    other = answer(store, result="other")["calibration"]["classifier_share"]

    assert usual == pytest.approx(1 - 1 / LABELED)
    assert other == 0.25
    assert read_result(store, "other").arrays["rule_settings"][1] == 0.25


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
    assert found["calibration"]["held_out_from"] == "network, classifier and groups"
    assert found["calibration"]["accuracy_known"] == found["calibration"]["accuracy_new"] == 1
    used = np.flatnonzero(read_result(store, "answer").arrays["calibration_rows"])
    assert used.tolist() == [row for row, _ in truth]
    scored: Any = evaluate_answer(EvaluateAnswerConfig(index=store.path)).to_json()
    assert scored["rows"] == 102 - len(truth)


def test_given_labels_that_training_had_are_left_out(labelkit: Any, build: Build, tmp_path: Path) -> None:
    store = build()
    path = tmp_path / "checked.csv"
    path.write_text("path,label\n0000.png,class-0\n0010.png,class-0\n0030.png,class-1\n")

    done = labelkit("discover", "answer", "--index", store.path, "--calibration-labels", path, "--json")

    assert done.code == 0
    assert "1 images left out, since training could use their label" in done.err
    assert done.json["calibration"]["labels"] == 2


def test_head_is_answered_through_the_features_and_says_that_its_network_saw_the_labels(
    labelkit: Any, build: Build
) -> None:
    labels = np.repeat(np.arange(CLASSES), PER_CLASS)
    store = build(clustered=False, logits=np.eye(CLASSES)[labels])
    discover_head(DiscoverHeadConfig(index=store.path))

    done = labelkit("discover", "answer", "--index", store.path, "--json")

    assert done.code == 0
    assert "confidences are likely too high" in done.err
    assert done.json["grouping"]["result"] == "head"
    assert done.json["calibration"]["network_saw_labels"] == "yes"
    assert done.json["calibration"]["held_out_from"] == "classifier, groups and spreading"


def test_clustering_scores_leave_answers_out_unless_they_are_named(labelkit: Any, build: Build) -> None:
    store = build()
    answer(store, min_confidence=0.5)
    words = ("evaluate", "clustering", "--index", store.path, "--json")
    assert [score["result"] for score in labelkit(*words).json["scores"]] == ["ss-kmeans"]
    assert [score["result"] for score in labelkit(*words, "--results", "answer").json["scores"]] == ["answer"]


def test_coverage_asks_for_a_single_candidate_besides(build: Build) -> None:
    store = build(0.35)
    plain = answer(store, min_confidence=0.0, result="plain")
    strict = answer(store, min_confidence=0.0, coverage=0.7, result="strict")
    both = answer(store, min_confidence=0.9, coverage=0.7, result="both")
    assert plain["counts"]["unsure"] == 0
    assert 0 < strict["counts"]["unsure"] < both["counts"]["unsure"]
    assert 0 < strict["calibration"]["conformal_threshold"] < 1


def test_everything_unsure_is_said_with_the_largest_confidence(labelkit: Any, build: Build) -> None:
    store = build(0.4)
    done = labelkit("discover", "answer", "--index", store.path, "--min-confidence", "1", "--json")
    assert done.code == 0
    assert done.json["counts"] == {"known": 0, "new": 0, "unsure": 102}
    assert "every image is unsure; the largest confidence is 0." in done.err
    scored = labelkit("evaluate", "answer", "--index", store.path, "--json")
    assert (scored.code, scored.json["answered"], scored.json["accuracy_answered"]) == (0, 0, None)


def test_too_few_labels_for_the_coverage_are_said(labelkit: Any, build: Build) -> None:
    store = build()
    done = labelkit("discover", "answer", "--index", store.path, "--coverage", "0.99", "--json")
    assert "too few labels for --coverage 0.99" in done.err
    assert done.json["counts"]["unsure"] == 102


def test_evaluation_equals_loops_over_the_rows(build: Build) -> None:
    store = build(0.35)
    answer(store, min_confidence=0.7)

    found: Any = evaluate_answer(EvaluateAnswerConfig(index=store.path)).to_json()

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
    assert found["aurc_best"] <= found["aurc"]


def test_files_are_made_next_to_the_store_and_not_replaced_unasked(labelkit: Any, build: Build, tmp_path: Path) -> None:
    store = build()
    plot, drawn = tmp_path / "calibration.png", tmp_path / "scores.png"
    words = ("discover", "answer", "--index", store.path)
    done = labelkit(*words, "--plot", plot, "-q")
    made = [tmp_path / "made.h5.results" / "answer.h5", tmp_path / "made.answer.csv", plot]
    assert (done.code, done.out.split()) == (0, [str(path) for path in made])
    assert labelkit("evaluate", "answer", "--index", store.path, "--plot", drawn, "--result", "scores", "-q").code == 0
    assert [path.read_bytes()[:4] for path in (plot, drawn)] == [b"\x89PNG", b"\x89PNG"]
    assert read_result(store, "scores").metrics["answer"] == "answer"

    again = labelkit(*words, "-q")

    assert again.out.split() == [str(made[0]).replace("answer", "answer-2"), str(made[1]).replace("answer", "answer-2")]
    assert labelkit("evaluate", "answer", "--index", store.path, "--json").json["answer"] == "answer-2"
    named = labelkit(*words, "--result", "answer")
    assert named.code in (2, 3)
    assert "exists" in named.err
    assert labelkit(*words, "--overwrite").code == 0
    assert labelkit("discover", "answer", "--index", store.path, "--result", "second", "-q").code == 0
    assert (tmp_path / "made.second.csv").exists()


@pytest.mark.parametrize("value", ["-0.1", "1.1", "nan", "high"])
def test_confidence_outside_of_0_and_1_is_refused(labelkit: Any, build: Build, value: str) -> None:
    done = labelkit("discover", "answer", "--index", build().path, "--min-confidence", value)
    assert done.code == 2
    assert "--min-confidence" in done.err


def test_a_new_group_without_rows_changes_no_name(labelkit: Any, build: Build) -> None:
    """A group that kept its name from an earlier time may be empty."""
    store = build()
    result = read_result(store, "ss-kmeans")
    arrays = {key: np.asarray(value) for key, value in result.arrays.items() if key in ("cluster_ids", "labeled")}
    names, new = list(result.arrays["names"]), np.asarray(result.arrays["new_classes"])
    for more in (0, 2):
        write_result(
            store,
            f"with-{more}",
            kind="clusters",
            arrays={
                **arrays,
                "names": [*names, *(f"old-{i}" for i in range(more))],
                "new_classes": np.append(new, np.ones(more, dtype=new.dtype)),
            },
            params=dict(result.params),
            stage="cluster ss-kmeans",
        )
        words = (
            "discover",
            "answer",
            "--index",
            store.path,
            "--grouping",
            f"with-{more}",
            "--result",
            f"answer-{more}",
        )
        assert labelkit(*words, "-q").code == 0
    first, second = (read_result(store, f"answer-{more}").arrays for more in (0, 2))
    assert np.array_equal(first["group_ids"], second["group_ids"])
    np.testing.assert_allclose(first["confidence"], second["confidence"], atol=0.1)


def test_labels_of_a_class_that_the_groups_do_not_know_are_refused(labelkit: Any, build: Build, tmp_path: Path) -> None:
    store = build()
    labels = tmp_path / "more.csv"
    labels.write_text(f"path,label\n{store.sample_ids[-1]},pear\n{store.sample_ids[-2]},fig\n")
    done = labelkit("discover", "answer", "--index", store.path, "--labels", labels)
    assert done.code == 3
    assert "has no group for 'fig', 'pear', of which there are labels" in done.err
    assert "Make it again with these labels" in done.err


def without_labels(build: Build) -> EmbeddingStore:
    store = build(clustered=False, labeled=[0] * CLASSES * PER_CLASS, old_classes=None)
    write_groups(store, "head")
    return store


def with_one_label_each(build: Build) -> EmbeddingStore:
    first = [int(row % PER_CLASS == 0 and row < OLD * PER_CLASS) for row in range(CLASSES * PER_CLASS)]
    return build(labeled=first)


def with_every_label(build: Build) -> EmbeddingStore:
    store = build(clustered=False, labeled=[1] * CLASSES * PER_CLASS, old_classes=[1] * CLASSES)
    write_groups(store, "head")
    return store


def without_groups(build: Build) -> EmbeddingStore:
    return build(clustered=False)


def without_groups_but_with_logits(build: Build) -> EmbeddingStore:
    return build(clustered=False, logits=np.zeros((CLASSES * PER_CLASS, 2)))


def with_nameless_groups(build: Build) -> EmbeddingStore:
    store = build(clustered=False)
    write_result(
        store,
        "head",
        kind="clusters",
        arrays={"cluster_ids": np.zeros(store.n, dtype=np.int64)},
        params={},
        stage="cluster k-means",
    )
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


def with_a_row_that_is_no_number(build: Build) -> EmbeddingStore:
    store = build(clustered=False)
    contents = Contents()
    with h5py.File(store.path) as file:
        for name in ("", "model"):
            attributes = dict(file[name or "/"].attrs)
            texts = {k: v.decode() if isinstance(v, bytes) else int(v) for k, v in attributes.items()}
            contents.set(name, **{key: value for key, value in texts.items() if key != "content_digest"})
        for name, item in file.items():
            if isinstance(item, h5py.Dataset):
                contents.datasets[name] = item[()]
    contents.datasets["embeddings"][7] = np.nan
    store.path.write_bytes(Image(contents).to_bytes())
    changed = open_store(store.path)
    write_groups(changed, "head")
    return changed


def write_groups(store: EmbeddingStore, name: str, *, first: str = "class-0") -> None:
    write_result(
        store,
        name,
        kind="classes",
        arrays={
            "pseudo_labels": np.arange(store.n) % CLASSES,
            "names": [first, "class-1", "class-2", "new-1", "new-2", "new-3"],
            "new_classes": np.arange(CLASSES) >= OLD,
        },
        params={},
        stage="discover head",
    )


@pytest.mark.parametrize(
    ("made", "error", "message"),
    [
        (without_labels, DatasetError, "has no labels that may be used"),
        (with_one_label_each, DatasetError, "no class has two labels"),
        (with_every_label, StoreError, "every row that is grouped has a label"),
        (without_groups, StoreError, "Pass --num-clusters"),
        (without_groups_but_with_logits, StoreError, "Run `labelkit discover head` on it first"),
        (with_nameless_groups, StoreError, "does not group the rows into known classes and new ones"),
        (with_groups_of_another_store, Mismatch, "made from other content"),
        (with_a_class_it_does_not_have, StoreError, "names a class 'zebra'"),
        (with_a_row_that_is_no_number, Refused, "holds a number that is not finite"),
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\nnone.png,class-0\n", "1 of 1 images are not among those of"),
        ("path,label\n0000.png,class-0\n", "training could use the label of every image"),
    ],
)
def test_given_labels_that_do_not_help_are_refused(build: Build, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "checked.csv"
    path.write_text(text)
    with pytest.raises(DatasetError) as caught:
        answer(build(), calibration_labels=path)
    assert caught.value.where == str(path)
    assert message in caught.value.problem


def test_only_answers_whose_truth_is_known_can_be_scored(build: Build, make_store: Any) -> None:
    store = build()
    with pytest.raises(StoreError, match="is no answer but holds clusters"):
        evaluate_answer(EvaluateAnswerConfig(index=store.path, answer="ss-kmeans"))

    labels = [row // PER_CLASS if row % PER_CLASS < LABELED and row < OLD * PER_CLASS else -1 for row in range(120)]
    blind = make_store(
        np.asarray(store.embeddings), name="blind.h5", labels=labels, labeled=[int(label >= 0) for label in labels]
    )
    cluster_store(SSKMeansConfig(index=blind.path, num_clusters=CLASSES))
    answer(blind)
    with pytest.raises(StoreError, match="the true class is known of no image"):
        evaluate_answer(EvaluateAnswerConfig(index=blind.path))


def test_name_that_is_no_text_is_escaped_in_the_table(build: Build) -> None:
    store = build()
    store.sample_ids[119] = "z\udcff.png"
    ones = np.ones(1)
    found = Confidences(np.zeros(1, dtype=np.int64), ones, ones, np.full(1, -1), ones, ones > 0)
    grouping = grouping_of(np.ones((1, 1)), [0], [-1])
    grouping = Grouping(**{**grouping.__dict__, "rows": np.array([119])})
    text = _csv_text(store, grouping, grouping.rows, found, np.array([1]), np.array([0]))
    assert text.splitlines()[1] == rb"z\udcff.png,group-0,new,1.0000,1.0000,"

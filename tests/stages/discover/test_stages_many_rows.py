"""Answers for more rows than are answered together: the rule of ``predict`` names the others by some of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.cli.main import main
from labelkit.config.cluster import SSKMeansConfig
from labelkit.config.discover import DiscoverAnswerConfig
from labelkit.errors import StoreError
from labelkit.stages.discover.answer import answer_images
from labelkit.stages.discover.confidence import Temperatures
from labelkit.stages.discover.many_rows import answer_rest, merged_rows, rows_together
from labelkit.stages.discover.rule import AnswerRule
from labelkit.stages.group.cluster import cluster_store
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.results import Result, read_result
from numpy.typing import NDArray

CLASSES, OLD, PER_CLASS = 6, 3, 60
NO_LABELS: NDArray[np.bool_] = np.zeros(1000, dtype=bool)


@pytest.fixture
def store(make_store: Any) -> EmbeddingStore:
    """Six blobs of 60 rows, three with twelve labels each, clustered into six groups; one row is all zero."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES), PER_CLASS)
    rows = np.eye(CLASSES)[labels] + rng.normal(0, 0.15, (len(labels), CLASSES))
    labeled = (labels < OLD) & (np.arange(len(labels)) % PER_CLASS < 12)
    columns = {"labels": labels.tolist(), "labeled": labeled.astype(int).tolist(), "old_classes": [1, 1, 1, 0, 0, 0]}
    made: EmbeddingStore = make_store(rows, **columns)
    cluster_store(SSKMeansConfig(index=made.path, num_clusters=CLASSES))
    return made


def answered(store: EmbeddingStore, **options: Any) -> tuple[Any, Result]:
    values = answer_images(DiscoverAnswerConfig(index=store.path, overwrite=True, **options)).to_json()
    return values, read_result(store, values["result"])


@pytest.mark.parametrize("most", [1000, 2000])
def test_no_more_rows_than_that_are_all_there(most: int) -> None:
    ids = np.arange(1000) % 7
    places = rows_together(ids, np.full(1000, -1), NO_LABELS, most, 0)
    assert places.tolist() == list(range(1000))


def test_rows_stand_for_all_of_their_groups_and_classes() -> None:
    # a class of 600 labels, one of three; a group of 250 rows, one of four
    labels = np.concatenate([np.zeros(600, dtype=np.int64), np.ones(3, dtype=np.int64), np.full(397, -1)])
    groups = np.concatenate([labels[:603], np.full(250, 2), np.full(143, 0), np.full(4, 3)])
    calibrating = np.zeros(1000, dtype=bool)
    calibrating[603:903] = True

    places = rows_together(groups, labels, calibrating, 200, 0)

    assert len(places) == 200
    assert (np.diff(places) > 0).all()
    assert (labels[places] >= 0).sum() == 100
    assert (labels[places] == 1).sum() == 3
    assert (groups[places] == 3).sum() == 4
    assert calibrating[places].sum() >= 50
    assert places.tolist() == rows_together(groups, labels, calibrating, 200, 0).tolist()
    assert places.tolist() != rows_together(groups, labels, calibrating, 200, 1).tolist()


def test_labels_take_what_rows_without_one_leave() -> None:
    labels = np.where(np.arange(1000) < 900, np.arange(1000) % 4, -1)

    places = rows_together(np.zeros(1000, dtype=np.int64), labels, NO_LABELS, 400, 0)

    assert len(places) == 400
    assert (labels[places] < 0).sum() == 100


def test_labels_that_are_not_learned_from_are_told(make_store: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(2)
    labels = np.repeat(np.arange(3), 100)
    rows = np.eye(3)[labels] + rng.normal(0, 0.1, (300, 3))
    made = make_store(rows, labels=labels.tolist(), labeled=(np.arange(300) % 100 < 40).astype(int).tolist())
    cluster_store(SSKMeansConfig(index=made.path, num_clusters=3))

    assert main(["discover", "answer", "--index", str(made.path), "--max-rows", "100"]) == 0

    assert "50 of 120 labels are learned from: raise --max-rows to use more" in capsys.readouterr().err


def test_groups_stand_in_proportion() -> None:
    groups = (np.arange(1000) % 10 == 0).astype(np.int64)

    places = rows_together(groups, np.full(1000, -1), NO_LABELS, 400, 0)

    assert 20 <= groups[places].sum() <= 60


def test_the_others_are_answered_by_the_rule_that_is_kept(store: EmbeddingStore) -> None:
    values, result = answered(store, max_rows=100, min_confidence=0.5)

    together = np.asarray(result.arrays["rule_rows"])
    assert len(together) == 100
    assert result.arrays["rule_shares"].shape == (100, CLASSES)
    others = np.setdiff1d(np.flatnonzero(~store.labeled), together)
    rule = AnswerRule.of_arrays(result.arrays, result.params)
    assert rule is not None
    expected = rule.answer(np.asarray(store.embeddings[others], dtype=np.float32), store.embeddings)
    np.testing.assert_array_equal(result.arrays["group_ids"][others], expected.named)
    np.testing.assert_allclose(result.arrays["confidence"][others], expected.confidence, atol=1e-6)
    np.testing.assert_allclose(result.arrays["margin"][others], expected.margin, atol=1e-6)
    assert values["rows"] == CLASSES * PER_CLASS - 36
    assert sum(values["counts"].values()) == values["rows"]
    low, high = result.arrays["expected_low"][others], result.arrays["expected_high"][others]
    assert (low <= high + 1e-6).all()


def test_answers_are_those_of_all_rows_where_classes_lie_apart(store: EmbeddingStore) -> None:
    _, few = answered(store, max_rows=100)
    _, whole = answered(store)

    assert "rule_rows" not in whole.arrays
    named = [np.array(one.arrays["names"])[one.arrays["group_ids"]] for one in (few, whole)]
    assert (named[0] == named[1]).mean() > 0.98


def test_a_given_label_of_a_row_that_is_not_among_them_stays(store: EmbeddingStore) -> None:
    _, result = answered(store, max_rows=100)

    names = np.array(result.arrays["names"])[result.arrays["group_ids"]]
    given = np.flatnonzero(store.labeled)
    assert [str(names[row]) for row in given] == [store.class_names[store.labels[row]] for row in given]
    assert (result.arrays["confidence"][given] == 1).all()


def test_labels_to_calibrate_with_are_among_them(store: EmbeddingStore, tmp_path: Path) -> None:
    fresh = np.flatnonzero(~store.labeled)[::12]
    lines = [f"{store.sample_ids[row]},{store.class_names[store.labels[row]]}" for row in fresh]
    path = tmp_path / "fresh.csv"
    path.write_text("path,label\n" + "\n".join(lines) + "\n")

    values, result = answered(store, max_rows=200, calibration_labels=path)

    assert np.flatnonzero(result.arrays["calibration_rows"]).tolist() == fresh.tolist()
    assert values["calibration"]["labels"] == len(fresh)


def test_a_row_of_zeros_among_the_others_is_answered_as_one_in_the_middle(make_store: Any) -> None:
    rng = np.random.default_rng(1)
    labels = np.repeat(np.arange(3), 80)
    rows = np.eye(3)[labels] + rng.normal(0, 0.1, (240, 3))
    rows[7::40] = 0
    columns = {"labels": labels.tolist(), "labeled": (np.arange(240) % 80 < 6).astype(int).tolist()}
    made = make_store(rows, **columns)
    cluster_store(SSKMeansConfig(index=made.path, num_clusters=3, normalize=False))

    _, result = answered(made, max_rows=100)

    assert np.isfinite(result.arrays["confidence"]).all()
    assert (result.arrays["confidence"][7::40] <= result.arrays["confidence"].max()).all()


def test_rows_of_zeros_among_those_together_are_near_none(make_store: Any) -> None:
    made = make_store([[0, 0], [1, 0], [0, 1], [0.1, 3], [0, 0]])
    together = np.array([[0, 0], [1, 0], [0, 1]], dtype=np.float32)
    rule = AnswerRule(
        class_of_group=np.array([0, -1]),
        unit_rows=False,
        classifier=None,
        class_columns=np.zeros(0, dtype=np.int64),
        groups=None,
        classifier_share=0.5,
        alpha=0.8,
        shares=np.array([[1, 0], [1, 0], [0, 1]], dtype=np.float32),
        temperatures=Temperatures(1.0, 1.0, None),
    )

    rest = answer_rest(made, np.array([3, 4]), together, rule, [Temperatures(1.0, 1.0, None)] * 2)

    assert rest.found.named[0] == 1
    assert rest.found.uncalibrated[0] > 0.99
    # near none: every group as likely
    assert rest.found.uncalibrated[1] == pytest.approx(0.5)


def test_a_bad_row_among_the_others_is_named(store: EmbeddingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    together = set(np.asarray(answered(store, max_rows=100)[1].arrays["rule_rows"]).tolist())
    bad = next(row for row in range(store.n) if row not in together and not store.labeled[row])
    values = np.array(store.embeddings)
    values[bad, 0] = np.nan
    monkeypatch.setattr(EmbeddingStore, "embeddings", values)

    with pytest.raises(StoreError, match=f"1 rows hold NaN or infinite values .first: row {bad}"):
        answered(open_store(store.path), max_rows=100)


def test_rows_come_together_again_in_order() -> None:
    whole = merged_rows(np.array([1, 3]), np.array([10, 30]), np.array([0, 20, 40]))
    assert whole.tolist() == [0, 10, 20, 30, 40]

"""``evaluate knn`` where gallery and queries are the same rows: each row is named by all others."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.decomposition import PCA

# Rows 0 and 1 are neighbors of one class, rows 2 and 3 of another; row 4 lies between, nearest to row 1.
ANGLES = np.radians([0.0, 10.0, 90.0, 80.0, 40.0])
ROWS = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)
LABELS = [0, 0, 1, 1, 1]
# one neighbor: rows 0 to 3 are named rightly, row 4 takes the class of row 1
RIGHT = 4 / 5


def test_a_store_without_splits_is_judged_by_leave_one_out(make_store: Any, labelkit: Callable[..., Any]) -> None:
    store = make_store(ROWS, labels=LABELS)

    answer = labelkit("evaluate", "knn", "--index", store.path, "-k", "1", "--json")

    assert answer.code == 0, answer.err
    assert answer.json["knn_accuracy"] == pytest.approx(RIGHT)
    assert answer.json["leave_one_out"] is True
    assert answer.json["gallery"] == answer.json["queries"] == {"split": "all", "rows": 5}
    assert "has no splits: each image is classified by all others (leave-one-out)" in answer.err
    # so is the same split twice; nobody has more neighbors than the other rows
    store = make_store(ROWS, name="split.h5", labels=LABELS, splits=[0] * 5, split_names=["train"])
    answer = labelkit("evaluate", "knn", "--index", store.path, "-k", "1,9", "--queries", "train", "--json")
    assert answer.json["knn_accuracy"] == pytest.approx(RIGHT)
    assert [entry["k"] for entry in answer.json["by_k"]] == [1, 4]


def test_rows_of_both_splits_do_not_name_themselves(make_store: Any, labelkit: Callable[..., Any]) -> None:
    store = make_store(ROWS, labels=LABELS, splits=[0, 0, 0, 0, 1], split_names=["train", "test"])

    answer = labelkit("evaluate", "knn", "--index", store.path, "-k", "1", "--gallery", "all", "--json")

    # row 4 is in the gallery too, and would be right by itself
    assert (answer.json["knn_accuracy"], answer.json["leave_one_out"]) == (0.0, False)


def test_labels_of_a_file_name_the_other_rows_of_a_store_without_splits(
    make_store: Any, labelkit: Callable[..., Any], tmp_path: Path
) -> None:
    store = make_store(ROWS, labels=LABELS)
    names = list(store.sample_ids)
    (tmp_path / "labels.csv").write_text(f"path,label\n{names[0]},class-0\n{names[2]},class-1\n")

    answer = labelkit(
        "evaluate", "knn", "--index", store.path, "-k", "1", "--labels", tmp_path / "labels.csv", "--json"
    )

    assert answer.code == 0, answer.err
    # row 1 is named by row 0, row 3 by row 2, row 4 (40 degrees) by row 0
    assert answer.json["knn_accuracy"] == pytest.approx(2 / 3)
    assert answer.json["leave_one_out"] is False


def test_labels_of_a_file_judge_queries_that_have_none_in_the_store(
    make_store: Any, labelkit: Callable[..., Any], tmp_path: Path
) -> None:
    store = make_store(
        ROWS,
        labels=[0, -1, 1, -1, -1],
        labeled=np.array([True, False, True, False, False]),
        splits=[0, 1, 0, 1, 1],
        split_names=["train", "test"],
    )
    names = list(store.sample_ids)
    lines = (f"{name},class-{label}\n" for name, label in zip(names, LABELS, strict=True))
    (tmp_path / "truth.csv").write_text("path,label\n" + "".join(lines))

    answer = labelkit("evaluate", "knn", "--index", store.path, "-k", "1", "--labels", tmp_path / "truth.csv", "--json")

    assert answer.code == 0, answer.err
    assert answer.json["gallery"]["rows"] == 2
    assert answer.json["queries"]["rows"] == 3
    assert answer.json["knn_accuracy"] == pytest.approx(2 / 3)  # row 4 is nearer to row 0


def test_votes_on_principal_components_are_those_of_the_rows_there(
    make_store: Any, labelkit: Callable[..., Any]
) -> None:
    generator = np.random.default_rng(0)
    labels = np.arange(60) % 3
    rows = generator.standard_normal((60, 6)) + 1.5 * np.eye(6)[labels] + 30
    store = make_store(rows, labels=labels, splits=[0] * 40 + [1] * 20, split_names=["train", "test"])
    rows = np.asarray(store.embeddings, dtype=np.float64)
    fitted = PCA(n_components=2).fit(rows[:40])
    known, asked = fitted.transform(rows[:40]), fitted.transform(rows[40:])
    cosines = asked @ known.T / np.outer(np.linalg.norm(asked, axis=1), np.linalg.norm(known, axis=1))
    right = []
    for query, truth in zip(cosines, labels[40:], strict=True):
        nearest = np.argsort(-query)[:7]
        votes = [sum(np.exp(query[j] / 0.1) for j in nearest if labels[j] == label) for label in range(3)]
        right.append(int(np.argmax(votes)) == truth)

    words = ("evaluate", "knn", "--index", store.path, "-k", "7")
    answer = labelkit(*words, "--pca", "2", "--json")

    assert answer.json["knn_accuracy"] == pytest.approx(np.mean(right))
    assert answer.json["pca"] == 2
    # far from the origin, directions of the rows as they are say less
    assert labelkit(*words, "--json").json["knn_accuracy"] != pytest.approx(np.mean(right))
    assert "on 2 principal components" in labelkit(*words, "--pca", "2").out

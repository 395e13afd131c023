"""``labelkit discover categories``: how many classes, from which rows, by what, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.algorithms import unlabeled_classes
from labelkit.algorithms.unlabeled_classes import NewClassShare, estimate_accuracy_by_num_groups
from labelkit.commands.discover import num_classes
from labelkit.commands.discover.categories import discover_categories
from labelkit.commands.discover.label_weights import (
    downweight_group_labels,
    informative_label_mask,
    surrounded_labels_message,
)
from labelkit.commands.discover.options import DiscoverCategoriesConfig
from labelkit.errors import DatasetError
from labelkit.progress import use_progress
from labelkit.store.embeddings import EmbeddingStore
from tests.running import Heard

NUM_BLOBS, PER_BLOB = 5, 20


def blob_rows(num_blobs: int = NUM_BLOBS) -> Any:
    generator = np.random.default_rng(1)
    groups = np.repeat(np.arange(num_blobs), PER_BLOB)
    return 9 * np.eye(num_blobs)[groups] + generator.normal(0, 0.5, (len(groups), num_blobs))


@pytest.fixture
def make_blobs(make_store: Any) -> Any:
    """Return a function: columns to five far blobs of twenty rows, of which half of the first three is labeled."""

    def make(**columns: Any) -> EmbeddingStore:
        own = {"labeled": [int(i < 60 and i % 2 == 0) for i in range(100)], "old_classes": [1, 1, 1, 0, 0]}
        store: EmbeddingStore = make_store(blob_rows(), labels=[i // PER_BLOB for i in range(100)], **(own | columns))
        return store

    return make


@pytest.fixture
def blobs(make_blobs: Any) -> EmbeddingStore:
    store: EmbeddingStore = make_blobs()
    return store


@pytest.fixture
def unlabeled(make_store: Any) -> EmbeddingStore:
    """The same rows without any label."""
    store: EmbeddingStore = make_store(blob_rows())
    return store


def categories(store: EmbeddingStore, **options: Any) -> dict[str, Any]:
    return discover_categories(DiscoverCategoriesConfig(index=store.path, overwrite=True, **options)).to_json()


def unit(rows: Any) -> Any:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def test_labels_of_a_group_that_was_labeled_as_a_whole_count_as_two() -> None:
    rows, labels = unit(blob_rows()), np.full(100, -1)
    labels[:20], labels[[20, 21]], labels[[40, 41]] = 0, 1, 2

    weights, kept = downweight_group_labels(rows, labels), informative_label_mask(rows, labels)

    assert weights[:20].sum() == pytest.approx(2)
    assert (weights[20:] == 1).all()
    assert kept[:20].sum() == 2
    assert kept[20:].all()
    # where most images are labeled, all labels are among others
    assert (downweight_group_labels(rows, np.where(np.arange(100) % 3 > 0, 0, -1)) == 1).all()
    assert (downweight_group_labels(rows, np.where(np.arange(100) % 3 > 0, -1, 0)) == 1).all()
    assert surrounded_labels_message(1) == "1 label counts less, because most images around it are labeled, too"
    assert surrounded_labels_message(12) == "12 labels count less, because most images around them are labeled, too"


def test_two_labels_of_a_whole_group_are_used_to_estimate_the_number_of_classes(
    make_blobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []

    def watch(rows: Any, labels: Any, *more: Any, **options: Any) -> Any:
        used.append(int((labels >= 0).sum()))
        return estimate_accuracy_by_num_groups(rows, labels, *more, **options)

    monkeypatch.setattr(num_classes, "estimate_accuracy_by_num_groups", watch)
    store = make_blobs(labeled=[int(i < 20 or (i < 60 and i % 10 < 3)) for i in range(100)])

    assert categories(store)["num_classes"] == 5
    assert used == [2 + 6 + 6]


def test_the_share_of_new_classes_is_shrunken_only_if_none_is_found(
    make_blobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    share = NewClassShare(0.6, 0.3)
    monkeypatch.setattr(unlabeled_classes, "estimate_new_share", lambda *_, **__: share)
    every = make_blobs(labeled=[int(i % 2 == 0) for i in range(100)], old_classes=[1] * 5)

    assert categories(every)["new_share"] == pytest.approx(0.6 * 0.8)
    assert categories(make_blobs())["new_share"] == 0.6


@pytest.mark.parametrize(("saw", "given"), [(True, None), (False, None), (True, 5)])
def test_a_network_that_saw_the_labels_is_said_where_the_number_is_not_given(
    make_blobs: Any, saw: bool, given: int | None
) -> None:
    store = make_blobs(logits=np.zeros((100, 5)) if saw else None)
    with use_progress(heard := Heard()):
        categories(store, max_classes=8) if given is None else categories(store, num_classes=given)
    assert any("probably more classes" in text for text in heard.messages + heard.warnings) == (saw and given is None)


def test_rows_of_old_classes_keep_their_names_and_the_others_are_new(blobs: EmbeddingStore) -> None:
    result = categories(blobs, max_classes=9)

    assert [(row["name"], row["images"], row["labeled"]) for row in result["classes"][:3]] == [
        (f"class-{c}", 20, 10) for c in range(3)
    ]
    assert [(row["new"], row["images"]) for row in result["classes"][3:]] == [(True, 20)] * 2


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"criterion": "published"}, {"num_classes": 6}])
def test_labels_are_missed_only_where_they_are_needed(unlabeled: EmbeddingStore, options: dict[str, Any]) -> None:
    if options != {"criterion": "published"}:
        assert categories(unlabeled, **options)["num_classes"] >= 4
        return
    with pytest.raises(DatasetError, match="has no usable labels") as caught:
        categories(unlabeled, **options)

    assert "remove --criterion published" in caught.value.remedy


@pytest.mark.parametrize(
    ("options", "least"), [({}, 5), ({"new_classes": "some"}, 6), ({"min_classes": 7, "max_classes": 9}, 7)]
)
def test_no_class_is_invented_where_all_have_labels_unless_there_are_said_to_be_more(
    make_blobs: Any, options: dict[str, Any], least: int
) -> None:
    store = make_blobs(labeled=[int(row % 2 == 0) for row in range(100)], old_classes=[1] * NUM_BLOBS)
    result = categories(store, **options)

    assert (result["num_classes"] == 5) if not options else (result["num_classes"] >= least)
    assert (result["chance_all_classes_labeled"] is None) == bool(options)
    assert result["all_classes_labeled"] == (not options)
    assert any("holding out labels revealed no unlabeled classes" in note for note in result["notes"]) == (not options)


def test_if_most_labels_are_alone_in_their_class_their_counts_tell_how_many_are_missing(make_store: Any) -> None:
    rows = np.arange(12 * PER_BLOB)
    labeled = (rows % PER_BLOB == 0) & (rows < 8 * PER_BLOB) | (rows == 1)
    store = make_store(
        blob_rows(12), labels=(rows // PER_BLOB).tolist(), labeled=labeled.astype(int).tolist(), old_classes=[1] * 12
    )
    result = categories(store)

    # of 9 labels 7 are alone, and one class has two: 7 * 6 / (2 * 2) others, or the next smaller number that was tried
    assert 8 + 8 <= result["num_classes"] <= 8 + 10
    assert result["new_share"] >= 7 / 9
    assert [result[f"{name}all_classes_labeled"] for name in ("", "chance_")] == [False, None]
    assert result["group_weight"] == 1
    assert "some classes seem to have no labels" in result["notes"][0]


def bound(result: dict[str, Any]) -> tuple[int, bool, bool]:
    return result["num_classes"], result["is_lower_bound"], result["is_upper_bound"]


def test_a_choice_at_an_end_of_the_range_is_a_bound(labelkit: Any, blobs: EmbeddingStore) -> None:
    assert bound(result := categories(blobs, min_classes=6, max_classes=9)) == (6, False, True)
    assert "at most 6 classes: the smallest number tried fits best, so lower --min-classes" in result["notes"]
    words = ("discover", "categories", "--index", blobs.path, "--max-classes", "4")
    answer = labelkit(*words, "--json", "--overwrite")

    assert answer.code == 0
    # there are five blobs
    assert bound(answer.json) == (4, True, False)
    assert (
        "at least 4 classes: the largest number tried fits best, so label more images, or raise --max-classes"
        in answer.err
    )
    assert any(line.split()[:3] == ["at", "least", "4"] for line in labelkit(*words).out.splitlines())


@pytest.mark.parametrize(("options", "searched"), [({}, [2, 12]), ({"max_classes": 20}, [2, 20])])
def test_ten_classes_without_labels_beside_two_with_labels_are_tried_unless_more_are_asked_for(
    make_blobs: Any, options: dict[str, Any], searched: list[int]
) -> None:
    store = make_blobs(labeled=[int(i < 40 and i % 2 == 0) for i in range(100)], old_classes=None)
    assert categories(store, new_classes="some", **options)["searched"] == searched


def test_the_published_range_grows_while_its_end_fits_best(make_store: Any) -> None:
    # a tenth of the rows are 6 classes, and 6 of 10 blobs of 6 rows have labels
    generator = np.random.default_rng(1)
    groups = np.repeat(np.arange(10), 6)
    store = make_store(
        9 * np.eye(10)[groups] + generator.normal(0, 0.5, (60, 10)),
        labels=groups.tolist(),
        labeled=[int(row < 36 and row % 6 > 0) for row in range(60)],
        old_classes=[1] * 6 + [0] * 4,
    )

    result = categories(store, criterion="published")

    assert "the maximum of 6 classes fit best, so up to 12 classes were tried" in result["notes"]
    assert result["searched"] == [6, 12]


@pytest.mark.slow
def test_an_old_config_is_read_or_refused_for_its_criterion_alone(
    labelkit: Any, blobs: EmbeddingStore, tmp_path: Path
) -> None:
    old = tmp_path / "old.yaml"
    words = ("discover", "categories", "--index", blobs.path, "--config", old, "--max-classes", "8", "-q")
    old.write_text("criterion: auto\nsearch: path\nnum_draws: 8\nmax_rows: 3000\nlevels: 1\ngrouping: tree\n")
    assert labelkit(*words).code == 0
    old.write_text("criterion: labeled\nsearch: brent\nnum_draws: 8\n")
    answer = labelkit(*words, "--overwrite")
    assert (answer.code, answer.err.strip()) == (
        2,
        f"error: {old}: criterion: input should be 'auto' or 'published' (value labeled)",
    )


def test_as_many_groups_as_labeled_classes_at_least(labelkit: Any, blobs: EmbeddingStore) -> None:
    answer = labelkit("cluster", "ss-kmeans", "--index", blobs.path, "--num-clusters", "2")

    assert answer.code == 2
    assert "--num-clusters: 2 is less than 3, the number of labeled classes" in answer.err


@pytest.mark.parametrize("labeled", [None, [1, 0, 1, 0]])
def test_too_few_rows_are_refused(labelkit: Any, make_store: Any, labeled: list[int] | None) -> None:
    columns = {} if labeled is None else {"labels": [0, 0, 1, 1], "labeled": labeled, "old_classes": [1, 1]}
    store = make_store(np.eye(4), **columns)

    answer = labelkit("discover", "categories", "--index", store.path, "--new-classes", "some")

    assert answer.code == 3
    assert "4 images are too few to distinguish 2 or more classes" in answer.err

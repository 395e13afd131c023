"""``labelkit discover categories`` with its default criterion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from labelkit.config.discover import DiscoverCategoriesConfig
from labelkit.errors import DatasetError
from labelkit.stages.discover.categories import discover_categories
from labelkit.store.embeddings import EmbeddingStore


@pytest.fixture
def stored(make_store: Any) -> EmbeddingStore:
    """Twelve clouds of 30 rows, six labels in each of six of them."""
    rng = np.random.default_rng(2)
    truth = np.repeat(np.arange(12), 30)
    rows = 4 * rng.normal(size=(12, 24))[truth] + rng.normal(size=(360, 24))
    labeled = [int(label < 6 and place % 30 < 6) for place, label in enumerate(truth)]
    store: EmbeddingStore = make_store(rows, labels=truth.tolist(), labeled=labeled, old_classes=[1] * 6 + [0] * 6)
    return store


def categories(store: EmbeddingStore, **options: Any) -> dict[str, Any]:
    return discover_categories(DiscoverCategoriesConfig(index=store.path, overwrite=True, **options)).to_json()


def test_the_share_of_labeled_classes_and_dense_groups_give_number_and_interval(stored: EmbeddingStore) -> None:
    result = categories(stored)

    assert abs(result["num_classes"] - 12) <= 1
    assert result["interval"][0] <= 12 <= result["interval"][1]
    assert [entry["name"] for entry in result["criteria"]] == ["share", "density"]
    assert result["searched"] == [6, 120]
    assert (result["is_lower_bound"], result["is_upper_bound"], result["rows_used"]) == (False, False, 360)


def test_a_store_whose_images_all_have_labels_has_that_many_classes(make_store: Any) -> None:
    rows = np.random.default_rng(0).normal(size=(40, 8))
    store = make_store(rows, labels=[i % 4 for i in range(40)], labeled=[1] * 40, old_classes=[1] * 4)
    result = categories(store)
    assert (result["num_classes"], result["interval"], result["notes"]) == (4, [4, 4], [])


def test_where_all_classes_seem_to_have_labels_there_are_no_others(make_store: Any) -> None:
    rng = np.random.default_rng(2)
    truth = np.repeat(np.arange(6), 40)
    rows = 4 * rng.normal(size=(6, 24))[truth] + rng.normal(size=(240, 24))
    labeled = [int(place % 40 < 5) for place in range(240)]
    store = make_store(rows, labels=truth.tolist(), labeled=labeled, old_classes=[1] * 6)

    result = categories(store)
    some = categories(store, new_classes="some")

    assert (result["num_classes"], result["interval"]) == (6, [6, 6])
    assert result["chance_all_classes_labeled"] > 0.05
    assert "pass --new-classes some" in result["notes"][0]
    assert some["chance_all_classes_labeled"] is None
    assert some["criteria"]


def test_new_classes_can_be_told(stored: EmbeddingStore) -> None:
    assert categories(stored, new_classes="none")["num_classes"] == 6
    assert categories(stored, new_classes="6")["num_classes"] == 12
    assert categories(stored)["chance_all_classes_labeled"] <= 0.05


def test_new_classes_and_the_number_of_all_are_not_told_both(stored: EmbeddingStore) -> None:
    with pytest.raises(ValueError, match="leave one out"):
        DiscoverCategoriesConfig(index=stored.path, num_classes=8, new_classes="none")


def test_without_labels_it_says_what_would_help(make_store: Any) -> None:
    store = make_store(np.random.default_rng(0).normal(size=(300, 16)))
    result = categories(store)
    assert result["interval"][1] / result["interval"][0] > 4
    assert "two labels in each of two classes or more would narrow the interval" in result["notes"]


def test_a_choice_at_an_end_that_was_asked_for_is_a_bound(stored: EmbeddingStore) -> None:
    below, above = categories(stored, max_classes=8), categories(stored, min_classes=30)
    assert (below["num_classes"], below["is_lower_bound"]) == (8, True)
    assert (above["num_classes"], above["is_upper_bound"]) == (30, True)


def test_a_few_images_are_at_least_two_classes_and_two_different_ones_are_two(make_store: Any) -> None:
    few = categories(make_store(np.random.default_rng(0).normal(size=(6, 8))))
    assert (few["num_classes"], few["is_lower_bound"]) == (2, True)
    two = categories(make_store(np.repeat(np.eye(2, 8), 20, axis=0)))
    assert (two["num_classes"], two["interval"], two["is_lower_bound"]) == (2, [2, 2], False)


def test_one_class_with_all_labels_is_refused(make_store: Any) -> None:
    rows = np.random.default_rng(0).normal(size=(40, 8))
    store = make_store(rows, labels=[0] * 40, labeled=[1] * 40, old_classes=[1])
    with pytest.raises(DatasetError, match="all 40 rows have a label of the same class"):
        categories(store)


def test_a_sample_gives_the_same_number(stored: EmbeddingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labelkit.stages.discover.class_number.MOST_ROWS", 200)
    result = categories(stored)
    assert result["rows_used"] == 200
    assert "the number was chosen from 200 of 360 rows, drawn at random" in result["notes"]
    assert abs(result["num_classes"] - 12) <= 2


def test_the_table_says_what_the_interval_means(labelkit: Any, stored: EmbeddingStore) -> None:
    answer = labelkit("discover", "categories", "--index", stored.path)
    assert "from - to: holds the true one in nine of ten cases" in answer.out

"""``labelkit discover categories``: rows put into classes by a tree, a number that is given, least size, levels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.commands.discover.categories import discover_categories
from labelkit.commands.discover.options import DiscoverCategoriesConfig
from labelkit.errors import ConfigError, DatasetError
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.results import read_result
from pydantic import ValidationError


@pytest.fixture
def families(make_store: Any) -> EmbeddingStore:
    """Two far families of three clouds each, 20 rows in a cloud; five labels in each of three clouds."""
    rng = np.random.default_rng(3)
    truth = np.repeat(np.arange(6), 20)
    centers = np.repeat(20 * np.eye(2, 16), 3, axis=0) + 4 * rng.normal(size=(6, 16))
    rows = centers[truth] + 0.4 * rng.normal(size=(120, 16))
    labeled = [int(label < 3 and place % 20 < 5) for place, label in enumerate(truth)]
    store: EmbeddingStore = make_store(rows, labels=truth.tolist(), labeled=labeled, old_classes=[1] * 3 + [0] * 3)
    return store


def categories(store: EmbeddingStore, **options: Any) -> dict[str, Any]:
    return discover_categories(DiscoverCategoriesConfig(index=store.path, overwrite=True, **options)).to_json()


def test_clouds_are_classes_and_those_with_labels_come_first(families: EmbeddingStore) -> None:
    made = categories(families, num_classes=6)

    assert (made["num_classes"], made["interval"], len(made["classes"])) == (6, [6, 6], 6)
    stored = read_result(families, "categories")
    found, truth = np.asarray(stored.arrays["pseudo_labels"]), np.asarray(families.labels)
    assert found[truth < 3].tolist() == truth[truth < 3].tolist()
    assert sorted(len(set(found[truth == label])) for label in range(6)) == [1] * 6
    assert [entry["new"] for entry in made["classes"]] == [False] * 3 + [True] * 3
    means = [families.embeddings[:][found == group] for group in range(6)]
    expected = [(rows / np.linalg.norm(rows, axis=1, keepdims=True)).mean(axis=0) for rows in means]
    np.testing.assert_allclose(stored.arrays["centroids"], expected, atol=1e-5)


def test_a_single_odd_row_is_no_class(make_store: Any) -> None:
    rng = np.random.default_rng(0)
    rows = np.concatenate([np.repeat(np.eye(8)[:3] * 5, 12, axis=0) + rng.normal(0, 0.1, (36, 8)), [[0] * 7 + [50]]])
    store = make_store(rows)

    made = categories(store, num_classes=3)
    assert min(entry["images"] for entry in made["classes"]) >= 12


def test_fewer_classes_come_out_if_there_are_no_more_of_the_least_size(families: EmbeddingStore) -> None:
    made = categories(families, num_classes=12, min_size=15)

    assert len(made["classes"]) == 6
    assert min(entry["images"] for entry in made["classes"]) == 20


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"num_classes": 2}, "less than 3, the number of labeled classes"),
        ({"num_classes": 200}, "at most 108 groups, not 200"),
    ],
)
def test_numbers_that_cannot_be_are_refused(families: EmbeddingStore, options: dict[str, int], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        categories(families, **options)


def test_a_number_is_given_or_searched() -> None:
    with pytest.raises(ValidationError, match="or --num-classes"):
        DiscoverCategoriesConfig(index=Path("x.h5"), num_classes=3, max_classes=5)


def test_rows_that_are_all_equal_are_said_to_be_and_two_different_ones_are_two_classes(make_store: Any) -> None:
    with pytest.raises(DatasetError, match="embeddings are identical"):
        categories(make_store(np.ones((30, 4))))
    made = categories(make_store(np.repeat([[1.0, 0], [0, 1]], 10, axis=0)))
    assert made["num_classes"] == 2
    assert sorted(entry["images"] for entry in made["classes"]) == [10, 10]


def test_one_class_with_all_labels_leaves_the_others_without_a_name(make_store: Any) -> None:
    rng = np.random.default_rng(1)
    rows = np.repeat(np.eye(6)[:3] * 5, 20, axis=0) + rng.normal(0, 0.1, (60, 6))
    labels = [0] * 20 + [1] * 40
    store = make_store(rows, labels=labels, labeled=[1] * 20 + [0] * 40, old_classes=[1, 0])

    made = categories(store, num_classes=3)

    assert [(entry["new"], entry["images"]) for entry in made["classes"]] == [(False, 20), (True, 20), (True, 20)]


def test_labels_at_random_are_said_to_contradict_the_images(make_store: Any) -> None:
    rng = np.random.default_rng(5)
    rows = np.repeat(4 * rng.normal(size=(8, 16)), 40, axis=0) + rng.normal(size=(320, 16))
    store = make_store(rows, labels=rng.integers(0, 6, 320).tolist(), labeled=[1, 0] * 160, old_classes=[1] * 6)

    made = categories(store)

    assert any("labels contradict the images" in note for note in made["notes"])
    assert made["num_classes"] >= 6

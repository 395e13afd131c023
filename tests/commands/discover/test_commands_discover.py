"""``labelkit discover``: which image belongs to which class, what they are called, and the published search."""

from typing import Any

import numpy as np
import pytest
from labelkit.algorithms.num_classes import estimate_num_classes
from labelkit.commands.discover.categories import classify_by_logits, discover_categories
from labelkit.commands.discover.options import DiscoverCategoriesConfig, DiscoverHeadConfig
from labelkit.errors import ConfigError, StoreError
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.results import read_result


@pytest.fixture
def blobs(make_store: Any, rng: np.random.Generator) -> EmbeddingStore:
    """Four far blobs of ten rows; half of the first two is labeled."""
    rows = np.repeat(np.eye(4) * 5, 10, axis=0) + rng.normal(0, 0.1, (40, 4))
    labels = [i // 10 for i in range(40)]
    return make_store(
        rows, labels=labels, labeled=[int(i < 20 and i % 2 == 0) for i in range(40)], old_classes=[1, 1, 0, 0]
    )


def test_published_search_gives_the_published_estimate(blobs: EmbeddingStore) -> None:
    rows = np.asarray(blobs.embeddings)
    expected = estimate_num_classes(
        rows / np.linalg.norm(rows, axis=1, keepdims=True), blobs.labels, blobs.labeled, k_min=4, k_max=6
    )

    result: dict[str, Any] = discover_categories(
        DiscoverCategoriesConfig(index=blobs.path, criterion="published", min_classes=4, max_classes=6)
    ).to_json()

    assert result["num_classes"] == expected.best
    assert result["searched"] == [4, 6]
    scores = dict(expected.curve)
    assert result["curve"] == [[k, scores[k]] for k in sorted(scores)]
    # the error of a share of ten labeled rows and two more, one right and one wrong
    share = (10 * scores[expected.best] + 1) / 12
    near = [k for k in scores if scores[k] >= scores[expected.best] - (share * (1 - share) / 12) ** 0.5]
    assert result["interval"] == [min(near), max(near)]


def test_classes_of_far_blobs_are_found_and_named(blobs: EmbeddingStore) -> None:
    result: dict[str, Any] = discover_categories(
        DiscoverCategoriesConfig(index=blobs.path, min_classes=4, max_classes=4)
    ).to_json()

    assert [(row["name"], row["new"], row["images"], row["labeled"]) for row in result["classes"]] == [
        ("class-0", False, 10, 5),
        ("class-1", False, 10, 5),
        ("new-1", True, 10, 0),
        ("new-2", True, 10, 0),
    ]
    stored = read_result(blobs, "categories")
    np.testing.assert_array_equal(stored.arrays["pseudo_labels"][:20], [0] * 10 + [1] * 10)
    assert set(stored.arrays["pseudo_labels"][20:30]) != set(stored.arrays["pseudo_labels"][30:])
    assert stored.arrays["new_classes"].tolist() == [False, False, True, True]
    assert stored.params["num_classes"] == 4


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"min_classes": 1}, "--min-classes"),
        ({"max_classes": 20}, "--max-classes"),  # half of 40 rows less one
        ({"min_classes": 20, "max_classes": 20}, "--min-classes"),
        ({"min_classes": 8, "max_classes": 4}, "--max-classes"),
        ({"criterion": "published", "max_classes": 41}, "--max-classes"),
        # 2 with labels + 30 unlabeled rows
        ({"criterion": "published", "min_classes": 33, "max_classes": 34}, "--min-classes"),
    ],
)
def test_bounds_that_leave_no_choice_are_refused(blobs: EmbeddingStore, options: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        discover_categories(DiscoverCategoriesConfig(index=blobs.path, **options))

    assert caught.value.where == where
    assert caught.value.remedy


def test_a_store_where_every_row_is_labeled_has_just_its_classes(make_store: Any, rng: np.random.Generator) -> None:
    store = make_store(
        rng.normal(size=(60, 3)), labels=[i % 3 for i in range(60)], labeled=[1] * 60, old_classes=[1] * 3
    )

    assert discover_categories(DiscoverCategoriesConfig(index=store.path)).to_json()["num_classes"] == 3


def test_the_head_takes_the_largest_logit_and_its_confidence(make_store: Any) -> None:
    logits = np.array([[0.5, 0.3, 0.1], [0.2, 0.2, 0.9], [-0.4, 0.0, -0.1]])
    store = make_store(np.eye(3), labels=[0, 1, 1], labeled=[1, 0, 0], old_classes=[1, 0], logits=logits)

    result: dict[str, Any] = classify_by_logits(DiscoverHeadConfig(index=store.path, temperature=0.1)).to_json()

    stored = read_result(store, "head")
    assert stored.arrays["pseudo_labels"].tolist() == [0, 2, 1]
    softmax = np.exp(logits / 0.1) / np.exp(logits / 0.1).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(stored.arrays["confidence"], softmax.max(axis=1), rtol=1e-5)
    # one old class, so the first column has its name and the others are new
    assert [(row["name"], row["new"], row["images"], row["labeled"]) for row in result["classes"]] == [
        ("class-0", False, 1, 1),
        ("new-1", True, 1, 0),
        ("new-2", True, 1, 0),
    ]


def test_old_columns_are_named_by_class_order_not_by_number(make_store: Any) -> None:
    columns: dict[str, Any] = {"labels": [0, 1, 2], "labeled": [0, 1, 1], "old_classes": [0, 1, 1], "logits": np.eye(3)}

    made: Any = classify_by_logits(DiscoverHeadConfig(index=make_store(np.eye(3), **columns).path)).to_json()

    assert [row["name"] for row in made["classes"]] == ["class-1", "class-2", "new-1"]


def test_a_store_without_logits_has_no_head(make_store: Any) -> None:
    store = make_store(np.eye(3))

    with pytest.raises(StoreError, match="is missing") as caught:
        classify_by_logits(DiscoverHeadConfig(index=store.path))

    assert caught.value.where == f"{store.path}:/logits"
    assert "discover categories" in caught.value.remedy


def test_only_rows_of_the_split_are_assigned(make_store: Any, rng: np.random.Generator) -> None:
    store = make_store(
        rng.normal(size=(40, 3)),
        labels=[i % 2 for i in range(40)],
        labeled=[int(i < 10) for i in range(40)],
        old_classes=[1, 1],
        splits=[int(i >= 30) for i in range(40)],
        split_names=("train", "test"),
    )

    discover_categories(DiscoverCategoriesConfig(index=store.path, split="train", max_classes=3))

    ids = read_result(store, "categories").arrays["pseudo_labels"]
    assert (ids[:30] >= 0).all()
    assert (ids[30:] == -1).all()

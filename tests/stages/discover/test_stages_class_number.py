"""``labelkit discover categories``: how many classes, from which rows, by what, and what is refused."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.algorithms.class_number import CRITERIA, LABEL_FREE, choose_num_classes
from labelkit.config.discover import DiscoverCategoriesConfig
from labelkit.errors import ConfigError, DatasetError
from labelkit.stages.discover.categories import discover_categories
from labelkit.stages.pictures.plots import write_class_number_plot
from labelkit.stages.progress import SilentProgress, use_progress
from labelkit.stages.read.given_labels import labels_to_use
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.results import read_result
from PIL import Image as Picture

NUM_BLOBS, PER_BLOB = 5, 20


def blob_rows(num_blobs: int = NUM_BLOBS) -> Any:
    generator = np.random.default_rng(1)
    groups = np.repeat(np.arange(num_blobs), PER_BLOB)
    return 9 * np.eye(num_blobs)[groups] + generator.normal(0, 0.5, (len(groups), num_blobs))


@pytest.fixture
def blobs(make_store: Any) -> EmbeddingStore:
    """Five far blobs of twenty rows; half of the first three is labeled."""
    store: EmbeddingStore = make_store(
        blob_rows(),
        labels=[i // PER_BLOB for i in range(100)],
        labeled=[int(i < 60 and i % 2 == 0) for i in range(100)],
        old_classes=[1, 1, 1, 0, 0],
    )
    return store


@pytest.fixture
def unlabeled(make_store: Any) -> EmbeddingStore:
    """The same rows without any label."""
    store: EmbeddingStore = make_store(blob_rows())
    return store


class Listener(SilentProgress):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def message(self, text: str) -> None:
        self.said.append(text)

    def warning(self, text: str) -> None:
        self.said.append(text)


def categories(store: EmbeddingStore, **options: Any) -> dict[str, Any]:
    """By k-means of every number; the default is tested in test_stages_class_number_belief.py."""
    options = {"criterion": "all", **options}
    return discover_categories(DiscoverCategoriesConfig(index=store.path, overwrite=True, **options)).to_json()


def unit(rows: Any) -> Any:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize(("saw", "given"), [(True, None), (False, None), (True, 5)])
def test_a_network_that_saw_the_labels_is_said_where_the_number_is_not_given(
    make_store: Any, saw: bool, given: int | None
) -> None:
    store = make_store(
        blob_rows(),
        labels=[i // PER_BLOB for i in range(100)],
        labeled=[int(i < 60 and i % 2 == 0) for i in range(100)],
        old_classes=[1, 1, 1, 0, 0],
        logits=np.zeros((100, 5)) if saw else None,
    )
    listener = Listener()
    with use_progress(listener):
        categories(store, max_classes=8) if given is None else categories(store, num_classes=given)
    assert any("likely more classes" in text for text in listener.said) == (saw and given is None)


def test_choice_interval_and_curves_are_those_of_all_criteria(blobs: EmbeddingStore) -> None:
    result = categories(blobs, max_classes=9)

    labels = labels_to_use(None, blobs, np.arange(100)).labels
    expected = choose_num_classes(
        unit(np.asarray(blobs.embeddings)), range(3, 10), CRITERIA, labels=labels, labeled_mask=labels >= 0
    )
    assert result["num_classes"] == expected.best == NUM_BLOBS
    assert result["interval"] == [expected.low, expected.high]
    assert result["searched"] == [3, 9]
    assert result["rows_used"] == 100
    assert result["curve"] == [list(entry) for entry in zip(expected.numbers, expected.scores, strict=True)]
    assert [entry["name"] for entry in result["criteria"]] == list(CRITERIA)
    for entry, curve in zip(result["criteria"], expected.criteria, strict=True):
        assert (entry["best"], entry["interval"]) == (curve.best, [curve.low, curve.high])
        assert entry["curve"] == [list(row) for row in zip(curve.numbers, curve.scores, curve.errors, strict=True)]
        assert entry["best_of_draws"] == list(curve.best_of_draws)
    kept = read_result(blobs, "categories").params
    assert kept["num_classes"] == NUM_BLOBS
    assert kept["criteria"] == result["criteria"]


def test_rows_of_old_classes_keep_their_names_and_the_others_are_new(blobs: EmbeddingStore) -> None:
    result = categories(blobs, max_classes=9)

    assert [(row["name"], row["images"], row["labeled"]) for row in result["classes"][:3]] == [
        (f"class-{c}", 20, 10) for c in range(3)
    ]
    assert [(row["new"], row["images"]) for row in result["classes"][3:]] == [(True, 20)] * 2


@pytest.mark.parametrize("criterion", ["all", "label-free", "silhouette", "stability"])
def test_a_store_without_labels_is_judged_by_how_its_rows_lie(unlabeled: EmbeddingStore, criterion: Any) -> None:
    result = categories(unlabeled, criterion=criterion)

    names = LABEL_FREE if criterion in ("all", "label-free") else (criterion,)
    assert [entry["name"] for entry in result["criteria"]] == list(names)
    assert result["num_classes"] == NUM_BLOBS
    ids = read_result(unlabeled, "categories").arrays["pseudo_labels"]
    assert [len(set(ids[start : start + PER_BLOB])) for start in range(0, 100, PER_BLOB)] == [1] * NUM_BLOBS
    assert [row["name"] for row in result["classes"]] == [f"new-{number}" for number in range(1, 6)]


def test_label_free_criteria_do_not_look_at_labels(blobs: EmbeddingStore, make_store: Any) -> None:
    other = make_store(
        blob_rows(),
        name="other.h5",
        labels=[i % 3 for i in range(100)],
        labeled=[int(i < 60 and i % 2 == 0) for i in range(100)],
        old_classes=[1, 1, 1],
    )
    one, two = (categories(store, criterion="label-free", max_classes=9) for store in (blobs, other))
    assert one["criteria"] == two["criteria"]


@pytest.mark.parametrize("criterion", ["labeled", "heldout"])
def test_labels_that_are_needed_and_missing_are_missed(unlabeled: EmbeddingStore, criterion: Any) -> None:
    with pytest.raises(DatasetError, match="has no labels that may be used") as caught:
        categories(unlabeled, criterion=criterion)

    assert "--criterion label-free" in caught.value.remedy


def test_a_class_with_one_labeled_row_is_said_to_have_none_to_hold_out(make_store: Any) -> None:
    store = make_store(
        blob_rows(),
        labels=[i // PER_BLOB for i in range(100)],
        labeled=[int(i < 40 and i % 2 == 0) for i in range(99)] + [1],
        old_classes=[1, 1, 0, 0, 1],
    )
    listener = Listener()
    with use_progress(listener):
        result = categories(store, max_classes=8)

    note = "heldout: 1 of 3 classes have one labeled row and none to hold out: class-4"
    assert note in result["notes"]
    assert note in listener.said
    assert [entry["name"] for entry in result["criteria"]] == list(CRITERIA)
    assert result["num_classes"] == NUM_BLOBS
    assert [row["name"] for row in result["classes"][:3]] == ["class-0", "class-1", "class-4"]


def test_classes_with_one_labeled_row_each_leave_heldout_out(make_store: Any) -> None:
    store = make_store(
        blob_rows(),
        labels=[i // PER_BLOB for i in range(100)],
        labeled=[int(i in (3, 25)) for i in range(100)],
        old_classes=[1, 1, 0, 0, 0],
    )
    result = categories(store, max_classes=8)

    assert [entry["name"] for entry in result["criteria"]] == ["labeled", "silhouette", "stability"]
    assert "heldout is left out: no class has two labeled rows" in result["notes"]
    assert result["num_classes"] == NUM_BLOBS
    with pytest.raises(DatasetError, match="no class has two labeled rows"):
        categories(store, criterion="heldout")


def test_fewer_rows_are_used_when_told_and_all_get_a_class(make_store: Any) -> None:
    store = make_store(
        np.repeat(blob_rows(), 3, axis=0) + np.random.default_rng(0).normal(0, 0.1, (300, NUM_BLOBS)),
        labels=[i // 60 for i in range(300)],
        labeled=[int(i in (0, 1, 2)) for i in range(300)],
        old_classes=[1, 0, 0, 0, 0],
    )
    result = categories(store, max_rows=90, max_classes=9)

    assert result["rows_used"] == 90
    assert result["num_classes"] == NUM_BLOBS
    assert "the number was chosen from 90 of 300 rows, drawn at random (--max-rows)" in result["notes"]
    assert (read_result(store, "categories").arrays["pseudo_labels"] >= 0).all()
    # three labeled rows in 300 are kept, though 90 rows would hold one of them on average
    assert [entry["name"] for entry in result["criteria"]] == list(CRITERIA)


def test_too_few_rows_for_the_labeled_classes_are_refused(make_store: Any) -> None:
    store = make_store(
        blob_rows(12), labels=[i // PER_BLOB for i in range(240)], labeled=[1] * 240, old_classes=[1] * 12
    )
    with pytest.raises(ConfigError, match="20 rows are too few for 12 classes with labels") as caught:
        categories(store, max_rows=20)

    assert caught.value.remedy == "Choose at least 48."


def bound(result: dict[str, Any]) -> tuple[int, bool, bool]:
    return result["num_classes"], result["is_lower_bound"], result["is_upper_bound"]


def test_a_choice_at_the_upper_end_of_the_range_is_a_lower_bound(labelkit: Any, unlabeled: EmbeddingStore) -> None:
    words = ("discover", "categories", "--index", unlabeled.path, "--max-classes", "4", "--criterion", "all")
    answer = labelkit(*words, "--json")

    assert answer.code == 0
    # there are five blobs
    assert bound(answer.json) == (4, True, False)
    assert "at least 4 classes: the most that were tried fit best, so there may be more; raise --max-classes" in (
        answer.err
    )
    (line,) = [line for line in labelkit(*words).out.splitlines() if line.startswith("all together")]
    assert line.split()[2:7] == ["at", "least", "4", "4", "-"]


def test_a_choice_at_the_labeled_classes_is_a_lower_bound(make_store: Any) -> None:
    # five labeled classes, and nothing by which to tell more: ten classes are one cloud each with a twin
    rows = np.concatenate([blob_rows(), blob_rows()])
    labels = [row % 100 // PER_BLOB + 5 * (row // 100) for row in range(200)]
    labeled = [int(row < 100 and row % 2 == 0) for row in range(200)]
    store = make_store(rows, labels=labels, labeled=labeled, old_classes=[1] * 5 + [0] * 5)

    result = categories(store)

    assert bound(result) == (5, True, False)
    assert any(
        note.startswith("at least 5 classes: the fewest that could be tried fit best") for note in result["notes"]
    )


def test_a_choice_at_the_least_that_was_asked_for_is_an_upper_bound(unlabeled: EmbeddingStore) -> None:
    result = categories(unlabeled, min_classes=6, max_classes=9)

    assert bound(result) == (6, False, True)
    assert "at most 6 classes: the fewest that --min-classes allowed fit best; lower it" in result["notes"]


def test_the_range_grows_while_its_end_fits_best(make_store: Any) -> None:
    # a tenth of the rows are 6 classes, and there are 10 blobs of 6 rows
    generator = np.random.default_rng(1)
    groups = np.repeat(np.arange(10), 6)
    store = make_store(9 * np.eye(10)[groups] + generator.normal(0, 0.5, (60, 10)))

    result = categories(store)

    assert bound(result) == (10, False, False)
    assert result["searched"] == [2, 12]
    assert "6 classes, the most that were tried, fitted best; so up to 12 were tried" in result["notes"]


def test_a_choice_within_the_range_is_an_answer(unlabeled: EmbeddingStore) -> None:
    result = categories(unlabeled)

    assert bound(result) == (NUM_BLOBS, False, False)
    # nothing limits it, so nothing is noted
    assert result["notes"] == []


def test_rows_that_repeat_end_the_range_or_are_refused(make_store: Any) -> None:
    store = make_store(np.repeat(np.eye(4), 10, axis=0))
    result = categories(store, max_classes=8)

    assert result["num_classes"] == 4
    assert [number for number, _ in result["curve"]] == [2, 3, 4]
    assert "numbers above 4 were not tried: half of the rows has no more different ones" in result["notes"]
    with pytest.raises(DatasetError, match="fewer than 6 different ones") as caught:
        categories(store, min_classes=6, max_classes=8)
    assert "--min-classes" in caught.value.remedy


def test_published_search_goes_with_one_criterion(labelkit: Any, blobs: EmbeddingStore) -> None:
    answer = labelkit("discover", "categories", "--index", blobs.path, "--search", "brent")

    assert answer.code == 2
    assert "--criterion labeled" in answer.err


# ---- the number and the plot are for others


def test_the_number_can_be_passed_on(labelkit: Any, unlabeled: EmbeddingStore) -> None:
    words = ("discover", "categories", "--index", unlabeled.path, "--criterion", "all")
    assert labelkit(*words, "--json").json["num_classes"] == NUM_BLOBS
    table = labelkit(*words).out
    assert [line.split()[:4] for line in table.splitlines() if line.startswith("silhouette")] == [
        ["silhouette", "5", "5", "5"]
    ]
    assert "all together" in table


def test_the_curves_are_drawn(labelkit: Any, blobs: EmbeddingStore, tmp_path: Path) -> None:
    drawn = tmp_path / "curve.png"
    words = ("discover", "categories", "--index", blobs.path, "--max-classes", "8", "--plot", drawn)
    words = (*words, "--criterion", "all")

    answer = labelkit(*words, "-q")
    assert answer.out.split() == [str(blobs.path) + ".results/categories.h5", str(drawn)]
    with Picture.open(drawn) as picture:
        assert picture.format == "PNG"
        # four criteria and all together: three wide, two high
        assert picture.width == pytest.approx(1.5 * picture.height * 5.2 / 4.4, rel=0.01)
    before = drawn.read_bytes()
    assert labelkit(*words, "--overwrite", "--json").json["plot"] == str(drawn)
    assert drawn.read_bytes() == before


def test_nothing_is_computed_when_the_plot_has_no_place(labelkit: Any, blobs: EmbeddingStore, tmp_path: Path) -> None:
    answer = labelkit("discover", "categories", "--index", blobs.path, "--plot", tmp_path / "no" / "curve.png")

    assert answer.code == 2
    assert "--plot" in answer.err
    assert not Path(f"{blobs.path}.results").exists()


def test_wide_ranges_are_drawn_too(tmp_path: Path, rng: np.random.Generator) -> None:
    choice = choose_num_classes(rng.standard_normal((200, 3)), range(2, 60), ["silhouette"], num_draws=3)

    with Picture.open(write_class_number_plot(tmp_path / "wide.png", choice)) as picture:
        assert picture.width > picture.height


# ---- bad input, as the command line meets it


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--max-classes", "2"), 2, "--max-classes: 2 is fewer than the 3 classes with labels"),
        (("--min-classes", "2"), 2, "--min-classes: 2 is fewer than the 3 classes with labels"),
        (("--min-classes", "8", "--max-classes", "7"), 2, "cannot search from 8 to 7 classes"),
        (("--max-classes", "50"), 2, "Choose it between 3 and 49"),
        (("--criterion", "gap"), 2, "--criterion"),
        (("--num-draws", "2"), 2, "--num-draws"),
    ],
)
def test_bounds_and_options_that_cannot_be_are_refused(
    labelkit: Any, blobs: EmbeddingStore, words: tuple[str, ...], code: int, message: str
) -> None:
    answer = labelkit("discover", "categories", "--index", blobs.path, *words)

    assert (answer.code, answer.out) == (code, "")
    assert message in answer.err


def test_as_many_groups_as_labeled_classes_at_least(labelkit: Any, blobs: EmbeddingStore) -> None:
    answer = labelkit("cluster", "ss-kmeans", "--index", blobs.path, "--num-clusters", "2")

    assert answer.code == 2
    assert "--num-clusters: 2 is fewer than the 3 classes that have labels" in answer.err


@pytest.mark.parametrize("labeled", [None, [1, 0, 1, 0]])
def test_too_few_rows_are_refused(labelkit: Any, make_store: Any, labeled: list[int] | None) -> None:
    columns = {} if labeled is None else {"labels": [0, 0, 1, 1], "labeled": labeled, "old_classes": [1, 1]}
    store = make_store(np.eye(4), **columns)

    answer = labelkit("discover", "categories", "--index", store.path, "--new-classes", "some")

    assert answer.code == 3
    assert "4 rows are too few to tell 2 classes or more" in answer.err
    assert ("--search grid" in answer.err) == (labeled is not None)


def test_a_store_with_nan_rows_is_refused(labelkit: Any, blobs: EmbeddingStore, spoil: Any) -> None:
    spoil(blobs, 7)

    answer = labelkit("discover", "categories", "--index", blobs.path)

    assert answer.code == 3
    assert f"{blobs.path}:/embeddings row 7: holds a number that is not finite" in answer.err


@pytest.mark.parametrize("number", [0.5, pytest.param(1e9, marks=pytest.mark.slow)])
def test_labels_that_are_no_integers_are_names(labelkit: Any, photos: Path, tmp_path: Path, number: float) -> None:
    table, index = tmp_path / "labels.csv", tmp_path / "index.h5"
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label"])
        for row, path in enumerate(sorted(photos.rglob("*.png"))):
            writer.writerow([path, {"ant": number, "bee": "1.5"}.get(path.parent.name, "") if row % 2 else ""])
    assert (
        labelkit("embed", "--dataset", table, "--backbone", "pixels", "--image-size", "8", "--out", index, "-q").code
        == 0
    )

    answer = labelkit("discover", "categories", "--index", index, "--max-classes", "6", "--json")

    assert answer.code == 0, answer.err
    names = [row["name"] for row in answer.json["classes"] if not row["new"]]
    assert sorted(names) == sorted([str(number), "1.5"])

"""``labelkit evaluate retrieval``: rows of a store, of two splits, of two stores."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.commands.embed.embed import embed_images
from labelkit.commands.evaluate.options import EvaluateRetrievalConfig
from labelkit.commands.evaluate.retrieval import evaluate_retrieval
from labelkit.errors import ConfigError, Mismatch, StoreError
from labelkit.options.embed import EmbedConfig


def evaluate(index: Path, **options: Any) -> Any:
    return evaluate_retrieval(EvaluateRetrievalConfig(index=index, **options)).to_json()


def directions(degrees: list[float]) -> Any:
    radians = np.radians(degrees)
    return np.stack([np.cos(radians), np.sin(radians)], axis=1)


EIGHT: dict[str, Any] = {"degrees": [0, 10, 27, 40, 42, 90, 95, 203], "labels": [0, 1, 0, 1, 1, 2, 2, 0]}


def test_eight_directions_give_the_worked_numbers(make_store: Any) -> None:
    store = make_store(directions(EIGHT["degrees"]), labels=EIGHT["labels"])

    found = evaluate(store.path, k=(1, 2, 4))

    assert found["recall"] == {"1": 0.5, "2": 0.625, "4": 1.0}
    assert found["r_precision"] == pytest.approx(0.4375)
    assert found["map_at_r"] == pytest.approx(0.40625)
    assert (found["protocol"], found["n_queries"], found["n_lone"], found["n_tied"]) == ("self", 8, 0, 0)
    # a collapsed model scores what chance gives
    store = make_store(np.ones((40, 4)), name="same.h5", labels=[i // 4 for i in range(40)])
    found = evaluate(store.path, k=(1,))
    assert (found["recall"]["1"], found["n_tied"]) == (pytest.approx(3 / 39), 40)


def test_two_splits_are_query_and_gallery(make_store: Any) -> None:
    # Worked by hand: the query at 0 degrees meets 10 (other class) before 30, that at 90 meets 80 before 105.
    rows, labels = directions([0, 90, 10, 30, 80, 105, 200]), [0, 1, 1, 0, 0, 1, 1]
    store = make_store(rows, labels=labels, splits=[0, 0, 1, 1, 1, 1, 1], split_names=["query", "gallery"])

    by_role = evaluate(store.path, k=(1, 2))
    by_name = evaluate(store.path, k=(1, 2), queries="query", gallery="gallery")
    together = evaluate(store.path, k=(1, 2), split=("query", "gallery"))

    assert by_role["recall"] == by_name["recall"] == {"1": 0.0, "2": 1.0}
    assert by_role["protocol"] == "query-gallery"
    assert (together["protocol"], together["n_queries"]) == ("self", 7)


def test_an_image_does_not_find_itself_in_another_store(make_store: Any) -> None:
    # every query has its own file in the gallery; the nearest other image is of another class
    rows, labels = directions([0, 90, 10, 80, 60, 30]), [0, 1, 1, 0, 1, 0]
    gallery = make_store(rows, name="gallery.h5", labels=labels)
    queries = make_store(rows[:2], name="queries.h5", labels=labels[:2])

    found = evaluate(queries.path, gallery_index=gallery.path, k=(1, 3))

    assert found["recall"] == {"1": 0.0, "3": 1.0}


def test_a_row_on_both_sides_does_not_find_itself(make_store: Any) -> None:
    splits = {"splits": [0, 0, 1, 1, 1, 0, 0, 1], "split_names": ["train", "test"]}
    store = make_store(directions(EIGHT["degrees"]), labels=EIGHT["labels"], **splits)
    found = evaluate(store.path, k=(1,))  # the test split by default
    assert (found["queries"]["splits"], found["queries"]["rows"]) == ("test", 4)
    assert evaluate(store.path, k=(1,), split=("all",))["queries"]["rows"] == 8
    assert evaluate(store.path, k=(1, 2), queries="all", gallery="all")["recall"] == {"1": 0.5, "2": 0.625}
    found = evaluate(store.path, k=(1,), queries="test", gallery="all")
    # of the rows at 27, 40, 42 and 203 degrees, those at 40 and 42 find each other
    assert found["recall"] == {"1": 0.5}


def test_classes_of_two_stores_are_matched_by_name(photos: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"backbone": "pixels", "image_size": 8}
    for name in ("bee", "dog"):
        (tmp_path / "part" / name).mkdir(parents=True)
        for path in sorted((photos / name).iterdir())[:6]:
            (tmp_path / "part" / name / path.name).write_bytes(path.read_bytes())
    embed_images(EmbedConfig(dataset=str(photos), out=tmp_path / "all.h5", **options))
    embed_images(EmbedConfig(dataset=str(tmp_path / "part"), out=tmp_path / "part.h5", **options))

    found = evaluate(tmp_path / "part.h5", gallery_index=tmp_path / "all.h5", k=(1,), per_class=True)

    # every query finds another image of its class, not its own file in the other store
    assert found["recall"] == {"1": 1.0}
    assert [(entry["class"], entry["queries"]) for entry in found["per_class"]] == [("bee", 6), ("dog", 6)]


def test_a_class_with_one_image_is_left_out_as_a_query_and_counted(make_store: Any) -> None:
    store = make_store(directions([0, 10, 50, 60, 61]), labels=[0, 0, 1, 1, 2])

    found = evaluate(store.path, k=(1, 2))

    assert (found["n_queries"], found["n_lone"]) == (4, 1)
    # it is still found by others: the row at 60 meets it before its class
    assert found["recall"] == {"1": 0.75, "2": 1.0}


def test_nmi_is_one_for_separate_classes_and_can_be_left_out(make_store: Any) -> None:
    generator = np.random.default_rng(0)
    rows = np.eye(4)[np.arange(40) % 4] + 0.01 * generator.standard_normal((40, 4))
    store = make_store(rows, labels=[i % 4 for i in range(40)])

    found = evaluate(store.path, nmi_seeds=10)

    assert max(found["nmi_of_seeds"]) == pytest.approx(1)
    assert len(found["nmi_of_seeds"]) == 10
    assert found["nmi"] == pytest.approx(np.mean(found["nmi_of_seeds"]))
    assert evaluate(store.path, nmi_seeds=0)["nmi"] is None


def test_rows_without_a_label_are_left_out_and_said(labelkit: Any, make_store: Any) -> None:
    store = make_store(directions([0, 5, 10, 50, 60]), labels=[0, -1, 0, 1, 1])

    answer = labelkit("evaluate", "retrieval", "--index", store.path, "-k", "1", "--json")

    assert answer.json["recall"] == {"1": 1.0}
    assert answer.json["n_unlabeled"] == 1
    assert "1 images of" in answer.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": (8,)}, "8 hits were requested, but the gallery has only 7 images"),
        ({"split": ("val",)}, "^--split: .* has no split 'val'"),
        ({"queries": "val", "gallery": "all"}, "^--queries: .* has no split 'val'"),
        ({"queries": "all", "gallery": "val"}, "^--gallery: .* has no split 'val'"),
    ],
)
def test_options_that_do_not_fit_are_refused(make_store: Any, options: dict[str, Any], message: str) -> None:
    store = make_store(directions(EIGHT["degrees"]), labels=EIGHT["labels"])
    with pytest.raises(ConfigError, match=message):
        evaluate(store.path, **{"k": (1,), **options})


def test_stores_that_cannot_be_scored_are_refused(make_store: Any, embedded: Path) -> None:
    with pytest.raises(StoreError, match="no image of all has a label"):
        evaluate(make_store(directions([0, 1, 2])).path, k=(1,))
    with pytest.raises(StoreError, match="no query has another image of its class in the gallery"):
        evaluate(make_store(directions([0, 1, 2]), labels=[0, 1, 2]).path, k=(1,))
    with pytest.raises(StoreError, match="1 embeddings are all zeros"):
        evaluate(make_store([[1, 0], [0, 0], [0, 1.0]], labels=[0, 0, 1]).path, k=(1,))
    with pytest.raises(Mismatch, match="weights_fingerprint"):
        evaluate(make_store(directions([0, 1, 2]), labels=[0, 1, 1]).path, k=(1,), gallery_index=embedded)

"""``labelkit retrieve``: a query is embedded with the store's own model and meets its nearest rows."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.config.stages import EmbedConfig, RetrieveConfig
from labelkit.errors import CheckpointError, ConfigError, DatasetError, Mismatch
from labelkit.stages.contact_sheet import Picture, write_contact_sheet
from labelkit.stages.embed import embed_images
from labelkit.stages.retrieve import retrieve_images
from labelkit.store.embeddings import open_store
from PIL import Image


def retrieve(index: Path, query: Path, **options: Any) -> Any:
    return retrieve_images(RetrieveConfig(index=index, query=query, **options)).to_json()


@pytest.fixture
def moved(photos: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A store whose run was moved after embedding: (store, where the run is now)."""
    # a cache of its own: other stores have the same weights and know where they are
    monkeypatch.setenv("LABELKIT_CACHE", str(tmp_path / "cache"))
    run = Path(shutil.copytree(trained, tmp_path / "before"))
    embed_images(EmbedConfig(dataset=str(photos), checkpoint=run, out=tmp_path / "moved.h5"))
    return tmp_path / "moved.h5", run.rename(tmp_path / "after")


def test_an_indexed_image_finds_itself_first(embedded: Path, photos: Path) -> None:
    answer = retrieve(embedded, photos / "cat" / "05.png", k=3)

    first = answer["queries"][0]["hits"][0]
    assert (first["rank"], first["sample_id"], first["label"], first["same_file"]) == (1, "cat/05.png", "cat", True)
    assert first["score"] == pytest.approx(1, abs=1e-5)
    assert [hit["same_file"] for hit in answer["queries"][0]["hits"][1:]] == [False, False]


def test_hits_are_the_rows_of_largest_cosine(embedded: Path, photos: Path) -> None:
    store = open_store(embedded)
    rows = np.asarray(store.embeddings, dtype=np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    row = store.sample_ids.index("dog/02.png")
    cosines = rows @ rows[row]
    expected = np.argsort(-cosines, kind="stable")[:5]

    hits = retrieve(embedded, photos / "dog" / "02.png", k=5)["queries"][0]["hits"]

    assert [hit["row"] for hit in hits] == expected.tolist()
    np.testing.assert_allclose([hit["score"] for hit in hits], cosines[expected], atol=1e-5)


def test_every_image_of_a_folder_is_a_query(embedded: Path, photos: Path) -> None:
    answer = retrieve(embedded, photos / "bee", k=1)

    assert [query["query"] for query in answer["queries"]] == [f"{i:02d}.png" for i in range(12)]
    assert [query["hits"][0]["sample_id"] for query in answer["queries"]] == [f"bee/{i:02d}.png" for i in range(12)]


def test_copies_of_one_file_are_all_marked(pictures: list[Image.Image], tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    for name, picture in (("a", 0), ("b", 0), ("c", 20)):
        pictures[picture].save(tmp_path / "set" / f"{name}.png")
    options: dict[str, Any] = {"backbone": "pixels", "image_size": 8}
    embed_images(EmbedConfig(dataset=str(tmp_path / "set"), out=tmp_path / "x.h5", **options))

    hits = retrieve(tmp_path / "x.h5", tmp_path / "set" / "b.png", k=3)["queries"][0]["hits"]

    assert [(hit["sample_id"], hit["same_file"]) for hit in hits] == [
        ("a.png", True),
        ("b.png", True),
        ("c.png", False),
    ]


def test_unreadable_queries_of_a_folder_are_left_out_and_listed(embedded: Path, photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos / "ant", tmp_path / "ant")
    (tmp_path / "ant" / "03.png").write_bytes(b"nothing")

    answer = retrieve(embedded, tmp_path / "ant", k=1)

    assert len(answer["queries"]) == 11
    assert [entry["query"] for entry in answer["skipped"]] == ["03.png"]


def test_black_pixels_are_near_nothing(tmp_path: Path, pictures: list[Image.Image]) -> None:
    (tmp_path / "set").mkdir()
    Image.new("L", (8, 8), 0).save(tmp_path / "set" / "black.png")
    for i in range(3):
        pictures[i].save(tmp_path / "set" / f"{i}.png")
    options: dict[str, Any] = {"dataset": str(tmp_path / "set"), "backbone": "pixels", "image_size": 8}
    embed_images(EmbedConfig(out=tmp_path / "x.h5", **options))

    answer = retrieve(tmp_path / "x.h5", tmp_path / "set", k=3)

    assert [query["query"] for query in answer["queries"]] == ["0.png", "1.png", "2.png"]
    assert {hit["sample_id"] for query in answer["queries"] for hit in query["hits"]} == {"0.png", "1.png", "2.png"}
    assert "all zero" in answer["skipped"][0]["reason"]
    with pytest.raises(ConfigError, match="4 hits from 3 rows"):
        retrieve(tmp_path / "x.h5", tmp_path / "set" / "0.png", k=4)
    with pytest.raises(DatasetError, match="all zero"):
        retrieve(tmp_path / "x.h5", tmp_path / "set" / "black.png", k=1)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("notes.txt", b"a text", "not an image"),
        ("lies.png", b"not a picture either", "not an image"),
        ("empty.png", b"", "empty file"),
    ],
)
def test_a_query_that_is_no_image_is_named(
    embedded: Path, tmp_path: Path, name: str, content: bytes, problem: str
) -> None:
    (tmp_path / name).write_bytes(content)

    with pytest.raises(DatasetError, match=problem) as caught:
        retrieve(embedded, tmp_path / name)

    assert caught.value.where == str(tmp_path / name)
    assert caught.value.remedy == "Give a JPEG or PNG file."


def test_a_query_that_does_not_exist_is_named(embedded: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="does not exist"):
        retrieve(embedded, tmp_path / "nothing.png")


def test_more_hits_than_rows_are_refused(embedded: Path, photos: Path) -> None:
    assert len(retrieve(embedded, photos / "ant" / "00.png", k=48)["queries"][0]["hits"]) == 48
    with pytest.raises(ConfigError, match="49 hits from a store of 48 rows"):
        retrieve(embedded, photos / "ant" / "00.png", k=49)


# --- the model -----------------------------------------------------------------------------------


def test_a_run_that_was_moved_is_asked_for_and_taken(moved: tuple[Path, Path], photos: Path) -> None:
    index, run = moved

    with pytest.raises(CheckpointError, match="the model of this store was not found") as caught:
        retrieve(index, photos / "ant" / "00.png", k=1)

    assert "Pass --checkpoint" in caught.value.remedy
    answer = retrieve(index, photos / "ant" / "00.png", k=1, checkpoint=run)
    assert answer["queries"][0]["hits"][0]["sample_id"] == "ant/00.png"


def test_a_run_in_the_usual_place_is_found_without_a_note(
    moved: tuple[Path, Path], photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, run = moved
    shutil.rmtree(tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    run.rename(tmp_path / "runs" / "before")

    assert retrieve(index, photos / "ant" / "00.png", k=1)["queries"][0]["hits"][0]["sample_id"] == "ant/00.png"


def test_another_model_is_refused(
    labelkit: Any, embedded: Path, photos: Path, small: tuple[str | Path, ...], tmp_path: Path
) -> None:
    words = ("--dataset", photos, "--align-blocks", "1", "--seed", "9", *small)
    assert labelkit("train", "flipclass", *words, "--out", tmp_path / "run", "-q").code == 0
    query = photos / "ant" / "00.png"

    with pytest.raises(Mismatch, match="weights_fingerprint differ"):
        retrieve(embedded, query, checkpoint=tmp_path / "run")
    answer = labelkit("retrieve", "--index", embedded, "--query", query, "--checkpoint", tmp_path / "run")

    assert answer.code == 3
    assert "is not the model of the store" in answer.err
    assert "pass that as --checkpoint" in answer.err


@pytest.mark.parametrize(
    "options", [{"backbone": "pixels", "image_size": 8}, {"backbone": "vit_nano_p8_32", "random_weights": True}]
)
def test_models_without_a_file_are_built_again(photos: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    embed_images(EmbedConfig(dataset=str(photos), out=tmp_path / "x.h5", **options))

    hit = retrieve(tmp_path / "x.h5", photos / "dog" / "11.png", k=1)["queries"][0]["hits"][0]

    assert (hit["sample_id"], hit["same_file"]) == ("dog/11.png", True)
    assert hit["score"] == pytest.approx(1, abs=1e-5)


def test_weights_of_a_file_are_found_again_or_asked_for(
    photos: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path(shutil.copy2(next(trained.glob("checkpoints/*/model.safetensors")), tmp_path / "mine.safetensors"))
    options: dict[str, Any] = {"dataset": str(photos), "backbone": "vit_nano_p8_32", "weights": file}
    embed_images(EmbedConfig(out=tmp_path / "x.h5", **options))
    query = photos / "dog" / "11.png"

    assert retrieve(tmp_path / "x.h5", query, k=1)["queries"][0]["hits"][0]["sample_id"] == "dog/11.png"
    monkeypatch.setenv("LABELKIT_CACHE", str(tmp_path / "cache"))
    with pytest.raises(CheckpointError, match="was not found"):
        retrieve(tmp_path / "x.h5", query, k=1)
    answer = retrieve(tmp_path / "x.h5", query, k=1, checkpoint=file)
    assert answer["queries"][0]["hits"][0]["sample_id"] == "dog/11.png"


def test_a_cache_that_cannot_be_written_does_not_matter(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("LABELKIT_CACHE", str(tmp_path / "file" / "cache"))

    embed_images(EmbedConfig(dataset=str(photos), backbone="pixels", image_size=8, out=tmp_path / "x.h5"))

    assert retrieve(tmp_path / "x.h5", photos / "ant" / "00.png", k=1)["queries"]


# --- what is shown -------------------------------------------------------------------------------


def test_json_is_one_object(labelkit: Any, embedded: Path, photos: Path) -> None:
    answer = labelkit("retrieve", "--index", embedded, "--query", photos / "ant" / "00.png", "-k", 2, "--json")

    assert answer.code == 0
    assert answer.out.count("\n") == 1
    assert answer.json["queries"][0]["query"] == "00.png"
    assert [hit["rank"] for hit in answer.json["queries"][0]["hits"]] == [1, 2]


def test_the_sheet_shows_the_query_and_its_hits(labelkit: Any, embedded: Path, photos: Path, tmp_path: Path) -> None:
    words = ("--index", embedded, "--query", photos / "ant", "-k", 3, "--sheet", tmp_path / "sheet.png")

    answer = labelkit("retrieve", *words, "-q")

    assert answer.out == f"{tmp_path / 'sheet.png'}\n"
    with Image.open(tmp_path / "sheet.png") as sheet:
        # twelve rows of a query and three hits: cells of 112 with gaps of 8 and 30 for two lines of text
        assert sheet.format == "PNG"
        assert sheet.size == (8 + 4 * 120, 8 + 12 * 150)
        pixels = np.asarray(sheet)
    # the first hit of an indexed image is the image itself
    np.testing.assert_array_equal(pixels[8:120, 8:120][4:-4, 4:-4], pixels[8:120, 128:240][4:-4, 4:-4])


def test_the_sheet_asks_for_images_that_are_gone(embedded: Path, photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    options: dict[str, Any] = {"backbone": "pixels", "image_size": 6}
    embed_images(EmbedConfig(dataset=str(tmp_path / "photos"), out=tmp_path / "x.h5", **options))
    shutil.rmtree(tmp_path / "photos")
    query = photos / "ant" / "00.png"

    with pytest.raises(DatasetError, match="cannot be listed") as caught:
        retrieve(tmp_path / "x.h5", query, k=2, sheet=tmp_path / "s.png")

    assert "--dataset" in caught.value.remedy
    retrieve(tmp_path / "x.h5", query, k=2, sheet=tmp_path / "s.png", dataset=str(photos))
    assert (tmp_path / "s.png").exists()


def test_small_pictures_are_enlarged_without_blurring_and_missing_ones_are_frames(tmp_path: Path) -> None:
    checks = np.array([[0, 255], [255, 0]], dtype=np.uint8)[:, :, None]

    path = write_contact_sheet(tmp_path / "s.png", [[Picture(checks, ("a\nb\udcff", "x" * 99)), Picture(None, ())]])

    with Image.open(path) as sheet:
        pixels = np.asarray(sheet.convert("L"))
    assert set(np.unique(pixels[20:50, 20:50])) == {0}
    assert set(np.unique(pixels[20:50, 70:110])) == {255}
    assert set(np.unique(pixels[20:100, 140:230])) == {255}

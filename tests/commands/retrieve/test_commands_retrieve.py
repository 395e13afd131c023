"""``labelkit retrieve``: a query is embedded with the store's own model and meets its nearest rows."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.algorithms import neighbors
from labelkit.commands.embed.embed import embed_images
from labelkit.commands.retrieve import retrieve as retrieve_module
from labelkit.commands.retrieve import search
from labelkit.commands.retrieve.options import RetrieveConfig
from labelkit.commands.retrieve.retrieve import retrieve_images
from labelkit.errors import CheckpointError, ConfigError, DatasetError, Mismatch
from labelkit.options.embed import EmbedConfig
from labelkit.store.embeddings import open_store
from PIL import Image
from tests.running import read_table
from tests.tiers import quick_every


def retrieve(index: Path, query: Path | None = None, **options: Any) -> Any:
    return retrieve_images(RetrieveConfig(index=index, query=query, **options)).to_json()


def ids(query: Any) -> list[str]:
    return [hit["sample_id"] for hit in query["hits"]]


def test_hits_are_the_rows_of_largest_cosine(embedded: Path, photos: Path) -> None:
    store = open_store(embedded)
    rows = np.asarray(store.embeddings, dtype=np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    row = store.sample_ids.index("dog/02.png")
    cosines = rows @ rows[row]
    expected = np.argsort(-cosines, kind="stable")[:5]

    hits = retrieve(embedded, photos / "dog" / "02.png", k=5)["queries"][0]["hits"]

    assert (hits[0]["rank"], hits[0]["sample_id"], hits[0]["label"]) == (1, "dog/02.png", "dog")
    assert [hit["same_file"] for hit in hits] == [True] + [False] * 4
    assert [hit["row"] for hit in hits] == expected.tolist()
    np.testing.assert_allclose([hit["score"] for hit in hits], cosines[expected], atol=1e-5)


@pytest.mark.parametrize(
    "options", [{"backbone": "pixels", "image_size": 8}, {"backbone": "vit_nano_p8_32", "random_weights": True}]
)
def test_models_without_a_file_are_built_again(
    labelkit: Any, embedded: Path, photos: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    embed_images(EmbedConfig(dataset=str(photos), out=tmp_path / "x.h5", **options))

    hit = retrieve(tmp_path / "x.h5", photos / "dog" / "11.png", k=1)["queries"][0]["hits"][0]

    assert (hit["sample_id"], hit["same_file"]) == ("dog/11.png", True)
    assert hit["score"] == pytest.approx(1, abs=1e-5)
    answer = labelkit("retrieve", "--index", embedded, "--query", tmp_path / "x.h5")  # a store of another model
    assert answer.code == 3
    assert "was embedded differently from" in answer.err
    assert "weights_fingerprint" in answer.err


@pytest.mark.parametrize(("device", "there"), [("auto", False), ("cpu", False), ("cuda:1", True)])
def test_a_gpu_that_is_named_compares_the_rows(
    embedded: Path, monkeypatch: pytest.MonkeyPatch, device: str, there: bool
) -> None:
    expected = retrieve_images(RetrieveConfig(index=embedded, query_rows=(3, 5), k=4)).to_json()["queries"]
    asked: list[str | None] = []
    rough = neighbors._search_in_float32
    monkeypatch.setattr(neighbors, "_search_in_float32", lambda *words: asked.append(words[-1]) or rough(*words))
    # as if torch's processor were that GPU
    monkeypatch.setattr(
        "labelkit.commands.retrieve.retrieve.choose_similarity_device", lambda name: None if name == "cpu" else "cpu"
    )

    found = retrieve_images(RetrieveConfig(index=embedded, query_rows=(3, 5), k=4, device=device)).to_json()["queries"]

    assert found == expected
    assert asked == ["cpu" if there else None]


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
    with pytest.raises(ConfigError, match="4 hits were requested, but only 3 embeddings are nonzero"):
        retrieve(tmp_path / "x.h5", tmp_path / "set" / "0.png", k=4)
    with pytest.raises(DatasetError, match="all zero"):
        retrieve(tmp_path / "x.h5", tmp_path / "set" / "black.png", k=1)


def test_another_model_is_refused(
    labelkit: Any, embedded: Path, photos: Path, small: tuple[str | Path, ...], tmp_path: Path
) -> None:
    words = ("--dataset", photos, "--label-split", "gcd", "--align-blocks", "1", "--seed", "9", *small)
    assert labelkit("train", "flipclass", *words, "--out", tmp_path / "run", "-q").code == 0
    query = photos / "ant" / "00.png"

    with pytest.raises(Mismatch, match="weights_fingerprint differ"):
        retrieve(embedded, query, checkpoint=tmp_path / "run")
    answer = labelkit("retrieve", "--index", embedded, "--query", query, "--checkpoint", tmp_path / "run")

    assert answer.code == 3
    assert "is not the model of the store" in answer.err
    assert "pass that model as --checkpoint" in answer.err


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


def test_another_store_of_the_same_model_gives_queries(
    embedded: Path, trained: Path, photos: Path, tmp_path: Path
) -> None:
    embed_images(EmbedConfig(dataset=str(photos / "cat"), checkpoint=trained, out=tmp_path / "cats.h5"))

    answer = retrieve(embedded, tmp_path / "cats.h5", k=1)

    assert [ids(query) for query in answer["queries"]] == [[f"cat/{i:02d}.png"] for i in range(12)]
    assert {query["hits"][0]["duplicate"] for query in answer["queries"]} == {"same file"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"query_rows": (48,)}, "has no row 48; its rows are 0 to 47"),
        ({"query_rows": (0,), "label": ("emu",)}, r"no class 'emu' \(it has: ant, bee, cat, dog\)"),
        ({"query_rows": (0,), "split": ("val",)}, "no split 'val'"),
        ({"query_rows": (0,), "path_pattern": "x*"}, "no image of .* passes"),
        ({"query_rows": (0,), "search": "ivfpq"}, "IVF-PQ requires at least 256 rows"),
    ],
)
def test_options_that_do_not_fit_are_refused(embedded: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        retrieve(embedded, **{"k": 1, **options})


def expected_rows(index: Path, row: int, passes: Any, k: int) -> list[int]:
    store = open_store(index)
    rows = np.asarray(store.embeddings, dtype=np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    order = np.argsort(-(rows @ rows[row]), kind="stable")
    return [int(other) for other in order if passes(store, other)][:k]


@pytest.mark.parametrize(
    ("options", "passes"),
    [
        ({"label": ("bee", "dog")}, lambda store, row: store.sample_ids[row][:3] in ("bee", "dog")),
        ({"path_pattern": "*/0[0-3].png"}, lambda store, row: store.sample_ids[row][-6:-4] in ("00", "01", "02", "03")),
        (
            {"label": ("cat",), "path_pattern": "*1.png"},
            lambda store, row: store.sample_ids[row] in ("cat/01.png", "cat/11.png"),
        ),
        ({"skip_duplicates": True}, lambda store, row: row != 7),
    ],
)
def test_filters_leave_the_nearest_of_what_passes(embedded: Path, options: dict[str, Any], passes: Any) -> None:
    answer = retrieve(embedded, query_rows=(7,), k=5, **options)
    wanted = expected_rows(embedded, 7, passes, 5)
    assert [hit["row"] for hit in answer["queries"][0]["hits"]] == wanted


def test_the_same_picture_in_another_file_is_a_duplicate(pictures: list[Image.Image], tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    pictures[0].save(tmp_path / "set" / "a.png")
    pictures[0].save(tmp_path / "set" / "b.bmp")
    pictures[20].save(tmp_path / "set" / "c.png")
    embed_images(EmbedConfig(dataset=str(tmp_path / "set"), out=tmp_path / "x.h5", backbone="pixels", image_size=8))

    hits = retrieve(tmp_path / "x.h5", tmp_path / "set" / "a.png", k=3)["queries"][0]["hits"]
    others = retrieve(tmp_path / "x.h5", tmp_path / "set" / "a.png", k=2, skip_duplicates=True)["queries"][0]

    assert [hit["duplicate"] for hit in hits] == ["same file", "same picture", None]
    assert ids(others) == ["c.png"]


def test_hits_go_to_a_csv(index: Path, tmp_path: Path) -> None:
    answer = retrieve(index, query_rows=(3, 40), k=4, csv=tmp_path / "hits.csv")

    lines = read_table(tmp_path / "hits.csv")
    assert [line["path"] for line in lines] == [name for query in answer["queries"] for name in ids(query)]
    assert [line["duplicate"] for line in lines] == ["itself", "", "", ""] * 2


@pytest.fixture
def many(make_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of 600 rows in 20 directions, and a cache of its own."""
    monkeypatch.setenv("LABELKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(retrieve_module, "_FEW_ROWS", 50)
    generator = np.random.default_rng(0)
    labels = np.arange(600) % 20
    rows = generator.standard_normal((20, 16))[labels] + 0.4 * generator.standard_normal((600, 16))
    return Path(make_store(rows, labels=labels.tolist()).path)


def cached(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "cache" / "indexes").glob("*.index")
    return path


@pytest.mark.parametrize("kind", ["hnsw", "ivfpq"])
def test_an_index_finds_what_exact_search_finds_and_is_built_once(many: Path, tmp_path: Path, kind: Any) -> None:
    exact = retrieve(many, query_rows=tuple(range(50)), k=5)

    first = retrieve(many, query_rows=tuple(range(50)), k=5, search=kind)
    before = cached(tmp_path).stat().st_mtime_ns
    second = retrieve(many, query_rows=tuple(range(50)), k=5, search=kind)

    agree = [ids(a) == ids(b) for a, b in zip(first["queries"], exact["queries"], strict=True)]
    assert np.mean(agree) > 0.9
    assert (first["search"]["built"], second["search"]["built"]) == (True, False)
    assert cached(tmp_path).stat().st_mtime_ns == before
    assert first["search"]["measured"] == second["search"]["measured"]
    assert first["search"]["measured"]["recall"] > 0.95
    assert (first["search"]["measured"]["k"], first["search"]["measured"]["sampled"]) == (10, 200)
    assert first["queries"] == second["queries"]


@pytest.mark.parametrize("damage", quick_every(2, ["flip", "cut", "line", "empty"]))
def test_a_damaged_index_is_built_again_and_said(labelkit: Any, many: Path, tmp_path: Path, damage: str) -> None:
    words = ("--index", many, "--query-rows", "0", "-k", 3, "--search", "hnsw", "--json")
    first = labelkit("retrieve", *words).json
    path = cached(tmp_path)
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
    elif damage == "cut":
        del content[len(content) // 2 :]
    elif damage == "empty":
        content.clear()
    else:
        path.with_suffix(".json").write_text("]")
    path.write_bytes(content)

    again = labelkit("retrieve", *words)

    assert again.code == 0
    assert "is damaged" in again.err
    assert "is rebuilt" in again.err
    assert again.json["search"]["built"]
    assert again.json["queries"] == first["queries"]
    assert labelkit("retrieve", *words).json["search"]["built"] is False


def test_a_poor_index_is_warned_about(labelkit: Any, make_store: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("LABELKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(search.WIDTHS, "ivfpq", 1)
    monkeypatch.setattr(search, "_WIDEST", 1)
    store = make_store(np.random.default_rng(0).standard_normal((2000, 32)))

    for _ in range(2):  # built, and from the cache
        answer = labelkit("retrieve", "--index", store.path, "--query-rows", "0", "-k", 3, "--search", "ivfpq")

        assert answer.code == 0
        assert "% of the 10 nearest rows; for better results, pass --search exact" in answer.err

"""Commands on a store in shards: the same answers as on one file, and damaged shards are named or left out."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import h5py
import numpy as np
import pytest
from labelkit.errors import ConfigError
from labelkit.stages.read.rows import split_rows
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.packing import pack_store
from labelkit.store.results import read_result
from labelkit.store.shard_writing import Sharding

from conftest import Labelkit

SHARDS, ROWS = 4, 48
COMMANDS = {
    "k-means": ("cluster", "k-means", "--num-clusters", "4"),
    "k-means in blocks": ("cluster", "k-means", "--num-clusters", "4", "--max-memory", "8GiB"),
    "categories": ("discover", "categories", "--num-classes", "4"),
    "retrieve": ("retrieve", "--query-rows", "0,20,47", "-k", "5"),
    "retrieve by a graph": ("retrieve", "--query-rows", "0,20,47", "-k", "5", "--search", "hnsw"),
    "retrieval": ("evaluate", "retrieval"),
    "clustering": ("evaluate", "clustering", "--bootstrap", "20"),
    "knn": ("evaluate", "knn", "--k", "3"),
    "answer": ("discover", "answer"),
    "status": ("status",),
    "verify": ("verify",),
}
VARYING = {"seconds", "index", "path", "made", "shards", "bytes", "checked", "built", "csv", "sheet", "files"}
VARYING |= {"added_rows"}  # whichever comes second finds the index of the first


def plain(value: Any) -> Any:
    """An answer without what depends on time and place."""
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items() if key not in VARYING and "second" not in key}
    return [plain(entry) for entry in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, embedded: Path) -> dict[str, Path]:
    """The same store in one file and in shards, each in a folder of its own. Tests must not damage it."""
    places = {name: tmp_path_factory.mktemp(name) / "s.h5" for name in ("one", "many")}
    shutil.copyfile(embedded, places["one"])
    pack_store(open_store(places["one"]), places["many"], sharding=Sharding(count=SHARDS))
    return places


@pytest.fixture
def many(pair: dict[str, Path], tmp_path: Path) -> Path:
    """A copy in shards, to be damaged."""
    for path in (pair["many"], pair["many"].with_name("s.h5.shards")):
        if path.is_dir():
            shutil.copytree(path, tmp_path / path.name)
        else:
            shutil.copyfile(path, tmp_path / path.name)
    return tmp_path / "s.h5"


def shards_of(path: Path) -> list[Path]:
    return sorted(path.with_name(f"{path.name}.shards").iterdir())


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_the_same_of_one_file_and_of_shards(
    labelkit: Labelkit, pair: dict[str, Path], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    found = []
    for path in pair.values():
        monkeypatch.chdir(path.parent)
        answer = labelkit(*COMMANDS[name], "--index", "s.h5", "--json")
        assert answer.code == 0, answer.err
        found.append(plain(answer.json))
    assert found[0] == found[1]
    assert found[0]


@pytest.mark.parametrize("kind", ["csv", "npz", "npy"])
def test_an_export_of_shards_has_the_same_bytes(
    labelkit: Labelkit, pair: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    for name, path in pair.items():
        assert labelkit("export", "--index", path, "--out", tmp_path / f"{name}.{kind}").code == 0
    assert (tmp_path / f"one.{kind}").read_bytes() == (tmp_path / f"many.{kind}").read_bytes()


def test_groups_of_one_file_and_of_shards_are_the_same_groups(labelkit: Labelkit, pair: dict[str, Path]) -> None:
    results = []
    for path in pair.values():
        words = ("cluster", "k-means", "--index", path, "--num-clusters", "4", "--result", "kept")
        assert labelkit(*words).code == 0
        results.append(path.with_name("s.h5.results") / "kept.h5")
    assert results[0].read_bytes() == results[1].read_bytes()
    words = (
        "diff",
        "--index",
        pair["many"],
        "--result",
        "kept",
        "--previous",
        pair["one"],
        "--previous-result",
        "kept",
    )
    answer = labelkit(*words, "--json")
    assert answer.code == 0, answer.err
    assert answer.json["moved"] == []


def test_embed_writes_shards_of_the_same_store(labelkit: Labelkit, photos: Path, tmp_path: Path) -> None:
    words = ("embed", "--dataset", photos, "--backbone", "pixels", "--image-size", "8")
    one = labelkit(*words, "--out", tmp_path / "one.h5", "--json").json
    many = labelkit(*words, "--out", tmp_path / "many.h5", "--shard-rows", "20", "--json").json
    assert (one["shards"], many["shards"]) == (0, 3)
    assert one["content_digest"] == many["content_digest"]
    again = labelkit(*words, "--out", tmp_path / "many.h5")
    assert again.code == 0
    assert "was there already and stays in 3 shards; `labelkit pack` splits it anew" in again.err
    assert "was there" not in labelkit(*words, "--out", tmp_path / "many.h5", "--shard-rows", "20").err


def test_a_store_that_is_there_keeps_its_shards_and_says_so(labelkit: Labelkit, photos: Path, tmp_path: Path) -> None:
    many = tmp_path / "many.h5"
    words = ("embed", "--dataset", photos, "--backbone", "pixels", "--image-size", "8", "--out", many)
    assert labelkit(*words, "--shard-rows", "20").code == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "many.h5.shards").iterdir()}
    said = "was there already and stays in 3 shards"
    whole = labelkit(*words, "--shards", "3")
    assert whole.code == 0
    assert said in whole.err  # as many, but of other rows
    next(iter(sorted((tmp_path / "many.h5.shards").iterdir()))).unlink()
    mended = labelkit(*words, "--shards", "2", "--json")
    assert mended.json["shards"] == 3
    assert said in mended.err
    assert {path.name: path.read_bytes() for path in (tmp_path / "many.h5.shards").iterdir()} == before


def test_pack_puts_shards_into_one_file_with_the_results(
    labelkit: Labelkit, pair: dict[str, Path], many: Path, tmp_path: Path
) -> None:
    assert labelkit("cluster", "k-means", "--index", many, "--num-clusters", "4").code == 0
    packed = labelkit("pack", "--index", many, "--out", tmp_path / "all.h5", "--json").json
    assert packed["shards"] == 0
    assert len(packed["results"]) == 1
    assert open_store(tmp_path / "all.h5").content_digest == open_store(pair["one"]).content_digest
    split = labelkit("pack", "--index", tmp_path / "all.h5", "--out", tmp_path / "split.h5", "--shards", "2", "--json")
    assert split.json["shards"] == 2
    assert labelkit("verify", "--index", tmp_path / "split.h5").code == 0
    again = labelkit("pack", "--index", tmp_path / "all.h5", "--out", tmp_path / "split.h5")
    assert again.code == 2
    assert "in shards" in again.err


# ---- damage


def damage(path: Path, kind: str) -> None:
    if kind == "lost":
        path.unlink()
    elif kind == "cut":
        os.truncate(path, 100)
    else:
        with h5py.File(path) as file:
            offset = file["embeddings"].id.get_offset()
        data = bytearray(path.read_bytes())
        data[offset + 5] ^= 1
        path.write_bytes(data)


@pytest.mark.parametrize("kind", ["lost", "cut", "flipped"])
@pytest.mark.parametrize("words", [COMMANDS["k-means"], COMMANDS["retrieve"], COMMANDS["retrieval"]], ids=" ".join)
def test_a_damaged_shard_is_one_error_that_names_it(
    labelkit: Labelkit, many: Path, kind: str, words: tuple[str, ...]
) -> None:
    path = shards_of(many)[1]
    damage(path, kind)
    answer = labelkit(*words, "--index", many)
    assert answer.code == 3
    assert answer.out == ""
    assert answer.err.count("error:") == 1
    assert str(path) in answer.err
    assert "`discover`, `evaluate`, `retrieve`, `suggest`" in answer.err


def test_verify_and_status_name_damaged_shards(labelkit: Labelkit, many: Path) -> None:
    paths = shards_of(many)
    damage(paths[0], "lost")
    damage(paths[2], "flipped")
    answer = labelkit("verify", "--index", many, "--json")
    assert answer.code == 3
    assert [fault["where"] for one in answer.json["checked"] for fault in one["faults"]] == [
        str(paths[0]),
        str(paths[2]),
    ]
    status = labelkit("status", "--index", many, "--json")
    assert status.json["state"] == "damaged"
    assert [fault["where"] for fault in status.json["faults"]] == [str(paths[0])]


@pytest.mark.parametrize("kind", ["lost", "cut", "flipped"])
def test_an_export_leaves_out_the_rows_of_a_damaged_shard(
    labelkit: Labelkit, pair: dict[str, Path], many: Path, tmp_path: Path, kind: str
) -> None:
    path = shards_of(many)[1]
    damage(path, kind)
    out = tmp_path / "rest.npz"
    answer = labelkit("export", "--index", many, "--out", out, "--skip-damaged", "--json")
    assert answer.code == 0, answer.err
    assert str(path) in answer.err
    assert "12 of 48 rows" in answer.err
    assert (answer.json["rows"], answer.json["left_out"]) == (36, 12)
    kept = np.r_[0:12, 24:48]
    store = open_store(pair["one"])
    with np.load(out) as file:
        rest = dict(file)
    np.testing.assert_array_equal(rest["embeddings"], store.embeddings[kept])
    np.testing.assert_array_equal(rest["labels"], store.labels[kept])
    np.testing.assert_array_equal(rest["sha256"], store.sha256[kept])
    assert rest["sample_ids"].astype(str).tolist() == [store.sample_ids[row] for row in kept]
    assert rest["class_names"].astype(str).tolist() == list(store.class_names)
    table = tmp_path / "rest.csv"
    assert labelkit("export", "--index", many, "--out", table, "--skip-damaged").code == 0
    lines = table.read_text().splitlines()[1:]
    assert [line.split(",")[0] for line in lines] == [store.sample_ids[row] for row in kept]
    assert float(lines[12].rpartition(",")[2]) == store.embeddings[24, -1]


def test_an_export_of_a_whole_store_leaves_out_nothing(labelkit: Labelkit, many: Path, tmp_path: Path) -> None:
    words = ("export", "--index", many)
    assert labelkit(*words, "--out", tmp_path / "a.npz").code == 0
    assert labelkit(*words, "--out", tmp_path / "b.npz", "--skip-damaged", "--json").json["left_out"] == 0
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_a_search_goes_on_among_the_rows_that_are_left(labelkit: Labelkit, pair: dict[str, Path], many: Path) -> None:
    damage(shards_of(many)[1], "lost")
    words = ("retrieve", "--query-rows", "0", "--json")
    rest = labelkit(*words, "--index", many, "--skip-damaged", "-k", "36")
    assert rest.code == 0, rest.err
    whole = labelkit(*words, "--index", pair["one"], "-k", "48").json
    expected = [hit for hit in whole["queries"][0]["hits"] if not 12 <= hit["row"] < 24]
    found = rest.json["queries"][0]["hits"]
    assert [hit["row"] for hit in found] == [hit["row"] for hit in expected]
    lost = labelkit("retrieve", "--query-rows", "12", "--index", many, "--skip-damaged")
    assert lost.code == 2
    assert "in a shard that is left out" in lost.err


@pytest.mark.parametrize("words", [("--search", "hnsw"), ("--result", "kept"), ("--patch", "0,0")], ids=" ".join)
def test_what_would_keep_a_part_as_the_whole_does_not_skip(
    labelkit: Labelkit, many: Path, words: tuple[str, ...]
) -> None:
    answer = labelkit("retrieve", "--index", many, "--query-rows", "0", "--skip-damaged", *words)
    assert answer.code == 2
    assert "--skip-damaged" in answer.err


def test_a_lost_folder_of_shards_is_one_fault(labelkit: Labelkit, many: Path) -> None:
    folder = many.with_name("s.h5.shards")
    folder.rename(many.with_name("elsewhere"))
    said = f"{folder}: there is no such folder, and all 4 shards of s.h5 lie in it. Put it back beside s.h5"
    verified = labelkit("verify", "--index", many, "--json")
    assert verified.code == 3
    assert [fault["where"] for one in verified.json["checked"] for fault in one["faults"]] == [str(folder)]
    cluster = ("cluster", "k-means", "--num-clusters", "4")
    for words in (("verify",), ("status",), cluster, (*cluster, "--skip-damaged")):
        answer = labelkit(*words, "--index", many)
        assert answer.code == 3
        assert answer.err.count("error: ") == answer.err.count("\n") == 1
        assert said in answer.err


def test_what_to_do_about_several_shards_is_said_once(labelkit: Labelkit, many: Path) -> None:
    for path in shards_of(many)[1:3]:
        damage(path, "lost")
    answer = labelkit("verify", "--index", many)
    assert answer.code == 3
    assert answer.err.count("there is no such shard") == 2
    assert answer.err.count("Restore it from a copy") == 1
    last = shards_of(many)[-1]
    last.symlink_to(last.rename(many.with_name("moved")))  # another remedy
    answer = labelkit("verify", "--index", many)
    assert answer.err.count("Restore it from a copy") == 2


def test_an_embed_that_finds_all_done_says_so(labelkit: Labelkit, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "s.h5"
    words = ("embed", "--dataset", photos, "--backbone", "pixels", "--image-size", "8", "--shards", "3", "--out", out)
    assert labelkit(*words).out.splitlines()[-1] == f"made {out}"
    assert labelkit(*words).out.splitlines()[-1] == f"unchanged {out}"
    assert labelkit(*words, "-q").out == f"{out}\n"


@pytest.mark.parametrize("name", ["k-means", "spherical-k-means", "ss-kmeans", "sinkhorn"])
def test_a_clustering_groups_the_rows_that_are_left(
    labelkit: Labelkit, pair: dict[str, Path], many: Path, tmp_path: Path, name: str
) -> None:
    path = shards_of(many)[1]
    damage(path, "lost")
    words = ("cluster", name, "--num-clusters", "4", "--num-inits", "2")
    assert labelkit(*words, "--index", many).code == 3
    answer = labelkit(*words, "--index", many, "--skip-damaged", "--json")
    assert answer.code == 0, answer.err
    assert str(path) in answer.err
    assert "12 of 48 rows" in answer.err
    assert (answer.json["rows"], answer.json["left_out"]) == (36, 12)
    # the other rows alone, as a store of their own, get the same groups
    assert labelkit("export", "--index", many, "--out", tmp_path / "rest.npz", "--skip-damaged").code == 0
    rest = ("import", "--source", tmp_path / "rest.npz", "--model", "m", "--out", tmp_path / "rest.h5")
    assert labelkit(*rest).code == 0
    alone = labelkit(*words, "--index", tmp_path / "rest.h5", "--json")
    assert alone.code == 0, alone.err
    part = read_result(open_store(many, skip_damaged=True), name)
    expected = read_result(open_store(tmp_path / "rest.h5"), name).arrays["cluster_ids"]
    found = np.asarray(part.arrays["cluster_ids"])
    np.testing.assert_array_equal(found[np.r_[0:12, 24:48]], expected)
    assert (found[12:24] == -1).all()
    assert part.params["left_out"] == 12


@pytest.fixture
def rest(labelkit: Labelkit, many: Path, tmp_path: Path) -> Path:
    """The rows that are left once a shard is lost, as a store of their own."""
    damage(shards_of(many)[1], "lost")
    assert labelkit("export", "--index", many, "--out", tmp_path / "rest.npz", "--skip-damaged").code == 0
    words = ("import", "--source", tmp_path / "rest.npz", "--model", "m", "--out", tmp_path / "rest.h5")
    assert labelkit(*words).code == 0
    return tmp_path / "rest.h5"


LEFT = np.r_[0:12, 24:48]
OF_REST = {
    "retrieval": ("evaluate", "retrieval", "--nmi-seeds", "1"),
    "knn": ("evaluate", "knn", "--k", "3"),
}


@pytest.mark.parametrize("name", OF_REST)
def test_rows_that_are_left_are_judged_as_if_they_were_all(
    labelkit: Labelkit, many: Path, rest: Path, name: str
) -> None:
    assert labelkit(*OF_REST[name], "--index", many).code == 3
    part = labelkit(*OF_REST[name], "--index", many, "--skip-damaged", "--json")
    assert part.code == 0, part.err
    assert "12 of 48 rows" in part.err
    alone = labelkit(*OF_REST[name], "--index", rest, "--json")
    assert alone.code == 0, alone.err
    places = {"queries", "gallery", "n_same_file"}
    found, expected = (plain(answer.json) for answer in (part, alone))
    assert {key for key in found if found[key] != expected[key]} <= places
    kept = labelkit(*OF_REST[name], "--index", many, "--skip-damaged", "--result", "kept")
    assert kept.code == 2
    assert "scores of all" in kept.err


def test_rows_that_are_left_are_sorted_answered_scored_and_suggested_from(
    labelkit: Labelkit, many: Path, rest: Path, tmp_path: Path
) -> None:
    chain = (
        ("discover", "categories", "--num-classes", "4"),
        ("discover", "answer"),
        ("evaluate", "clustering", "--bootstrap", "20"),
        ("suggest", "-n", "3", "--out", tmp_path / "next.csv", "--overwrite"),
    )
    for words in chain:
        part = labelkit(*words, "--index", many, "--skip-damaged", "--json")
        assert part.code == 0, part.err
        assert "12 of 48 rows" in part.err
        alone = labelkit(*words, "--index", rest, "--json")
        assert alone.code == 0, alone.err
        if words[0] == "suggest":
            assert [one["path"] for one in part.json["images"]] == [one["path"] for one in alone.json["images"]]
    for name, column in (("categories", "pseudo_labels"), ("answer", "confidence")):
        found = read_result(open_store(many, skip_damaged=True), name)
        expected = read_result(open_store(rest), name)
        np.testing.assert_array_equal(np.asarray(found.arrays[column])[LEFT], expected.arrays[column])
        assert found.params["left_out"] == 12
    assert (np.asarray(found.arrays["confidence"])[12:24] == 0).all()


def test_groups_of_before_a_shard_was_lost_are_answered_and_scored_without_it(labelkit: Labelkit, many: Path) -> None:
    assert labelkit("discover", "categories", "--index", many, "--num-classes", "4").code == 0
    store = open_store(many)
    scored = (np.asarray(store.labels) >= 0) & ~np.asarray(store.labeled)
    damage(shards_of(many)[1], "lost")

    scores = labelkit("evaluate", "clustering", "--index", many, "--bootstrap", "0", "--skip-damaged", "--json")
    assert scores.code == 0, scores.err
    assert scored[12:24].any()
    assert [one["rows"] for one in scores.json["scores"]] == [scored[LEFT].sum()]
    assert labelkit("discover", "answer", "--index", many, "--skip-damaged").code == 0
    confidence = np.asarray(read_result(open_store(many, skip_damaged=True), "answer").arrays["confidence"])
    assert (confidence[LEFT] > 0).all()
    assert (confidence[12:24] == 0).all()


def test_what_was_grouped_without_a_shard_says_so_when_the_shard_is_back(
    labelkit: Labelkit, many: Path, tmp_path: Path
) -> None:
    shard, kept = shards_of(many)[1], tmp_path / "kept.h5"
    shard.rename(kept)
    for words in (COMMANDS["k-means"], COMMANDS["categories"], COMMANDS["answer"]):
        assert labelkit(*words, "--index", many, "--skip-damaged").code == 0
    evaluate = ("evaluate", "clustering", "--index", many, "--bootstrap", "0", "--results", "k-means")
    assert "--skip-damaged), which" not in labelkit(*evaluate, "--skip-damaged").err
    kept.rename(shard)
    said = "was made without 12 of the 48 rows (--skip-damaged), which are there again"
    report = ("report", "--index", many, "--out", tmp_path / "r.html")
    for words in (evaluate, ("evaluate", "answer", "--index", many), report):
        answer = labelkit(*words)
        assert answer.code == 0, answer.err
        assert said in " ".join(answer.err.split())


def test_every_split_is_scored_without_the_rows_that_are_lost(labelkit: Labelkit, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "s.h5"
    words = ("--backbone", "pixels", "--image-size", "8", "--holdout", "0.3", "--split", "all", "--shards", "3")
    assert labelkit("embed", "--dataset", photos, *words, "--out", out).code == 0
    assert labelkit("cluster", "k-means", "--index", out, "--num-clusters", "3").code == 0
    store = open_store(out)
    first = shards_of(out)[0]
    damage(first, "lost")
    rest = open_store(out, skip_damaged=True).sound
    scored = (np.asarray(store.labels) >= 0) & rest

    words = ("evaluate", "clustering", "--index", out, "--bootstrap", "0", "--rows", "all")
    scores = labelkit(*words, "--skip-damaged", "--json")

    assert scores.code == 0, scores.err
    expected = {name: int(scored[store.rows(name)].sum()) for name in store.split_names}
    assert {one["split"]: one["rows"] for one in scores.json["scores"]} == expected


def test_a_split_that_lies_in_lost_shards_alone_is_named() -> None:
    store = SimpleNamespace(path="s.h5", n=4, sound=np.r_[False, False, True, True], split_names=("train", "test"))
    store.rows = {"train": np.arange(2), "test": np.arange(2, 4)}.get
    assert split_rows(cast("EmbeddingStore", store), "test").tolist() == [2, 3]
    with pytest.raises(ConfigError, match=r"all rows of split 'train' of s\.h5 are in shards that are left out"):
        split_rows(cast("EmbeddingStore", store), "train")


def test_a_clustering_of_patches_leaves_out_nothing(labelkit: Labelkit, many: Path) -> None:
    answer = labelkit("cluster", "k-means", "--index", many, "--num-clusters", "4", "--patches", "--skip-damaged")
    assert answer.code == 2
    assert "--skip-damaged leaves out rows of the store" in answer.err


def test_the_same_embed_again_repairs_a_damaged_shard(labelkit: Labelkit, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "s.h5"
    words = ("embed", "--dataset", photos, "--backbone", "pixels", "--image-size", "8", "--part-rows", "16")
    words = (*words, "--out", out, "--shards", "3")
    assert labelkit(*words).code == 0
    assert labelkit("cluster", "k-means", "--index", out, "--num-clusters", "4").code == 0
    whole = {path.name: path.read_bytes() for path in [out, *shards_of(out)]}
    damage(shards_of(out)[1], "flipped")
    answer = labelkit(*words, "--json")
    assert answer.code == 0, answer.err
    assert "made again" in answer.err
    assert not answer.json["already_done"]
    assert {path.name: path.read_bytes() for path in [out, *shards_of(out)]} == whole
    assert labelkit("verify", "--index", out).code == 0


def test_embed_computes_the_lost_rows_alone(labelkit: Labelkit, photos: Path, tmp_path: Path) -> None:
    words = ("embed", "--dataset", photos, "--backbone", "pixels", "--image-size", "8")
    assert labelkit(*words, "--out", tmp_path / "s.h5", "--shards", "4").code == 0
    whole = np.array(open_store(tmp_path / "s.h5").embeddings)
    damage(shards_of(tmp_path / "s.h5")[3], "flipped")
    new = (*words, "--out", tmp_path / "new.h5", "--reuse", tmp_path / "s.h5")
    assert labelkit(*new).code == 3
    answer = labelkit(*new, "--skip-damaged", "--json")
    assert answer.code == 0, answer.err
    assert answer.json["reused"] == 36
    np.testing.assert_array_equal(open_store(tmp_path / "new.h5").embeddings, whole)
    assert labelkit(*words, "--out", tmp_path / "other.h5", "--skip-damaged").code == 2

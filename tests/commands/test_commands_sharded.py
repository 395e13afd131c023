"""Commands on a store in shards: the same answers as on one file, and damaged shards are named."""

import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from labelkit.commands.common import apply
from labelkit.commands.discover import grouping
from labelkit.commands.store_files.packing import pack_store
from labelkit.errors import DatasetError
from labelkit.metrics import retrieval
from labelkit.store.embeddings import open_store
from tests.running import Labelkit, flip_bit

SHARDS = 4
SPLIT = {
    "k-means": ("cluster", "k-means", "--num-clusters", "4", "--index", "s.h5", "--max-memory", "1KB"),
    "ss-kmeans": ("cluster", "ss-kmeans", "--num-clusters", "4", "--index", "s.h5", "--max-memory", "1KB"),
    "retrieve": ("retrieve", "--query-rows", "0,20,47", "-k", "5", "--index", "s.h5", "--search", "exact"),
    "answer": ("discover", "answer", "--num-clusters", "4", "--index", "s.h5"),
    "retrieval": ("evaluate", "retrieval", "--index", "s.h5"),
    "predict": ("predict", "s.h5", "--from", "s.h5", "--result", "ss-kmeans", "--format", "csv"),
}
VARYING = {"seconds", "index", "path", "made", "shards", "bytes", "checked", "built", "csv", "sheet", "files"}


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
    pack_store(open_store(places["one"]), places["many"], shards=SHARDS)
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
    return sorted(path.with_name(f"{path.name}.shards").glob("0*.h5"))


def backwards(function: Any, items: Any, **where: Any) -> Iterator[tuple[Any, Any]]:
    """Stand in for processes: the last part is done first, and all that goes between processes is pickled."""
    assert len(items) > 2
    for item in reversed(items):
        call, part = pickle.loads(pickle.dumps((function.args[0], item)))
        yield item, pickle.loads(pickle.dumps(call(part)))


def replaced(name: str) -> list[str]:
    return [] if name == "retrieval" else ["--overwrite"]  # its scores are not kept


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let 48 rows be several parts for the processes."""
    monkeypatch.setattr(grouping, "MAX_TOGETHER", 20)
    monkeypatch.setattr(apply, "_BLOCKS_PER_CALL", 1)
    monkeypatch.setattr(apply, "rows_per_block", lambda numbers: 7)
    for constant in ("_PRODUCT_PAIRS", "_MIN_ROWS", "_PART_QUERIES"):
        monkeypatch.setattr(retrieval, constant, 7)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("name", SPLIT)
def test_parts_of_shards_say_the_same_in_processes(
    labelkit: Labelkit, pair: dict[str, Path], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(apply, "map_parallel", backwards)
    found = []
    for number, path in enumerate(pair.values()):
        where = ["--processes", "2"] if number else []
        monkeypatch.chdir(path.parent)
        answer = labelkit(*SPLIT[name], *where, *replaced(name), "--json")
        assert answer.code == 0, answer.err
        made = path.with_name("s.h5.results") / f"{name}.h5"
        found.append((plain(answer.json), made.read_bytes() if made.exists() else b""))
    assert found[0] == found[1]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("name", ["retrieve", "answer", "retrieval", "predict"])
def test_a_command_that_was_stopped_continues(
    labelkit: Labelkit, pair: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    given: list[list[Any]] = []

    def stop_after_two(function: Any, items: Any, **where: Any) -> Iterator[tuple[Any, Any]]:
        given.append(list(items))
        for number, item in enumerate(items):
            if number == 2 and len(given) == 1:
                raise DatasetError("the command", "was stopped", "Repeat it.")
            yield item, function.args[0](item)

    monkeypatch.setattr(apply, "map_parallel", stop_after_two)
    monkeypatch.setenv("LABELKIT_CACHE", str(tmp_path))
    monkeypatch.chdir(pair["many"].parent)
    assert labelkit(*SPLIT["ss-kmeans"], "--overwrite").code == 0
    given.clear()
    words = (*SPLIT[name], "--processes", "2", *replaced(name), "--json")

    assert labelkit(*words).code == 3
    again = labelkit(*words)
    anew = labelkit(*words)

    assert "2 of" in again.err
    assert "are reused from an earlier, interrupted run" in again.err
    assert "are reused from an earlier, interrupted run" not in anew.err
    begun, rest, all_parts = map(len, given)
    assert begun == all_parts == rest + 2
    assert plain(again.json) == plain(anew.json)


def test_an_export_of_shards_has_the_same_bytes(labelkit: Labelkit, pair: dict[str, Path], tmp_path: Path) -> None:
    for kind in ("csv", "npz"):
        for name, path in pair.items():
            assert labelkit("export", "--index", path, "--out", tmp_path / f"{name}.{kind}").code == 0
        assert (tmp_path / f"one.{kind}").read_bytes() == (tmp_path / f"many.{kind}").read_bytes()


def test_embed_writes_shards_of_the_same_store(labelkit: Labelkit, photos: Path, tmp_path: Path) -> None:
    words = ("embed", "--dataset", photos, "--backbone", "pixels", "--image-size", "8")
    one = labelkit(*words, "--out", tmp_path / "one.h5", "--json").json
    many = labelkit(*words, "--out", tmp_path / "many.h5", "--shards", "3", "--json").json
    assert (one["shards"], many["shards"]) == (0, 3)
    assert one["content_digest"] == many["content_digest"]
    again = labelkit(*words, "--out", tmp_path / "many.h5")
    assert again.code == 0
    assert "already exists in 3 shards; to change this, use `labelkit pack`" in again.err
    assert "already exists" not in labelkit(*words, "--out", tmp_path / "many.h5", "--shards", "3").err


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


def damage(path: Path, kind: str) -> None:
    if kind == "lost":
        path.unlink()
    elif kind == "cut":
        os.truncate(path, 100)
    elif kind == "grown":
        path.write_bytes(path.read_bytes() + b"\0")
    else:
        flip_bit(path, "embeddings")


@pytest.mark.parametrize("kind", ["lost", "cut", "grown", "flipped"])
def test_a_damaged_shard_is_one_error_that_names_it(labelkit: Labelkit, many: Path, kind: str) -> None:
    path = shards_of(many)[1]
    damage(path, kind)
    answer = labelkit("retrieve", "--query-rows", "0,20,47", "-k", "5", "--index", many)
    assert answer.code == 3
    assert answer.out == ""
    assert answer.err.count("error:") == 1
    assert str(path) in answer.err
    assert f"`labelkit embed ... --out {many} --shards {SHARDS} --overwrite`" in answer.err


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


def test_embed_with_overwrite_makes_a_lost_shard_again_and_results_still_fit(
    labelkit: Labelkit, photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "s.h5"
    words = ("embed", "--dataset", photos, "--backbone", "pixels", "--image-size", "8", "--out", out, "--shards", "3")
    assert labelkit(*words).code == 0
    assert labelkit("cluster", "k-means", "--index", out, "--num-clusters", "4").code == 0
    whole = {path.name: path.read_bytes() for path in [out, *shards_of(out)]}
    damage(shards_of(out)[1], "lost")
    refused = labelkit(*words)
    assert refused.code == 2
    assert "the shard does not exist" in refused.err
    assert labelkit(*words, "--overwrite").code == 0
    assert {path.name: path.read_bytes() for path in [out, *shards_of(out)]} == whole
    assert labelkit("verify", "--index", out).code == 0

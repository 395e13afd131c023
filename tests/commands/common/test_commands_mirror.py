"""Stores at URLs: only changed files are transferred, and nobody's changes are overwritten."""

from pathlib import Path
from typing import Any, NoReturn

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from labelkit.cli.main import main
from labelkit.commands.common.mirror import _Mirror, mirror_urls
from labelkit.commands.store_files.options import StatusConfig
from labelkit.errors import Mismatch

URL = "memory://bucket/store.h5"


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    MemoryFileSystem.store.clear()
    monkeypatch.setenv("LABELKIT_CACHE", str(tmp_path / "here"))
    words = ("--dataset", "digits", "--max-per-class", "4", "--backbone", "pixels", "--image-size", "8")
    assert main(["embed", *words, "--shards", "2", "--out", URL, "-q"]) == 0
    assert capsys.readouterr().out == f"{URL}\n"


def fail(*_: object) -> NoReturn:
    raise ConnectionError


def cluster(*words: str) -> int:
    return main(["cluster", "k-means", "--index", URL, "--num-clusters", "2", *words])


def test_another_machine_fetches_a_store_once_and_uploads_only_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LABELKIT_CACHE", str(tmp_path / "there"))
    assert cluster() == 0
    first = capsys.readouterr()
    assert cluster("--result", "again") == 0
    second = capsys.readouterr().err

    assert f"made {URL}.results/k-means.h5" in first.out
    assert str(tmp_path) not in first.out + first.err
    assert "fetching" in first.err
    assert "fetching" not in second
    assert [line for line in second.splitlines() if "uploading" in line] == [f"uploading {URL}.results/again.h5"]
    (copy,) = (tmp_path / "there").rglob("store.h5")
    files = fsspec.filesystem("memory").find("bucket")
    assert len(files) == 6  # the store, two shards, their list, and two results
    contents = {name: fsspec.filesystem("memory").cat_file(name) for name in files}
    assert {
        f"/bucket/{file.relative_to(copy.parent)}": file.read_bytes() for file in copy.parent.rglob("*.h5")
    } == contents


@pytest.mark.parametrize("name", ["store.h5", "store.h5.results/k-means.h5"])
def test_files_that_others_change_during_a_command_are_not_overwritten(name: str) -> None:
    assert cluster() == 0
    with mirror_urls(StatusConfig.model_validate({"index": URL})) as (local, upload):
        assert isinstance(local, StatusConfig)
        assert local.index is not None
        result = local.index.with_name("store.h5.results") / "k-means.h5"
        result.write_bytes(b"ours")
        fsspec.filesystem("memory").pipe_file(f"/bucket/{name}", b"theirs")
        error = upload()

    assert isinstance(error, Mismatch)
    assert error.where == f"memory://bucket/{name}"
    assert str(result.parent.parent) in error.problem
    assert fsspec.filesystem("memory").cat_file(f"/bucket/{name}") == b"theirs"
    with pytest.raises(Mismatch), mirror_urls(StatusConfig.model_validate({"index": URL})):
        pass  # also the next command keeps both
    assert result.read_bytes() == b"ours"


def test_deleted_and_replaced_files_are_deleted_and_replaced_on_the_other_side() -> None:
    assert cluster() == 0
    system = fsspec.filesystem("memory")
    shards = set(system.find("/bucket/store.h5.shards"))
    system.rm_file("/bucket/store.h5.results/k-means.h5")
    words = ("--dataset", "digits", "--max-per-class", "5", "--backbone", "pixels", "--image-size", "8")

    assert main(["embed", *words, "--shards", "2", "--out", URL, "--overwrite"]) == 0

    assert not shards & set(system.find("/bucket/store.h5.shards")) - {"/bucket/store.h5.shards/all.h5"}
    assert not system.find("/bucket/store.h5.results")
    assert main(["verify", "--index", URL]) == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["status", "--index", "memory://bucket/none.h5"], 3, "error: memory://bucket/none.h5: does not exist."),
        (
            ["status", "--index", "memory://bucket/folder"],
            2,
            "error: --index: memory://bucket/folder is not the URL",
        ),
        (["start", ".", "--out", "memory://bucket/v1.2"], 2, "error: --out: memory://bucket/v1.2 is not the URL"),
        (["status", "--index", "nosuch://a/b.h5"], 3, "error: nosuch://a/b.h5: is not a URL that fsspec supports"),
        (
            ["retrieve", "--index", URL, "--query-rows", "1", "--ray-address", "local"],
            2,
            "runs in other processes",
        ),
    ],
)
def test_a_url_that_cannot_be_used_ends_with_one_error(
    words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == code
    assert said in capsys.readouterr().err


def test_files_with_similar_names_are_kept() -> None:
    system = fsspec.filesystem("memory")
    system.pipe_file("/bucket/next.csv.test", b"theirs")

    assert main(["suggest", "--index", URL, "-n", "2", "--out", "memory://bucket/next.csv"]) == 0

    assert system.cat_file("/bucket/next.csv.test") == b"theirs"
    assert len(system.find("/bucket")) == 6  # the store, two shards, their list, the CSV and this file


@pytest.mark.parametrize("step", ["put_file", "_find"])
def test_an_interrupted_upload_is_completed_with_its_deletions(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--dataset", "digits", "--max-per-class", "5", "--backbone", "pixels", "--image-size", "8")
    with monkeypatch.context() as patch:
        if step == "put_file":  # before the first file
            patch.setattr(MemoryFileSystem, step, fail)
        else:  # after it, before its version is known
            patch.setattr(_Mirror, step, lambda *names, find=_Mirror._find: fail() if len(names) == 2 else find(*names))
        assert main(["embed", *words, "--out", URL, "--overwrite"]) == 5

    assert main(["status", "--index", URL]) == 0

    assert fsspec.filesystem("memory").find("/bucket") == ["/bucket/store.h5"]
    assert main(["verify", "--index", URL]) == 0


def test_a_table_beside_the_store_is_replaced_and_other_files_are_not_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, table = fsspec.filesystem("memory"), "/bucket/store.answer.csv"
    system.pipe_file("/bucket/store.x.h5", b"theirs")
    for folder in ("here", "there"):
        monkeypatch.setenv("LABELKIT_CACHE", str(tmp_path / folder))
        with mirror_urls(StatusConfig.model_validate({"index": URL})) as (local, upload):
            assert isinstance(local, StatusConfig)
            assert local.index is not None
            local.index.with_name("store.answer.csv").write_text(folder)
            assert upload() is None
        assert system.cat_file(table) == folder.encode()
    assert not list(tmp_path.rglob("store.x.h5"))


def test_each_output_is_uploaded_even_if_another_fails_and_its_name_starts_with_a_dot(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def put_file(*arguments: str, put: Any = MemoryFileSystem.put_file) -> None:
        return fail() if arguments[2].endswith(".csv") else put(*arguments)

    monkeypatch.setattr(MemoryFileSystem, "put_file", put_file)
    words = ("--out", "memory://bucket/next.csv", "--sheet", "memory://bucket/.next.png")
    assert main(["suggest", "--index", URL, "-n", "2", *words]) == 5
    assert "next.csv. Upload this file yourself, or repeat" in capsys.readouterr().err
    assert fsspec.filesystem("memory").exists("/bucket/.next.png")


def test_an_interrupted_upload_to_a_local_url_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(source: Any, target: Any) -> NoReturn:
        target.write(source.read(1))
        raise ConnectionError

    address = f"file://{tmp_path / 'next.csv'}"
    words = ("suggest", "--index", URL, "-n", "2", "--out", address, "--overwrite")
    assert main([*words]) == 0
    before = (tmp_path / "next.csv").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("shutil.copyfileobj", interrupt)
        assert main([*words, "--seed", "1", "--strategy", "random"]) == 5
    assert (tmp_path / "next.csv").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "next.csv"]

    assert main([*words, "--seed", "1", "--strategy", "random"]) == 0
    assert (tmp_path / "next.csv").read_bytes() != before


def test_the_store_is_uploaded_last_and_a_place_that_cannot_be_written_is_found_before_the_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("embed", "--dataset", "digits", "--backbone", "pixels", "--image-size", "8", "--max-per-class", "4")
    assert main([*words, "--shards", "2", "--out", "memory://bucket/a.h5"]) == 0
    uploads = [line for line in capsys.readouterr().err.splitlines() if line.startswith("uploading")]
    assert len(uploads) == 4
    assert uploads[-1] == "uploading memory://bucket/a.h5"

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", fail)
    assert main([*words, "--out", "memory://bucket/b.h5"]) == 3
    assert "error: memory://bucket/b.h5: cannot be read: ConnectionError" in capsys.readouterr().err


def test_a_second_command_on_the_machine_is_refused_and_names_the_url(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("labelkit.store.parts.LOCK_SECONDS", 0.0)
    with mirror_urls(StatusConfig.model_validate({"index": URL})):
        assert main(["status", "--index", URL]) == 6
    assert f"error: {URL}: is used by another command on this machine." in capsys.readouterr().err


@pytest.mark.parametrize("saves", [False, True])
def test_a_changed_file_of_the_same_size_is_fetched_again_after_an_interrupted_fetch(
    saves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = fsspec.filesystem("memory")
    system.pipe_file("/bucket/store.h5.results/a.h5", b"old")
    with mirror_urls(StatusConfig.model_validate({"index": URL})):
        system.pipe_file("/bucket/store.h5.results/a.h5", b"new")

    def interrupt(*arguments: Any, save: Any = _Mirror._save) -> None:
        if saves:
            save(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_Mirror, "_save", interrupt)
        with pytest.raises(KeyboardInterrupt), mirror_urls(StatusConfig.model_validate({"index": URL})):
            pass
    with mirror_urls(StatusConfig.model_validate({"index": URL})) as (local, _):
        assert isinstance(local, StatusConfig)
        assert local.index is not None
        assert (local.index.with_name("store.h5.results") / "a.h5").read_bytes() == b"new"

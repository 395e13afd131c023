"""Committing files and folders."""

import errno
import hashlib
import json
import os
import stat

import pytest
from labelkit.errors import OutputExistsError, ResourceError
from labelkit.files import sha256_file
from labelkit.store.commit import canonical_json, commit_bytes, commit_folder, fsync_folder


def test_canonical_json_has_sorted_keys_and_no_spaces():
    assert canonical_json({"b": [1, 2.5, None], "a": "é"}) == '{"a":"é","b":[1,2.5,null]}'


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_canonical_json_refuses_numbers_that_are_not_finite(number):
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json({"a": number})


def test_canonical_json_keeps_bytes_that_are_not_utf8():
    name = b"\xff.png".decode("utf-8", "surrogateescape")
    text = canonical_json([name])
    assert text == '["\\udcff.png"]'
    assert json.loads(text.encode()) == [name]


@pytest.mark.parametrize("data", [b"abc", memoryview(b"abc"), [b"a", b"", b"bc"]])
def test_commit_returns_the_digest_and_leaves_only_the_file(tmp_path, data):
    digest = commit_bytes(tmp_path / "x", data)
    assert digest == hashlib.sha256(b"abc").hexdigest() == sha256_file(tmp_path / "x")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_commit_can_refuse_to_replace(tmp_path):
    commit_bytes(tmp_path / "x", b"old", replace=False)
    with pytest.raises(OutputExistsError):
        commit_bytes(tmp_path / "x", b"new", replace=False)
    assert (tmp_path / "x").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_commit_without_replacing_works_where_there_are_no_hard_links(tmp_path, monkeypatch):
    def no_links(*args, **kwargs):
        raise OSError(errno.EPERM, "no links")

    monkeypatch.setattr(os, "link", no_links)
    commit_bytes(tmp_path / "x", b"old", replace=False)
    with pytest.raises(OutputExistsError):
        commit_bytes(tmp_path / "x", b"new", replace=False)
    assert (tmp_path / "x").read_bytes() == b"old"


@pytest.mark.parametrize("call", ["open", "fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path, monkeypatch, call):
    commit_bytes(tmp_path / "x", b"old")

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(ResourceError, match="disk is full"):
        commit_bytes(tmp_path / "x", b"new")
    monkeypatch.undo()
    assert (tmp_path / "x").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_file_is_synced_before_it_gets_its_name_and_the_folder_after(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor):
        events.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def note_replace(*args, **kwargs):
        events.append("name")
        replace(*args, **kwargs)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    commit_bytes(tmp_path / "x", b"abc")
    assert events == ["file", "name", "folder"]


def test_a_folder_is_committed_with_all_its_files_synced(tmp_path, monkeypatch):
    source = tmp_path / ".tmp"
    (source / "inner").mkdir(parents=True)
    (source / "a").write_bytes(b"a")
    (source / "inner" / "b").write_bytes(b"b")
    synced = []
    real = os.fsync

    def note(descriptor):
        synced.append(os.fstat(descriptor).st_ino)
        real(descriptor)

    inodes = [path.stat().st_ino for path in (source / "a", source / "inner" / "b", source / "inner", source, tmp_path)]
    monkeypatch.setattr(os, "fsync", note)
    commit_folder(source, tmp_path / "step-1")
    assert sorted(synced) == sorted(inodes)
    assert synced[-1] == tmp_path.stat().st_ino
    assert (tmp_path / "step-1" / "inner" / "b").read_bytes() == b"b"
    assert not source.exists()


def test_a_folder_does_not_replace_one_with_files(tmp_path):
    (tmp_path / ".tmp").mkdir()
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / "a").write_bytes(b"old")
    with pytest.raises(ResourceError):
        commit_folder(tmp_path / ".tmp", tmp_path / "step-1")
    assert (tmp_path / "step-1" / "a").read_bytes() == b"old"


def test_a_failing_disk_is_reported_when_a_folder_is_synced(tmp_path, monkeypatch):
    def fail(descriptor):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ResourceError, match="disk reported an error"):
        fsync_folder(tmp_path)

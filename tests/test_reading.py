"""Every file is read by one rule: regular, without waiting, JSON within limits."""

import ast
import hashlib
import os
from pathlib import Path

import labelkit
import pytest
from labelkit.files import (
    NotRegularFileError,
    find_similar_path,
    missing_path_remedy,
    open_regular_file,
    parse_json,
    parse_json_object,
    read_bytes,
    read_record,
    sha256_file,
)

PACKAGE = Path(labelkit.__file__).parent
# what reads its own package, the system's own files, or a descriptor that it was given
ALLOWED = {
    "files.py",
    "cli/doctor.py",
    "data/named/benchmark_classes.py",
    "data/named/generated.py",
    "training/compute_device.py",
    "pipelines/compare/runs.py",
    "studio/report/page.py",
    "store/commit.py",
}


@pytest.mark.slow
def test_no_other_module_opens_files() -> None:
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            modes = [value.value for value in node.args if isinstance(value, ast.Constant)]
            if name in ("read_bytes", "read_text") and isinstance(node.func, ast.Attribute) and not node.args:
                found.add(path.relative_to(PACKAGE).as_posix())
            if name == "open" and any(mode in ("r", "rb") for mode in modes):
                found.add(path.relative_to(PACKAGE).as_posix())
    assert sorted(found - ALLOWED) == []


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotRegularFileError):
        open_regular_file(tmp_path / "pipe")
    with pytest.raises(IsADirectoryError):
        open_regular_file(tmp_path)
    with pytest.raises(NotRegularFileError):
        open_regular_file("/dev/null")


def test_a_file_has_at_most_the_bytes_that_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    assert read_bytes(tmp_path / "x", 5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_bytes(tmp_path / "x", 4)
    assert sha256_file(tmp_path / "x") == hashlib.sha256(b"12345").hexdigest()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[" * 100_000, "deep"),
        ("[" * 66 + "]" * 66, "deep"),
        ('{"a":' * 200 + "1" + "}" * 200, "deep"),
        ("1e999", "not finite"),
        ("NaN", "not finite"),
        ('{"a": -Infinity}', "not finite"),
        ("9" * 5000, "digits"),
        (b"\xff", "decode"),
        ("{", "Expecting"),
    ],
)
def test_json_beyond_the_limits_is_an_error_of_the_value(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_json(text)


def test_json_within_the_limits_is_what_it_means() -> None:
    assert parse_json("[" * 60 + "1.5" + "]" * 60) is not None
    assert parse_json('{"a": [1, 2.5, null, "NaN"]}') == {"a": [1, 2.5, None, "NaN"]}


@pytest.mark.parametrize(
    ("text", "problem"),
    [("[]", "no"), ("{}", "a is missing"), ('{"a": "1"}', "a is a str"), ('{"a": true}', "a is a bool")],
)
def test_an_object_has_the_keys_that_are_asked_for(text: str, problem: str) -> None:
    assert parse_json_object('{"a": 1}', {"a": float}) == {"a": 1}
    with pytest.raises(ValueError, match=problem):
        parse_json_object(text, {"a": float})


def test_a_damaged_record_of_a_cache_is_told_from_an_absent_one(tmp_path: Path) -> None:
    assert read_record(tmp_path, "x.json", {"a": str}) is None
    for content in (b"", b"[" * 100_000, b'{"a": 1}', b"\xff" * 10, b" " * (2 << 20)):
        (tmp_path / "x.json").write_bytes(content)
        with pytest.raises(ValueError, match=r"x\.json"):
            read_record(tmp_path, "x.json", {"a": str})
    (tmp_path / "x.json").unlink()
    os.mkfifo(tmp_path / "x.json")
    with pytest.raises(ValueError, match="not a regular file"):
        read_record(tmp_path, "x.json", {"a": str})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("photo.h5", "photos.h5"),
        ("photos", "photos.h5"),
        ("phot/", "photo"),
        ("other.h5", None),
        ("gone/photos.h5", None),
    ],
)
def test_a_name_that_looks_like_a_missing_one_is_found_beside_it(
    tmp_path: Path, name: str, expected: str | None
) -> None:
    (tmp_path / "photos.h5").write_bytes(b"")
    (tmp_path / "photo").mkdir()
    found = find_similar_path(tmp_path / name)
    assert found == (None if expected is None else tmp_path / expected)
    said = "Check the name." if expected is None else f"Did you mean `{tmp_path / expected}`?"
    assert missing_path_remedy(tmp_path / name) == said

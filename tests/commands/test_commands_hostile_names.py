"""File and class names that are no text, drive terminals or break lines go through every stage."""

import os
from pathlib import Path
from typing import Any

import pytest
from labelkit.store.embeddings import open_store
from labelkit.store.results import read_result
from PIL import Image
from torture_images import NAMES

FOLDERS = (b"ant", b"b\xff\xfee", "cat \U0001f431".encode(), b"dog\n'\"")
FILES = NAMES[:12]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory, pictures: list[Image.Image]) -> Path:
    """Four class folders of twelve pictures, all with names nobody should use, in such a folder."""
    root = os.fsencode(tmp_path_factory.mktemp("data")) + b"/p\xffh\notos"
    try:
        os.makedirs(root)  # noqa: PTH103 - bytes
    except OSError:  # macOS takes only UTF-8
        pytest.skip("this file system takes no such names")
    for row, picture in enumerate(pictures):
        folder = root + b"/" + FOLDERS[row // 12]
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - bytes
        picture.save(os.fsdecode(folder + b"/" + FILES[row % 12]))
    return Path(os.fsdecode(root))


@pytest.fixture(scope="module")
def store(
    hostile: Path, labelkit: Any, small: tuple[str | Path, ...], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The store of these pictures, embedded with a run trained on them, with groupings."""
    folder = tmp_path_factory.mktemp("work")
    run, out = folder / os.fsdecode(b"run\xff"), folder / os.fsdecode(b"s\xff\n.h5")
    train = ("train", "flipclass", "--dataset", hostile, "--label-split", "gcd", "--align-blocks", "1", *small)
    steps = (
        (*train, "--out", run, "--json"),
        (*train, "--out", run, "--resume", "--json"),
        ("embed", "--dataset", hostile, "--checkpoint", run, "--out", out, "--json"),
        ("cluster", "ss-kmeans", "--index", out, "--num-clusters", 4, "--json"),
        ("discover", "head", "--index", out, "--json"),
        ("discover", "categories", "--index", out, "--max-classes", 4, "--json"),
    )
    for words in steps:
        answer = labelkit(*words)
        assert answer.code == 0, answer.err
        assert answer.json
    return out


def ids() -> list[str]:
    return [os.fsdecode(name) for name in sorted(a + b"/" + b for a in FOLDERS for b in FILES)]


def test_names_of_classes_come_back_from_results(store: Path) -> None:
    names = read_result(open_store(store), "head").arrays["names"]

    assert [os.fsencode(name) for name in names[:2]] == sorted(FOLDERS)[:2]


@pytest.mark.slow
def test_every_image_finds_itself_and_json_says_so(labelkit: Any, store: Path, hostile: Path, tmp_path: Path) -> None:
    words = ("--index", store, "--query", hostile, "-k", 2, "--sheet", tmp_path / os.fsdecode(b"sh\xffeet.png"))

    answer = labelkit("retrieve", *words, "--json")

    assert answer.code == 0, answer.err
    found = {entry["query"]: entry["hits"][0]["sample_id"] for entry in answer.json["queries"]}
    assert found == {name: name for name in ids()}
    with Image.open(answer.json["sheet"]) as sheet:
        assert sheet.width == 8 + 3 * 120


def test_names_that_cannot_be_used_are_told_on_one_terminal_safe_line(labelkit: Any, hostile: Path) -> None:
    missing = hostile / os.fsdecode(b"\x1b]0;x\x07\xff.png")

    answer = labelkit("retrieve", "--index", missing, "--query", missing)

    assert answer.code == 3
    assert "\x1b" not in answer.err
    assert "\x07" not in answer.err
    assert "does not exist" in answer.err

"""The one rule by which a path in a CSV names an image."""

import unicodedata
from pathlib import Path
from typing import Any

import pytest
from labelkit.data.path_rule import match_paths
from labelkit.errors import DatasetError

IDS = ["a/1.png", "a/2.png", "b/1.png", "b/deep/3.png", "top.png"]


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("a/1.png", 0),
        ("./a/1.png", 0),
        ("a\\1.png", 0),
        (" a/2.png ", 1),
        ("2.png", 1),
        ("deep/3.png", 3),
        ("3.png", 3),
        ("top.png", 4),
    ],
)
def test_an_id_or_a_unique_ending_is_understood(tmp_path: Path, path: str, place: int) -> None:
    places, unknown = match_paths([path], IDS, table=tmp_path / "labels.csv")
    assert (places, unknown) == ({path: place}, [])


@pytest.mark.parametrize("path", ["ng.png", "deep", "c/1.png", "A/1.png", "../a/1.png"])
def test_half_names_and_other_folders_are_unknown(tmp_path: Path, path: str) -> None:
    places, unknown = match_paths([path], IDS, table=tmp_path / "labels.csv")
    assert (places, unknown) == ({}, [path])


@pytest.mark.parametrize(("path", "place"), [("a/1", 0), ("a\\2", 1), ("deep/3", 3), ("3", 3), ("top", 4)])
def test_a_suffix_may_be_left_out(tmp_path: Path, path: str, place: int) -> None:
    places, unknown = match_paths([path], IDS, table=tmp_path / "labels.csv")
    assert (places, unknown) == ({path: place}, [])


def test_a_name_without_its_suffix_means_none_of_two_files_that_differ_by_it(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"a: a\.jpg, a\.png"):
        match_paths(["a"], ["a.jpg", "a.png"], table=tmp_path / "labels.csv")
    assert match_paths(["a.1"], ["a.1", "a.1.png"], table=tmp_path / "labels.csv")[0] == {"a.1": 0}


@pytest.mark.parametrize("folder", ["C:\\data\\set\\", "/home/ann/set/", "\\\\server\\share\\", "d:/"])
def test_absolute_paths_of_another_machine_are_known_by_their_ends(tmp_path: Path, folder: str) -> None:
    paths = [folder + path for path in ("a/1.png", "b\\deep\\3", "top.png")]
    places, unknown = match_paths(paths, IDS, table=tmp_path / "labels.csv")
    assert list(places.values()) == [0, 3, 4]
    assert unknown == []


def test_a_relative_folder_before_all_paths_is_left_out_if_it_is_the_only_possible_one(tmp_path: Path) -> None:
    def find(*paths: str, **about: Any) -> list[int]:
        return list(match_paths(paths, [*IDS, "deep/3.png"], table=tmp_path / "l.csv", **about)[0].values())

    told: list[str] = []
    assert find("set/img/a/1.png", "set\\img\\b\\1.png", "set/img/c/1.png", show_message=told.append) == [0, 2]
    assert "leading folder set/img/" in told[0]
    assert find("a/2.png", "set/a/1.png") == [1]  # next to a path that is known, set/ is another folder
    assert find("train/a/1.png", "train/a/2.png", "test/a/1.png") == []
    assert find("set/a/1.png", complete=False) == []
    assert find("b/b/deep/3.png") == []  # b/deep/3.png or deep/3.png


def test_paths_of_another_folder_are_not_those_of_the_images(tmp_path: Path) -> None:
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
    root = tmp_path / "first"

    def find(path: str, table: Path) -> list[int]:
        return list(match_paths([path], ["001.png"], table=table, root=root)[0].values())

    assert find("first/001.png", tmp_path / "sub" / "l.csv") == [0]
    assert find("gone/001.png", tmp_path / "sub" / "l.csv") == [0]
    assert find("second/001.png", tmp_path / "sub" / "l.csv") == find("second/001.png", root / "l.csv") == []
    assert find("third/001.png", (tmp_path / "third").parent / "l.csv") == [0]
    (tmp_path / "third").mkdir()
    assert find("third/001.png", tmp_path / "l.csv") == []


def test_names_of_uploads_to_label_studio_are_known_without_their_digits(tmp_path: Path) -> None:
    written = ["/data/upload/1/0a1b2c3d-cat.png", "0a1b2c3d-dog.png", "0a1b2c3d-cow.png", "0a1b2c3-cat.png"]
    ids = ["a/cat.png", "dog.png", "cow.png", "0a1b2c3d-cow.png"]
    places, unknown = match_paths(written, ids, table=tmp_path / "labels.csv")
    assert list(places.values()) == [0, 1, 3]
    assert unknown == ["0a1b2c3-cat.png"]
    with pytest.raises(DatasetError, match=r"a/cat\.png, b/cat\.png"):
        match_paths(written[:1], ["a/cat.png", "b/cat.png"], table=tmp_path / "labels.csv")


def test_ends_of_paths_of_two_folders_are_not_mixed(tmp_path: Path) -> None:
    """Images of train/ must not give their labels to those of test/ that have the same names."""
    paths = ["/x/test/a/1.png", "/x/test/a/2.png", "/x/train/b/1.png", "/y/1.png"]
    places, unknown = match_paths(paths, IDS, table=tmp_path / "labels.csv")
    assert places == {paths[0]: 0, paths[1]: 1}
    assert unknown == paths[2:]
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").touch()  # a file of this machine is no other one
    assert match_paths([f"{tmp_path}/a/1.png"], IDS, table=tmp_path / "l.csv", root=tmp_path / "b")[0] == {}


def test_paths_may_begin_at_the_table_or_be_absolute(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    (root / "a").mkdir(parents=True)
    beside, below = tmp_path / "labels.csv", root / "b" / "labels.csv"
    absolute = str(root / "a" / "1.png")

    assert match_paths(["photos/a/1.png", absolute], IDS, table=beside, root=root)[0] == {
        "photos/a/1.png": 0,
        absolute: 0,
    }
    assert match_paths(["../a/1.png", "deep/3.png"], IDS, table=below, root=root)[0] == {
        "../a/1.png": 0,
        "deep/3.png": 3,
    }


def test_the_folder_that_fits_all_paths_settles_what_one_leaves_open(tmp_path: Path) -> None:
    ids = ["1.png", "2.png", "a/1.png", "a/3.png"]
    inside = tmp_path / "a" / "labels.csv"
    inside.parent.mkdir()

    assert match_paths(["1.png", "3.png"], ids, table=inside, root=tmp_path)[0] == {"1.png": 2, "3.png": 3}
    assert match_paths(["1.png", "2.png"], ids, table=inside, root=tmp_path)[0] == {"1.png": 0, "2.png": 1}
    with pytest.raises(DatasetError, match=r"1\.png: 1\.png, a/1\.png"):
        match_paths(["1.png"], ids, table=inside, root=tmp_path)


@pytest.mark.parametrize(("stored", "written"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_accents_are_equal_however_they_are_composed(tmp_path: Path, stored: str, written: str) -> None:
    ids = [unicodedata.normalize(stored, name) for name in ("caf\u00e9/\u00fc.png", "cafe/u.png")]
    path = unicodedata.normalize(written, "caf\u00e9/\u00fc.png")
    places, _ = match_paths([path, path.split("/")[1]], ids, table=tmp_path / "labels.csv")
    assert list(places.values()) == [0, 0]

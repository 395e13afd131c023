"""``labelkit show discovered``: sheets of results and tables, and what can go wrong."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.commands.discover.few import discover_snowball
from labelkit.commands.discover.few_options import DiscoverSnowballConfig
from labelkit.commands.discover.tables import read_discovered_table
from PIL import Image
from tests.copies import copy_store

RIGHT, WRONG = (0x2E, 0x8B, 0x57), (0xC6, 0x28, 0x28)
HEADER = "sample_index,path,label,score,rank,generation,iteration,network\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, pixels: Path) -> Path:
    return copy_store(pixels, tmp_path_factory.mktemp("made") / "pixels.h5")


@pytest.fixture
def bare(tmp_path: Path, made: Path) -> Path:
    return copy_store(made, tmp_path / "pixels.h5")


@pytest.fixture(scope="module")
def found(made: Path) -> Any:
    """What snowball found in it from two labels of each class, in two rounds."""
    config = DiscoverSnowballConfig(index=made, num_labels=8, count=12, rounds=2)
    return discover_snowball(config).to_json()


@pytest.fixture(scope="module")
def store(made: Path, found: Any) -> Path:
    """The store with this result. Tests must not change it."""
    return made


def frames(path: Path, color: tuple[int, int, int]) -> int:
    """Frames of a color on a sheet, counted by their corners."""
    with Image.open(path) as sheet:
        pixels = np.asarray(sheet.convert("RGB"))
    corners = pixels[8 - 1 : -1 : 150, 8 - 1 + 120 :: 120]
    return int((corners == color).all(axis=2).sum())


def test_sheet_has_a_line_per_class_with_right_and_wrong_marked(labelkit: Any, bare: Path, tmp_path: Path) -> None:
    labels = tmp_path / "few.csv"
    labels.write_text("path,label\nant/00.png,bee\nbee/00.png,ant\ncat/00.png,cat\ndog/00.png,dog\n")
    discover_snowball(DiscoverSnowballConfig(index=bare, labels=labels, own_labels=False, per_class=3))
    answer = labelkit("show", "discovered", "--index", bare, "--out", tmp_path / "sheet.png", "--json")

    assert answer.code == 0, answer.err
    assert [(row["class"], row["discovered"], row["wrong"]) for row in answer.json["classes"]] == [
        ("ant", 3, 3),
        ("bee", 3, 3),
        ("cat", 3, 0),
        ("dog", 3, 0),
    ]
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size == (8 + 4 * 120, 8 + 4 * 150)  # a heading and three images
    assert frames(tmp_path / "sheet.png", WRONG) == frames(tmp_path / "sheet.png", RIGHT) == 6


def test_of_the_table_of_a_training_run_the_last_generation_is_shown(
    labelkit: Any, photos: Path, tmp_path: Path
) -> None:
    table = tmp_path / "discovered.csv"
    table.write_text(
        HEADER
        + "0,ant/00.png,bee,0.5,1,1,1,teacher\n"
        + "1,ant/01.png,ant,0.6,1,1,2,teacher\n"
        + "9,bee/01.png,bee,0.4,1,2,1,master\n"
    )
    last = labelkit("show", "discovered", "--table", table, "--json", "--dataset", photos, "--out", tmp_path / "s.png")

    assert last.code == 0, last.err
    assert [(row["class"], row["discovered"], row["wrong"]) for row in last.json["classes"]] == [("bee", 1, 0)]


def test_iterations_of_a_training_run_are_rounds(tmp_path: Path) -> None:
    table = tmp_path / "discovered.csv"
    table.write_text(HEADER + "1,b,x,0.6,1,1,2,teacher\n0,a,x,0.5,2,1,1,teacher\n2,c,x,0.7,1,1,1,teacher\n")
    assert [(image.sample_id, image.round, image.rank) for image in read_discovered_table(table)] == [
        ("c", 1, 1),
        ("a", 1, 2),
        ("b", 2, 1),
    ]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--out", "{folder}/s.png", "--index", "{store}", "--classes", "eel"], 2, "no image of 'eel' was discovered"),
        (["--out", "{folder}/s.png", "--index", "{store}", "--result", "other"], 3, "there is no result 'other'"),
        (
            ["--out", "{folder}/s.png"],
            2,
            "--index: is missing. Pass a store with a result as --index, or a CSV as --table",
        ),
        (["--out", "{folder}/s.png", "--table", "{table}"], 2, "--dataset: is missing: without a store"),
        (["--out", "{folder}/s.png", "--table", "{table}", "--index", "{store}"], 3, "1 of 1 images are not in"),
    ],
)
def test_what_cannot_be_shown_says_why(
    labelkit: Any, store: Path, found: Any, tmp_path: Path, options: list[str], code: int, message: str
) -> None:
    table = tmp_path / "t.csv"
    table.write_text("path,label,score,rank,round\nnone.png,ant,1,1,1\n")
    places = {"store": store, "folder": tmp_path, "table": table}
    answer = labelkit("show", "discovered", *[option.format(**places) for option in options])

    assert answer.code == code, answer.err
    assert message.format(**places) in answer.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no column 'path' (its columns: none)"),
        ("path,label,rank,round\n", "has no column 'score'"),
        ("path,label,score,rank,round\n", "contains no images"),
        ("path,label,score,rank,round\na,b,high,1,1\n", "line 2 is invalid"),
        ("path,label,score,rank,round\na,b,nan,1,1\n", "line 2 is invalid: score must be finite, got nan"),
        ("path,label,score,rank,round\na,b,1\n", "line 2 is invalid"),
        ("path,label,score,rank,round\n\xff", "is not a table"),
    ],
)
def test_a_table_that_is_none_says_why(labelkit: Any, store: Path, tmp_path: Path, text: str, message: str) -> None:
    table = tmp_path / "t.csv"
    table.write_bytes(text.encode("latin-1"))
    answer = labelkit("show", "discovered", "--table", table, "--index", store, "--out", tmp_path / "s.png")
    assert answer.code == 3
    assert f"{table}: {message}" in answer.err

"""``labelkit datasets`` on an empty machine and with miniature sets in place, and what training makes of them."""

import json
from pathlib import Path

import pytest
from labelkit.cli.main import main
from tests.miniature_sets import write_aircraft, write_cub


def test_people_see_what_is_there_where_the_rest_comes_from_and_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_cub(tmp_path / "CUB_200_2011")
    (tmp_path / "fgvc-aircraft-2013b.tar.gz").touch()
    assert main(["datasets", "--data-root", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    lines = {line.split()[0]: line for line in shown.split("\n\n")[0].splitlines()}
    assert "incomplete  6 train + 3 test" in lines["cub"]
    assert "3 of 200" in lines["cub"]
    assert "absent" in lines["scars"]
    assert "non-commercial research" in shown
    assert f"Run `tar -xf {tmp_path}/fgvc-aircraft-2013b.tar.gz -C {tmp_path}`." in shown


def test_one_set_that_is_not_whole_is_shown_and_exits_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_cub(tmp_path / "CUB_200_2011")
    (tmp_path / "CUB_200_2011/images/001.Auk/Auk_0046.jpg").unlink()
    assert main(["datasets", "--dataset", "cub", "--data-root", str(tmp_path), "--json"]) == 3
    captured = capsys.readouterr()
    (row,) = json.loads(captured.out)["datasets"]
    assert row["images"] == {"train": {"expected": 5994, "found": None}, "test": {"expected": 5794, "found": None}}
    assert "train: expected 6 images, found 5" in captured.err


def test_an_unknown_set_exits_2_with_the_known_ones_and_a_whole_one_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["datasets", "--dataset", "bird"]) == 2
    assert "Choose one of: digits, cifar10" in capsys.readouterr().err
    assert main(["datasets", "--dataset", "digits"]) == 0  # which is whole
    captured = capsys.readouterr()
    assert "1,797" in captured.out
    assert captured.err == ""


def test_training_on_a_set_that_does_not_match_its_class_list_exits_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_aircraft(tmp_path / "fgvc-aircraft-2013b")
    out = tmp_path / "run"
    assert main(["train", "flipclass", "--dataset", "aircraft", "--data-root", str(tmp_path), "--out", str(out)]) == 3
    message = capsys.readouterr().err
    assert "the class list of this benchmark does not match the data: expected 100 classes, found 4" in message
    assert "--label-split none" in message

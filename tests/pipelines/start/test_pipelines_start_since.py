"""What a call of ``start`` says of the one before: other labels, other kinds, and guesses that were right."""

import json
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from labelkit.cli.main import main
from labelkit.errors import DatasetError
from labelkit.pipelines.start.options import StartConfig
from labelkit.pipelines.start.summary import (
    _classes_sentence,
    _count_images_to_check,
    _fewer_sentence,
    _found_table,
    _unused_sentence,
    compare_predictions,
)
from tests.pipelines import squares
from tests.pipelines.squares import add_photos, color, rows, table, write_labels

run = partial(squares.run, num_classes=3)


def store(**files: str) -> Any:
    """Photos by name, and what is in their files."""
    digests = np.array([list(content.ljust(32).encode()) for content in files.values()], dtype=np.uint8)
    return SimpleNamespace(sample_ids=list(files), sha256=digests)


def test_answers_are_compared_photo_by_photo() -> None:
    then = store(a="1", b="2", c="3", d="4", e="5")
    now = store(e="5", moved="3", a="1", b="other", d="4", new="6")
    answers_then = [
        ("pear", "unsure", "0.5"),
        ("pear", "known", "0.9"),
        ("pear", "given", "1"),
        ("new-1", "new", "0.8"),
        ("fig", "known", "0.9"),
    ]
    answers_now = [
        ("fig", "unsure", "0.7"),
        ("pear", "given", "1"),
        ("pear", "given", "1"),
        ("fig", "known", "0.9"),
        ("plum", "given", "1"),
        ("fig", "known", "0.9"),
    ]

    changed, counts = compare_predictions(now, answers_now, then, answers_then)

    # b is another file, c has another name, one is new
    assert counts["photos"] == 4
    assert changed == [
        ("e", "fig", "known", "fig", "unsure", "0.7"),
        ("a", "pear", "unsure", "pear", "given", "1"),
        ("d", "new-1", "new", "plum", "given", "1"),
    ]
    # a was unsure and got a label, which is no answer
    assert (counts["other_label"], counts["now_answered"], counts["now_unsure"]) == (1, 0, 1)
    # plum had no label then, so that nothing could have guessed it
    assert (counts["labeled"], counts["guessed_right"]) == (1, 1)


def test_a_range_of_classes_that_is_too_wide_to_help_is_not_said_and_a_class_that_is_missed_has_a_size() -> None:
    def sentence(interval: list[int], photos: int = 1) -> str:
        groups = {"all_classes_labeled": interval == [1, 1], "interval": interval, "new_share": None}
        return _classes_sentence(StartConfig(photos=Path("photos")), groups, [("a.jpg", "pear", "known")] * photos)

    wide = sentence([5, 67])
    assert "cannot be determined yet" in wide
    assert "67" not in wide
    assert "between 9 and 14" in sentence([9, 14])
    assert "fewer than about 87 photos in total are often missed" in sentence([1, 1], photos=870)


def test_a_class_with_labels_that_no_photo_is_predicted_as_is_named() -> None:
    given = [("", name, "given") for name in ["plum"] * 3 + ["pear"] * 4 + ["fig"] * 2]
    others = [("", "pear", "unsure"), ("", "new-1", "new")]

    (sentence,) = _unused_sentence([*given, *others])

    assert sentence.startswith("No other photo is predicted as 'plum', although you labeled at least 3")
    assert _unused_sentence(given) == []  # every photo has a label
    assert _unused_sentence([*given, ("", "plum", "known"), *others]) == []
    (sentence,) = _unused_sentence([("", str(i % 8), "given") for i in range(24)] + others)
    assert "'4' and 3 more classes, although" in sentence


@pytest.mark.parametrize(("none_new", "share"), [(True, 0.04), (True, 1.0), (False, 0.0)])
def test_the_expected_number_holds_for_the_labeled_classes_where_no_other_was_found(
    none_new: bool, share: float
) -> None:
    groups = {"all_classes_labeled": none_new, "new_share": share, "interval": [1, 2]}
    told = {
        "groups": groups,
        "duplicates": {"spare_images": 0, "pairs": {}},
        "odd": {"odd_images": 0},
    }
    counts = {"given": 1, "known": 1, "new": 0, "unsure": 0}

    rows = [("", "pear", "given"), ("", "pear", "known")]
    table = _found_table(told, rows, counts, (1, 0), [])

    assert table.title.endswith("labeled correctly" + ", if you have labeled photos of every class" * (share == 0.04))
    sentence = _classes_sentence(StartConfig(photos=Path()), groups, rows)
    assert ("allow for about 1 photos of such classes; if there are none, pass --new" in sentence) == (share == 1.0)


def test_an_expectation_that_fell_is_explained() -> None:
    since = {"photos": 900, "expected_right_then": 664}

    (sentence,) = _fewer_sentence(since, 900, 648)

    assert "About 648 labels are expected to be correct, after 664 in that run. This does not mean" in sentence
    assert _fewer_sentence(since, 900, 664) == []
    assert _fewer_sentence(since, 950, 648) == []  # of other photos
    assert _fewer_sentence(since, 900, None) == []


def test_pairs_of_one_scene_are_counted_unless_they_are_more_than_the_photos() -> None:
    pairs = {"same_file": 1, "same_scene": 2}
    told = {"duplicates": {"spare_images": 1, "pairs": pairs}, "odd": {"odd_images": 0}}

    assert _count_images_to_check(told, 40) == (
        3,
        "1 copy (duplicates.csv), 2 pairs of photos of the same scene (duplicates.csv)",
    )
    pairs["same_scene"] = 90
    count, said = _count_images_to_check(told, 40)
    assert count == 1
    assert said.startswith("1 copy (duplicates.csv), not counted: 90 pairs of photos of the same scene, ")


def test_of_copies_each_is_compared_with_the_one_of_its_name() -> None:
    then, now = store(a="same", b="same"), store(b="same", c="same", a="same")

    fig, pear = ("fig", "known", "0.9"), ("pear", "known", "0.9")
    changed, counts = compare_predictions(now, [fig, pear, pear], then, [pear, fig])

    assert counts["photos"] == 3
    assert changed == []


def test_the_next_call_tells_what_changed(photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "photos-labeled"
    first = run(photos, labels=write_labels(tmp_path / "known.csv", range(6)))
    assert first["since"] is None
    assert not (folder / "changed.csv").exists()
    before = table(folder)

    second = run(photos, labels=write_labels(tmp_path / "more.csv", range(6, 12)))

    after = table(folder)
    changed = rows(folder / "changed.csv")
    assert {row["path"]: (row["label_before"], row["kind_before"], row["label"], row["kind"]) for row in changed} == {
        path: (before[path]["label"], before[path]["kind"], row["label"], row["kind"])
        for path, row in after.items()
        if (before[path]["label"], before[path]["kind"]) != (row["label"], row["kind"])
    }
    right = sum(before[path]["label"] == color(path) for path in (f"{i:03d}.png" for i in range(6, 12)))
    assert {row["path"] for row in changed} >= {f"{i:03d}.png" for i in range(6, 12)}
    assert (second["since"]["photos"], second["since"]["labeled"], second["since"]["guessed_right"]) == (30, 6, right)
    assert second["since"]["changed"] == len(changed)
    said = " ".join(second["sentences"])
    other = sum(row["label_before"] != row["label"] for row in changed)
    assert f"{other} of 30 labels or guesses have changed ({folder / 'changed.csv'})" in said
    assert f"6 photos of known classes: {right} had been guessed correctly." in said

    again = run(photos)

    assert again["since"] == second["since"]
    assert rows(folder / "changed.csv") == changed
    # guesses are no labels
    guesses = folder / "changed.csv"
    guesses.write_text(guesses.read_text().replace(",given,", ",known,", 1))
    with pytest.raises(DatasetError, match=r"changed\.csv"):
        run(photos, labels=guesses)


@pytest.mark.slow
def test_another_name_of_a_photo_is_no_change_and_labels_that_are_taken_back_leave_nothing_to_compare(
    photos: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "photos-labeled"
    run(photos, labels=write_labels(tmp_path / "known.csv", range(6)))
    for path in sorted(photos.iterdir()):
        path.rename(photos / f"x{path.name}")

    told = run(photos)

    assert told["since"]["photos"] == 30
    assert rows(folder / "changed.csv") == []
    (folder / "given.csv").write_text("path,label\n")

    assert run(photos)["since"] is None
    assert not (folder / "changed.csv").exists()


@pytest.mark.slow
def test_a_call_without_answers_in_between_is_passed_over(photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "photos-labeled"
    run(photos, labels=write_labels(tmp_path / "known.csv", range(6)))
    (folder / "given.csv").write_text("path,label\n000.png,red\n")  # one label: no answers
    assert run(photos)["since"] is None

    told = run(photos, labels=write_labels(tmp_path / "known.csv", range(6), dict.fromkeys(range(6), "pear")))

    # all that had a label have another
    assert told["since"]["other_label"] >= 6
    assert told["since"]["labeled"] == 0


@pytest.mark.slow
def test_answers_that_are_damaged_or_of_other_photos_are_not_compared(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "photos-labeled"
    run(photos, labels=write_labels(tmp_path / "known.csv", range(6)))
    (answer,) = (path for path in (folder / "photos.h5.results").iterdir() if path.name.startswith("answer"))
    run(photos, labels=write_labels(tmp_path / "more.csv", range(6, 12)))
    assert (folder / "changed.csv").exists()
    answer.write_bytes(answer.read_bytes()[:-100])

    words = ["start", str(photos), "--backbone", "pixels", "--num-classes", "3", "--json"]
    assert main(words) == 0

    told = capsys.readouterr()
    assert json.loads(told.out)["since"] is None
    assert "cannot show changes since the last run" in told.err
    assert not (folder / "changed.csv").exists()
    shutil.rmtree(photos)
    photos.mkdir()
    add_photos(photos, range(30), seed=1)

    others = run(photos, labels=write_labels(tmp_path / "known.csv", range(6)), other_photos=True)

    assert others["since"] is None


def test_the_first_call_shows_the_commands_and_later_ones_name_the_steps(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["start", str(photos), "--backbone", "pixels", "--num-classes", "3"]

    assert main(words) == 0
    assert "1. embed: labelkit embed" in capsys.readouterr().err

    assert main(words) == 0
    told = capsys.readouterr().err
    assert "steps to rerun" not in told
    assert "labelkit embed" not in told

    assert main([*words, "--min-confidence", "0.9"]) == 0
    assert "steps to rerun: groups, suggest, report (--dry-run" in capsys.readouterr().err

    for more, told in (([], True), (["--new-classes", "none"], False), (["--num-classes", "4"], False)):
        assert main([*words[:-2], *more, "--dry-run"]) == 0
        assert ("the last run had --num-classes 3; now the number is est" in capsys.readouterr().err) == told

    copy = shutil.copytree(tmp_path / "photos-labeled", tmp_path / "deeper" / "copy")
    assert main([*words, "--min-confidence", "0.9", "--out", str(copy)]) == 0
    assert "steps to rerun: report (--dry-run" in capsys.readouterr().err
    for name in ("labels.csv", "given.csv", "next.csv", "check.csv", "odd.csv"):
        assert squares.rows(copy / name) == squares.rows(tmp_path / "photos-labeled" / name)


@pytest.mark.parametrize("name", ["labels.csv", "corrected.csv"])
def test_labels_that_were_corrected_in_labels_csv_are_not_questioned(photos: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "photos-labeled"
    known = write_labels(tmp_path / "known.csv", range(12))
    run(photos, labels=known)
    path, other = "020.png", next(color(f"{i:03d}.png") for i in range(3) if color(f"{i:03d}.png") != color("020.png"))
    if name == "labels.csv":
        text = (folder / name).read_text().replace(f"{path},{color(path)}", f"{path},{other}")
        (folder / name).write_text(text)
        run(photos, labels=known)
    else:
        (tmp_path / name).write_text(f"path,label\n{path},{other}\n")
        run(photos, labels=tmp_path / name)

    assert table(folder)[path]["label"] == other
    assert (path in {row["path"] for row in rows(folder / "check.csv")}) == (name != "labels.csv")
    confirmed = json.loads((folder / "start.json").read_text())["confirmed"]
    assert confirmed.get(path) == (other if name == "labels.csv" else None)

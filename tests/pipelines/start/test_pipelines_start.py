"""``labelkit start``: from a folder to a table, again with more photos or labels, after a kill, and with bad input."""

import contextlib
import csv
import json
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from labelkit import __version__
from labelkit.cli.main import main
from labelkit.commands.common.results import CommandResult
from labelkit.commands.common.stored_predictions import read_stored_predictions
from labelkit.errors import ConfigError, DatasetError, ResourceError, StoreError
from labelkit.files import sha256_file
from labelkit.options.base import BaseConfig
from labelkit.pipelines.start import given as given_module
from labelkit.pipelines.start import record as records
from labelkit.pipelines.start import run as run_module
from labelkit.pipelines.start import summary
from labelkit.pipelines.start.browser import record_browser_round
from labelkit.pipelines.start.given import TableLabel
from labelkit.pipelines.start.options import StartConfig
from labelkit.progress import Progress, use_progress
from labelkit.store.commit import commit_bytes
from labelkit.store.embeddings import open_store
from labelkit.store.parts import hold_lock
from labelkit.store.results import list_results, read_result
from labelkit.store.writing import EmbeddingRun
from PIL import Image
from tests.pipelines.squares import add_photos, color, labels_in, rows, run, table, write_labels
from tests.pipelines.start.conftest import Begin, Browse, act
from tests.running import Heard, Labelkit
from tests.tiers import quick_every


def rename(photos: Path, names: dict[str, str]) -> None:
    """Rename all at once, so that names may be exchanged."""
    for old in names:
        (photos / old).rename(photos / f"{old}.moving")
    for old, new in names.items():
        (photos / f"{old}.moving").rename(photos / new)


def test_photos_and_a_few_labels_become_a_table(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labeled = (0, 1, 3, 4, 6, 7, 9, 10, 12, 13)
    known = write_labels(tmp_path / "known.csv", labeled)

    assert main(["start", str(photos), "--labels", str(known), "--backbone", "pixels"]) == 0

    folder = tmp_path / "photos-labeled"
    rows = table(folder)
    assert len(rows) == 30
    assert {rows[f"{i:03d}.png"]["kind"] for i in labeled} == {"given"}
    assert {row["label"] for path, row in rows.items() if color(path) == "red"} == {"red"}
    assert {row["label"] for path, row in rows.items() if color(path) == "green"} == {"green"}
    assert len({row["label"] for path, row in rows.items() if color(path) == "blue"} & {"red", "green"}) == 0
    assert (folder / "next.csv").read_text().startswith("path,label")
    told = capsys.readouterr()
    assert "30 photos in 3 classes" in told.out
    assert "labelkit discover categories --index" in told.err


def test_table_page_and_output_tell_the_same_numbers(with_page: None, photos: Path, tmp_path: Path) -> None:
    shutil.copy(photos / "003.png", photos / "copy.png")
    add_photos(photos, range(30, 31), seed=3)
    Image.new("RGB", (32, 32)).save(photos / "black.png")
    known = write_labels(tmp_path / "known.csv", range(12), wrong={0: "green"})

    told = run(photos, labels=[known])

    folder = tmp_path / "photos-labeled"
    lines = {name: len((folder / f"{name}.csv").read_text().splitlines()) - 1 for name in ("odd", "check")}
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert told["copies"] == 1
    assert lines["check"] == 1
    assert told["odd"] == lines["odd"] >= 1
    assert (folder / "novel.png").is_file()
    for number, what in ((1, "redundant copies"), (lines["odd"], "outliers")):
        assert f"<strong>{number}</strong> {what}" in page
    assert "are predicted with a confidence of at least 0.8" in page
    assert any('"Groups" shows all photos of each class' in sentence for sentence in told["sentences"])
    groups = re.findall(r'<summary><h3><bdi>(.+?)</bdi>.*?class="stats"><span>(\d+) image', page, re.DOTALL)
    assert {name: int(size) for name, size in groups} == Counter(labels_in(folder / "labels.csv").values())
    # digests come after what people look for
    assert page.index('id="copies"') < page.index('id="details"') < page.index("digest</th>")


def test_labels_may_stand_in_a_column_of_another_name(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = tmp_path / "known.csv"
    known.write_text("file;product\n" + "".join(f"{i:03d}.png;{color(f'{i:03d}.png')}\n" for i in (0, 1, 3, 4)))

    assert main(["start", str(photos), "--labels", str(known), "--backbone", "pixels", "--dry-run"]) == 3
    assert "--label-column" in capsys.readouterr().err
    words = ["start", str(photos), "--labels", str(known), "--label-column", "product", "--backbone", "pixels"]
    assert main([*words, "--num-classes", "3"]) == 0

    rows = table(tmp_path / "photos-labeled")
    assert [rows[f"{i:03d}.png"]["label"] for i in (0, 1, 3, 4)] == ["red", "green", "red", "green"]
    arrays = read_result(open_store(tmp_path / "photos-labeled" / "photos.h5"), "answer").arrays
    unsure = arrays["decisions"] == arrays["decision_names"].index("unsure")
    right = round(float(arrays["expected"][unsure].sum()))
    assert unsure.any()
    told = " ".join(capsys.readouterr().out.split())
    assert f"the best guess for each; about {right} expected to be correct" in told
    sure = round(float(arrays["expected"][~unsure].sum())) - 4  # labels of one's own are right
    assert f"30 photos, about {4 + sure + right} of them labeled correctly" in told


def test_names_of_folders_are_labels_if_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = tmp_path / "photos"
    for number, name in enumerate(("train/red", "train/green", "test/red", "train/no_label", "test")):
        (photos / name).mkdir(parents=True, exist_ok=True)
        add_photos(photos / name, range(3 * number, 3 * number + 3), seed=number)
    command = ["start", str(photos), "--backbone", "pixels", "--dry-run", "--json", "--labels", "folders"]

    assert main(command) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["labeled"] == 9
    assert "15 photos" in told.err
    assert "9 of them labeled, in 2 classes" in told.err

    assert main(command[:-2]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["labeled"] == 0
    assert "to use folder names (such as green and red) as labels, pass --labels folders" in told.err

    assert main(["start", str(photos / "train/red"), *command[2:]]) == 3
    assert "--labels folders: no photo in " in capsys.readouterr().err


def test_names_of_folders_are_read_as_those_of_a_table(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    for number, name in enumerate(("-", "none", "3.0", "Cafe\u0301")):
        (photos / name).mkdir(parents=True)
        add_photos(photos / name, range(3 * number, 3 * number + 3), seed=number)
    told = [Heard(), Heard()]
    for heard in told:
        with use_progress(heard):
            run(photos, labels=["folders"])

    given = labels_in(tmp_path / "photos-labeled" / "given.csv")
    assert "images in -, none have no label; rename these folders if they are classes" in told[0].messages
    assert sorted(given.values()) == ["3"] * 3 + ["Caf\u00e9"] * 3
    assert told[1].warnings == []


@pytest.mark.parametrize(
    ("said", "classes", "told"), quick_every(3, [("1", 3, ""), ("", None, ""), ("maybe", None, "is not none")])
)
def test_a_person_is_asked_whether_all_classes_have_labels(
    photos: Path,
    tmp_path: Path,
    browse: Browse,
    monkeypatch: pytest.MonkeyPatch,
    said: str,
    classes: int | None,
    told: str,
) -> None:
    class Person(Progress):
        asked: list[str]
        heard = ""

        def ask(self, question: str) -> str:
            self.asked.append(question)
            return said

        def message(self, text: str) -> None:
            self.heard += text

    person = Person()
    person.asked = []
    known = write_labels(tmp_path / "known.csv", [0, 1, 3, 4, 6, 7])
    served: list[tuple[str, ...]] = []
    monkeypatch.setattr(
        "labelkit.studio.label.asking.BackgroundPredictor.run_command", lambda self, *words: served.append(words)
    )

    def label(server: Any) -> None:
        act(server, rows=(2,), name="blue")
        server.asking.predict(server.asking)

    browse(label)
    with use_progress(person):
        run(photos, labels=(known,), serve=True, out=tmp_path / "served")
        assert ("some" in served[0]) == (said == "1")
        if said == "1":  # the call after the browser groups as those in it, and does not ask again
            assert records.StartRecord.read(tmp_path / "served").rounds[-1]["new_classes"] == "some"
            assert len(person.asked) == 1
        person.asked = []
        values = run(photos, labels=(known,))
        assert len(person.asked) == 1
        run(photos, labels=(known,), new_classes="none", dry_run=True)
    assert len(person.asked) == 1
    assert classes is None or values["classes"] == classes
    assert told in person.heard


def test_new_classes_and_the_number_of_all_are_not_told_both(photos: Path) -> None:
    with pytest.raises(ValueError, match="remove one of them"):
        StartConfig(photos=photos, num_classes=3, new_classes="none")


def test_second_call_finds_everything_done_and_reads_no_photo(
    photos: Path, tmp_path: Path, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, folder = begin(0, 1, 3, 4, 6, 7), tmp_path / "photos-labeled"
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}

    def of_tables_alone(path: Path) -> str:
        return sha256_file(path) if path.suffix == ".csv" else pytest.fail(f"{path} is read")

    monkeypatch.setattr(given_module, "sha256_file", of_tables_alone)

    assert run(photos, labels=known, num_classes=3)["described_now"] == 0

    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert after == {path: data for path, (_, data) in before.items()}
    store = folder / "photos.h5"
    assert store.stat().st_mtime_ns == before[store][0]


def test_photos_that_were_left_empty_beside_filled_ones_are_suggested_last(
    labelkit: Labelkit, photos: Path, tmp_path: Path, begin: Begin
) -> None:
    begin(0, 1, 3, 4)
    hits = labelkit("retrieve", "--index", tmp_path / "photos-labeled", "--query-rows", "0", "--json").json["queries"]
    predicted = labels_in(tmp_path / "photos-labeled" / "labels.csv")
    given = write_labels(tmp_path / "more.csv", [5])
    said = labelkit("label", "--index", tmp_path / "photos-labeled", "--from", given, "--result", "by-hand").err
    assert f"does not use these labels; to add them there, pass it --labels {given}" in " ".join(said.split())
    assert all(hit["label"] == predicted[hit["sample_id"]] for hit in hits[0]["hits"])
    folder = tmp_path / "photos-labeled"
    first, *others = labels_in(folder / "next.csv")
    run(photos, num_classes=3, num_suggestions=5)  # an untouched table says nothing of its photos
    suggested = labels_in(folder / "next.csv")
    assert not (folder / "skipped.csv").exists()
    assert set(suggested) <= {first, *others}

    left = list(suggested)[1:]
    save_as(folder / "next.csv", {next(iter(suggested)): "blue"}, ";", "utf-8-sig")
    run(photos, num_classes=3, num_suggestions=5)
    assert labels_in(folder / "skipped.csv") == dict.fromkeys(sorted(left), "")
    assert not set(labels_in(folder / "next.csv")) & set(left)
    # a later label is taken from there, and who deletes a line is asked again
    save_as(folder / "skipped.csv", {left[0]: "blue"}, ",", "utf-8")
    lines = (folder / "skipped.csv").read_text().splitlines(keepends=True)
    (folder / "skipped.csv").write_text("".join(line for line in lines if not line.startswith(left[1])))
    run(photos, num_classes=3, num_suggestions=30)
    assert labels_in(folder / "given.csv")[left[0]] == "blue"
    assert labels_in(folder / "skipped.csv") == dict.fromkeys(sorted(left[2:]), "")
    assert left[1] in labels_in(folder / "next.csv")
    assert not set(labels_in(folder / "next.csv")) & set(left[2:])
    (folder / "skipped.csv").unlink()
    run(photos, num_classes=3, num_suggestions=30)
    assert set(labels_in(folder / "next.csv")) >= set(left[2:])


def test_photos_that_were_left_empty_among_the_novel_ones_are_listed_there_last(
    photos: Path, tmp_path: Path, begin: Begin
) -> None:
    begin(0, 1, 3, 4)
    novel, seen = (tmp_path / "photos-labeled" / name for name in ("novel.csv", "novel-seen.csv"))
    asked, *left = labels_in(novel)
    left, others = left[:8], left[8:]
    lines = novel.read_text().splitlines(keepends=True)
    novel.write_text("".join(lines[:10]))  # as if it had listed fewer
    run(photos, num_classes=3)
    assert not seen.exists()  # nothing was filled in

    novel.write_text("".join(lines[:10]))
    save_as(novel, {asked: color(asked)}, ",", "utf-8")
    run(photos, num_classes=3)

    assert labels_in(seen) == dict.fromkeys(sorted(left), "")
    assert set(list(labels_in(novel))[-8:]) == set(left)
    assert set(labels_in(novel)) == {*others, *left}
    lines = seen.read_text().splitlines(keepends=True)
    seen.write_text("".join(line for line in lines if not line.startswith(left[0])))
    save_as(seen, {left[1]: color(left[1])}, ",", "utf-8")
    run(photos, num_classes=3)
    assert labels_in(seen) == dict.fromkeys(sorted(left[2:]), "")
    assert left[0] in list(labels_in(novel))[:-6]
    assert labels_in(tmp_path / "photos-labeled" / "given.csv")[left[1]] == color(left[1])


def save_as(path: Path, labels: dict[str, str], sign: str, encoding: str) -> str:
    """Fill in or correct labels as a spreadsheet does; return the first path of the table."""
    lines = rows(path)
    assert {row["path"] for row in lines} >= set(labels), path
    with path.open("w", encoding=encoding, newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]), delimiter=sign)
        writer.writeheader()
        writer.writerows(row | {"label": labels.get(row["path"], row["label"])} for row in lines)
    return lines[0]["path"]


def test_labels_and_corrections_in_each_table_are_taken_however_a_spreadsheet_saved_it(
    photos: Path, tmp_path: Path, doubted: Path
) -> None:
    known, folder = doubted, tmp_path / "photos-labeled"
    first = save_as(folder / "next.csv", {}, ",", "utf-8")
    second = next(path for path in labels_in(folder / "novel.csv") if path != first)
    save_as(folder / "next.csv", {first: "new"}, "\t", "utf-16")
    save_as(folder / "novel.csv", {second: "other"}, ";", "utf-8-sig")
    save_as(folder / "check.csv", {"004.png": "green"}, ";", "utf-16")
    given = labels_in(folder / "given.csv")
    # a table that has the wrong label still, and another one
    more = tmp_path / "more.csv"
    more.write_text("path,label\n000.png,crimson\n")
    expected = given | {first: "new", second: "other", "004.png": "green", "000.png": "crimson"}

    for labels in ((known, more), (known, more), (known,)):
        run(photos, labels=labels, num_classes=7)
        assert labels_in(folder / "given.csv") == expected | ({"000.png": "red"} if labels == (known,) else {})
    # what nobody corrected is not doubted again, and is no label of its own
    assert "008.png" not in labels_in(folder / "check.csv")
    (folder / "given.csv").write_text((folder / "given.csv").read_text().replace("008.png,red", "008.png,blue"))
    run(photos, num_classes=7)
    assert labels_in(folder / "given.csv")["008.png"] == "blue"


@pytest.mark.parametrize("spelling", ["{} ", ".\\{}"])
def test_labels_are_read_although_another_program_respelled_the_paths(
    photos: Path, tmp_path: Path, doubted: Path, spelling: str
) -> None:
    folder = tmp_path / "photos-labeled"
    given, first = labels_in(folder / "given.csv"), save_as(folder / "next.csv", {}, ",", "utf-8")
    second = next(path for path in labels_in(folder / "labels.csv") if path not in {first, *given})
    named = {"next.csv": {first: "new"}, "labels.csv": {second: "other"}, "check.csv": {"004.png": "green"}}
    for name in (*named, "given.csv"):
        save_as(folder / name, named.get(name, {}), ",", "utf-8")
        lines = rows(folder / name)
        with (folder / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, row_names := list(lines[0]))
            writer.writeheader()
            blank = dict.fromkeys({"sha256"} & {*row_names}, "")
            writer.writerows(row | {"path": spelling.format(row["path"])} | blank for row in lines)

    with use_progress(heard := Heard()):
        run(photos, num_classes=7)

    assert labels_in(folder / "given.csv") == given | {first: "new", second: "other", "004.png": "green"}
    assert not (folder / "away.csv").exists()
    assert not any("removed" in text or "missing" in text for text in (*heard.messages, *heard.warnings))


def test_a_table_whose_column_of_labels_was_renamed_is_refused(photos: Path, doubted: Path) -> None:
    labels = photos.with_name("photos-labeled") / "labels.csv"
    labels.write_text(labels.read_text().replace("label", "Beschriftung", 1))

    with use_progress(heard := Heard()), pytest.raises(DatasetError, match="no column 'label'") as caught:
        run(photos, num_classes=3)

    assert (caught.value.remedy, heard.warnings) == ("Rename the column of labels to `label`.", [])


def test_files_that_are_no_images_are_named_once_in_each_run(photos: Path, doubted: Path) -> None:
    (photos / "notes.txt").touch()
    (photos / "030.png").write_bytes((photos / "000.png").read_bytes())  # to embed again

    for _ in range(2):
        with use_progress(heard := Heard()):
            run(photos, num_classes=3)
        assert len([text for text in heard.messages if "1 with other suffixes" in text]) == 1


def test_labels_that_a_new_table_changes_are_shown_by_photo(photos: Path, tmp_path: Path, doubted: Path) -> None:
    table = tmp_path / "new.csv"
    table.write_text("path,label\n000.png,violet\n")

    with use_progress(heard := Heard()):
        run(photos, labels=table, num_classes=4)

    (shown,) = (text for text in heard.messages if "labels changed" in text)
    assert shown.startswith(f"{table}: labels changed: 000.png: ")
    assert shown.endswith(" to 'violet'")


@pytest.mark.parametrize("content", [None, "", "\ufeff"])
def test_labels_are_restored_if_their_table_was_lost(
    photos: Path, tmp_path: Path, doubted: Path, content: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tmp_path / "photos-labeled" / "given.csv"
    (photos / "000.png").rename(photos / "other.png")  # two photos are swapped, and the run after that is interrupted
    (photos / "001.png").rename(photos / "000.png")
    (photos / "other.png").rename(photos / "001.png")
    more = write_labels(tmp_path / "more.csv", [20])
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "_link_earlier_round", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(photos, labels=more, num_classes=3)
    labels = labels_in(given)
    assert (labels["000.png"], labels["001.png"], labels["020.png"]) == ("green", "red", "blue")
    given.unlink()
    if content is not None:
        given.write_text(content)

    with use_progress(heard := Heard()):
        run(photos, num_classes=3)

    assert labels_in(given) == labels
    assert f"{given} is missing or empty: 16 labels restored from the last run" in heard.warnings[0]

    for lost in (given, given.with_name(".given.csv")):
        lost.unlink()
    with use_progress(heard := Heard()):
        run(photos, num_classes=3)
    assert f"{given} is missing or empty: its labels are not used" in heard.warnings[0]


def test_a_table_that_is_filled_in_while_a_call_runs_keeps_its_labels(
    photos: Path, tmp_path: Path, doubted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, folder = doubted, tmp_path / "photos-labeled"
    first = save_as(folder / "next.csv", {}, ",", "utf-8")
    second = next(path for path in labels_in(folder / "novel.csv") if path not in (first, "029.png"))
    filled = {"next.csv": {first: "new"}, "novel.csv": {second: "other"}, "check.csv": {"004.png": "green"}}
    step = run_module._run

    def fill_in(config: BaseConfig) -> CommandResult:
        result = step(config)
        name = Path(getattr(config, "out", "")).name.removeprefix(".")
        if name in filled:
            save_as(folder / name, filled[name], ",", "utf-8")
        return result

    known.write_text(known.read_text() + "029.png,blue\n")
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "_run", fill_in)
        run(photos, labels=known, num_classes=5)

    given = labels_in(folder / "given.csv")
    for name, labels in filled.items():
        assert labels_in(folder / name).items() >= labels.items()
    assert [file.name for file in folder.glob(".*")] == [".given.csv"]
    run(photos, labels=known, num_classes=5)
    assert labels_in(folder / "given.csv") == given | {first: "new", second: "other", "004.png": "green"}


def test_a_table_that_is_not_read_is_kept_if_somebody_changed_it(
    photos: Path, tmp_path: Path, begin: Begin, capsys: pytest.CaptureFixture[str]
) -> None:
    begin()
    odd, before = tmp_path / "photos-labeled" / "odd.csv", table(tmp_path / "photos-labeled")
    odd.write_text(odd.read_text() + "000.png,mine,1\n")
    edited = odd.read_bytes()
    add_photos(photos, range(30, 33), seed=1)

    assert main(["start", str(photos), "--backbone", "pixels", "--num-classes", "3", "--json"]) == 0

    (kept,) = odd.parent.glob("*-edited-*")
    assert kept.read_bytes() == edited
    told, after = capsys.readouterr(), table(odd.parent)
    assert f"has been renamed to {kept}" in " ".join(told.err.split())
    assert (json.loads(told.out)["described_now"], len(after)) == (3, 33)
    assert {path: after[path]["label"] for path in before} == {path: row["label"] for path, row in before.items()}


def test_predictions_are_corrected_in_the_table_of_labels(
    photos: Path,
    tmp_path: Path,
    begin: Begin,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known, folder = begin(0, 1, 3, 4), tmp_path / "photos-labeled"
    group = next(row["label"] for row in table(folder).values() if row["label"] not in ("red", "green"))
    corrected = {"000.png": "crimson", "010.png": "lime"}
    corrected |= {path: "blue" for path, row in table(folder).items() if row["label"] == group}
    save_as(folder / "labels.csv", corrected, ";", "utf-8-sig")
    # who interrupts the next call has not lost them
    add_photos(photos, range(30, 32), seed=1)
    with monkeypatch.context() as patch:
        patch.setattr(run_module._StartRun, "do_step", stop)
        with pytest.raises(KeyboardInterrupt):
            run(photos, labels=known, num_classes=5)

    words = ["start", str(photos), "--labels", str(known), "--backbone", "pixels", "--num-classes", "5"]
    assert main(words) == 0
    given = labels_in(folder / "given.csv")
    assert given == {"001.png": "green", "003.png": "red", "004.png": "green"} | corrected
    assert f"{len(corrected) - 2} from '{group}' to 'blue'" in " ".join(capsys.readouterr().err.split())
    assert not list(folder.glob("*-edited-*"))
    # saved again by a spreadsheet with nothing changed, it says nothing
    save_as(folder / "labels.csv", {}, "\t", "utf-16")
    run(photos, labels=known, num_classes=5)
    assert labels_in(folder / "given.csv") == given


def test_a_table_of_labels_that_no_call_is_known_to_have_written_is_kept(
    photos: Path, tmp_path: Path, begin: Begin
) -> None:
    begin(0, 1, 3, 4)
    folder = tmp_path / "photos-labeled"
    record = json.loads((folder / "start.json").read_text())
    record["tables"]["labels.csv"] = "0" * 64
    (folder / "start.json").write_text(json.dumps(record))
    save_as(folder / "labels.csv", {"010.png": "lime"}, ",", "utf-8")
    edited = (folder / "labels.csv").read_bytes()

    run(photos, num_classes=3)

    (kept,) = folder.glob("labels-edited-*")
    assert kept.read_bytes() == edited
    assert "010.png" not in labels_in(folder / "given.csv")


@pytest.mark.parametrize("step", quick_every(7, [3, 1, 2, 4, 5, 6, 7]))
def test_interrupted_after_any_step_it_ends_with_the_same_bytes(
    photos: Path, tmp_path: Path, begin: Begin, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    known, out = begin(0, 1, 3, 4, 6, 7), tmp_path / "photos-labeled"
    whole = {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    shutil.rmtree(out)
    noted = records.StartRecord.record_step
    calls = []

    def stop(self: records.StartRecord, *given: object) -> None:
        calls.append(given[0])
        if len(calls) == step:
            raise KeyboardInterrupt
        noted(self, *given)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(records.StartRecord, "record_step", stop)
        with pytest.raises(KeyboardInterrupt):
            run(photos, labels=known, num_classes=3)
    run(photos, labels=known, num_classes=3)

    again = {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert whole.keys() <= again.keys()
    # a table that was written and not noted may have been filled in since: a copy of it is kept
    assert all("-edited-" in name.name for name in again.keys() - whole.keys())
    for name, data in whole.items():
        if name.name != "start.json":  # seconds of the steps
            assert again[name] == data, name


def test_a_label_returns_with_a_photo_that_could_not_be_read_for_a_while(
    photos: Path, tmp_path: Path, begin: Begin
) -> None:
    begin(0, 1, 3, 4, 6, 7)
    folder, whole = tmp_path / "photos-labeled", (photos / "006.png").read_bytes()
    for content, holder in ((whole[:40], "away.csv"), (whole[:50], "away.csv"), (whole, "given.csv")):
        (photos / "006.png").write_bytes(content)
        run(photos, num_classes=3)
        assert "006.png" in labels_in(folder / holder)
    assert not (folder / "away.csv").exists()


@pytest.mark.parametrize("labeled", [range(29), (0, 29)])
def test_a_photo_that_cannot_be_read_leaves_no_label_or_one_for_the_others(
    labelkit: Labelkit, photos: Path, tmp_path: Path, labeled: Sequence[int]
) -> None:
    known = write_labels(tmp_path / "known.csv", labeled)
    (photos / "029.png").write_bytes(b"no image")

    told = run(photos, labels=known, num_classes=3)

    assert (told["photos"], told["counts"]["given"]) == (29, len(set(labeled) - {29}))
    assert [bad["path"] for bad in told["skipped"]] == ["029.png"]
    assert labelkit("status", "--index", tmp_path / "photos-labeled", "--json").json["store"]["rows"] == 29


def test_labels_follow_photos_that_move_and_wait_for_those_that_are_gone(
    photos: Path, tmp_path: Path, begin: Begin, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(0, 1, 3, 4, 6, 7)
    folder = tmp_path / "photos-labeled"
    (photos / "shelf").mkdir()
    for i in (0, 9, 4, 6):
        (photos / f"{i:03d}.png").rename(photos / "shelf" / f"{30 + i:03d}.png")
    (photos / "001.png").rename(tmp_path / "001.png")
    (photos / "shelf" / "036.png").rename(tmp_path / "036.png")

    told = run(photos, num_classes=3)

    rows = table(folder)
    given = {path: row["label"] for path, row in rows.items() if row["kind"] == "given"}
    assert given == {"003.png": "red", "007.png": "green", "shelf/030.png": "red", "shelf/034.png": "green"}
    assert told["described_now"] == 0
    assert labels_in(folder / "away.csv") == {"001.png": "green", "006.png": "red"}

    (tmp_path / "001.png").rename(photos / "001.png")
    (tmp_path / "036.png").rename(photos / "other.png")
    assert main(["start", str(photos), "--backbone", "pixels", "--num-classes", "3"]) == 0

    assert "1 label carried over for moved or renamed photos" in capsys.readouterr().err
    rows = table(folder)
    assert (rows["001.png"]["kind"], rows["001.png"]["label"]) == ("given", "green")
    assert (rows["other.png"]["kind"], rows["other.png"]["label"]) == ("given", "red")
    assert not (folder / "away.csv").exists()


def test_labels_follow_photos_whose_names_are_exchanged(
    photos: Path, tmp_path: Path, begin: Begin, capsys: pytest.CaptureFixture[str]
) -> None:
    known = begin(0, 1, 3, 4, 6, 7)
    folder = tmp_path / "photos-labeled"
    # 0 and 1 are labeled; 2, of another class, and 5 are not
    rename(photos, {"000.png": "001.png", "001.png": "000.png", "003.png": "002.png", "002.png": "003.png"})
    rename(photos, {"007.png": "005.png", "005.png": "007.png"})
    expected = {"001.png": "red", "000.png": "green", "002.png": "red", "004.png": "green", "006.png": "red"}
    expected["005.png"] = "green"

    assert main(["start", str(photos), "--backbone", "pixels", "--num-classes", "3", "--labels", str(known)]) == 0

    assert labels_in(folder / "given.csv") == expected
    said = " ".join(capsys.readouterr().err.split())
    assert "4 labels carried over for moved or renamed photos" in said
    # the user's table still has the old names: of 0 and 1, of 3 and 7
    assert "4 labels ignored, because the photos or labels have been corrected, deleted or renamed" in said
    for more in ([], ["--labels", str(known)]):
        assert main(["start", str(photos), "--backbone", "pixels", "--num-classes", "3", *more]) == 0
        assert labels_in(folder / "given.csv") == expected
        said = capsys.readouterr().err
        assert "carried over" not in said
        assert "another label" not in said
    known.write_text("path,label\n003.png,green\n")  # another label for the photo that is there now
    assert main(["start", str(photos), "--backbone", "pixels", "--num-classes", "3", "--labels", str(known)]) == 0
    assert labels_in(folder / "given.csv") == expected | {"003.png": "green"}
    assert "have been corrected, deleted or renamed" not in capsys.readouterr().err


def test_a_label_does_not_stay_with_the_name_of_a_photo_that_was_deleted(
    photos: Path, tmp_path: Path, begin: Begin
) -> None:
    begin(0, 1, 3, 4, 6, 29)
    folder = tmp_path / "photos-labeled"
    (photos / "001.png").unlink()
    rename(photos, {f"{i:03d}.png": f"{i - 1:03d}.png" for i in range(2, 30)})
    expected = {"000.png": "red", "002.png": "red", "003.png": "green", "005.png": "red", "028.png": "blue"}

    for _ in range(2):
        run(photos, num_classes=3)
        assert labels_in(folder / "given.csv") == expected
        assert labels_in(folder / "away.csv") == {"001.png": "green"}
    add_photos(photos, range(40, 41), seed=3)
    run(photos, num_classes=3)
    assert labels_in(folder / "given.csv") == expected


def test_the_same_command_goes_on_after_labeled_photos_were_renamed_or_deleted_and_came_back(
    photos: Path, tmp_path: Path, begin: Begin, capsys: pytest.CaptureFixture[str]
) -> None:
    known, folder = begin(0, 1, 3, 4, 6, 7), tmp_path / "photos-labeled"
    words = ["start", str(photos), "--backbone", "pixels", "--num-classes", "3", "--labels", str(known)]
    (photos / "000.png").rename(photos / "apple.png")
    (photos / "001.png").rename(tmp_path / "001.png")
    expected = {"apple.png": "red", "003.png": "red", "004.png": "green", "006.png": "red", "007.png": "green"}

    for _ in range(2):
        assert main(words) == 0
        assert labels_in(folder / "given.csv") == expected
        assert labels_in(folder / "away.csv") == {"001.png": "green"}
    known.write_text(known.read_text().replace("000.png,red", "000.png,blue"))  # corrected, by the old name
    assert main(words) == 0
    assert labels_in(folder / "given.csv") == expected | {"apple.png": "blue"}
    # what was taken along may be corrected where it is: the line with the old name is an old one
    (folder / "given.csv").write_text((folder / "given.csv").read_text().replace("apple.png,blue", "apple.png,green"))
    (tmp_path / "001.png").rename(photos / "pear.png")
    for _ in range(2):
        assert main(words) == 0
        assert labels_in(folder / "given.csv") == expected | {"apple.png": "green", "pear.png": "green"}
        assert not (folder / "away.csv").exists()
    assert main(words[:-2]) == 0
    known.write_text(known.read_text() + "nowhere.png,red\n")
    capsys.readouterr()
    assert main(words) == 3
    assert "1 of 5 images are not in" in capsys.readouterr().err


def test_labels_of_suggested_photos_that_are_alone_in_their_class_tell_how_many_classes_are_without(
    photos: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "photos-labeled"
    run(photos, num_suggestions=10)
    suggested = list(labels_in(folder / "next.csv"))
    known = tmp_path / "known.csv"
    known.write_text("path,label\n" + "".join(f"{path},{max(0, n - 2)}\n" for n, path in enumerate(suggested)))

    told = run(photos, labels=[known])

    few = "7 of the last 10 suggested photos are the only labeled ones of their class, so about 2 other"
    assert few in told["sentences"][0]  # 8 * .49 / .51, but with the others no more than a third of the 30 photos
    steps = records.StartRecord.read(folder).steps
    assert steps["groups"]["values"]["num_classes"] == 10
    assert run(photos)["sentences"] == told["sentences"]
    said = run(photos, new_classes="none")["sentences"][0]
    assert "as specified by --new-classes none" in said


@pytest.mark.slow
def test_a_label_waits_although_another_photo_with_its_name_gets_one(
    photos: Path, tmp_path: Path, begin: Begin
) -> None:
    begin(0, 1, 3, 4, 6, 7)
    folder = tmp_path / "photos-labeled"
    (photos / "029.png").rename(tmp_path / "029.png")  # without a label
    run(photos, num_classes=3)
    (photos / "001.png").rename(tmp_path / "001.png")
    (tmp_path / "029.png").rename(photos / "001.png")
    run(photos, num_classes=3)
    # a photo that came back does not take the label of its new name
    assert "001.png" not in labels_in(folder / "given.csv")
    assert labels_in(folder / "away.csv") == {"001.png": "green"}
    other = tmp_path / "other.csv"
    other.write_text("path,label\n001.png,blue\n")

    for options in ({"labels": other}, {"labels": other}, {}):
        run(photos, num_classes=3, **options)
        assert labels_in(folder / "given.csv")["001.png"] == "blue"
        assert labels_in(folder / "away.csv") == {"001.png": "green"}
    (photos / "001.png").rename(photos / "029.png")  # a second label that waits for no name of its own
    (tmp_path / "001.png").rename(photos / "001.png")
    run(photos, num_classes=3)
    given = labels_in(folder / "given.csv")
    assert (given["001.png"], given["029.png"]) == ("green", "blue")


@pytest.mark.slow
def test_two_labels_of_one_path_wait_both(photos: Path, tmp_path: Path, begin: Begin) -> None:
    begin(0, 1, 3, 4, 6, 7)
    folder = tmp_path / "photos-labeled"
    (photos / "001.png").rename(tmp_path / "first.png")
    (photos / "006.png").rename(photos / "001.png")
    run(photos, num_classes=3)
    (photos / "001.png").rename(tmp_path / "second.png")
    (photos / "029.png").rename(photos / "001.png")
    for _ in range(2):
        run(photos, num_classes=3)
        assert (folder / "away.csv").read_text().count("001.png") == 2
    for name in ("first.png", "second.png"):
        (tmp_path / name).rename(photos / name)
    run(photos, num_classes=3)
    given = labels_in(folder / "given.csv")
    assert (given["first.png"], given["second.png"]) == ("green", "red")
    assert "001.png" not in given


def test_labels_in_tables_of_start_are_of_the_photos_that_they_listed(
    photos: Path, tmp_path: Path, begin: Begin
) -> None:
    begin(0, 1, 3, 4, 6, 7)
    folder = tmp_path / "photos-labeled"
    novel = folder / "novel.csv"
    first = next(iter(labels_in(novel)))
    novel.write_text(f"path,label\n{first},new\n003.png,blue\n")
    rename(photos, {first: "007.png", "007.png": first, "003.png": "elsewhere.png"})

    told = run(photos, labels=novel, num_classes=4)

    given = labels_in(folder / "given.csv")
    expected = {"000.png": "red", "001.png": "green", "elsewhere.png": "blue", "004.png": "green", "006.png": "red"}
    assert given == expected | {"007.png": "new", first: "green"}
    assert told["counts"]["given"] == 7


def test_an_edited_photo_keeps_its_label(
    photos: Path, tmp_path: Path, begin: Begin, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(0, 1, 3, 4, 6, 7)
    Image.open(photos / "000.png").rotate(90).save(photos / "000.png")
    capsys.readouterr()

    for told in ("1 label for photos whose files have changed (000.png)", ""):
        assert main(["start", str(photos), "--backbone", "pixels", "--num-classes", "3"]) == 0
        assert labels_in(tmp_path / "photos-labeled" / "given.csv")["000.png"] == "red"
        said = " ".join(capsys.readouterr().err.split())
        assert told in said
        assert told or "other files" not in said


@pytest.mark.parametrize("step", quick_every(5, ["the tables", "the record", "embed", "groups", "suggest"]))
def test_labels_follow_once_however_often_a_call_is_ended(
    photos: Path, tmp_path: Path, begin: Begin, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    begin(0, 1, 3, 4)
    folder = tmp_path / "photos-labeled"
    # one more label, in the table of suggestions
    asked = next(iter(labels_in(folder / "next.csv")))
    write_labels(folder / "next.csv", [int(asked[:3])])
    other = next(f"{i:03d}.png" for i in range(8, 30) if i % 3 != int(asked[:3]) % 3)
    rename(photos, {asked: other, other: asked, "000.png": "001.png", "001.png": "000.png"})
    noted, do = records.StartRecord.record_step, run_module._StartRun.do_step

    def stop_before(*given: object) -> dict[str, object]:
        if step == "the tables":
            raise KeyboardInterrupt
        return do(*given)  # type: ignore[arg-type]

    def stop_after(self: records.StartRecord, *given: object) -> None:
        noted(self, *given)  # type: ignore[arg-type]
        if step in given[:2]:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run_module._StartRun, "do_step", stop_before)
        if step == "the record":
            patch.setattr(run_module, "write_labels", stop)
        patch.setattr(records.StartRecord, "record_step", stop_after)
        with pytest.raises(KeyboardInterrupt):
            run(photos, num_classes=3)
        with contextlib.suppress(KeyboardInterrupt):  # what is done is not done again
            run(photos, num_classes=3)
    run(photos, num_classes=3)

    expected = {"000.png": "green", "001.png": "red", "003.png": "red", "004.png": "green", other: color(asked)}
    assert labels_in(folder / "given.csv") == expected


def test_wrong_labels_stand_in_the_table_to_check_until_they_were_looked_at(
    photos: Path, tmp_path: Path, doubted: Path
) -> None:
    check = tmp_path / "photos-labeled" / "check.csv"
    found = {(row["path"], row["label"], row["suggested"]) for row in rows(check)}
    assert found == {("004.png", "blue", "green"), ("008.png", "red", "blue")}
    more = write_labels(tmp_path / "more.csv", [15, 16])

    run(photos, labels=[more], num_classes=3)
    assert "004.png" in labels_in(check)  # it was not looked at
    check.write_text(check.read_text().replace(",", ";"))  # as a spreadsheet saves it
    run(photos, labels=[write_labels(tmp_path / "more.csv", [17, 18])], num_classes=3)

    assert "004.png" not in labels_in(check)
    given = tmp_path / "photos-labeled" / "given.csv"
    assert labels_in(given)["004.png"] == "blue"
    given.write_text(given.read_text().replace("004.png,blue", "004.png,red"))
    run(photos, num_classes=3)
    assert labels_in(check)["004.png"] == "red"  # another label is doubted


def test_a_label_that_was_confirmed_is_not_questioned_again_however_the_call_goes_on(
    photos: Path, tmp_path: Path, doubted: Path
) -> None:
    check = tmp_path / "photos-labeled" / "check.csv"
    lines = check.read_text().splitlines(keepends=True)
    # one line is deleted, and the other corrected, to what is doubted as well
    check.write_text("".join(line.replace(",red,", ",green,") for line in lines if not line.startswith("004.png")))
    run(photos, num_classes=3)
    assert labels_in(check) == {}
    rename(photos, {"004.png": "034.png"})

    run(photos, num_classes=3)
    assert labels_in(check) == {}
    assert labels_in(tmp_path / "photos-labeled" / "given.csv")["034.png"] == "blue"


def test_a_label_is_removed_by_emptying_it_in_the_table_to_check_and_nowhere_else(
    photos: Path, tmp_path: Path, doubted: Path
) -> None:
    check, labels = (tmp_path / "photos-labeled" / name for name in ("check.csv", "labels.csv"))
    check.write_text(check.read_text().replace("004.png,blue", "004.png,"))
    labels.write_text(labels.read_text().replace("000.png,red,given", "000.png,,given"))
    heard = Heard()

    with use_progress(heard):
        run(photos, labels=[doubted], num_classes=3)

    assert labels_in(check) == {}
    given = labels_in(tmp_path / "photos-labeled" / "given.csv")
    assert "004.png" not in given
    assert (given["000.png"], given["008.png"]) == ("red", "red")
    assert "1 label removed in check.csv" in heard.messages
    assert f"{labels}: 1 of your labels was emptied, but is kept" in " ".join(heard.warnings)


def test_no_photo_is_said_to_be_of_a_new_class_where_there_is_none(
    with_page: None, photos: Path, tmp_path: Path
) -> None:
    known = write_labels(tmp_path / "known.csv", range(9))

    told = run(photos, labels=[known], new_classes="auto")

    folder = tmp_path / "photos-labeled"
    assert any("novel.csv, which lists the photos least like the labeled ones" in s for s in told["sentences"])
    assert "Least like the labeled images" in (folder / "report.html").read_text(encoding="utf-8")
    run(photos, new_classes="none")
    assert not (folder / "novel.csv").exists()


@pytest.mark.slow
def test_photos_that_came_later_are_compared_with_those_that_were_there(
    photos: Path, tmp_path: Path, begin: Begin
) -> None:
    begin(0, 1, 3, 4, 6, 7)
    for i in reversed(range(30)):  # photos with other names are no later ones
        (photos / f"{i:03}.png").rename(photos / f"{i + 12:03}.png")
    told = run(photos, labels=write_labels(tmp_path / "known.csv", [12, 13, 15, 16, 18, 19]), num_classes=3)
    assert not any("new photos" in said for said in told["sentences"])
    assert (tmp_path / "photos-labeled" / "novel.csv").is_file()
    for i in range(12):
        shade = np.random.default_rng(i).integers(200, 255, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(shade).save(photos / f"white{i:02}.png")
    add_photos(photos, range(42, 45), seed=1)
    (photos / "022.png").rename(photos / "moved.png")

    told = run(photos, num_classes=4)

    paths = list(labels_in(tmp_path / "photos-labeled" / "novel.csv"))
    assert sorted(paths[:12]) == [f"white{i:02}.png" for i in range(12)]
    assert len(paths) == 15
    assert any("Of the 15 new photos, those that most likely" in said for said in told["sentences"])


@pytest.mark.slow
def test_novel_photos_are_told_from_earlier_ones_after_one_is_deleted(
    photos: Path, tmp_path: Path, begin: Begin
) -> None:
    begin(0, 1, 3, 4, 6, 7)
    add_photos(photos, range(30, 45), seed=1)
    run(photos, num_classes=3)
    (photos / "029.png").unlink()

    told = run(photos, num_classes=3)

    assert any("Of the 15 new photos" in said for said in told["sentences"])
    every = tmp_path / "every.csv"
    every.write_text("path,label\n" + "".join(f"{path.name},{color(path.name)}\n" for path in photos.glob("*.png")))
    run(photos, labels=every)
    assert not (tmp_path / "photos-labeled" / "novel.csv").exists()


def test_guesses_are_not_taken_for_labels(
    photos: Path, tmp_path: Path, begin: Begin, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(0, 1, 3, 4, 6, 7)
    given = (tmp_path / "photos-labeled" / "given.csv").read_bytes()
    # those of the class without labels stand first
    assert {color(path) for path in list(labels_in(tmp_path / "photos-labeled" / "novel.csv"))[:10]} == {"blue"}

    code = main(["start", str(photos), "--labels", str(tmp_path / "photos-labeled" / "labels.csv")])

    assert code == 3
    assert "24 of 30 labels were predicted by labelkit" in capsys.readouterr().err
    assert (tmp_path / "photos-labeled" / "given.csv").read_bytes() == given


def test_a_class_whose_name_looks_like_a_slip_is_named_once(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = write_labels(tmp_path / "known.csv", [0, 1, 3, 4, 6, 7, 10])
    text = known.read_text()
    (tmp_path / "photos-labeled").mkdir()
    (tmp_path / "photos-labeled" / ".given.csv").write_text("path,label\n001.png,green\n010.png,grene\n")
    for slips, told in (
        ({"010.png": "grene"}, ""),  # said before
        ({"010.png": "gren"}, "the class 'gren' (1 label) resembles 'green': if both are the same class, replace "),
        ({"007.png": "GREEN", "010.png": "GREEN"}, "the class 'GREEN' (2 labels) resembles 'green'"),
        ({"001.png": "gren", "004.png": "type-1", "007.png": "type-2"}, ""),  # which of two single labels is wrong?
        ({"001.png": "type-1", "004.png": "type-1", "007.png": "type-2"}, ""),
        ({"001.png": "Garant-milk", "004.png": "Garant-milk", "007.png": "Arla-milk"}, ""),
        ({"001.png": "brown", "004.png": "brown", "007.png": "brwn"}, "the class 'brwn' (1 label) resembles 'brown'"),
        ({}, ""),
    ):
        slipped = text
        for path, name in slips.items():
            slipped = slipped.replace(f"{path},green", f"{path},{name}")
        known.write_text(slipped)
        assert main(["start", str(photos), "--backbone", "pixels", "--labels", str(known), "--dry-run"]) == 0
        said = " ".join(capsys.readouterr().err.split())
        assert told in said
        assert said.count("resembles") == bool(told)


@pytest.mark.slow
def test_time_is_told_for_photos_that_are_not_described_yet(
    photos: Path, begin: Begin, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def minutes() -> object:
        assert main(["start", str(photos), "--backbone", "pixels", "--dry-run", "--json"]) == 0
        return json.loads(capsys.readouterr().out)["embed_minutes"]

    def timed(_: object) -> tuple[CommandResult, None]:
        return CommandResult({"estimated_minutes": 8.0}, (), ()), None

    timing = {("embed",): SimpleNamespace(run=timed)}
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "all_commands", lambda: timing)
        assert minutes() == 8.0
    out = begin().parent / "photos-labeled"
    capsys.readouterr()
    add_photos(photos, range(30, 40), seed=1)
    monkeypatch.setattr(run_module, "all_commands", lambda: timing)
    assert minutes() is None  # ten photos take less time than the estimate
    monkeypatch.setattr(run_module, "_FEW_LATER", 9)
    record = json.loads((out / "start.json").read_text())
    for speed, told in ((5.0, 10 / 5 / 60), (None, 8.0 * 10 / 40)):  # of the earlier run; measured if unknown
        record["steps"]["photos.h5"]["values"]["images_per_second"] = speed
        (out / "start.json").write_text(json.dumps(record))
        assert minutes() == pytest.approx(told)


@pytest.mark.parametrize("name", quick_every(3, ["given.csv", "away.csv", "next.csv"]))
def test_a_table_of_labels_that_cannot_be_read_ends_the_call_before_any_label_is_lost(
    photos: Path, tmp_path: Path, begin: Begin, name: str
) -> None:
    begin(0, 1, 3, 4, 6, 7)
    folder = tmp_path / "photos-labeled"
    (folder / name).write_text(f"path,label,sha256\n{200_000 * 'x'},red,\n")  # longer than a field may be
    before = {path.name: path.read_bytes() for path in folder.glob("*.csv")}

    with pytest.raises(DatasetError, match=f"{name}: contains 1 error\n  line 2: unreadable: field larger"):
        run(photos, num_classes=3)

    assert {path.name: path.read_bytes() for path in folder.glob("*.csv")} == before


@pytest.mark.parametrize("left", [5, {"000.png": 5}, {"000.png": [5]}])
def test_a_record_with_something_else_in_the_place_of_labels_is_refused(
    photos: Path, tmp_path: Path, begin: Begin, left: object
) -> None:
    begin()
    record = tmp_path / "photos-labeled" / "start.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "left": left}))

    with pytest.raises(StoreError, match=r"start.json: was not written by this version"):
        run(photos, num_classes=3)


def test_all_labels_may_be_taken_back(photos: Path, tmp_path: Path, begin: Begin, browse: Browse) -> None:
    begin(0, 1, 3, 4, 6, 7)
    browse(lambda server: None)
    given = tmp_path / "photos-labeled" / "given.csv"
    given.write_text(given.read_text().splitlines()[0] + "\n")

    assert run(photos, num_classes=3)["counts"]["given"] == 0
    assert run(photos, num_classes=3, serve=True)["counts"]["given"] == 0


@pytest.mark.slow
def test_two_labels_of_the_same_bytes_do_not_follow_them(photos: Path, tmp_path: Path) -> None:
    shutil.copy(photos / "000.png", photos / "copy.png")
    known = write_labels(tmp_path / "known.csv", [0, 1, 3, 4, 6, 7])
    known.write_text(known.read_text() + "copy.png,blue\n")
    run(photos, labels=known, num_classes=3)
    for name in ("000.png", "copy.png"):
        (photos / name).rename(photos / f"moved-{name}")

    run(photos, num_classes=3)

    folder = tmp_path / "photos-labeled"
    assert labels_in(folder / "away.csv") == {"000.png": "red", "copy.png": "blue"}
    assert not any(row["kind"] == "given" for path, row in table(folder).items() if path.startswith("moved"))


@pytest.mark.parametrize("which", ["most photos are gone", "another folder"])
def test_a_folder_of_other_photos_is_refused_before_anything_is_lost(
    photos: Path, tmp_path: Path, begin: Begin, which: str
) -> None:
    begin(0, 1, 3, 4, 6, 7)
    out = tmp_path / "photos-labeled"
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    there = photos
    if which == "another folder":
        there = tmp_path / "week2"
        there.mkdir()
        add_photos(there, range(20), seed=5)  # other pictures of the same names
        for path in sorted(there.iterdir()):
            path.rename(there / f"1{path.name}")
    else:
        for i in range(4, 30):
            (photos / f"{i:03d}.png").unlink()

    with pytest.raises(
        ConfigError, match=r"was created from 30 photos, of which .* contains only [04].*--other-photos"
    ):
        run(there, out=out, num_classes=3)

    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    run(there, out=out, num_classes=2, other_photos=True)
    assert len(table(out)) == (4 if there == photos else 20)
    away = (out / "away.csv").read_text().splitlines()[1:]
    assert len(away) == (3 if there == photos else 6)


@pytest.mark.slow
def test_photos_that_come_after_an_interruption_are_taken_in(
    photos: Path, tmp_path: Path, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(0, 1, 3, 4, 6, 7)
    out = tmp_path / "photos-labeled"
    noted = records.StartRecord.record_step

    def stop(self: records.StartRecord, *given: object) -> None:
        noted(self, *given)  # type: ignore[arg-type]
        if given[1] == "embed":
            raise KeyboardInterrupt

    add_photos(photos, range(30, 36), seed=1)
    with monkeypatch.context() as patch:
        patch.setattr(records.StartRecord, "record_step", stop)
        with pytest.raises(KeyboardInterrupt):
            run(photos, num_classes=3)
    assert main(["predict", str(photos / "035.png"), "--from", str(out), "-q"]) == 0
    add_photos(photos, range(36, 42), seed=2)
    (out / "photos-2.h5.run" / "parts").mkdir(parents=True)  # as if embed had been stopped in its middle

    told = run(photos, num_classes=3)

    assert not list(out.glob("*.run"))
    assert told["described_now"] == 6
    assert [Path(str(path)).name for path in told["old_stores"]] == ["photos-2.h5", "photos.h5"]
    assert Path(str(told["store"])).name == "photos-3.h5"
    assert len(table(out)) == 42
    assert told["counts"]["given"] == 6


def test_a_copy_of_a_labeled_photo_has_its_label(photos: Path, tmp_path: Path) -> None:
    known = write_labels(tmp_path / "known.csv", [0, 1, 3, 4, 6, 7])
    shutil.copy(photos / "000.png", photos / "031.png")  # whatever it shows: its color would be another
    for copy in ("032.png", "033.png"):
        shutil.copy(photos / "003.png", photos / copy)
    known.write_text(known.read_text() + "032.png,blue\n")

    shutil.copy(photos / "000.png", photos / "034.png")
    told = run(photos, labels=known, num_classes=3, min_confidence=1.0)

    rows = table(tmp_path / "photos-labeled")
    columns = ("label", "kind", "confidence", "best_class", "group")
    assert [rows["031.png"][name] for name in columns] == ["red", "known", "1.0000", "red", "red"]
    assert rows["034.png"]["kind"] == "known"  # the second copy of one file
    assert rows["032.png"]["kind"] == rows["003.png"]["kind"] == "given"
    assert float(rows["033.png"]["confidence"]) < 1  # two labels for one file say nothing
    store = open_store(Path(str(told["store"])))
    found, place = read_stored_predictions(read_result(store, "answer")), list(store.sample_ids).index("031.png")
    assert (found.labels[place], found.kinds[place], found.confidence[place]) == ("red", "known", 1)
    assert found.expected is not None
    assert found.expected[place] == 1


def stop(*given: object) -> None:
    raise KeyboardInterrupt


def test_a_newer_version_continues_and_names_only_the_steps_that_are_left(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = write_labels(tmp_path / "known.csv", [0, 1, 3, 4, 6, 7])
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):  # noqa: PT012
        patch.setattr(EmbeddingRun, "publish", stop)
        run(photos, labels=known, num_classes=3)
    plan = tmp_path / "photos-labeled" / "photos.h5.run" / "plan.json"
    plan.write_text(plan.read_text().replace(f"labelkit {__version__}", "labelkit 0.0.1"))

    run(photos, labels=known, num_classes=3)
    heard = Heard()
    with use_progress(heard):
        run(photos, labels=known, num_classes=3)
    assert not [text for text in heard.messages if "steps to rerun" in text]
    (tmp_path / "photos-labeled" / "odd.csv").unlink()
    with use_progress(heard):
        run(photos, labels=known, num_classes=3)
    assert "steps to rerun: odd, report (--dry-run shows their commands)" in heard.messages


def test_names_with_odd_characters_come_back(photos: Path, tmp_path: Path) -> None:
    (photos / "Photos, 2024").mkdir()
    names = {"003.png": "x\r3.png", "009.png": "Photos, 2024/a.png"}
    known = write_labels(tmp_path / "known, and seen.csv", [0, 1, 4, 6, 7])
    with known.open("a", newline="") as lines:
        for old, name in names.items():
            (photos / old).rename(photos / name)
            csv.writer(lines, quoting=csv.QUOTE_ALL).writerow([name, "red"])
    words = ["start", str(photos), "--backbone", "pixels", "--num-classes", "3", "--out", str(tmp_path / "out")]

    assert main([*words, "--labels", str(known)]) == 0
    assert main(words) == 0

    assert labels_in(tmp_path / "out" / "given.csv").items() >= dict.fromkeys(names.values(), "red").items()


def test_what_was_changed_in_given_csv_stays_although_the_old_labels_are_passed_again(
    photos: Path, tmp_path: Path, begin: Begin, capsys: pytest.CaptureFixture[str]
) -> None:
    known = begin(0, 1, 3, 4, 6, 7)
    words = ["start", str(photos), "--labels", str(known), "--backbone", "pixels", "--num-classes", "3"]
    given = tmp_path / "photos-labeled" / "given.csv"
    lines = given.read_text().replace(",red,", ",crimson,").splitlines(keepends=True)
    given.write_text("".join(line for line in lines if not line.startswith("001.png")))
    capsys.readouterr()

    assert main(words) == 0

    expected = {f"00{i}.png": "crimson" for i in (0, 3, 6)} | {f"00{i}.png": "green" for i in (4, 7)}
    assert labels_in(given) == expected
    told = " ".join(capsys.readouterr().err.split())
    assert "given.csv: 1 label removed, 3 changed" in told
    assert "4 labels ignored, because the photos or labels have been corrected" in told
    assert main(words) == 0
    assert "removed" not in capsys.readouterr().err
    assert labels_in(given) == expected


def test_a_class_that_is_called_like_a_group_is_no_group(photos: Path, tmp_path: Path) -> None:
    known = tmp_path / "known.csv"
    names = {"red": "new-1", "green": "green"}
    known.write_text(
        "path,label\n" + "".join(f"{i:03d}.png,{names[color(f'{i:03d}.png')]}\n" for i in (0, 1, 3, 4, 6, 7))
    )

    run(photos, labels=known, num_classes=3)

    rows = table(tmp_path / "photos-labeled")
    assert {color(path) for path, row in rows.items() if row["label"] == "new-1"} == {"red"}
    assert {row["label"] for path, row in rows.items() if color(path) == "blue"} == {"new-2"}


def test_predictions_of_a_call_that_was_stopped_are_no_labels(
    photos: Path, tmp_path: Path, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = begin(0, 1, 3, 4, 6, 7)
    more = write_labels(tmp_path / "more.csv", [2, 5, 8])
    folder = tmp_path / "photos-labeled"

    def stop_after_labels(path: Path, data: bytes) -> str:
        written = commit_bytes(path, data)
        if path.name == "labels.csv":
            raise KeyboardInterrupt
        return written

    for module, name, stopping in (
        (given_module, "commit_bytes", stop_after_labels),
        (summary, "_compare_with_earlier_result", stop),
    ):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):  # noqa: PT012
            patch.setattr(module, name, stopping)
            run(photos, labels=(known, more), num_classes=3)
    # the one that was written last is recorded, so that a change of it is a change by a person
    lines = (folder / "labels.csv").read_text().splitlines()
    path, label, rest = lines[-1].split(",", 2)
    (folder / "labels.csv").write_text(
        "\n".join([*lines[:-1], f"{path},{'red' if label != 'red' else 'blue'},{rest}", ""])
    )

    run(photos, labels=(known, more), num_classes=3)

    assert len(labels_in(folder / "given.csv")) == 10
    assert labels_in(folder / "given.csv")[path] != label
    assert not list(folder.glob("*-edited-*"))


@pytest.mark.slow
def test_a_folder_in_the_place_of_a_store_is_told_the_newest(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    run(photos, out=out, num_classes=3)
    add_photos(photos, range(30, 33), seed=1)
    run(photos, out=out, num_classes=3)

    assert main(["status", "--index", str(out)]) != 0
    assert main(["evaluate", "clustering", "--index", str(out)]) != 0

    assert f"a folder. Pass a file in this folder: the newest is `{out / 'photos-2.h5'}`." in capsys.readouterr().err


def test_dry_run_writes_nothing_and_shows_commands_as_a_shell_takes_them(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = photos.rename(tmp_path / "Tom's $HOME photos")

    assert main(["start", str(folder), "--backbone", "pixels", "--dry-run", "--json"]) == 0

    plan = json.loads(capsys.readouterr().out)
    assert [step["name"] for step in plan["steps"]] == ["embed", "groups", "suggest", "duplicates", "odd", "report"]
    words = shlex.split(plan["steps"][0]["command"])
    assert words[words.index("--dataset") + 1] == str(folder)
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_all_photos_labeled_leaves_nothing_to_answer(photos: Path, tmp_path: Path) -> None:
    known = write_labels(tmp_path / "known.csv", range(30))
    run(photos)
    assert (tmp_path / "photos-labeled" / "next.csv").is_file()
    rows = table(tmp_path / "photos-labeled")
    assert len({(color(path), row["label"]) for path, row in rows.items()}) == 3
    assert {(row["kind"], row["confidence"]) for row in rows.values()} == {("new", "")}

    told = run(photos, labels=known, num_classes=4)  # which there cannot be

    assert not (tmp_path / "photos-labeled" / "next.csv").exists()
    said = " ".join(told["sentences"])
    assert "30 photos in 3 classes, as you labeled them. Every photo is already labeled: there is nothing left" in said
    assert {row["kind"] for row in table(tmp_path / "photos-labeled").values()} == {"given"}


def test_with_one_label_a_class_every_photo_has_a_guess_and_only_a_copy_is_sure(photos: Path, tmp_path: Path) -> None:
    shutil.copy(photos / "000.png", photos / "031.png")

    told = run(photos, labels=write_labels(tmp_path / "known.csv", [0, 1]))

    assert "No class has two labels yet" in " ".join(told["sentences"])
    lines = table(tmp_path / "photos-labeled")
    assert Counter(row["kind"] for row in lines.values()) == {"given": 2, "known": 1, "unsure": 28}
    assert lines["031.png"]["kind"] == "known"
    assert {row["label"] for row in lines.values()} == {color("000.png"), color("001.png")}
    assert all(0 < float(row["confidence"]) <= 1 for row in lines.values())


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["missing"], 3, "does not exist"),
        (["empty"], 3, "no images"),
        (["single"], 3, "contains only one photo"),
        (["three"], 3, "3 photos are too few to distinguish classes; at least "),
        (["photos", "--labels", "none.csv"], 3, "does not exist"),
        (["photos", "--labels", "strangers.csv"], 3, "2 of 2 images are not in the folder"),
        (["photos", "--out", "photos/inside"], 2, "is inside the photo folder"),
        (["photos", "--out", "known.csv"], 2, "is a file"),
        (["photos", "--labels", "three.csv", "--num-classes", "2"], 2, "less than 3, the number of labeled classes"),
        (["photos", "--labels", "same.csv"], 3, "all 30 photos have the label 'thing'"),
        (["photos", "--labels", "known.csv", "--new-classes", "none"], 2, "none, but all labels are 'red'"),
    ],
)
def test_bad_input_is_one_error_before_any_work(
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "single").mkdir()
    (tmp_path / "three").mkdir()
    add_photos(tmp_path / "single", range(1), seed=0)
    add_photos(tmp_path / "three", range(3), seed=0)
    write_labels(tmp_path / "known.csv", [0])
    write_labels(tmp_path / "three.csv", [0, 1, 2])
    write_labels(tmp_path / "same.csv", range(30), wrong=dict.fromkeys(range(30), "thing"))
    (tmp_path / "strangers.csv").write_text("path,label\nx.png,red\ny.png,red\n")

    assert main(["start", *words, "--backbone", "pixels"]) == code

    assert said in capsys.readouterr().err
    assert not list(tmp_path.glob("*-labeled"))


def test_a_second_call_on_the_same_output_ends_with_6_and_changes_nothing(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, known = tmp_path / "out", write_labels(tmp_path / "known.csv", [0, 1, 3, 4])
    monkeypatch.setattr("labelkit.store.parts.LOCK_SECONDS", 0.0)
    out.mkdir()
    words = ["start", str(photos), "--backbone", "pixels", "--labels", str(known), "--out", str(out)]

    with hold_lock(out):
        assert main(words) == 6
        assert main([*words, "--dry-run"]) == 0

    assert f"{out}: another process is working on this output" in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == ["lock"]


def test_photos_that_are_added_are_described_by_the_network_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever better network was installed since; where the old one is gone, all are described anew."""
    store = Path("photos.h5")
    model = SimpleNamespace(name="a+b", source="pip:a + pip:b")
    monkeypatch.setattr("labelkit.pipelines.start.run.open_store", lambda path: SimpleNamespace(model=model))
    config = StartConfig(photos=tmp_path)
    for here, expected in ((True, ("a+b", store)), (False, ("auto", None))):
        found = tmp_path if here else None
        monkeypatch.setattr("labelkit.pipelines.start.run.find_recorded_weights", lambda source, found=found: found)
        assert run_module._choose_network(config, store) == expected
    assert run_module._choose_network(config, None) == ("auto", None)
    assert run_module._choose_network(config.model_copy(update={"backbone": "c"}), store) == ("c", store)


@pytest.mark.parametrize("backbone", ["auto", "resnet18"])
def test_without_weights_it_names_its_own_options_alone(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], backbone: str
) -> None:
    monkeypatch.setattr("labelkit.commands.common.networks.find_best_available_backbone", lambda **_: None)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    assert main(["start", str(photos), "--backbone", backbone]) == (2 if backbone == "auto" else 3)

    said = capsys.readouterr().err.partition("error: ")[2]
    assert "--backbone pixels" in said
    assert set(re.findall(r"--[a-z][a-z-]+", said)) <= {"--backbone"}


def test_ask_again_in_the_browser_writes_all_tables_and_an_undone_label_goes_from_them(
    photos: Path, tmp_path: Path, begin: Begin, browse: Browse
) -> None:
    begin(0, 1, 3, 4)
    folder = tmp_path / "photos-labeled"
    own = write_labels(tmp_path / "mine, too.csv", [0, 1, 3, 4])
    shown: list[dict[str, str]] = []

    def label(server: Any) -> None:
        def undo(number: int) -> None:
            server.session.undo(number, user="", client="", seen_round=server.session.round)

        def ask() -> None:
            result = server.asking.predict(server.asking)
            assert result.name in list_results(server.session.store)
            shown.append(labels_in(folder / "given.csv"))
            shown.append({path: row["label"] for path, row in table(folder).items() if row["kind"] == "given"})

        act(server, rows=(0,), name=None)  # the wish of the browser counts more than the table that is passed again
        first, second = act(server, rows=(2, 5), name="blue"), act(server, "name", group=0, name="whole")
        ask()
        undo(first)
        undo(second)
        act(server, rows=(8,), name="blue")
        add_photos(photos, range(30, 32), seed=2)
        with pytest.raises(ValueError, match="photos have been added"):
            ask()
        shown.append(labels_in(folder / "given.csv"))
        act(server, rows=(11,), name="blue")
        raise ResourceError("here", "the disk is full", "Make room.")

    browse(label)
    with pytest.raises(ResourceError):
        run(photos, labels=[own], num_classes=4, serve=True)

    given = {f"{i:03d}.png": color(f"{i:03d}.png") for i in (1, 3, 4)}
    asked = given | dict.fromkeys(("002.png", "005.png"), "blue")
    assert all("whole" in labels.values() for labels in shown[:2])
    labels_by_hand = [{path: text for path, text in labels.items() if text != "whole"} for labels in shown[:2]]
    assert [*labels_by_hand, shown[2]] == [asked, asked, given | {"008.png": "blue"}]
    # what was labeled after the last question, too, is taken by the next call, once; a line of a person stays
    with (folder / "given.csv").open("a") as table_by_hand:
        table_by_hand.write("002.png,green,\n")
    run(photos, num_classes=3)
    by_hand = {"002.png": "green"}
    assert labels_in(folder / "given.csv") == given | by_hand | dict.fromkeys(("008.png", "011.png"), "blue")
    write_labels(folder / "given.csv", [1, 3, 4])
    run(photos, num_classes=3)
    assert labels_in(folder / "given.csv") == given


def test_labels_that_an_earlier_question_took_are_still_known_after_the_next(tmp_path: Path) -> None:
    record = records.StartRecord(path=tmp_path / "start.json")
    record.record_step("labels of the browser", "", {}, [], {"taken": [["a.png", "1"], ["b.png", "2"]]})

    record_browser_round(record, 5, [TableLabel("b.png", "", "2"), TableLabel("c.png", "red", "3")])

    values = record.steps["labels of the browser"]["values"]
    assert values == {"taken": [["a.png", "1"], ["c.png", "3"]], "round": 5}


def test_what_a_person_corrected_in_a_table_stays_while_the_browser_goes_on(
    photos: Path, tmp_path: Path, begin: Begin, browse: Browse
) -> None:
    begin(0, 1, 3, 4)
    given = tmp_path / "photos-labeled" / "given.csv"

    def label(server: Any) -> None:
        act(server, rows=(2,), name="blue")
        server.asking.predict(server.asking)
        text = given.read_text().replace("002.png,blue", "002.png,green").replace("001.png,green", "001.png,red")
        given.write_text(text)
        act(server, rows=(0,), name=None)
        act(server, rows=(5,), name="blue")
        server.asking.predict(server.asking)

    browse(label)
    run(photos, num_classes=3, serve=True)

    expected = {"001.png": "red", "002.png": "green", "003.png": "red", "004.png": "green", "005.png": "blue"}
    assert labels_in(given) == expected


def test_labeling_a_store_of_start_updates_its_tables_as_start_would(
    photos: Path,
    tmp_path: Path,
    begin: Begin,
    browse: Browse,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin(0, 1, 3, 4)
    folder = tmp_path / "photos-labeled"
    shown: list[dict[str, str]] = []

    def label(server: Any) -> None:
        act(server, rows=(2, 5), name="blue")
        server.asking.predict(server.asking)
        shown.append(labels_in(folder / "labels.csv"))
        act(server, rows=(8,), name="blue")

    browse(label)
    more = write_labels(tmp_path / "more.csv", [7])
    embedded = (folder / "photos.h5").stat().st_mtime_ns

    monkeypatch.chdir(tmp_path)
    words = ["label", "--index", "photos-labeled/photos.h5", "--serve", "--from", str(more)]
    assert main(words) == 0

    told = capsys.readouterr().err
    given = {f"{i:03d}.png": color(f"{i:03d}.png") for i in (0, 1, 2, 3, 4, 5, 7, 8)}
    assert labels_in(folder / "given.csv") == given
    assert {path for path, row in table(folder).items() if row["kind"] == "given"} == set(given)
    assert shown[0].items() >= {"002.png": "blue", "005.png": "blue", "007.png": "green"}.items()
    assert (folder / "photos.h5").stat().st_mtime_ns == embedded
    # what reads no labels is not done again, since paths are those of the call before
    assert "duplicates: already done" in told
    assert "was created by" not in told


@pytest.mark.parametrize(
    "why", ["another folder", "another version", "another result", "another program", "an unread session"]
)
def test_labeling_a_store_of_start_that_cannot_be_repeated_tells_how_its_tables_get_the_labels(
    photos: Path, tmp_path: Path, begin: Begin, browse: Browse, capsys: pytest.CaptureFixture[str], why: str
) -> None:
    begin(0, 1, 3, 4)
    store = tmp_path / "photos-labeled" / "photos.h5"
    record = json.loads((store.parent / "start.json").read_text())
    if why == "another folder":
        record["call"]["photos_at"] = str(tmp_path / "gone")
    if why == "another version":
        record["call"]["unheard_of"] = 1
    (store.parent / "start.json").write_text("[]" if why == "another program" else json.dumps(record))
    if why == "an unread session":  # its labels are continued, or they would be left behind
        browse(lambda server: act(server, rows=(2,), name="blue"))
        assert main(["label", "--index", str(store), "--serve", "--result", "labels-9"]) == 0
        capsys.readouterr()
    browse(lambda server: None)
    tables = (store.parent / "labels.csv").read_bytes()

    words = ["--result", "mine"] if why == "another result" else []
    assert main(["label", "--index", str(store), "--serve", *words]) == 0

    assert f"`labelkit start PHOTOS --out {store.parent} --labels mine.csv`" in " ".join(
        capsys.readouterr().err.split()
    )
    assert (store.parent / "labels.csv").read_bytes() == tables


def test_a_class_ruled_out_in_the_browser_is_not_predicted_again(
    photos: Path, tmp_path: Path, begin: Begin, browse: Browse
) -> None:
    begin(0, 1, 3, 4, 6, 7)
    labels = tmp_path / "photos-labeled" / "labels.csv"
    name, before = "010.png", labels_in(labels)

    def rule_out(server: Any) -> None:
        act(server, "not", rows=(server.session.store.sample_ids.index(name),), name=before[name])

    browse(rule_out)
    run(photos, num_classes=3, serve=True)
    add_photos(photos, range(30, 32), seed=2)
    (photos / name).rename(photos / "moved.png")
    run(photos, num_classes=3)

    assert labels_in(labels)["moved.png"] not in ("", before[name])
    assert {path: labels_in(labels)[path] for path in before if path != name} == {
        path: text for path, text in before.items() if path != name
    }


def test_labels_of_the_browser_end_in_all_tables(
    photos: Path, tmp_path: Path, begin: Begin, browse: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(0, 1, 3, 4)
    folder = tmp_path / "photos-labeled"
    steps: list[dict[str, Any]] = [
        {"rows": (2, 5), "name": "blue"},
        {"rows": (8,), "name": "blue"},
        {"do": "name", "group": 0, "name": "all of it"},
    ]
    known: list[list[str]] = []

    def label(server: Any) -> None:
        known.append([str(name) for name in server.session.work.classes])
        act(server, **steps[len(known) - 1])
        if len(known) == 1:
            (photos / "005.png").unlink()
            add_photos(photos, range(30, 32), seed=2)
            raise ResourceError("here", "the disk is full", "Make room.")

    browse(label)
    with pytest.raises(ResourceError):
        run(photos, num_classes=3, serve=True)
    # the next call takes them, though it is about other photos, and has a table with a column of another name
    (tmp_path / "own.csv").write_text("path,product\n006.png,red\n")
    run(photos, num_classes=3, labels=[tmp_path / "own.csv"], label_column="product", serve=True)

    given = {f"{i:03d}.png": color(f"{i:03d}.png") for i in (0, 1, 3, 4)} | {"006.png": "red"}
    given |= dict.fromkeys(("002.png", "009.png"), "blue")  # 005.png is not there
    assert labels_in(folder / "given.csv") == given
    assert labels_in(folder / "away.csv") == {"005.png": "blue"}
    assert {path for path, row in table(folder).items() if row["kind"] == "given"} == set(given)
    assert "blue" in known[1]
    # what is taken back later stays so
    (folder / "given.csv").write_text(
        "".join(line for line in (folder / "given.csv").read_text().splitlines(True) if "002.png" not in line)
    )
    run(photos, num_classes=4)
    assert "002.png" not in labels_in(folder / "given.csv")
    monkeypatch.setattr("labelkit.commands.common.labels.TYPICAL", 1)
    heard = Heard()
    with use_progress(heard):
        run(photos, num_classes=4, serve=True)
    assert f"the server has stopped; updating the tables in {folder}, which takes a while" in heard.messages
    # of a group that is named, the most typical image
    assert any("images of each named group are used" in told for told in heard.messages)
    assert list(labels_in(folder / "given.csv").values()).count("all of it") == 1


def test_one_label_alone_groups_the_photos(photos: Path, tmp_path: Path) -> None:
    told = run(photos, labels=write_labels(tmp_path / "known.csv", [0]), num_classes=3)

    assert "A single label cannot distinguish classes" in " ".join(told["sentences"])


def test_few_photos_are_enough_where_the_number_of_classes_need_not_be_estimated(tmp_path: Path) -> None:
    photos = tmp_path / "few"
    photos.mkdir()
    add_photos(photos, range(6), seed=0)

    told = run(photos, labels=write_labels(tmp_path / "known.csv", range(3)), new_classes="none")

    assert (told["classes"], told["counts"]["given"]) == (3, 3)

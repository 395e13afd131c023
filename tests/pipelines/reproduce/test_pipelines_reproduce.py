"""``labelkit reproduce``: tables are read, rows run once, numbers stand beside what was published."""

import csv
import json
from pathlib import Path

import pytest
from labelkit.cli.main import main
from labelkit.data.registry import load_dataset
from labelkit.errors import ConfigError
from labelkit.methods.registry import METHODS
from labelkit.pipelines.reproduce import running
from labelkit.pipelines.reproduce.options import ReproduceConfig
from labelkit.pipelines.reproduce.running import reproduce
from labelkit.pipelines.reproduce.tables import (
    PublishedTable,
    complete_command,
    list_available_tables,
    list_excluded_tables,
    list_row_inputs,
    read_table,
)
from PIL import Image
from tests.miniature_sets import MINIATURES, make_miniature
from tests.short_tables import run_row, short_command

TABLE = """
source: softmax
place: Table 1
title: digits
values: {top 1: metrics.accuracy, top 5: metrics.top5_accuracy}
commands:
  - train {method} --dataset {dataset} --epochs 1 {options}
rows:
  - {name: "first", published: 50.0, method: softmax, dataset: digits, options: ""}
  - {name: "second row", published: {top 1: 60.0, top 5: 90.0}, method: dl2pa, dataset: cifar10, options: "--lr 1"}
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(TABLE)
    return path


class Commands:
    """Stands in for processes: notes the commands and says what they would have printed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run: list[list[str]] = []
        self.code = 0
        monkeypatch.setattr(running, "run_command", self._run)

    def _run(self, words: list[str]) -> tuple[int, bytes]:
        self.run.append(words)
        accuracy = 0.4 + 0.1 * int(words[words.index("--seed") + 1])
        return self.code, json.dumps({"metrics": {"accuracy": accuracy, "top5_accuracy": 0.9}}).encode()


@pytest.fixture(autouse=True)
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(monkeypatch)


def first_rows(table: PublishedTable) -> list[str]:
    return list({next(filter(None, row.commands))[1]: row.name for row in table.rows}.values())


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if row % 24 else ())
        for row, name in enumerate(list_available_tables())
    ],
)
def test_commands_of_a_table_are_valid(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, here = read_table(name), tmp_path / "here"
    for row in table.rows:
        if row.name not in first_rows(table):
            continue
        for words in filter(None, row.commands):
            named = {name: name for name, _ in list_row_inputs(row, tmp_path)}
            whole = complete_command(ReproduceConfig(table=name, data_root=tmp_path), words, here, 0)
            for command in (whole, short_command(table, words, named, tmp_path, here)):
                assert main(["config", *command]) == 0, capsys.readouterr().err


def test_tables_that_are_left_out_are_no_tables() -> None:
    places = {(read_table(name).source, read_table(name).place) for name in list_available_tables()}
    assert all(entry["reason"] and (entry["source"], entry["place"]) not in places for entry in list_excluded_tables())


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MINIATURES, "imagenet_1k"])
def test_miniatures_are_read_as_the_data_sets(name: str, tmp_path: Path) -> None:
    dataset = load_dataset(make_miniature(name, tmp_path), data_root=tmp_path)
    assert len(dataset) >= (20 if dataset.class_names else 3)
    assert make_miniature(name, tmp_path) == make_miniature(name, tmp_path)


def test_rows_run_once_and_stand_beside_what_was_published(table: Path, tmp_path: Path, commands: Commands) -> None:
    config = ReproduceConfig(table=str(table), row=("first",), seeds=3, out=tmp_path / "out")

    done = reproduce(config).to_json()

    assert [words[0] for words in commands.run] == ["train"] * 3
    assert commands.run[1][-9:] == [
        "--data-root", "data", "--device", "auto", "--seed", "1",
        "--out", str(tmp_path / "out/mine/first/seed-1/run"), "--json",
    ]  # fmt: skip
    assert done["rows"] == {"done": 1}
    row = json.loads((tmp_path / "out/mine/table.json").read_text())["rows"][0]
    value, other = row["values"]
    assert (value["name"], value["published"]) == ("top 1", 50.0)
    assert (other["name"], other["published"], other["mean"]) == ("top 5", None, pytest.approx(90))
    assert value["mean"] == pytest.approx(50)
    assert value["deviation"] == pytest.approx(10)
    assert value["difference"] == pytest.approx(0)
    reproduce(config)
    assert len(commands.run) == 3


def test_rows_and_seeds_that_are_not_selected_stay_in_the_table(
    table: Path, tmp_path: Path, commands: Commands
) -> None:
    table.write_text(TABLE.replace("cifar10", "digits"))
    config = ReproduceConfig(table=str(table), seeds=3, out=tmp_path / "out")
    reproduce(config)
    texts = {path: path.read_text() for path in (tmp_path / "out/mine").glob("table.*")}

    one = reproduce(config.model_copy(update={"row": ("first",), "seeds": 1})).to_json()

    assert one["rows"] == {"done": 1}
    assert len(commands.run) == 6
    assert {path: path.read_text() for path in texts} == texts

    (tmp_path / "out/mine/second-row/seed-2/step-1.json").unlink()
    commands.code = 4
    reproduce(config)
    assert "(%, 2 to 3 seeds)" in (tmp_path / "out/mine/table.md").read_text()


def test_a_changed_option_is_named_with_what_to_do(table: Path, tmp_path: Path) -> None:
    config = ReproduceConfig(table=str(table), row=("first",), seeds=1, out=tmp_path / "out")
    reproduce(config)
    assert reproduce(config.model_copy(update={"device": "cpu"})).fault is None
    table.write_text(TABLE.replace("--epochs 1", "--epochs 2"))

    fault = str(reproduce(config).fault)

    assert "contains the output of another command (was `--epochs 1`, is `--epochs 2`)" in fault
    assert f"Delete {tmp_path / 'out/mine/first'} to run this row again, or pass a different --out." in fault


@pytest.mark.parametrize("changed", ["labels", "image", "another file"])
def test_a_number_is_not_taken_for_that_of_changed_data(
    changed: str, table: Path, tmp_path: Path, commands: Commands
) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "1.bmp")
    csv_file, words = tmp_path / "mine.csv", tmp_path / "words.txt"
    csv_file.write_text("path,label,split\na/1.bmp,a,train\nb/1.bmp,b,test\n")
    words.touch()
    text = TABLE.replace("dataset: digits", f"dataset: {csv_file}")
    table.write_text(text.replace('options: ""', f"options: --class-vectors={words}"))
    config = ReproduceConfig(table=str(table), row=("first",), seeds=2, data_root=tmp_path, out=tmp_path / "out")
    for _ in range(2):
        assert reproduce(config).fault is None
    assert len(commands.run) == 2

    if changed == "labels":
        csv_file.write_text(csv_file.read_text().replace("bmp,b", "bmp,a"))
    elif changed == "image":
        Image.new("RGB", (8, 8), "red").save(tmp_path / "b" / "1.bmp")
    else:
        words.write_text("a 1")

    result = reproduce(config)
    assert result.to_json()["rows"] == {"failed": 1}
    assert f"{words if words.stat().st_size else csv_file} has changed since" in str(result.fault)
    assert f"Delete {tmp_path / 'out/mine/first'} to run this row again" in str(result.fault)
    assert len(commands.run) == 2


def test_a_table_is_also_written_as_people_put_it_into_a_text(table: Path, tmp_path: Path) -> None:
    table.write_text(
        TABLE.replace('name: "first"', 'name: "first_50%"').replace("commands:", "units: {top 5: number}\ncommands:")
    )

    reproduce(ReproduceConfig(table=str(table), seeds=3, out=tmp_path / "out"))

    record = json.loads((tmp_path / "out/mine/table.json").read_text())
    folder = tmp_path / "out/mine"
    lines = (folder / "table.md").read_text().splitlines()
    assert lines[0].startswith(f"{record['source']}, {record['place']}: {record['title']}")
    assert "3 seeds" in lines[0]
    assert lines[2] == "|  | top 1, published | top 1 | top 5, published | top 5 |"
    cells = [cell.strip() for cell in lines[4].strip("|").split("|")]
    assert cells[:3] == ["first_50%", "50.0", "50.0 ± 10.0"]
    assert lines[-1] == f"`{record['command']}`"
    tex = (folder / "table.tex").read_text()
    assert r"first\_50\% & 50.0 & 50.0 $\pm$ 10.0 & " in tex
    assert tex.count(r"\\") == 1 + len(record["rows"])
    assert r"\begin{tabular}{lrrrr}" in tex
    with (folder / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(len(row["values"]) for row in record["rows"])
    values = record["rows"][0]["values"][0]
    assert (rows[0]["row"], rows[0]["value"], rows[0]["state"]) == ("first_50%", "top 1", "done")
    assert [float(rows[0][key]) for key in ("published", "mean", "deviation")] == pytest.approx(
        [values["published"], values["mean"], values["deviation"]]
    )
    assert [float(one) for one in rows[0]["seeds"].split()] == values["seeds"]


def test_values_come_from_the_command_that_they_name_and_may_be_unpublished(
    table: Path, tmp_path: Path, commands: Commands
) -> None:
    text = TABLE.replace(
        "top 5: metrics.top5_accuracy", "again: '#1.metrics.accuracy', top 5: '#2.metrics.top5_accuracy'"
    )
    text = text.replace("commands:", "units: {top 5: error %}\ncommands:")
    text = text.replace("  - train", "  - config again --seed {seed}0\n  - train").replace(
        "published: 50.0", "published: {top 1: null, again: 45.0, top 5: 91.0}"
    )
    table.write_text(text)
    row = reproduce(ReproduceConfig(table=str(table), row=("first",), seeds=2, out=tmp_path / "out")).to_json()
    found = {value["name"]: value for value in row["tables"][0]["rows"][0]["values"]}
    assert [words[0] for words in commands.run] == ["config", "train"] * 2
    # nothing at all was published
    table.write_text(TABLE.replace("published: 50.0, ", ""))
    bare = reproduce(ReproduceConfig(table=str(table), row=("first",), seeds=2, out=tmp_path / "bare")).to_json()
    values = bare["tables"][0]["rows"][0]["values"]
    assert [(value["name"], value["mean"]) for value in values] == [("top 1", 45), ("top 5", pytest.approx(90))]
    assert [(value["published"], value["difference"]) for value in values] == [(None, None)] * 2
    # the stand-in says 40% and 10% more for each seed: 0 and 10, then 0 and 1
    assert found["again"]["mean"] == pytest.approx((40 + 140) / 2)
    assert found["again"]["difference"] == pytest.approx(45)
    assert found["top 1"]["mean"] == pytest.approx(45)
    assert (found["top 1"]["published"], found["top 1"]["difference"]) == (None, None)
    assert found["top 5"]["mean"] == pytest.approx(10)


BARS = """
source: cotap
place: Fig. 0
title: change
values: {top 1: "#2.metrics.accuracy"}
commands:
  - "{train}"
  - embed {model} --seed {seed}
rows:
  - {name: "before", train: "", model: "--backbone large --weights {data_root}/w.pth"}
  - {name: "other", train: "train softmax --dataset digits", model: "--checkpoint {here}/run"}
  - {name: "after", against: "before", train: "train dl2pa --dataset digits", model: "--checkpoint {here}/run"}
"""


@pytest.fixture
def bars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "w.pth").touch()
    path = tmp_path / "bars.yaml"
    path.write_text(BARS)

    def answer(words: list[str]) -> tuple[int, bytes]:
        # the start has 0.5, 0.5, 0.5; what was trained 0.6, 0.7, 0.8
        trained = "--checkpoint" in words
        seed = int(words[words.index("--seed") + 1])
        return 0, json.dumps({"metrics": {"accuracy": 0.5 + trained * (0.1 + 0.1 * seed)}}).encode()

    monkeypatch.setattr(running, "run_command", answer)
    return path


def test_a_row_is_compared_with_another_seed_by_seed(bars: Path, tmp_path: Path) -> None:
    result = reproduce(ReproduceConfig(table=str(bars), data_root=tmp_path, out=tmp_path / "out"))

    rows = {row["name"]: row["values"][0] for row in result.to_json()["tables"][0]["rows"]}
    assert rows["before"].keys() & {"against", "change"} == set()
    assert rows["other"].keys() & {"against", "change"} == set()
    assert (rows["after"]["against"], rows["after"]["published"]) == ("before", None)
    assert rows["after"]["mean"] == pytest.approx(70)
    assert rows["after"]["change"] == pytest.approx(20)
    assert rows["after"]["change_deviation"] == pytest.approx(10)
    (shown,) = result.shown
    assert shown.columns == ["row", "value", "measured", "deviation", "change", "its deviation", "state"]
    assert shown.rows[0] == ["before", "top 1", pytest.approx(50), 0, None, None, "done"]
    assert shown.rows[2][4:6] == [pytest.approx(20), pytest.approx(10)]
    folder = tmp_path / "out" / "bars"
    assert "| after | 70.0 ± 10.0 | 20.0 ± 10.0 |" in (folder / "table.md").read_text()
    assert r"after & 70.0 $\pm$ 10.0 & 20.0 $\pm$ 10.0 \\" in (folder / "table.tex").read_text()
    assert "after,top 1,,70.0,10.0" in (folder / "table.csv").read_text()
    # a command that a row leaves out is not run
    assert [path.name for path in (tmp_path / "out/bars/before/seed-0").iterdir()] == ["step-2.json"]


def test_published_numbers_and_changes_are_shown_together(bars: Path, tmp_path: Path) -> None:
    bars.write_text(BARS.replace('name: "before"', 'name: "before", published: 45'))
    (shown,) = reproduce(ReproduceConfig(table=str(bars), data_root=tmp_path, out=tmp_path / "out")).shown
    assert shown.columns == [
        "row", "value", "published", "measured", "deviation", "difference", "change", "its deviation", "state",
    ]  # fmt: skip
    assert shown.rows[0][2:6] == [45, pytest.approx(50), 0, pytest.approx(5)]
    assert "|  | top 1, published | top 1 | top 1, change |" in (tmp_path / "out/bars/table.md").read_text()


def test_a_row_is_compared_with_one_that_is_there(bars: Path) -> None:
    for other in ("nobody", "after"):
        bars.write_text(BARS.replace('against: "before"', f'against: "{other}"'))
        with pytest.raises(ConfigError, match=f"'after' is compared with '{other}', which is not another row"):
            read_table(str(bars))


def test_a_row_that_trains_twice_has_two_folders_and_goes_on_in_each(
    table: Path, tmp_path: Path, commands: Commands
) -> None:
    first = "  - train {method} --dataset {dataset} --epochs 1 {options} --out {here}/first\n"
    table.write_text(TABLE.replace("commands:\n", "commands:\n" + first))
    here = tmp_path / "out/mine/first/seed-0"
    (here / "first").mkdir(parents=True)
    (here / "first/config.yaml").write_text("")

    reproduce(ReproduceConfig(table=str(table), row=("first",), seeds=1, out=tmp_path / "out"))

    assert [words[words.index("--out") + 1] for words in commands.run] == [str(here / "first"), str(here / "run")]
    assert ["--resume" in words for words in commands.run] == [True, False]


def test_a_record_says_how_it_was_made_and_what_differs(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table.write_text(TABLE.replace("values:", "note: Half of the images.\nvalues:"))
    place = str(tmp_path / "out")

    words = ["reproduce", str(table), "--seeds", "2", "--data-root", "some", "--out", place, "--row"]
    assert main([*words, "second"]) == 3
    assert main([*words, "first"]) == 0

    assert "digits (%). Half of the images.\n" in capsys.readouterr().out
    record = json.loads((tmp_path / "out/mine/table.json").read_text())
    assert record["note"] == "Half of the images."
    assert record["command"] == f"labelkit reproduce {table} --row first --seeds 2 --data-root some"
    assert record["versions"].keys() == {"labelkit", "torch"}
    assert record["machine"]["cores"] >= 1


def test_rows_without_data_are_named_and_the_others_run_and_listed_by_a_dry_run(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["reproduce", str(table), "--seeds", "1", "--data-root", str(tmp_path), "--out", str(tmp_path / "out")]

    assert main([*words, "--dry-run", "--json"]) == 0

    captured = capsys.readouterr()
    assert [row["state"] for row in json.loads(captured.out)["tables"][0]["rows"]] == ["planned", "no data"]
    assert captured.err.count("labelkit train") == 2
    assert captured.err.count("rows skipped: cifar10") == 1
    assert not (tmp_path / "out").exists()

    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == {"done": 1, "no data": 1}
    reason = json.loads((tmp_path / "out/mine/table.json").read_text())["rows"][1]["reason"]
    assert "cifar10 (50,000 train, 10,000 test images): cifar10: not found" in reason


def test_a_command_of_a_table_may_have_its_own_data_root_but_no_seed(
    table: Path, tmp_path: Path, commands: Commands
) -> None:
    (tmp_path / "own").mkdir()
    make_miniature("cifar10", tmp_path / "own")
    table.write_text(TABLE.replace("--lr 1", f"--lr 1 --data-root {tmp_path / 'own'} --device=cpu"))
    config = ReproduceConfig(table=str(table), row=("second",), seeds=1, out=tmp_path / "out")
    assert reproduce(config).to_json()["rows"] == {"done": 1}
    assert [commands.run[0].count(option) for option in ("--data-root", "--device", "cpu")] == [1, 1, 1]

    table.write_text(TABLE.replace('options: ""', 'options: "--seed 5"'))
    assert "must not set --seed" in str(reproduce(config.model_copy(update={"row": ("first",)})).fault)


def test_a_value_that_is_not_there_is_answered_with_those_that_are(table: Path, tmp_path: Path) -> None:
    table.write_text(TABLE.replace("metrics.accuracy", "scores.0.accuracy"))

    result = reproduce(ReproduceConfig(table=str(table), out=tmp_path, seeds=1))

    assert "scores.0.accuracy is not a value in the output of the last command" in result.fault.problem
    assert "Choose one of the numbers in it: metrics.accuracy, " in result.fault.problem


def test_rows_that_are_done_are_in_the_table_although_the_next_is_stopped(
    table: Path, tmp_path: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.write_text(TABLE.replace("cifar10", "digits"))

    def stop(words: list[str]) -> tuple[int, bytes]:
        if "dl2pa" in words:
            raise KeyboardInterrupt
        return commands._run(words)

    commands.code = 4  # a row that fails does not stop the others
    failed = reproduce(ReproduceConfig(table=str(table), seeds=1, out=tmp_path / "failed"))
    assert (failed.to_json()["rows"], len(commands.run)) == ({"failed": 2}, 2)
    assert "2 of 2 rows failed" in str(failed.fault)
    commands.code = 0
    monkeypatch.setattr(running, "run_command", stop)
    with pytest.raises(KeyboardInterrupt):
        reproduce(ReproduceConfig(table=str(table), out=tmp_path, seeds=2))

    text = (tmp_path / "mine" / "table.md").read_text()
    assert "| first | 50.0 | 45.0 ± " in text
    assert "second row" in text


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "TABLE: is missing"),
        (["dl2pa-99"], 2, "there is no table 'dl2pa-99'"),
        (["missing.yaml"], 2, "No such file"),
        (["dl2pa-6", "--row", "dl2pa"], 2, "matches 9 rows"),
        (["dl2pa-6", "--data-root", "nowhere"], 3, "the data for all rows are missing"),
    ],
)
def test_bad_input_is_one_error(
    words: list[str],
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", *words]) == code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("published: 50.0, ", "published: high, ", "rows.0.published: must be a number, or numbers by value name"),
        ("published: 50.0, ", "published: [50, 60], ", "such as {top 1: 95.0, top 5: null}"),
        ('options: ""', "factor: 1", "for the commands"),
        ("second row", "first", "row names must be unique"),
        ("top 5: 90.0", "top 9: 90.0", "missing from `values`"),
        ("rows:", "lines:", "rows"),
        ("commands:", "units: {top 9: number}\ncommands:", "`units` contains ['top 9']"),
        ("metrics.top5_accuracy", "'#2.metrics.top5_accuracy'", "values refer to command 2, but there are only 1"),
        ("source: softmax", "source: [", ""),
    ],
)
def test_a_file_that_is_no_table_is_refused(table: Path, old: str, new: str, said: str) -> None:
    table.write_text(TABLE.replace(old, new))
    with pytest.raises(ConfigError, match="is not a valid table") as caught:
        read_table(str(table))
    assert said in str(caught.value)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("method", METHODS)
def test_every_row_of_every_table_runs_for_a_few_steps(method: str, tmp_path: Path) -> None:
    failed = []
    for table in map(read_table, [name for name in list_available_tables() if name.startswith(f"{method}-")]):
        for row in table.rows:
            try:
                assert run_row(table, row, tmp_path).keys() == table.values.keys()
            except AssertionError as error:
                failed.append(f"{table.name}, {row.name}: {error}")
    assert failed == []

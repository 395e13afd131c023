"""The tables of ``examples/tables``: they are read, run for a few steps, and the guide shows what they measured."""

import json
import runpy
import statistics
from pathlib import Path

import pytest
from labelkit.cli.main import main
from labelkit.pipelines.reproduce.options import ReproduceConfig
from labelkit.pipelines.reproduce.tables import PublishedTable, complete_command, list_available_tables, read_table
from tests.pages import PAGES, ROOT
from tests.short_tables import run_row

TABLES = sorted((ROOT / "examples" / "tables").glob("*.yaml"))
RESULTS = ROOT / "examples" / "results"
names = pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)


def published(table: PublishedTable) -> set[tuple[tuple[str, float | None], ...]]:
    """The numbers of each row."""
    return {tuple(row.published.items()) for row in table.rows}


@names
def test_a_stand_in_says_that_it_is_one_and_has_numbers_of_the_published_table(path: Path) -> None:
    table, original = read_table(str(path)), read_table(path.stem.removeprefix("small-"))

    assert path.stem not in list_available_tables()
    assert table.place.startswith("stand-in for Table ")
    assert table.note.startswith("A stand-in: ")
    assert published(table) <= published(original)


@names
def test_every_command_of_a_stand_in_is_one(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = read_table(str(path))
    config = ReproduceConfig(table=str(path))
    for row in table.rows:
        for words in row.commands:
            command = complete_command(config, words, tmp_path / "here", 0)
            assert main(["config", *command]) == 0, capsys.readouterr().err


@names
def test_a_dry_run_of_a_stand_in_names_its_commands(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "grocery").mkdir()
    words = ["--dry-run", "--seeds", "1", "--data-root", str(tmp_path), "--out", str(tmp_path / "out")]

    assert main(["reproduce", str(path), *words]) == 0

    said = capsys.readouterr()
    assert "A stand-in: " in said.out
    assert said.err.count("labelkit train ") == len(read_table(str(path)).rows)
    assert "{data_root}" not in said.err


@names
def test_the_guide_shows_what_a_stand_in_measured(path: Path) -> None:
    record = json.loads((RESULTS / f"{path.stem}.json").read_text())
    table = read_table(str(path))
    guide = PAGES["docs/guides/reproduce.md"]

    assert record["command"] == f"labelkit reproduce examples/tables/{path.name} --seeds 3 --data-root data"
    assert (record["title"], record["note"]) == (table.title, table.note)
    assert [row["name"] for row in record["rows"]] == [row.name for row in table.rows]
    for row in record["rows"]:
        first = row["values"][0]
        numbers = (first["published"], statistics.mean(first["seeds"]), statistics.stdev(first["seeds"]))
        assert len(first["seeds"]) == 3
        assert f"| {row['name']} | {' | '.join(f'{number:.1f}' for number in numbers)} |" in guide


@pytest.mark.slow
@pytest.mark.timeout(1200)
@names
def test_every_row_of_a_stand_in_runs_for_a_few_steps(path: Path, tmp_path: Path) -> None:
    table = read_table(str(path))
    for row in table.rows:
        assert run_row(table, row, tmp_path).keys() == table.values.keys()


def test_the_measured_gains_are_those_of_the_other_results(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    for file in RESULTS.glob("*.json"):
        if file.stem != "measured_gains":
            (tmp_path / "results" / file.name).symlink_to(file)
    script = tmp_path / "measured_gains.py"
    script.write_text((ROOT / "examples" / "measured_gains.py").read_text())
    runpy.run_path(str(script), run_name="__main__")
    assert (tmp_path / "results" / "measured_gains.json").read_text() == (RESULTS / "measured_gains.json").read_text()

"""``labelkit reproduce --time``: hours are the timed pace times the steps, and what is not timed is named."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from labelkit.cli.main import main
from labelkit.config.reproduce import ReproduceConfig
from labelkit.data.made_up import made_up_dataset
from labelkit.data.registry import DATASETS
from labelkit.methods.prototypes.class_vectors import read_class_vectors
from labelkit.stages.reproduce import hours
from labelkit.stages.reproduce.running import reproduce

TABLE = """
source: softmax
place: Table 1
title: digits
values: {top 1: metrics.accuracy}
commands:
  - train {method} --dataset {dataset} --epochs 1 {options}
  - embed --checkpoint {here}/run --dataset {dataset} --out {here}/rows.h5
  - evaluate knn --index {here}/rows.h5
  - evaluate knn --index {here}/rows.h5 --k 5
rows:
  - {name: "first", method: softmax, dataset: digits, options: ""}
  - {name: "again", method: softmax, dataset: digits, options: ""}
  - {name: "other", method: dl2pa, dataset: cifar10, options: "--class-vectors {data_root}/vectors/cifar10.txt"}
"""


class Commands:
    """Stands in for processes: 7,200 steps of half a second, after half an hour; ``dl2pa`` fails if told so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, refused: str = "") -> None:
        self.run: list[list[str]] = []
        self.read: list[tuple[int, ...]] = []
        self._refused = refused
        monkeypatch.setattr(hours.Commands, "run", self._run)

    def _run(self, words: list[str]) -> tuple[int, bytes]:
        self.run.append(words)
        given = dict(pairwise(words))
        if "--class-vectors" in given:
            names = made_up_dataset(DATASETS[given["--dataset"]]).class_names
            self.read.append(read_class_vectors(Path(given["--class-vectors"]), names).shape)
        if words[1] == self._refused:
            return 2, b""
        plan = {"steps": 7200, "seconds_per_step": 0.5, "start_minutes": 30.0, "device": "cpu", "memory_mib": 9}
        return 0, json.dumps(plan).encode()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(TABLE)
    return path


def timed(table: Path, tmp_path: Path, **options: Any) -> dict[str, Any]:
    words = {"data_root": tmp_path / "data", "out": tmp_path / "out", **options}
    return reproduce(ReproduceConfig(table=str(table), time=True, **words)).to_json()


def test_hours_are_the_start_and_all_steps_at_the_timed_pace(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Commands(monkeypatch)

    found = timed(table, tmp_path, seeds=2)

    rows = {row["name"]: row for row in found["tables"][0]["rows"]}
    # 30 min + 7,200 x 0.5 s = 1.5 h
    assert [rows[name]["hours"] for name in ("first", "again", "other")] == pytest.approx([1.5] * 3)
    assert [row["hours_of_seeds"] for row in rows.values()] == pytest.approx([3.0] * 3)
    assert found["hours"] == pytest.approx(9)
    # the first two rows are one training, which is timed once
    assert [words[1] for words in commands.run] == ["softmax", "dl2pa"]
    assert all(words[-3:] == ["--dry-run", "--stand-ins", "--json"] for words in commands.run)
    assert not (tmp_path / "out").exists()


def test_what_is_made_up_and_what_is_not_timed_is_named(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = Commands(monkeypatch)

    first, _, other = timed(table, tmp_path)["tables"][0]["rows"]

    assert first["not_timed"] == {"embed": 1, "evaluate knn": 2}
    assert first["made_up"] == []
    assert other["made_up"] == ["cifar10", "{data_root}/vectors/cifar10.txt"]
    assert commands.read == [(10, 200)]
    assert main(["reproduce", str(table), "--time", "--data-root", str(tmp_path / "data")]) == 0
    assert "embed, 2 x evaluate knn" in capsys.readouterr().out


def test_a_training_that_cannot_be_planned_has_no_hours(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Commands(monkeypatch, refused="dl2pa")

    found = timed(table, tmp_path, seeds=1)

    assert [row["hours"] for row in found["tables"][0]["rows"]] == [1.5, 1.5, None]
    assert (found["hours"], found["rows_not_timed"]) == (3.0, 1)


@pytest.mark.parametrize("option", ["--smoke", "--dry-run"])
def test_time_is_a_thing_of_its_own(option: str, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", str(table), "--time", option]) == 2
    assert "--time goes without" in capsys.readouterr().err


@pytest.mark.slow
def test_a_row_is_timed_as_its_training_plans_itself(table: Path, tmp_path: Path) -> None:
    (row,) = timed(table, tmp_path, row=("other",), device="cpu")["tables"][0]["rows"]
    (training,) = row["trainings"]
    assert training["steps"] == 50_000 // 128
    assert row["hours"] == pytest.approx(
        training["start_minutes"] / 60 + training["steps"] * training["seconds_per_step"] / 3600
    )

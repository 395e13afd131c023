"""``labelkit reproduce --time``: time some steps of each training, and reckon the hours of the rows of a table."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from labelkit.config.reproduce import ReproduceConfig
from labelkit.data.made_up import made_up_dataset
from labelkit.data.miniature_sets import write_class_vectors
from labelkit.data.registry import DATASETS, load_dataset
from labelkit.stages.progress import current_progress
from labelkit.stages.reproduce.filling import complete_command, missing_of, needs_of
from labelkit.stages.reproduce.processes import Commands
from labelkit.stages.reproduce.tables import PublishedTable, Row
from labelkit.stages.result import Cell, SimpleResult, Table

_PLAN = ("--dry-run", "--stand-ins", "--json")
_CLASS_VECTORS = "--class-vectors"
#: What of a plan is kept.
_KEYS = ("steps", "seconds_per_step", "start_minutes", "device", "memory_mib")


@dataclass
class _Timer:
    """Times trainings, each once: rows of several tables share some.

    Attributes:
        config: of ``reproduce``.
        commands: runs them.
        folder: for files that are made up.
        missing: data that are not here, by name.
    """

    config: ReproduceConfig
    commands: Commands
    folder: Path
    missing: dict[str, str]

    def __post_init__(self) -> None:
        self._timed: dict[str, dict[str, Any]] = {}

    def row(self, table: PublishedTable, row: Row) -> dict[str, Any]:
        """Time the trainings of a row; the other commands are counted."""
        named = {name: name.format(data_root=self.config.data_root) for name in row.datasets}
        trainings, others = [], Counter[str]()
        for words in filter(None, row.commands):
            if words[0] != "train":
                others[" ".join(words[: 2 if words[0] == "evaluate" else 1])] += 1
                continue
            root, here = self.config.data_root, self.folder / "run"
            command = complete_command(self.config, table, words, named, root, here, 0)
            trainings.append(self._training(self._with_class_vectors(command)))
        known = [training["hours"] for training in trainings]
        hours = None if None in known else sum(known)
        return {
            "name": row.name,
            "made_up": sorted(needs_of(row) & self.missing.keys()),
            "trainings": trainings,
            "not_timed": dict(others),
            "hours": hours,
            "hours_of_seeds": None if hours is None else hours * self.config.seeds,
        }

    def _training(self, command: Sequence[str]) -> dict[str, Any]:
        text = shlex.join(command)
        if text not in self._timed:
            current_progress().message(f"labelkit {text} {' '.join(_PLAN)}")
            code, out = self.commands.run([*command, *_PLAN])
            plan = {} if code else json.loads(out)
            found: dict[str, Any] = {"command": f"labelkit {text}", **{key: plan.get(key) for key in _KEYS}}
            minutes = None if code else plan["start_minutes"] + plan["steps"] * plan["seconds_per_step"] / 60
            self._timed[text] = {**found, "exit_code": code, "hours": None if minutes is None else minutes / 60}
        return self._timed[text]

    def _with_class_vectors(self, command: list[str]) -> list[str]:
        """Put vectors that are made up in place of a file of word vectors that is not here."""
        given = dict(pairwise(command))
        if _CLASS_VECTORS not in given or Path(given[_CLASS_VECTORS]).exists():
            return command
        name = given["--dataset"]
        made_up = self.folder / f"{name}.txt"
        if not made_up.exists():
            absent = missing_of(name, self.config.data_root)
            dataset = made_up_dataset(DATASETS[name]) if absent else load_dataset(name, data_root=self.config.data_root)
            write_class_vectors(made_up, dataset.class_names)
        return [str(made_up) if before == _CLASS_VECTORS else word for before, word in pairwise(["", *command])]


def reckon_hours(config: ReproduceConfig, tables: Sequence[tuple[PublishedTable, Sequence[Row]]]) -> SimpleResult:
    """Time some steps of each training on the device at hand, and reckon what whole rows take.

    Hours are what comes before the first step, and all steps at the pace of four. What the steps do not show is not in
    them: evaluations, clusterings and passes over all images after the first step, and other commands.

    Args:
        config: of ``reproduce``.
        tables: with the rows that are wanted.
    """
    progress = current_progress()
    needs = {name for _, rows in tables for row in rows for name in needs_of(row)}
    missing = {name: fault for name in sorted(needs) if (fault := missing_of(name, config.data_root))}
    values, shown = [], []
    hours: list[float | None] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Commands(short=False) as commands,
        progress.task("rows", total=sum(len(rows) for _, rows in tables)) as task,
    ):
        timer = _Timer(config, commands, Path(folder), missing)
        for table, rows in tables:
            found = []
            for row in rows:
                found.append(timer.row(table, row))
                task.advance(1, table=table.name)
            values.append({"table": table.name, "source": table.source, "place": table.place, "rows": found})
            hours += [row["hours_of_seeds"] for row in found]
            shown.append(_shown(table, found, config.seeds))
    known = [number for number in hours if number is not None]
    return SimpleResult(
        {"tables": values, "seeds": config.seeds, "hours": sum(known), "rows_not_timed": len(hours) - len(known)},
        (),
        tuple(shown),
    )


def _shown(table: PublishedTable, rows: Sequence[dict[str, Any]], seeds: int) -> Table:
    lines: list[list[Cell]] = []
    for row in rows:
        trainings = row["trainings"]
        paces = [training["seconds_per_step"] for training in trainings if training["hours"] is not None]
        others = [f"{count} x {name}" if count > 1 else name for name, count in row["not_timed"].items()]
        failed = sum(training["hours"] is None for training in trainings)
        lines.append(
            [
                row["name"],
                ", ".join(sorted({training["device"] for training in trainings if training["device"]})) or None,
                sum(training["steps"] or 0 for training in trainings),
                ", ".join(f"{pace:.3g}" for pace in paces) or None,
                None if row["hours"] is None else round(row["hours"], 2),
                None if row["hours"] is None else round(row["hours_of_seeds"], 2),
                ", ".join(row["made_up"]) or None,
                ", ".join([*others, *([f"{failed} x train, refused"] if failed else [])]) or None,
            ]
        )
    title = f"{table.name}: hours of trainings, reckoned from four timed steps and what comes before the first"
    seeds_column = f"hours, {seeds} seeds" if seeds > 1 else "hours, 1 seed"
    columns = ["row", "device", "steps", "seconds a step", "hours a seed", seeds_column, "made up", "not timed"]
    return Table(title, columns, lines)

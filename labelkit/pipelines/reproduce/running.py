"""Run the rows of published tables, each command once, and show measured values next to published ones.

Each command of labelkit runs in a separate process.

A reproduced table is also written as Markdown, CSV and LaTeX, for use in a text.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from labelkit import __version__
from labelkit.commands.common.results import Cell, SimpleResult, Table
from labelkit.errors import DatasetError, LabelkitError, OutputExistsError, StoreError, resource_error
from labelkit.files import read_json
from labelkit.pipelines.own_code import check_method_code
from labelkit.pipelines.reproduce.options import ReproduceConfig
from labelkit.pipelines.reproduce.tables import (
    PublishedTable,
    Row,
    available_tables,
    complete_command,
    describe_missing_data,
    list_row_inputs,
    read_table,
    select_rows,
)
from labelkit.progress import current_progress
from labelkit.store.commit import commit_bytes
from labelkit.store.csv_table import csv_text

_END_SECONDS = 30


def run_command(words: Sequence[str]) -> tuple[int, bytes]:
    """Run a labelkit command in a subprocess and return its exit code and output.

    Args:
        words: words after ``labelkit``.

    Returns:
        The exit code, negative for a signal, and the standard output.
    """
    process = subprocess.Popen([sys.executable, "-m", "labelkit", *words], stdout=subprocess.PIPE)
    try:
        out, _ = process.communicate()
    except BaseException:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
        if process.stdout is not None:
            process.stdout.close()
        raise
    return process.returncode, out


_ESCAPED = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def render_tables(record: Mapping[str, Any]) -> dict[str, str]:
    """Render a reproduced table; return the contents of ``table.md``, ``table.csv`` and ``table.tex`` by file name.

    A line of the table is a row, and a column is a value: published, or measured as mean and deviation over seeds. A
    missing number is a dash, or empty in CSV. CSV has a line for each value, with all digits and the seeds.

    Args:
        record: content of ``table.json``.
    """
    names = list(dict.fromkeys(value["name"] for row in record["rows"] for value in row["values"]))
    published = [
        name for name in names if any(_found(row, name).get("published") is not None for row in record["rows"])
    ]
    return {
        "table.md": _markdown(record, names, published),
        "table.csv": _csv(record),
        "table.tex": _latex(record, names, published),
    }


def _found(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return next((value for value in row["values"] if value["name"] == name), {})


def _number(value: Mapping[str, Any], key: str) -> str:
    """Format a percentage with one decimal, any other number with four digits; empty if it is missing."""
    number = value.get(key)
    if number is None:
        return ""
    return f"{number:.4g}" if value.get("unit") == "number" else f"{number:.1f}"


def _cells(row: Mapping[str, Any], names: Sequence[str], published: Sequence[str]) -> list[str]:
    cells: list[str] = []
    for name in names:
        value = _found(row, name)
        cells += [_number(value, "published")] if name in published else []
        deviation = _number(value, "deviation")
        cells.append(_number(value, "mean") + (f" ± {deviation}" if deviation else ""))
    return cells


def _headings(names: Sequence[str], published: Sequence[str]) -> list[str]:
    return [heading for name in names for heading in ([f"{name}, published", name] if name in published else [name])]


def _caption(record: Mapping[str, Any]) -> str:
    seeds = record["seeds"]
    return (
        f"{record['source']}, {record['place']}: {record['title']} ({record['unit']}, {seeds} seed{'s' * (seeds > 1)})"
    )


def _markdown(record: Mapping[str, Any], names: Sequence[str], published: Sequence[str]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") or "-" for cell in cells) + " |"

    headings = ["", *_headings(names, published)]
    rows = [line([row["name"], *_cells(row, names, published)]) for row in record["rows"]]
    ruler = "|" + "|".join([" --- ", *(" ---: " for _ in headings[1:])]) + "|"
    head = "| " + " | ".join(headings) + " |"
    return "\n".join([f"{_caption(record)}", "", head, ruler, *rows, "", f"`{record['command']}`", ""])


def _latex(record: Mapping[str, Any], names: Sequence[str], published: Sequence[str]) -> str:
    def line(cells: Sequence[str]) -> str:
        return " & ".join(cell or "--" for cell in cells) + r" \\"

    headings = _headings(names, published)
    rows = [
        line([_escaped(row["name"]), *(cell.replace("±", r"$\pm$") for cell in _cells(row, names, published))])
        for row in record["rows"]
    ]
    return "\n".join(
        [
            f"% {record['command']}".replace("\n", " "),
            f"% {_caption(record)}".replace("\n", " "),
            rf"\begin{{tabular}}{{l{'r' * len(headings)}}}",
            r"\hline",
            " & ".join(["", *map(_escaped, headings)]) + r" \\",
            r"\hline",
            *rows,
            r"\hline",
            r"\end{tabular}",
            "",
        ]
    )


def _escaped(text: str) -> str:
    return "".join(_ESCAPED.get(sign, sign) for sign in text)


def _csv(record: Mapping[str, Any]) -> str:
    lines: list[list[object]] = []
    for row in record["rows"]:
        for value in row["values"]:
            seeds = " ".join(repr(one) for one in value["seeds"])
            numbers = [value["published"], value["mean"], value["deviation"]]
            told = ("" if one is None else one for one in numbers)
            lines.append([row["name"], value["name"], *told, seeds, row["state"]])
    return csv_text(["row", "value", "published", "mean", "deviation", "seeds", "state"], lines)


RESULT = "table.json"
_MAX_RECORD = 1 << 24


@dataclass
class _Outcome:
    """Outcome of a row.

    Attributes:
        state: ``done``, ``planned``, ``no data`` or ``failed``.
        reason: why it is not done.
        measured: the values of each seed.
    """

    state: str
    reason: str = ""
    measured: list[dict[str, float]] = field(default_factory=list)


def reproduce(config: ReproduceConfig) -> SimpleResult:
    """Run the unfinished commands of published tables, and compare measured with published values.

    Raises:
        ConfigError: no such table or row, or a folder that other commands wrote.
        DatasetError: no row has its data.
    """
    names = list(available_tables()) if config.all else [str(config.table)]
    tables = [(table, select_rows(table, config.row)) for table in map(read_table, names)]
    progress = current_progress()
    needs = {name for _, rows in tables for row in rows for name in list_row_inputs(row)}
    missing = {name: fault for name in sorted(needs) if (fault := describe_missing_data(name, config.data_root))}
    runnable = [row for _, rows in tables for row in rows if not missing.keys() & list_row_inputs(row)]
    if missing and not runnable and not config.dry_run:
        first = next(iter(missing.values()))
        problem = f"data are missing for all rows, for example: {first}"
        raise DatasetError("reproduce", problem, "Use --dry-run to see what is missing.")
    for fault in missing.values():
        progress.warning(f"rows skipped: {fault}")
    shown, values = [], []
    faults: list[LabelkitError] = []
    with progress.task("rows", total=sum(len(rows) for _, rows in tables)) as task:
        for table, rows in tables:
            folder = config.out / table.name
            outcomes = []
            for row in rows:
                absent = next((missing[name] for name in sorted(list_row_inputs(row)) if name in missing), "")
                outcome = _Outcome("no data", absent)
                if config.dry_run or not absent:
                    outcome = _run_row(config, table, row, folder, faults)
                outcomes.append(replace(outcome, state="no data", reason=absent) if absent else outcome)
                task.advance(1, table=table.name)
            record = _record(config, table, rows, outcomes)
            values.append(record)
            shown.append(_shown(record))
            if not config.dry_run:
                commit_bytes(folder / RESULT, (json.dumps(record, indent=1) + "\n").encode())
                for name, text in render_tables(record).items():
                    commit_bytes(folder / name, text.encode())
    states = [row["state"] for record in values for row in record["rows"]]
    counts = {state: states.count(state) for state in sorted(set(states))}
    made = () if config.dry_run else tuple(config.out / table.name / RESULT for table, _ in tables)
    failed: LabelkitError | None = None
    if faults:
        failed = type(faults[0])(
            "reproduce",
            f"{len(faults)} of {len(states)} rows failed, first: {faults[0]}",
            "Fix it, and run the same command again.",
        )
    return SimpleResult({"tables": values, "rows": counts}, made, tuple(shown), fault=failed)


def _run_row(
    config: ReproduceConfig,
    table: PublishedTable,
    row: Row,
    folder: Path,
    faults: list[LabelkitError],
) -> _Outcome:
    progress = current_progress()
    root = config.data_root
    named = {name: name.format(data_root=root) for name in row.datasets}
    outcome = _Outcome("planned" if config.dry_run else "done")
    for seed in range(config.seeds):
        here = folder / _file_name(row.name) / f"seed-{seed}"
        outputs: list[dict[str, Any]] = []
        try:
            for number, given in enumerate(row.commands, 1):
                if not given:
                    outputs.append({})
                    continue
                command = complete_command(config, given, named, root, here, seed)
                words = command
                if config.num_workers is not None and command[0] in ("train", "embed"):
                    # it does not affect numbers, so it is not recorded
                    words = [*command, *([] if "--num-workers" in command else ["--num-workers", ""])]
                    words[words.index("--num-workers") + 1] = str(config.num_workers)
                if config.dry_run:
                    progress.message(f"{table.name}, {row.name}: labelkit {shlex.join(words)}")
                else:
                    outputs.append(_run(command, words, here, number))
            if not config.dry_run:
                outcome.measured.append(table.extract_values(outputs))
        except LabelkitError as error:
            progress.warning(f"{table.name}, {row.name}: {error}")
            faults.append(error)
            return _Outcome("failed", str(error), outcome.measured)
    return outcome


def _run(command: list[str], words: list[str], here: Path, number: int) -> dict[str, Any]:
    """Run a command in the form of ``words`` and store its JSON; one that ran before is not run again.

    Raises:
        OutputExistsError: the folder contains the output of another command.
        LabelkitError: the command failed.
    """
    record = here / f"step-{number}.json"
    if record.exists():
        try:
            found = read_json(record, _MAX_RECORD)
        except (OSError, ValueError) as error:
            remedy = "Delete this file; `labelkit reproduce` then repeats the step that wrote it."
            raise StoreError(str(record), f"cannot be read: {error}", remedy) from error
        if not isinstance(found, dict) or found.get("command") != command:
            raise OutputExistsError(str(here), "contains the output of another command", "Choose another --out.")
        _check_code(command, here, number)
        return dict(found["output"])
    try:
        here.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise resource_error(error, str(here)) from error
    _check_code(command, here, number)
    begun = command[0] == "train" and (Path(command[command.index("--out") + 1]) / "config.yaml").exists()
    words = [*words, "--resume"] if begun else words
    current_progress().message(f"labelkit {shlex.join(words)}")
    code, out = run_command([*words, "--json"])
    if code:
        problem = f"ended with exit code {code}"
        raise StoreError(f"labelkit {shlex.join(words)}", problem, "See the error message above.")
    output = json.loads(out)
    commit_bytes(record, (json.dumps({"command": command, "output": output}, indent=1) + "\n").encode())
    return dict(output)


def _check_code(command: list[str], here: Path, number: int) -> None:
    if command[0] == "train":
        check_method_code(here / f"step-{number}.code.json", command[1], "Choose another --out.")


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-.")


def _numbers(table: PublishedTable, row: Row, outcome: _Outcome) -> list[dict[str, Any]]:
    """Return the published and the measured numbers of each value of a row.

    A row without published numbers, such as a point of a curve, has only measured ones.
    """
    numbers = []
    for name in row.published or table.values:
        published = row.published.get(name)
        found = [values[name] for values in outcome.measured]
        mean = statistics.mean(found) if found else None
        numbers.append(
            {
                "name": name,
                "unit": table.units.get(name, table.unit),
                "published": published,
                "mean": mean,
                "deviation": statistics.stdev(found) if len(found) > 1 else None,
                "difference": None if mean is None or published is None else mean - published,
                "seeds": found,
            }
        )
    return numbers


def _with_changes(rows: Sequence[Row], numbers: Sequence[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """Add, to each value of a row that is compared with another row, the mean difference between them, seed by seed."""
    by_name = {row.name: {value["name"]: value for value in found} for row, found in zip(rows, numbers, strict=True)}
    made = []
    for row, found in zip(rows, numbers, strict=True):
        if row.against is None:
            made.append(found)
            continue
        before = by_name.get(row.against, {})
        changed = []
        for value in found:
            pairs = list(zip(value["seeds"], before.get(value["name"], {}).get("seeds", []), strict=False))
            differences = [after - start for after, start in pairs]
            changed.append(
                value
                | {
                    "against": row.against,
                    "change": statistics.mean(differences) if differences else None,
                    "change_deviation": statistics.stdev(differences) if len(differences) > 1 else None,
                }
            )
        made.append(changed)
    return made


def _record(
    config: ReproduceConfig, table: PublishedTable, rows: Sequence[Row], outcomes: Sequence[_Outcome]
) -> dict[str, Any]:
    numbers = [_numbers(table, row, outcome) for row, outcome in zip(rows, outcomes, strict=True)]
    return {
        "table": table.name,
        "source": table.source,
        "place": table.place,
        "title": table.title,
        "note": table.note,
        "command": _call(config),
        "versions": {"labelkit": __version__, "torch": version("torch")},
        "machine": {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()},
        "unit": table.unit,
        "seeds": config.seeds,
        "rows": [
            {
                "name": row.name,
                "state": outcome.state,
                "reason": outcome.reason,
                "values": values,
            }
            for row, outcome, values in zip(rows, outcomes, _with_changes(rows, numbers), strict=True)
        ],
    }


def _call(config: ReproduceConfig) -> str:
    """Return the command line that ran the rows, with the options that affect their numbers."""
    which = ["--all"] if config.all else [str(config.table)]
    rows = [word for name in config.row or () for word in ("--row", name)]
    how = ["--seeds", str(config.seeds), "--data-root", str(config.data_root)]
    return shlex.join(["labelkit", "reproduce", *which, *rows, *how])


def _shown(record: dict[str, Any]) -> Table:
    columns = {"published": "published", "mean": "measured", "deviation": "deviation", "difference": "difference"}
    if any("change" in value for row in record["rows"] for value in row["values"]):
        columns = {
            "mean": "measured",
            "deviation": "deviation",
            "change": "change",
            "change_deviation": "its deviation",
        }
    lines: list[list[Cell]] = [
        [row["name"], value["name"], *(value.get(key) for key in columns), row["state"]]
        for row in record["rows"]
        for value in row["values"]
    ]
    title = f"{record['table']}: {record['source']}, {record['place']}: {record['title']} ({record['unit']})"
    title += f". {record['note']}" if record["note"] else ""
    return Table(title, ["row", "value", *columns.values(), "state"], lines)

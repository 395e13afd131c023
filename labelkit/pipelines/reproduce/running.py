"""Run the commands for a published table, each in a separate process, and compare measured with published values.

Finished commands are not repeated. A reproduced table is also written as Markdown, CSV and LaTeX.
"""

import functools
import itertools
import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from labelkit import __version__
from labelkit.commands.common.results import Cell, CommandResult, Table
from labelkit.errors import DatasetError, LabelkitError, OutputExistsError, StoreError
from labelkit.files import read_json_object
from labelkit.pipelines.own_code import check_code_digest
from labelkit.pipelines.reproduce.options import ReproduceConfig
from labelkit.pipelines.reproduce.tables import (
    PublishedTable,
    TableRow,
    complete_command,
    compute_input_digest,
    describe_missing_data,
    find_data_root,
    list_inputs,
    list_row_inputs,
    read_table,
    select_rows,
)
from labelkit.progress import current_progress
from labelkit.store.commit import commit_bytes, translate_os_errors
from labelkit.store.csv_table import csv_text


def run_command(words: Sequence[str]) -> tuple[int, bytes]:
    """Run a labelkit command in a subprocess, and return its exit code (negative for a signal) and its output."""
    with subprocess.Popen([sys.executable, "-m", "labelkit", *words], stdout=subprocess.PIPE) as process:
        try:
            out, _ = process.communicate()
        except BaseException:
            process.terminate()
            process.wait()  # a second signal interrupts this
            raise
    return process.returncode, out


_ESCAPED = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
}


# deviation that belongs to a number
_SPREADS = {"mean": "deviation", "change": "change_deviation"}


def render_tables(record: Mapping[str, Any]) -> dict[str, str]:
    """Render a reproduced table; return the contents of ``table.md``, ``table.csv`` and ``table.tex`` by file name.

    Columns contain published values, or the mean and standard deviation over seeds of the measured values and of their
    change relative to another row. A missing number is a dash, or empty in CSV. The CSV has one line per value, with
    all digits and the value of each seed.
    """
    columns: dict[tuple[str, str], str] = {}
    for name in dict.fromkeys(value["name"] for row in record["rows"] for value in row["values"]):
        if any(_format_measured(row, name).get("published") is not None for row in record["rows"]):
            columns[name, "published"] = f"{name}, published"
        columns[name, "mean"] = name
        if any("change" in _format_measured(row, name) for row in record["rows"]):
            columns[name, "change"] = f"{name}, change"
    lines = [["", *columns.values()]]
    for row in record["rows"]:
        cells = [_number(_format_measured(row, name), key) for name, key in columns]
        spreads = [_number(_format_measured(row, name), _SPREADS.get(key, "")) for name, key in columns]
        shown = (f"{cell} ± {spread}" if spread else cell for cell, spread in zip(cells, spreads, strict=True))
        lines.append([row["name"], *shown])
    counts = {len(value["seeds"]) for row in record["rows"] for value in row["values"]} - {0} or {record["seeds"]}
    seeds = " to ".join(map(str, sorted({min(counts), max(counts)}))) + " seed" + "s" * (max(counts) > 1)
    caption = f"{record['source']}, {record['place']}: {record['title']} ({record['unit']}, {seeds})"
    return {
        "table.md": _markdown(lines, caption, record["command"]),
        "table.csv": _csv(record),
        "table.tex": _latex(lines, caption, record["command"]),
    }


def _format_measured(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return next((value for value in row["values"] if value["name"] == name), {})


def _number(value: Mapping[str, Any], key: str) -> str:
    """Format a percentage with one decimal place, and any other number with four digits; empty if missing."""
    number = value.get(key)
    if number is None:
        return ""
    return f"{number:.4g}" if value.get("unit") == "number" else f"{number:.1f}"


def _markdown(lines: list[list[str]], caption: str, command: str) -> str:
    head = "| " + " | ".join(lines[0]) + " |"
    ruler = "|" + "|".join([" --- ", *(" ---: " for _ in lines[0][1:])]) + "|"
    rows = ("| " + " | ".join(cell.replace("|", "\\|") or "-" for cell in line) + " |" for line in lines[1:])
    return "\n".join([caption, "", head, ruler, *rows, "", f"`{command}`", ""])


def _latex(lines: list[list[str]], caption: str, command: str) -> str:
    escaped = [["".join(_ESCAPED.get(sign, sign) for sign in cell) for cell in line] for line in lines]
    head = " & ".join(escaped[0])
    rows = (" & ".join(cell or "--" for cell in line) for line in escaped[1:])
    comments = (f"% {text}".replace("\n", " ") for text in (command, caption))
    begin, end = rf"\begin{{tabular}}{{l{'r' * (len(lines[0]) - 1)}}}", r"\end{tabular}"
    body = [rf"{head} \\", r"\hline", *(rf"{row} \\" for row in rows)]
    return "\n".join([*comments, begin, r"\hline", *body, r"\hline", end, ""])


def _csv(record: Mapping[str, Any]) -> str:
    keys = ("published", "mean", "deviation", "change", "change_deviation")
    lines: list[list[object]] = []
    for row in record["rows"]:
        for value in row["values"]:
            seeds = " ".join(repr(one) for one in value["seeds"])
            numbers = ("" if value.get(key) is None else value[key] for key in keys)
            lines.append([row["name"], value["name"], *numbers, seeds, row["state"]])
    return csv_text(["row", "value", *keys, "seeds", "state"], lines)


RESULT = "table.json"
# state of a row, the reason, and the values for each seed
_Outcome = tuple[str, str, list[dict[str, float]]]
_MAX_RECORD = 1 << 24


def reproduce(config: ReproduceConfig) -> CommandResult:
    """Run the unfinished commands for a published table, and compare measured with published values.

    Raises:
        ConfigError: the table or row does not exist.
        DatasetError: the data for all rows are missing.
    """
    table = read_table(config.table)
    rows, folder = select_rows(table, config.row), config.out / table.name
    progress = current_progress()
    needs = {need for row in rows for need in list_row_inputs(row, config.data_root)}
    missing = {need: fault for need in sorted(needs) if (fault := describe_missing_data(*need))}
    runnable = [row for row in rows if not missing.keys() & list_row_inputs(row, config.data_root)]
    if missing and not runnable and not config.dry_run:
        first = next(iter(missing.values()))
        problem = f"the data for all rows are missing, for example: {first}"
        raise DatasetError("reproduce", problem, "Pass --dry-run to see what is missing.")
    for reason in missing.values():
        progress.warning(f"rows skipped: {reason}")
    digest = functools.cache(_digest_or_warn)  # each input is read once
    faults: list[LabelkitError] = []
    outcomes: dict[str, _Outcome] = {}
    for row in table.rows if not config.dry_run else rows:
        # finished runs stay in the written table, whatever rows and seeds are selected
        measured, error = ([], None) if config.dry_run else _run_row(config, table, row, folder, digest, seeds=0)
        if row in rows:
            outcomes[row.name] = ("planned", "", measured)
        elif measured or error:
            outcomes[row.name] = ("failed" if error else "done", str(error or ""), measured)
            if error:
                progress.warning(f"{table.name}, {row.name}: {error}")
    with progress.task("rows", total=len(rows)) as task:
        for row in rows:
            needs = list_row_inputs(row, config.data_root)
            absent = next((missing[need] for need in sorted(needs) if need in missing), "")
            measured, error = outcomes[row.name][2], None
            if config.dry_run or not absent:
                measured, error = _run_row(config, table, row, folder, digest, config.seeds)
            if error is not None:
                progress.warning(f"{table.name}, {row.name}: {error}")
                faults.append(error)
            state = "no data" if absent else "failed" if error else "planned" if config.dry_run else "done"
            outcomes[row.name] = (state, absent or str(error or ""), measured)
            task.advance(1, table=table.name)
            if not config.dry_run:
                record = _record(config, table, list(outcomes), outcomes)
                commit_bytes(folder / RESULT, (json.dumps(record, indent=1) + "\n").encode())
                for name, text in render_tables(record).items():
                    commit_bytes(folder / name, text.encode())
    record = _record(config, table, [row.name for row in rows], outcomes)
    states = [row["state"] for row in record["rows"]]
    counts = {state: states.count(state) for state in sorted(set(states))}
    made = () if config.dry_run else (folder / RESULT,)
    failed: LabelkitError | None = None
    if faults:
        failed = type(faults[0])(
            "reproduce",
            f"{len(faults)} of {len(states)} rows failed; first error: {faults[0]}",
            "Fix the problem, and run the same command again.",
        )
    return CommandResult({"tables": [record], "rows": counts}, made, (_build_tables(record),), fault=failed)


def _run_row(
    config: ReproduceConfig,
    table: PublishedTable,
    row: TableRow,
    folder: Path,
    digest: Callable[[str, Path, bool], str | None],
    seeds: int,
) -> tuple[list[dict[str, float]], LabelkitError | None]:
    """Run the commands for a row with some seeds; also read the next seeds if they are finished.

    Returns:
        The values for each seed, and the error that stopped the row, if any.
    """
    measured: list[dict[str, float]] = []
    for seed in itertools.count():
        seed_folder = folder / re.sub(r"[^\w.-]+", "-", row.name).strip("-.") / f"seed-{seed}"
        steps = [seed_folder / f"step-{number}.json" for number, given in enumerate(row.commands, 1) if given]
        if seed >= seeds and (config.dry_run or not steps or not all(step.exists() for step in steps)):
            break
        outputs: list[dict[str, Any]] = []
        try:
            for number, given in enumerate(row.commands, 1):
                if not given:
                    outputs.append({})
                    continue
                command = complete_command(config, given, seed_folder, seed)
                if config.dry_run:
                    current_progress().message(f"{table.name}, {row.name}: labelkit {shlex.join(command)}")
                else:
                    data = {
                        name: digest(name, find_data_root(command, config.data_root), is_dataset)
                        for name, is_dataset in list_inputs(command, seed_folder).items()
                    }
                    outputs.append(_run_once(command, seed_folder, number, data))
            if not config.dry_run:
                measured.append(table.extract_values(outputs))
        except LabelkitError as error:
            return measured, error
    return measured, None


def _digest_or_warn(name: str, root: Path, is_dataset: bool) -> str | None:
    try:
        return compute_input_digest(name, root, is_dataset)
    except (DatasetError, OSError) as error:
        current_progress().warning(f"finished runs cannot be compared with their data: {error}")
        return None


def _run_once(command: list[str], folder: Path, number: int, data: Mapping[str, str | None]) -> dict[str, Any]:
    """Run a command and save its JSON output, or return the saved output if it has already run.

    Args:
        command: words after ``labelkit``.
        folder: folder of the row and seed.
        number: number of the command in the row.
        data: digests of the command's inputs; ``None`` if unknown.

    Raises:
        OutputExistsError: the folder contains the output of another command, of other data or of other code.
        LabelkitError: the command failed.
    """
    record = folder / f"step-{number}.json"
    remedy = f"Delete {folder.parent} to run this row again, or pass a different --out."
    is_done = record.exists()
    if is_done:
        try:
            found = read_json_object(record, {"command": list, "data": dict, "output": dict}, limit=_MAX_RECORD)
        except (OSError, ValueError) as error:
            repeat = "Delete this file; `labelkit reproduce` will then repeat the step that wrote it."
            raise StoreError(str(record), f"cannot be read: {error}", repeat) from error
        if (differing := _describe_difference(found["command"], command)) is not None:
            problem = f"contains the output of another command ({differing})"
            raise OutputExistsError(str(folder), problem, f"{remedy} To keep both, rename the row.")
        if changed := [name for name, now in data.items() if now and (found["data"].get(name) or now) != now]:
            problem = f"contains numbers from other data: {', '.join(changed)} has changed since"
            raise OutputExistsError(str(folder), problem, remedy)
    with translate_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if command[0] == "train":
        check_code_digest(folder / f"step-{number}.code.json", command[1], remedy)
    if is_done:
        return dict(found["output"])
    begun = command[0] == "train" and (Path(command[command.index("--out") + 1]) / "config.yaml").exists()
    words = [*command, "--resume"] if begun else command
    current_progress().message(f"labelkit {shlex.join(words)}")
    code, out = run_command([*words, "--json"])
    if code:
        problem = f"failed with exit code {code}"
        raise StoreError(f"labelkit {shlex.join(words)}", problem, "See the error message above.")
    output = json.loads(out)
    commit_bytes(record, (json.dumps({"command": command, "data": data, "output": output}, indent=1) + "\n").encode())
    return dict(output)


def _describe_difference(then: Sequence[object], now: Sequence[str]) -> str | None:
    """Describe the first difference between two commands other than the device; ``None`` if there is none."""
    pairs = list(itertools.zip_longest(map(str, then), now, fillvalue=""))
    for at, (old, new) in enumerate(pairs):
        option = pairs[at - 1][1] if at else ""
        if old != new and option != "--device":
            option = f"{option} " if option.startswith("--") else ""
            return f"was `{option}{old}`, is `{option}{new}`"
    return None


def _pair_values(
    table: PublishedTable, row: TableRow, measured: Sequence[Mapping[str, float]], before: Sequence[Mapping[str, float]]
) -> list[dict[str, Any]]:
    """Return the published and measured numbers for each value of a row.

    Args:
        table: the table.
        row: one of its rows.
        measured: measured values for each seed.
        before: measured values of the row to compare with; differences are computed seed by seed.
    """
    values = []
    for name in table.values:
        published, found = row.published.get(name), [one[name] for one in measured]
        mean = statistics.mean(found) if found else None
        value = {
            "name": name,
            "unit": table.units.get(name, table.unit),
            "published": published,
            "mean": mean,
            "deviation": statistics.stdev(found) if len(found) > 1 else None,
            "difference": None if mean is None or published is None else mean - published,
            "seeds": found,
        }
        if row.against is not None:
            differences = [after - start[name] for after, start in zip(found, before, strict=False)]
            value["against"] = row.against
            value["change"] = statistics.mean(differences) if differences else None
            value["change_deviation"] = statistics.stdev(differences) if len(differences) > 1 else None
        values.append(value)
    return values


def _record(
    config: ReproduceConfig, table: PublishedTable, names: Sequence[str], outcomes: Mapping[str, _Outcome]
) -> dict[str, Any]:
    rows = [row for row in table.rows if row.name in names]
    seeds = max([config.seeds, *(len(measured) for _, _, measured in outcomes.values())])
    return {
        "table": table.name,
        **table.model_dump(include={"source", "place", "title", "note", "unit"}),
        "command": _command_line(config, [] if len(rows) == len(table.lines) else names, seeds),
        "versions": {"labelkit": __version__, "torch": version("torch")},
        "machine": {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()},
        "seeds": seeds,
        "rows": [
            {
                "name": row.name,
                "state": state,
                "reason": reason,
                "values": _pair_values(table, row, measured, outcomes.get(row.against or "", ("", "", []))[2]),
            }
            for row in rows
            for state, reason, measured in [outcomes[row.name]]
        ],
    }


def _command_line(config: ReproduceConfig, names: Sequence[str], seeds: int) -> str:
    """Return the command line for these rows, by default all, with the options that affect the results."""
    rows = [word for name in names for word in ("--row", name)]
    how = ["--seeds", str(seeds), "--data-root", str(config.data_root)]
    return shlex.join(["labelkit", "reproduce", config.table, *rows, *how])


def _build_tables(record: dict[str, Any]) -> Table:
    values = [value for row in record["rows"] for value in row["values"]]
    columns = {"mean": "measured", "deviation": "deviation"}
    if any(value["published"] is not None for value in values):
        columns = {"published": "published", **columns, "difference": "difference"}
    if any("change" in value for value in values):
        columns |= {"change": "change", "change_deviation": "its deviation"}
    lines: list[list[Cell]] = [
        [row["name"], value["name"], *(value.get(key) for key in columns), row["state"]]
        for row in record["rows"]
        for value in row["values"]
    ]
    title = f"{record['table']}: {record['source']}, {record['place']}: {record['title']} ({record['unit']})"
    title += f". {record['note']}" if record["note"] else ""
    return Table(title, ["row", "value", *columns.values(), "state"], lines)

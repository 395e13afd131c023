"""The page that takes what was measured at millions of rows to more rows and more machines."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from generate.markdown import Page, page, table

SOURCE = Path("examples/results")
SIZES = (100_000_000, 1_000_000_000)
MACHINES = (1, 10, 100)
_WORDS = """Hours, memory, disk and network, reckoned from the runs on [several processes](processes.md). Nothing on
this page was run but what is measured there, on one machine.

- **Time** is that of one process with one thread at the largest size measured, times the ratio of rows to the measured
  exponent (1 at least: below it, the start still counted). Of several machines each does a share s of the work again,
  and they share the rest; s is 2 r - 1, where r is the processor time of the busier one of two processes over that of
  one. A machine counts as one such process; with more cores, search takes less than what stands here.
- **Memory** of each process grows from the smallest to the largest size measured, and goes on so. Each holds the ids
  and digests of all rows: this is the limit, before time is.
- **Disk** is the store, as large for a row as the largest that was measured, on a place that all machines read.
- **Network** is what a process sends: of a search the hits of its queries; of answers 57 bytes a row. Reading the store
  is not in it."""


def growth_page(root: Path) -> Page:
    """Make the page from the results of ``examples/processes_growth.py``.

    Args:
        root: the source tree.
    """
    records = [json.loads(file.read_text()) for file in sorted((root / SOURCE).glob("processes_*.json"))]
    row_bytes = max(entry["store_bytes"] / entry["rows"] for record in records for entry in _large(record["rows"]))
    parts = []
    for record in records:
        for command in dict.fromkeys(entry["command"] for entry in record["rows"] if entry["processes"] == 2):
            parts += [f"## {_title(command, record['options'])}", f"By `{record['command']}`."]
            parts += [_table(record, command, row_bytes)]
    return Page("results/growth.md", "Growth on paper", page("# Growth on paper", _WORDS, "", *parts))


def _large(entries: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Runs that say how large their store was, which is told of those with a million rows or more."""
    return [entry for entry in entries if "store_bytes" in entry and entry["rows"] >= 1_000_000]


def _title(command: str, options: Mapping[str, str]) -> str:
    told = {
        "retrieve": f"{int(options['queries']):,} queries",
        "answer": f"{int(options.get('together', 0)):,} rows together",
    }
    return f"{command}, {told[command]}"


def _table(record: Mapping[str, Any], command: str, row_bytes: float) -> str:
    """A row for each size and number of machines; the first is measured."""
    options = record["options"]
    ours = [entry for entry in record["rows"] if entry["command"] == command]
    alone = [entry for entry in ours if entry["processes"] == 1]
    most = alone[-1]
    several = [entry for entry in ours if entry["processes"] == 2]
    alike = max(0.0, 2 * several[-1]["cpu_ratio"] - 1)
    exponent = next(e["time"] for e in record["exponents"] if e["command"] == command and e["processes"] == 1)
    sent: dict[str, Callable[[int], float]] = {
        "retrieve": lambda rows: 12 * 10 * int(options["queries"]),
        "answer": lambda rows: 57 * rows,
    }
    of_network = sent[command]

    def memory(rows: int, runs: list[Mapping[str, Any]]) -> float:
        first, last = (max(run["peak_bytes"]) for run in (runs[0], runs[-1]))
        return float(first + (last - first) * rows / runs[-1]["rows"])

    cells = [[f"{most['rows']:,}, measured", "1", _time(most["seconds"]), _size(max(most["peak_bytes"]))]]
    cells[0] += [_size(row_bytes * most["rows"]), ""]
    for rows in SIZES:
        for machines in MACHINES:
            whole = most["seconds"] * (rows / most["rows"]) ** max(1.0, exponent)
            seconds = whole * (alike + (1 - alike) / machines)
            network = _size(of_network(rows) / machines) if machines > 1 else ""
            held = memory(rows, alone if machines == 1 else several)
            cells.append([f"{rows:,}", str(machines), _time(seconds), _size(held), _size(row_bytes * rows), network])
    headings = ["Machines", "Time", "Memory of each", "Disk", "Network of each"]
    return table(["Rows", *headings], cells, right=headings)


def _time(seconds: float) -> str:
    return f"{seconds / 3600:,.1f} h" if seconds >= 3600 else f"{seconds / 60:,.1f} min"


def _size(size: float) -> str:
    for unit, number in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if size >= number:
            return f"{size / number:,.1f} {unit}"
    return f"{size / 1024:,.0f} KiB"

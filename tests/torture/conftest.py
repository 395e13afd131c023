"""Count what every row tries, and print the counts as one table."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torture_tally import Tally


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Iterator[Tally]:
    """Counts of one test; it fails when one of its attempts did."""
    counts = Tally()
    row = request.module.ROW
    request.node.user_properties.append(("torture row", row))
    began = time.monotonic()
    yield counts
    found = {"attempts": counts.attempts, "failures": len(counts.faults), "seconds": time.monotonic() - began}
    request.node.user_properties.append(("torture", found))
    request.node.user_properties.append(("torture notes", counts.notes))
    if counts.faults:
        shown = "\n".join(counts.faults[:10])
        pytest.fail(f"{len(counts.faults)} of {counts.attempts} attempts failed:\n{shown}", pytrace=False)


@pytest.fixture(scope="session", autouse=True)
def cache_apart(own_cache: Path) -> None:
    """Every test here keeps away from the user's cache."""


_counted: dict[str, list[float]] = {}
_notes: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    found: dict[str, Any] = dict(report.user_properties)
    if "torture row" not in found:
        return
    counts = _counted.setdefault(found["torture row"], [0, 0, 0])
    if report.when == "call" and report.failed:
        counts[1] += 1  # it ended before it could count
    if report.when == "teardown" and "torture" in found:
        for i, name in enumerate(("attempts", "failures", "seconds")):
            counts[i] += found["torture"][name]
        _notes.extend(found["torture notes"])


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if not config.getoption("--torture"):
        return
    terminalreporter.write_sep("=", "what was tried to break it")
    terminalreporter.write_line(f"{'row':<76}  attempts  failures  seconds")
    rows = dict(sorted(_counted.items()))
    rows["total"] = [sum(counts[i] for counts in rows.values()) for i in range(3)]
    for row, (attempts, failures, seconds) in rows.items():
        terminalreporter.write_line(f"{row:<76}  {attempts:>8,.0f}  {failures:>8,.0f}  {seconds:>7,.0f}")
    for note in sorted(_notes):
        terminalreporter.write_line(note)

"""Resume of every method: stopped anywhere, with any number of workers, it ends like a run that was never stopped.

The runs are those of ``examples/resume_table.py``; here, a sample in this process, and all of it among the slow tests.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from labelkit.cli.main import main
from labelkit.methods.registry import METHODS

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "examples" / "results" / "resume.json"


def _script() -> Any:
    spec = importlib.util.spec_from_file_location("resume_table", ROOT / "examples" / "resume_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["resume_table"] = module  # where its data classes look for their module
    spec.loader.exec_module(module)
    return module


TABLE = _script()


class InProcess(TABLE.Bench):  # type: ignore[misc] # a module loaded by its path
    """Runs of one process, in this one."""

    def train(self, out: Path, *more: object, processes: int = 1, **options: Any) -> list[int]:
        assert processes == 1
        assert not options
        return [main([str(word) for word in (*self.words, "--out", out, *more)])]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = TABLE.write_digits(tmp_path_factory.mktemp("resume") / "digits")
    return folder


# one of each family; the cut lies behind what only this family does
@pytest.mark.parametrize(
    ("method", "cut"),
    [
        ("flipclass", "inside epoch 1"),
        ("cotap", "end of epoch 1"),
        ("tac-ccl", "end of epoch 2"),  # between two clusterings
        ("snowball", "inside epoch 3"),  # in the second generation of labels
        ("sela", "inside epoch 2"),  # between two label passes
        ("dl2pa", "end of epoch 1"),  # before classes move
    ],
)
def test_a_stopped_run_ends_like_a_whole_one(
    tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch, method: str, cut: str
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # no test can see what it does
    bench = InProcess(method, images, tmp_path)
    ends = TABLE.borders(bench.whole(1)[0])
    assert bench.cut(dict(TABLE.cuts(ends))[cut], (0, 0), (1, 1)) == ""


def test_the_table_has_every_method() -> None:
    assert TABLE.METHODS.keys() == METHODS.keys()


def test_a_difference_is_found_and_measured(tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    first = InProcess("supervised", images, tmp_path)
    whole = first.whole(1)[1]
    name, (data, kind, shape) = next((name, value) for name, value in whole.arrays.items() if value[1] == "float32")
    other = TABLE.Outcome({**whole.arrays, name: (bytes(len(data)), kind, shape)}, {**whole.texts, "metrics.jsonl": []})
    found = TABLE.difference(whole, other)
    assert found.startswith(f"1 of {len(whole.arrays)} tensors, by up to ")
    assert found.endswith("; metrics.jsonl differs")


def test_the_recorded_table_is_of_all_methods_and_nothing_differs_without_a_reason() -> None:
    rows = json.loads(RECORD.read_text())["rows"]
    assert {row["method"] for row in rows} == METHODS.keys()
    assert [row for row in rows if row["result"] != "equal" and "reason" not in row] == []
    cuts = {(row["method"], row["processes"]) for row in rows}
    assert cuts == {(method, processes) for method in METHODS for processes in ("1", "2", "2 against 1")}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("method", METHODS)
def test_a_method_cut_or_killed_anywhere_ends_like_a_whole_run(tmp_path: Path, images: Path, method: str) -> None:
    rows = list(TABLE.Bench(method, images, tmp_path).rows((1, 2)))
    assert [row for row in rows if row["result"] != "equal" and "reason" not in row] == []

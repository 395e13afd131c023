"""Resume of every method: stopped anywhere, with any number of workers, it ends like a run that was never stopped.

The runs are those of ``tests/resume_table.py``; here, a sample in this process, and all of it among the slow tests.
"""

import json
from pathlib import Path

import pytest
from labelkit.methods.registry import METHODS
from tests.resume_table import Bench, borders, cuts, write_digits

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "examples" / "results" / "resume.json"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_digits(tmp_path_factory.mktemp("resume") / "digits")


def test_nothing_in_the_recorded_table_differs_without_a_reason() -> None:
    rows = json.loads(RECORD.read_text())["rows"]
    assert [row for row in rows if row["result"] != "equal" and "reason" not in row] == []
    methods = {row["method"] for row in rows}
    assert methods <= METHODS.keys()
    cuts = {(row["method"], row["processes"]) for row in rows}
    assert cuts == {(method, processes) for method in methods for processes in ("1", "2", "2 against 1")}


@pytest.mark.slow
def test_the_recorded_table_has_every_method() -> None:
    rows = json.loads(RECORD.read_text())["rows"]
    assert {row["method"] for row in rows} == METHODS.keys(), "see tests/resume_table.py"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("method", METHODS)
def test_a_method_cut_or_killed_anywhere_ends_like_a_whole_run(tmp_path: Path, images: Path, method: str) -> None:
    rows = list(Bench(method, images, tmp_path).rows((1, 2)))
    assert [row for row in rows if row["result"] != "equal" and "reason" not in row] == []


# what a variant alone remembers between steps: queue, memory, other students, networks that join or start anew
VARIANTS = (
    ("siamese", "--loss simclr"),
    ("siamese", "--loss barlow-twins"),
    ("siamese", "--loss moco --queue-size 40"),
    ("siamese", "--loss simsiam"),
    ("dl2pa", "--prototypes hpn"),
    ("san", "--mode supervised"),
    ("san", "--memory-loss contrastive-bayesian"),
    ("sela", "--refresh one"),
    ("simgcd", "--views weak-strong"),
    ("snowball", "--trainer mixmatch --labeled-batch-size 8"),
)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("method", "options"), VARIANTS, ids=[" ".join(variant) for variant in VARIANTS])
def test_a_variant_cut_or_killed_ends_like_a_whole_run(tmp_path: Path, images: Path, method: str, options: str) -> None:
    bench = Bench(method, images, tmp_path, options)
    ends = borders(bench.whole(1)[0])
    inside = dict(cuts(ends))[f"inside epoch {len(ends)}"]
    assert bench.cut(inside, (0, 0), (1, 1)) == ""
    assert bench.kill(lines=ends[0] + 2) == ""

"""``labelkit show curves``: names, patterns, several runs, and what can go wrong."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def run(tmp_path: Path, trained: Path) -> Path:
    """A copy of a run with a log of two epochs of three steps, the second step of each logged."""
    folder = tmp_path / "first"
    shutil.copytree(trained, folder)
    lines: list[dict[str, Any]] = [
        {"epoch": 0, "step": 2, "kind": "step", "loss": 5.0, "lr": 0.1, "diag/block1/update_rel": 0.2},
        {"epoch": 0, "step": 3, "loss": 4.0, "all_accuracy": 0.25},
        {"epoch": 1, "step": 5, "kind": "step", "loss": None, "lr": 0.1, "diag/block1/update_rel": 0.3},
        {"epoch": 1, "step": 6, "loss": 2.0, "all_accuracy": 0.5},
        {"epoch": 2, "step": 9, "kind": "step", "loss": 1.0, "lr": 0.1, "diag/block1/update_rel": 0.1},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def curves(labelkit: Any, runs: str | Path, tmp_path: Path, *options: str) -> Any:
    answer = labelkit("show", "curves", "--run", runs, "--out", tmp_path / "c.png", "--overwrite", "--json", *options)
    assert answer.code == 0, answer.err
    return answer.json["curves"]


def test_runs_are_laid_over_each_other_and_what_one_lacks_is_said(labelkit: Any, run: Path, tmp_path: Path) -> None:
    other = tmp_path / "deep" / "first"
    shutil.copytree(run, other)
    (other / "metrics.jsonl").write_text('{"epoch":0,"step":3,"loss":1.0}\n{"epoch":1,"st')
    command = ("show", "curves", "--run", f"{run},{other}", "--metrics", "all_accuracy,loss", "--over", "epoch")

    answer = labelkit(*command, "--out", tmp_path / "c.png")
    again = labelkit(*command, "--out", tmp_path / "d.png", "-q")

    assert (answer.code, again.out) == (0, f"{tmp_path / 'd.png'}\n")
    assert f"all_accuracy was not logged by {other}" in answer.err
    assert str(other) in answer.out  # two folders of one name go by their paths
    assert (tmp_path / "c.png").read_bytes() == (tmp_path / "d.png").read_bytes()


def test_a_log_that_was_cut_in_a_line_is_drawn_up_to_it(labelkit: Any, run: Path, tmp_path: Path) -> None:
    path = run / "metrics.jsonl"
    path.write_text(path.read_text()[:-20])
    assert curves(labelkit, run, tmp_path, "--metrics", "lr")[0]["steps"] == [2, 5]


BAD = {
    "name": (
        ("--metrics", "loss,al_accuracy,x*"),
        2,
        "{run} did not log al_accuracy or x* (it logged: all_accuracy, diag/block1/update_rel, loss, lr). "
        "Did you mean all_accuracy?",
    ),
    "no names": (("--metrics", ""), 2, "--metrics: no metrics were specified"),
    "no such run": (("--run", "{tmp}/none"), 3, "{tmp}/none: does not exist"),
    "no run": (("--run", "{tmp}"), 3, "{tmp}: is not a run folder"),
    "picture exists": (("--out", "{run}/config.yaml"), 2, "{run}/config.yaml belongs to a training run"),
}


@pytest.mark.parametrize(("options", "code", "told"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_told_and_nothing_is_written(
    labelkit: Any, run: Path, tmp_path: Path, options: tuple[str, ...], code: int, told: str
) -> None:
    def fill(text: str) -> str:
        return text.replace("{tmp}", str(tmp_path)).replace("{run}", str(run))

    words = [fill(word) for word in options]
    for name, value in (("--run", run), ("--out", tmp_path / "a.png")):
        if name not in words:
            words += [name, str(value)]

    answer = labelkit("show", "curves", *words)

    assert (answer.code, answer.out) == (code, ""), answer.err
    assert fill(told) in answer.err
    assert [path.name for path in tmp_path.iterdir()] == ["first"]


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("", "has no log yet"),
        ('{"epoch":0,"step":1,"loss":1}\nnot json\n', "metrics.jsonl:2: is not a valid line of a training log"),
        ('{"epoch":0,"loss":1}\n', "metrics.jsonl:1: is not a valid line of a training log"),
        ("[1]\n", "metrics.jsonl:1: is not a valid line of a training log"),
    ],
)
def test_a_log_that_cannot_be_used_is_told(labelkit: Any, run: Path, tmp_path: Path, log: str, told: str) -> None:
    (run / "metrics.jsonl").write_text(log)
    answer = labelkit("show", "curves", "--run", run, "--out", tmp_path / "c.png")
    assert answer.code == 3
    assert told in answer.err

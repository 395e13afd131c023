"""Training from a few labels through the command line: bad input, a kill in generation 2, processes, the pilot."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from labelkit.cli.main import main
from tests.tiers import quick_every

QUICK = [
    *("--steps", "6", "--later-steps", "3", "--batch-size", "16", "--labeled-batch-size", "6", "--balance", "global"),
    *("--eval-every-steps", "6", "--threads", "1", "--device", "cpu", "--log-every-steps", "1"),
]
SHORT = [*QUICK, "--max-per-class", "30", "--num-labels", "20", "--cap", "4", "--generations", "2"]


def write_csv(path: Path, photos: Path, labels: dict[str, int | None]) -> Path:
    """Write a table of the photos with so many labels of each class, ``None`` = all."""
    lines = ["path,label"]
    for folder in sorted(photos.iterdir()):
        for number, image in enumerate(sorted(folder.iterdir())):
            count = labels.get(folder.name, 0)
            shown = folder.name if count is None or number < count else ""
            lines.append(f"{image},{shown}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--num-labels", "5"], 2, "5 labels for 10 classes"),
        (["--num-labels", "5000"], 2, "labeled images per class are asked for"),
        (["--num-labels", "none"], 2, "is needed for --label-split few-labels"),
        (["--labeled-batch-size", "64"], 2, "leaves no place for others"),
        (["--trainer", "mixmatch"], 2, "must be half of batch_size 64"),
        (["--max-steps", "10"], 2, "max_steps 10 is less than the first phase"),
        (["--cap", "0.5"], 2, "must be >= 1"),
        (["--consistency-weight", "nan"], 2, "finite"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_be_grown_from_is_said_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], code: int, message: str
) -> None:
    assert main(["train", "snowball", "--device", "cpu", "--out", str(tmp_path / "run"), *options]) == code
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("mixmatch", ["--labeled-batch-size", "20"], "must be half of batch_size 64"),
        ("lmcs", ["--labeled-batch-size", "20"], "must be half of batch_size 64"),
        ("snowball", ["--dropout", "0.5"], "wrn10_1 has no dropout"),
        ("mixmatch", ["--lr-schedule", "ramps"], "lr_schedule ramps is of supervised"),
        ("freematch", ["--ema-ramp", "linear"], "No such option"),  # one decay from start to end
    ],
)
def test_options_that_cannot_act_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str, options: list[str], message: str
) -> None:
    assert main(["train", method, "--device", "cpu", "--out", str(tmp_path / "run"), *options]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
@pytest.mark.parametrize("by_file", quick_every(2, [False, True]))
def test_a_run_of_when_there_was_an_option_that_never_acted_goes_on(tmp_path: Path, by_file: bool) -> None:
    run = tmp_path / "run"
    size = ["--steps", "4", "--batch-size", "16", "--labeled-batch-size", "6", "--max-per-class", "20"]
    words = ["train", "freematch", *size, "--device", "cpu", "--out", str(run), "-q"]
    assert main([*words, "--stop-after-steps", "2"]) == 0
    with (run / "config.yaml").open("a") as file:
        file.write("ema_decay_start: 0.9\nema_ramp: step\n")
    assert main([*words, "--resume", *(["--config", str(run / "config.yaml")] if by_file else [])]) == 0
    assert "ema_ramp" not in (run / "config.yaml").read_text()


@pytest.mark.slow
def test_a_run_of_when_a_constant_was_an_option_goes_on_with_that_value_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    size = ["--steps", "4", "--batch-size", "16", "--labeled-batch-size", "6", "--max-per-class", "20"]
    words = ["train", "mean-teacher", *size, "--device", "cpu", "--out", str(run), "-q"]
    assert main([*words, "--stop-after-steps", "2"]) == 0
    written = (run / "config.yaml").read_text()
    resume = [*words, "--resume", "--config", str(run / "config.yaml")]
    (run / "config.yaml").write_text(written + "ema_ramp: linear\n")
    assert main(resume) == 2
    assert "ema_ramp: no option any more, it is always step (value linear)" in " ".join(capsys.readouterr().err.split())
    (run / "config.yaml").write_text(written + "ema_ramp: step\nsync_bn: true\n")
    assert main(resume) == 0
    assert "sync_bn" not in (run / "config.yaml").read_text()


@pytest.mark.parametrize("method", ["supervised", "mean-teacher", "snowball"])
@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        ({"ant": 3}, [], "has one class"),
        ({}, [], "no image has a label"),
        ({"ant": 2, "bee": 3}, ["--num-classes", "3"], "no image has a label of class"),
    ],
    ids=["one class", "no label", "a class without"],
)
def test_labels_that_cannot_be_learned_from_are_refused(
    tmp_path: Path,
    photos: Path,
    capsys: pytest.CaptureFixture[str],
    method: str,
    labels: dict[str, int | None],
    options: list[str],
    message: str,
) -> None:
    table = write_csv(tmp_path / "few.csv", photos, labels)
    small = ["--dataset", str(table), "--preset", "digits", "--holdout", "none", "--num-labels", "none", *options]
    assert main(["train", method, *small, "--device", "cpu", "--out", str(tmp_path / "run")]) == 3
    assert message in " ".join(capsys.readouterr().err.split())


def test_labels_that_are_not_balanced_are_grown_as_they_are(tmp_path: Path, photos: Path) -> None:
    table = write_csv(tmp_path / "few.csv", photos, {"ant": 1, "bee": 4})
    quick = ["balanced" if word == "global" else word for word in QUICK]
    options = [*quick, "--num-labels", "none", "--holdout", "none", "--cap", "2"]
    out = tmp_path / "run"
    data = ["--dataset", str(table), "--preset", "digits", "--out", str(out)]
    assert main(["train", "snowball", *options, *data]) == 0
    found = list(csv.DictReader((out / "discovered.csv").read_text().splitlines()))
    counts = {name: sum(line["label"] == name for line in found) for name in ("ant", "bee")}
    assert counts == {"ant": 1, "bee": 4}  # the share of each class is that of its labels


@pytest.mark.slow
def test_the_network_of_a_run_embeds(tmp_path: Path) -> None:
    out, store = tmp_path / "run", tmp_path / "digits.h5"
    few = ["--max-per-class", "30", "--cap", "2"]
    assert main(["train", "snowball", *QUICK, *few, "--out", str(out)]) == 0
    embed = ["embed", "--checkpoint", str(out), "--dataset", "digits", "--max-per-class", "3", "--out", str(store)]
    assert main([*embed, "--device", "cpu"]) == 0


def _labelkit(*words: str, processes: int = 1) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*launcher, "-m", "labelkit", *words], capture_output=True, text=True, check=False, env=environment
    )


def _lines(run: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("seconds", None)
    return lines


@pytest.mark.slow
def test_a_run_killed_in_generation_2_ends_with_the_same_table_and_metrics(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert _labelkit("train", "snowball", *SHORT, "--out", str(whole)).returncode == 0
    # 6 + 2 x 3 steps of generation 1
    stopped = _labelkit("train", "snowball", *SHORT, "--stop-after-steps", "14", "--out", str(cut))
    assert stopped.returncode == 0, stopped.stderr
    (cut / "discovered.csv").write_text("what a kill left behind\n")
    assert _labelkit("train", "snowball", *SHORT, "--resume", "--out", str(cut)).returncode == 0
    assert (cut / "discovered.csv").read_bytes() == (whole / "discovered.csv").read_bytes()
    assert _lines(cut) == _lines(whole)


@pytest.mark.slow
def test_two_processes_discover_what_one_does(tmp_path: Path) -> None:
    """Scores differ in their last bits, since sums over the images of a batch are taken in another order."""
    tables = []
    for processes in (1, 2):
        out = tmp_path / str(processes)
        done = _labelkit("train", "snowball", *SHORT, "--out", str(out), processes=processes)
        assert done.returncode == 0, done.stderr
        tables.append(list(csv.DictReader((out / "discovered.csv").read_text().splitlines())))
    exact = [[{key: line[key] for key in line if key != "score"} for line in table] for table in tables]
    assert exact[0] == exact[1]
    scores = [[float(line["score"]) for line in table] for table in tables]
    assert np.allclose(*scores, rtol=1e-3)
    losses = [[line["loss"] for line in _lines(tmp_path / name) if line.get("kind") == "step"] for name in "12"]
    assert np.allclose(*losses, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_growth_beats_plain_training_on_ten_labels(tmp_path: Path) -> None:
    """Arms A and C of the specification's pilot: 400 steps each, mean over 4 seeds."""
    errors = {}
    for method, options in (("mean-teacher", ("--steps", "400")), ("snowball", ())):
        found = []
        for seed in "0123":
            out = tmp_path / f"{method}{seed}"
            draw = ("--num-labels", "10", "--label-seed", seed, "--seed", seed)
            assert main(["train", method, *draw, *options, "--device", "cpu", "--out", str(out)]) == 0
            summary = json.loads((out / "summary.json").read_text())
            assert summary["steps"] == 400
            found.append(1 - summary["metrics"]["accuracy"])
        errors[method] = np.mean(found)
    assert errors["snowball"] < errors["mean-teacher"]

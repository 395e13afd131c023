"""Training from a few labels through the command line: bad input, a kill in generation 2, processes, the pilot."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from labelkit.cli.main import main

QUICK = [
    *("--steps", "6", "--later-steps", "3", "--batch-size", "16", "--labeled-batch-size", "6", "--balance", "global"),
    *("--eval-every-steps", "6", "--threads", "1", "--device", "cpu", "--log-every-steps", "1"),
]


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
    ("method", "options", "message"),
    [
        ("snowball", ["--labeled-batch-size", "64"], "must be less than batch_size"),
        ("snowball", ["--trainer", "mixmatch"], "must be half of batch_size"),
        ("snowball", ["--max-steps", "10"], "the first phase's steps"),
        ("snowball", ["--consistency-weight", "nan"], "finite"),
        ("snowball", ["--dropout", "0.5"], "wrn10_1 has no dropout"),
        ("mixmatch", ["--labeled-batch-size", "20"], "must be half of batch_size"),
        ("lmcs", ["--labeled-batch-size", "20"], "must be half of batch_size"),
        ("mixmatch", ["--lr-schedule", "ramps"], "lr_schedule ramps is only for supervised"),
        ("freematch", ["--ema-ramp", "linear"], "No such option"),  # one decay from start to end
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_be_grown_from_is_said_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str, options: list[str], message: str
) -> None:
    assert main(["train", method, "--device", "cpu", "--out", str(tmp_path / "run"), *options]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_a_class_without_a_label_is_refused(tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = write_csv(tmp_path / "few.csv", photos, {"ant": 2, "bee": 3})
    small = ["--dataset", str(table), "--preset", "digits", "--holdout", "none", "--num-labels", "none"]
    assert main(["train", "snowball", *small, "--num-classes", "3", "--out", str(tmp_path / "run")]) == 3
    assert "no image is labeled as class" in capsys.readouterr().err


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

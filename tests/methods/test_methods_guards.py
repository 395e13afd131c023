"""Trainings that go wrong through the command line: the exit code, the message, and what is left."""

from pathlib import Path

import pytest
from labelkit.cli.main import main
from labelkit.data.registry import load_dataset
from PIL import Image


def test_labels_of_one_class_end_training_before_it_begins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digits = load_dataset("digits", data_root=tmp_path)
    lines = ["path,label"]
    for row in range(40):
        pixels = digits.source.read(row).decode(1)[:, :, 0]
        Image.fromarray(pixels).save(tmp_path / f"{row}.png")
        lines.append(f"{row}.png,{'zero' if digits.labels[row] == 0 else ''}")
    (tmp_path / "some.csv").write_text("\n".join(lines) + "\n")
    words = ["--dataset", str(tmp_path / "some.csv"), "--preset", "digits", "--holdout", "none", "--num-classes", "3"]
    out = ["--batch-size", "2", "--device", "cpu", "--out", str(tmp_path / "run")]
    assert main(["train", "softmax", *words, *out]) == 3
    assert "all labels belong to the same class" in capsys.readouterr().err

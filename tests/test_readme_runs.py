"""Every command line of the README is run, from the first to the last, on what the lines before it left."""

from __future__ import annotations

import csv
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from labelkit.cli.main import main
from PIL import Image
from sklearn.datasets import load_digits
from tests.readme import code_blocks, command_lines

LINES = [line for block in code_blocks("bash") for line in command_lines(block)]
# Weights from the hub need a network. Trainings from them are left out, and only looked at (test_examples.py).
NEEDS_NETWORK = "--pretrained"
LEFT_OUT = [line for line in LINES if line[0] == "train" and NEEDS_NETWORK in line]
OUTPUTS = ("--out", "--sheet", "--map", "--plot", "--csv")
STEPS = ("--steps", "4", "--eval-every-steps", "4")
# What makes a training short, without its length being what is shown.
SHORT = {
    "cotap": (*STEPS, "--lr-warmup-steps", "1", "--batch-size", "16"),
    "dl2pa": ("--epochs", "1"),
    "flipclass": ("--epochs", "1"),
    "freematch": STEPS,
    "lmcs": (
        "--steps",
        "12",
        "--eval-every-steps",
        "3",
        "--first-blocks",
        "1",
        "--generation-blocks",
        "1",
        "--master-steps",
        "2",
    ),
    "mean-teacher": STEPS,
    "mixmatch": STEPS,
    "san": ("--epochs", "1"),
    "sela": ("--epochs", "2", "--num-optimizations", "2", "--lr-drop-epochs", "1"),
    "simgcd": ("--epochs", "1"),
    "snowball": ("--steps", "4", "--later-steps", "4", "--eval-every-steps", "4"),
    "softmax": ("--epochs", "1"),
    "supervised": STEPS,
    "tac-ccl": ("--epochs", "1"),
}


def shortened(line: list[str]) -> list[str]:
    """The same command line with less work: a short training, few images, a small budget."""
    if line[0] == "train":
        options = SHORT[line[1]]
        kept = list(line)
        for name in options[::2]:
            if name in kept:
                del kept[kept.index(name) : kept.index(name) + 2]
        return [*kept, *options]
    if line[0] == "embed":
        return ["--random-weights" if word == NEEDS_NETWORK else word for word in line]
    if line[0] == "compare":
        small = {"1m": "3s", "3": "1", "examples/results/digits.json": "digits.json"}
        return [*(small.get(word, word) for word in line), "--methods", "sela,softmax"]
    if line[:2] == ["evaluate", "tracking"]:
        return [*line, "--max-images", "1"]
    if line[0] == "evaluate" and "scenes" in line:
        return [*line, "--max-images", "16"]
    return line


def write_digits(folder: Path, name: Callable[[int], str], numbers: range, per_class: int) -> None:
    """Write digits as PNG, each class in a folder of its own; after ten classes the digits come again."""
    bundle = load_digits()
    for number in numbers:
        (folder / name(number)).mkdir(parents=True)
        digit, turn = number % 10, number // 10
        for place, row in enumerate(np.flatnonzero(bundle.target == digit)[turn * per_class :][:per_class]):
            pixels = (bundle.images[row] * 255 / 16).round().astype(np.uint8)
            picture = Image.fromarray(pixels).resize((32, 32), Image.Resampling.BICUBIC)
            picture.save(folder / name(number) / f"{place:04d}.png")


def write_table(path: Path, header: list[str], rows: list[list[object]]) -> None:
    """Write a CSV."""
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def run(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Run a command line here, and show what it said if it failed."""
    code = main(line)
    said = capsys.readouterr()
    assert code == 0, f"labelkit {shlex.join(line)}\n{said.out}\n{said.err}"
    assert said.out.strip(), line


def fill_in(path: Path) -> None:
    """Do what a person does between two lines: give every suggested image its class, which is its folder."""
    with path.open(newline="") as file:
        header, *rows = list(csv.reader(file))
    place = header.index("label")
    write_table(path, header, [[*row[:place], row[0].split("/")[0], *row[place + 1 :]] for row in rows])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """The folder of a user: photos, lists, and stores of which the README says "yours"."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LABELKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    write_digits(Path("photos"), str, range(10), 12)
    # classes that are held out by their names, and others
    alphabets = ("Korean", "Latin", *["Greek"] * 18)
    write_digits(Path("omniglot"), lambda number: f"{alphabets[number]}_{number}", range(20), 12)
    labels = [[f"photos/{n}/{p:04d}.png", n if n < 5 and p < 6 else ""] for n in range(10) for p in range(12)]
    write_table(Path("labels.csv"), ["path", "label"], labels)
    digits = load_digits().target
    few = [[f"digits/{row:04d}.png", n] for n in range(10) for row in np.flatnonzero(digits == n)[:2]]
    write_table(Path("few.csv"), ["path", "label"], few)
    np.save("x.npy", np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32))
    write_table(Path("ids.csv"), ["path", "label"], [[f"{row}.png", row % 4] for row in range(200)])
    pixels = ["--backbone", "pixels", "--image-size", "8", "-q"]
    run(["embed", "--dataset", "photos/", "--label-split", "none", *pixels, "--out", "photos.h5"], capsys)
    run(["embed", "--dataset", "photos/", *pixels, "--max-per-class", "8", "--out", "old.h5"], capsys)
    run(["embed", "--dataset", "photos/", *pixels, "--out", "new.h5"], capsys)
    run(["cluster", "k-means", "--index", "old.h5", "--num-clusters", "8", "-q"], capsys)
    run(["train", "simgcd", *SHORT["simgcd"], "-q"], capsys)
    return tmp_path


def make_room(line: list[str]) -> None:
    """Take away what an earlier section made under the same name; each section starts anew."""
    names = [line[place + 1] for place, word in enumerate(line) if word in OUTPUTS]
    if line[0] == "train" and "--out" not in line:
        names.append(f"runs/{line[1]}-digits")
    for name in names:
        for path in (Path(name), Path(f"{name}.results"), Path(f"{name}.patches")):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_command_line_runs_after_those_before_it(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line in LINES:
        if line in LEFT_OUT:
            continue
        make_room(line)
        if line[0] == "label":
            fill_in(Path(line[line.index("--from") + 1]))
        if "--reuse" in line:
            make_room(["--out", "old.h5"])
            run(["embed", "--dataset", "photos/", "--checkpoint", "runs/photos", "--out", "old.h5"], capsys)
        run(shortened(line), capsys)


def test_few_command_lines_are_left_out() -> None:
    assert len(LINES) > 70
    assert len(LEFT_OUT) == 2

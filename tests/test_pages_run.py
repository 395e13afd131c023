"""Every command line of README and docs is run, page by page, from the first to the last, on what those before it left.

A page starts from nothing, or from the files of the page that it names ("Before this page"). What a page calls the
user's own (photos, rows of another program) is made here.
"""

import csv
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from labelkit.cli.main import main
from PIL import Image
from sklearn.datasets import load_digits
from tests.pages import PAGES, ROOT, command_lines, page_before

LINES = {page: lines for page in PAGES if (lines := command_lines(page))}
# Weights from the hub need a network. Trainings from them are left out, and only looked at (test_examples.py).
NEEDS_NETWORK = "--pretrained"
LEFT_OUT = [line for lines in LINES.values() for line in lines if line[1] == "train" and NEEDS_NETWORK in line]
STEPS = ("--steps", "4", "--eval-every-steps", "4")
# What makes a training short, without its length being what is shown.
LMCS = "--steps 12 --eval-every-steps 3 --first-blocks 1 --generation-blocks 1 --master-steps 2"
SHORT = {
    **dict.fromkeys(("dl2pa", "flipclass", "gcd", "san", "siamese", "simgcd", "softmax", "tac-ccl"), ("--epochs", "1")),
    **dict.fromkeys(("freematch", "mean-teacher", "mixmatch", "supervised"), STEPS),
    **dict.fromkeys(("cotap", "dino", "ibot"), (*STEPS, "--lr-warmup-steps", "1", "--batch-size", "16")),
    "lmcs": tuple(LMCS.split()),
    "sela": ("--epochs", "2", "--num-optimizations", "2", "--lr-drop-epochs", "1"),
    "snowball": (*STEPS, "--later-steps", "4"),
}


def shortened_options(line: list[str]) -> list[str]:
    """The same command line with less work: a short training, few images, a small budget."""
    if line[0] == "train":
        options = SHORT[line[1]]
        kept = list(line)
        for name in options[::2]:
            if name in kept:
                del kept[kept.index(name) : kept.index(name) + 2]
        return [*kept, *options]
    if line[0] == "embed" and NEEDS_NETWORK in line:
        return ["--random-weights" if word == NEEDS_NETWORK else word for word in line]
    if line[0] == "compare":
        small = {"1m": "3s", "3": "1", "examples/results/digits.json": "digits.json"}
        return [*(small.get(word, word) for word in line), "--methods", "sela,softmax"]
    if line[:2] == ["evaluate", "tracking"]:
        return [*line, "--max-images", "1"]
    if line[:2] == ["evaluate", "segmentation"]:
        return [*line, "--max-images", "16", "--samples", "64"]
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


def write_photos() -> None:
    """The photos of which the README says "yours"."""
    write_digits(Path("photos"), str, range(10), 3)
    Path("examples").symlink_to(ROOT / "examples")


def write_omniglot() -> None:
    """Classes that are held out by their names, and others."""
    alphabets = ("Korean", "Latin", *["Greek"] * 18)
    write_digits(Path("omniglot"), lambda number: f"{alphabets[number]}_{number}", range(20), 12)


def write_rows() -> None:
    """Rows of another program, with names and labels."""
    np.save("x.npy", np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32))
    write_table(Path("ids.csv"), ["path", "label"], [[f"{row}.png", row % 4] for row in range(200)])


# What a page takes to be there already.
GIVEN = {
    "README.md": write_photos,
    "docs/index.md": write_photos,
    "docs/guides/exchange.md": write_rows,
    "docs/guides/metric-learning.md": write_omniglot,
}


def run(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Run a command line here, and show what it said if it failed."""
    if line[:1] == ["python"]:
        program = [sys.executable, str(ROOT / line[1]), *line[2:]]
        subprocess.run([*program, "--per-class", "12"], check=True, timeout=120)
        return
    assert line[0] == "labelkit", line
    words = line[1:]
    if words[0] == "label":
        fill_in(Path(words[words.index("--from") + 1]))
    code = main(shortened_options(words))
    said = capsys.readouterr()
    assert code == 0, f"{shlex.join(line)}\n{said.out}\n{said.err}"
    assert said.out.strip(), line


def fill_in(path: Path) -> None:
    """Do what a person does between two lines: give every suggested image its class, which is its folder."""
    with path.open(newline="") as file:
        header, *rows = list(csv.reader(file))
    place = header.index("label")
    write_table(path, header, [[*row[:place], row[0].split("/")[0], *row[place + 1 :]] for row in rows])


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder that each page left, for pages that go on with it."""
    return {"": tmp_path_factory.mktemp("pages")}


@pytest.fixture
def follow(
    places: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[[str], Path]]:
    """Return what runs a page, after the page before it, and gives the folder it leaves."""
    monkeypatch.setenv("LABELKIT_CACHE", str(places[""] / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    start = Path.cwd()

    def follow(page: str) -> Path:
        if page in places:
            return places[page]
        folder = places[""] / page.replace("/", "-").removesuffix(".md")
        before = page_before(page)
        if before is None:
            folder.mkdir()
        else:
            shutil.copytree(follow(before), folder)
        os.chdir(folder)
        if page in GIVEN:
            GIVEN[page]()
        for line in LINES[page]:
            if line not in LEFT_OUT:
                run(line, capsys)
        places[page] = folder
        return folder

    yield follow
    os.chdir(start)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", LINES)
def test_every_command_line_of_a_page_runs_after_those_before_it(page: str, follow: Callable[[str], Path]) -> None:
    follow(page)


def test_a_page_goes_on_with_a_page_that_has_command_lines() -> None:
    before = [page_before(page) for page in PAGES]

    assert "docs/tutorial.md" in before
    assert {page for page in before if page} <= LINES.keys()


def test_few_command_lines_are_left_out() -> None:
    assert sum(map(len, LINES.values())) > 90
    assert len(LEFT_OUT) == 1


def test_a_line_in_a_block_of_bash_is_a_command_or_a_script_of_ours() -> None:
    for page, lines in LINES.items():
        for line in lines:
            assert line[0] in ("labelkit", "python"), (page, line)
            assert line[0] == "labelkit" or (ROOT / line[1]).is_file(), (page, line)

"""Outputs over inputs, damaged JSON, pipes in place of files, names too long: told, and every file stays as it was."""

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from labelkit.commands.table import all_commands
from labelkit.options.base import read_field_extra, to_flag
from torture_processes import Worker
from torture_samples import write_photos
from torture_tally import FULL_SECONDS, Tally, sized, tree

ROW = "i  outputs over inputs, damaged JSON, pipes and long names in every command"

COMMANDS = all_commands()
# what each command needs beside the output
NEEDS = {
    "embed": ("--dataset", "photos", "--backbone", "pixels", "--image-size", "8"),
    "import": ("--source", "x.npy"),
    "export": ("--index", "s.h5", "--what", "labels"),
    "predict": ("photos/ant/00.png", "--from", "s.h5"),
    "prototypes": ("--num-classes", "3", "--embed-dim", "2"),
    "compare": ("--dataset", "photos", "--methods", "supervised", "--budget", "1s"),
    "retrieve": ("--index", "s.h5", "--query-rows", "0"),
    "label": ("--index", "s.h5", "--from", "labels.csv"),
    "evaluate classification": ("--index", "s.h5"),
    "evaluate segmentation": ("--dataset", "scenes", "--backbone", "vit_nano_p8_32", "--random-weights"),
    "evaluate detection": ("--dataset", "scenes", "--backbone", "vit_nano_p8_32", "--random-weights"),
    "evaluate patch-clusters": ("--dataset", "scenes", "--backbone", "vit_nano_p8_32", "--random-weights"),
    "evaluate tracking": ("--dataset", "scenes", "--backbone", "vit_nano_p8_32", "--random-weights"),
    "show curves": ("--run", "run"),
}
OUTPUTS = [
    (words, name)
    for words, command in COMMANDS.items()
    for name, field in command.load_config_class().model_fields.items()
    if read_field_extra(field, "makes") not in (None, "folder")
]
TARGETS = ("s.h5", "link.h5", "hard", "s.h5.results/k-means.h5", "s.h5.results/new.h5", "labels.csv", "photo.png")
TARGETS += ("photos", "pipe", "notes.md", "run/config.yaml", "dangling", "x.npy", "n" * 300, "/".join(["d" * 200] * 25))


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with Worker(tmp_path_factory.mktemp("empty")) as running:
        yield running


@pytest.fixture(scope="module")
def place(worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a result, a run, photos, and what else must stay."""
    root = tmp_path_factory.mktemp("place")
    write_photos(root / "photos", ("ant", "bee"), each=6)
    shutil.copy(root / "photos" / "ant" / "00.png", root / "photo.png")
    np.save(root / "x.npy", np.random.default_rng(0).normal(size=(4, 3)))
    (root / "notes.md").write_text("# Notes, mine\n")
    (root / "labels.csv").write_text("path,label\nant/00.png,ant\nbee/00.png,bee\n")
    os.mkfifo(root / "pipe")
    (root / "dangling").symlink_to(root / "nowhere")
    train = ("train", "supervised", "--dataset", "photos", "--num-labels", "4", "--steps", "2", "--batch-size", "4")
    train += ("--lr-schedule", "constant", "--out", "run", "--device", "cpu", "--threads", "1")
    for words in (
        ("embed", "--dataset", "photos", "--backbone", "pixels", "--image-size", "8", "--out", "s.h5"),
        ("cluster", "k-means", "--index", "s.h5", "--num-clusters", "2"),
        train,
    ):
        code, _ = worker.run(list(words), root)
        assert code == 0, (root / "log").read_text()
    (root / "link.h5").symlink_to("s.h5")
    os.link(root / "s.h5", root / "hard")
    return root


def _kept(root: Path) -> dict[str, bytes]:
    return {name: data for name, data in tree(root).items() if Path(name).name not in ("log", ".lock", "lock")}


@pytest.mark.slow
@sized(sample=3, full=10_000)
def test_no_output_takes_the_place_of_something_else(worker: Worker, place: Path, tally: Tally, count: int) -> None:
    before = _kept(place)
    tries = [(words, name, target) for words, name in OUTPUTS for target in TARGETS]
    random.Random(0).shuffle(tries)
    for words, name, target in tries[:count]:
        needs = NEEDS.get(" ".join(words), ("--index", "s.h5"))
        if target == "labels.csv" and words not in (("label",),) and name in ("csv", "confusion", "out"):
            continue  # a table over a table, unless it is read
        with tally.attempt(f"{' '.join(words)} {to_flag(name)} {target[:40]}"):
            stores = {("embed",), ("import",)}
            if words in stores and target in ("s.h5", "link.h5", "hard"):
                tally.attempts -= 1
                continue  # a store over a store that is not read
            code, _ = worker.run([*words, *needs, to_flag(name), target, "--overwrite", "-q"], place)
            log = (place / "log").read_text()
            assert code in (2, 3), f"{code} {log[-300:]}"
            assert "Traceback" not in log
            assert _kept(place) == before


DAMAGES: tuple[bytes | None, ...] = (
    *(b"[" * 100_000, b'{"a":' * 60_000, b"", b"{}", b"[]", b"null", b"\xff\xfe", b'{"checkpoint": 1e999}\n', None),
    *(b'{"checkpoint":"../../x","state_sha256":""}', b"1e999", b'{"split":{},"info":{}}', b'"' + b"x" * 100_000),
)
READERS: tuple[tuple[str, ...], ...] = (
    ("embed", "--dataset", "photos", "--checkpoint", "run", "--out", "new.h5", "--dry-run"),
    ("status", "--run", "run"),
    ("verify", "--index", "run"),
    ("show", "curves", "--run", "run", "--out", "new.png", "--overwrite"),
    ("status", "--index", "u.h5"),
)
FILES = ("run/checkpoints/last.json", "run/split.json", "run/metrics.jsonl")
FILES += ("run/summary.json", "run/config.yaml", "run/environment.json", "u.h5.run/plan.json", "u.h5.run/columns.json")


@pytest.mark.torture
@pytest.mark.timeout(FULL_SECONDS)
def test_damaged_json_and_pipes_are_told(worker: Worker, place: Path, tmp_path: Path, tally: Tally) -> None:
    tries: list[tuple[str, bytes | None, tuple[str, ...]]]
    tries = [(file, damage, words) for file in FILES for damage in DAMAGES for words in READERS]
    for number, (file, damage, words) in enumerate(tries):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        for name in ("run", "photos", "s.h5.results"):
            shutil.copytree(place / name, folder / name)
        shutil.copy(place / "s.h5", folder / "s.h5")
        (folder / "u.h5.run" / "parts").mkdir(parents=True)
        (folder / "u.h5.run" / "plan.json").write_text("{}")
        path = folder / file
        path.unlink(missing_ok=True)
        if damage is None:
            os.mkfifo(path)
        else:
            path.write_bytes(damage)
        with tally.attempt(f"{' '.join(words[:2])} with {file} as {'a pipe' if damage is None else damage[:20]}"):
            code, seconds = worker.run([*words, "-q"], folder)
            log = (folder / "log").read_text()
            assert code in (0, 2, 3), f"{code} {log[-300:]}"
            assert "Traceback" not in log
            assert seconds < 60
        shutil.rmtree(folder)

"""Signals at any moment of any command: the right exit code, soon, and no traceback."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torture_tally import FULL_SECONDS, Tally

ROW = "j  SIGTERM, SIGINT, SIGHUP at five moments of twelve commands"

SECONDS = 2.0
# a machine that does other things; a command that writes a checkpoint first
SPARE = float(os.environ.get("TORTURE_SPARE_SECONDS", "4"))
ENVIRONMENT = {**os.environ, "TQDM_DISABLE": "1", "LABELKIT_ONNX": "0"}
PYTHON = [sys.executable, "-m", "labelkit"]


VIT = ("--backbone", "vit_small_patch16_224")
STORE = ("--index", "big.h5")
COMMANDS: dict[str, tuple[str, ...]] = {
    "embed": ("embed", "--dataset", "photos", *VIT, "--random-weights", "--out", "e.h5"),
    "embed --dense": ("embed", "--dataset", "photos", *VIT, "--random-weights", "--dense", "--out", "d.h5"),
    "train": (
        *("train", "simgcd", "--dataset", "photos", *VIT, "--no-pretrained", "--label-split", "gcd"),
        *("--epochs", "9", "--batch-size", "8", "--out", "run"),
    ),
    "cluster k-means": ("cluster", "k-means", *STORE, "--num-clusters", "400", "--num-inits", "20"),
    "cluster sinkhorn": ("cluster", "sinkhorn", *STORE, "--num-clusters", "400"),
    "cluster ss-kmeans": ("cluster", "ss-kmeans", *STORE, "--labels", "ids.csv", "--num-clusters", "200"),
    "discover categories": ("discover", "categories", *STORE, "--max-classes", "60"),
    "evaluate retrieval": ("evaluate", "retrieval", *STORE),
    "retrieve": ("retrieve", *STORE, "--query-rows", "0", "--search", "hnsw"),
    "match": ("match", "--index", "p.h5", "--num-clusters", "4", "--out", "m.h5"),
    "prototypes": ("prototypes", "--num-classes", "400", "--embed-dim", "64", "--out", "q.h5"),
    "report": ("report", *STORE, "--out", "r.html"),
}
ANSWER = "stopping after this step"
"""What training says at once; it ends with a checkpoint after a step, which the network decides the length of."""
MOMENTS = (0.05, 0.6, 3.0, 6.0, 12.0)
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos, their store, and a store of 60,000 rows."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup commands ignore it, as they should
    root = tmp_path_factory.mktemp("place")
    chance = np.random.default_rng(0)
    for name in ("ant", "bee", "cat", "dog"):
        (root / "photos" / name).mkdir(parents=True)
        for i in range(60):
            values = chance.integers(0, 256, (96, 96, 3), dtype=np.uint8)
            Image.fromarray(values).save(root / "photos" / name / f"{i:02d}.png")
    n = 60_000
    centers = 8 * chance.normal(size=(200, 64))
    rows = (centers[chance.integers(0, 200, n)] + chance.normal(size=(n, 64))).astype(np.float32)
    np.save(root / "x.npy", rows)
    lines = [f"r{i}.png,{f'c{i % 20}' if i % 10 == 0 else ''}" for i in range(n)]
    (root / "ids.csv").write_text("path,label\n" + "\n".join(lines) + "\n")
    for words in (
        ("import", "--source", "x.npy", "--ids", "ids.csv", "--out", "big.h5"),
        ("embed", "--dataset", "photos", "--backbone", "pixels", "--out", "p.h5"),
    ):
        subprocess.run([*PYTHON, *words, "-q"], cwd=root, check=True, env=ENVIRONMENT)
    return root


def _stop(place: Path, words: tuple[str, ...], number: signal.Signals, after: float) -> tuple[int, float, str] | None:
    """Start a command and stop it; its code, when it ended or said that it will, and all it said.

    ``None``: it had done its work before.
    """
    with (place / "err").open("wb") as err:
        process = subprocess.Popen(
            [*PYTHON, *words, "--overwrite"], cwd=place, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=err
        )
        try:
            code = process.wait(after)
            assert code == 0, (place / "err").read_text()[-500:]  # else nothing is tried
        except subprocess.TimeoutExpired:
            process.send_signal(number)
            began, answered = time.monotonic(), None
            while process.poll() is None and time.monotonic() < began + 120:
                if answered is None and ANSWER in (place / "err").read_text():
                    answered = time.monotonic() - began
                time.sleep(0.01)
            ended = time.monotonic() - began
            code, said = process.wait(1), (place / "err").read_text()
            if code == 0 and ended < SECONDS:  # the signal came when all was done
                return None
            return code, ended if answered is None else answered, said
    return None


IMPORTS = (2, 3, 5, 8, 11)
"""During which of the imports that C++ of torch makes a command gets a signal."""


@pytest.mark.torture
@pytest.mark.timeout(FULL_SECONDS)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_signal_while_torch_imports_aborts_no_command(place: Path, tally: Tally, name: str) -> None:
    script = str(Path(__file__).with_name("torture_imports.py"))
    for at in IMPORTS:
        number = SIGNALS[at % len(SIGNALS)]
        line = [sys.executable, script, str(int(number)), str(at), *COMMANDS[name], "--overwrite"]
        try:
            done = subprocess.run(line, cwd=place, env=ENVIRONMENT, capture_output=True, check=False, timeout=60)
        except subprocess.TimeoutExpired:
            break  # it works, without such an import
        if done.returncode == 0:
            break
        with tally.attempt(f"{name}, {number.name} at import {at}"):
            assert done.returncode == 128 + number, done.stderr[-500:]
            assert b"Traceback" not in done.stderr


@pytest.mark.torture
@pytest.mark.timeout(FULL_SECONDS)
@pytest.mark.parametrize("name", COMMANDS)
def test_every_signal_is_answered_soon(place: Path, tally: Tally, name: str) -> None:
    took = []
    for number in SIGNALS:
        for after in MOMENTS:
            with tally.attempt(f"{name}, {number.name} after {after} s"):
                found = _stop(place, COMMANDS[name], number, after)
                if found is None:
                    continue
                code, seconds, said = found
                took.append(seconds)
                # before Python has loaded, the system's own way of ending
                assert code in (128 + number, -number), said[-500:]
                assert after <= MOMENTS[0] or "Traceback" not in said
                assert seconds < SECONDS + SPARE
    if took:
        tally.notes.append(f"{name}: answered after {np.median(took):.2f} s, at most {max(took):.2f} s, of {len(took)}")

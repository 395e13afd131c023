"""Whole runs through the command line: kills, several processes, the digits result of the specification."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from labelkit.data.registry import load_dataset
from labelkit.training.checkpoint import load_checkpoint
from PIL import Image

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def _labelkit(*words: str) -> list[str]:
    return [sys.executable, "-m", "labelkit", *words]


def _run(command: list[str], timeout: float = 600) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=ENVIRONMENT, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of class folders with 12 digits of each of 6 classes."""
    digits = load_dataset("digits", data_root=Path("data"))
    root = tmp_path_factory.mktemp("images")
    for label in range(6):
        (root / str(label)).mkdir()
        for row in (digits.labels == label).nonzero()[0][:12]:
            pixels = digits.source.read(int(row)).decode(1)[:, :, 0]
            Image.fromarray(pixels).save(root / str(label) / f"{row}.png")
    return root


def _options(folder: Path, out: Path, *, epochs: int) -> list[str]:
    data = ["--dataset", str(folder), "--label-split", "gcd", "--preset", "digits"]
    length = ["--batch-size", "16", "--epochs", str(epochs), "--log-every-steps", "1"]
    return [*data, *length, "--device", "cpu", "--threads", "1", "--out", str(out)]


def _weights(out: Path) -> dict[str, Any]:
    checkpoint = load_checkpoint(out)
    assert checkpoint.warnings == ()
    return {name: value.numpy().tobytes() for name, value in checkpoint.tensors("model.safetensors").items()}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_command_with_its_code_and_a_checkpoint(
    tmp_path: Path, folder: Path, number: signal.Signals, code: int
) -> None:
    out = tmp_path / "run"
    command = _labelkit("train", "simgcd", *_options(folder, out, epochs=2000))
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        until = time.monotonic() + 120
        while not (out / "metrics.jsonl").exists():
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)
        process.send_signal(number)
        _, messages = process.communicate(timeout=60)
    assert process.returncode == code, messages
    assert "Traceback" not in messages
    assert _weights(out)


@pytest.mark.parametrize("options", [[], ["--align-mode", "none"]], ids=["flipclass", "simgcd-like"])
def test_digits_are_discovered(tmp_path: Path, options: list[str]) -> None:
    """T20 of the specification: All above .75 after 40 epochs, with alignment and without."""
    command = _labelkit(
        "train", "flipclass", "--dataset", "digits", "--device", "cpu", "--out", str(tmp_path / "run"), "--json"
    )
    done = _run([*command, *options], timeout=1100)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"]["all_accuracy"] > 0.75

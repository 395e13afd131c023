"""A whole run through the command line: the digits result of the specification."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("options", [[], ["--align-mode", "none"]], ids=["flipclass", "simgcd-like"])
def test_digits_are_discovered(tmp_path: Path, options: list[str]) -> None:
    """T20 of the specification: All above .75 after 40 epochs, with alignment and without."""
    words = ["train", "flipclass", "--dataset", "digits", "--device", "cpu", "--out", str(tmp_path / "run"), "--json"]
    command = [sys.executable, "-m", "labelkit", *words, *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=1100, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"]["all_accuracy"] > 0.75

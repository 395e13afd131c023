"""Commands of rows run in processes of their own."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from labelkit import __version__
from labelkit.pipelines.reproduce.running import run_command


def test_a_command_gives_its_output_and_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # a path is looked for in the folder of whoever asks
    assert run_command(["reproduce", "mine.yaml"]) == (2, b"")
    assert "mine.yaml: No such file" in capfd.readouterr().err
    code, out = run_command(["doctor", "--json"])
    assert (code, json.loads(out)["checks"][0]["found"]) == (0, __version__)


def test_a_command_ends_with_the_one_that_waits_for_it(tmp_path: Path) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.7)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_command(["train", "dl2pa", "--dataset", "digits", "--epochs", "100000", "--out", str(tmp_path / "run")])
    finally:
        signal.signal(signal.SIGALRM, before)
    assert _ended(str(tmp_path))


def _ended(name: str) -> bool:
    """Whether, within some seconds, no process has a name in its command line."""
    for _ in range(100):
        listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        if name not in listed:
            return True
        time.sleep(0.1)
    return False

"""Commands of rows run in processes of their own, also those that are copies of one that has loaded torch."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from labelkit import __version__
from labelkit.errors import ResourceError
from labelkit.stages.reproduce import processes
from labelkit.stages.reproduce.processes import Commands


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is copied has loaded nothing: loading takes seconds, and is the same for each."""
    code = f"from labelkit.stages.reproduce import copies; copies.LOADED = (); copies.main()  # {tmp_path}"
    monkeypatch.setattr(processes, "_COPIES", ("-c", code))


@pytest.mark.parametrize("short", [False, True])
def test_a_command_gives_its_output_and_its_exit_code(
    quick: None, short: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with Commands(short=short) as commands:
        # a path is looked for in the folder of whoever asks
        assert commands.run(["reproduce", "mine.yaml"]) == (2, b"")
        assert "mine.yaml: No such file" in capfd.readouterr().err
        # a failure does not stop the next one
        code, out = commands.run(["version", "--json"])
        assert (code, json.loads(out)["labelkit"]) == (0, __version__)


@pytest.mark.parametrize("short", [False, True])
def test_a_command_ends_with_the_one_that_waits_for_it(quick: None, short: bool, tmp_path: Path) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.7)
    try:
        with Commands(short=short) as commands, pytest.raises(KeyboardInterrupt):
            commands.run(
                ["train", "dl2pa", "--dataset", "digits", "--epochs", "100000", "--out", str(tmp_path / "run")]
            )
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


def test_a_process_that_cannot_load_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes.sys, "executable", "false")
    with Commands(short=True) as commands, pytest.raises(ResourceError, match="the process that runs commands ended"):
        commands.run(["version"])

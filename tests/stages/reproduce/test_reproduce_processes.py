"""Commands of rows run in processes of their own, also those that are copies of one that has loaded torch."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from labelkit import __version__
from labelkit.errors import ResourceError
from labelkit.stages.reproduce import processes
from labelkit.stages.reproduce.processes import Commands

_LOADS_NOTHING = "from labelkit.stages.reproduce import copies; copies.LOADED = (); copies.main()"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is copied has loaded nothing: loading takes seconds, and is the same for each."""

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", _LOADS_NOTHING]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    monkeypatch.setattr(processes, "_start", start)


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
    started = time.monotonic()
    try:
        with Commands(short=short) as commands, pytest.raises(KeyboardInterrupt):
            commands.run(
                ["train", "dl2pa", "--dataset", "digits", "--epochs", "100000", "--out", str(tmp_path / "run")]
            )
    finally:
        signal.signal(signal.SIGALRM, before)
    # the end of what is copied is awaited, and with it that of its copy
    assert time.monotonic() - started < 10


def test_a_process_that_cannot_load_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes.sys, "executable", "false")
    with Commands(short=True) as commands, pytest.raises(ResourceError, match="the process that runs commands ended"):
        commands.run(["version"])

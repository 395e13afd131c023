"""Closed, full and broken streams, and signals: what a command ends with, and how soon."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.tiers import quick_every

pytestmark = pytest.mark.skipif(os.name == "nt", reason="a shell of POSIX")


def shell(line: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a line in which LK stands for the program."""
    line = line.replace("LK", f"{sys.executable} -m labelkit")
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("LK --version >&- 2>&- <&-", 0),
        ("LK --version >&-", 0),
        ("LK --version <&-", 0),
        ("LK status --index nosuch.h5 2>&-", 3),
        ("LK status --index nosuch.h5 2>/dev/full", 3),
        ("LK nosuch 2>/dev/full", 2),
        ("LK list methods >/dev/full", 5),
    ],
)
def test_streams_that_are_closed_or_full_change_no_exit_code(line: str, code: int) -> None:
    done = shell(line)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("path,f0,f1\na.png,1,2\nb.png,2,1\n")
    done = shell(f"cd {tmp_path} && LK import --source x.csv --out s.h5 >&- 2>&- <&- && LK verify --index s.h5")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", quick_every(3, ["--help", "list methods", "export --help"]))
def test_a_reader_that_goes_away_ends_all_commands_alike(words: str) -> None:
    done = shell(f"LK {words} | true; exit ${{PIPESTATUS[0]}}")
    assert done.returncode == 141
    assert done.stderr == ""


BUSY = """
import hashlib, signal, sys
from labelkit.cli.process import interrupt_on_signals
from labelkit.errors import Interrupted
# under nohup the tests' own process ignores it
signal.signal(signal.SIGHUP, signal.SIG_IGN if "ignored" in sys.argv else signal.SIG_DFL)
try:
    with interrupt_on_signals():
        if "deferred" in sys.argv:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *args: None)
        print("ready", flush=True)
        hashlib.pbkdf2_hmac("sha256", b"a", b"b", (1 << 31) - 1)  # minutes in which no handler of Python can run
except Interrupted as interrupted:
    sys.exit(interrupted.exit_code)
"""


class Busy:
    """A process inside one long call of a library."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", BUSY, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        time.sleep(0.3)  # into the call

    def ends(self, number: int) -> tuple[int, float, str]:
        began = time.monotonic()
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=60)
        return self.process.returncode, time.monotonic() - began, err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_answered_inside_a_long_call(number: signal.Signals) -> None:
    code, seconds, err = Busy().ends(number)
    assert code == 128 + number
    assert seconds < 4  # a second and a half, but the machine may be busy
    assert f"stopped by {number.name}" in err


@pytest.mark.slow
def test_who_writes_a_checkpoint_first_is_ended_by_the_second_signal() -> None:
    busy = Busy("deferred")
    busy.process.send_signal(signal.SIGTERM)
    time.sleep(1.5)
    assert busy.process.poll() is None
    code, seconds, err = busy.ends(signal.SIGTERM)
    assert code == 143
    assert seconds < 4
    assert "SIGTERM: stopping after this step; a second signal stops immediately" in err


@pytest.mark.slow
def test_sighup_is_ignored_where_the_shell_said_so() -> None:
    busy = Busy("ignored")
    busy.process.send_signal(signal.SIGHUP)
    time.sleep(1.5)
    assert busy.process.poll() is None
    assert busy.ends(signal.SIGTERM)[0] == 143


HELD = """
import os, signal, time
try:  # as C++ around Python does, where it does not abort
    os.kill(os.getpid(), {number})
    until = time.monotonic() + 0.2
    while time.monotonic() < until:
        pass
except BaseException:
    print("lost", flush=True)
print("imported", flush=True)
"""
IMPORTING = """
import signal, sys, time
from labelkit.cli.process import interrupt_on_signals
from labelkit.errors import Interrupted
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup the tests' own process ignores it
try:
    with interrupt_on_signals():
        import held
        time.sleep(60)
except Interrupted:
    print("raised")
"""


@pytest.mark.parametrize("number", quick_every(3, [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]))
def test_a_signal_that_comes_during_an_import_is_not_raised_in_it_and_ends_the_process(
    tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "held.py").write_text(HELD.format(number=int(number)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-c", IMPORTING], capture_output=True, text=True, env=environment, check=False, timeout=60
    )
    assert done.stdout.split() == ["imported"]
    assert f"stopped by {number.name}" in done.stderr
    assert done.returncode == 128 + number

"""The side of the tests: start a warm process, give it jobs, notice when it dies."""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_SCRIPT = Path(__file__).with_name("torture_worker.py")
_IN_ACCESS, _IN_MODIFY, _IN_OPEN = 0x1, 0x2, 0x20


class WorkerDiedError(Exception):
    """The warm process ended, which no file and no command may cause."""


class Worker:
    """A warm process; see ``torture_worker``.

    Args:
        cwd: where it runs; nothing may appear there by itself.
    """

    def __init__(self, cwd: Path) -> None:
        # One thread: a process with more cannot be forked safely.
        single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        entries = [str(_SCRIPT.parents[2]), str(_SCRIPT.parent), str(_SCRIPT.parents[1] / "store")]
        environment = {**os.environ, **single, "PYTHONPATH": os.pathsep.join(entries), "TQDM_DISABLE": "1"}
        self._process = subprocess.Popen(
            [sys.executable, str(_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=cwd,
            env=environment,
            text=True,
        )
        self._hear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WorkerDiedError(f"it ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def begin(self, **job: Any) -> dict[str, Any]:
        """Give it a job and return its first answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return self._hear()

    def run(self, words: list[str], cwd: Path, kill_after: float | None = None) -> tuple[int, float]:
        """Run a command line; kill its whole process group after some seconds, if it has not ended by then.

        Returns:
            exit code (-9 when it was killed) and seconds.
        """
        began = self.begin(words=words, cwd=str(cwd), log=str(cwd / "log"))
        if kill_after is not None:
            time.sleep(kill_after)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(began["pid"], signal.SIGKILL)
        ended = self._hear()
        return ended["code"], ended["seconds"]


class Canary:
    """A file that nobody has to touch: every look at it is noticed, also one that changes nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(b"canary" * 100)
        self._system = ctypes.CDLL(None, use_errno=True)
        self._watch = self._system.inotify_init1(os.O_NONBLOCK)
        mask = _IN_ACCESS | _IN_MODIFY | _IN_OPEN
        if self._watch < 0 or self._system.inotify_add_watch(self._watch, os.fsencode(path), mask) < 0:
            raise OSError(ctypes.get_errno(), "the system watches no files")

    def touched(self) -> bool:
        """Say whether anything opened, read or changed the file since the last time."""
        try:
            return bool(os.read(self._watch, 1 << 16))
        except BlockingIOError:
            return False

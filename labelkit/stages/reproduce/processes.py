"""Run commands of labelkit, each in a process of its own.

A smoke row takes less time than Python takes to load torch. Its processes are copies of one that has loaded it and done
nothing else, where the system can copy one. What runs in them is ``python -m labelkit``, as in those of other rows.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from labelkit.errors import ResourceError
from labelkit.reading import read_bytes

_END_SECONDS = 30
_COPIES = ("-m", "labelkit.stages.reproduce.copies")


class Commands:
    """Runs commands; a context manager, which ends what it started.

    Args:
        short: each takes so little time that starting Python would take most of it.
    """

    def __init__(self, *, short: bool) -> None:
        self._copies = short and hasattr(os, "fork")
        self._loaded: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._loaded is not None:
            with contextlib.suppress(BrokenPipeError):
                self._loaded.communicate()  # the end of its requests
            self._loaded = None

    def run(self, words: Sequence[str]) -> tuple[int, bytes]:
        """Run a command to its end.

        Args:
            words: after ``labelkit``.

        Returns:
            exit code, negative for a signal, and standard output.

        Raises:
            ResourceError: the process that is copied ended.
        """
        if self._copies:
            return self._run_copied(words)
        process = subprocess.Popen([sys.executable, "-m", "labelkit", *words], stdout=subprocess.PIPE)
        try:
            out, _ = process.communicate()
        except BaseException:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            if process.stdout is not None:
                process.stdout.close()
            raise
        return process.returncode, out

    def _run_copied(self, words: Sequence[str]) -> tuple[int, bytes]:
        loaded = self._loaded = self._loaded or _start()
        assert loaded.stdin is not None
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out"
            request = {"words": list(words), "out": str(out), "folder": str(Path.cwd())}
            with contextlib.suppress(BrokenPipeError):  # its answer is missing, too
                loaded.stdin.write(json.dumps(request).encode() + b"\n")
                loaded.stdin.flush()
            try:
                code = _number(loaded)
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(loaded.pid, signal.SIGTERM)
                raise
            return code, read_bytes(out)


def _start() -> subprocess.Popen[bytes]:
    command = [sys.executable, *_COPIES]
    # a session of its own: Ctrl-C in a terminal reaches this process alone, which ends that one and its copy
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)


def _number(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise ResourceError("reproduce", "the process that runs commands ended", "Run the same command again.")
    return int(line)

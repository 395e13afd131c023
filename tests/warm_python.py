"""Start Python once and fork it, where labelkit starts a process to look at a file: the imports take most of its time.

What runs is the same code in a process of its own, with the same streams, environment and limits. Tests of that process
start it as users do: they ask for the fixture ``own_process``.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NoReturn

_MOST_BYTES = 1 << 20  # of a request: a command line and an environment
_NUMBER_BYTES = 8


class WarmPython:
    """Stands for the module ``subprocess`` where that starts ``python -P -m MODULE ...`` or ``python -P SCRIPT ...``.

    Args:
        modules: what the process imports before it is forked.
    """

    PIPE, DEVNULL, TimeoutExpired = subprocess.PIPE, subprocess.DEVNULL, subprocess.TimeoutExpired

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def run(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        timeout: float,
        check: bool,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        capture_output: bool = False,
    ) -> subprocess.CompletedProcess[bytes]:
        """Do what ``subprocess.run`` does."""
        assert list(command[:2]) == [sys.executable, "-P"]
        assert not check
        connection = self._connection(env)
        with contextlib.ExitStack() as files:
            given = files.enter_context(Path(os.devnull).open("rb")) if stdin in (None, self.DEVNULL) else stdin
            out, err = (
                files.enter_context(tempfile.TemporaryFile()) if capture_output or stream == self.PIPE else stream
                for stream in (stdout, stderr)
            )
            request = json.dumps({"arguments": list(command[2:]), "environment": dict(env)}).encode()
            streams = array.array("i", [stream.fileno() for stream in (given, out, err)])
            connection.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
            child = _number(connection)
            in_time = bool(select.select([connection], [], [], timeout)[0])
            if not in_time:
                os.kill(child, signal.SIGKILL)
            status = _number(connection)
            if not in_time:
                raise subprocess.TimeoutExpired(list(command), timeout)
            captured = (_content(stream) if stream not in (stdout, stderr) else None for stream in (out, err))
            return subprocess.CompletedProcess(list(command), os.waitstatus_to_exitcode(status), *captured)

    def close(self) -> None:
        """End the process."""
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.kill()  # it has nothing to finish, and its modules take seconds to clean up
            self._process.wait()

    def _connection(self, environment: Mapping[str, str]) -> socket.socket:
        if self._socket is None:
            # its own messages, so that a request and its streams arrive together
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_BYTES)
            with theirs:
                words = [sys.executable, "-P", __file__, str(theirs.fileno()), *self._modules]
                self._process = subprocess.Popen(words, env=dict(environment), pass_fds=[theirs.fileno()])
        return self._socket


def _number(connection: socket.socket) -> int:
    data = connection.recv(_NUMBER_BYTES)
    if not data:
        raise RuntimeError("the warm process ended")
    return int.from_bytes(data, "big")


def _content(stream: IO[bytes]) -> bytes:
    stream.seek(0)
    return stream.read()


def _serve(connection: socket.socket, modules: Sequence[str]) -> None:
    """Fork for each request; answer with the number of the process, then with the status it ended with."""
    for module in modules:
        import_module(module)
    while True:
        data, rights, _, _ = connection.recvmsg(_MOST_BYTES, socket.CMSG_SPACE(3 * array.array("i").itemsize))
        if not data:
            return
        streams = array.array("i", rights[0][2])
        child = os.fork()
        if child == 0:
            _become(json.loads(data), streams)
        for stream in streams:
            os.close(stream)
        connection.send(child.to_bytes(_NUMBER_BYTES, "big"))
        connection.send(os.waitpid(child, 0)[1].to_bytes(_NUMBER_BYTES, "big"))


def _become(request: dict[str, Any], streams: Sequence[int]) -> NoReturn:
    """Run the rest of a forked process; nothing of its parent is cleaned up by it."""
    code = 1
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        words = request["arguments"]
        if words[0] == "-m":
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__")
        else:
            sys.argv = words
            runpy.run_path(words[0], run_name="__main__")
        code = 0
    except SystemExit as finished:
        code = finished.code if isinstance(finished.code, int) else int(finished.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])

"""What surrounds a command: standard streams that may be closed or full, and signals that end it within 2 seconds."""

from __future__ import annotations

import contextlib
import io
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any, NoReturn, TextIO

from labelkit.errors import BROKEN_PIPE_SIGNAL, Interrupted

GRACE_SECONDS = 0.7
"""How long a command may take to clean up before its process ends at once; what is committed is whole either way."""

_EXIT_SECONDS = 0.3
_writers: set[int] = set()

ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


def prepare_streams() -> None:
    """Open missing standard streams, and tolerate full or closed ones."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # else the first file that is opened would get its number, and be written to by messages
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, which is this one
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
    if os.name != "nt":
        sys.stdout = _stream(sys.stdout, _Pipe(1, "w", closefd=False))
        sys.stderr = _stream(sys.stderr, _Messages(2, "w", closefd=False))


def _stream(like: TextIO, raw: io.RawIOBase) -> TextIO:
    like.flush()
    buffer = io.BufferedWriter(raw)
    return io.TextIOWrapper(
        buffer, encoding=like.encoding, errors=like.errors, line_buffering=like is sys.stderr or like.isatty()
    )


class _Pipe(io.FileIO):
    """Standard output: who writes to it need not know what a pipe is whose reader went away."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError as error:
            raise Interrupted(BROKEN_PIPE_SIGNAL) from error


class _Messages(_Pipe):
    """Standard error: a message that cannot be written, as on a full disk, ends no command."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def exit_process(code: int) -> NoReturn:
    """Exit with a code, immediately if library threads would keep the process alive after a signal.

    Raises:
        SystemExit: always.
    """
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except (OSError, Interrupted):
            # what is left would be tried again, and be an error then
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    if code in {128 + number for number in ENDING}:
        timer = threading.Timer(_EXIT_SECONDS, os._exit, (code,))
        timer.daemon = True
        timer.start()
    sys.exit(code)


@contextmanager
def signals_interrupt() -> Iterator[list[int]]:
    """Raise :class:`Interrupted` on SIGINT, SIGTERM and SIGHUP inside a ``with`` block.

    A process that does not end soon is ended. A second signal ends the process at once. Whoever has taken a signal
    over, as training does to write a checkpoint, is given its time by the first one, and this is said. While a module
    is imported, nothing is raised: libraries run Python inside C++ then, where an exception aborts the process or is
    lost.

    Yields:
        The signal that was raised, if one was: what fails then fails because of it, whatever a library made of that.
    """
    process = os.getpid()
    seen: list[int] = []
    imports = _imports(sys._getframe())

    def interrupt(signum: int, frame: FrameType | None) -> None:
        if os.getpid() != process:  # a forked data-loading process dies as it would without us
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
        elif not seen and _imports(frame) <= imports:
            seen.append(signum)
            raise Interrupted(signum)
        elif os.name == "nt":  # elsewhere a thread sees to it
            _end_now(signum)

    # `nohup` ignores SIGHUP, and so do we then
    wanted = [n for n in ENDING if n == signal.SIGINT or signal.getsignal(n) is not signal.SIG_IGN]
    if threading.current_thread() is not threading.main_thread():  # signals are somebody else's
        yield seen
        return
    before = {signum: signal.getsignal(signum) for signum in wanted}
    # on Windows no pipe can be waited for: Ctrl-C is answered between two lines of Python
    with nullcontext() if os.name == "nt" else _watched(interrupt, seen):
        try:
            for signum in wanted:
                signal.signal(signum, interrupt)
            yield seen
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)


@contextmanager
def _watched(handler: object, seen: list[int]) -> Iterator[None]:
    """Let a thread receive signals besides the main one, which may be inside a long call of a library."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    watch = threading.Thread(target=_watch, args=(reader, handler, seen), name="labelkit-signals", daemon=True)
    watch.start()
    _writers.add(writer)
    woken_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(woken_before)
        _writers.discard(writer)
        os.close(writer)  # the thread reads the end of the file, and ends
        watch.join()


def _forget() -> None:
    """In a forked process: its signals are not those of the process it came from."""
    with contextlib.suppress(ValueError):  # not in the main thread
        writer = signal.set_wakeup_fd(-1)
        if writer not in _writers:
            signal.set_wakeup_fd(writer)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _imports(frame: FrameType | None) -> int:
    """Count the lines of Python's import system under way."""
    count = 0
    while frame is not None:
        count += frame.f_code.co_filename.startswith("<frozen importlib.")
        frame = frame.f_back
    return count


def _watch(reader: int, handler: object, seen: list[int]) -> None:
    count, last, deadline = 0, 0, float("inf")
    try:
        while True:
            wait = None if deadline == float("inf") else max(0.0, deadline - time.monotonic())
            if not select.select([reader], [], [], wait)[0]:
                _end_now(last)
            numbers = os.read(reader, 512)
            if not numbers:
                return
            for last in (number for number in numbers if number in ENDING):
                count += 1
                if seen and count > 1:
                    _end_now(last)
                if seen or signal.getsignal(last) is handler or count > 1:
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
                else:
                    _say(f"{signal.Signals(last).name}: stopping after the current step; a second signal stops at once")
    finally:
        os.close(reader)


def _end_now(signum: int) -> NoReturn:
    _say(f"stopped by {signal.Signals(signum).name}")
    os._exit(128 + signum)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode())

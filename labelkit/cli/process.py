"""The process that runs a command: robust standard streams, and signals that end it within 2 s."""

import contextlib
import io
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any, NoReturn, TextIO

from labelkit.errors import BROKEN_PIPE_SIGNAL, Interrupted

GRACE_SECONDS = 0.7
"""Time that a command has to clean up after a signal; committed files are complete in either case."""

_EXIT_SECONDS = 0.3
_writers: set[int] = set()

ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


def prepare_streams() -> None:
    """Open missing standard streams, and tolerate full disks and closed pipes."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # otherwise the next opened file would get this number, and messages would be written to it
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
    if os.name != "nt":
        sys.stdout = _open_stream(sys.stdout, _PipeStream(1, "w", closefd=False))
        sys.stderr = _open_stream(sys.stderr, _MessageStream(2, "w", closefd=False))


def _open_stream(like: TextIO, raw: io.RawIOBase) -> TextIO:
    like.flush()
    buffer = io.BufferedWriter(raw)
    return io.TextIOWrapper(
        buffer, encoding=like.encoding, errors=like.errors, line_buffering=like is sys.stderr or like.isatty()
    )


class _PipeStream(io.FileIO):
    """Standard output that raises :class:`Interrupted` when the pipe is closed."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError as error:
            raise Interrupted(BROKEN_PIPE_SIGNAL) from error


class _MessageStream(_PipeStream):
    """Standard error that drops messages that cannot be written, for instance on a full disk."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def exit_process(code: int) -> NoReturn:
    """Exit with a code; after a signal, even if threads of libraries would keep the process alive.

    Raises:
        SystemExit: always.
    """
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except (OSError, Interrupted):
            # otherwise Python would try to write the rest again at exit, and fail
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    if code in {128 + number for number in ENDING}:
        timer = threading.Timer(_EXIT_SECONDS, os._exit, (code,))
        timer.daemon = True
        timer.start()
    sys.exit(code)


@contextmanager
def interrupt_on_signals() -> Iterator[list[int]]:
    """Raise :class:`Interrupted` on SIGINT, SIGTERM and SIGHUP inside a ``with`` block.

    A process that does not end within ``GRACE_SECONDS`` is killed, and a second signal kills it immediately. If other
    code handles a signal, as training does to write a checkpoint, the first signal only prints a message and sets no
    time limit. Nothing is raised during imports: libraries then run Python inside C++, where an exception aborts the
    process or is lost.

    Yields:
        The received signal, if any. It is the cause of later errors, even if a library raises another exception.
    """
    process = os.getpid()
    seen: list[int] = []
    imports = _count_import_frames(sys._getframe())

    def interrupt(signum: int, frame: FrameType | None) -> None:
        if os.getpid() != process:  # a forked data-loading worker ends as it would by default
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
        elif not seen and _count_import_frames(frame) <= imports:
            seen.append(signum)
            raise Interrupted(signum)
        elif os.name == "nt":  # on other systems, a thread does this
            _exit_immediately(signum)

    # under `nohup`, SIGHUP stays ignored
    wanted = [n for n in ENDING if n == signal.SIGINT or signal.getsignal(n) is not signal.SIG_IGN]
    if threading.current_thread() is not threading.main_thread():  # only the main thread can handle signals
        yield seen
        return
    before = {signum: signal.getsignal(signum) for signum in wanted}
    # Windows cannot wait for a pipe, so Ctrl-C is handled between two Python instructions
    with nullcontext() if os.name == "nt" else _receive_signals_in_thread(interrupt, seen):
        try:
            for signum in wanted:
                signal.signal(signum, interrupt)
            yield seen
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)


@contextmanager
def _receive_signals_in_thread(handler: object, seen: list[int]) -> Iterator[None]:
    """Also receive signals in another thread, since the main thread may be inside a long library call."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    watch = threading.Thread(
        target=_forward_signals, args=(reader, handler, seen), name="labelkit-signals", daemon=True
    )
    watch.start()
    _writers.add(writer)
    woken_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(woken_before)
        _writers.discard(writer)
        os.close(writer)  # the thread then reads end-of-file and ends
        watch.join()


def _reset_signals_after_fork() -> None:
    """Detach a forked process from the pipe, so that its signals do not reach the parent process."""
    with contextlib.suppress(ValueError):  # not in the main thread
        writer = signal.set_wakeup_fd(-1)
        if writer not in _writers:
            signal.set_wakeup_fd(writer)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_signals_after_fork)


def _count_import_frames(frame: FrameType | None) -> int:
    count = 0
    while frame is not None:
        count += frame.f_code.co_filename.startswith("<frozen importlib.")
        frame = frame.f_back
    return count


def _forward_signals(reader: int, handler: object, seen: list[int]) -> None:
    count, last, deadline = 0, 0, float("inf")
    try:
        while True:
            wait = None if deadline == float("inf") else max(0.0, deadline - time.monotonic())
            if not select.select([reader], [], [], wait)[0]:
                _exit_immediately(last)
            numbers = os.read(reader, 512)
            if not numbers:
                return
            for last in (number for number in numbers if number in ENDING):
                count += 1
                if seen and count > 1:
                    _exit_immediately(last)
                if seen or signal.getsignal(last) is handler or count > 1:
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
                else:
                    _write_message(
                        f"{signal.Signals(last).name}: stopping after this step; a second signal stops immediately"
                    )
    finally:
        os.close(reader)


def describe_interruption(signum: int, arguments: Sequence[str], *, resumable: bool = True) -> str:
    """Return a message that names the signal and, for a command that can be resumed, says how to resume it."""
    train = " with --resume" if resumable else " again"
    again = {"start": " again", "embed": " again", "train": train}.get("".join(arguments[:1]))
    if again == " with --resume" and "--overwrite" in arguments:  # --resume would continue the old run if it is there
        again += " instead of --overwrite; if training has not started, run it again unchanged"
    remedy = "" if again is None else f"; to continue, run the same command{again}"
    return f"stopped by {signal.Signals(signum).name}{remedy}"


def _exit_immediately(signum: int) -> NoReturn:
    _write_message(describe_interruption(signum, sys.argv[1:]))
    os._exit(128 + signum)


def _write_message(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode())

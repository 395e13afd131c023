"""What a person or a scheduler asks of a running training by signals."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class SignalWatch:
    """Remembers signals until the training looks.

    Attributes:
        stop: SIGINT, SIGTERM or SIGHUP, if one came: stop after the running step.
        checkpoint: SIGUSR1 came: write a checkpoint.
    """

    def __init__(self) -> None:
        self.stop: int | None = None
        self.checkpoint = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Take signals while the block runs; in the main thread alone, since elsewhere they belong to our caller."""

        def stop(number: int, frame: FrameType | None) -> None:
            self.stop = number

        def checkpoint(number: int, frame: FrameType | None) -> None:
            self.checkpoint = True

        wanted: dict[int, Any] = {signal.SIGINT: stop, signal.SIGTERM: stop}
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            wanted[signal.SIGHUP] = stop
        if hasattr(signal, "SIGUSR1"):
            wanted[signal.SIGUSR1] = checkpoint
        try:
            before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
        except ValueError:  # not the main thread
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

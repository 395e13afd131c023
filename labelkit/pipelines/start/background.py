"""Run steps of ``start`` in a background process: most steps use one core, and some are independent of the others."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import active_children, get_context

from labelkit.commands.common.results import CommandResult
from labelkit.data.exit_with_parent import exit_with_parent, hide_main_module
from labelkit.options.base import BaseConfig
from labelkit.progress import Progress, current_progress, use_progress

Run = Callable[[BaseConfig], CommandResult]


class _Notes(Progress):
    """Progress that collects messages and warnings, to be shown later."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, str]] = []

    def message(self, text: str) -> None:
        self.texts.append(("message", text))

    def warning(self, text: str) -> None:
        self.texts.append(("warning", text))


@contextmanager
def run_in_background(run: Run, steps: Mapping[str, BaseConfig]) -> Iterator[Mapping[str, Callable[[], CommandResult]]]:
    """Inside a ``with`` block, run steps one after another in a background process.

    Yields, for each step name, a function that waits for the step's result and shows its messages. ``run``, which runs
    the command of a step, must be a module-level function.
    """
    if not steps or (os.cpu_count() or 1) < 2:
        yield {}
        return
    before = set(active_children())
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_begin)
    try:
        with hide_main_module():
            futures = {name: pool.submit(_run_quietly, run, step) for name, step in steps.items()}
        yield {name: partial(_wait, future, run, steps[name]) for name, future in futures.items()}
    except BaseException:
        for child in set(active_children()) - before:
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    exit_with_parent("the steps in the background")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the main process ends this one


def _run_quietly(run: Run, step: BaseConfig) -> tuple[CommandResult, list[tuple[str, str]]]:
    notes = _Notes()
    with use_progress(notes):
        return run(step), notes.texts


def _wait(future: Future[tuple[CommandResult, list[tuple[str, str]]]], run: Run, step: BaseConfig) -> CommandResult:
    try:
        result, texts = future.result()
    except BrokenProcessPool:  # for example, the system killed it because of its memory use
        return run(step)
    for kind, text in texts:
        getattr(current_progress(), kind)(text)
    return result

"""Start and exit of worker processes; does not import torch, which takes seconds."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process
from multiprocessing.connection import wait
from threading import Thread
from types import ModuleType


def exit_with_parent(name: str) -> None:
    """Exit this process when its parent process ends, for whatever reason."""
    main = parent_process()
    assert main is not None

    def watch() -> None:
        wait([main.sentinel])
        os._exit(1)

    Thread(target=watch, name=f"watch of {name}", daemon=True).start()


@contextmanager
def hide_main_module() -> Iterator[None]:
    """Prevent processes started in this block from running the user's script again, as it may lack a main guard.

    Workers run only functions of labelkit, so they do not need the script.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main

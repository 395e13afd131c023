"""Exit of a process together with its parent; does not import torch, which takes seconds."""

import os
from multiprocessing import parent_process
from multiprocessing.connection import wait
from threading import Thread


def exit_with_parent(name: str) -> None:
    """Exit this process when its parent process ends, for whatever reason."""
    main = parent_process()
    assert main is not None

    def watch() -> None:
        wait([main.sentinel])
        os._exit(1)

    Thread(target=watch, name=f"watch of {name}", daemon=True).start()

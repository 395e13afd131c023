"""Run a command, with a signal while C++ of torch imports a module of Python: ``torture_imports.py 15 1 match ...``.

There an exception is not passed on but aborts the process. The moment does not depend on the speed of the machine.
"""

import os
import sys
from types import FrameType

from labelkit.cli.main import main
from labelkit.cli.process import exit_process, prepare_streams
from labelkit.errors import Interrupted

PLACES = (
    "torch/distributed/__init__.py",
    "torch/distributed/autograd/__init__.py",
    "torch/multiprocessing/__init__.py",
)


def run() -> None:
    """Take the number of the signal, which such import is meant, and the words of the command."""
    number, at, words = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    count = 0

    def hook(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        if event != "call" or frame.f_code.co_name != "_lock_unlock_module" or frame.f_back is None:
            return
        if frame.f_back.f_code.co_filename.endswith(PLACES):
            count += 1
            if count == at:
                os.kill(os.getpid(), number)

    sys.setprofile(hook)
    prepare_streams()
    try:
        code = main(words)
    except Interrupted as interrupted:
        code = interrupted.exit_code
    exit_process(code)


if __name__ == "__main__":
    run()

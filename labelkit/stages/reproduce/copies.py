"""Load what takes longest, and copy this process for each command: what ``processes`` starts for short ones.

A line of standard input is a request: words after ``labelkit``, a file for its standard output, a working folder. The
answer is its exit code, in a line.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import sys
import traceback
from importlib import import_module
from typing import Any, NoReturn

# torch, what its optimizers load in their first step, and what the commands of rows load
LOADED = (
    *("torch", "torch._dynamo", "torchvision", "timm", "faiss", "sklearn.linear_model"),
    *("labelkit.stages.train.run", "labelkit.stages.embed.images"),
    *("labelkit.stages.evaluate.linear", "labelkit.stages.evaluate.segmentation", "labelkit.stages.evaluate.detection"),
)


def main() -> None:
    """Answer requests until there are no more."""
    asking = os.getppid()
    for module in LOADED:
        import_module(module)
    for line in sys.stdin:
        if os.getppid() != asking:  # it was killed: nobody waits for this
            return
        request = json.loads(line)
        copy = os.fork()
        if copy == 0:
            _be_labelkit(request)
        code = os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])
        with contextlib.suppress(BrokenPipeError):  # who asked was killed
            os.write(1, f"{code}\n".encode())


def _be_labelkit(request: dict[str, Any]) -> NoReturn:
    """Do what ``python -m labelkit`` does."""
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open(request["out"], os.O_WRONLY | os.O_CREAT), 1)
        os.chdir(request["folder"])
        sys.argv = ["labelkit", *request["words"]]
        runpy.run_module("labelkit", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()

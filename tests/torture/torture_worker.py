"""A warm process that runs command lines, one JSON line each: ``python torture_worker.py``.

Starting an interpreter with torch costs seconds, and the rows need thousands of processes. This one imports all that is
needed once, without a thread of its own, and forks.
"""

import contextlib
import json
import os
import sys
import tempfile
import time
import traceback
from typing import Any, NoReturn


def _become(log: int) -> None:
    """Give a forked process its own streams."""
    os.setsid()
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", closefd=False)


def _end(action: Any) -> NoReturn:
    """Run the rest of a forked process; nothing of its parent is cleaned up by it."""
    code = 1
    try:
        code = action() or 0
    except SystemExit as finished:
        code = finished.code if isinstance(finished.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _main(job: dict[str, Any]) -> dict[str, Any]:
    """Run a command line in a process group of its own; its number is told first."""
    began = time.monotonic()
    process = os.fork()
    if process == 0:
        log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.chdir(job["cwd"])
        _become(log)
        from labelkit.cli.main import main

        _end(lambda: main(job["words"]))
    _say({"pid": process})
    _, status = os.waitpid(process, 0)
    return {"code": os.waitstatus_to_exitcode(status), "seconds": time.monotonic() - began}


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)  # noqa: T201 - the protocol


def _train_once() -> None:
    """Run one tiny training: most of the modules that commands need are imported while they run."""
    from labelkit.cli.main import main
    from labelkit.commands.cluster import cluster  # noqa: F401
    from labelkit.commands.discover import categories as discover  # noqa: F401
    from labelkit.commands.discover import few as discover_few  # noqa: F401
    from labelkit.commands.embed import embed as embed
    from labelkit.commands.evaluate import groups as evaluate  # noqa: F401
    from labelkit.methods.registry import METHODS

    for spec in METHODS.values():
        spec.load()
    size = ("--max-per-class", "4", "--epochs", "1", "--batch-size", "16", "--lr-schedule", "constant")
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        words = ["train", "softmax", "--dataset", "digits", *size, "--threads", "1", "-q", "--out", f"{folder}/run"]
        assert main(words) == 0


def serve() -> None:
    """Answer the jobs on standard input until it ends."""
    _train_once()
    _say({"ready": True})
    for line in sys.stdin:
        _say(_main(json.loads(line)))


if __name__ == "__main__":
    serve()

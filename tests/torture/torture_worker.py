"""A warm process that does what the rows ask, one JSON line each: ``python torture_worker.py open | load | main``.

Starting an interpreter with torch costs seconds, and the rows need thousands of processes. This one imports all that is
needed once, without a thread of its own, and forks. ``open`` opens stores and results, ``load`` reads weights files;
where labelkit starts a process to check a file, a fork does the same work under the same limits. ``main`` runs command
lines.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn


def _become(stdin: int | None, out: int, err: int, environment: dict[str, str] | None) -> None:
    """Give a forked process its own streams and environment."""
    os.setsid()
    if stdin is not None:
        os.dup2(stdin, 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    if environment is not None:
        os.environ.clear()
        os.environ.update(environment)
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


def fork_run(
    command: list[str],
    *,
    stdin: Any = None,
    stdout: Any = None,
    stderr: Any = None,
    capture_output: bool = False,
    env: dict[str, str],
    timeout: float,
    check: bool,
) -> subprocess.CompletedProcess[bytes]:
    """Do what ``subprocess.run`` does with ``python -P -m MODULE ...`` or ``python -P SCRIPT ...``."""
    assert command[:2] == [sys.executable, "-P"]
    assert capture_output or (stdout, stderr) == (subprocess.PIPE, subprocess.PIPE)
    assert not check

    def action() -> None:
        if command[2] == "-m":
            sys.argv = command[3:]
            runpy.run_module(command[3], run_name="__main__")
        else:
            sys.argv = command[2:]
            runpy.run_path(command[2], run_name="__main__")

    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = os.fork()
        if process == 0:
            _become(stdin.fileno() if hasattr(stdin, "fileno") else None, out.fileno(), err.fileno(), env)
            _end(action)
        watch = os.pidfd_open(process)
        ended = select.select([watch], [], [], timeout)[0]
        os.close(watch)
        if not ended:
            os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        if not ended:
            raise subprocess.TimeoutExpired(command, timeout)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, os.waitstatus_to_exitcode(status), out.read(), err.read())


def _open(job: dict[str, Any]) -> dict[str, Any]:
    """Open a file as ``kind`` and read all that it holds."""
    from labelkit.errors import LabelkitError
    from labelkit.store import opening
    from labelkit.store.embeddings import open_store
    from labelkit.store.results import read_result
    from torture_mutations import mutated

    opening._harmless.clear()  # files follow each other within the resolution of the clock
    path = Path(job["path"])
    if "seed" in job:
        path.write_bytes(mutated(Path(job["base"]).read_bytes(), job["seed"]))
    began = time.monotonic()
    try:
        if job["kind"] == "store":
            store = open_store(path)
            _ = store.embeddings, store.extras, store.sample_ids, store.labels, store.labeled, store.skipped
        else:
            store = open_store(job["store"])
            read_result(store, path.stem, allow_stale=True)
        answer: dict[str, Any] = {"error": None}
    except LabelkitError as error:
        answer = {"error": type(error).__name__, "message": str(error)}
    except Exception as error:
        answer = {"error": f"a bug: {type(error).__name__}", "message": str(error)}
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peaks = {
        # not of getrusage, which counts the process that started this one
        "parent": int(status["VmHWM"].split()[0]) >> 10,
        "child": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10,
    }
    return {**answer, "seconds": time.monotonic() - began, "peak_mib": peaks}


def _load(job: dict[str, Any]) -> dict[str, Any]:
    """Read a weights file."""
    from labelkit.errors import CheckpointError
    from labelkit.models.weights import load_weights_file

    os.environ.update(job.get("environment", {}))
    try:
        tensors = load_weights_file(job["path"])
    except CheckpointError as error:
        return {"error": type(error).__name__, "message": str(error)}
    except Exception as error:
        return {"error": f"a bug: {type(error).__name__}", "message": str(error)}
    finally:
        for name in job.get("environment", {}):
            del os.environ[name]
    return {"error": None, "tensors": len(tensors)}


def _main(job: dict[str, Any]) -> dict[str, Any]:
    """Run a command line in a process group of its own; its number is told first."""
    began = time.monotonic()
    process = os.fork()
    if process == 0:
        log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.chdir(job["cwd"])
        _become(None, log, log, None)
        from labelkit.cli.main import main

        _end(lambda: main(job["words"]))
    _say({"pid": process})
    _, status = os.waitpid(process, 0)
    return {"code": os.waitstatus_to_exitcode(status), "seconds": time.monotonic() - began}


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)  # noqa: T201 - the protocol


def _warm_up(mode: str) -> None:
    """Import what the jobs need, so that a fork has it."""
    if mode == "open":
        from labelkit.store import opening

        opening.subprocess.run = fork_run  # type: ignore[assignment]  # the same for this use
        # a file that hangs HDF5 costs so long; ten seconds for each would be most of the row
        opening._CHILD_SECONDS = 2.0
    elif mode == "load":
        import torch  # noqa: F401
        from labelkit.models import weights

        weights.subprocess.run = fork_run  # type: ignore[assignment]  # the same for this use
    else:
        _train_once()


def _train_once() -> None:
    """Run one tiny training: most of the modules that commands need are imported while they run."""
    from labelkit.cli.main import main
    from labelkit.methods.registry import METHODS
    from labelkit.stages.discover import categories as discover  # noqa: F401
    from labelkit.stages.discover import few as discover_few  # noqa: F401
    from labelkit.stages.embed import images as embed  # noqa: F401
    from labelkit.stages.evaluate import groups as evaluate  # noqa: F401
    from labelkit.stages.group import cluster  # noqa: F401

    for spec in METHODS.values():
        spec.load()
    size = ("--max-per-class", "4", "--epochs", "1", "--batch-size", "16", "--lr-schedule", "constant")
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        words = ["train", "softmax", "--dataset", "digits", *size, "--threads", "1", "-q", "--out", f"{folder}/run"]
        assert main(words) == 0


def serve(mode: str) -> None:
    """Answer the jobs on standard input until it ends."""
    _warm_up(mode)
    do = {"open": _open, "load": _load, "main": _main}[mode]
    _say({"ready": True})
    for line in sys.stdin:
        _say(do(json.loads(line)))


if __name__ == "__main__":
    serve(sys.argv[1])

"""Run labelkit in several processes that know each other as those of torchrun do; imports are paid once.

``python -m tests.forked_processes PLAN.json`` forks, for each entry of the plan, one process per rank. A process runs
its command lines one after the other, and what each did goes to ``FOLDER/<entry>-<rank>.json``.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

from labelkit.cli.main import main
from labelkit.engine import joined
from labelkit.errors import ResourceError

_LONGEST_SECONDS = 30
_JOIN_SECONDS = 2
_OUTLIVES_SECONDS = 5
_WRITERS = {
    "labelkit.stages.group.cluster": "write_result",
    "labelkit.stages.retrieve.images": "write_result",
    "labelkit.stages.evaluate.knn": "write_result",
    "labelkit.stages.evaluate.linear": "write_result",
    "labelkit.stages.evaluate.retrieval": "write_result",
    "labelkit.stages.discover.answer": "write_result",
    "labelkit.stages.discover.categories": "write_result",
    "labelkit.stages.label.suggest": "commit_bytes",
    "labelkit.stages.match.pairs": "write_matches",
}
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Done:
    """What one process of an entry did.

    Attributes:
        answers: of each command line: exit code, standard output, standard error.
        code: of the process; negative for a signal.
        seconds: until it ended.
    """

    answers: list[tuple[int, str, str]]
    code: int
    seconds: float


def run_forked(
    folder: Path,
    entries: dict[str, list[list[list[str]]]],
    *,
    killed: Sequence[str] = (),
    failing: Sequence[str] = (),
    timeout: float = 100,
) -> dict[str, list[Done]]:
    """Run entries: by name, for each rank its command lines.

    Args:
        folder: for what is said.
        entries: what to run.
        killed: entries whose last process is killed in its third sum.
        failing: entries whose last process meets an error there, and lives on for some seconds.
        timeout: seconds for all of it.
    """
    plan = folder / "plan.json"
    plan.write_text(
        json.dumps({"entries": entries, "killed": list(killed), "failing": list(failing), "folder": str(folder)})
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.forked_processes", str(plan)]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, done.stderr
    ended: dict[str, list[Any]] = json.loads(done.stdout)
    found: dict[str, list[Done]] = {}
    for name, children in ended.items():
        found[name] = []
        for rank, (code, seconds) in enumerate(children):
            answers = folder / f"{name}-{rank}.json"
            told = [tuple(one) for one in json.loads(answers.read_text())] if answers.exists() else []
            found[name].append(Done(told, code, seconds))
    return found


def _main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    for name in ("faiss", *_WRITERS):
        import_module(name)
    ended = {}
    for name, ranks in plan["entries"].items():
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        started = time.monotonic()
        children = []
        for rank, lines in enumerate(ranks):
            child = os.fork()
            if not child:
                fate = next((kind for kind in ("killed", "failing") if name in plan[kind]), "")
                fate = fate if rank == len(ranks) - 1 else ""
                _child(Path(plan["folder"]) / f"{name}-{rank}.json", lines, rank, len(ranks), port, fate)
            children.append(child)
        ended[name] = _ends_of(children, started)
    sys.stdout.write(json.dumps(ended))


def _ends_of(children: list[int], started: float) -> list[tuple[int, float]]:
    """Exit code and seconds of each; those that still run after half a minute are killed."""
    ends: dict[int, tuple[int, float]] = {}
    while len(ends) < len(children):
        for child in children:
            done, status = (0, 0) if child in ends else os.waitpid(child, os.WNOHANG)
            if done:
                ends[child] = os.waitstatus_to_exitcode(status), time.monotonic() - started
            elif child not in ends and time.monotonic() > started + _LONGEST_SECONDS:
                os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    return [ends[child] for child in children]


def _child(answers: Path, lines: list[list[str]], rank: int, size: int, port: int, fate: str) -> None:
    code = 1
    try:
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ |= {name: str(value) for name, value in names.items()}
        joined.JOIN_WAIT = timedelta(seconds=_JOIN_SECONDS)
        if fate:
            _end_in_third_sum(fate)
        if rank > 0:
            _never_write()
        told = []
        for words in lines:
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = main(words)
            told.append([code, out.getvalue(), err.getvalue()])
            answers.write_text(json.dumps(told))
        if fate:
            time.sleep(_OUTLIVES_SECONDS)
    except BaseException as error:
        sys.stderr.write(f"process {rank}: {error!r}\n")
    finally:
        os._exit(code)


def _end_in_third_sum(fate: str) -> None:
    exchange, count = joined.JoinedProcesses.sum, iter(range(100))

    def sum_or_end(self: joined.JoinedProcesses, values: Any) -> Any:
        if next(count) == 2:
            if fate == "failing":
                raise ResourceError("here", "the disk is full", "Free some space.")
            os.kill(os.getpid(), signal.SIGKILL)
        return exchange(self, values)

    joined.JoinedProcesses.sum = sum_or_end  # type: ignore[method-assign]


def _never_write() -> None:
    """Let it be an error that a process other than the first writes."""

    def write(*_: object, **__: object) -> None:
        raise AssertionError("not the first process, and writes")

    for module, name in _WRITERS.items():
        assert name in vars(import_module(module))
        vars(import_module(module))[name] = write


if __name__ == "__main__":
    _main()

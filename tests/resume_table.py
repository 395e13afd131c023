"""Stop every method everywhere and go on: does it end like a run that was never stopped? Lines, and JSON.

    python -m tests.resume_table --out examples/results/resume.json
    python -m tests.resume_table --methods snowball lmcs --processes 1

Every run goes through the command line, each in a process of its own: 72 of the bundled digits as files of two widths,
so that they are decoded while training, by 0, 1 or 2 workers. A run that nothing stopped is compared with runs that
were stopped inside and at the end of each epoch (so in each phase), or killed with SIGKILL, and resumed, with
another number of workers. Compared bit for bit: weights and buffers (pseudo-labels, prototypes, memories), optimizer,
counters, tables (discovered.csv) and metrics.jsonl, but for the seconds. Two processes are what torchrun would start.
They do not end like one: batch normalization and sums are over other parts of a batch, and small differences grow.
"""

import argparse
import json
import os
import platform
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from labelkit.methods.registry import METHODS
from tests.short_runs import short_run

CLASSES, IMAGES_PER_CLASS = 6, 12
# Before and after the first, the second and the last cut; a worker takes two seconds of CPU to start, so not of all.
_WORKERS = ((2, 1), (1, 0), (0, 2))
_PROCESSES = "batch normalization and sums over other parts of a batch"


@dataclass(frozen=True)
class Outcome:
    """What a run left, as far as it has to be repeated.

    Attributes:
        arrays: bytes, type and shape of weights, buffers and optimizer, by file and name.
        texts: metrics.jsonl without seconds, tables, counters, by name.
    """

    arrays: dict[str, tuple[bytes, str, tuple[int, ...]]]
    texts: dict[str, Any]


def labelkit(
    *words: object, log: Path, processes: int = 1, kill_when: Callable[[], bool] | None = None, timeout: float = 300
) -> list[int]:
    """Run one labelkit command in processes of its own; returns their exit codes, negative for a signal.

    Args:
        words: after ``labelkit``.
        log: where what it prints goes.
        processes: of one run, as torchrun would start them.
        kill_when: send SIGKILL to all of them as soon as this is true.
        timeout: seconds after which they are killed.
    """
    _load_once()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = [_start([str(word) for word in words], rank, processes, port, log) for rank in range(processes)]
    codes: dict[int, int] = {}
    until = time.monotonic() + timeout
    while len(codes) < processes:
        for child in children:
            if child not in codes:
                done, status = os.waitpid(child, os.WNOHANG)
                codes |= {child: os.waitstatus_to_exitcode(status)} if done else {}
        failed = any(code not in (0, -signal.SIGKILL) for code in codes.values())
        if failed or time.monotonic() > until or (kill_when is not None and kill_when()):
            for child in children:
                if child not in codes:
                    os.kill(child, signal.SIGKILL)
        time.sleep(0.002 if kill_when else 0.02)
    return [codes[child] for child in children]


@cache
def _load_once() -> None:
    """Import what every process of a run needs before it is forked off, since that takes longer than the run."""
    for name in ("labelkit.commands.train.run", "torch._dynamo"):
        import_module(name)
    for spec in METHODS.values():
        spec.load()


def _start(words: list[str], rank: int, processes: int, port: int, log: Path) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        with log.open("ab") as said:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
        if processes > 1:
            names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
            os.environ |= {name: str(value) for name, value in names.items()}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        from labelkit.cli.main import main

        code = main(words)
        sys.stdout.flush()
    finally:
        os._exit(code)  # nothing of the parent's is this process's to clean up


def write_digits(folder: Path) -> Path:
    """Write some bundled digits as class folders; every second one is a column wider, so that memory holds none."""
    import numpy as np
    from labelkit.data.registry import load_dataset
    from PIL import Image

    digits = load_dataset("digits", data_root=folder)
    for label in range(CLASSES):
        (folder / str(label)).mkdir(parents=True)
        for row in (digits.labels == label).nonzero()[0][:IMAGES_PER_CLASS]:
            pixels = digits.source.read(int(row)).decode(1)[:, :, 0]
            pixels = np.pad(pixels, ((0, 0), (0, int(row) % 2)))
            Image.fromarray(pixels).save(folder / str(label) / f"{row}.png")
    return folder


def outcome(run: Path) -> Outcome:
    """Read what a finished run left."""
    from labelkit.training.checkpoint import load_checkpoint

    checkpoint = load_checkpoint(run)
    if checkpoint is None or checkpoint.warnings:
        raise SystemExit(f"{run}: no whole checkpoint")
    arrays = {}
    for file in ("model.safetensors", "training.safetensors"):
        for name, value in checkpoint.tensors(file).items():
            array = value.numpy()
            arrays[f"{file.partition('.')[0]} {name}"] = (array.tobytes(), str(array.dtype), array.shape)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in [*lines, checkpoint.state["metrics"]]:
        line.pop("seconds", None)
    texts: dict[str, Any] = {"metrics.jsonl": lines}
    texts |= {table.name: table.read_text().splitlines() for table in sorted(run.glob("*.csv"))}
    kept = ("epoch", "step", "phase", "metrics", "method", "monitor", "optimizer_scalars")
    texts |= {f"state {name}": checkpoint.state[name] for name in kept if name in checkpoint.state}
    return Outcome(arrays, texts)


def difference(whole: Outcome, other: Outcome) -> str:
    """Say how much two outcomes differ; empty if they do not."""
    import numpy as np

    if whole == other:
        return ""
    if whole.arrays.keys() != other.arrays.keys():
        return f"other tensors: {sorted(whole.arrays.keys() ^ other.arrays.keys())[:3]}"
    differing, largest = [], 0.0
    for name, (data, kind, shape) in whole.arrays.items():
        if other.arrays[name] == (data, kind, shape):
            continue
        differing.append(name)
        if other.arrays[name][1:] == (kind, shape):
            first, second = np.frombuffer(data, kind), np.frombuffer(other.arrays[name][0], kind)
            largest = max(largest, float(np.abs(first.astype(np.float64) - second.astype(np.float64)).max()))
    texts = [name for name in whole.texts if other.texts.get(name) != whole.texts[name]]
    parts = [f"{len(differing)} of {len(whole.arrays)} tensors, by up to {largest:.2g}"] if differing else []
    return "; ".join([*parts, *(f"{name} differs" for name in texts)])


def borders(run: Path) -> list[int]:
    """Steps at which the epochs of a finished run ended."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if "kind" not in line]


def cuts(ends: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Name a step inside each epoch that has one, and the step that ends it."""
    start = 0
    for epoch, end in enumerate(ends, start=1):
        if end - start > 1:
            yield f"inside epoch {epoch}", start + (end - start) // 2
        yield f"end of epoch {epoch}", end
        start = end


class Bench:
    """Runs of one method and what they come to.

    Args:
        method: its name.
        images: folder of images.
        folder: where the runs go.
        more: options of a variant of the method, as a command line has them; they replace those of the short run.
    """

    def __init__(self, method: str, images: Path, folder: Path, more: str = "") -> None:
        self.method = method
        self.folder = folder
        self.log = folder / f"{method}.log"
        fixed = "--preset digits --device cpu --threads 1 --log-every-steps 1"
        of_variant, short = shlex.split(more), shlex.split(short_run(method))
        kept = [
            word for pair in zip(short[::2], short[1::2], strict=True) if pair[0] not in of_variant for word in pair
        ]
        self.words = ["train", method, "--dataset", images, *shlex.split(fixed), *kept, *of_variant]
        self._wholes: dict[int, tuple[Path, Outcome]] = {}

    def train(self, out: Path, *more: object, processes: int = 1, **options: Any) -> list[int]:
        """Train into a folder."""
        return labelkit(*self.words, "--out", out, *more, log=self.log, processes=processes, **options)

    def _done(self, codes: list[int], what: str) -> None:
        if any(codes):
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
            raise SystemExit(f"{self.method}, {what}: exit codes {codes}\n{tail}")

    def whole(self, processes: int) -> tuple[Path, Outcome]:
        """The run that nothing stopped; trained once."""
        if processes not in self._wholes:
            out = self.folder / f"{self.method}-whole-{processes}"
            self._done(self.train(out, processes=processes), "whole")
            self._wholes[processes] = out, outcome(out)
        return self._wholes[processes]

    def cut(self, step: int, workers: tuple[int, int], processes: tuple[int, int]) -> str:
        """Stop at a step, go on with as many workers and processes; return the difference to the whole run."""
        out = self.folder / f"{self.method}-cut"
        before, after = ("--num-workers", workers[0]), ("--num-workers", workers[1])
        self._done(self.train(out, *before, "--stop-after-steps", step, processes=processes[0]), f"cut at {step}")
        self._done(self.train(out, *after, "--resume", processes=processes[1]), f"resumed at {step}")
        found = difference(self.whole(processes[0])[1], outcome(out))
        shutil.rmtree(out)
        return found

    def kill(self, lines: int) -> str:
        """Send SIGKILL when so many lines are in metrics.jsonl, go on; return the difference to the whole run."""
        out = self.folder / f"{self.method}-killed"
        metrics = out / "metrics.jsonl"

        def is_there() -> bool:
            return metrics.exists() and metrics.read_bytes().count(b"\n") >= lines

        codes = self.train(out, kill_when=is_there)
        if codes != [-signal.SIGKILL]:
            self._done(codes, "killed")
            raise SystemExit(f"{self.method}: was over before it could be killed")
        self._done(self.train(out, "--resume"), "resumed after SIGKILL")
        found = difference(self.whole(1)[1], outcome(out))
        shutil.rmtree(out)
        return found

    def rows(self, processes: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Yield one row of the table after the other."""

        def row(cut: str, workers: str, processes: str, found: str, expected: str = "") -> dict[str, Any]:
            result = f"differs: {found}" if found else "equal"
            reason = {"reason": expected} if found and expected else {}
            facts = {"method": self.method, "cut": cut, "workers": workers, "processes": processes}
            return {**facts, "result": result, **reason}

        if 1 in processes:
            ends = borders(self.whole(1)[0])
            named = list(cuts(ends))
            turns = [*_WORKERS[:2], *[(0, 0)] * (len(named) - 3), _WORKERS[2]]
            for (name, step), (first, second) in zip(named, turns, strict=True):
                yield row(name, f"{first}, then {second}", "1", self.cut(step, (first, second), (1, 1)))
            yield row("SIGKILL", "0", "1", self.kill(lines=ends[0] + 2))
        if 2 in processes:
            ends = borders(self.whole(2)[0])
            for name, step in list(cuts(ends))[:2]:
                yield row(name, "0", "2", self.cut(step, (0, 0), (2, 2)))
            found = difference(self.whole(1)[1], self.whole(2)[1])
            yield row("none", "0", "2 against 1", found, _PROCESSES)


def record(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Put rows into a JSON file, in place of those of the same runs."""
    import torch
    from labelkit import __version__

    def key(row: dict[str, Any]) -> tuple[str, ...]:
        return row["method"], row["processes"], row["cut"]

    before = json.loads(path.read_text()) if path.exists() else {"rows": []}
    made = {key(row): row for row in rows}
    found = {key(row): row for row in before["rows"]} | made
    # a stable sort: cuts stay in their order
    ordered = sorted(found.values(), key=lambda row: (row["method"], row["processes"]))
    facts = {"labelkit": __version__, "torch": torch.__version__, "processor": platform.machine()}
    if found.keys() != made.keys():  # some rows are older, and so perhaps of another version
        facts = {name: ", ".join(dict.fromkeys([*before[name].split(", "), now])) for name, now in facts.items()}
    options = {method: short_run(method) for method in dict.fromkeys(row["method"] for row in ordered)}
    images = {"images": CLASSES * IMAGES_PER_CLASS, "options": options}
    path.write_text(json.dumps({**facts, **images, "rows": ordered}, indent=1) + "\n")


def main() -> int:
    """Run the table; 1 if something differs that should not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--processes", nargs="+", type=int, choices=(1, 2), default=[1, 2])
    parser.add_argument("--out", type=Path, help="JSON file to write; rows of runs not made now are kept")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded; its threads would not survive a fork
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        images = write_digits(Path(name) / "digits")
        for method in options.methods:
            for row in Bench(method, images, Path(name)).rows(options.processes):
                sys.stderr.write(" | ".join(str(value) for value in row.values()) + "\n")
                rows.append(row)
            if options.out is not None:
                record(options.out, rows)
            for leftover in Path(name).glob(f"{method}-*"):
                shutil.rmtree(leftover)
    return int(any(row["result"] != "equal" and "reason" not in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())

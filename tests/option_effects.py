"""Change every option of a training method, one at a time: does a short run show it?

    python -m tests.option_effects --methods softmax lmcs

A run on 72 digits is compared with the same run of a single other option: weights, optimizer, metrics, tables, files,
messages. It ends at the first line of metrics.jsonl that differs. ``tests/option_contexts.py`` says what acts only
under other options, and what no such run can show.
"""

import argparse
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin
from unittest.mock import patch

from labelkit.commands.train.run import train_method
from labelkit.errors import DivergenceError, LabelkitError
from labelkit.methods.registry import METHODS
from labelkit.options.presets import resolve_config
from labelkit.options.training import RunConfig
from labelkit.progress import use_progress
from labelkit.training import guards
from labelkit.training.run_dir import RunDir
from tests.option_contexts import CONTEXTS, LESS, REFUSED, UNSEEN, VALUES, prepare
from tests.resume_table import outcome
from tests.running import Heard
from tests.short_runs import short_run

TRIED = 4
"""Most values of an option that are tried until one acts."""

What = Literal["acts", "acts under others", "is refused", "cannot be seen", "does nothing"]


class Differs(Exception):  # noqa: N818 - it is no error
    """A run has shown that it is another one."""


@dataclass
class Found:
    """What a run was.

    Attributes:
        refused: why it was refused; empty if it was not.
        lines: of metrics.jsonl, without seconds.
        left: all else that it left or said.
    """

    refused: str = ""
    lines: list[dict[str, str]] = field(default_factory=list)
    left: object = None


@contextmanager
def watched(lines: list[dict[str, str]], expected: Found | None) -> Iterator[None]:
    """Keep the lines that a run logs; end it at the first that is not as expected."""
    log = RunDir.log

    def compare(run: RunDir, record: Mapping[str, Any]) -> None:
        log(run, record)
        lines.append({name: repr(value) for name, value in record.items() if name != "seconds"})
        if expected is not None and expected.lines[: len(lines)] != lines:
            raise Differs

    # the guards look at features after 8,192 images, which a short run does not see
    with patch.object(RunDir, "log", compare), patch.object(guards, "IMAGES_PER_CHECK", 0):
        yield


class Trials:
    """Runs of one method.

    Args:
        method: its name.
        folder: what ``prepare`` filled; the runs go there too.
    """

    def __init__(self, method: str, folder: Path) -> None:
        self.method, self.config, self.folder = method, METHODS[method].config, folder
        words = shlex.split(short_run(method))
        self._options: dict[str, object] = {"dataset": "{folder}/digits", "device": "cpu", "log_every_steps": 1}
        self._options |= {
            word[2:].replace("-", "_"): value for word, value in zip(words[::2], words[1::2], strict=True)
        }
        self._options |= LESS.get(method, {})
        self._bases: dict[str, Found] = {}

    def _resolve(self, options: Mapping[str, object]) -> RunConfig:
        given = {**self._options, **options}
        placed = {
            name: value.format(folder=self.folder) if isinstance(value, str) else value for name, value in given.items()
        }
        if "index" in options:
            del placed["dataset"]
        return resolve_config(self.config, preset="index" if "index" in options else "digits", overrides=placed).config

    def run(self, options: Mapping[str, object], expected: Found | None = None) -> Found | None:
        """Train with options; ``None`` if the run is another one than expected."""
        out = self.folder / "run" / "out"
        shutil.rmtree(out.parent, ignore_errors=True)
        out.parent.mkdir()
        said, found = Heard(), Found()
        try:
            config = self._resolve({"out": out, **options})
            with use_progress(said), watched(found.lines, expected):
                result = train_method(config)
        except Differs:
            return None
        except DivergenceError as error:
            found.left = str(error)
            return found
        except LabelkitError as error:
            return Found(refused=str(error))
        files = sorted(str(path.relative_to(out.parent)) for path in out.parent.rglob("*"))
        if not out.exists():  # a dry run
            found.left = files
            return found
        values = {name: value for name, value in result.values.items() if name not in ("metrics", "seconds")}
        shown = [(table.title, table.columns, [row[:-1] for row in table.rows]) for table in result.shown]  # no seconds
        found.left = (outcome(out), values, shown, files, (out / "split.json").read_text(), vars(said))
        return found

    def base(self, context: Mapping[str, object]) -> Found:
        """The run of a context, trained once; many a context says what the preset says."""
        try:
            key = repr(self._resolve(context))
        except LabelkitError as error:
            return Found(refused=str(error))
        if key not in self._bases:
            found = self.run(context)
            assert found is not None
            self._bases[key] = found
        return self._bases[key]

    def trial(self, name: str, context: Mapping[str, object]) -> tuple[What, str]:
        """Change an option until it acts; also say by which value, or what was tried."""
        base = self.base(context)
        value = getattr(self._resolve(context), name)
        values = _of_method(VALUES, self.method, name)
        if values is None:
            values = list(candidates(self.config.model_fields[name].annotation, value))
        tried = []
        for other in [other for other in values if other != value][:TRIED]:
            found = self.run({**context, name: other}, None if base.refused else base)
            if found is None or (not found.refused and found != base):
                return "acts under others" if context else "acts", str(other)
            tried.append(f"{other}: {found.refused or 'the same'}")
            if not found.refused and name not in VALUES and len(tried) == 2:
                break  # two numbers are enough
        everything_refused = tried and not any(text.endswith(": the same") for text in tried)
        if everything_refused and not base.refused and {name, f"{self.method}.{name}"} & set(REFUSED.split()):
            return "is refused", tried[0]
        return "does nothing", "; ".join(tried) + (f" (under its context: {base.refused})" if base.refused else "")


def candidates(annotation: object, value: object) -> Iterator[object]:
    """Yield other values of a type than this one; limits are not looked at."""
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    for member in members:
        if member is bool:
            yield not value
        elif get_origin(member) is Literal:
            yield from (choice for choice in get_args(member) if choice != value)
        elif member is int:
            yield from (value + 1, 2 * value, value - 1) if isinstance(value, int) else (2, 1, 3)
        elif member is float:
            yield from (value / 2, 2 * value) if isinstance(value, float) and value else (0.5, 0.25, 2.0)
        elif get_origin(member) is tuple and value:
            yield tuple(type(part)(part / 2) for part in value)  # type: ignore[attr-defined]


def _of_method(table: Mapping[str, Any], method: str, name: str) -> Any:
    return table.get(f"{method}.{name}", table.get(name))


def context_of(method: str, name: str) -> dict[str, object]:
    """Return the options under which one acts."""
    names = {name, f"{method}.{name}"}
    return next((context for _, context, options in CONTEXTS if names & set(options.split())), {})


def effects(method: str, folder: Path) -> Iterator[tuple[str, What, str]]:
    """Yield each option of a method, what its change came to, and by which value or why.

    Raises:
        AssertionError: a run of the defaults is refused, or does not repeat itself.
    """
    trials = Trials(method, folder)
    base = trials.base({})
    assert not base.refused, base.refused
    shutil.rmtree(folder / "earlier", ignore_errors=True)
    shutil.copytree(folder / "run" / "out", folder / "earlier")
    assert trials.run({}) == base, "a run does not repeat itself"
    for name in METHODS[method].config.model_fields:
        names = {name, f"{method}.{name}"}
        reason = next((reason for reason, options in UNSEEN.items() if names & set(options.split())), "")
        yield (name, "cannot be seen", reason) if reason else (name, *trials.trial(name, context_of(method, name)))


def main() -> int:
    """Print the options that do nothing, and counts; 1 if there is any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    methods = parser.parse_args().methods
    os.environ["OMP_NUM_THREADS"] = "1"
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        for method in methods:
            started, counts = time.process_time(), Counter[str]()
            for option, what, how in effects(method, Path(name)):
                counts[what] += 1
                if what == "does nothing":
                    sys.stdout.write(f"{method} --{option.replace('_', '-')} {what}: {how}\n")
            total += counts
            seconds = time.process_time() - started
            sys.stdout.write(f"{method}: {dict(counts)}, {seconds:.0f} s of CPU\n")
            sys.stdout.flush()
    sys.stdout.write(f"all: {dict(total)}\n")
    return int(total["does nothing"] > 0)


if __name__ == "__main__":
    sys.exit(main())

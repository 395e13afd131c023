"""Seed faults of one line each, and tell which of them the quick tests notice.

python -m tests.faults --number 300 --out build/before.json
python -m tests.faults --list build/before.json --out build/after.json    # the same faults, after the tests changed

Each fault stands in a copy of what git's index holds. The test files nearest to its module run, up to the first test
that fails, in a process forked from one that has loaded the libraries and not labelkit. A test that fails without the
fault, too, is told at the end and does not count. Faults that change no result are never caught: compare two lists.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LIBRARIES = ("torch", "torchvision", "timm", "sklearn.linear_model", "faiss", "scipy.optimize", "pydantic", "typer")
LIBRARIES += ("h5py", "pandas", "accelerate", "hypothesis", "pytest", "sklearn.datasets", "PIL.Image")
TURNED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "is not": "is"}
TURNED |= {"in": "not in", "not in": "in", "and": "or", "or": "and", "+": "-", "-": "+", "*": "/", "/": "*", "//": "*"}
OPERATOR = re.compile(r"not in|is not|\bin\b|\bis\b|\band\b|\bor\b|<<|>>|[<>=!]=|//|\*\*|[<>+*/%@&|-]")
UNTOUCHED = (ast.JoinedStr, ast.Raise, ast.Import, ast.ImportFrom, ast.Assert)


def _changes(node: ast.AST, line: str) -> Iterator[tuple[str, int, int, str]]:
    """Kind of a fault, first and last column, and what stands there instead, of one node on one line."""
    start, stop = getattr(node, "col_offset", 0), getattr(node, "end_col_offset", 0)
    kind, left, right = "", node, node
    match node:
        case ast.Compare(left=left, comparators=[right, *_]):
            kind = "comparison"
        case ast.BoolOp(values=[left, right, *_]):
            kind = "and/or"
        case ast.BinOp(left=left, right=right):
            kind = "arithmetic"
        case ast.Constant(value=bool(value)):
            yield "constant", start, stop, str(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield "constant", start, stop, repr(value + 1 if isinstance(value, int) or not value else value * 2)
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test) if test.end_lineno == test.lineno:
            first, last = test.col_offset, test.end_col_offset or 0
            yield "condition", first, last, f"(not ({line[first:last]}))"
        case ast.Return(value=ast.expr()):
            yield "return", start, stop, "return None"
        case ast.Slice(lower=lower, upper=upper):
            for bound in (lower, upper):
                if bound is not None and bound.lineno == bound.end_lineno:
                    first, last = bound.col_offset, bound.end_col_offset or 0
                    yield "slice", first, last, f"({line[first:last]}) + 1"
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise():
            yield "statement", start, stop, "pass"
    if kind and left.end_lineno == right.lineno == node.lineno:
        found = OPERATOR.search(line, left.end_col_offset, right.col_offset)
        if found and found.group() in TURNED:
            yield kind, found.start(), found.end(), TURNED[found.group()]


def _nodes(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """All nodes in which a fault may stand, and the field of its parent that each stands in."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or name in ("annotation", "returns", "decorator_list"):
                continue
            yield child, name
            if not isinstance(child, UNTOUCHED):
                yield from _nodes(child)


def faults_of(path: Path) -> list[dict[str, Any]]:
    """All faults of one file: kind, file, line, text of the line before and after."""
    lines, found = path.read_text().splitlines(), []
    for node, field in _nodes(ast.parse(path.read_text())):
        number, line = getattr(node, "lineno", 0), lines[getattr(node, "lineno", 1) - 1]
        on_one = getattr(node, "end_lineno", 0) == number or isinstance(node, (ast.If, ast.While))
        if not number or not on_one or not line.isascii() or "TYPE_CHECKING" in line:
            continue
        for kind, start, stop, text in _changes(node, line):
            named = "default" if field in ("defaults", "kw_defaults") else kind
            after = line[:start] + text + line[stop:]
            found.append({"kind": named, "file": str(path), "line": number, "was": line, "fault": after})
    return found


def draw(number: int, seed: int) -> list[dict[str, Any]]:
    """Some faults of this tree, as many of each kind, no two in one line."""
    kinds: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in sorted(Path("labelkit").rglob("*.py")):
        for fault in faults_of(path):
            kinds[fault["kind"]].append(fault)
    generator = random.Random(seed)
    for faults in kinds.values():
        generator.shuffle(faults)
    drawn: dict[tuple[str, int], dict[str, Any]] = {}
    while len(drawn) < number:
        for kind in sorted(kinds):
            fault = kinds[kind].pop()
            drawn.setdefault((fault["file"], fault["line"]), fault)
    return list(drawn.values())[:number]


def tests_of(tree: Path, file: str) -> list[str]:
    """Test files that name a module, then those that name one of its users, then the rest of its room; short first."""
    path = Path(file).with_suffix("")
    path = path.parent if path.name == "__init__" else path

    def naming(module: Path, folder: str) -> set[Path]:
        dotted, parent = ".".join(module.parts), ".".join(module.parts[:-1])
        name = re.compile(rf"{re.escape(dotted)}\b|from {re.escape(parent)} import [^\n]*\b{module.name}\b")
        return {found for found in (tree / folder).rglob("*.py") if name.search(found.read_text())}

    of_its_name = {found for found in (tree / "tests").rglob("test_*.py") if path.name.strip("_") in found.stem}
    users = [found.relative_to(tree).with_suffix("") for found in naming(path, "labelkit")]
    rounds = [
        naming(path, "tests") | {found for found in of_its_name if path.parts[1] in found.parts},
        of_its_name.union(*(naming(user, "tests") for user in users)),
        set((tree / "tests" / path.parts[1]).rglob("*.py")),
    ]
    chosen: list[Path] = []
    for found in rounds:
        tests = {one for one in found - set(chosen) if one.name.startswith("test_") and "torture" not in one.parts}
        chosen += sorted(tests, key=lambda one: (one.stat().st_size, one))
    return [str(one.relative_to(tree)) for one in chosen]


class Watch:
    """A plugin that notes the tests that fail, and ends the tests when they have used their CPU time."""

    def __init__(self, seconds: float, report: Path) -> None:
        self.seconds, self.report = seconds, report

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            with self.report.open("a") as file:
                file.write(report.nodeid + "\n")

    pytest_collectreport = pytest_runtest_logreport

    def pytest_runtest_teardown(self, item: Any) -> None:
        usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        if sum(one.ru_utime + one.ru_stime for one in usage) > self.seconds:
            item.session.shouldstop = "its time is up"


def _run_here(tree: Path, words: Sequence[str], watch: Watch) -> None:
    """Run tests of a tree in this process, which has loaded the libraries only, and end it."""
    os.setsid()
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree)
    os.dup2(os.open(tree.with_name("output.txt"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
    os.dup2(1, 2)
    limit = int(watch.seconds) + 60
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 30))
    sys.path[:] = [str(tree), *(path for path in sys.path if path not in ("", str(ROOT)))]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    import pytest

    options = "-q --timeout=240 -p no:cacheprovider -p no:xdist -p no:cov".split()
    options += ["-W", "ignore:Module already imported"]
    os._exit(pytest.main([*words, *options], plugins=[watch]))


def run_tests(tree: Path, words: Sequence[str], seconds: float) -> list[str]:
    """Run tests of a tree in a forked process; those that fail, or one line if the process ends by itself."""
    report = tree.with_name("failed.txt")
    report.write_text("")
    child = os.fork()
    if not child:
        try:
            _run_here(tree, words, Watch(seconds, report))
        except BaseException:  # the rest is the parent's
            traceback.print_exc()
        finally:
            os._exit(3)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what a fault left running
    failed = report.read_text().splitlines()
    code = os.waitstatus_to_exitcode(status)
    return failed or ([] if code in (0, 2, 5) else [f"the tests' process ends with {code}"])


def seed_fault(tree: Path, fault: dict[str, Any], words: Sequence[str], seconds: float) -> list[str]:
    """Run tests of a tree with a fault, up to the first that fails; what fails."""
    path = tree / fault["file"]
    text = path.read_text()
    lines = text.splitlines()
    if lines[fault["line"] - 1] != fault["was"]:
        raise SystemExit(f"{fault['file']}:{fault['line']} is another line now")
    lines[fault["line"] - 1] = fault["fault"]
    path.write_text("\n".join(lines) + "\n")
    failed = run_tests(tree, [*words, "-x"], seconds)
    path.write_text(text)
    os.utime(path, (time.time() + 5, time.time() + 5))  # another time than the file with the fault had
    return failed


def main() -> None:
    """Draw or read faults, try each, write and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--number", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", type=Path, help="faults of an earlier run, in its file")
    parser.add_argument("--seconds", type=float, default=60, help="CPU seconds of the tests of one fault")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    os.chdir(ROOT)
    os.environ["OMP_NUM_THREADS"] = "1"
    faults = json.loads(options.list.read_text()) if options.list else draw(options.number, options.seed)
    for library in LIBRARIES:
        __import__(library)
    done = json.loads(options.out.read_text()) if options.out.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "checkout-index", "--all", f"--prefix={tree}/"], cwd=ROOT, check=True)
        for fault in faults[len(done) :]:
            start, tests = time.time(), tests_of(tree, fault["file"])
            failed = seed_fault(tree, fault, tests, options.seconds)
            done.append({**fault, "caught by": failed[:1], "seconds": round(time.time() - start, 1)})
            options.out.write_text(json.dumps(done, indent=1))
            sys.stdout.write(f"{fault['file']}:{fault['line']}  {fault['fault'].strip()}\n    {failed[:1]}\n")
            sys.stdout.flush()
        catching = {test for fault in done for test in fault["caught by"] if "::" in test}
        broken = set(run_tests(tree, sorted(catching), 1e6)) if catching else set()
    for name in sorted(broken):
        sys.stdout.write(f"fails without a fault, too: {name}\n")
    rooms: dict[str, list[bool]] = defaultdict(list)
    for fault in done:
        caught = bool(fault["caught by"]) and fault["caught by"][0] not in broken
        for room in (fault["file"].split("/")[1], "all"):
            rooms[room].append(caught)
    for room, caught_here in sorted(rooms.items()):
        sys.stdout.write(f"{room:<20}{sum(caught_here):4} of {len(caught_here)}\n")


if __name__ == "__main__":
    main()

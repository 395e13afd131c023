"""List what to read to know a method whole: the files that it imports, without the folders that all methods share.

python -m tests.method_files             # a line per method: files and lines
python -m tests.method_files flipclass   # its files
"""

import ast
import sys
from pathlib import Path

import labelkit
from labelkit.methods.registry import METHODS

ROOT = Path(labelkit.__file__).parent
SHARED = ("losses", "models", "data", "store", "metrics", "algorithms", "training", "options")


def imported_files(path: Path) -> set[Path]:
    """Files of labelkit that a file imports, in functions too, outside of the shared folders."""
    found: set[Path] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("labelkit."):
            continue
        parent = ROOT.joinpath(*str(node.module).split(".")[1:])
        for target in (parent, *(parent / alias.name for alias in node.names)):
            file = target.with_suffix(".py")
            room = file.relative_to(ROOT).parts[0]
            if file.exists() and room not in SHARED and room != file.name:
                found.add(file)
    return found


def files_of(method: str) -> list[Path]:
    """All files to read for a method, itself first."""
    if method not in METHODS:
        sys.exit(f"{method}: no method of this name has a row in labelkit/methods/registry.py: {', '.join(METHODS)}")
    spec = METHODS[method]
    module = str(spec.target).partition(":")[0]
    found = [ROOT.joinpath(*module.split(".")[1:]).with_suffix(".py")]
    for path in found:
        found += sorted(imported_files(path) - set(found))
    return found


def num_lines(paths: list[Path]) -> int:
    """Lines of some files."""
    return sum(len(path.read_text().splitlines()) for path in paths)


def main(names: list[str]) -> None:
    """Print the files of some methods, or the numbers of all."""
    for name in names:
        for path in files_of(name):
            sys.stdout.write(f"{num_lines([path]):5} {path.relative_to(ROOT.parent)}\n")
    if not names:
        for name in METHODS:
            paths = files_of(name)
            sys.stdout.write(f"{name:<13}{len(paths):3} files {num_lines(paths):6,} lines\n")


if __name__ == "__main__":
    main(sys.argv[1:])

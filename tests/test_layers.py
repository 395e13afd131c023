"""What files import: packages of others by one door, no circles, names from the file that defines them."""

import ast
from functools import cache
from pathlib import Path

import labelkit.losses
import pytest
from labelkit.methods.registry import METHODS

ROOT = Path(labelkit.__file__).parent
FILES = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in ROOT.rglob("*.py")
}

DOORS = {
    # Of foreign files, more is read than a store may hold.
    "h5py": {"store/reader.py", "store/writer.py", "store/foreign.py"},
    "faiss": {"algorithms/neighbors.py", "algorithms/indexes.py", "algorithms/clustering.py"},
    "timm": {"models/backbones/vit.py", "models/backbones/registry.py", "models/weights/published.py"},
    "accelerate": {"training/devices.py"},
    "matplotlib": {"commands/common/images/plots.py"},
    "jinja2": {"studio/report/page.py"},
    "typer": {"cli"},
    "rich": {"cli"},
    "click": set(),
    "pyarrow": {"data/archives.py", "studio/label/sets.py"},
    "pandas": {"store/frame.py"},
    "scipy.io": {"data/named/layouts.py"},
    "fsspec": {"data/remote.py"},
}
PLAIN_ARGUMENTS = ("losses", "models", "metrics", "store", "algorithms")


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text())))


@cache
def imported_modules(path: Path) -> set[str]:
    found: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def test_packages_enter_through_their_own_modules_only() -> None:
    strangers = [
        (path.relative_to(ROOT).as_posix(), package)
        for path in FILES.values()
        for package, doors in DOORS.items()
        if any(f"{module}.".startswith(f"{package}.") for module in imported_modules(path))
        and not any(path.is_relative_to(ROOT / door) for door in doors)
    ]
    assert strangers == []


@pytest.mark.parametrize("package", PLAIN_ARGUMENTS)
def test_pure_packages_take_plain_arguments_instead_of_configs(package: str) -> None:
    importers = [
        path.name
        for path in (ROOT / package).rglob("*.py")
        if any(module.startswith("labelkit.options") for module in imported_modules(path))
    ]

    assert importers == []


def imported_names(path: Path) -> list[tuple[str, str]]:
    """Module and name of each ``from labelkit... import`` of a file, in functions too."""
    return [
        (node.module, alias.name)
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom) and (node.module or "") in FILES
        for alias in node.names
    ]


def defined_names(path: Path) -> set[str]:
    """Names that a file defines, as opposed to those it imports."""
    found: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def needed_files(module: str) -> set[str]:
    """Files of labelkit that a file imports, in functions too."""
    path = FILES[module]
    named = {f"{parent}.{name}" if f"{parent}.{name}" in FILES else parent for parent, name in imported_names(path)}
    whole = {alias.name for node in nodes(path) if isinstance(node, ast.Import) for alias in node.names}
    return named | (whole & set(FILES))


def without_ends(needs: dict[str, set[str]]) -> dict[str, set[str]]:
    """Leave out files that need no other one, again and again: what stays needs a circle."""
    while ends := {module for module, needed in needs.items() if not needed}:
        needs = {module: needed - ends for module, needed in needs.items() if module not in ends}
    return needs


def test_no_two_files_import_each_other_directly_or_over_others() -> None:
    stuck = without_ends({module: needed_files(module) for module in FILES})
    circles = without_ends({module: {other for other in stuck if module in stuck[other]} for module in stuck})

    assert circles == {}


def test_inside_of_labelkit_names_are_imported_from_the_file_that_defines_them() -> None:
    defined = {module: defined_names(path) for module, path in FILES.items()}
    indirect = [
        f"{module}: {name} of {parent}"
        for module, path in FILES.items()
        if path.name != "__init__.py"
        for parent, name in imported_names(path)
        if name not in defined[parent] and f"{parent}.{name}" not in FILES
    ]

    assert indirect == []


def test_every_public_loss_is_exported_by_the_package_of_losses() -> None:
    public = {
        node.name
        for path in (ROOT / "losses").glob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
    }

    assert public == set(labelkit.losses.__all__)


def test_a_folder_of_tests_has_the_name_of_the_folder_it_tests() -> None:
    tests = Path(__file__).parent
    folders = {path.parent.relative_to(tests) for path in tests.glob("*/*/**/test_*.py")}

    strangers = {folder.as_posix() for folder in folders if not (ROOT / folder).is_dir()}

    assert strangers == set()


SHARED_OPTIONS = ("representation", "prototypes")
"""Modules of ``labelkit.options`` with options of some methods that are of several families."""


def names_of_methods() -> set[str]:
    """Return the classes of all methods, and of the options that only some methods have."""
    options = (base for spec in METHODS.values() for base in spec.config.__mro__)
    return {spec.target.partition(":")[2] for spec in METHODS.values()} | {
        base.__name__
        for base in options
        if base.__module__.startswith("labelkit.methods.") or base.__module__.split(".")[-1] in SHARED_OPTIONS
    }


def names_used(path: Path) -> set[str]:
    """Return what the code of a file calls things by; comments and docstrings may tell where an idea comes from."""
    nodes = ast.walk(ast.parse(path.read_text()))
    found = {getattr(node, key, None) for node in nodes for key in ("id", "attr", "name")}
    return {name for name in found if isinstance(name, str)}


@pytest.mark.parametrize("package", ["training", "commands/train", "pipelines/compare"])
def test_what_trains_every_method_names_none(package: str) -> None:
    files, methods = list((ROOT / package).rglob("*.py")), names_of_methods()

    named = {f"{path.name}: {name}" for path in files for name in names_used(path) & methods}

    assert files
    assert named == set()

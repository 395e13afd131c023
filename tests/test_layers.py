"""Each third-party package with a format, a device or a terminal behind it enters through one module."""

from __future__ import annotations

import ast
from pathlib import Path

import labelkit
import pytest

ROOT = Path(labelkit.__file__).parent

DOORS = {
    # Of foreign files, a process of its own reads more than a store may hold.
    "h5py": {"store/hdf5", "store/foreign/hdf5.py"},
    "faiss": {"algorithms/neighbors.py"},
    "timm": {"models/vit.py", "models/backbones.py"},
    "accelerate": {"engine/devices.py"},
    "matplotlib": {"stages/pictures/plots.py"},
    "jinja2": {"stages/report/page.py"},
    "typer": {"cli"},
    "rich": {"cli"},
    "click": set(),
    "pyarrow": {"stages/exchange/parquet.py"},
    "scipy.io": {"data/matlab.py"},
}
PLAIN_ARGUMENTS = ("losses", "models", "metrics", "store", "algorithms")


def imported_modules(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("package", sorted(DOORS))
def test_package_enters_through_its_own_module_only(package: str) -> None:
    importers = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        if any(f"{module}.".startswith(f"{package}.") for module in imported_modules(path))
    }

    doors = DOORS[package]
    strangers = {name for name in importers if not any(f"{name}/".startswith(f"{door}/") for door in doors)}

    assert strangers == set()


@pytest.mark.parametrize("package", PLAIN_ARGUMENTS)
def test_pure_packages_take_plain_arguments_instead_of_configs(package: str) -> None:
    importers = [
        path.name
        for path in (ROOT / package).rglob("*.py")
        if any(module.startswith("labelkit.config") for module in imported_modules(path))
    ]

    assert importers == []


def test_package_itself_holds_only_the_version() -> None:
    assert imported_modules(ROOT / "__init__.py") == set()

"""Lazy imports: names of a package are imported on first use, so that using one does not load all of them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_exports(package: str) -> tuple[Callable[[str], Any], list[str]]:
    """Return a module's ``__getattr__``, which imports its ``if TYPE_CHECKING:`` names on first use, and ``__all__``.

    Args:
        package: name of the package that is being imported.
    """
    file = sys.modules[package].__file__
    assert file is not None
    blocks = [node for node in ast.parse(Path(file).read_text("utf-8")).body if isinstance(node, ast.If)]
    lines = [line for block in blocks for line in block.body if isinstance(line, ast.ImportFrom)]
    modules = {name.name: line.module or package for line in lines for name in line.names}

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(modules[name]), name)

    return get, list(modules)

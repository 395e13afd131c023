"""User-defined methods, loaded from the files or modules listed in ``LABELKIT_METHODS``.

These files are executed as code. Only the environment variable can name them; checkpoints, stores and options cannot.
"""

import hashlib
import os
import sys
from collections.abc import Container
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from labelkit.errors import ConfigError
from labelkit.files import sha256_file
from labelkit.methods import OWN_METHODS_VARIABLE
from labelkit.methods.spec import MethodSource, MethodSpec

TABLE_NAME = "METHODS"
"""Name of the dictionary in such a file that maps method names to ``MethodSpec`` objects."""


def import_user_methods(files: str, shipped: Container[str]) -> tuple[dict[str, MethodSpec], dict[str, MethodSource]]:
    """Import a user's method files or modules and return their methods and sources.

    Args:
        files: file or module names, separated as in PATH; file names end with ``.py``.
        shipped: names of the methods that labelkit ships.

    Raises:
        ConfigError: a file does not exist or cannot be imported, or its table is invalid.
    """
    found: dict[str, MethodSpec] = {}
    sources: dict[str, MethodSource] = {}
    for source in dict.fromkeys(filter(None, files.split(os.pathsep))):
        module = _import_source(source)
        table = getattr(module, TABLE_NAME, None)
        if not isinstance(table, dict) or not table:
            raise _source_error(
                source, f"does not define {TABLE_NAME}", f'Add {TABLE_NAME} = {{"my-method": MethodSpec(...)}} to it.'
            )
        path = Path(str(module.__file__))
        where = MethodSource(path.name if source.endswith(".py") else source, path, sha256_file(path))
        for name, spec in table.items():
            _check_spec(source, name, spec)
            if name in found or name in shipped:
                raise _source_error(
                    source, f"defines a method named {name!r}, which is already taken", "Choose another name."
                )
            found[name] = spec
            sources[name] = where
    return found, sources


def _import_source(source: str) -> ModuleType:
    is_file = source.endswith(".py")
    if is_file and not Path(source).is_file():
        raise _source_error(str(Path(source).absolute()), "no such file", "Correct the path, or unset the variable.")
    try:
        module = _import_file(Path(source).resolve()) if is_file else import_module(source)
    except (Exception, SystemExit) as error:  # user code may raise anything
        problem = f"cannot be imported: {type(error).__name__}: {error}"
        raise _source_error(source, problem, f"Correct the file, or unset {OWN_METHODS_VARIABLE}.") from error
    if module.__file__ is None:
        raise _source_error(source, "is a folder, not a module", f"Name the module that defines {TABLE_NAME}.")
    return module


def _import_file(path: Path) -> ModuleType:
    """Import a file under a unique module name, letting it import other modules in its folder."""
    name = f"labelkit_own_{path.stem}_{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"
    spec = spec_from_file_location(name, path)
    assert spec is not None  # it ends with .py
    assert spec.loader is not None
    module = module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    sys.modules[name] = module  # classes resolve the names in their annotations here
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _check_spec(source: str, name: object, spec: object) -> None:
    """Raise ``ConfigError`` unless an entry of a user's table defines a method."""
    if not isinstance(spec, MethodSpec):
        raise _source_error(source, f"the entry {name!r} is not a MethodSpec", "See labelkit.methods.spec.")
    command = getattr(spec.options, "command", None)
    if command != ("train", name):
        problem = f"the options class of {name!r} must have the command {('train', name)}, got {command}"
        raise _source_error(source, problem, f'Set `command = ("train", "{name}")` in the class.')


def _source_error(source: str, problem: str, remedy: str) -> ConfigError:
    return ConfigError(OWN_METHODS_VARIABLE, f"{source}: {problem}", remedy)

"""Write ``labelkit/__init__.pyi``, from which editors and type checkers know every function and option.

Run ``python -m labelkit.api.stub`` after changing an option; a test compares the file with the output of this module.
"""

import types
from pathlib import Path
from typing import Literal, Union, get_args, get_origin

import labelkit
from labelkit.api import python_name
from labelkit.api.functions import SOURCES
from labelkit.commands.table import COMMANDS, Command, Group
from labelkit.options.base import StageConfig

STUB = Path(labelkit.__file__).with_suffix(".pyi")

_HEAD = '''\
# Written by `python -m labelkit.api.stub`; do not edit.
"""labelkit: learn image representations and labels with few labels or none."""

from collections.abc import Sequence
from os import PathLike
from typing import Literal, final

from labelkit import errors as errors
from labelkit.api.network import Network as Network
from labelkit.api.network import load_network as load_network
from labelkit.api.result import Result as Result
from labelkit.store.frame import Store as Store
from labelkit.store.frame import open_store as open_store

__version__: str
'''


def render_stub() -> str:
    """Return the text of the type stub ``labelkit/__init__.pyi``."""
    parts = [_HEAD]
    for word, entry in COMMANDS.items():
        name = python_name(word)
        if isinstance(entry, Group):
            functions = "\n".join(_render_function(below, command, "    ") for below, command in entry.commands.items())
            parts.append(f"@final\nclass _{name.title()}:\n{functions}\n{name}: _{name.title()}\n")
        else:
            parts.append(_render_function(word, entry, ""))
    return "\n".join(parts)


def _render_function(word: str, command: Command, pad: str) -> str:
    config_class = command.config_class()
    parameters = [
        *_render_parameters(config_class),
        *(f"{name}: str | PathLike[str] | None = None" for name in SOURCES),
    ]
    lines = "".join(f"{pad}    {parameter},\n" for parameter in parameters)
    first = "    @staticmethod\n" if pad else ""
    doc = command.text.partition("\n")[0]
    return f'{first}{pad}def {python_name(word)}(\n{pad}    *,\n{lines}{pad}) -> Result:\n{pad}    """{doc}"""\n'


def _render_parameters(config_class: type[StageConfig]) -> list[str]:
    fields = sorted(config_class.model_fields.items(), key=lambda item: not item[1].is_required())
    return [
        f"{name}: {_render_type(field.annotation)}{'' if field.is_required() else ' = ...'}" for name, field in fields
    ]


def _render_type(annotation: object) -> str:
    """Return a type as the stub writes it: the types that a caller may pass, such as ``str`` for a path."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return " | ".join(_render_type(member) for member in get_args(annotation))
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, get_args(annotation)))}]"
    if origin is tuple:
        one, *others = (_render_type(argument) for argument in get_args(annotation) if argument is not Ellipsis)
        return f"Sequence[{one}]" if others else f"Sequence[{one}] | {one}"
    names: dict[object, str] = {type(None): "None", Path: "str | PathLike[str]"}
    return names.get(annotation) or str(getattr(annotation, "__name__", annotation))


def main() -> None:
    """Write the type stub ``labelkit/__init__.pyi``."""
    STUB.write_text(render_stub(), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Build Python functions from the command table, with the options of a command as keyword arguments."""

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from labelkit.api import to_python_name
from labelkit.api.result import Result
from labelkit.commands.table import Command, Group
from labelkit.options.base import BaseConfig
from labelkit.options.presets import resolve_config
from labelkit.progress import Progress, current_progress, use_progress

SOURCES = {
    "preset": "Name of a preset, path to a YAML file, or none; by default, `train` uses the preset named after the "
    "dataset.",
    "config": "YAML file with options; overrides the preset, but not the arguments of the call.",
}
"""Arguments of every function, in addition to its options."""

_log = logging.getLogger("labelkit")


class _LogProgress(Progress):
    """Progress that sends messages to the logger ``labelkit``; unless logging is configured, only warnings show."""

    def message(self, text: str) -> None:
        _log.info(text)

    def warning(self, text: str) -> None:
        _log.warning(text)


@contextmanager
def log_messages() -> Iterator[None]:
    """Send progress messages to the logger inside a ``with`` block, unless a progress display is active."""
    progress = current_progress()
    with use_progress(_LogProgress() if type(progress) is Progress else progress):
        yield


class CommandGroup:
    """Python functions of a command group, such as those of ``labelkit.train``."""

    def __init__(self, word: str, group: Group) -> None:
        self._word = word
        self._commands = {to_python_name(name): (name, command) for name, command in group.commands.items()}
        self.__doc__ = group.summary

    def __getattr__(self, name: str) -> Callable[..., Result]:
        if name.startswith("_") or name not in self._commands:
            raise AttributeError(f"labelkit.{self._word} has no attribute {name!r}; choose from {', '.join(self)}")
        word, command = self._commands[name]
        function = self.__dict__[name] = build_command_function((self._word, word), command)
        return function

    def __iter__(self) -> Any:
        return iter(self._commands)

    def __dir__(self) -> list[str]:
        return sorted(self._commands)

    def __repr__(self) -> str:
        return f"<labelkit.{self._word}: {', '.join(self)}>"


def build_command_function(words: tuple[str, ...], command: Command) -> Callable[..., Result]:
    """Build the Python function that runs a command, with a signature and docstring for all of its options.

    The function merges preset, file and options like the command line. It raises the error that would end the command;
    if there is a result before the error, it is in the ``result`` attribute of the error.
    """
    config_class = command.load_config_class()

    def function(**options: Any) -> Result:
        preset, file = options.pop("preset", None), options.pop("config", None)
        with log_messages():
            config = resolve_config(
                config_class,
                preset=None if preset is None else str(preset),
                config_file=None if file is None else Path(file),
                overrides=options,
                origins={name: name for name in options},
            ).config
            found, fault = command.run(config)
        result = Result(found)
        if fault is not None:
            fault.result = result
            raise fault
        return result

    function.__name__ = to_python_name(words[-1])
    function.__qualname__ = ".".join(to_python_name(word) for word in words)
    function.__module__ = "labelkit"
    descriptions = {name: field.description for name, field in config_class.model_fields.items()} | SOURCES
    lines = "".join(f"\n    {name}: {text}" for name, text in descriptions.items())
    function.__doc__ = f"{command.text}\n\nArgs:{lines}"
    function.__signature__ = _signature(config_class)  # type: ignore[attr-defined]  # read by inspect.signature
    return function


def _signature(config_class: type[BaseConfig]) -> inspect.Signature:
    fields = sorted(config_class.model_fields.items(), key=lambda item: not item[1].is_required())
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.is_required() else field.get_default(call_default_factory=True),
            annotation=field.annotation,
        )
        for name, field in fields
    ]
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=str | Path | None)
        for name in SOURCES
    ]
    return inspect.Signature(parameters, return_annotation=Result)

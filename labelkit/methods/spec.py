"""Entries of the method registry."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from labelkit.options.training import RunConfig
    from labelkit.training.method import Method

T = TypeVar("T")


@dataclass(frozen=True)
class MethodSpec:
    """Registry entry of a training method: summary, options class and method class."""

    summary: str  # purpose of the method
    options: str | type[RunConfig]  # options class, or its name as ``module:Class``
    target: str | type[Method[Any]]  # method class, or its name as ``module:Class``, imported on first use

    @property
    def config(self) -> type[RunConfig]:
        """Return the options class of this method without importing other methods."""
        return import_named(self.options)

    def load(self) -> type[Method[Any]]:
        """Import and return the method class; this also imports torch."""
        return import_named(self.target)


def import_named(named: str | T) -> T:
    """Return the object named ``module:name``, or the object itself."""
    if not isinstance(named, str):
        return named
    module, _, name = named.partition(":")
    found: T = getattr(import_module(module), name)
    return found


@dataclass(frozen=True)
class MethodSource:
    """Name, path and digest of the file that contains a user-defined method."""

    name: str  # file name, or name of the module
    path: Path  # path of the file
    sha256: str  # SHA-256 of its content, in hex

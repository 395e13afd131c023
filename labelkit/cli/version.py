"""``labelkit version``: which labelkit this is, and what it runs on."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version

from labelkit import __version__
from labelkit.cli.console import print_line, print_result
from labelkit.cli.options import JsonOption, QuietOption, VerboseOption, speaking
from labelkit.commands.common.results import SimpleResult, Table

PARTS = (
    "torch",
    "torchvision",
    "timm",
    "accelerate",
    "numpy",
    "scipy",
    "scikit-learn",
    "faiss-cpu",
    "h5py",
    "pydantic",
)
"""The packages whose version can change a result."""


def version(json: JsonOption = False, quiet: QuietOption = False, verbose: VerboseOption = False) -> None:
    """Print the version of labelkit and of what it stands on; with -q the number alone.

    Example: labelkit version --json
    """
    with speaking(json=json, quiet=quiet, verbose=verbose):
        if quiet and not json:
            print_line(__version__)
            return
        values = {"labelkit": __version__, "python": platform.python_version()}
        values |= {name: found for name in PARTS if (found := version_of(name))}
        print_result(SimpleResult(dict(values), shown=(Table("", ("part", "version"), list(values.items())),)))


def version_of(package: str) -> str | None:
    """Return the version of an installed package, without importing it, or None."""
    try:
        return installed_version(package)
    except PackageNotFoundError:
        return None

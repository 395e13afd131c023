"""Files that a command writes beside its result: never over something that is there, unless asked to."""

from __future__ import annotations

from pathlib import Path

from labelkit.errors import ConfigError, output_exists


def check_new_file(path: Path, *, overwrite: bool, option: str = "--out") -> None:
    """Find out before the work is done that a file cannot be written.

    Args:
        path: of the file.
        overwrite: whether it may be there.
        option: that names it.

    Raises:
        OutputExistsError: it is not to be replaced.
        ConfigError: it is a folder, or its folder is not there.
    """
    if path.is_dir():
        raise ConfigError(option, f"{path} is a folder", "Give the name of a file.")
    if not path.resolve().parent.is_dir():
        raise ConfigError(option, f"the folder of {path} does not exist", "Make it first.")
    if path.exists() and not overwrite:
        raise output_exists(path, option)

"""What a command writes: never over something that is there, unless asked to; found out before any work."""

from __future__ import annotations

from pathlib import Path

from labelkit.config.index import IndexConfig
from labelkit.errors import ConfigError, output_exists
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.results import check_new_result


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


def check_kept_result(config: IndexConfig, store: EmbeddingStore, kind: str, **params: object) -> None:
    """Find out before the work that a result, if it is to be kept, cannot get its name.

    Args:
        config: of the command; ``result`` is the name, ``None``: nothing is kept.
        store: the store.
        kind: of the result.
        params: those of its parameters that are known; see ``check_new_result``.

    Raises:
        OutputExistsError: a result has the name, and another command or other options made it.
    """
    if config.result is not None:
        stage = " ".join(config.command)
        check_new_result(store, config.result, overwrite=config.overwrite, kind=kind, stage=stage, params=params)

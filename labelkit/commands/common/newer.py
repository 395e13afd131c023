"""Warn if a command reads a store that is not the newest."""

from pathlib import Path

from labelkit.options.shared import find_newest_store
from labelkit.progress import current_progress


def warn_of_newer_store(index: Path) -> None:
    """Warn if ``labelkit start`` has created a newer store in the same folder."""
    newest = find_newest_store(index.parent)
    if newest is not None and newest.name != index.name:
        warning = f"{index}: {newest.name} is newer; to use the newest store, pass --index {index.parent}"
        current_progress().warning(warning)

"""A warning if there is a newer store than the one that a command reads."""

from pathlib import Path

from labelkit.options.shared import find_newest_store
from labelkit.progress import current_progress


def warn_of_newer_store(index: Path) -> None:
    """Warn if ``labelkit start`` has finished a newer store in the folder of this one."""
    newest = find_newest_store(index.parent)
    if newest is not None and newest.name != index.name:
        warning = f"{index}: {newest.name} is newer; to use the newest store, pass --index {index.parent}"
        current_progress().warning(warning)

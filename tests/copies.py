"""Copies of what tests share."""

import shutil
from pathlib import Path

from labelkit.store.patches import patches_folder


def copy_store(source: Path, target: Path) -> Path:
    """Copy a store and the patches beside it; returns the copy."""
    shutil.copy2(source, target)
    if patches_folder(source).exists():
        shutil.copytree(patches_folder(source), patches_folder(target))
    return target

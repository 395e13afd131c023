"""Copies of what tests share, made as if this process had written them: no child process has to meet them first."""

from __future__ import annotations

import shutil
from pathlib import Path

from labelkit.store.opening import trust
from labelkit.store.patches import patches_folder


def copy_store(source: Path, target: Path) -> Path:
    """Copy a store and the patches beside it; returns the copy."""
    shutil.copy2(source, target)
    files = [target]
    if patches_folder(source).exists():
        folder = shutil.copytree(patches_folder(source), patches_folder(target))
        files += Path(folder).glob("*.h5")
    for file in files:
        trust(file)
    return target

"""The folder for files that labelkit can create again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the user's cache folder, which may not exist yet.

    It is ``$LABELKIT_CACHE``, else ``$XDG_CACHE_HOME/labelkit``, else ``~/.cache/labelkit``.
    """
    named = os.environ.get("LABELKIT_CACHE")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "labelkit"

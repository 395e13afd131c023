"""Small inputs that several rows damage."""

from pathlib import Path

import numpy as np
from labelkit.store.array_files import MatchFile, build_match, write_matches


def some_matches(path: Path, *, overwrite: bool = False) -> Path:
    """Write matches of one pair of three images."""
    points = np.random.default_rng(0).uniform(-1, 1, (60, 2, 2))
    found = MatchFile(
        build_match(0, 2, np.array([[1.0, 0.1, 0.2], [0, 0.9, -0.1], [0.05, 0, 1]]), points),
        ("a.png", "b.png", "\u00fc/c.png"),
        np.arange(96, dtype=np.uint8).reshape(3, 32),
        np.array([[10, 20], [30, 40], [50, 60]], dtype=np.uint32),
        np.array([7, 0, -1]),
        {"ratio": 0.75},
        "",
    )
    write_matches(path, found, overwrite=overwrite)
    return path

"""Small inputs that several rows damage."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from labelkit.store.array_files import Matches, MatchFile, build_match, write_matches
from labelkit.training.checkpoint import CheckpointWriter
from PIL import Image

TILT = np.array([[1.0, 0.1, 0.2], [0, 0.9, -0.1], [0.05, 0, 1]])
POINTS = np.random.default_rng(0).uniform(-1, 1, (60, 2, 2))


def write_photos(folder: Path, names: Sequence[str], each: int = 12, side: int = 8) -> None:
    """Write gray noise in class folders, brighter from class to class."""
    chance = np.random.default_rng(0)
    for number, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for i in range(each):
            values = np.clip(chance.normal(40 + 50 * number, 25, (side, side)), 0, 255).astype(np.uint8)
            Image.fromarray(values).save(folder / name / f"{i:02d}.png")


def save_step(writer: CheckpointWriter, step: int) -> None:
    """Write a checkpoint with tensors of each kind."""
    weights = torch.arange(12.0).reshape(3, 4) + step
    writer.save(
        step,
        model={"w": weights, "tied": weights, "half": weights.half()},
        training={"optimizer.0/w/exp_avg": weights * 2},
        per_rank={"torch": torch.arange(5, dtype=torch.uint8)},
        state={"epoch": step, "share": 0.25},
        metadata={"labelkit": "1"},
    )


def match_file(matches: Matches | None = None) -> MatchFile:
    """Matches of three images: those given, or one pair."""
    return MatchFile(
        build_match(0, 2, TILT, POINTS) if matches is None else matches,
        ("a.png", "b.png", "\u00fc/c.png"),
        np.arange(96, dtype=np.uint8).reshape(3, 32),
        np.array([[10, 20], [30, 40], [50, 60]], dtype=np.uint32),
        np.array([7, 0, -1]),
        {"ratio": 0.75},
        "",
    )


def some_matches(path: Path, *, overwrite: bool = False) -> Path:
    """Write matches of one pair of three images."""
    write_matches(path, match_file(), overwrite=overwrite)
    return path

"""Photos that are noisy squares of one color, their labels, and the tables that ``labelkit start`` makes of them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from labelkit.pipelines.start.options import StartConfig
from labelkit.pipelines.start.run import start
from PIL import Image
from tests.running import read_table

COLORS = {"red": (200, 40, 40), "green": (40, 200, 40), "blue": (40, 40, 200)}


def add_photos(folder: Path, numbers: Iterable[int], seed: int) -> None:
    """Noisy squares of one color, named without it; photo i has color i mod 3."""
    rng = np.random.default_rng(seed)
    for i in numbers:
        pixels = np.array(list(COLORS.values())[i % 3]) + rng.normal(0, 12, (16, 16, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{i:03d}.png")


def color(path: str) -> str:
    return list(COLORS)[int(path[:3]) % 3]


def write_labels(path: Path, numbers: Iterable[int], wrong: dict[int, str] | None = None) -> Path:
    """Write a table of labels, the colors of the photos but for those that are wrong."""
    names = {f"{i:03d}.png": (wrong or {}).get(i, list(COLORS)[i % 3]) for i in numbers}
    path.write_text("path,label\n" + "".join(f"{name},{text}\n" for name, text in names.items()))
    return path


def run(photos: Path, **options: Any) -> dict[str, Any]:
    return start(StartConfig(photos=photos, backbone="pixels", **options)).to_json()


def rows(path: Path) -> list[dict[str, str]]:
    """The lines of a table; none if there is no table."""
    return read_table(path) if path.is_file() else []


def table(folder: Path) -> dict[str, dict[str, str]]:
    return {row["path"]: row for row in rows(folder / "labels.csv")}


def labels_in(path: Path) -> dict[str, str]:
    return {row["path"]: row["label"] for row in rows(path)}

"""Create a small folder of photos for trying out the scripts in this folder: the bundled digits as PNG.

    python examples/digit_photos.py FOLDER --per-class 60

Writes FOLDER/0/0000.png to FOLDER/9/..., and three lists with the columns path,label, where an empty label means
unlabeled: discover.csv (50 labels, ten of each of the first five classes), few.csv (five labels of each class) and
truth.csv (all labels).
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits


def main() -> None:
    """Write images and lists."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--per-class", type=int, default=60, help="number of images per digit")
    options = parser.parse_args()
    bundle = load_digits()
    places: list[tuple[str, int, int]] = []
    for digit in range(10):
        (options.folder / str(digit)).mkdir(parents=True, exist_ok=True)
        for place, row in enumerate(np.flatnonzero(bundle.target == digit)[: options.per_class]):
            pixels = (bundle.images[row] * 255 / 16).round().astype(np.uint8)
            Image.fromarray(pixels).resize((32, 32), Image.Resampling.BICUBIC).save(
                options.folder / f"{digit}/{place:04d}.png"
            )
            places.append((f"{digit}/{place:04d}.png", digit, place))
    lists: dict[str, Callable[[int, int], bool]] = {
        "discover": lambda digit, place: digit < 5 and place < 10,
        "few": lambda digit, place: place < 5,
        "truth": lambda digit, place: True,
    }
    for name, is_labeled in lists.items():
        with (options.folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["path", "label"])
            writer.writerows([path, f"digit {d}" if is_labeled(d, place) else ""] for path, d, place in places)


if __name__ == "__main__":
    main()

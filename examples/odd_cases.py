"""Measure how many planted outliers `find odd` finds, and how many other images it lists.

    python examples/odd_cases.py --dataset photos/ --strangers others/ --out examples/results/photos_odd.json

The script takes photos from a folder, adds outliers in a temporary folder (selected by the seed: photos from another
folder, blank, dark, bright, blurred, tiny, stretched), embeds all images and searches for outliers. A planted image
counts as found if it is listed with its reason. Other listed photos may also be outliers, so their names are written
for inspection. By default, the features are pixels.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from duplicate_cases import add_options, chosen_files, embed, link, write_record
from labelkit.commands.find.options import FindOddConfig
from labelkit.commands.find.outliers import find_outliers
from PIL import Image, ImageFilter


def blank(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    """Return a uniform color with sensor noise."""
    color = generator.integers(60, 200, size=3) + generator.normal(0, 2, size=(image.height, image.width, 3))
    return Image.fromarray(color.round().astype(np.uint8))


def blurred(image: Image.Image, _: np.random.Generator) -> Image.Image:
    """Blur by 2% of the shorter side, but at least 1.5 pixels."""
    return image.filter(ImageFilter.GaussianBlur(max(1.5, 0.02 * min(image.size))))


EDITS: dict[str, Callable[[Image.Image, np.random.Generator], Image.Image]] = {
    "blank": blank,
    "dark": lambda image, _: image.point(lambda value: value // 10),
    "bright": lambda image, _: image.point(lambda value: 232 + value // 11),
    "blurred": blurred,
    "tiny": lambda image, _: image.resize((max(1, image.width // 5), max(1, image.height // 5))),
    "odd shape": lambda image, _: image.resize((2 * image.width, image.height // 2)),
}
STRANGER = "unlike all others"


def main() -> None:
    """Plant outliers, search, and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--strangers", required=True, help="folder of other photos")
    parser.add_argument("--num-strangers", type=int, default=4)
    parser.add_argument("--per-kind", type=int, default=4, help="planted images per other kind")
    options = parser.parse_args()
    generator = np.random.default_rng(options.seed)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "photos"
        files = chosen_files(options.dataset, options.images, generator)
        names = link(files, folder)
        planted: dict[str, str] = {}
        drawn = iter(generator.permutation(len(files)).tolist())
        for kind, edit in EDITS.items():
            for number in range(options.per_kind):
                name = f"odd-{kind.replace(' ', '-')}-{number:02d}.png"
                with Image.open(files[next(drawn)]) as image:
                    edit(image.convert("RGB"), generator).save(folder / name)
                planted[name] = kind
        for number, path in enumerate(chosen_files(options.strangers, options.num_strangers, generator)):
            with Image.open(path) as image:
                image.convert("RGB").resize(Image.open(files[0]).size).save(folder / f"odd-stranger-{number}.png")
            planted[f"odd-stranger-{number}.png"] = STRANGER
        index, embed_seconds = embed(folder, options)
        started = time.monotonic()
        out = Path(scratch) / "odd.csv"
        find_outliers(FindOddConfig(index=index, out=out))
        seconds = time.monotonic() - started
        with out.open(newline="") as file:
            listed = {row["path"]: row["reasons"].split("; ") for row in csv.DictReader(file)}
    path_of = dict(zip(names, files, strict=True))
    others = {"/".join(path_of[name].parts[-2:]): why for name, why in listed.items() if name not in planted}
    kinds = (*EDITS, STRANGER)
    found = {name for name, kind in planted.items() if kind in listed.get(name, [])}
    write_record(
        options,
        images=len(files),
        strangers=Path(options.strangers).name,
        planted={kind: sum(other == kind for other in planted.values()) for kind in kinds},
        recall={
            kind: sum(planted[name] == kind for name in found) / sum(other == kind for other in planted.values())
            for kind in kinds
        },
        listed=len(listed),
        precision_at_least=sum(name in planted for name in listed) / max(1, len(listed)),
        others_listed=len(others),
        others=others,
        seconds={"embed": round(embed_seconds, 1), "find": round(seconds, 1)},
    )


if __name__ == "__main__":
    main()

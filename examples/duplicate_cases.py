"""Measure how many planted copies `find duplicates` finds, and how many false pairs it lists.

    python examples/duplicate_cases.py --dataset photos/ --out examples/results/photos_duplicates.json

The script takes photos from a folder, adds copies of some of them (selected by the seed, each kind of copy in turn) in
a temporary folder, embeds all photos and searches for pairs. A copy counts as found if it is listed with its original
as the same picture or as a turned copy. Pairs of photos without a planted copy count as wrong; since the folder may
contain real duplicates, the names of these pairs are written for inspection. A copy of a photo that is also part of
another pair is not counted. By default, the features are pixels.
"""

from __future__ import annotations

import argparse
import csv
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from labelkit.commands.embed.embed import embed_images
from labelkit.commands.find.near_duplicates import find_duplicates
from labelkit.commands.find.options import FindDuplicatesConfig
from labelkit.data.registry import load_dataset
from labelkit.options.embed import EmbedConfig
from PIL import Image

Edit = Callable[[Image.Image, np.random.Generator], Image.Image]
HALVES = 2


def cropped(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    """Crop 5% off width and height, at a random position."""
    width, height = (round(0.95 * side) for side in image.size)
    left, top = generator.integers(image.width - width + 1), generator.integers(image.height - height + 1)
    return image.crop((int(left), int(top), int(left) + width, int(top) + height))


def halved(image: Image.Image, _: np.random.Generator) -> Image.Image:
    """Shrink to half the size."""
    return image.resize((image.width // 2, image.height // 2), Image.Resampling.LANCZOS)


def mirrored(image: Image.Image, _: np.random.Generator) -> Image.Image:
    """Flip horizontally."""
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def turned(image: Image.Image, _: np.random.Generator) -> Image.Image:
    """Rotate by 90 degrees."""
    return image.transpose(Image.Transpose.ROTATE_90)


KINDS: dict[str, tuple[Edit, int]] = {
    "JPEG quality 85": (lambda image, _: image, 85),
    "JPEG quality 55": (lambda image, _: image, 55),
    "half the size": (halved, 90),
    "5% cropped": (cropped, 90),
    "mirrored": (mirrored, 90),
    "turned": (turned, 90),
}
"""Each kind of copy: the change, and the JPEG quality of the saved file."""


def chosen_files(dataset: str, count: int, generator: np.random.Generator) -> list[Path]:
    """Select at most ``count`` random photos from a folder."""
    listed = load_dataset(dataset, data_root=Path("data"))
    if listed.root is None:
        raise SystemExit(f"{dataset}: give a folder of photos")
    rows = np.sort(generator.permutation(len(listed))[:count])
    return [listed.root / listed.sample_ids[row] for row in rows.tolist()]


def link(files: Sequence[Path], folder: Path) -> list[str]:
    """Link photos into a flat folder; return their names there."""
    folder.mkdir()
    names = [f"{number:05d}{path.suffix}" for number, path in enumerate(files)]
    for name, path in zip(names, files, strict=True):
        (folder / name).symlink_to(path.resolve())
    return names


def embed(folder: Path, options: argparse.Namespace) -> tuple[Path, float]:
    """Embed a folder; return the store and the time in seconds."""
    network = {"image_size": 16} if options.backbone == "pixels" else {"weights": options.weights}
    started = time.monotonic()
    index = folder.with_suffix(".h5")
    embed_images(
        EmbedConfig(
            dataset=str(folder), out=index, backbone=options.backbone, label_split="none", batch_size=32, **network
        )
    )
    return index, time.monotonic() - started


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options shared by the scripts about ``find``."""
    parser.add_argument("--dataset", required=True, help="folder of photos")
    parser.add_argument("--name", default=None, help="name of the photos in the record; default: name of the folder")
    parser.add_argument("--images", type=int, default=2000, help="maximum number of photos, selected by the seed")
    parser.add_argument("--backbone", default="pixels", help="as for `labelkit embed`")
    parser.add_argument("--weights", type=Path, default=None, help="file with weights of the backbone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None, help="JSON file to write")


def write_record(options: argparse.Namespace, **results: object) -> None:
    """Print the results, and write --out with the command."""
    record = {
        # paths of weights and photos differ between machines
        "command": shlex.join(["python", *(Path(word).name if "/" in word else word for word in sys.argv)]),
        "dataset": options.name or Path(options.dataset).name,
        "features": options.backbone,
        "seed": options.seed,
        **results,
    }
    print(json.dumps(record, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps(record, indent=1) + "\n")


def main() -> None:
    """Plant copies, search, and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--per-kind", type=int, default=100, help="number of copies per kind, in each half")
    options = parser.parse_args()
    generator = np.random.default_rng(options.seed)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "photos"
        files = chosen_files(options.dataset, options.images, generator)
        names = link(files, folder)
        originals = generator.permutation(len(files))[: HALVES * len(KINDS) * options.per_kind]
        planted: dict[frozenset[str], tuple[str, int]] = {}
        for number, original in enumerate(originals.tolist()):
            kind = list(KINDS)[number % len(KINDS)]
            edit, quality = KINDS[kind]
            copy = f"copy-{number:05d}.jpg"
            with Image.open(files[original]) as image:
                edit(image.convert("RGB"), generator).save(folder / copy, quality=quality)
            planted[frozenset((names[original], copy))] = kind, number // len(KINDS) % HALVES
        index, embed_seconds = embed(folder, options)
        started, busy = time.monotonic(), time.process_time()
        out = Path(scratch) / "duplicates.csv"
        find_duplicates(FindDuplicatesConfig(index=index, out=out))
        seconds, cpu_seconds = time.monotonic() - started, time.process_time() - busy
        with out.open(newline="") as file:
            rows = list(csv.DictReader(file))
    kinds = {"same file": ("same file",), "copy": ("edited copy", "turned copy"), "same scene": ("same scene",)}
    listed = {
        name: {frozenset((row["image_a"], row["image_b"])) for row in rows if row["kind"] in of_name}
        for name, of_name in kinds.items()
    }
    path_of = dict(zip(names, files, strict=True))
    unplanted = [sorted(pair) for pair in listed["copy"] if not any(name.startswith("copy") for name in pair)]
    of_copies = [pair for pair in listed["copy"] - planted.keys() if any(one.startswith("copy") for one in pair)]
    halves = []
    for half in range(HALVES):
        mine = {pair: kind for pair, (kind, where) in planted.items() if where == half}
        halves.append(
            {
                "planted": len(mine),
                "recall": {
                    kind: sum(pair in listed["copy"] for pair, other in mine.items() if other == kind)
                    / sum(other == kind for other in mine.values())
                    for kind in KINDS
                },
                "called_burst": sum(pair in listed["same scene"] for pair in mine),
            }
        )
    found = len(planted.keys() & listed["copy"])
    write_record(
        options,
        images=len(files),
        halves=halves,
        same_picture_pairs=len(listed["copy"]),
        planted_found=found,
        precision_at_least=found / max(1, len(listed["copy"])),
        unplanted_pairs=[["/".join(path_of[name].parts[-2:]) for name in pair] for pair in sorted(unplanted)],
        pairs_of_copies_of_those=len(of_copies),
        same_file_pairs=len(listed["same file"]),
        burst_pairs=len(listed["same scene"]),
        seconds={"embed": round(embed_seconds, 1), "find": round(seconds, 1), "find_cpu": round(cpu_seconds, 1)},
    )


if __name__ == "__main__":
    main()

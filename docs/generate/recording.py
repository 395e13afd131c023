"""Record the keys of what ``--json`` prints, by running every command on a few small images.

    PYTHONPATH=docs python -m generate              # renews docs/json_keys.json; some minutes
    PYTHONPATH=docs python -m generate flipclass    # only `train flipclass`; seconds

A slow test runs the commands again and compares.
"""

import contextlib
import csv
import io
import json
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from labelkit.cli.main import main
from labelkit.methods.registry import METHODS
from PIL import Image
from sklearn.datasets import load_digits
from tests.miniature_sets import make_miniature
from tests.short_runs import short_run

from generate.json_keys import Keys, add_keys, keys

_DIGITS = "--dataset digits --max-per-class 12"
_FEW = "--holdout 0.25 --split all --label-split few-labels --num-labels 20"
_OBJECTS = "--dataset digit_scenes --max-images 6"
_FEW_STEPS = "--image-size 64 --steps 1 --batch-size 1 --proposals 8 --samples-per-image 8"
_TABLE = """
source: softmax
place: Table 1
title: digits
values: {top 1: metrics.accuracy}
commands: ["train {method} --dataset digits --max-per-class 12 --epochs 1 --batch-size 16"]
rows: [{name: softmax, published: 90, method: softmax}]
"""
_OTHERS = f"""
embed {_DIGITS} {_FEW} --backbone pixels --image-size 8 --out digits.h5
embed {_DIGITS} --checkpoint runs/flipclass --out features.h5
cluster spherical-k-means --index digits.h5 --num-clusters 10
cluster ss-kmeans --index digits.h5 --num-clusters 10
cluster sinkhorn --index digits.h5 --num-clusters 10
cluster k-means --index digits.h5 --num-clusters 10
discover categories --index digits.h5 --max-classes 14
discover head --index features.h5
discover answer --index digits.h5 --min-confidence 0.8
discover snowball --index digits.h5 --num-labels 20 --count 20
discover lmcs --index digits.h5 --num-labels 20 --count 20
reproduce --seeds 2 --out reproduced table.yaml
start --backbone pixels --num-classes 10 --labels known.csv photos
start --backbone pixels --num-classes 11 photos
predict --from photos-labeled photos
suggest --index digits.h5 -n 4 --out next.csv
label --index digits.h5 --from next.csv
find duplicates --index digits.h5 --out duplicates.csv
find odd --index digits.h5 --out odd.csv
find mislabeled --index digits.h5 --out check.csv
find novel --index digits.h5 --out novel.csv
evaluate clustering --index digits.h5 --results k-means
evaluate answer --index digits.h5
evaluate knn --index digits.h5
evaluate linear --index digits.h5
evaluate probes --checkpoint runs/softmax --epochs 1 --lr-drop-epochs "" --crops center
evaluate presence --backbone pixels --image-size 8 --steps 2
evaluate retrieval --index digits.h5
embed --dataset digits --checkpoint runs/softmax --split all --out named.h5
evaluate classification --index named.h5
evaluate segmentation --backbone pixels {_OBJECTS} --samples 16 --seeds 1 --no-augment
evaluate detection --backbone vit_micro_p8_64 --random-weights --data-root . --detector mask-rcnn {_FEW_STEPS}
evaluate patch-clusters --backbone pixels {_OBJECTS}
evaluate tracking --backbone pixels --dataset scene_videos
compare --methods supervised --budget 2s --seeds 1 --keep compared --out compared.json
retrieve --query-rows 1 --index digits.h5
prototypes --num-classes 10 --embed-dim 5
embed --dataset digits --max-per-class 1 --backbone pixels --image-size 8 --out few.h5
match --index few.h5 --out matches.h5
report --index digits.h5 --out report.html
export --index digits.h5 --out digits.npz
import --source digits.npz --model pixels --out imported.h5
embed {_OBJECTS} --split all --backbone vit_micro_p8_64 --random-weights --dense --out scenes.h5
show curves --run runs/flipclass --out curves.png
show discovered --index digits.h5 --result snowball --out discovered.png
datasets
status --index digits.h5
verify --index digits.h5
pack --index digits.h5 --out packed.h5
list methods
list datasets
list backbones --pattern vit_nano*
list presets
list tables
doctor
version
"""


def train_line(method: str) -> list[str]:
    """Return the command line that trains a method."""
    return shlex.split(f"train {method} {_DIGITS} {short_run(method, labels=20)} --out runs/{method}")


def command_lines() -> Iterator[list[str]]:
    """Yield the command lines that are recorded, in an order in which each finds what it reads."""
    yield from map(train_line, METHODS)
    for line in _OTHERS.strip().splitlines():
        if line.startswith("reproduce"):
            Path("table.yaml").write_text(_TABLE)
        if line.startswith("evaluate detection"):
            make_miniature("coco_2017", Path())
        if line.startswith("evaluate presence"):
            make_miniature("voc_2007_classes", Path("data"))
        if line.startswith("start") and "--labels" in line:
            _write_photos(Path("photos"), Path("known.csv"))
        yield shlex.split(line)
        if line.startswith("suggest"):
            _answer(Path("next.csv"))


def record(lines: Iterable[list[str]]) -> Keys:
    """Run command lines in the current folder and return the keys of each command: name and kind of value.

    Raises:
        RuntimeError: a command failed.
    """
    found: Keys = {}
    for line in lines:
        printed, said = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
            status = main([*line, "--json"])
        if status:
            raise RuntimeError(f"labelkit {shlex.join(line)}: exit code {status}\n{said.getvalue()}")
        command = " ".join(line[:2] if line[1:2] and not line[1].startswith("-") else line[:1])
        add_keys(keys(json.loads(printed.getvalue())), found.setdefault(command, {}))
    return found


def _write_photos(folder: Path, labels: Path) -> None:
    """Write a few digits as files, and labels of the first."""
    digits = load_digits()
    folder.mkdir()
    lines = ["path,label"]
    for number, (image, label) in enumerate(zip(digits.images[:30], digits.target, strict=False)):
        name = f"{number:02d}.png"
        Image.fromarray((image * 15).astype(np.uint8)).save(folder / name)
        lines += [f"{name},{label}"] if number < 13 else []
    labels.write_text("\n".join(lines) + "\n")


def _answer(file: Path) -> None:
    """Label every suggested image, as a person would."""
    with file.open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    with file.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, rows[0].keys())
        writer.writeheader()
        writer.writerows({**row, "label": "1"} for row in rows)

"""Keys of what ``--json`` prints: recorded by running every command on a few small images, shown with the command.

    PYTHONPATH=docs python -m generate     # renews docs/json_keys.json; some minutes

A slow test runs the commands again and compares.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from labelkit.cli.main import main
from labelkit.methods.registry import METHODS

from generate.markdown import code, table, text

Keys = dict[str, dict[str, str]]
RECORD = Path(__file__).resolve().parents[1] / "json_keys.json"
_LARGEST_OBJECT = 30  # an object with more keys has them from the data: names of classes, of images
_EPOCH = "--epochs 1 --batch-size 16"
_LABELS = "--batch-size 16 --num-labels 20 --holdout 0.25 --eval-every-steps 2"
_STEPS = f"{_LABELS} --steps 2"
_TRAINED = {
    "cotap": "--steps 2 --eval-every-steps 2 --batch-size 8 --lr-warmup-steps 1",
    "dl2pa": f"{_EPOCH} --label-ratio 1 --lr-schedule constant --holdout 0.25",
    "flipclass": _EPOCH,
    "freematch": f"{_STEPS} --labeled-batch-size 8",
    "gcd": _EPOCH,
    "lmcs": f"{_LABELS} --steps 12 --labeled-batch-size 8 --first-blocks 1 --generation-blocks 1 --master-steps 2",
    "mean-teacher": f"{_STEPS} --labeled-batch-size 4",
    "mixmatch": f"{_STEPS} --labeled-batch-size 8",
    "san": "--epochs 1 --batch-size 8 --images-per-class 2",
    "sela": f"{_EPOCH} --num-heads 1 --num-clusters 4 --num-optimizations 1 --lr-drop-epochs 1",
    "simgcd": _EPOCH,
    "snowball": f"{_STEPS} --later-steps 2 --labeled-batch-size 4 --generations 2 --cap 2 --master",
    "softmax": f"{_EPOCH} --label-ratio 1 --lr-schedule constant --holdout 0.25",
    "supervised": _STEPS,
    "tac-ccl": "--epochs 1 --batch-size 8 --images-per-class 2 --num-clusters 6 --refresh-epochs 1 --ccl-start-epoch 0",
}
_DIGITS = "--dataset digits --max-per-class 12"
_FEW = "--holdout 0.25 --split all --label-split few-labels --num-labels 20"
_OBJECTS = "--dataset digit_scenes --max-images 6"
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
suggest --index digits.h5 -n 4 --out next.csv
label --index digits.h5 --from next.csv
diff --index digits.h5 --result k-means --previous digits.h5 --previous-result ss-kmeans
evaluate clustering --index digits.h5 --results k-means
evaluate answer --index digits.h5
evaluate knn --index digits.h5
evaluate linear --index digits.h5
evaluate retrieval --index digits.h5
evaluate classification --checkpoint runs/softmax
evaluate segmentation --backbone pixels {_OBJECTS} --samples 16 --seeds 1 --no-augment
evaluate patch-clusters --backbone pixels {_OBJECTS}
evaluate tracking --backbone pixels --dataset scene_videos
compare --methods supervised --budget 2s --seeds 1 --keep compared --out compared.json
retrieve --query-rows 1 --index digits.h5
prototypes --num-classes 10 --embed-dim 5
match --index digits.h5 --split test --candidates 1 --shorter-side 32 --max-tilt 0 --no-cache --out matches.h5
report --index digits.h5 --out report.html
export --index digits.h5 --out digits.npz
import --source digits.npz --model pixels --out imported.h5
embed {_OBJECTS} --split all --backbone vit_micro_p8_64 --random-weights --dense --out scenes.h5
show attention --checkpoint runs/flipclass --num-images 2 --out attention.png
show assembly --checkpoint runs/san --num-images 2 --out assembly.png
show curves --run runs/flipclass --out curves.png
show discovered --index digits.h5 --result snowball --out discovered.png
show patches --index scenes.h5 --rows 1 --patch 0,0 --out patches.png
show prototypes --checkpoint runs/cotap --num-images 2 --out prototypes.png
datasets
status --index digits.h5
verify --index digits.h5
pack --index digits.h5 --out packed.h5
list methods
list datasets
list backbones --pattern vit_nano*
list presets
doctor
version
"""


def command_lines() -> Iterator[list[str]]:
    """Yield the command lines that are recorded, in an order in which each finds what it reads."""
    for method in METHODS:
        yield shlex.split(f"train {method} {_DIGITS} {_TRAINED[method]} --out runs/{method}")
    for line in _OTHERS.strip().splitlines():
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
        _add(keys(json.loads(printed.getvalue())), found.setdefault(command, {}))
    return found


def keys(value: object, name: str = "") -> dict[str, str]:
    """Return the keys of a JSON value, ``a.b`` for an object in an object and ``a[].b`` for objects in a list."""
    if isinstance(value, Mapping) and not (name and _has_keys_of_data(value)):
        found = {name: "object"} if name else {}
        for key, below in value.items():
            found |= keys(below, f"{name}.{key}" if name else str(key))
        return found
    if isinstance(value, list) and value and all(isinstance(entry, Mapping) for entry in value):
        found = {name: "list of objects"}
        for entry in value:
            below = keys(entry, f"{name}[]")
            _add({key: kind for key, kind in below.items() if key != f"{name}[]"}, found)
        return found
    return {name: _kind(value)}


def keys_table(command: str) -> str:
    """Return the recorded keys of a command as a table; nothing for a command that prints none."""
    found: Mapping[str, str] = json.loads(RECORD.read_text()).get(command, {})
    return table(["Key", "Value"], [[code(key), text(kind)] for key, kind in found.items()]) if found else ""


def _answer(file: Path) -> None:
    """Label every suggested image, as a person would."""
    with file.open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    with file.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, rows[0].keys())
        writer.writeheader()
        writer.writerows({**row, "label": "1"} for row in rows)


def _add(new: Mapping[str, str], found: dict[str, str]) -> None:
    """Add keys to those found before; a key with several kinds of value has all of them, null last."""
    for key, kind in new.items():
        kinds = {*found.get(key, kind).split(" or "), *kind.split(" or ")}
        found[key] = " or ".join(sorted(kinds, key=lambda word: (word == "null", word)))


def _has_keys_of_data(value: Mapping[str, Any]) -> bool:
    return len(value) > _LARGEST_OBJECT or any(not key.replace("_", "").isidentifier() for key in value)


_KINDS = {bool: "switch", int: "whole number", float: "number", str: "text", list: "list", type(None): "null"}
_PLURALS = {"text": "texts", "number": "numbers", "whole number": "whole numbers", "switch": "switches"}


def _kind(value: object) -> str:
    if isinstance(value, list) and value:
        kind = _kind(value[0])
        return f"list of {_PLURALS.get(kind) or kind.replace('list', 'lists', 1)}"
    return _KINDS.get(type(value), "object by name")

"""Run rows of published tables for a few steps, on miniatures in place of their data: a row that runs here is one."""

import contextlib
import io
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import yaml
from labelkit.cli.main import main
from labelkit.data.registry import load_dataset
from labelkit.models.backbones.registry import build_backbone
from labelkit.pipelines.reproduce.options import ReproduceConfig
from labelkit.pipelines.reproduce.tables import PublishedTable, TableRow, complete_command, find_dataset_arguments
from tests.miniature_sets import make_miniature, write_class_vectors

_FILE = Path(__file__).with_name("data") / "short_tables.yaml"
#: For each table: options of ``all`` trainings, of one by its method, and of another command by its first word or, in
#: place of these, its first two; ``given``: in place of those that any command has.
OPTIONS: dict[str, dict[str, dict[str, str]]] = {
    table: group["options"] for group in yaml.safe_load(_FILE.read_text()) for table in group["tables"]
}


def short_command(
    table: PublishedTable, words: Sequence[str], named: dict[str, str], root: Path, here: Path
) -> list[str]:
    """Return a command of a row, with options for a few steps."""
    config = ReproduceConfig(table=table.name, device="cpu", data_root=root)
    words = list(words)
    for place in find_dataset_arguments(words):
        words[place] = named[words[place]]
    command, short = complete_command(config, words, here, 0), OPTIONS[table.name]
    options = {name: value for name, value in short.get("given", {}).items() if f"--{name}" in command}
    if command[0] == "train":
        options |= short.get("all", {}) | short.get(command[1], {})
    else:
        options |= short.get(" ".join(command[:2]), short.get(command[0], {}))
    return with_options(command, options)


def run_row(table: PublishedTable, row: TableRow, folder: Path) -> dict[str, float]:
    """Run the commands of a row, and return its values.

    Raises:
        AssertionError: a command failed.
    """
    root, here = folder / "data", folder / table.name / row.name.replace("/", "-")
    named = miniatures(row.datasets, root)
    outputs: list[dict[str, Any]] = []
    for words in row.commands:
        command = short_command(table, words, named, root, here) if words else []
        make_files(command, root)
        outputs.append(_printed(command) if words else {})
    return table.extract_values(outputs)


def _printed(command: list[str]) -> dict[str, Any]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = main([*command, "--json"])
    assert code == 0, f"{' '.join(command)} ended with exit code {code}"
    return dict(json.loads(out.getvalue()))


def miniatures(datasets: Sequence[str], root: Path) -> dict[str, str]:
    """Make the miniature of each dataset, and return what ``--dataset`` says in its place.

    A folder of one's own has class folders in its place.
    """
    own = {name: f"own-{Path(name).name}" if "/" in name else name for name in datasets}
    return {name: name if name == "digits" else make_miniature(own[name], root) for name in datasets}


def make_files(command: Sequence[str], root: Path) -> None:
    """Make up the word vectors and weights below ``root`` that a command reads, unless they are there."""
    given = dict(pairwise(command))
    vectors, weights = (Path(given.get(option, "")) for option in ("--class-vectors", "--weights"))
    if vectors.is_relative_to(root) and not vectors.exists():
        write_class_vectors(vectors, load_dataset(given["--dataset"], data_root=root).class_names)
    if weights.is_relative_to(root) and not weights.exists():
        # random ones, in the names of a checkpoint of DINO
        weights.parent.mkdir(parents=True, exist_ok=True)
        net = build_backbone(given["--backbone"], seed=0).net
        torch.save({"teacher": {f"backbone.{name}": value for name, value in net.state_dict().items()}}, weights)


def with_options(words: Sequence[str], options: dict[str, str]) -> list[str]:
    """Return a command with options set, replacing existing values; an empty value makes a flag without argument."""
    kept, at = [], 0
    while at < len(words):
        word, name = words[at], words[at].removeprefix("--")
        at += 1
        takes_value = at < len(words) and not words[at].startswith("--")
        if word.startswith("--") and name in options:
            at += takes_value
            continue
        kept.append(word)
    for name, value in options.items():
        kept += [f"--{name}", value] if value else [f"--{name}"]
    return kept

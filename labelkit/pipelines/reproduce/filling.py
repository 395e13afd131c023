"""From the rows of a table to commands that can run: which rows, what they read, what is missing of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from labelkit.data.registry import DATASETS, load_dataset
from labelkit.errors import ConfigError, DatasetError
from labelkit.pipelines.reproduce.options import ReproduceConfig
from labelkit.pipelines.reproduce.tables import PublishedTable, Row, dataset_places

IN_DATA_ROOT = "{data_root}/"
"""What a file in the folder of the data begins with, in a table."""


def chosen_rows(table: PublishedTable, wanted: Sequence[str] | None) -> list[Row]:
    """Return the rows that parts of names stand for; all for ``None``.

    Raises:
        ConfigError: a part that is in no name, or in several.
    """
    if wanted is None:
        return list(table.rows)
    names = {_without_spaces(row.name): row for row in table.rows}
    chosen, at = [], 0
    while at < len(wanted):
        # a list is told by commas, and so are some names: as many parts as fit a row are its name
        for end in range(len(wanted), at, -1):
            text = _without_spaces(",".join(wanted[at:end]))
            fitting = [names[text]] if text in names else [row for name, row in names.items() if text in name]
            if len(fitting) == 1:
                break
        at = end
        if len(fitting) != 1:
            known = ", ".join(repr(row.name) for row in fitting or table.rows)
            raise ConfigError("--row", f"{text!r} fits {len(fitting)} rows of {table.name}", f"Choose of {known}.")
        chosen += fitting
    # a change needs both of its rows
    needed = {row.against for row in chosen} | {row.name for row in chosen}
    return [row for row in table.rows if row.name in needed] if any(row.against for row in chosen) else chosen


def _without_spaces(name: str) -> str:
    return re.sub(r"\s*,\s*", ",", name)


def needs_of(row: Row) -> set[str]:
    """What a row reads: its data sets, and files in the folder of the data."""
    return {*row.datasets, *(word for words in row.commands for word in words if word.startswith(IN_DATA_ROOT))}


def missing_of(dataset: str, root: Path) -> str:
    """Say what is missing of a data set, where it comes from, and how large it is; empty: nothing."""
    if dataset.startswith(IN_DATA_ROOT):
        path = Path(dataset.format(data_root=root))
        return "" if path.exists() else f"{path}: there is no such file or folder"
    try:
        load_dataset(dataset, data_root=root)
    except DatasetError as error:
        spec = DATASETS.get(dataset)
        counts = {} if spec is None else spec.num_images
        return f"{dataset} ({', '.join(f'{count} {split}' for split, count in counts.items())} images): {error}"
    return ""


def complete_command(
    config: ReproduceConfig,
    words: Sequence[str],
    named: Mapping[str, str],
    root: Path,
    here: Path,
    seed: int,
) -> list[str]:
    """A command with all that is not in the table: where, which data, which seed."""
    filled = [word.format(here=here, seed=seed, data_root=root) for word in words]
    for place in dataset_places(words):
        filled[place] = named[words[place]]
    if filled[0] != "train":
        return filled
    words_of_all = ["--data-root", str(root), "--device", config.device, "--seed", str(seed)]
    return [*filled, *words_of_all, *([] if "--out" in filled else ["--out", str(here / "run")])]


def with_options(words: Sequence[str], options: dict[str, str]) -> list[str]:
    """Put options into a command, in place of those it has; an empty value is a switch."""
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

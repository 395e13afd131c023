"""Read the published tables in ``presets/tables``: their rows, published numbers, and the commands for each row.

A table is a YAML file. Its ``commands`` apply to every row and contain ``{name}`` for values set by the row. Measured
values come from the JSON of the last command, or of command n if the place of a value begins with ``#n.``
(``#1.metrics.accuracy``). Numbers that were not published are ``null`` or omitted. A row may set a whole command; an
empty command is not run. ``against`` is the row to compare a row with, if a figure shows the change. ``train`` gets its
folder, data and device (unless it contains these options) and its seed automatically; other commands contain
``{here}``, ``{seed}`` and ``{data_root}``. A row is skipped if its data, such as a file ``{data_root}/...``, do not
exist.
"""

import hashlib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from labelkit.data.archives import find_archives, is_archive_pattern
from labelkit.data.named.layouts import format_count
from labelkit.data.registry import DATASETS, load_dataset
from labelkit.data.tables import is_file, is_folder
from labelkit.errors import ConfigError, DatasetError
from labelkit.files import read_bytes, sha256_file
from labelkit.formatting import join_first_few
from labelkit.options.presets import find_bundled_presets
from labelkit.pipelines.reproduce.options import ReproduceConfig

FOLDER = "tables"
LEFT_OUT = "left_out"
_MAX_BYTES = 1 << 18
_OF_DATASETS = ("--dataset", "--scene-dataset")
_OWN = ("here", "seed", "data_root")
_SHOWN = 8
_MAX_HASHED_BYTES = 1 << 30
_OF_COMMAND = re.compile(r"#([1-9]\d?)\.(.+)")


Unit = Literal["%", "error %", "number"]


class _Row(BaseModel):
    """Row of a table file: its name, published numbers, and values to insert in the commands."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field(min_length=1)
    published: float | dict[str, float | None] | None = None
    against: str | None = None


def get_published_values(row: _Row, values: Mapping[str, str]) -> dict[str, float | None]:
    """Return the published numbers of a table row, by value name; a single number belongs to the first name."""
    return row.published if isinstance(row.published, dict) else {next(iter(values)): row.published}


@dataclass(frozen=True)
class TableRow:
    """Row of a published table, with its published numbers and the commands that reproduce them."""

    name: str  # name in the table
    # published numbers by value name, in the unit of the table; ``None`` or missing: measured only
    published: dict[str, float | None]
    # words of each command after ``labelkit``, containing ``{here}``, ``{seed}`` and ``{data_root}``; empty if the row
    # omits a command
    commands: tuple[tuple[str, ...], ...]
    against: str | None  # name of the row to compare with; ``None``: compare with published numbers only


class PublishedTable(BaseModel):
    """Published table of results, as read from its file, with the commands that reproduce each row.

    Attributes:
        name: name of its file.
        source: method whose paper contains the table.
        place: number of the table or figure in the paper.
        title: title of the table.
        unit: unit of the numbers: ``%``, ``error %`` (100 - accuracy), or ``number``.
        units: units of values that have another unit.
        note: differences from the publication, if any.
        values: place of each value in the JSON of the last command, or of command n after ``#n.``.
        commands: commands for every row.
        lines: rows, with the values that they insert in the commands.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    source: str
    place: str
    title: str
    unit: Unit = "%"
    units: dict[str, Unit] = {}
    note: str = ""
    values: dict[str, str] = Field(min_length=1)
    commands: list[str] = Field(min_length=1)
    lines: list[_Row] = Field(min_length=1, alias="rows")

    @model_validator(mode="after")
    def _rows_fit(self) -> Self:
        names = [row.name for row in self.lines]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"row names must be unique, but these occur twice: {', '.join(sorted(twice))}")
        for row in self.lines:
            if row.against is not None and (row.against not in names or row.against == row.name):
                raise ValueError(f"row {row.name!r} is compared with {row.against!r}, which is not another row")
        numbers = [int(found[1]) for place in self.values.values() if (found := _OF_COMMAND.fullmatch(place))]
        if max(numbers, default=0) > len(self.commands):
            raise ValueError(f"values refer to command {max(numbers)}, but there are only {len(self.commands)}")
        if strange := self.units.keys() - self.values.keys():
            raise ValueError(f"`units` contains {sorted(strange)}, which are missing from `values`")
        wanted = set(re.findall(r"{(\w+)}", " ".join(self.commands))) - set(_OWN)
        for row in self.lines:
            given = set(row.model_extra or {})
            if given != wanted:
                raise ValueError(f"row {row.name!r} must set {sorted(wanted)} for the commands, got {sorted(given)}")
            if not (get_published_values(row, self.values).keys() <= self.values.keys()):
                raise ValueError(f"row {row.name!r} contains numbers missing from `values`")
        return self

    @property
    def rows(self) -> tuple[TableRow, ...]:
        """Rows with their values inserted in the commands."""
        rows = []
        for line in self.lines:
            filled = {name: str(value) for name, value in (line.model_extra or {}).items()}
            filled |= {name: f"{{{name}}}" for name in _OWN}
            commands = tuple(tuple(shlex.split(command.format(**filled))) for command in self.commands)
            published = get_published_values(line, self.values)
            rows.append(TableRow(line.name, published, commands, line.against))
        return tuple(rows)

    def extract_values(self, outputs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Extract the measured values of a row from the JSON output of each command.

        Raises:
            ConfigError: a value is missing.
        """
        found = {}
        for name, place in self.values.items():
            numbered = _OF_COMMAND.fullmatch(place)
            value: Any = outputs[int(numbered[1]) - 1 if numbered else -1]
            for part in (numbered[2] if numbered else place).split("."):
                value = value[int(part)] if isinstance(value, list) else (value or {}).get(part)
            if not isinstance(value, int | float):
                numbers = sorted(_numbers(outputs[int(numbered[1]) - 1 if numbered else -1]))
                last = place.rpartition(".")[2]
                near = [one for one in numbers if one.endswith(last)] or numbers
                problem = f"{place} is not a value in the output of {'this' if numbered else 'the last'} command"
                remedy = f"Choose one of the numbers in it: {join_first_few(near, _SHOWN)}."
                raise ConfigError(f"table {self.name}", problem, remedy)
            unit = self.units.get(name, self.unit)
            found[name] = {"%": 100 * value, "error %": 100 * (1 - value), "number": value}[unit]
        return found


def _numbers(value: object, place: str = "") -> Iterator[str]:
    """Yield the place of each number in a JSON value, such as ``scores.0.all_accuracy``."""
    if isinstance(value, Mapping | list):
        for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _numbers(part, f"{place}.{key}" if place else str(key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield place


def list_available_tables() -> dict[str, Path]:
    """List the YAML files of the tables included in labelkit, by table name."""
    presets = find_bundled_presets()
    found = [] if presets is None else sorted((presets / FOLDER).glob("*.yaml"))
    return {path.stem: path for path in found if path.stem != LEFT_OUT}


def list_excluded_tables() -> list[dict[str, str]]:
    """List published tables that labelkit does not include, with the paper, their number in it, and the reason."""
    presets = find_bundled_presets()
    path = None if presets is None else presets / FOLDER / f"{LEFT_OUT}.yaml"
    return [] if path is None else list(yaml.safe_load(read_bytes(path, _MAX_BYTES)))


def read_table(name: str) -> PublishedTable:
    """Read a published table, given the name of an included table or the path of a YAML file.

    Raises:
        ConfigError: the table does not exist, or the file does not contain a table.
    """
    path = list_available_tables().get(name)
    if path is None:
        path = Path(name)
        if path.suffix not in (".yaml", ".yml"):
            raise ConfigError("reproduce", f"there is no table {name!r}", "See `labelkit list tables`.")
    try:
        values = yaml.safe_load(read_bytes(path, _MAX_BYTES))
        return PublishedTable.model_validate({"name": path.stem, **values} if isinstance(values, dict) else values)
    except OSError as error:
        raise ConfigError("reproduce", f"{path}: {error.strerror}", "See `labelkit list tables`.") from error
    except (yaml.YAMLError, ValidationError, RecursionError) as error:
        fault = str(error).splitlines()[0]
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            if first["loc"][2:3] == ("published",):
                place = f"rows.{first['loc'][1]}.published"
                first["msg"] = "must be a number, or numbers by value name, such as {top 1: 95.0, top 5: null}"
            fault = f"{place}: {first['msg']}" if place else first["msg"].removeprefix("Value error, ")
        raise ConfigError(
            "reproduce", f"{path} is not a valid table: {fault}", "Compare this file with those in presets/tables."
        ) from error


def find_dataset_arguments(words: Sequence[str]) -> list[int]:
    """Return the positions of the words in a command that are dataset names."""
    return [at for at in range(1, len(words)) if words[at - 1] in _OF_DATASETS and words[at] != "none"]


IN_DATA_ROOT = "{data_root}/"
"""Prefix of files in the data folder, as written in tables."""


def select_rows(table: PublishedTable, name_parts: Sequence[str] | None) -> list[TableRow]:
    """Select rows of a published table by parts of their names; ``None`` selects all rows.

    Raises:
        ConfigError: a part matches no row, or several.
    """
    if name_parts is None:
        return list(table.rows)
    names = {_without_spaces(row.name): row for row in table.rows}
    chosen, at = [], 0
    while at < len(name_parts):
        # commas separate the list but also occur in names, so the longest sequence of parts that matches a row is used
        for end in range(len(name_parts), at, -1):
            text = _without_spaces(",".join(name_parts[at:end]))
            fitting = [names[text]] if text in names else [row for name, row in names.items() if text in name]
            if len(fitting) == 1:
                break
        at = end
        if len(fitting) != 1:
            known = ", ".join(repr(row.name) for row in fitting or table.rows)
            raise ConfigError("--row", f"{text!r} matches {len(fitting)} rows of {table.name}", f"Choose from {known}.")
        chosen += fitting
    # a change requires both rows
    needed = {row.against for row in chosen} | {row.name for row in chosen}
    return [row for row in table.rows if row.name in needed] if any(row.against for row in chosen) else chosen


def _without_spaces(name: str) -> str:
    return re.sub(r"\s*,\s*", ",", name)


def list_row_inputs(row: TableRow, data_root: Path) -> set[tuple[str, Path]]:
    """List the inputs that the commands of a table row read, each with its data folder: datasets, and files in it."""
    return {
        (word, data_root if word.startswith(IN_DATA_ROOT) else find_data_root(words, data_root))
        for words in row.commands
        for at, word in enumerate(words)
        if word.startswith(IN_DATA_ROOT) or at in find_dataset_arguments(words)
    }


def find_data_root(words: Sequence[str], data_root: Path) -> Path:
    """Return the data folder of a command: its own ``--data-root``, if any, otherwise the given one."""
    own = [word for option, word in pairwise(_split_options(words)) if option == "--data-root"]
    return Path(own[-1].format(data_root=data_root)) if own else data_root


def _split_options(words: Sequence[str]) -> list[str]:
    """Split ``--option=value`` into two words."""
    return [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]


def describe_missing_data(dataset: str, root: Path) -> str:
    """Return why a dataset or file cannot be loaded, or an empty string if it can."""
    if dataset.startswith(IN_DATA_ROOT):
        path = Path(dataset.format(data_root=root))
        return "" if path.exists() else f"{path}: does not exist"
    try:
        load_dataset(dataset, data_root=root)
    except DatasetError as error:
        spec = DATASETS.get(dataset)
        counts = {} if spec is None else spec.num_images
        images = ", ".join(f"{format_count(count)} {split}" for split, count in counts.items())
        return f"{dataset} ({images} images): {error}"
    return ""


def list_inputs(command: Sequence[str], folder: Path) -> dict[str, bool]:
    """Return the files, folders and datasets outside ``folder`` that a command reads, and whether each is a dataset."""
    words = _split_options(command)
    datasets = {words[at] for at in find_dataset_arguments(words)}
    given = [word for option, word in pairwise(words) if option not in ("--data-root", "--out")]
    paths = {word for word in given if is_file(Path(word)) or ("/" in word and is_folder(Path(word)))}
    return {name: name in datasets for name in sorted(datasets | paths) if not Path(name).is_relative_to(folder)}


def compute_input_digest(name: str, root: Path, is_dataset: bool) -> str:
    """Return a SHA-256 digest (hex) of a file or folder, or of the labels, splits and files of a dataset.

    If the files of a folder or dataset exceed 1 GiB together, their sizes stand for their contents.

    Raises:
        DatasetError: the dataset cannot be listed.
        OSError: a file cannot be read.
    """
    path, digest = Path(name).expanduser(), hashlib.sha256()
    if path.is_file() and not is_archive_pattern(name):
        digest.update(sha256_file(path).encode())
    files = [] if is_dataset or path.is_file() else _list_visible_files(path)
    if is_dataset:
        listing = load_dataset(name, data_root=root)
        digest.update(f"{listing.digest()} {listing.split_names}".encode() + listing.splits.tobytes())
        path = listing.root or path
        if listing.masks is not None or listing.objects is not None:
            files = _list_visible_files(path)
        elif listing.root is not None:
            files = [listing.root / one for one in listing.sample_ids]
        elif is_archive_pattern(name):
            digest.update(repr([(one.path, one.system.size(one.path)) for one in find_archives(name)]).encode())
    sizes = [file.stat().st_size for file in files]
    if sum(sizes) <= _MAX_HASHED_BYTES:
        digest.update("".join(map(sha256_file, files)).encode())
    digest.update(repr([(str(file.relative_to(path)), size) for file, size in zip(files, sizes, strict=True)]).encode())
    return digest.hexdigest()


def _list_visible_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file() and not file.name.startswith("."))


def complete_command(config: ReproduceConfig, words: Sequence[str], folder: Path, seed: int) -> list[str]:
    """Fill in the paths and seed of a command; for ``train``, add data folder, device, seed and output folder.

    A data folder, device or output folder in the command takes precedence.

    Raises:
        ConfigError: a ``train`` command sets its seed.
    """
    filled = [word.format(here=folder, seed=seed, data_root=config.data_root) for word in words]
    if filled[0] != "train":
        return filled
    filled = _split_options(filled)
    if "--seed" in filled:
        remedy = "Remove it: labelkit adds the seeds 0, 1, ... (see --seeds)."
        raise ConfigError(f"labelkit {shlex.join(filled)}", "a table must not set --seed of `train`", remedy)
    added = {"--data-root": config.data_root, "--device": config.device, "--seed": seed, "--out": folder / "run"}
    return filled + [str(word) for option, value in added.items() if option not in filled for word in (option, value)]

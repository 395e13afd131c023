"""What a command writes: decided here for every output of every command, before any work.

An output is never a file that the command reads, never lies in a folder that labelkit keeps itself, and never replaces
a file of another kind, with or without ``--overwrite``.
"""

from __future__ import annotations

import csv
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from labelkit.errors import ConfigError, Damaged, StoreError, VersionError, output_exists
from labelkit.files import decode_table, open_regular
from labelkit.options.base import StageConfig, field_extra, shell_name

if TYPE_CHECKING:
    from labelkit.options.index import IndexConfig, ScoresConfig
    from labelkit.store.embeddings import EmbeddingStore

_HEAD_BYTES = 4096
_MOST_NAME_BYTES = 255
_MOST_PATH_BYTES = 4000
# beside NAME.h5 lie NAME.h5.results and more; the longest is that of patches that are being made
_LONGEST_SUFFIX = ".patches.run"
_KEPT = {".results": "the results", ".patches": "the patches", ".run": "an unfinished run"}
PNG_MARK = "labelkit"
"""What the field ``Software`` of our pictures says, so that no photo is taken for one of them."""
HTML_MARK = '<meta name="generator" content="labelkit">'

_HDF5 = b"\x89HDF\r\n\x1a\n"
_MAGIC = {
    _HDF5: "HDF5",
    b"\x89PNG\r\n\x1a\n": "a picture that labelkit did not make",
    b"\x93NUMPY": ".npy",
    b"PK\x03\x04": ".npz",
    b"PAR1": ".parquet",
    b"\x08": ".onnx",
}
_FORMATS = {
    "store": "labelkit.store",
    "prototypes": "labelkit.prototypes",
    "matches": "labelkit.matches",
}
_SAID = {
    "store": "a store",
    "prototypes": "prototypes",
    "matches": "matches",
    "csv": "a table",
    "answers": "a table",
    "png": "a picture",
    "html": "a page",
    "json": "JSON",
    "export": "an export",
}
OUTPUT_KINDS = frozenset({*_SAID, "folder"})
"""What a field that names an output may say that it ``makes``; see ``labelkit.options.base.option``."""


def check_outputs(config: StageConfig) -> None:
    """Find out before any work that a file or folder that a command is to write cannot be.

    Raises:
        OutputExistsError: it is there, and is not to be replaced.
        ConfigError: it is an input, of another kind, in a folder of labelkit's own, or its name is too long.
    """
    for name, field in type(config).model_fields.items():
        value, makes = getattr(config, name), field_extra(field, "makes")
        option = shell_name(name, field)
        for path in (Path(value),) if name == "dataset" and isinstance(value, str) else _paths(value):
            _check_names(path, option, "")
        if makes is None or value is None:
            continue
        if makes != "folder":
            check_output(config, value, str(makes), option)


def check_output(config: StageConfig, path: Path, makes: str, option: str = "--out", *others: str) -> None:
    """Find out before the work that a file cannot be written.

    Args:
        config: of the command; what it names otherwise is an input.
        path: of the file.
        makes: one of ``OUTPUT_KINDS``.
        option: that names it.
        others: options that lead to another name, too.

    Raises:
        OutputExistsError, ConfigError: see ``check_outputs``.
    """
    is_hdf5 = makes in _FORMATS
    _check_names(path, option, _LONGEST_SUFFIX if makes == "store" else "")
    if path.is_dir():
        raise ConfigError(option, f"{path} is a folder", "Give the name of a file.")
    if not is_hdf5 and path.suffix == ".h5":
        raise ConfigError(option, f"{path} is named like a store", "Choose another name.")
    place = path.resolve()
    if makes != "store" and not place.parent.is_dir():
        raise ConfigError(option, f"the folder of {path} does not exist", "Make it first.")
    for name, other in _named(config, outputs=True):
        if name != option and other.resolve() == place:
            raise ConfigError(option, f"{path} is also {name}", "Choose another name.")
    for folder in place.parents:
        if folder.suffix in _KEPT and folder.name.endswith((f".h5{folder.suffix}", f".patches{folder.suffix}")):
            problem = f"{path} lies in {folder}, which holds {_KEPT[folder.suffix]} of a store"
            raise ConfigError(option, problem, "Choose another place.")
    if path.is_symlink() and not path.exists():
        raise ConfigError(option, f"{path} is a link to {place}, which is not there", "Remove the link.")
    if not path.exists():
        return
    _check_replaced(config, path, makes, option)
    if not is_hdf5 and not getattr(config, "overwrite", False):
        raise output_exists(path, option, *others)


def _check_replaced(config: StageConfig, path: Path, makes: str, option: str) -> None:
    """Refuse to replace what is no earlier output of the same kind.

    Raises:
        ConfigError: it is an input, or something else.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(option, f"{path} is not a regular file", "Choose another name.")
    for name, source in _named(config, outputs=False):
        if source.exists() and os.path.samestat(source.stat(), status):
            raise ConfigError(option, f"{path} is also {name}, which is read", "Choose another name.")
    from labelkit.training.run_dir import is_file_of_run

    if is_file_of_run(path.resolve()):
        raise ConfigError(option, f"{path} is a file of a training run", "Choose another name.")
    found = _kind(path)
    if makes == "export":
        makes = path.suffix.lower()
    wanted = {"answers": {"csv", "JSON"}, "json": {"JSON"}, ".csv": {"csv"}}.get(makes, {makes})
    if found not in wanted and found != "empty" and not (makes in _FORMATS and found == "damaged"):
        shown = {"csv": "a table", "png": "a picture", "html": "a page", "damaged": "a damaged HDF5 file"}.get(
            found, found if " " in found else f"a {found} file"
        )
        problem = f"{path} is {_SAID.get(found, shown)}, where {_SAID.get(makes, f'a {makes} file')} is to be written"
        raise ConfigError(option, problem, "Choose another name, or remove that file yourself.")


def _kind(path: Path) -> str:
    """Say what a regular file is: a kind of output, ``empty``, ``damaged``, or words for it."""
    with open_regular(path) as file:
        head = file.read(_HEAD_BYTES)
    if not head:
        return "empty"
    if head.startswith(_HDF5):
        from labelkit.store.reader import open_file  # numpy loads here

        try:
            with open_file(path, None) as checked:
                said = checked.attributes[""]["format"]
        except (Damaged, VersionError):
            return "damaged"
        except StoreError:
            return "an HDF5 file of another program"
        return {name: kind for kind, name in _FORMATS.items()}.get(str(said), f"{said} file")
    if f"Software\0{PNG_MARK}".encode() in head:
        return "png"
    for magic, kind in _MAGIC.items():
        if head.startswith(magic):
            return kind
    return _text_kind(head)


def _text_kind(head: bytes) -> str:
    try:
        text = decode_table(head, cut=True)
    except UnicodeDecodeError:
        return "something else"
    if HTML_MARK in text:
        return "html"
    line = text.lstrip().partition("\n")[0].rstrip("\r")
    if line.startswith(("{", "[")):
        return "JSON"
    rows = [next(csv.reader([line]), []), *(line.split(sign) for sign in ";\t" if not line.endswith(sign))]
    is_table = any(len(cells) > 1 and not any(cell.startswith(" ") for cell in cells) for cells in rows)
    is_table |= re.fullmatch(r"\w+", line.strip()) is not None  # one column
    if not is_table or "\0" in text or line.startswith(("#", "<", "%", "-")) or re.match(r"[\w-]+:(\s|$)", line):
        return "something else"
    return "csv"


def _named(config: StageConfig, *, outputs: bool) -> Iterator[tuple[str, Path]]:
    for name, field in type(config).model_fields.items():
        if (field_extra(field, "makes") is not None) == outputs:
            for path in _paths(getattr(config, name)):
                yield shell_name(name, field), path


def _paths(value: object) -> Iterator[Path]:
    """Yield the paths in the value of an option; a text may be one, as that of ``--dataset``."""
    for item in value if isinstance(value, tuple) else (value,):
        if isinstance(item, Path):
            yield item
        elif isinstance(item, str) and os.sep in item and "\n" not in item:
            yield Path(item)


def _check_names(path: Path, option: str, suffix: str) -> None:
    """Refuse a path that no file system takes.

    Raises:
        ConfigError: a part of it is too long, with what labelkit appends to the last.
    """
    for part in path.parts:
        length = len(os.fsencode(part)) + (len(suffix) if part == path.name else 0)
        if length > _MOST_NAME_BYTES:
            beside = f", with {suffix} that labelkit makes beside it" if suffix else ""
            problem = f"{part[:40]}... has {length} bytes{beside}, where a name has at most {_MOST_NAME_BYTES}"
            raise ConfigError(option, problem, "Choose a shorter one.")
    if len(os.fsencode(path.absolute())) + len(suffix) > _MOST_PATH_BYTES:
        problem = f"{path.parts[0][:40]}... is a path of more than {_MOST_PATH_BYTES} bytes"
        raise ConfigError(option, problem, "Choose a shorter one.")


def check_kept_result(config: IndexConfig, store: EmbeddingStore, kind: str, **params: object) -> None:
    """Find out before the work that a result, if it is to be kept, cannot get its name.

    Args:
        config: of the command; ``result`` is the name, ``None``: nothing is kept.
        store: the store.
        kind: of the result.
        params: those of its parameters that are known; see ``check_new_result``.

    Raises:
        OutputExistsError: a result has the name, and another command or other options made it.
    """
    from labelkit.store.results import check_new_result

    if config.result is not None:
        stage = " ".join(config.command)
        check_new_result(store, config.result, overwrite=config.overwrite, kind=kind, stage=stage, params=params)


def keep_scores(
    config: ScoresConfig,
    store: EmbeddingStore,
    values: Mapping[str, object],
    params: Mapping[str, object],
    gallery_digest: str = "",
) -> tuple[Path, ...]:
    """Write scores beside a store as a result of kind ``evaluation``, if they are to be kept.

    Args:
        config: of the command.
        store: that was scored.
        values: what ``--json`` says; the store is named without its folder.
        params: of the result.
        gallery_digest: of another store that was looked up.

    Raises:
        OutputExistsError, ResourceError: it cannot be written.
    """
    from labelkit.commands.common.results import jsonable
    from labelkit.store.commit import canonical_json
    from labelkit.store.results import write_result

    if config.result is None:
        return ()
    place = {key: store.path.name for key in ("index", "source") if key in values}
    path = write_result(
        store,
        config.result,
        kind="evaluation",
        arrays={"metrics": canonical_json(jsonable({**values, **place}))},
        params=params,
        stage=" ".join(config.command),
        overwrite=config.overwrite,
        gallery_digest=gallery_digest,
    )
    return (path,)

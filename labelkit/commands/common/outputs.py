"""Check the inputs and outputs of every command, before any work and before PyTorch is imported.

Even with ``--overwrite``, an output may not be a file that the command reads, be in a folder that labelkit manages, or
replace a file of another kind.
"""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from labelkit.errors import (
    CheckpointError,
    ConfigError,
    Damaged,
    NotAStore,
    StoreError,
    VersionError,
    output_exists_error,
)
from labelkit.files import decode_table, missing_store_remedy, open_regular_file
from labelkit.options.base import BaseConfig, command_line_name, read_field_extra
from labelkit.options.data import DataConfig
from labelkit.store.schema import SIGNATURE

_HEAD_BYTES = 4096
_MANAGED = {".results": "the results", ".patches": "the patches", ".run": "an unfinished run"}
PNG_MARK = "labelkit"
"""Value of the PNG field ``Software`` that distinguishes labelkit's images from photos."""

HTML_MARK = '<meta name="generator" content="labelkit'

_MAGIC = {".npz": b"PK\x03\x04", ".onnx": b"\x08"}
_OF_HDF5 = ("store", "prototypes", "matches")
KIND_NAMES = {
    "store": "a store",
    "prototypes": "prototypes",
    "matches": "matches",
    "csv": "a table",
    "answers": "a table",
    "png": "a labelkit image",
    "html": "a labelkit page",
    "json": "JSON",
    "export": "an export",
}

_CHECKED_BY_COMMAND = ("datasets", "status")
"""Commands that check their inputs themselves."""


def check_inputs(config: BaseConfig) -> None:
    """Check that the stores, runs and datasets passed as options exist, before any work and before importing PyTorch.

    Commands repeat these checks in more detail, since they can also be called directly.

    Raises:
        NotAStore: the file passed as ``--index`` does not exist.
        CheckpointError: the path passed as ``--checkpoint`` does not exist.
        DatasetError: ``--dataset`` (or ``--scene-dataset``, if only scenes are used) is neither a registered dataset
            nor an existing folder or CSV.
    """
    if config.command[0] in _CHECKED_BY_COMMAND:
        return
    index, checkpoint, dataset = (getattr(config, name, None) for name in ("index", "checkpoint", "dataset"))
    if isinstance(index, Path) and not index.exists():
        raise NotAStore(str(index), "does not exist", missing_store_remedy(index))
    if isinstance(checkpoint, Path) and not checkpoint.exists():
        raise CheckpointError(str(checkpoint), "does not exist", "Train first: `labelkit train METHOD`.")
    if isinstance(config, DataConfig) and not config.uses_object_images:
        dataset = config.main_dataset
    if isinstance(dataset, str):
        from labelkit.data.registry import check_dataset

        check_dataset(dataset)


def check_outputs(config: BaseConfig) -> None:
    """Check that all output files can be written, before any work.

    Raises:
        OutputExistsError: an output exists and may not be replaced.
        ConfigError: an output is also an input, is a file of another kind, or is in a folder that labelkit manages.
    """
    for name, field in type(config).model_fields.items():
        value, makes = getattr(config, name), read_field_extra(field, "makes")
        if makes not in (None, "folder") and value is not None:
            check_output(config, value, str(makes), command_line_name(name, field))


def check_output(config: BaseConfig, path: Path, kind: str, option: str = "--out", *others: str) -> None:
    """Check that an output file can be written, before any work.

    Args:
        config: options of the command, including its inputs and other outputs.
        path: path of the output file.
        kind: kind of output, one of ``KIND_NAMES``.
        option: option that specifies the file.
        others: further options that change the file name, for the message.

    Raises:
        OutputExistsError, ConfigError: see ``check_outputs``.
    """
    is_hdf5 = kind in _OF_HDF5
    if path.is_dir():
        raise ConfigError(option, f"{path} is a folder", "Pass a file name.")
    if not is_hdf5 and path.suffix == ".h5":
        raise ConfigError(option, f"{path} ends in .h5, which is reserved for stores", "Choose another extension.")
    place = path.resolve()
    if kind != "store" and not place.parent.is_dir():
        raise ConfigError(option, f"the folder of {path} does not exist", "Create the folder first.")
    for name, other in _list_named_paths(config, outputs=True):
        if name != option and other.resolve() == place:
            raise ConfigError(option, f"{path} is also passed as {name}", "Choose another name.")
    for folder in place.parents:
        if folder.suffix in _MANAGED and folder.name.endswith((f".h5{folder.suffix}", f".patches{folder.suffix}")):
            problem = f"{path} is inside {folder}, which contains {_MANAGED[folder.suffix]} of a store"
            raise ConfigError(option, problem, "Choose another folder.")
    if path.is_symlink() and not path.exists():
        raise ConfigError(option, f"{path} is a link to {place}, which does not exist", "Remove the link.")
    if not path.exists():
        return
    _check_replaced(config, path, kind, option)
    if not is_hdf5 and not getattr(config, "overwrite", False):
        raise output_exists_error(path, option, *others)


def _check_replaced(config: BaseConfig, path: Path, makes: str, option: str) -> None:
    """Refuse to replace a file that is not an earlier output of the same kind."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(option, f"{path} is not a regular file", "Choose another name.")
    for name, source in _list_named_paths(config, outputs=False):
        if source.exists() and os.path.samestat(source.stat(), status):
            raise ConfigError(option, f"{path} is also the input {name}", "Choose another name.")
    from labelkit.training.run_dir import is_run_file

    if is_run_file(path.resolve()):
        raise ConfigError(option, f"{path} belongs to a training run", "Choose another name.")
    if not _is_earlier_output(path, makes):
        problem = f"{path} exists, but is not {KIND_NAMES[makes]}, so it will not be overwritten"
        raise ConfigError(option, problem, "Choose another name, or delete the file yourself.")


def _is_earlier_output(path: Path, makes: str) -> bool:
    """Return whether a file looks like an earlier output of this kind, judging by its first bytes."""
    with open_regular_file(path) as file:
        head = file.read(_HEAD_BYTES)
    if not head:
        return True
    if head.startswith(SIGNATURE) or makes in _OF_HDF5:
        return makes in _OF_HDF5 and head.startswith(SIGNATURE) and _is_format(path, f"labelkit.{makes}")
    if makes == "export" and path.suffix.lower() in _MAGIC:
        return head.startswith(_MAGIC[path.suffix.lower()])
    if makes == "png":
        return f"Software\0{PNG_MARK}".encode() in head
    try:
        text = decode_table(head, truncated=True)
    except UnicodeDecodeError:
        return False
    line = text.lstrip().partition("\n")[0].strip()
    found = "json" if line.startswith(("{", "[")) else "csv"
    found = ("html" if HTML_MARK in text else "") if line.startswith("<") else found
    # the header of a table has one word or several cells, unlike notes, code and settings
    is_table = re.fullmatch(r"\w+|[^#%-].*[,;\t].*", line) is not None
    wanted = {"answers": ("csv", "json"), "export": ("csv", "json")}.get(makes, (makes,))
    return "\0" not in text and found in wanted and (found != "csv" or is_table)


def _is_format(path: Path, wanted: str) -> bool:
    """Return whether an HDF5 file has the expected format, or is too damaged to tell."""
    from labelkit.store.reader import open_checked_file  # imports NumPy

    try:
        with open_checked_file(path, None) as checked:
            return bool(checked.attributes[""]["format"] == wanted)
    except (Damaged, VersionError):
        return True
    except StoreError:
        return False


def _list_named_paths(config: BaseConfig, *, outputs: bool) -> Iterator[tuple[str, Path]]:
    """Yield the options and paths of a command's inputs or outputs; strings that contain a separator are paths."""
    for name, field in type(config).model_fields.items():
        if (read_field_extra(field, "makes") is not None) == outputs:
            value = getattr(config, name)
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, Path) or (isinstance(item, str) and os.sep in item and "\n" not in item):
                    yield command_line_name(name, field), Path(item)

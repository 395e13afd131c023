"""Safe reading of untrusted files: only regular files, without blocking, within limits.

Everything that labelkit reads is opened here, except folders of images and files of its own package. Named pipes are
rejected instead of blocking, and JSON is limited in size and depth and may contain only finite numbers.
"""

import codecs
import csv
import difflib
import errno
import hashlib
import json
import math
import os
import stat
from collections.abc import Collection, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TextIO

MAX_JSON_BYTES = 1 << 30
MAX_RECORD_BYTES = 1 << 20
TABLE_SUFFIXES = (".csv", ".tsv", ".txt", ".json", ".jsonl")
"""Suffixes of files that may list images and labels."""
_MAX_DEPTH = 64
_CHUNK_BYTES = 1 << 20
_MAX_NAMES = 10_000


class NotRegularFileError(OSError):
    """Raised for a pipe, device or socket, which labelkit never reads."""


def open_regular_file(path: str | os.PathLike[str], *, buffering: int = -1) -> BinaryIO:
    """Open a regular file for reading; ``OSError`` for other files, such as a named pipe, on which ``open`` blocks."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "is a folder", os.fspath(path))
        if not stat.S_ISREG(mode):
            raise NotRegularFileError(errno.EINVAL, "is not a regular file", os.fspath(path))
        return os.fdopen(descriptor, "rb", buffering=buffering)
    except BaseException:
        os.close(descriptor)
        raise


def find_similar_path(path: Path) -> Path | None:
    """Find the path in the same folder that is most similar to a missing one; ``None`` if none is similar."""
    try:
        with os.scandir(path.parent) as entries:  # in very large folders, only some names
            beside = [entry.name for entry in islice(entries, _MAX_NAMES)]
    except (OSError, ValueError):
        return None
    store = path.name + ".h5"
    near = [store] if store in beside else difflib.get_close_matches(path.name, beside, n=1, cutoff=0.7)
    return path.parent / near[0] if near else None


def missing_path_remedy(path: Path) -> str:
    """Return the remedy for a missing path, which suggests a similar name if there is one."""
    near = find_similar_path(path)
    return "Check the name." if near is None else f"Did you mean `{near}`?"


def missing_store_remedy(path: Path) -> str:
    """Return the remedy for a missing store, with the command that creates it."""
    return f"{missing_path_remedy(path)} Create a store with `labelkit embed --dataset DATA --out {path}`."


def read_bytes(path: str | os.PathLike[str], limit: int | None = None) -> bytes:
    """Read a regular file; ``OSError`` if it has more than ``limit`` bytes."""
    with open_regular_file(path) as file:
        content = file.read(-1 if limit is None else limit + 1)
    if limit is not None and len(content) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit:,} bytes", os.fspath(path))
    return content


def detect_encoding(start: bytes) -> str:
    """Detect the encoding of a table from its first bytes; see ``decode_table``."""
    return "utf-16" if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"


def normalize_column_name(name: str) -> str:
    """Return a column name in the form used for comparisons: lower case, with ``_`` for spaces."""
    return "_".join(name.lower().split())


def open_csv_reader(file: TextIO, known_columns: Collection[str]) -> tuple[Any, list[str]]:
    """Return a CSV reader for the rows of a file, and the header.

    The delimiter is the first of comma, semicolon and tab for which a column has a known lower-case name (with ``_``
    for spaces), otherwise the one with the most columns.
    """
    columns = {}
    for delimiter in ",;\t":
        file.seek(0)
        names = next(csv.reader(file, delimiter=delimiter), [])
        columns[delimiter] = len(names)
        if any({name.strip().lower(), normalize_column_name(name)} & {*known_columns} for name in names):
            break
    else:
        delimiter = max(columns, key=columns.__getitem__)
    file.seek(0)
    reader = csv.reader(file, strict=True, delimiter=delimiter)
    return reader, [name.strip() for name in next(reader, [])]


def decode_table(raw: bytes, *, truncated: bool = False) -> str:
    """Decode the text of a table: UTF-8, or UTF-16 with a byte order mark, as written by spreadsheets.

    With ``truncated``, the bytes are only the beginning of a file, and may end inside a character.
    """
    return codecs.getincrementaldecoder(detect_encoding(raw))().decode(raw, final=not truncated)


def sha256_file(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 digest of a regular file as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with open_regular_file(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def parse_json(text: str | bytes) -> Any:
    """Parse JSON text; ``ValueError`` for non-finite numbers or more than 64 levels of nesting."""
    try:
        value = json.loads(text, parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        raise ValueError(f"nested more than {_MAX_DEPTH} deep") from None
    level, depth = [value], 0
    while level:
        if depth > _MAX_DEPTH:
            raise ValueError(f"nested more than {_MAX_DEPTH} deep")
        inside = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)]
        level = [item for items in inside for item in items if isinstance(item, dict | list)]
        depth += 1
    return value


def parse_json_object(text: str | bytes, keys: Mapping[str, type | tuple[type, ...]] | None = None) -> dict[str, Any]:
    """Parse a JSON object and check its keys (see ``check_keys``); ``ValueError`` if the text is not a JSON object."""
    value = parse_json(text)
    if not isinstance(value, dict):
        raise ValueError("is not a JSON object")
    check_keys(value, keys or {})
    return value


def check_keys(value: Mapping[str, Any], keys: Mapping[str, type | tuple[type, ...]]) -> None:
    """Check that an object has the required keys with values of the given types; ``float`` also accepts integers."""
    for key, kind in keys.items():
        kinds = kind if isinstance(kind, tuple) else (kind,)
        kinds += (int,) if float in kinds else ()
        if key not in value:
            raise ValueError(f"{key} is missing")
        if not isinstance(value[key], kinds) or (isinstance(value[key], bool) and bool not in kinds):
            raise ValueError(f"{key} is a {type(value[key]).__name__}")


def read_json(path: str | os.PathLike[str], limit: int = MAX_JSON_BYTES) -> Any:
    """Read and parse a JSON file of limited size; see ``read_bytes`` and ``parse_json`` for errors."""
    return parse_json(read_bytes(path, limit))


def read_json_object(
    path: str | os.PathLike[str],
    keys: Mapping[str, type | tuple[type, ...]] | None = None,
    limit: int = MAX_JSON_BYTES,
) -> dict[str, Any]:
    """Read a JSON object from a file of at most ``limit`` bytes and check its keys; errors: ``parse_json_object``."""
    return parse_json_object(read_bytes(path, limit), keys)


def read_record(folder: Path, name: str, keys: Mapping[str, type | tuple[type, ...]]) -> dict[str, Any] | None:
    """Read a small JSON record from a cache folder; return ``None`` if it does not exist.

    Raises:
        ValueError: the record is corrupt; the caller recreates it and reports this.
    """
    path = folder / name
    try:
        return read_json_object(path, keys, MAX_RECORD_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path} is corrupt: {error}") from error


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:20]} is not finite")
    return value

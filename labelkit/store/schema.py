"""Constants of the file formats of stores, results, parts and run folders (see ``docs/inside/file_format.txt``).

Describe a format there before changing it here: old readers ignore the additions of a new minor version; ``requires``
lists features that they must not ignore; a new major version changes the meaning of existing content.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

SIGNATURE = b"\x89HDF\r\n\x1a\n"
"""First bytes of an HDF5 file."""
FORMAT_STORE = "labelkit.store"
FORMAT_RESULT = "labelkit.result"
FORMAT_PART = "labelkit.part"
FORMAT_PLAN = "labelkit.plan"
FORMAT_PROTOTYPES = "labelkit.prototypes"
FORMAT_MATCHES = "labelkit.matches"
FORMAT_PATCHES = "labelkit.patches"
FORMAT_NEIGHBORS = "labelkit.neighbors"
FORMAT_SHARD = "labelkit.shard"
FORMATS = (
    FORMAT_STORE,
    FORMAT_RESULT,
    FORMAT_PART,
    FORMAT_PROTOTYPES,
    FORMAT_MATCHES,
    FORMAT_NEIGHBORS,
    FORMAT_SHARD,
)
"""Formats of HDF5 files; plans and indexes of patch sets are JSON."""
FORMAT_VERSION = "1.0"
MAJOR_VERSION = 1
FEATURE_CELLS = "cells"
FEATURE_IMAGELESS = "imageless"
FEATURE_SHARDED = "sharded"
FEATURE_UNSORTED = "unsorted"
KNOWN_FEATURES = frozenset({FEATURE_CELLS, FEATURE_IMAGELESS, FEATURE_UNSORTED})
"""Features that any file may require; stores may also be sharded."""
VIEWS = "view_embeddings"
"""Column of a store with the embeddings of views; the root attribute ``views`` records how they were drawn."""

ALIGNMENT = 4096
BLOCK_BYTES = 4 << 20
PART_BYTES = 64 << 20
MEMORY_BYTES = 512 << 20
JSON_ATTRIBUTE_BYTES = 16 << 10
ATTRIBUTE_BYTES = 64 << 10
CHUNK_BYTES = 64 << 20
FILTER_RATIO = 200
MAX_DEPTH = 6
PART_DIGEST_BYTES = 32
SET_BYTES = 512 << 20
MAX_SHARDS = 10_000

RESULT_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
WORD = re.compile(r"[a-z][a-z0-9_]{0,63}")


class ColumnSpec(NamedTuple):
    """Axes and types of a dataset, as defined by the file format.

    Attributes:
        axes: a letter or word for each axis; axes of the same name have equal lengths, and a number is a fixed length.
        types: kind and bytes per value; the first type is used for writing; ``S`` is a fixed-length string.
    """

    axes: tuple[str, ...]
    types: tuple[str, ...]


Columns = Mapping[str, ColumnSpec]


def _columns(table: dict[str, str]) -> Columns:
    pairs = {name: text.partition(":") for name, text in table.items()}
    return {name: ColumnSpec(tuple(axes.split()), tuple(types.split())) for name, (axes, _, types) in pairs.items()}


STORE_COLUMNS = _columns(
    {
        "embeddings": "n d: f4 f2",
        "view_embeddings": "n v*d: f4 f2",
        "sample_ids": "n: S",
        "sha256": "n 32: u1",
        "file_sizes": "n: u8",
        "image_sizes": "n 2: u4",
        "labels": "n: i8",
        "labeled": "n: u1",
        "class_names": "k: S",
        "old_classes": "k: u1",
        "splits": "n: i2",
        "split_names": "s: S",
        "skipped/sample_ids": "m: S",
        "skipped/reasons": "m: S",
    }
)
"""Known datasets of a store: axes, then types."""

REQUIRED_COLUMNS = ("embeddings", "sample_ids")
IMAGE_COLUMNS = ("sha256", "file_sizes", "image_sizes")
"""Also required, unless the store is imageless, in which case none of them may exist."""

RESULT_COLUMNS = _columns(
    {
        "cluster_ids": "n: i8",
        "pseudo_labels": "n: i8",
        "confidence": "n: f4",
        "centroids": "k d: f4",
        "prototypes": "k d: f4",
        "names": "k: S",
        "new_classes": "k: u1",
        "patch_cluster_ids": "t: i4",
        "query_rows": "q: i8",
        "neighbor_rows": "q j: i8",
        "scores": "q j: f4",
        "metrics": ": S",
        "confusion": "c c: i8",
        "labels": "n: i8",
        "labeled": "n: u1",
        "class_names": "l: S",
    }
)
"""Known datasets of a result."""

PATCH_COLUMNS = _columns(
    {
        "patches": "t d: f2 f4",
        "patch_offsets": "o: u8",
        "grids": "n 2: u2",
        "regions": "n 4: f4",
        "cells": "t 2: u2",
    }
)
"""Datasets of a patch file; o = n + 1."""

MATCH_COLUMNS = _columns(
    {
        "pairs": "p 2: i8",
        "inliers": "p: i8",
        "homographies": "p 3 3: f8",
        "boxes": "p 2 4: f4",
        "keypoints": "p j 2 2: f4",
        "keypoint_counts": "p: i8",
    }
)
"""Datasets of a match file for the pairs."""

MATCHED_IMAGE_COLUMNS = _columns(
    {
        "sample_ids": "n: S",
        "sha256": "n 32: u1",
        "image_sizes": "n 2: u4",
        "num_keypoints": "n: i8",
    }
)
"""Datasets of a match file for the images."""

PROTOTYPE_COLUMNS = _columns({"prototypes": "k d: f4"})
NEIGHBOR_COLUMNS = {name: RESULT_COLUMNS[name] for name in ("query_rows", "neighbor_rows", "scores")}


def is_extra_output(name: str, dtype: str, shape: tuple[int, ...], rows: int) -> bool:
    """Return whether a dataset of a store is an additional model output, judging by its name, type and shape."""
    known = name in STORE_COLUMNS or "/" in name
    return not known and dtype == "<f4" and len(shape) == 2 and shape[0] == rows


def encode_name(name: str) -> bytes:
    """Encode a name as raw bytes; surrogate escapes become the bytes they stand for."""
    return name.encode("utf-8", "surrogateescape")


def decode_name(raw: bytes) -> str:
    """Decode a name to text; bytes that are not UTF-8 become surrogate escapes."""
    return raw.decode("utf-8", "surrogateescape")


_FAULT = re.compile(r"\0|(?:\A|/)\.{0,2}(?:/|\Z)")
_FAULT_BETWEEN_NAMES = re.compile(rb"(?:\A|[/\0])\.{0,2}(?:[/\0]|\Z)")


def are_valid_sample_ids(names: Sequence[bytes]) -> bool:
    """Return whether all names are valid sample ids, as with ``find_name_fault`` but faster."""
    joined = b"\0".join(names)
    return joined.count(b"\0") == len(names) - 1 and not _FAULT_BETWEEN_NAMES.search(joined)


def find_name_fault(name: str) -> str | None:
    """Find out why a name is not a valid sample id; ``None`` if it is valid.

    A sample id is a path relative to the data root, with ``/`` between its parts, no empty, ``.`` or ``..``
    part, and no NUL byte. Joining it to a data root can thus never lead outside of that folder.
    """
    if not _FAULT.search(name):
        return None
    if not name:
        return "is empty"
    return "contains a NUL byte" if "\0" in name else "is not a path below the data root"

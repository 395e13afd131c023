"""The formats of stores, results, parts and run folders: in words, and as constants.

Store, ``NAME.h5``: one HDF5 file that never changes once it has its name. Readable since HDF5 1.8;
datasets are contiguous and unfiltered, strings have a fixed length, booleans are uint8, large arrays
begin at multiples of 4096 bytes. Row i of every column is sample i; rows are sorted by the bytes of
``sample_ids``.

    embeddings        (n, d) float32 or float16   all finite
    sample_ids        (n,) string                 path below the data root, ``/`` between parts, raw bytes; unique
    sha256            (n, 32) uint8               digest of the image file
    file_sizes        (n,) uint64                 bytes
    image_sizes       (n, 2) uint32               height and width after orientation
                                                  these three are absent where rows were imported without their images
                                                  (``requires`` = ``imageless``); never zeros in their place
    logits            (n, c) float32              optional: output of the model's classifier
    view_embeddings   (n, v * d) as embeddings    optional: embeddings of v augmented views of each image, one behind
                                                  the other: ``view_embeddings[...].reshape(n, v, d)``
    labels            (n,) int64                  optional: class index, -1 = unlabeled; the truth
    labeled           (n,) uint8                  optional: 1 = training may use this label
    class_names       (k,) string                 optional
    old_classes       (k,) uint8                  optional: 1 = the class has labeled samples
    splits            (n,) int16                  optional: index into split_names, -1 = in no split
    split_names       (s,) string                 optional
    label_sets/NAME/  as above                    optional: more label columns
    skipped/sample_ids, skipped/reasons (m,) string   optional: listed but not embedded; listed = n + m
    digests/PATH      (b, 32) uint8               for datasets above 4 MiB: SHA-256 of each block of rows;
                                                  attribute ``block_rows``

Root attributes, scalars of fixed-length types: ``format`` = labelkit.store, ``format_version``,
``requires`` (comma-separated words a reader must know), ``kind`` (embeddings, patches), ``normalized``
(0, 1), ``metric`` (cosine, l2, dot), ``names_are_utf8`` (0, 1), ``created_by``, ``plan_digest``,
``content_digest``. Attributes of the empty group ``model``: ``name``, ``weights_fingerprint``,
``weights_file_sha256``, ``source``, ``layer``, ``pooling``, ``preprocess`` (canonical JSON),
``preprocess_digest``, ``numerics`` (canonical JSON), and, of a network that was trained with labels,
``trained_labels``: the first 16 hexadecimal digits of SHA-256 of the names, and of the files, of the images that had
these labels, sorted, one behind the other. JSON, or such a list, above 16 KiB is a scalar string dataset of the
same name in the same group instead. Of imported rows, ``weights_fingerprint`` is empty and ``preprocess`` is
{"imported": WORD}, where WORD is the model's name as it was given, or SHA-256 of the file that was read: rows are
compared only with rows of the same WORD. ``plan_digest`` is then that of what was imported and how.

A store with views (``embed --views``) also has the root attribute ``views``, canonical JSON that says how they were
drawn: ``count`` (v), ``augmentation`` (name of the recipe), ``seed``, and ``view``, the numbers of the recipe that are
not those of an unchanged image. Random numbers are looked up by seed, SHA-256 of the sample id and number of the view,
from 1: the first views of a store are those of a store with fewer of them.

A store made with ``embed --reuse`` also has the root attributes ``reused_rows``, a count, and ``reused_from``,
content digests of the stores they were copied from, comma-separated. The plan has both, and which row is which in
``columns.json`` (``reused``: store and row of each, -1 where it is computed).

Content digest: SHA-256 over one line per object, each ended by a line feed, in the order of their bytes:

    G PATH                          a group; the root is ``/``
    A PATH@NAME TYPE SHAPE SHA256   an attribute
    D PATH TYPE SHAPE SHA256        a dataset

TYPE is NumPy's text, such as ``<f4``, ``|u1`` or ``|S12``; SHAPE is the lengths joined by ``x``, or
``scalar``; SHA256 is of the values' bytes in C order, and for a dataset with block digests of those
digests, one after the other. The attribute ``content_digest`` itself and all under ``/results`` are left
out. The digest is the identity of the file: results and checkpoints refer to a store by it.

Store in shards: the same content, and so the same content digest, in several files. ``NAME.h5`` is the index: a store
without the datasets ``embeddings`` and further outputs, whose ``requires`` has the word ``sharded`` besides, and with
``shards``: canonical JSON, an attribute of the root, or a scalar dataset where it is above 16 KiB. Neither counts in
the content digest; the lines of the columns in shards do, as if they were in the file. Its keys:

    columns    by name: ``dtype``, ``width`` (values per row), and ``sha256`` of all bytes where there are no
               ``digests/NAME``, else empty
    files      of each shard, in the order of rows: ``rows``, ``bytes`` (of the file), ``offsets`` (where the rows of
               each column begin in it), ``sha256`` (of the rows of each column) and ``frame`` (SHA-256 of all bytes
               of the file that are no rows)
    sha256     of the same JSON without it

Shards lie in ``NAME.h5.shards/`` as ``00000-FRAME.h5``: the number from 0, and the first 16 digits of ``frame``, so
that no name is taken from the file, and a store can be replaced while it is read. Each is an HDF5 file of the same
rules, format labelkit.shard: ``embeddings`` (m, d) and further outputs (m, w), attributes ``shard``, ``row_start``,
``row_stop`` and ``store_digest``. The index is committed last. It holds no virtual dataset: HDF5 reads zeros where the
file of one is missing.

Patches, ``NAME.h5.patches/SET-00000-of-00008.h5``: the features of each place of the images, in files of their own
that are never merged; the same rules, kind ``patches``. Each holds rows [``row_start``, ``row_stop``) of the store
whose content digest is ``store_digest``; t patches of n images, image after image, row by row of its grid:

    patches         (t, d) float16 or float32   all finite
    patch_offsets   (n + 1,) uint64             those of image i are patch_offsets[i] to patch_offsets[i + 1]
    grids           (n, 2) uint16               rows and columns
    regions         (n, 4) float32              left, top, right, bottom of the grid, pixels of the oriented original
    cells           (t, 2) uint16               row and column of each patch, where some were drawn (``requires`` =
                                                ``cells``); else all are there: ``patches[...].reshape(*grids[i], d)``

Attributes as of a store, group ``model`` too (its ``layer`` is that of the patches), and ``store_digest``,
``row_start``, ``row_stop``, and ``grid``, such as 14x14, where it is that of all images of the file. ``SET.json``,
committed last, is canonical JSON: ``format`` = labelkit.patches, ``format_version``, ``store_digest``,
``plan_digest``, ``recipe`` (what they depend on besides), ``dim``, ``dtype``, ``rows``, ``patches``, ``files`` (name,
row_start, row_stop, patches, content_digest of each, in order) and ``sha256``, that of the same JSON without it. While
they are made, ``NAME.h5.patches.run/`` is a run folder as below, with parts such as ``000042-003.h5``: the piece
number 3, from 0, of the rows of part 42 of the store.

Result, ``NAME.h5.results/RESULT.h5``: the same rules. RESULT matches ``[a-z0-9][a-z0-9._-]{0,63}``.

    cluster_ids, pseudo_labels   (n,) int64, -1 = none
    confidence                   (n,) float32
    expected                     (n,) float32 in [0, 1]: summed, how many answers are right; earlier ones have the ends
                                 of a range, ``expected_low`` and ``expected_high``
    best_class, best_confidence  (n,) int64, float32: known group of the largest share, and its chance; ``new_chance``
                                 (n,) float32, that of all new groups; ``grouped_ids`` (n,) int64, the group it is in
    centroids, prototypes        (k, d) float32
    names, new_classes           (k,) string; (k,) uint8, 1 = not among the labeled classes
    patch_cluster_ids            (t,) int32, -1 = none: kind ``patch_clusters``, patches in the order of the set
    query_rows                   (q,) int64
    neighbor_rows, scores        (q, j) int64, -1 = none; (q, j) float32
    metrics, confusion           JSON, scalar string; (k, k) int64
    labels, labeled, class_names as in a store: kind ``labels``, given after embedding, with ``label_rounds`` (n,)
                                 int64, the round that gave each, 0 = the store's own, -1 = none. ``labeled`` alone, in
                                 a grouping: rows whose label, given after embedding, it was made with
    retired                      (k,) uint8, 1 = an id of an earlier run that no group has now; its centroid is NaN
    sources                      (n,) uint8, index into source_names: kind ``discovered``, which also has
                                 ``discovered_rows`` (s,) int64 and, for these rows, ``discovered_labels``,
                                 ``_scores``, ``_distance``, ``_round``, ``_rank``, ``_entropy``, ``_soft``

Root attributes: ``format`` = labelkit.result, ``format_version``, ``requires``, ``kind``,
``store_digest``, ``gallery_digest`` (retrieval), ``n``, ``params`` (canonical JSON), ``stage``,
``created_by``, ``content_digest``.

Packed store: a store that holds its results too, for sending. The group ``results/RESULT`` holds what the root of the
result's own file does, its ``digests`` and its ``content_digest`` included; paths in the lines of that digest count
from the group. The digest of the store leaves ``/results`` out, so it is that of the store without them. A packed file
does not change either: further results lie beside it.

Prototypes, ``NAME.h5``: the same rules.

    prototypes                   (k, d) float32, rows of length 1, one per class

Root attributes: ``format`` = labelkit.prototypes, ``format_version``, ``requires``, ``recipe`` (canonical JSON: all
that they depend on), ``spread`` (canonical JSON: cosines), ``created_by``, ``content_digest``.

Matches, ``NAME.h5``: pairs of images that show the same thing; the same rules.

    sample_ids                   (n,) string                 images that were looked at, as in a store
    sha256                       (n, 32) uint8
    image_sizes                  (n, 2) uint32
    num_keypoints                (n,) int64
    pairs                        (p, 2) int64                rows of first and second image; sorted
    inliers                      (p,) int64                  keypoints that the homography explains
    homographies                 (p, 3, 3) float64           from first to second image, normalized coordinates
    boxes                        (p, 2, 4) float32           left, top, right, bottom of the inliers in both images
    keypoints                    (p, j, 2, 2) float32        some inliers: x and y in both images
    keypoint_counts              (p,) int64                  how many of the j are there

Root attributes: ``format`` = labelkit.matches, ``format_version``, ``requires``, ``recipe`` (canonical JSON: all that
they depend on), ``created_by``, ``content_digest``. Coordinates are x right, y down, edges of the image at -1 and 1.

Neighbors, ``NAME.h5``: images of a data set and those nearest to them; the same rules.

    query_rows                   (q,) int64                  rows of the data set, increasing
    neighbor_rows                (q, j) int64                rows of the data set, the nearest first
    scores                       (q, j) float32              cosines

Root attributes: ``format`` = labelkit.neighbors, ``format_version``, ``requires``, ``recipe`` (canonical JSON: listing
and network that they depend on), ``created_by``, ``content_digest``.

Kept views, ``kept-DIGEST/``: what the frozen part of a network made of views of images, for training alone. A run
folder of which no store is made; DIGEST is the first 12 digits of that of its plan, whose ``kind`` is kept-views. Its
parts hold, for each kind of view, ``view0`` (m, v, ...) float16 or float32: v views of the m images of the part. Where
views follow others, the geometry of each kind stands behind these, (m, v, 2 or 3, 3) float32.

Run folder, ``NAME.h5.run/``, while a store is being made; gone once the store has its name:

    files            the listed names, sorted raw bytes, NUL-separated; committed first
    columns.json     labels, splits and class names of the plan
    plan.json        the plan, with the digests of both
    parts/000042.h5  rows [k * part_rows, (k + 1) * part_rows) of the plan: an HDF5 file of the same rules,
                     format labelkit.part, followed by the 32 bytes of its SHA-256, so that damage is
                     found before HDF5 reads it. Datasets as in a store, ``skipped/rows`` (m,) int64
                     instead of ``skipped/sample_ids``; attributes ``part`` and ``plan_digest``
    lock             held by the one process that publishes
    publish-*.tmp    the store being assembled

Versions: a new minor version only adds what an old reader can ignore; a word in ``requires`` is what it
must not ignore; a new major version changes a meaning. Unknown datasets and attributes are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

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
"""Formats of HDF5 files; plans and sets of patches are JSON."""
FORMAT_VERSION = "1.0"
MAJOR_VERSION = 1
FEATURE_CELLS = "cells"
FEATURE_IMAGELESS = "imageless"
FEATURE_SHARDED = "sharded"
KNOWN_FEATURES = frozenset({FEATURE_CELLS, FEATURE_IMAGELESS})
"""Words that any file may require; stores may be sharded, too."""
STORE_KINDS = ("embeddings", "patches")
METRICS = ("cosine", "l2", "dot")
DTYPES = ("float32", "float16")
VIEWS = "view_embeddings"
"""Column of a store for embeddings of views; the root attribute ``views`` says how they were drawn."""

ALIGNMENT = 4096
BLOCK_BYTES = 4 << 20
PART_BYTES = 64 << 20
MEMORY_BYTES = 512 << 20
JSON_ATTRIBUTE_BYTES = 16 << 10
ATTRIBUTE_BYTES = 64 << 10
CHUNK_BYTES = 64 << 20
FILTER_RATIO = 200
MAX_DEPTH = 6
MAX_OBJECTS = 10_000
PART_DIGEST_BYTES = 32
SET_BYTES = 512 << 20
MAX_SHARDS = 10_000
SET_JSON_BYTES = 16 << 20

RESULT_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
WORD = re.compile(r"[a-z][a-z0-9_]{0,63}")


class Column(NamedTuple):
    """A known dataset.

    Attributes:
        axes: a letter or word for each; equal ones have equal lengths, a number is a length.
        types: kind and bytes per value, the first is written; ``S`` is a string of any fixed length.
    """

    axes: tuple[str, ...]
    types: tuple[str, ...]


Columns = Mapping[str, Column]


def _columns(table: dict[str, str]) -> Columns:
    pairs = {name: text.partition(":") for name, text in table.items()}
    return {name: Column(tuple(axes.split()), tuple(types.split())) for name, (axes, _, types) in pairs.items()}


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

LABEL_SET_COLUMNS = _columns(
    {
        "labels": "n: i8",
        "labeled": "n: u1",
        "class_names": "k: S",
        "old_classes": "k: u1",
    }
)
"""Known datasets of a group ``label_sets/NAME``."""

REQUIRED_COLUMNS = ("embeddings", "sample_ids")
IMAGE_COLUMNS = ("sha256", "file_sizes", "image_sizes")
"""Required too, unless the store is imageless; then none of them may be there."""

RESULT_COLUMNS = _columns(
    {
        "cluster_ids": "n: i8",
        "pseudo_labels": "n: i8",
        "confidence": "n: f4",
        "expected_low": "n: f4",
        "expected_high": "n: f4",
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
"""Datasets of a file of patches; o = n + 1."""

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
"""Datasets of matches."""

MATCHED_IMAGE_COLUMNS = _columns(
    {
        "sample_ids": "n: S",
        "sha256": "n 32: u1",
        "image_sizes": "n 2: u4",
        "num_keypoints": "n: i8",
    }
)
"""What a file of matches says about images."""

PROTOTYPE_COLUMNS = _columns({"prototypes": "k d: f4"})
NEIGHBOR_COLUMNS = {name: RESULT_COLUMNS[name] for name in ("query_rows", "neighbor_rows", "scores")}


def name_bytes(name: str) -> bytes:
    """Return the raw bytes of a name; surrogate escapes become the bytes they stand for."""
    return name.encode("utf-8", "surrogateescape")


def name_text(raw: bytes) -> str:
    """Return a name as text; bytes that are not UTF-8 become surrogate escapes."""
    return raw.decode("utf-8", "surrogateescape")


def name_texts(raw: Sequence[bytes]) -> list[str]:
    """:func:`name_text` of each; many are read in one go."""
    joined = b"\0".join(raw)
    if not raw or joined.count(b"\0") != len(raw) - 1:  # a name holds a NUL
        return [name_text(value) for value in raw]
    # a NUL ends every sequence of UTF-8, so that each name is read as by itself
    return name_text(joined).split("\0")


def is_utf8(raw: bytes) -> bool:
    """Say whether the raw bytes of a name are UTF-8."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def name_fault(name: str) -> str | None:
    """Say why a name cannot be a sample id, or return ``None`` if it can.

    A sample id is a path below the data root: relative, ``/`` between its parts, no empty, ``.`` or ``..``
    part, no NUL. So joining it to a data root can never lead outside of it.
    """
    if not name:
        return "is empty"
    if "\0" in name:
        return "holds a NUL byte"
    if any(part in ("", ".", "..") for part in name.split("/")):
        return "is not a path below the data root"
    return None


_PART_FAULTS = tuple(f"{before}{part}{after}" for part in ("", ".", "..") for before in "\0/" for after in "\0/")


def has_name_fault(names: Sequence[str]) -> bool:
    """Say whether :func:`name_fault` finds something in any of these names, in a few looks at all of them."""
    if not names:
        return False
    joined = "\0".join(("", *names, ""))
    return joined.count("\0") != len(names) + 1 or any(fault in joined for fault in _PART_FAULTS)

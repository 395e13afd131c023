"""Plans: everything besides the images and the network that determines the bytes of a store or of its patches.

A run folder contains its plan, so that a resumed run uses the same plan (see ``docs/inside/file_format.txt``).
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.errors import DatasetError, ResourceError, StoreError
from labelkit.files import read_bytes, read_json_object
from labelkit.store import schema
from labelkit.store.commit import canonical_json, json_digest, to_plain_json
from labelkit.store.embeddings import ModelIdentity, find_differing_keys, read_model
from labelkit.store.reader import open_checked_file
from labelkit.store.schema import decode_name, encode_name, find_name_fault
from labelkit.store.writer import MADE_BY


def embedding_run_folder(out: Path) -> Path:
    """Return the run folder in which a store is created."""
    return out.with_name(out.name + ".run")


def patches_run_folder(out: Path) -> Path:
    """Return the run folder in which the patches of a store are created."""
    return out.with_name(out.name + ".patches.run")


@dataclass(frozen=True, eq=False)
class EmbeddingPlan:
    """Plan of an embedding store: everything besides the images and the network that determines its bytes.

    Args:
        sample_ids: N unique paths relative to the data root; bytes that are not UTF-8 are surrogate escapes.
        model: the model that computes the embeddings.
        dim: dimension of the embeddings.
        batch_size: images per forward pass; the plan determines the batches, since the last bits of an embedding
            depend on the batch in which it was computed.
        metric: metric intended for comparing embeddings: ``cosine``, ``l2`` or ``dot``.
        created_by: program and version.
        dtype: ``float32`` or ``float16``, dtype of the stored embeddings.
        extras: width of each additional float32 output, such as ``{"logits": 10}``.
        views: how augmented views of each image are drawn, JSON values, with their number as ``count``; ``None``: none.
        part_rows: images committed at a time; reduced to a multiple of ``batch_size`` and to about 64 MiB,
            but at least one batch.
        labels: (N,) int, class index, -1 = unlabeled. The true labels, including those hidden from training.
        labeled: (N,) bool, whether training may use the label.
        class_names: k names.
        old_classes: (k,) bool, whether the class has labeled samples.
        splits: (N,) int, index into ``split_names``, -1 = in no split.
        split_names: names of the splits.
        reused_from: content digests of the stores from which embeddings are copied.
        reused: (N, 2) int, index into ``reused_from`` and row in that store, -1 for embeddings to compute; required if
            ``reused_from`` is set, and only then.
        base_rows: number of initial rows that belong to ``reused_from[0]``, the store that this one extends. They are
            not in any part.

    Raises:
        DatasetError: a sample id is not a path relative to the data root.
        ValueError: any other inconsistency.
    """

    sample_ids: Sequence[str]
    model: ModelIdentity
    dim: int
    batch_size: int
    metric: str = "cosine"
    created_by: str = MADE_BY
    dtype: str = "float32"
    extras: Mapping[str, int] = field(default_factory=dict)
    views: Mapping[str, Any] | None = None
    part_rows: int = 1024
    labels: NDArray[np.int64] | None = None
    labeled: NDArray[np.bool_] | None = None
    class_names: Sequence[str] = ()
    old_classes: NDArray[np.bool_] | None = None
    splits: NDArray[np.int16] | None = None
    split_names: Sequence[str] = ()
    reused_from: Sequence[str] = ()
    reused: NDArray[np.int64] | None = None
    base_rows: int = 0

    def __post_init__(self) -> None:
        """Convert the fields to their stored types and check them against each other."""
        for name in ("sample_ids", "class_names", "split_names", "reused_from"):
            self._set(name, tuple(getattr(self, name)))
        self._set("extras", dict(sorted(self.extras.items())))
        if not self.sample_ids:
            raise ValueError("sample_ids is empty")
        for name in self.sample_ids:
            if fault := find_name_fault(name):
                remedy = "Name images by paths relative to the data root."
                raise DatasetError(repr(name), f"cannot be a sample id: it {fault}", remedy)
        count, classes = len(self.sample_ids), len(self.class_names)
        if len(set(self.sample_ids)) < count:
            raise ValueError("sample_ids are not unique")
        kinds = {"labels": "<i8", "labeled": "?", "splits": "<i2", "old_classes": "?", "reused": "<i8"}
        shapes = {"old_classes": (classes,), "reused": (count, 2)}
        for name, dtype in kinds.items():
            if getattr(self, name) is not None:
                array, shape = np.array(getattr(self, name), dtype=dtype), shapes.get(name, (count,))
                if array.shape != shape:
                    raise ValueError(f"{name} must have shape {shape}, got {array.shape}")
                array.flags.writeable = False
                self._set(name, array)
        largest = max(1, schema.PART_BYTES // self._row_bytes)
        batches = max(1, min(self.part_rows, largest) // self.batch_size)
        self._set("part_rows", batches * self.batch_size)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def num_reused(self) -> int:
        """Number of embeddings copied from other stores."""
        return 0 if self.reused is None else int((self.reused[:, 0] >= 0).sum())

    @property
    def num_views(self) -> int:
        """Number of augmented views embedded per image, in addition to the image itself."""
        return 0 if self.views is None else int(self.views.get("count", 0))

    def part_shapes(self, rows: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return the type and shape, by name, of the columns of a part with this many rows."""
        floats = "<f4" if self.dtype == "float32" else "<f2"
        return {
            "embeddings": (floats, (rows, self.dim)),
            "sha256": ("|u1", (rows, 32)),  # of the image files
            "file_sizes": ("<u8", (rows,)),
            "image_sizes": ("<u4", (rows, 2)),  # height and width after orientation
            **{name: ("<f4", (rows, width)) for name, width in self.extras.items()},
            **({schema.VIEWS: (floats, (rows, self.num_views * self.dim))} if self.num_views else {}),
        }

    @property
    def _row_bytes(self) -> int:
        embedded = (1 + self.num_views) * self.dim * np.dtype(self.dtype).itemsize
        return embedded + 4 * sum(self.extras.values()) + 48

    @cached_property
    def _names(self) -> bytes:
        return b"\0".join(encode_name(name) for name in self.sample_ids)

    @property
    def names_are_utf8(self) -> bool:
        """Whether all names are valid UTF-8."""
        try:
            self._names.decode()
        except UnicodeDecodeError:
            return False
        return True

    @cached_property
    def _columns(self) -> dict[str, Any]:
        arrays = {name: getattr(self, name) for name in ("labels", "labeled", "old_classes", "splits")}
        columns: dict[str, Any] = {name: None if array is None else array.tolist() for name, array in arrays.items()}
        if self.reused is not None:
            columns["reused"] = self.reused.tolist()
        return {**columns, "class_names": list(self.class_names), "split_names": list(self.split_names)}

    @cached_property
    def _json(self) -> dict[str, Any]:
        return {
            "format": schema.FORMAT_PLAN,
            "format_version": schema.FORMAT_VERSION,
            "files": {"count": len(self.sample_ids), "sha256": hashlib.sha256(self._names).hexdigest()},
            "columns": {name: json_digest(column) for name, column in self._columns.items()},
            "model": self.model.to_json(),
            "dim": self.dim,
            "dtype": self.dtype,
            "extras": dict(self.extras),
            "batch_size": self.batch_size,
            "part_rows": self.part_rows,
            "normalized": False,
            "metric": self.metric,
            "created_by": self.created_by,
            **({} if self.views is None else {"views": dict(self.views)}),
            **({"reuse": {"stores": list(self.reused_from), "rows": self.num_reused}} if self.reused_from else {}),
            **({"base_rows": self.base_rows} if self.base_rows else {}),
        }

    def to_json(self) -> dict[str, Any]:
        """Convert to the content of ``plan.json``, with names and labels replaced by their digests."""
        return to_plain_json(self._json)

    def digest(self) -> str:
        """Return the SHA-256 of the plan's canonical JSON as 64 hexadecimal digits."""
        return json_digest(self._json)

    def files(self) -> dict[str, bytes]:
        """Return the names and contents of the files whose digests the plan records."""
        return {"files": self._names, "columns.json": canonical_json(self._columns).encode()}

    @property
    def num_parts(self) -> int:
        """Number of parts in a run of this plan."""
        return -(-(len(self.sample_ids) - self.base_rows) // self.part_rows)

    def estimated_bytes(self) -> int:
        """Estimate the size of the output in bytes."""
        longest, count = max(len(encode_name(name)) for name in self.sample_ids), len(self.sample_ids)
        return self._row_bytes * (count - self.base_rows) + (longest + 16) * count + (64 << 10)


def resume_plan(out: str | os.PathLike[str], plan: EmbeddingPlan) -> EmbeddingPlan:
    """Return the plan of an unfinished run of a store if it lists other files but is otherwise equal, else ``plan``.

    Files added since the run began are thus left to a later run, and deleted files remain in the plan and are
    skipped with that reason. In every other case, ``EmbeddingRun.open`` reports the differences.
    """
    stored = read_stored_plan(embedding_run_folder(Path(out)))
    if stored is None:
        return plan
    differing = find_differing_keys(stored.to_json(), plan.to_json())
    keys = {key if key.startswith("reuse.") else key.partition(".")[0] for key in differing}
    same_names = all(
        stored._columns[key] == plan._columns[key] for key in ("class_names", "old_classes", "split_names")
    )
    # The copied rows follow from the listing, but they must come from the same stores.
    # A newer version may continue: its embeddings depend on the model, which is compared.
    if keys - {"files", "columns", "reuse.rows", "created_by"} or not same_names:
        return plan
    rows = {name: row for row, name in enumerate(plan.sample_ids)}
    pairs = [(old, rows[name]) for old, name in enumerate(stored.sample_ids) if name in rows]
    for name in ("labels", "labeled", "splits"):
        mine, other = stored._columns[name], plan._columns[name]
        if (mine is None) != (other is None) or (mine and any(mine[old] != other[new] for old, new in pairs)):
            return plan
    return stored if pairs else plan


def read_recorded_numerics(out: str | os.PathLike[str], *, overwrite: bool = False) -> Mapping[str, Any]:
    """Read the numerics settings of an unfinished run or a finished store; empty if neither can be read.

    A repeated command that does not set them thus continues with the same settings, even if the defaults have changed.
    A finished store is ignored if it will be overwritten.
    """
    stored = read_stored_plan(embedding_run_folder(Path(out)))
    if stored is not None:
        return stored.model.numerics
    if overwrite or not Path(out).is_file():
        return {}
    try:
        with open_checked_file(Path(out), schema.FORMAT_STORE) as file:  # works even if a shard is missing
            return read_model(file).numerics
    except (StoreError, ResourceError):  # EmbeddingRun.open reports the problem
        return {}


def read_stored_plan(folder: Path) -> EmbeddingPlan | None:
    """Read the plan of an unfinished run, or return ``None`` if it cannot be read."""
    try:
        loaded = read_json_object(folder / "plan.json")
        columns = read_json_object(folder / "columns.json")
        names = read_bytes(folder / "files")
        model = {key: value for key, value in loaded["model"].items() if key != "preprocess_digest"}
        foreign = ("format", "format_version", "files", "columns", "reuse", "normalized")
        own = {key: value for key, value in loaded.items() if key not in foreign}
        plan = EmbeddingPlan(
            **{**own, "model": ModelIdentity(**model)},
            reused_from=loaded.get("reuse", {}).get("stores", ()),
            sample_ids=[decode_name(raw) for raw in names.split(b"\0")],
            **columns,
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError, DatasetError):
        return None
    return plan if plan.to_json() == loaded else None


@dataclass(frozen=True, eq=False)
class PatchPlan:
    """Plan of a patch set: everything besides the images and the network that determines its bytes.

    Args:
        rows: plan of the store to which the patches belong.
        layer: network layer from which the patches are taken.
        grid: number of rows and columns of patches in an image.
        dim: dimension of the patch features.
        dtype: ``float16`` or ``float32``.
        set_bytes: maximum size of a file of the patch set, unless one batch is larger; limited to 64 MiB.
    """

    rows: EmbeddingPlan
    layer: str
    grid: tuple[int, int]
    dim: int
    dtype: str = "float16"
    set_bytes: int = schema.SET_BYTES

    @property
    def num_patches(self) -> int:
        """Number of patches per image."""
        return self.grid[0] * self.grid[1]

    @property
    def _row_bytes(self) -> int:
        return self.num_patches * self.dim * np.dtype(self.dtype).itemsize + 40

    @cached_property
    def chunks(self) -> list[tuple[int, int, int]]:
        """Files of the patch set in order, as tuples of the store's part, first row and end row (exclusive)."""
        rows, most_rows = self.rows, min(self.set_bytes, schema.PART_BYTES) // self._row_bytes
        step = max(1, most_rows // rows.batch_size) * rows.batch_size
        found = []
        for part, first in enumerate(range(0, len(rows.sample_ids), rows.part_rows)):
            last = min(first + rows.part_rows, len(rows.sample_ids))
            found += [(part, start, min(start + step, last)) for start in range(first, last, step)]
        return found

    @property
    def recipe(self) -> dict[str, Any]:
        """Settings, other than the store, that determine the patches."""
        # earlier versions could sample some patches of each image
        return {"layer": self.layer, "grid": list(self.grid), "per_image": None, "seed": None}

    def to_json(self) -> dict[str, Any]:
        """Convert to the content of ``plan.json``."""
        plan = {
            "format": schema.FORMAT_PLAN,
            "format_version": schema.FORMAT_VERSION,
            "kind": "patches",
            "rows": self.rows.to_json(),
            "recipe": self.recipe,
            "dim": self.dim,
            "dtype": self.dtype,
            "set_bytes": self.set_bytes,
        }
        return to_plain_json(plan)

    def estimated_bytes(self) -> int:
        """Estimate the total size of the files in bytes."""
        return self._row_bytes * len(self.rows.sample_ids) + (64 << 10) * len(self.chunks)

"""Make an embedding store in parts that survive a kill, by one process or several, with the same bytes.

``EmbeddingRun.open`` checks the place and writes down the plan; workers write parts, in any order and any
number of times; ``publish`` puts them together, and the store appears under its name complete. Whatever
is interrupted is continued by doing the same again. The run folder is described in
``labelkit.store.schema``.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.errors import DatasetError, Mismatch, ResourceError, StoreError, resource_error
from labelkit.store import schema
from labelkit.store.commit import canonical_json, commit_bytes, commit_json
from labelkit.store.digests import RESTORE, BlockDigester, rows_per_block
from labelkit.store.embeddings import ModelIdentity, differing_keys, open_store
from labelkit.store.hdf5.writing import Contents, Image, Stream, strings
from labelkit.store.opening import open_file
from labelkit.store.run_folder import (
    cast_finite,
    check_space,
    clear,
    commit_part,
    compare_plans,
    install_image,
    locked,
    open_part,
    part_is_done,
    read_plan,
    translated,
)
from labelkit.store.schema import name_bytes, name_fault, name_text

_REASON_CHARACTERS = 500
_SHOWN_FAULTS = 5
_RESERVED = {"digests", "model", "skipped", "label_sets", "results", "preprocess", "numerics"}


@dataclass(frozen=True, eq=False)
class EmbeddingPlan:
    """All that decides the bytes of a store, besides the images and the network.

    Args:
        sample_ids: N paths below the data root, sorted by their bytes, unique; what is not UTF-8 as
            surrogate escapes.
        model: what makes the embeddings.
        dim: values per embedding.
        batch_size: images per forward pass; the borders of the batches are fixed by the plan, since the
            last bits of a row depend on the batch it ran in.
        normalized: whether rows have length 1.
        metric: how rows are meant to be compared: ``cosine``, ``l2`` or ``dot``.
        created_by: program and version.
        dtype: ``float32`` or ``float16``, type of the stored rows.
        extras: width of each further float32 output per row, such as ``{"logits": 10}``.
        part_rows: rows committed at a time; lowered to a multiple of ``batch_size`` and to about 64 MiB,
            but at least one batch.
        labels: (N,) int, class index, -1 = unlabeled. The truth, also where training must not look.
        labeled: (N,) bool, whether training may use the label.
        class_names: k names.
        old_classes: (k,) bool, whether the class has labeled samples.
        splits: (N,) int, index into ``split_names``, -1 = in no split.
        split_names: names of the splits.
        reused_from: content digests of stores that rows are copied from.
        reused: (N, 2) int, index into ``reused_from`` and row of that store, -1 where a row is computed; given if
            and only if ``reused_from`` is.

    Raises:
        DatasetError: a sample id is not a path below the data root.
        ValueError: anything else that does not fit together.
    """

    sample_ids: Sequence[str]
    model: ModelIdentity
    dim: int
    batch_size: int
    normalized: bool
    metric: str
    created_by: str
    dtype: str = "float32"
    extras: Mapping[str, int] | None = None
    part_rows: int = 1024
    labels: NDArray[np.int64] | None = None
    labeled: NDArray[np.bool_] | None = None
    class_names: Sequence[str] = ()
    old_classes: NDArray[np.bool_] | None = None
    splits: NDArray[np.int16] | None = None
    split_names: Sequence[str] = ()
    reused_from: Sequence[str] = ()
    reused: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        """Bring the fields to their stored types and check them against each other."""
        self._set("sample_ids", tuple(self.sample_ids))
        self._set("class_names", tuple(self.class_names))
        self._set("split_names", tuple(self.split_names))
        self._set("reused_from", tuple(self.reused_from))
        self._set("extras", dict(sorted((self.extras or {}).items())))
        for name, dtype in (
            ("labels", "<i8"),
            ("labeled", "?"),
            ("old_classes", "?"),
            ("splits", "<i2"),
            ("reused", "<i8"),
        ):
            values = getattr(self, name)
            if values is not None:
                array = np.array(values, dtype=dtype)
                if not np.array_equal(array, np.asarray(values)):
                    raise ValueError(f"{name} holds values that {dtype} cannot")
                array.flags.writeable = False
                self._set(name, array)
        self._check_ids()
        self._check_numbers()
        self._check_columns()
        largest = max(1, schema.PART_BYTES // self._row_bytes)
        batches = max(1, min(self.part_rows, largest) // self.batch_size)
        self._set("part_rows", batches * self.batch_size)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_ids(self) -> None:
        if not self.sample_ids:
            raise ValueError("sample_ids is empty")
        previous = b""
        for name in self.sample_ids:
            if fault := name_fault(name):
                raise DatasetError(
                    repr(name), f"as a sample id, it {fault}", "Name images by their path below the data root."
                )
            raw = name_bytes(name)
            if raw <= previous:
                raise ValueError(f"sample_ids are not sorted by their bytes or not unique at {name!r}")
            previous = raw

    def _check_numbers(self) -> None:
        if self.dtype not in schema.DTYPES:
            raise ValueError(f"dtype must be one of {schema.DTYPES}, got {self.dtype!r}")
        if self.metric not in schema.METRICS:
            raise ValueError(f"metric must be one of {schema.METRICS}, got {self.metric!r}")
        for name in ("dim", "batch_size", "part_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name, width in self._widths.items():
            if not schema.WORD.fullmatch(name) or name in _RESERVED or name in schema.STORE_COLUMNS or width < 1:
                raise ValueError(f"an extra output cannot be named {name!r} with width {width}")

    def _check_columns(self) -> None:
        count = len(self.sample_ids)
        for name in ("labels", "labeled", "splits"):
            values = getattr(self, name)
            if values is not None and values.shape != (count,):
                raise ValueError(f"{name} has shape {values.shape} for {count} samples")
        classes = len(self.class_names)
        if self.old_classes is not None and self.old_classes.shape != (classes,):
            raise ValueError(f"old_classes has shape {self.old_classes.shape} for {classes} class names")
        for name, values, limit in (
            ("labels", self.labels, classes or None),
            ("splits", self.splits, len(self.split_names)),
        ):
            if values is not None and ((values < -1).any() or (limit is not None and (values >= limit).any())):
                raise ValueError(f"{name} must be -1 or below {limit}")
        if self.labeled is not None and (self.labels is None or bool((self.labels[self.labeled] < 0).any())):
            raise ValueError("labeled marks samples that have no label")
        if len(set(self.split_names)) < len(self.split_names):
            raise ValueError(f"split_names holds a name twice: {self.split_names}")
        if (self.reused is None) != (not self.reused_from):
            raise ValueError("reused and reused_from go together")
        if self.reused is not None and (
            self.reused.shape != (count, 2) or bool((self.reused[:, 0] >= len(self.reused_from)).any())
        ):
            raise ValueError(f"reused has shape {self.reused.shape} for {count} samples, or names a store too many")

    @property
    def num_reused(self) -> int:
        """Rows that are copied."""
        return 0 if self.reused is None else int((self.reused[:, 0] >= 0).sum())

    @property
    def _widths(self) -> Mapping[str, int]:
        return self.extras or {}

    @property
    def _row_bytes(self) -> int:
        return self.dim * np.dtype(self.dtype).itemsize + 4 * sum(self._widths.values()) + 48

    @cached_property
    def _names(self) -> bytes:
        return b"\0".join(name_bytes(name) for name in self.sample_ids)

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
            "columns": {
                name: hashlib.sha256(canonical_json(column).encode()).hexdigest()
                for name, column in self._columns.items()
            },
            "model": self.model.to_json(),
            "dim": self.dim,
            "dtype": self.dtype,
            "extras": dict(self._widths),
            "batch_size": self.batch_size,
            "part_rows": self.part_rows,
            "normalized": self.normalized,
            "metric": self.metric,
            "created_by": self.created_by,
            **({"reuse": {"stores": list(self.reused_from), "rows": self.num_reused}} if self.reused_from else {}),
        }

    def to_json(self) -> dict[str, Any]:
        """Return the plan with digests in place of names and labels, as ``plan.json`` holds it."""
        loaded: dict[str, Any] = json.loads(canonical_json(self._json))
        return loaded

    def digest(self) -> str:
        """Return the SHA-256 of the plan's canonical JSON, 64 hexadecimal digits."""
        return hashlib.sha256(canonical_json(self._json).encode()).hexdigest()

    @property
    def num_parts(self) -> int:
        """Parts of a run of this plan."""
        return -(-len(self.sample_ids) // self.part_rows)

    def estimated_bytes(self) -> int:
        """Return about how many bytes the store will have."""
        longest = max(len(name_bytes(name)) for name in self.sample_ids)
        return (self._row_bytes + longest + 16) * len(self.sample_ids) + (64 << 10)


def continue_plan(out: str | os.PathLike[str], plan: EmbeddingPlan) -> EmbeddingPlan:
    """Return the plan to go on with: that of an unfinished run, if it differs from ``plan`` in its listing only.

    So files that were added since the run began are left for the next store, and files that vanished
    are still in the plan, to be skipped with that reason. In every other case ``plan`` itself is
    returned; ``EmbeddingRun.open`` then says what differs.

    Args:
        out: the store to be made.
        plan: made from the listing of now.
    """
    stored = _stored_plan(embedding_run_folder(Path(out)))
    if stored is None:
        return plan
    differing = differing_keys(stored.to_json(), plan.to_json())
    keys = {key if key.startswith("reuse.") else key.partition(".")[0] for key in differing}
    same_names = all(
        stored._columns[name] == plan._columns[name] for name in ("class_names", "old_classes", "split_names")
    )
    # Which rows are copied follows from the listing; from which stores must be the same.
    if keys - {"files", "columns", "reuse.rows"} or not same_names:
        return plan
    rows = {name: row for row, name in enumerate(plan.sample_ids)}
    pairs = [(old, rows[name]) for old, name in enumerate(stored.sample_ids) if name in rows]
    for name in ("labels", "labeled", "splits"):
        mine, other = stored._columns[name], plan._columns[name]
        if (mine is None) != (other is None) or (mine and any(mine[old] != other[new] for old, new in pairs)):
            return plan
    return stored if pairs else plan


def planned_reuse(out: str | os.PathLike[str], plan: EmbeddingPlan, stores: Sequence[str]) -> NDArray[np.int64] | None:
    """Return which rows an unfinished run copies, so that the images need not be looked at again.

    Args:
        out: the store to be made.
        plan: made from the listing of now.
        stores: content digests of the stores to copy from.

    Returns:
        (N, 2) as ``EmbeddingPlan.reused``, or ``None`` where there is no run of this listing and these stores.
    """
    stored = _stored_plan(embedding_run_folder(Path(out)))
    if stored is None or stored.sample_ids != plan.sample_ids or stored.reused_from != tuple(stores):
        return None
    return stored.reused


def _stored_plan(folder: Path) -> EmbeddingPlan | None:
    """Return the plan of an unfinished run, or ``None`` where there is none that can be read."""
    try:
        loaded = json.loads((folder / "plan.json").read_bytes())
        columns = json.loads((folder / "columns.json").read_bytes())
        names = (folder / "files").read_bytes()
        model = {key: value for key, value in loaded["model"].items() if key != "preprocess_digest"}
        foreign = ("format", "format_version", "files", "columns", "reuse")
        own = {key: value for key, value in loaded.items() if key not in foreign}
        plan = EmbeddingPlan(
            **{**own, "model": ModelIdentity(**model)},
            reused_from=loaded.get("reuse", {}).get("stores", ()),
            sample_ids=[name_text(raw) for raw in names.split(b"\0")],
            **columns,
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError, DatasetError):
        return None
    return plan if plan.to_json() == loaded else None


@dataclass(frozen=True)
class _Part:
    """The rows of one part; arrays have one row per sample that was not skipped."""

    arrays: dict[str, NDArray[Any]]
    skipped_rows: NDArray[np.int64]
    reasons: list[str]


class EmbeddingRun:
    """A store in the making. Use ``EmbeddingRun.open``.

    Attributes:
        out: the store to be made.
        plan: what it is made by.
        already_done: the store exists and was made by the same plan; there is nothing to do.
        warnings: what the user should know, such as parts that were damaged and are made again.
    """

    def __init__(self, out: Path, plan: EmbeddingPlan, *, overwrite: bool) -> None:
        self.out = out
        self.plan = plan
        self.already_done = False
        self.warnings: list[str] = []
        self._overwrite = overwrite
        self._folder = embedding_run_folder(out)
        self._digest = plan.digest()

    @classmethod
    def open(cls, out: str | os.PathLike[str], plan: EmbeddingPlan, overwrite: bool = False) -> EmbeddingRun:
        """Check that the store can be made here, before any image is touched, and begin or continue the run.

        Args:
            out: the store, ``NAME.h5``; its folder is made if it is missing.
            plan: what to make; see ``continue_plan`` for runs that were interrupted.
            overwrite: replace a finished store, and drop an unfinished run of another plan.

        Raises:
            StoreError: a store of another plan exists, or the one that exists is damaged.
            Mismatch: an unfinished run has another plan; names the keys.
            ResourceError: no permission, or not enough free space.
            BusyError: another process is publishing this store.
        """
        run = cls(Path(out), plan, overwrite=overwrite)
        if run._is_finished():
            run.already_done = True
            run._remove_leftover()
            return run
        with translated(run._folder):
            (run._folder / "parts").mkdir(parents=True, exist_ok=True)
        check_space(run._folder, int(2.1 * plan.estimated_bytes()), run.out, "the parts and the store")
        with locked(run._folder) as still_there:
            if still_there:
                run._begin()
                return run
        # Another process published and removed the run folder while we waited for it.
        return cls.open(out, plan, overwrite)

    def part_range(self, part: int) -> tuple[int, int]:
        """Return the first row of a part and the row after its last one, as positions in the plan."""
        if not 0 <= part < self.plan.num_parts:
            raise ValueError(f"part {part} of {self.plan.num_parts}")
        start = part * self.plan.part_rows
        return start, min(start + self.plan.part_rows, len(self.plan.sample_ids))

    def pending_parts(self, rank: int = 0, world: int = 1) -> list[int]:
        """Return the parts that worker ``rank`` of ``world`` still has to write, in order.

        Existing parts are verified; a damaged one is renamed to ``.bad``, reported in ``warnings`` and
        returned.

        Raises:
            ResourceError: a part cannot be read or renamed.
        """
        if not 0 <= rank < world:
            raise ValueError(f"rank {rank} of {world}")
        if self.already_done:
            return []
        return [part for part in range(rank, self.plan.num_parts, world) if not self._is_done(part)]

    def write_part(
        self,
        part: int,
        embeddings: ArrayLike,
        sha256: ArrayLike,
        file_sizes: ArrayLike,
        image_sizes: ArrayLike,
        extras: Mapping[str, ArrayLike] | None = None,
        skipped: Sequence[tuple[int, str]] = (),
    ) -> None:
        """Commit a part. The same part may be written again; the same values give the same bytes.

        Args:
            part: its number.
            embeddings: (m, d) numbers, one row per sample of the part that was not skipped, in order.
            sha256: (m, 32) uint8, digests of the image files.
            file_sizes: (m,) bytes.
            image_sizes: (m, 2) height and width after orientation.
            extras: (m, width) numbers for each extra output of the plan.
            skipped: (position in the plan, reason) of samples that could not be embedded.

        Raises:
            StoreError: a number is not finite in the stored type; names the sample.
            ResourceError: the disk is full, ...
            ValueError: shapes or positions do not fit the plan.
        """
        start, stop = self.part_range(part)
        reasons = {row: " ".join(reason.replace("\0", " ").split()) for row, reason in skipped}
        if len(reasons) < len(skipped) or any(not start <= row < stop for row in reasons):
            raise ValueError(f"skipped rows must be different positions in [{start}, {stop}), got {sorted(reasons)}")
        kept = [row for row in range(start, stop) if row not in reasons]
        contents = Contents()
        contents.set("", format=schema.FORMAT_PART, format_version=schema.FORMAT_VERSION, requires="")
        contents.set("", part=part, plan_digest=self._digest)
        given = {"embeddings": embeddings, "sha256": sha256, "file_sizes": file_sizes, "image_sizes": image_sizes}
        given.update(extras or {})
        shapes = self._part_shapes(len(kept))
        if given.keys() != shapes.keys():
            raise ValueError(f"a part of this plan has {sorted(shapes)}, got {sorted(given)}")
        for name, (dtype, shape) in shapes.items():
            values = np.asarray(given[name])
            if values.shape != shape:
                raise ValueError(f"{name} of part {part} has shape {values.shape}, expected {shape}")
            contents.datasets[name] = self._cast(name, values, dtype, kept)
        contents.datasets["skipped/rows"] = np.array(sorted(reasons), dtype="<i8")
        contents.datasets["skipped/reasons"] = strings(reasons[row][:_REASON_CHARACTERS] for row in sorted(reasons))
        commit_part(self._part_path(part), contents)

    def publish(self, max_bad: float = 0.01) -> Path:
        """Put the parts together; the store appears complete under its name, and the run folder goes.

        Two processes that publish the same run are harmless even where locks do nothing: both make the
        same bytes in a file of their own, and one of them comes first.

        Args:
            max_bad: the largest allowed share of skipped samples, in [0, 1].

        Returns:
            The store.

        Raises:
            DatasetError: more were skipped, or all; nothing is published, the parts stay.
            StoreError: parts are missing or damaged, or the name was taken meanwhile.
            BusyError: another process is publishing it.
            ResourceError: the disk is full, ...
        """
        if self.already_done:
            return self.out
        if not self._folder.exists() and self._plan_of_store() == self._digest:
            return self.out
        with locked(self._folder) as still_there:
            if (not self._overwrite or not still_there) and self._plan_of_store() == self._digest:
                self._remove_leftover()
                return self.out
            missing = [part for part in range(self.plan.num_parts) if not self._part_path(part).exists()]
            if missing:
                problem = f"{len(missing)} of {self.plan.num_parts} parts are missing, the first is {missing[0]}"
                raise StoreError(str(self._folder), problem, "Run the same command again to make them.")
            # A store that fits in memory is read once, a larger one part by part and again for each large column.
            small = self.plan.estimated_bytes() <= schema.MEMORY_BYTES
            load = lru_cache(maxsize=None if small else 1)(self._load_for_publishing)
            self._install(Image(self._gather(load, max_bad), block_bytes=schema.BLOCK_BYTES))
            try:
                clear(self._folder)
            except ResourceError as error:
                self.warnings.append(f"the store is complete, its run folder is left over: {error}")
        return self.out

    # ---- the place

    def _is_finished(self) -> bool:
        if self.out.is_dir():
            raise StoreError(str(self.out), "is a folder", "Choose another --out.")
        if self._overwrite or not self.out.exists():
            return False
        try:
            store = open_store(self.out)
            if store.plan_digest == self._digest:
                # Only a store that is whole counts as done.
                _ = store.embeddings, store.extras
                return True
        except StoreError as error:
            problem = f"exists and cannot be used ({error.problem})"
            raise type(error)(
                error.where, problem, "Pass --overwrite to replace it, or choose another --out."
            ) from error
        problem = "exists and was made from other images, another model or other options"
        raise StoreError(str(self.out), problem, "Pass --overwrite to replace it, or choose another --out.")

    def _plan_of_store(self) -> str | None:
        try:
            with open_file(self.out, schema.FORMAT_STORE) as file:
                return str(file.attributes[""].get("plan_digest"))
        except StoreError:
            return None

    def _remove_leftover(self) -> None:
        if self._folder.exists():
            loaded = read_plan(self._folder)
            if loaded is None or loaded == self.plan.to_json():
                clear(self._folder)

    def _begin(self) -> None:
        loaded = read_plan(self._folder)
        if loaded is not None and loaded != self.plan.to_json() and self._overwrite:
            clear(self._folder, keep_lock=True)
            with translated(self._folder):
                (self._folder / "parts").mkdir(exist_ok=True)
            loaded = None
        compare_plans(self._folder, loaded, self.plan.to_json())
        for name, data in (("files", self.plan._names), ("columns.json", canonical_json(self.plan._columns).encode())):
            path = self._folder / name
            with translated(path):
                current = path.read_bytes() if path.exists() else None
            if current != data:
                commit_bytes(path, data)
        if loaded is None:
            commit_json(self._folder / "plan.json", self.plan.to_json())
            # Where locks do nothing, another worker may have been first.
            compare_plans(self._folder, read_plan(self._folder), self.plan.to_json())

    # ---- parts

    def _part_path(self, part: int) -> Path:
        return self._folder / "parts" / f"{part:06d}.h5"

    def _part_shapes(self, rows: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        floats = "<f4" if self.plan.dtype == "float32" else "<f2"
        return {
            "embeddings": (floats, (rows, self.plan.dim)),
            "sha256": ("|u1", (rows, 32)),
            "file_sizes": ("<u8", (rows,)),
            "image_sizes": ("<u4", (rows, 2)),
            **{name: ("<f4", (rows, width)) for name, width in self.plan._widths.items()},
        }

    def _large_columns(self) -> dict[str, int]:
        """Return the bytes per row of the columns that may not fit in memory."""
        return {
            name: np.dtype(dtype).itemsize * shape[1]
            for name, (dtype, shape) in self._part_shapes(0).items()
            if name == "embeddings" or name in self.plan._widths
        }

    def _cast(self, name: str, values: NDArray[Any], dtype: str, kept: list[int]) -> NDArray[Any]:
        kind = np.dtype(dtype)
        if kind.kind != "f":
            stored = values.astype(kind)
            if not np.array_equal(stored, values):
                raise ValueError(f"{name} holds values that {kind} cannot")
            return stored
        return cast_finite(values, kind, lambda row: f"{self.out}: {self.plan.sample_ids[kept[row]]}", name, "--dtype")

    def _is_done(self, part: int) -> bool:
        return part_is_done(self._part_path(part), lambda: self._load(part), self.warnings)

    def _load(self, part: int) -> _Part:
        """Read and verify a part.

        Raises:
            StoreError: it is damaged, or of another plan.
            OSError: it cannot be read.
        """
        path = self._part_path(part)
        start, stop = self.part_range(part)
        with open_part(path) as file:
            root = file.attributes[""]
            if root.get("plan_digest") != self._digest or root.get("part") != part:
                raise Mismatch(str(path), "belongs to another plan", RESTORE)
            skipped = file.read("skipped/rows")
            reasons = file.read_strings("skipped/reasons")
            shapes = self._part_shapes(stop - start - len(skipped))
            arrays = {name: file.read(name) for name in shapes}
        for name, (dtype, shape) in shapes.items():
            if arrays[name].dtype != np.dtype(dtype) or arrays[name].shape != shape:
                raise Mismatch(f"{path}:/{name}", f"shape {arrays[name].shape}, expected {shape}", RESTORE)
        return _Part(arrays, skipped, reasons)

    def _load_for_publishing(self, part: int) -> _Part:
        path = self._part_path(part)
        try:
            return self._load(part)
        except StoreError as error:
            remedy = "Run the same command again; the part will be made again."
            raise type(error)(error.where, error.problem, remedy) from error
        except OSError as error:
            raise resource_error(error, str(path)) from error

    # ---- publishing

    def _gather(self, load: Callable[[int], _Part], max_bad: float) -> Contents:
        plan, parts = self.plan, range(self.plan.num_parts)
        small: dict[str, list[NDArray[Any]]] = {"sha256": [], "file_sizes": [], "image_sizes": []}
        # Digests are made while the parts are read anyway.
        digesters = {
            name: BlockDigester(row_bytes * rows_per_block(row_bytes, schema.BLOCK_BYTES))
            for name, row_bytes in self._large_columns().items()
        }
        skipped: dict[int, str] = {}
        for part in parts:
            loaded = load(part)
            skipped.update(zip(loaded.skipped_rows.tolist(), loaded.reasons, strict=True))
            for name, pieces in small.items():
                pieces.append(loaded.arrays[name])
            for name, digester in digesters.items():
                digester.update(loaded.arrays[name])
        total = len(plan.sample_ids)
        if len(skipped) > max_bad * total or len(skipped) == total:
            raise self._too_many(skipped, max_bad)
        kept = np.ones(total, dtype=np.bool_)
        kept[list(skipped)] = False
        contents = Contents()
        plan.model.put(contents)
        contents.set(
            "",
            format=schema.FORMAT_STORE,
            format_version=schema.FORMAT_VERSION,
            requires="",
            kind="embeddings",
            normalized=int(plan.normalized),
            metric=plan.metric,
            names_are_utf8=int(_is_utf8(plan._names)),
            created_by=plan.created_by,
            plan_digest=self._digest,
        )
        if plan.reused_from:
            contents.set("", reused_rows=plan.num_reused, reused_from=",".join(plan.reused_from))
        datasets = contents.datasets
        datasets["sample_ids"] = strings(plan.sample_ids[row] for row in np.flatnonzero(kept).tolist())
        datasets.update((name, np.concatenate(pieces)) for name, pieces in small.items())
        for name, values in (("labels", plan.labels), ("splits", plan.splits)):
            if values is not None:
                datasets[name] = values[kept]
        if plan.labeled is not None:
            datasets["labeled"] = plan.labeled[kept].astype(np.uint8)
        if plan.old_classes is not None:
            datasets["old_classes"] = plan.old_classes.astype(np.uint8)
        for name, texts in (("class_names", plan.class_names), ("split_names", plan.split_names)):
            if texts:
                datasets[name] = strings(texts)
        if skipped:
            datasets["skipped/sample_ids"] = strings(plan.sample_ids[row] for row in sorted(skipped))
            datasets["skipped/reasons"] = strings(skipped[row] for row in sorted(skipped))
        rows = total - len(skipped)
        for name, (dtype, shape) in self._part_shapes(rows).items():
            if name in digesters:

                def blocks(name: str = name) -> Iterator[NDArray[Any]]:
                    return (load(part).arrays[name] for part in parts)

                datasets[name] = Stream(np.dtype(dtype), shape, blocks, digesters[name].finish())
        return contents

    def _too_many(self, skipped: Mapping[int, str], max_bad: float) -> DatasetError:
        total = len(self.plan.sample_ids)
        first = sorted(skipped)[:_SHOWN_FAULTS]
        faults = "; ".join(f"{self.plan.sample_ids[row]}: {skipped[row]}" for row in first)
        more = f"; and {len(skipped) - len(first)} more" if len(skipped) > len(first) else ""
        problem = (
            f"{len(skipped)} of {total} images cannot be used ({len(skipped) / total:.1%} where {max_bad:.1%} are "
            f"allowed): {faults}{more}"
        )
        remedy = f"Repair them and delete {self._folder}, or allow more with --max-bad; what was embedded is kept."
        return DatasetError(str(self.out), problem, remedy)

    def _install(self, image: Image) -> None:
        temporary = self._folder / f"publish-{secrets.token_hex(8)}.tmp"
        try:
            for old in self._folder.glob("publish-*.tmp"):
                old.unlink(missing_ok=True)
            install_image(image, temporary, self.out, replace=self._overwrite)
        except OSError as error:
            if isinstance(error, FileExistsError | FileNotFoundError) and self._plan_of_store() == self._digest:
                return  # another process published the same
            if isinstance(error, FileExistsError):
                problem = "was made by another run meanwhile"
                raise StoreError(str(self.out), problem, "Pass --overwrite to replace it.") from error
            raise resource_error(error, str(self.out)) from error


def embedding_run_folder(out: Path) -> Path:
    """Return where a store is while it is made."""
    return out.with_name(out.name + ".run")


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True

"""Make the patches of a store in pieces that survive a kill, by one process or several, with the same bytes.

``PatchRun`` goes beside an ``EmbeddingRun``: the rows of each of its parts are cut into pieces of whole batches,
committed one by one. Once the store is there, ``publish`` makes the files of the set of them, ``SET.json`` last.
The formats are described in ``labelkit.store.schema``.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.errors import Damaged, Mismatch, StoreError, resource_error
from labelkit.store import schema
from labelkit.store.commit import canonical_json, commit_json, fsync_folder
from labelkit.store.digests import RESTORE
from labelkit.store.embeddings import EmbeddingStore, ModelIdentity
from labelkit.store.hdf5.reading import CheckedFile
from labelkit.store.hdf5.writing import Contents, Image, Stream
from labelkit.store.patches import SET_NAME, patches_folder, read_set_json
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
from labelkit.store.writing import EmbeddingPlan


@dataclass(frozen=True, eq=False)
class PatchPlan:
    """All that decides the bytes of the patches, besides the images and the network.

    Args:
        rows: plan of the store they belong to.
        layer: of the network that they are the output of.
        grid: rows and columns of the patches of an image.
        dim: values per patch.
        dtype: ``float16`` or ``float32``.
        per_image: so many cells are drawn from each image; ``None``: all.
        seed: of the draws.
        set_bytes: about so many bytes go into one file.

    Raises:
        ValueError: a number out of its range.
    """

    rows: EmbeddingPlan
    layer: str
    grid: tuple[int, int]
    dim: int
    dtype: str = "float16"
    per_image: int | None = None
    seed: int = 0
    set_bytes: int = schema.SET_BYTES

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.dtype not in schema.DTYPES:
            raise ValueError(f"dtype must be one of {schema.DTYPES}, got {self.dtype!r}")
        numbers = (*self.grid, self.dim, self.set_bytes, 1 if self.per_image is None else self.per_image)
        if min(numbers) < 1 or max(self.grid) > np.iinfo(np.uint16).max:
            raise ValueError(f"grid, dim, per_image and set_bytes must be at least 1, got {numbers}")

    @property
    def count(self) -> int:
        """Patches of an image."""
        cells = self.grid[0] * self.grid[1]
        return cells if self.per_image is None else min(self.per_image, cells)

    @property
    def is_sampled(self) -> bool:
        """Whether the cells of each patch are written down."""
        return self.per_image is not None

    @property
    def _row_bytes(self) -> int:
        return patch_row_bytes(self.count, self.dim, self.dtype, is_sampled=self.is_sampled)

    @cached_property
    def pieces(self) -> list[tuple[int, int, int, int]]:
        """Part of the store, number in it, first row and the row after the last one, of each piece in order."""
        rows = self.rows
        return piece_ranges(len(rows.sample_ids), rows.part_rows, rows.batch_size, self._row_bytes)

    @cached_property
    def files(self) -> list[list[int]]:
        """Numbers of the pieces that go into each file of the set."""
        limit = max(1, self.set_bytes // self._row_bytes)
        found: list[list[int]] = [[]]
        rows = 0
        for number, (_, _, start, stop) in enumerate(self.pieces):
            if found[-1] and rows + stop - start > limit:
                found.append([])
                rows = 0
            found[-1].append(number)
            rows += stop - start
        return found

    @property
    def recipe(self) -> dict[str, Any]:
        """What the patches depend on besides the store."""
        return {
            "layer": self.layer,
            "grid": list(self.grid),
            "per_image": self.per_image,
            "seed": self.seed if self.is_sampled else None,
        }

    def to_json(self) -> dict[str, Any]:
        """Return the plan as ``plan.json`` holds it."""
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
        loaded: dict[str, Any] = json.loads(canonical_json(plan))
        return loaded

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the plan's canonical JSON, 64 hexadecimal digits."""
        return hashlib.sha256(canonical_json(self.to_json()).encode()).hexdigest()

    def estimated_bytes(self) -> int:
        """Return about how many bytes the files will have together."""
        return self._row_bytes * len(self.rows.sample_ids) + (64 << 10) * len(self.files)


def patch_row_bytes(count: int, dim: int, dtype: str, *, is_sampled: bool) -> int:
    """Return the bytes of all patches of an image, ``count`` of them, with what is noted about them."""
    return count * (dim * np.dtype(dtype).itemsize + (4 if is_sampled else 0)) + 40


def piece_ranges(total: int, part_rows: int, batch_size: int, row_bytes: int) -> list[tuple[int, int, int, int]]:
    """Return part of the store, number in it, first row and the row after the last one, of each piece in order."""
    step = max(1, schema.PART_BYTES // row_bytes // batch_size) * batch_size
    found = []
    for part, first in enumerate(range(0, total, part_rows)):
        last = min(first + part_rows, total)
        starts = range(first, last, step)
        found += [(part, number, start, min(start + step, last)) for number, start in enumerate(starts)]
    return found


@dataclass(frozen=True)
class Piece:
    """Patches of some images, those that could be read, in order.

    Attributes:
        rows: (m,) int64 positions in the plan.
        features: (m, c, d) float.
        cells: (m, c, 2) int row and column of each; left out where all cells are there.
        regions: (m, 4) left, top, right, bottom of the grid in pixels of the oriented original.
    """

    rows: NDArray[np.int64]
    features: NDArray[Any]
    cells: NDArray[np.int64] | None
    regions: NDArray[np.float64]


def patches_run_folder(out: Path) -> Path:
    """Return where the patches of a store are while they are made."""
    return out.with_name(out.name + ".patches.run")


class PatchRun:
    """Patches in the making. Use ``PatchRun.open``.

    Attributes:
        out: the store they belong to.
        plan: what they are made by.
        already_done: the set exists and was made by the same plan.
        warnings: what the user should know, such as pieces that were damaged and are made again.
    """

    def __init__(self, out: Path, plan: PatchPlan, *, overwrite: bool) -> None:
        self.out = out
        self.plan = plan
        self.already_done = False
        self.warnings: list[str] = []
        self._overwrite = overwrite
        self._target = patches_folder(out)
        self._folder = patches_run_folder(out)

    @classmethod
    def open(cls, out: str | os.PathLike[str], plan: PatchPlan, overwrite: bool = False) -> PatchRun:
        """Check that the patches can be made, before any image is touched, and begin or continue the run.

        Args:
            out: the store, ``NAME.h5``; it need not be there yet.
            plan: what to make.
            overwrite: replace a finished set, and drop an unfinished run of another plan.

        Raises:
            StoreError: a set of another plan exists, or the one that exists is damaged.
            Mismatch: an unfinished run has another plan; names the keys.
            ResourceError: no permission, or not enough free space.
            BusyError: another process is publishing them.
        """
        run = cls(Path(out), plan, overwrite=overwrite)
        run._check_place()
        if run._is_finished():
            run.already_done = True
            if run._folder.exists() and read_plan(run._folder) in (None, plan.to_json()):
                clear(run._folder)
            return run
        with translated(run._folder):
            (run._folder / "parts").mkdir(parents=True, exist_ok=True)
        with locked(run._folder) as still_there:
            if still_there:
                run._begin()
                return run
        return cls.open(out, plan, overwrite)

    @classmethod
    def check(cls, out: str | os.PathLike[str], plan: PatchPlan, overwrite: bool = False) -> None:
        """Raise what ``open`` would, but that nothing is begun; ``open`` is for when the run of the rows is open.

        Raises:
            StoreError, Mismatch, ResourceError: as ``open``.
        """
        cls(Path(out), plan, overwrite=overwrite)._check_place()

    def pending_parts(self, rank: int = 0, world: int = 1) -> list[int]:
        """Return the parts of the store of which worker ``rank`` of ``world`` still has to make patches, in order."""
        if self.already_done:
            return []
        mine = [number for number, piece in enumerate(self.plan.pieces) if piece[0] % world == rank]
        return sorted({self.plan.pieces[number][0] for number in mine if not self._is_done(number)})

    def pieces_of(self, part: int) -> list[int]:
        """Return the pieces of a part of the store, in order."""
        return [number for number, piece in enumerate(self.plan.pieces) if piece[0] == part]

    def write_piece(self, number: int, piece: Piece) -> None:
        """Commit a piece. The same piece may be written again; the same values give the same bytes.

        Raises:
            StoreError: a number is not finite in the stored type; names the image.
            ResourceError: the disk is full, ...
            ValueError: shapes or positions do not fit the plan.
        """
        part, inner, start, stop = self.plan.pieces[number]
        rows = np.asarray(piece.rows, dtype="<i8")
        shape = (len(rows), self.plan.count, self.plan.dim)
        if piece.features.shape != shape or piece.regions.shape != (len(rows), 4):
            raise ValueError(f"a piece of {len(rows)} rows has {piece.features.shape}, expected {shape}")
        if len(rows) and (rows[0] < start or rows[-1] >= stop or (np.diff(rows) < 1).any()):
            raise ValueError(f"rows of piece {number} must be different positions in [{start}, {stop}), in order")
        if (piece.cells is not None) != self.plan.is_sampled:
            raise ValueError("cells go with patches that are drawn")
        contents = Contents()
        contents.set("", format=schema.FORMAT_PART, format_version=schema.FORMAT_VERSION, requires="")
        contents.set("", part=part, piece=inner, plan_digest=self.plan.digest)
        flat = piece.features.reshape(len(rows), -1)
        stored = cast_finite(
            flat,
            np.dtype(self.plan.dtype),
            lambda row: f"{self.out}: {self._name(rows[row])}",
            "patches",
            "--patch-dtype",
        )
        contents.datasets["rows"] = rows
        contents.datasets["patches"] = stored.reshape(-1, self.plan.dim)
        contents.datasets["regions"] = piece.regions.astype("<f4")
        if piece.cells is not None:
            contents.datasets["cells"] = piece.cells.reshape(-1, 2).astype("<u2")
        commit_part(self._piece_path(number), contents)

    def publish(self, store: EmbeddingStore) -> Path:
        """Make the files of the set out of the pieces, ``SET.json`` last; the run folder goes.

        Args:
            store: the finished store.

        Returns:
            The folder of the set.

        Raises:
            Mismatch: the store has other rows than the pieces.
            StoreError: pieces are missing or damaged.
            BusyError: another process is publishing them.
            ResourceError: the disk is full, ...
        """
        if self.already_done or (not self._folder.exists() and self._plan_of_set() == self.plan.digest):
            return self._target
        if store.plan_digest != self.plan.rows.digest():
            raise Mismatch(str(store.path), "was made by another plan than its patches", RESTORE)
        with locked(self._folder) as still_there:
            if not still_there and self._plan_of_set() == self.plan.digest:
                return self._target
            missing = [n for n in range(len(self.plan.pieces)) if not self._piece_path(n).exists()]
            if missing:
                problem = f"{len(missing)} of {len(self.plan.pieces)} pieces are missing, the first is {missing[0]}"
                raise StoreError(str(self._folder), problem, "Run the same command again to make them.")
            with translated(self._target):
                self._target.mkdir(exist_ok=True)
                fsync_folder(self._target.parent)
                # from here on there is no set until there is the new one
                (self._target / SET_NAME).unlink(missing_ok=True)
            self._write_files(store)
            clear(self._folder)
        return self._target

    # ---- the place

    def _check_place(self) -> None:
        if self._is_finished():
            return
        if not self._overwrite:
            compare_plans(self._folder, read_plan(self._folder), self.plan.to_json())
        # the pieces stay until all files are there
        check_space(self._folder, int(2.1 * self.plan.estimated_bytes()), self.out, "pieces and files of the patches")

    def _is_finished(self) -> bool:
        if self._overwrite or not (self._target / SET_NAME).exists():
            return False
        listed = read_set_json(self._target)
        if listed.get("plan_digest") == self.plan.digest:
            return True
        problem = "exists and was made from other images, another model or other options"
        raise StoreError(str(self._target), problem, "Pass --overwrite to replace it, or choose another --out.")

    def _plan_of_set(self) -> object:
        try:
            return read_set_json(self._target).get("plan_digest")
        except StoreError:
            return None

    def _begin(self) -> None:
        loaded = read_plan(self._folder)
        if loaded is not None and loaded != self.plan.to_json() and self._overwrite:
            clear(self._folder, keep_lock=True)
            with translated(self._folder):
                (self._folder / "parts").mkdir(exist_ok=True)
            loaded = None
        compare_plans(self._folder, loaded, self.plan.to_json())
        if loaded is None:
            commit_json(self._folder / "plan.json", self.plan.to_json())
            # Where locks do nothing, another worker may have been first.
            compare_plans(self._folder, read_plan(self._folder), self.plan.to_json())

    def _name(self, row: int) -> str:
        return self.plan.rows.sample_ids[int(row)]

    # ---- pieces

    def _piece_path(self, number: int) -> Path:
        part, inner, _, _ = self.plan.pieces[number]
        return self._folder / "parts" / f"{part:06d}-{inner:03d}.h5"

    def _is_done(self, number: int) -> bool:
        return part_is_done(self._piece_path(number), lambda: self._load(number), self.warnings)

    def _load(self, number: int) -> dict[str, NDArray[Any]]:
        """Read and verify a piece.

        Raises:
            StoreError: it is damaged, or of another plan.
            OSError: it cannot be read.
        """
        part, inner, start, stop = self.plan.pieces[number]
        path = self._piece_path(number)
        names = ["rows", "patches", "regions", *(["cells"] if self.plan.is_sampled else [])]
        with open_part(path) as file:
            _check_piece(file, part, inner, self.plan.digest)
            arrays = {name: file.read(name) for name in names}
        rows = arrays["rows"]
        shapes = {"patches": (len(rows) * self.plan.count, self.plan.dim), "regions": (len(rows), 4)}
        inside = not len(rows) or (start <= rows[0] and rows[-1] < stop)
        if not inside or any(arrays[name].shape != shape for name, shape in shapes.items()):
            raise Mismatch(str(path), "holds other rows than its name says", RESTORE)
        return arrays

    # ---- publishing

    def _write_files(self, store: EmbeddingStore) -> None:
        names = [f"SET-{number:05d}-of-{len(self.plan.files):05d}.h5" for number in range(len(self.plan.files))]
        entries: list[dict[str, Any]] = []
        row = 0
        for name, numbers in zip(names, self.plan.files, strict=True):
            loaded = [self._load_for_publishing(number) for number in numbers]
            rows = np.concatenate([arrays["rows"] for arrays in loaded])
            if [self._name(r) for r in rows] != store.sample_ids[row : row + len(rows)]:
                problem = "other images could be read when its patches were made"
                raise Mismatch(str(store.path), problem, "Make both again with --overwrite.")
            contents = self._contents(store, loaded, row)
            image = Image(contents)
            temporary = self._target / f".tmp-{os.getpid()}-{secrets.token_hex(8)}"
            try:
                install_image(image, temporary, self._target / name, replace=True)
            except OSError as error:
                raise resource_error(error, str(self._target / name)) from error
            patches = sum(len(arrays["patches"]) for arrays in loaded)
            entries.append(
                {
                    "name": name,
                    "row_start": row,
                    "row_stop": row + len(rows),
                    "patches": patches,
                    "content_digest": image.content_digest,
                }
            )
            row += len(rows)
        if row != store.n:
            raise Mismatch(
                str(store.path), f"has {store.n} rows, its patches {row}", "Make both again with --overwrite."
            )
        self._write_set(store, entries)
        with translated(self._target):
            for old in self._target.iterdir():
                if old.name not in (*names, SET_NAME):
                    old.unlink()

    def _write_set(self, store: EmbeddingStore, entries: list[dict[str, Any]]) -> None:
        listed: dict[str, Any] = {
            "format": schema.FORMAT_PATCHES,
            "format_version": schema.FORMAT_VERSION,
            "store_digest": store.content_digest,
            "plan_digest": self.plan.digest,
            "recipe": self.plan.recipe,
            "dim": self.plan.dim,
            "dtype": self.plan.dtype,
            "rows": store.n,
            "patches": sum(entry["patches"] for entry in entries),
            "files": entries,
        }
        digest = hashlib.sha256(canonical_json(listed).encode()).hexdigest()
        commit_json(self._target / SET_NAME, {**listed, "sha256": digest})

    def _load_for_publishing(self, number: int) -> dict[str, NDArray[Any]]:
        try:
            return self._load(number)
        except StoreError as error:
            remedy = "Run the same command again; the piece will be made again."
            raise type(error)(error.where, error.problem, remedy) from error
        except OSError as error:
            raise resource_error(error, str(self._piece_path(number))) from error

    def _contents(self, store: EmbeddingStore, loaded: list[dict[str, NDArray[Any]]], row: int) -> Contents:
        """One file of the set, of all that its pieces hold."""
        plan = self.plan
        counts = sum(len(arrays["rows"]) for arrays in loaded)
        contents = Contents()
        model = plan.rows.model
        own = {**model.to_json(), "layer": plan.layer, "pooling": "none"}
        own.pop("preprocess_digest")
        ModelIdentity(**own).put(contents)
        contents.set(
            "",
            format=schema.FORMAT_STORE,
            format_version=schema.FORMAT_VERSION,
            requires=schema.FEATURE_CELLS if plan.is_sampled else "",
            kind="patches",
            normalized=0,
            metric=plan.rows.metric,
            created_by=plan.rows.created_by,
            plan_digest=plan.digest,
            store_digest=store.content_digest,
            row_start=row,
            row_stop=row + counts,
            grid=f"{plan.grid[0]}x{plan.grid[1]}",
        )

        def blocks() -> Iterator[NDArray[Any]]:
            return (arrays["patches"] for arrays in loaded)

        total = counts * plan.count
        contents.datasets["patches"] = Stream(np.dtype(plan.dtype), (total, plan.dim), blocks)
        contents.datasets["patch_offsets"] = np.arange(counts + 1, dtype="<u8") * np.uint64(plan.count)
        contents.datasets["grids"] = np.tile(np.array(plan.grid, dtype="<u2"), (counts, 1))
        contents.datasets["regions"] = np.concatenate([arrays["regions"] for arrays in loaded])
        if plan.is_sampled:
            contents.datasets["cells"] = np.concatenate([arrays["cells"] for arrays in loaded])
        return contents


def _check_piece(file: CheckedFile, part: int, inner: int, digest: str) -> None:
    root = file.attributes[""]
    if root.get("plan_digest") != digest or (root.get("part"), root.get("piece")) != (part, inner):
        raise Mismatch(file.where, "belongs to another plan", RESTORE)
    if "rows" not in file.datasets or "patches" not in file.datasets or "regions" not in file.datasets:
        raise Damaged(file.where, "holds no patches", RESTORE)

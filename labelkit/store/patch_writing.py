"""Make the patches of a store in pieces that survive a kill, with the same bytes.

``PatchRun`` goes beside an ``EmbeddingRun``: the rows of each of its parts are cut into pieces of whole batches,
committed one by one. Once the store is there, ``publish`` makes the files of the set of them, ``SET.json`` last.
Pieces are written by ``labelkit.store.parts``; the formats are described in ``docs/inside/file_format.txt``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.errors import Damaged, Mismatch, StoreError, output_exists
from labelkit.store import schema
from labelkit.store.commit import canonical_json, commit_file, commit_json, fsync_folder
from labelkit.store.digests import RESTORE
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.parts import Parts, cast_finite, translated
from labelkit.store.patches import SET_NAME, patches_folder, read_set_json
from labelkit.store.plans import PatchPlan, patches_run_folder
from labelkit.store.reader import CheckedFile
from labelkit.store.writer import Contents, Image, Stream


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
        self._overwrite = overwrite
        self._target = patches_folder(out)
        self._parts = Parts(
            patches_run_folder(out),
            out,
            plan.to_json(),
            [piece[:2] for piece in plan.pieces],
            word="piece",
            read=self._read,
            published=self._plan_of_set,
            overwrite=overwrite,
        )
        self.warnings = self._parts.warnings

    @classmethod
    def open(cls, out: str | os.PathLike[str], plan: PatchPlan, overwrite: bool = False) -> PatchRun:
        """Check that the patches can be made, before any image is touched, and begin or continue the run.

        Args:
            out: the store, ``NAME.h5``; it need not be there yet.
            plan: what to make.
            overwrite: replace a finished set, and drop an unfinished run of another plan.

        Raises:
            OutputExistsError: a set of another plan is there, or a damaged one.
            Mismatch: an unfinished run has another plan; names the keys.
            ResourceError: no permission, or not enough free space.
            BusyError: another process is publishing them.
        """
        run = cls(Path(out), plan, overwrite=overwrite)
        run.already_done = not run._parts.begin(run._is_finished, run._check_place)
        return run

    @classmethod
    def check(cls, out: str | os.PathLike[str], plan: PatchPlan, overwrite: bool = False) -> None:
        """Raise what ``open`` would, but that nothing is begun; ``open`` is for when the run of the rows is open.

        Raises:
            StoreError, Mismatch, ResourceError: as ``open``.
        """
        run = cls(Path(out), plan, overwrite=overwrite)
        if not run._is_finished():
            run._check_place()

    def pending_parts(self) -> list[int]:
        """Return the parts of the store whose patches are still to be made, in order."""
        if self.already_done:
            return []
        return sorted({piece[0] for number, piece in enumerate(self.plan.pieces) if not self._parts.is_done(number)})

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
        _, _, start, stop = self.plan.pieces[number]
        rows = np.asarray(piece.rows, dtype="<i8")
        shape = (len(rows), self.plan.count, self.plan.dim)
        if piece.features.shape != shape or piece.regions.shape != (len(rows), 4):
            raise ValueError(f"a piece of {len(rows)} rows has {piece.features.shape}, expected {shape}")
        if len(rows) and (rows[0] < start or rows[-1] >= stop or (np.diff(rows) < 1).any()):
            raise ValueError(f"rows of piece {number} must be different positions in [{start}, {stop}), in order")
        if (piece.cells is not None) != self.plan.is_sampled:
            raise ValueError("cells go with patches that are drawn")
        flat = piece.features.reshape(len(rows), -1)
        stored = cast_finite(
            flat,
            np.dtype(self.plan.dtype),
            lambda row: f"{self.out}: {self._name(rows[row])}",
            "patches",
            "--patch-dtype",
        )
        datasets = {
            "rows": rows,
            "patches": stored.reshape(-1, self.plan.dim),
            "regions": piece.regions.astype("<f4"),
        }
        if piece.cells is not None:
            datasets["cells"] = piece.cells.reshape(-1, 2).astype("<u2")
        self._parts.commit(number, datasets)

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
        if self.already_done or self._parts.is_published():
            return self._target
        if store.plan_digest != self.plan.rows.digest():
            raise Mismatch(str(store.path), "was made by another plan than its patches", RESTORE)
        with self._parts.publishing() as to_do:
            if to_do:
                with translated(self._target):
                    self._target.mkdir(exist_ok=True)
                    fsync_folder(self._target.parent)
                    # from here on there is no set until there is the new one
                    (self._target / SET_NAME).unlink(missing_ok=True)
                self._write_files(store)
                self._parts.clear()
        return self._target

    # ---- the place

    def _check_place(self) -> None:
        if not self._overwrite:
            self._parts.check_plan()
        # the pieces stay until all files are there
        self._parts.check_space(self.plan.estimated_bytes(), "pieces and files of the patches")

    def _is_finished(self) -> bool:
        if self._overwrite or not (self._target / SET_NAME).exists():
            return False
        try:
            listed = read_set_json(self._target)
        except StoreError as error:
            raise output_exists(self._target, state=f"and cannot be used ({error.problem})") from error
        if listed.get("plan_digest") == self._parts.digest:
            return True
        raise output_exists(self._target, state="and was made from other images, another model or other options")

    def _plan_of_set(self) -> object:
        try:
            return read_set_json(self._target).get("plan_digest")
        except StoreError:
            return None

    def _name(self, row: int) -> str:
        return self.plan.rows.sample_ids[int(row)]

    # ---- pieces

    def _read(self, number: int, file: CheckedFile) -> dict[str, NDArray[Any]]:
        _, _, start, stop = self.plan.pieces[number]
        if "rows" not in file.datasets or "patches" not in file.datasets or "regions" not in file.datasets:
            raise Damaged(file.where, "holds no patches", RESTORE)
        names = ["rows", "patches", "regions", *(["cells"] if self.plan.is_sampled else [])]
        arrays = {name: file.read(name) for name in names}
        rows = arrays["rows"]
        shapes = {"patches": (len(rows) * self.plan.count, self.plan.dim), "regions": (len(rows), 4)}
        inside = not len(rows) or (start <= rows[0] and rows[-1] < stop)
        if not inside or any(arrays[name].shape != shape for name, shape in shapes.items()):
            raise Mismatch(file.where, "holds other rows than its name says", RESTORE)
        return arrays

    # ---- publishing

    def _write_files(self, store: EmbeddingStore) -> None:
        names = [f"SET-{number:05d}-of-{len(self.plan.files):05d}.h5" for number in range(len(self.plan.files))]
        entries: list[dict[str, Any]] = []
        row = 0
        for name, numbers in zip(names, self.plan.files, strict=True):
            loaded = [self._parts.load(number) for number in numbers]
            rows = np.concatenate([arrays["rows"] for arrays in loaded])
            if [self._name(r) for r in rows] != store.sample_ids[row : row + len(rows)]:
                problem = "other images could be read when its patches were made"
                raise Mismatch(str(store.path), problem, "Make both again with --overwrite.")
            contents = self._contents(store, loaded, row)
            image = Image(contents)
            commit_file(self._target / name, image.write)
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
            "plan_digest": self._parts.digest,
            "recipe": self.plan.recipe,
            "dim": self.plan.dim,
            "dtype": self.plan.dtype,
            "rows": store.n,
            "patches": sum(entry["patches"] for entry in entries),
            "files": entries,
        }
        digest = hashlib.sha256(canonical_json(listed).encode()).hexdigest()
        commit_json(self._target / SET_NAME, {**listed, "sha256": digest})

    def _contents(self, store: EmbeddingStore, loaded: list[dict[str, NDArray[Any]]], row: int) -> Contents:
        """One file of the set, of all that its pieces hold."""
        plan = self.plan
        counts = sum(len(arrays["rows"]) for arrays in loaded)
        contents = Contents.of(
            schema.FORMAT_STORE,
            requires=schema.FEATURE_CELLS if plan.is_sampled else "",
            kind="patches",
            normalized=0,
            metric=plan.rows.metric,
            created_by=plan.rows.created_by,
            plan_digest=self._parts.digest,
            store_digest=store.content_digest,
            row_start=row,
            row_stop=row + counts,
            grid=f"{plan.grid[0]}x{plan.grid[1]}",
        )
        replace(plan.rows.model, layer=plan.layer, pooling="none").put(contents)

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

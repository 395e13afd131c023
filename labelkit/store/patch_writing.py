"""Write the patch features of a store file by file, so that at most one file is lost if the process is killed.

``PatchRun`` accompanies an ``EmbeddingRun``: the images of each of its parts are divided into chunks of whole batches,
each of which becomes a file of the patch set, written once. When the store is complete, ``publish`` adds ``SET.json``
and renames the folder to its final name. The formats are described in ``docs/inside/file_format.txt``.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.errors import Mismatch, StoreError, output_exists_error
from labelkit.store import schema
from labelkit.store.commit import commit_file, commit_folder, commit_json, json_digest, translate_os_errors
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.parts import RunFolder, cast_finite, check_disk_space
from labelkit.store.patches import SET_NAME, patches_folder, read_patch_index
from labelkit.store.plans import PatchPlan, patches_run_folder
from labelkit.store.reader import RESTORE, CheckedFile, open_checked_file
from labelkit.store.writer import FileContents, encode_strings

_WrittenFile = tuple[list[str], int, str]
"""A file of the patch set: names of its images, number of its patches, and content digest."""


class PatchRun(RunFolder[_WrittenFile]):
    """Resumable run that writes the patch features of a store; created by ``PatchRun.open``.

    Attributes:
        out: the store to which the patches belong.
        plan: plan of the patches.
        already_done: whether the patch set of the same plan already exists.
        warnings: messages for the user, such as damaged files that will be recreated.
    """

    def __init__(self, out: Path, plan: PatchPlan, *, overwrite: bool = False) -> None:
        self.out = out
        self.plan = plan
        self._target = patches_folder(out)
        names = [f"SET-{number:05d}-of-{len(plan.chunks):05d}.h5" for number in range(len(plan.chunks))]
        super().__init__(patches_run_folder(out), plan.to_json(), names, overwrite=overwrite)

    @classmethod
    def open(cls, out: str | os.PathLike[str], plan: PatchPlan, overwrite: bool = False) -> PatchRun:
        """Start or resume the run for a store, which need not exist yet; see ``EmbeddingRun.open``."""
        run = cls(Path(out), plan, overwrite=overwrite)
        run.begin()
        return run

    def pending_parts(self) -> list[int]:
        """Return the parts of the store whose patches are still missing, in order."""
        return sorted({self.plan.chunks[number][0] for number in super().pending_parts()})

    def chunks_of_part(self, part: int) -> list[int]:
        """Return the numbers of the chunks that belong to a part of the store, in order."""
        return [number for number, piece in enumerate(self.plan.chunks) if piece[0] == part]

    def write_chunk(
        self, number: int, rows: NDArray[np.int64], features: NDArray[Any], regions: NDArray[np.float64]
    ) -> None:
        """Write one chunk as a file of the patch set; rewriting it is safe, and identical values give identical bytes.

        Raises ``StoreError`` if a value is not finite in the stored dtype.

        Args:
            number: number of the chunk.
            rows: (m,) int64 positions in the plan.
            features: (m, c, d) float, with the c patches of an image row by row.
            regions: (m, 4) left, top, right, bottom of the grid in pixels of the oriented original.
        """
        plan = self.plan
        names = [plan.rows.sample_ids[row] for row in rows.tolist()]
        flat, kind = features.reshape(len(rows), -1), np.dtype(plan.dtype)
        stored = cast_finite(flat, kind, lambda row: f"{self.out}: {names[row]}", "patches", "--patch-dtype")
        contents = FileContents.create(
            schema.FORMAT_STORE,
            kind="patches",
            normalized=0,
            metric=plan.rows.metric,
            created_by=plan.rows.created_by,
            plan_digest=self.digest,
            grid=f"{plan.grid[0]}x{plan.grid[1]}",
        )
        replace(plan.rows.model, layer=plan.layer, pooling="none").add_to(contents)
        contents.datasets["patches"] = stored.reshape(-1, plan.dim)
        contents.datasets["patch_offsets"] = np.arange(len(rows) + 1, dtype="<u8") * np.uint64(plan.num_patches)
        contents.datasets["grids"] = np.tile(np.array(plan.grid, dtype="<u2"), (len(rows), 1))
        contents.datasets["regions"] = regions.astype("<f4")
        contents.datasets["sample_ids"] = encode_strings(names)
        commit_file(self.part_path(number), contents.sealed().write)

    def publish(self, store: EmbeddingStore) -> Path:
        """Write ``SET.json``, rename the folder of patch files to its final name, and return it.

        Raises ``Mismatch`` if the finished store has other images than the files; see ``EmbeddingRun.publish``.
        """
        with self._publishing() as to_do:
            if to_do:
                if store.plan_digest != self.plan.rows.digest():
                    raise Mismatch(str(store.path), "was created with a different plan than its patches", RESTORE)
                listed, folder = self._listed(store), self.part_path(0).parent
                commit_json(folder / SET_NAME, listed)
                with translate_os_errors(self._target):
                    for old in folder.iterdir():
                        if old.name not in (*self._names, SET_NAME):
                            old.unlink()
                    if self._target.exists():
                        shutil.rmtree(self._target)
                commit_folder(folder, self._target)
                self._clear()
        return self._target

    def _check_space(self) -> None:
        check_disk_space(self.folder, self.plan.estimated_bytes(), self.out, "the patches")

    def _opened(self, path: Path) -> CheckedFile:
        return open_checked_file(path, schema.FORMAT_STORE)

    def _read(self, number: int, file: CheckedFile) -> _WrittenFile:
        """Verify a file of the patch set, and return its entry for ``SET.json``."""
        for name in ("patches", "sample_ids"):
            for _ in file.iterate_verified_blocks(name):
                pass
        return file.read_strings("sample_ids"), file.datasets["patches"].shape[0], file.content_digest

    def _is_finished(self) -> bool:
        if self._overwrite or not (self._target / SET_NAME).exists():
            return False
        try:
            listed = read_patch_index(self._target)
        except StoreError as error:
            raise output_exists_error(self._target, state=f"and cannot be used ({error.problem})") from error
        if listed.get("plan_digest") == self.digest:
            return True
        raise output_exists_error(
            self._target, state="and was created from other images, another model or other options"
        )

    def _published_plan(self) -> object:
        try:
            return read_patch_index(self._target).get("plan_digest")
        except StoreError:
            return None

    def _listed(self, store: EmbeddingStore) -> dict[str, Any]:
        """Return the content of ``SET.json``, after verifying each file."""
        entries: list[dict[str, Any]] = []
        ids: list[str] = []
        for number, name in enumerate(self._names):
            sample_ids, patches, digest = self.load_part(number)
            entry = {"name": name, "row_start": len(ids), "row_stop": len(ids) + len(sample_ids)}
            entries.append({**entry, "patches": patches, "content_digest": digest})
            ids += sample_ids
        if ids != list(store.sample_ids):
            problem = f"has {store.n} images that differ from the {len(ids)} images whose patches were extracted"
            raise Mismatch(str(store.path), problem, "Recreate the store and its patches with --overwrite.")
        listed: dict[str, Any] = {
            "format": schema.FORMAT_PATCHES,
            "format_version": schema.FORMAT_VERSION,
            "store_digest": store.content_digest,
            "plan_digest": self.digest,
            "recipe": self.plan.recipe,
            "dim": self.plan.dim,
            "dtype": self.plan.dtype,
            "rows": store.n,
            "patches": sum(entry["patches"] for entry in entries),
            "files": entries,
        }
        return {**listed, "sha256": json_digest(listed)}

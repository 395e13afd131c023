"""Write an embedding store in resumable, reproducible parts, or from embeddings computed elsewhere.

``EmbeddingRun.open`` checks the location and writes the plan; parts are written in any order and any
number of times; ``publish`` combines them, and the complete store appears under its name. An interrupted
run is resumed by repeating the same steps. ``labelkit.store.parts`` writes the parts.
"""

from __future__ import annotations

import os
import secrets
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.errors import (
    ConfigError,
    DatasetError,
    OutputExistsError,
    Refused,
    ResourceError,
    StoreError,
    output_exists_error,
)
from labelkit.formatting import join_first_few, percent
from labelkit.store import schema
from labelkit.store.commit import canonical_json, json_digest, temporary_name, translate_os_errors
from labelkit.store.embeddings import EmbeddingStore, find_differing_keys, open_store
from labelkit.store.parts import RunFolder, cast_finite, check_disk_space, part_names
from labelkit.store.plans import EmbeddingPlan, embedding_run_folder
from labelkit.store.reader import CheckedFile, Shards, open_checked_file, reopen_column
from labelkit.store.schema import encode_name
from labelkit.store.writer import FileContents, StreamedDataset, encode_strings, write_store_files

_REASON_CHARACTERS = 500
_SHOWN_FAULTS = 5


class EmbeddingRun(RunFolder[dict[str, NDArray[Any]]]):
    """Resumable run that writes an embedding store in parts; created by ``EmbeddingRun.open``.

    Attributes:
        out: the store to be created.
        plan: plan of the store.
        already_done: whether the store exists and was created by the same plan, so that nothing remains to be done.
        warnings: messages for the user, such as damaged parts that will be recreated.
    """

    def __init__(self, out: Path, plan: EmbeddingPlan, *, overwrite: bool = False) -> None:
        self.out = out
        self.plan = plan
        super().__init__(embedding_run_folder(out), plan.to_json(), part_names(plan.num_parts), overwrite=overwrite)

    @classmethod
    def open(cls, out: str | os.PathLike[str], plan: EmbeddingPlan, overwrite: bool = False) -> EmbeddingRun:
        """Check that the store can be written before any image is read, then start or resume the run.

        Args:
            out: the store, ``NAME.h5``; its folder is created if it does not exist.
            plan: plan of the store; see ``resume_plan`` for interrupted runs.
            overwrite: replace a finished store, and discard an unfinished run of another plan.

        Raises:
            OutputExistsError: a store of another plan exists, or the existing store is damaged.
            Mismatch: an unfinished run has another plan; the message names the keys.
            ResourceError: permission is denied, or there is not enough free space.
            BusyError: another process is publishing the store.
        """
        run = cls(Path(out), plan, overwrite=overwrite)
        run.begin(plan.files())
        return run

    def part_range(self, part: int) -> tuple[int, int]:
        """Return the first and end row (exclusive) of a part, as positions in the plan."""
        start = self.plan.base_rows + part * self.plan.part_rows
        return start, min(start + self.plan.part_rows, len(self.plan.sample_ids))

    def write_part(self, part: int, *, skipped: Sequence[tuple[int, str]] = (), **columns: ArrayLike) -> None:
        """Write a part to disk; rewriting it is safe, and identical values produce identical bytes.

        Args:
            part: number of the part.
            skipped: (position in the plan, reason) of samples that could not be embedded.
            columns: those of ``EmbeddingPlan.part_shapes``, with one row per sample that was not skipped, in order.

        Raises:
            StoreError: a value is not finite in the stored dtype; the message names the sample.
            ResourceError: the disk is full, ...
            ValueError: shapes do not match the plan.
        """
        start, stop = self.part_range(part)
        reasons = {row: " ".join(reason.replace("\0", " ").split()) for row, reason in skipped}
        names = [self.plan.sample_ids[row] for row in range(start, stop) if row not in reasons]
        shapes = self.plan.part_shapes(len(names))
        if columns.keys() != shapes.keys():
            raise ValueError(f"a part of this plan must have columns {sorted(shapes)}, got {sorted(columns)}")
        datasets: dict[str, NDArray[Any]] = {}
        for name, (dtype, shape) in shapes.items():
            values = np.asarray(columns[name])
            if values.shape != shape:
                raise ValueError(f"{name} of part {part} must have shape {shape}, got {values.shape}")
            if name in schema.IMAGE_COLUMNS:
                datasets[name] = values.astype(dtype)
            else:
                kind = np.dtype(dtype)
                datasets[name] = cast_finite(values, kind, lambda row: f"{self.out}: {names[row]}", name, "--dtype")
        datasets["skipped/rows"] = np.array(sorted(reasons), dtype="<i8")
        datasets["skipped/reasons"] = encode_strings(reasons[row][:_REASON_CHARACTERS] for row in sorted(reasons))
        self._commit(part, datasets)

    def publish(self, max_bad: float = 0.01, shards: int | None = None, base: EmbeddingStore | None = None) -> Path:
        """Combine the parts into the finished store, and delete the run folder.

        Args:
            max_bad: maximum fraction of samples that may be skipped, in [0, 1].
            shards: number of files for the rows; ``None``: one file. The content is the same.
            base: the sharded store that the plan extends; ``shards`` is then the number of new shards, default 1.

        Returns:
            The path of the store.

        Raises:
            DatasetError: more samples were skipped, or all; nothing is published, and the parts remain.
            StoreError: parts are missing or damaged, or another store has been created in the meantime.
            BusyError: another process is publishing the store.
            ResourceError: the disk is full, ...
        """
        with self._publishing() as to_do:
            if to_do:
                self._install(self._gather(max_bad, base).sealed(), shards, None if base is None else base.shards)
                try:
                    self._clear()
                except ResourceError as error:
                    self.warnings.append(f"the store is complete, but its run folder could not be removed: {error}")
        return self.out

    def _is_finished(self) -> bool:
        if self.out.is_dir():
            raise ConfigError("--out", f"{self.out} is a folder", "Pass a file name.")
        if self._overwrite or not self.out.exists():
            return False
        try:
            store = open_store(self.out)
            if store.plan_digest == self.digest:
                # A store counts as finished only if it is complete.
                _ = store.embeddings, store.extras, store.view_embeddings
                return True
        except StoreError as error:
            raise output_exists_error(self.out, state=f"and cannot be used ({error.problem})") from error
        raise self._different_plan_error(store)

    def _different_plan_error(self, store: EmbeddingStore) -> OutputExistsError:
        """Return the error for a store of another plan: what differs, and how to embed only the missing images."""
        keys = store.model.differences(self.plan.model)
        if keys:
            return output_exists_error(self.out, state=f"and was created by another model ({', '.join(keys)} differ)")
        asked = set(self.plan.sample_ids)
        held = {*store.sample_ids, *(name for name, _ in store.skipped)}
        if asked != held:
            others = f", and {len(held - asked):,} that are not among these" if held - asked else ""
            new = f"--reuse {self.out} and another --out to embed only new images"
            state = f"and contains {len(asked & held):,} of these {len(asked):,} images{others}"
            return output_exists_error(self.out, state=state, instead=new if asked & held and asked - held else "")
        numerics = find_differing_keys(store.model.numerics, self.plan.model.numerics)
        told = f"{', '.join(numerics)} differ" if numerics else "such as labels, splits, --dtype, --views or --reuse"
        return output_exists_error(self.out, state=f"and was created from these images with other options ({told})")

    def _published_plan(self) -> str | None:
        try:
            with open_checked_file(self.out, schema.FORMAT_STORE) as file:
                return str(file.attributes[""].get("plan_digest"))
        except StoreError:
            return None

    def _check_space(self) -> None:
        # parts are removed only when the store is complete
        check_disk_space(self.folder, int(2.1 * self.plan.estimated_bytes()), self.out, "the parts and the store")

    def _read(self, part: int, file: CheckedFile) -> dict[str, NDArray[Any]]:
        return {name: file.read(name) for name in (*self.plan.part_shapes(0), "skipped/rows", "skipped/reasons")}

    def _gather(self, max_bad: float, base: EmbeddingStore | None) -> FileContents:
        plan = self.plan
        # Each part is read once if the store fits in memory, otherwise once more for each large column.
        load = lru_cache(maxsize=None if plan.estimated_bytes() <= schema.MEMORY_BYTES else 1)(self.load_part)
        small = {name: [] if base is None else [getattr(base, name)] for name in schema.IMAGE_COLUMNS}
        skipped: dict[int, str] = {}
        ends = [plan.base_rows]
        for part in range(plan.num_parts):
            loaded = load(part)
            ends.append(ends[-1] + len(loaded["embeddings"]))
            reasons = map(schema.decode_name, loaded["skipped/reasons"].tolist())
            skipped.update(zip(loaded["skipped/rows"].tolist(), reasons, strict=True))
            for name, pieces in small.items():
                pieces.append(loaded[name])
        total = len(plan.sample_ids)
        if len(skipped) > max_bad * total or len(skipped) == total:
            raise self._too_many(skipped, max_bad)

        def rows(name: str, start: int, stop: int) -> NDArray[Any]:
            parts = range(max(0, bisect_right(ends, start) - 1), bisect_left(ends, stop))
            pieces = [load(k)[name][max(0, start - ends[k]) : stop - ends[k]] for k in parts]
            if base is not None and start < ends[0]:
                old = reopen_column(str(base.path), name, base.content_digest)
                pieces.insert(0, old[start : min(stop, ends[0])])
            return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

        contents = build_planned_contents(plan, self.digest, skipped)
        contents.datasets.update((name, np.concatenate(pieces)) for name, pieces in small.items())
        for name, (dtype, shape) in plan.part_shapes(ends[-1]).items():
            if name not in small:
                contents.datasets[name] = StreamedDataset(np.dtype(dtype), shape, partial(rows, name))
        return contents

    def _too_many(self, skipped: Mapping[int, str], max_bad: float) -> DatasetError:
        total = len(self.plan.sample_ids)
        faults = (f"{self.plan.sample_ids[row]}: {skipped[row]}" for row in sorted(skipped))
        problem = (
            f"{len(skipped)} of {total} images cannot be used ({percent(len(skipped) / total)}%, but only "
            f"{percent(max_bad)}% are allowed): {join_first_few(faults, _SHOWN_FAULTS, '; ')}"
        )
        remedy = f"Repair these images and delete {self.folder}, or raise --max-bad to skip them."
        return DatasetError(str(self.out), problem, remedy)

    def _install(self, contents: FileContents, shards: int | None, kept: Shards | None) -> None:
        temporary = self.folder / f"publish-{secrets.token_hex(8)}.tmp"
        try:
            with translate_os_errors(self.folder):
                for old in self.folder.glob("publish-*.tmp"):
                    old.unlink(missing_ok=True)
            write_store_files(contents, self.out, temporary, shards=shards, replace=self._overwrite, kept=kept)
        except OutputExistsError as error:
            raise output_exists_error(self.out, state="and was created by another run in the meantime") from error


def build_planned_contents(
    plan: EmbeddingPlan, digest: str, skipped: Mapping[int, str], *features: str
) -> FileContents:
    """Build those contents of a store that are known before embedding; ``digest`` becomes ``plan_digest``.

    ``skipped`` maps each skipped row of the plan to the reason; ``features`` are listed in ``requires``.
    """
    if plan.base_rows or list(plan.sample_ids) != sorted(plan.sample_ids, key=encode_name):
        features += (schema.FEATURE_UNSORTED,)
    contents = FileContents.create(
        schema.FORMAT_STORE,
        requires=",".join(features),
        kind="embeddings",
        normalized=0,
        metric=plan.metric,
        names_are_utf8=int(plan.names_are_utf8),
        created_by=plan.created_by,
        plan_digest=digest,
    )
    plan.model.add_to(contents)
    if plan.views is not None:
        contents.set_attributes("", views=canonical_json(dict(plan.views)))
    if plan.reused_from:
        contents.set_attributes("", reused_rows=plan.num_reused, reused_from=",".join(plan.reused_from))
    kept = np.ones(len(plan.sample_ids), dtype=np.bool_)
    kept[list(skipped)] = False
    datasets = contents.datasets
    datasets["sample_ids"] = encode_strings(plan.sample_ids[row] for row in np.flatnonzero(kept).tolist())
    for name, values in (("labels", plan.labels), ("splits", plan.splits)):
        if values is not None:
            datasets[name] = values[kept]
    if plan.labeled is not None:
        datasets["labeled"] = plan.labeled[kept].astype(np.uint8)
    if plan.old_classes is not None:
        datasets["old_classes"] = plan.old_classes.astype(np.uint8)
    for name, texts in (("class_names", plan.class_names), ("split_names", plan.split_names)):
        if texts:
            datasets[name] = encode_strings(texts)
    if skipped:
        datasets["skipped/sample_ids"] = encode_strings(plan.sample_ids[row] for row in sorted(skipped))
        datasets["skipped/reasons"] = encode_strings(skipped[row] for row in sorted(skipped))
    return contents


def check_storable(embeddings: NDArray[Any], dtype: str, where: Callable[[int], str]) -> None:
    """Check that all embeddings (n, d), in the order of the imported file, can be stored as ``dtype``.

    Raises ``Refused`` for values that are not finite or too large for the dtype, and for rows that become zero in it.
    ``where`` returns the location of a row for messages.
    """
    step = max(1, schema.BLOCK_BYTES // (8 * int(embeddings.shape[1])))
    for start in range(0, len(embeddings), step):
        given = embeddings[start : start + step]
        stored = _cast(given, np.dtype(dtype))
        finite = np.isfinite(stored)
        if not finite.all():
            row, column = np.argwhere(~finite)[0].tolist()
            value = given[row, column]
            large = f", which is too large for {dtype}" if np.isfinite(value) else ""
            remedy = "Pass --dtype float32." if large and dtype == "float16" else "Correct or remove this row."
            raise Refused(where(start + row), f"value {column} is {value}{large}", remedy)
        vanishes = given.any(axis=1) & ~stored.any(axis=1)
        if vanishes.any():
            row = int(np.argmax(vanishes))
            problem = f"has no absolute value above {np.abs(given[row]).max():.3g}, which rounds to 0 in {dtype}"
            raise Refused(where(start + row), problem, "Scale the embeddings, or pass --dtype float32.")


def write_imported_store(
    out: Path,
    plan: EmbeddingPlan,
    *,
    embeddings: NDArray[Any],
    order: NDArray[np.int64],
    images: Mapping[str, NDArray[Any]] | None,
    recipe: dict[str, Any],
    extras: Mapping[str, NDArray[np.float32]] | None = None,
    shards: int | None = None,
    overwrite: bool = False,
) -> None:
    """Write a store of imported embeddings atomically.

    Args:
        out: the store, ``NAME.h5``.
        plan: names, labels and other metadata of the embeddings; nothing is computed from it.
        embeddings: (n, d) numbers that passed ``check_storable``, usually a memory map.
        order: (n,) row of ``embeddings`` for each row of the store.
        images: ``sha256``, ``file_sizes``, ``image_sizes`` of the image files in the order of the store; ``None``:
            unknown, which the store records.
        recipe: what was imported and how; its digest becomes ``plan_digest``.
        extras: additional model outputs by name, (n, w), in the order of the store.
        shards: number of files for the rows; ``None``: one file.
        overwrite: replace an existing file.
    """
    contents = build_planned_contents(plan, json_digest(recipe), {}, *([] if images else [schema.FEATURE_IMAGELESS]))
    kind = np.dtype(plan.dtype).newbyteorder("<")
    contents.datasets["embeddings"] = StreamedDataset(
        kind, embeddings.shape, lambda a, b: _cast(embeddings[order[a:b]], kind)
    )
    contents.datasets.update({**(images or {}), **(extras or {})})
    check_disk_space(out.with_name(out.name + ".run"), plan.estimated_bytes(), out, "the store")
    write_store_files(contents.sealed(), out, out.parent / temporary_name(), shards=shards, replace=overwrite)


def _cast(values: NDArray[Any], kind: np.dtype[Any]) -> NDArray[Any]:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(values).astype(kind, copy=False)

"""How far a store that is embedded or a run that is trained is; nothing is changed."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from labelkit.commands.common.results import Cell, SimpleResult, Table
from labelkit.commands.store_files.options import StatusConfig
from labelkit.errors import Damaged, LabelkitError, Mismatch, NotAStore, ResourceError, StoreError, resource_error
from labelkit.files import read_bytes
from labelkit.progress import current_progress
from labelkit.store import schema
from labelkit.store.commit import is_locked
from labelkit.store.digests import RESTORE
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.parts import Parts, count_workers, read_plan, translated
from labelkit.store.patches import PatchSet, open_patches, patches_folder
from labelkit.store.plans import (
    embedding_run_folder,
    patch_row_bytes,
    patches_run_folder,
    piece_ranges,
)
from labelkit.store.reader import CheckedFile
from labelkit.store.results import list_results
from labelkit.store.schema import name_text
from labelkit.training.run_status import CheckpointStatus, TrainingStatus, training_status

_SHOWN_SKIPPED = 20
_SHOWN_METRICS = 12
_FRESH = "Delete the run folder, or repeat the command with --overwrite."
_RECENT_PARTS = 50
_PAUSE_SECONDS, _PAUSE_RATIO = 60, 100
_MOST_PARTS = 10_000_000


@dataclass(frozen=True)
class LookedAt(SimpleResult):
    """How far something is.

    Attributes:
        fault: why a store or its patches cannot be used, to end with; ``None``: they can, or are not there yet.
    """

    fault: LabelkitError | None = None


def look_at(config: StatusConfig) -> SimpleResult:
    """Say how far a store or a run is.

    Raises:
        NotAStore: there is neither a store nor an unfinished one.
        StoreError: the plan of an unfinished run cannot be read.
        CheckpointError: it is not a run folder.
        ResourceError: the system does not let us read it.
    """
    if config.run is not None:
        return _look_at_training(config.run)
    assert config.index is not None  # the config has one of the two
    return _look_at_store(config.index)


# ---- stores


def _look_at_store(out: Path) -> SimpleResult:
    with current_progress().task("parts") as task:
        run = embedding_status(out, task.advance)
        dense = patches_status(out, task.advance)
    store, fault = _open(out)
    if store is None and fault is None and run is None and dense is None:
        problem = "there is neither a store nor an unfinished run that makes it"
        raise NotAStore(str(out), problem, "Check the name; `labelkit embed` makes one.")
    patches, patch_fault = _open_patches(store)
    rows: list[list[Cell]] = [["store", "finished" if store else "cannot be used" if fault else "not there yet"]]
    if store is not None:
        rows += _store_rows(store)
    tables = [Table(str(out), ["what", "found"], [*rows, *_patch_rows(patches)])]
    for title, status in (("unfinished run", run), ("unfinished patches", dense)):
        if status is not None:
            tables += _run_tables(title, status)
    faults = [error for error in (fault, patch_fault) if error is not None]
    skipped = store.skipped if store is not None and run is None else []
    if skipped:
        tables.append(_skipped_table(skipped))
    values: dict[str, object] = {
        "index": out,
        "state": "finished"
        if store and not run and not dense
        else "damaged"
        if fault
        else "running"
        if any(status is not None and (status.num_processes or status.is_publishing) for status in (run, dense))
        else "unfinished",
        "store": None if store is None else _store_record(store),
        "patches": None if patches is None else _patch_record(patches),
        "run": None if run is None else _run_record(run),
        "patches_run": None if dense is None else _run_record(dense),
        "faults": [error.to_json() for error in faults],
    }
    # patches are opened only if the store is, so that there is one fault at most
    return LookedAt(values, (), tuple(tables), fault or patch_fault)


def _open(out: Path) -> tuple[EmbeddingStore | None, StoreError | None]:
    if not out.exists():
        return None, None
    try:
        return open_store(out), None
    except StoreError as error:
        return None, error


def _open_patches(store: EmbeddingStore | None) -> tuple[PatchSet | None, StoreError | None]:
    if store is None or not patches_folder(store.path).is_dir():
        return None, None
    try:
        return open_patches(store), None
    except StoreError as error:
        return None, error


def _store_rows(store: EmbeddingStore) -> list[list[Cell]]:
    shards: list[list[Cell]] = [["shards", store.num_shards]] if store.num_shards else []
    return [
        ["images", store.n],
        ["values per image", store.dim],
        *shards,
        ["skipped", len(store.skipped)],
        ["results", ", ".join(list_results(store)) or "none"],
        ["made by", f"{store.created_by}, {store.model.name}"],
    ]


def _patch_rows(patches: PatchSet | None) -> list[list[Cell]]:
    return [] if patches is None else [["patches", f"{patches.num_patches:,} of {patches.dim} values"]]


def _store_record(store: EmbeddingStore) -> dict[str, object]:
    return {
        "rows": store.n,
        "dim": store.dim,
        "shards": store.num_shards,
        "content_digest": store.content_digest,
        "created_by": store.created_by,
        "model": store.model.name,
        "results": list_results(store),
        "skipped": [{"image": name, "reason": reason} for name, reason in store.skipped],
    }


def _patch_record(patches: PatchSet) -> dict[str, object]:
    return {"patches": patches.num_patches, "dim": patches.dim, "dtype": patches.dtype, "layer": patches.layer}


def _run_tables(title: str, status: RunStatus) -> list[Table]:
    left, unit = status.planned_parts - status.done_parts, status.unit
    rows: list[list[Cell]] = [
        [f"{unit} done", f"{status.done_parts} of {status.planned_parts}"],
        ["images done", f"{status.num_images + len(status.skipped):,} of {status.planned_images:,}"],
        ["skipped", len(status.skipped)],
        [f"damaged {unit}", ", ".join(name for name, _ in status.damaged) or "none"],
        ["put aside as damaged", ", ".join(status.set_aside) or "none"],
        ["state", _state_text(status)],
        ["last one", None if status.last_part_at is None else f"{_time_text(_age(status))} ago"],
        ["estimated rest", _rest_text(status, left)],
    ]
    tables = [Table(f"{title} {status.folder}", ["what", "found"], rows)]
    if status.all_faults:
        tables.append(_fault_table(status.all_faults))
    if status.skipped:
        tables.append(_skipped_table(status.skipped))
    return tables


def _run_record(status: RunStatus) -> dict[str, object]:
    return {
        "folder": status.folder,
        "parts": {"done": status.done_parts, "planned": status.planned_parts},
        "images": {"done": status.num_images, "planned": status.planned_images},
        "bytes": status.num_bytes,
        "skipped": [{"image": name, "reason": reason} for name, reason in status.skipped],
        "damaged": [{"part": name, **error.to_json()} for name, error in status.damaged],
        "set_aside": status.set_aside,
        "processes": status.num_processes,
        "lock_held": status.is_publishing,
        "seconds_since_last_part": None if status.last_part_at is None else round(_age(status), 1),
        "seconds_left": None if status.seconds_left is None else round(status.seconds_left, 1),
        "faults": [error.to_json() for error in status.faults],
    }


def _state_text(status: RunStatus) -> str:
    if status.num_processes:
        return f"running, {status.num_processes} process{'es' if status.num_processes > 1 else ''}"
    return "running, putting the parts together" if status.is_publishing else "stopped"


def _age(status: RunStatus) -> float:
    return max(0.0, time.time() - (status.last_part_at or 0.0))


def _rest_text(status: RunStatus, left: int) -> str:
    if left == 0:
        return "all is there but the last step: repeat the command"
    if status.seconds_left is None:
        return "unknown before two are there"
    return f"about {_time_text(status.seconds_left)}, at the pace of the last ones"


# ---- training


def _look_at_training(run: Path) -> SimpleResult:
    with current_progress().task("checkpoints") as task:
        status = training_status(run, task.advance)
    state = "finished" if status.is_finished else "unfinished"
    if status.is_running:
        state = "running"
    newest = next((found for found in reversed(status.checkpoints) if not found.faults), None)
    epochs = status.options.get("epochs")
    rows: list[list[Cell]] = [
        ["method", status.method],
        ["state", state],
        ["step", None if newest is None else newest.step],
        ["epoch", None if newest is None or newest.epoch is None else _of(newest.epoch, epochs)],
        ["last checkpoint", status.last],
        ["best checkpoint", status.best],
    ]
    tables = [Table(str(run), ["what", "found"], rows)]
    if status.checkpoints:
        tables.append(_checkpoint_table(status))
    if status.last_record is not None:
        tables.append(_metrics_table(status.last_record))
    faults: list[LabelkitError] = list(status.faults)
    faults += [fault for found in status.checkpoints for fault in found.faults]
    if faults:
        tables.append(_fault_table(faults))
    values: dict[str, object] = {
        "run": run,
        "method": status.method,
        "state": state,
        "running": status.is_running,
        "finished": status.is_finished,
        "step": None if newest is None else newest.step,
        "epoch": None if newest is None else newest.epoch,
        "epochs": epochs,
        "checkpoints": [_checkpoint_record(found) for found in status.checkpoints],
        "last": status.last,
        "best": status.best,
        "last_metrics": status.last_record,
        "faults": [error.to_json() for error in status.faults],
    }
    return SimpleResult(values, (), tuple(tables))


def _of(count: int, total: object) -> str:
    return f"{count} of {total}" if isinstance(total, int) else str(count)


def _checkpoint_table(status: TrainingStatus) -> Table:
    rows: list[list[Cell]] = [
        [
            found.folder.name,
            found.epoch,
            round(found.num_bytes / 1e6, 2),
            not found.faults,
            ", ".join(which for which in ("last", "best") if getattr(status, which) == found.folder.name) or None,
        ]
        for found in status.checkpoints
    ]
    return Table("checkpoints", ["checkpoint", "epochs done", "MB", "verifies", "is the"], rows)


def _metrics_table(record: dict[str, object]) -> Table:
    shown = [(name, value) for name, value in record.items() if value is None or isinstance(value, str | int | float)]
    title = "last line of metrics.jsonl"
    if len(shown) > _SHOWN_METRICS:
        title += f": the first {_SHOWN_METRICS} of {len(shown)}; --json has all"
    return Table(title, ["name", "value"], [[name, value] for name, value in shown[:_SHOWN_METRICS]])


def _checkpoint_record(found: CheckpointStatus) -> dict[str, object]:
    return {
        "name": found.folder.name,
        "step": found.step,
        "epoch": found.epoch,
        "bytes": found.num_bytes,
        "verifies": not found.faults,
        "faults": [error.to_json() for error in found.faults],
    }


# ---- shared


def _fault_table(faults: list[StoreError] | list[LabelkitError]) -> Table:
    return Table("faults", ["where", "problem", "what to do"], [[f.where, f.problem, f.remedy] for f in faults])


def _skipped_table(skipped: list[tuple[str, str]]) -> Table:
    title = "skipped"
    if len(skipped) > _SHOWN_SKIPPED:
        title += f": the first {_SHOWN_SKIPPED} of {len(skipped)}; --json has all"
    return Table(title, ["image", "reason"], [[name, reason] for name, reason in skipped[:_SHOWN_SKIPPED]])


def _time_text(seconds: float) -> str:
    """Return a time as a person says it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


# ---- what is in a run folder


@dataclass
class RunStatus:
    """An unfinished run.

    Attributes:
        folder: of the run.
        planned_images: images of the plan.
        planned_parts: parts of the plan, or pieces of patches.
        unit: what these are called, ``parts`` or ``pieces``.
        done_parts: those that are there and verify.
        num_images: images in them, skipped ones not counted.
        num_bytes: of them.
        skipped: name and reason of images that could not be embedded.
        damaged: name and fault of parts that do not verify; the run makes them again.
        set_aside: names of damaged parts that the run has renamed already.
        faults: what is wrong with the rest of the folder.
        is_publishing: whether a process holds the lock, as one does while it begins and while it puts parts together.
        num_processes: how many make parts of it now.
        last_part_at: when the newest part was committed, in seconds since 1970; ``None`` if there is none.
        seconds_left: estimate for the parts that are missing; ``None`` without two parts to judge by.
    """

    folder: Path
    planned_images: int
    planned_parts: int
    unit: str
    done_parts: int = 0
    num_images: int = 0
    num_bytes: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    damaged: list[tuple[str, StoreError]] = field(default_factory=list)
    set_aside: list[str] = field(default_factory=list)
    faults: list[StoreError] = field(default_factory=list)
    is_publishing: bool = False
    num_processes: int = 0
    last_part_at: float | None = None
    seconds_left: float | None = None

    @property
    def all_faults(self) -> list[StoreError]:
        """What is wrong with the folder, and with parts."""
        return [*self.faults, *(error for _, error in self.damaged)]


def embedding_status(out: Path, report: Callable[[int], None] = lambda count: None) -> RunStatus | None:
    """Look at the unfinished run of a store; every part is verified.

    Args:
        out: the store to be made, ``NAME.h5``.
        report: gets 1 for each part that is there.

    Returns:
        The status, or ``None`` where there is no run.

    Raises:
        Damaged: its plan cannot be read.
        ResourceError: the system does not let us read it.
    """
    folder = embedding_run_folder(out)
    plan = read_plan(folder)
    if plan is None:
        return None
    total, part_rows, _ = _sizes(folder, plan)
    names, fault = _listed_names(folder, plan)
    status = RunStatus(folder, total, -(-total // part_rows), unit="parts")
    if fault is not None:
        status.faults.append(fault)

    def look(part: int, file: CheckedFile) -> None:
        rows = min(part_rows, total - part * part_rows)
        skipped = file.read("skipped/rows").tolist()
        reasons = file.read_strings("skipped/reasons")
        if len(skipped) != len(reasons) or file.datasets["embeddings"].shape[0] != rows - len(skipped):
            raise Mismatch(file.where, "holds other rows than its name says", RESTORE)
        status.num_images += rows - len(skipped)
        for row, reason in zip(skipped, reasons, strict=True):
            status.skipped.append((names[row] if 0 <= row < len(names) else f"image {row}", reason))

    return _look_at_parts(status, plan, [(part,) for part in range(status.planned_parts)], look, report)


def patches_status(out: Path, report: Callable[[int], None] = lambda count: None) -> RunStatus | None:
    """Look at the unfinished patches of a store; every piece is verified.

    Args, Returns, Raises: as :func:`embedding_status`.
    """
    folder = patches_run_folder(out)
    plan = read_plan(folder)
    if plan is None:
        return None
    rows, recipe = plan.get("rows"), plan.get("recipe")
    if not isinstance(rows, dict) or not isinstance(recipe, dict):
        raise _no_plan(folder)
    total, part_rows, batch_size = _sizes(folder, rows)
    grid, per_image = recipe.get("grid"), recipe.get("per_image")
    if not isinstance(grid, list) or len(grid) != 2 or plan.get("dtype") not in schema.DTYPES:
        raise _no_plan(folder)
    cells = _natural(folder, grid[0]) * _natural(folder, grid[1])
    count = cells if per_image is None else min(_natural(folder, per_image), cells)
    row_bytes = patch_row_bytes(
        count, _natural(folder, plan.get("dim")), plan["dtype"], is_sampled=per_image is not None
    )
    pieces = piece_ranges(total, part_rows, batch_size, row_bytes)
    status = RunStatus(folder, total, len(pieces), unit="pieces")

    def look(number: int, file: CheckedFile) -> None:
        _, _, start, stop = pieces[number]
        found = file.read("rows")
        inside = not len(found) or (start <= found[0] and found[-1] < stop)
        if not inside or file.datasets["patches"].shape[0] != len(found) * count:
            raise Mismatch(file.where, "holds other rows than its name says", RESTORE)
        status.num_images += len(found)

    return _look_at_parts(status, plan, [piece[:2] for piece in pieces], look, report)


def _look_at_parts(
    status: RunStatus,
    plan: dict[str, Any],
    numbers: list[tuple[int, ...]],
    look: Callable[[int, CheckedFile], None],
    report: Callable[[int], None] = lambda count: None,
) -> RunStatus:
    """Verify the parts that are there, and add to the status what is known of them and of those who make them."""
    folder, times = status.folder, []
    parts = Parts(
        folder, folder, plan, numbers, word=status.unit[:-1], read=look, published=lambda: None, overwrite=False
    )
    for number in range(len(numbers)):
        path = parts.path(number)
        try:
            parts.load(number)
            file_status = path.stat()
        except KeyError as error:
            problem = f"holds no {error.args[0]}"
            status.damaged.append((path.name, Mismatch(str(path), problem, "Run the same command again.")))
        except StoreError as error:
            status.damaged.append((path.name, error))
        except (FileNotFoundError, ResourceError):
            if path.exists():
                raise
        else:
            status.done_parts += 1
            status.num_bytes += file_status.st_size
            times.append(file_status.st_mtime)
            report(1)
    with translated(folder):
        status.set_aside = sorted(path.name for path in (folder / "parts").glob("*.bad"))
        status.is_publishing = is_locked(folder / "lock")
    status.num_processes = count_workers(folder)
    status.last_part_at = max(times, default=None)
    pace = _seconds_per_part(times)
    status.seconds_left = None if pace is None else pace * (status.planned_parts - status.done_parts)
    return status


def _seconds_per_part(times: list[float]) -> float | None:
    """Return the mean time between recent parts; much longer gaps are pauses in which nobody worked."""
    recent = sorted(times)[-_RECENT_PARTS:]
    gaps = sorted(later - earlier for earlier, later in pairwise(recent))
    if not gaps:
        return None
    # Several workers commit in bursts, so that only very unequal gaps are pauses.
    while len(gaps) > 1 and gaps[-1] > max(_PAUSE_SECONDS, _PAUSE_RATIO * math.fsum(gaps[:-1]) / (len(gaps) - 1)):
        gaps.pop()
    return math.fsum(gaps) / len(gaps)


def _sizes(folder: Path, plan: dict[str, Any]) -> tuple[int, int, int]:
    """Return images, rows of a part and batch size of a plan of rows."""
    files = plan.get("files")
    total = files.get("count") if isinstance(files, dict) else None
    images, part_rows = _natural(folder, total), _natural(folder, plan.get("part_rows"))
    if images > part_rows * _MOST_PARTS:
        raise _no_plan(folder)
    return images, part_rows, _natural(folder, plan.get("batch_size"))


def _natural(folder: Path, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _no_plan(folder)
    return value


def _no_plan(folder: Path) -> Damaged:
    return Damaged(str(folder / "plan.json"), "is not a plan, the file was changed or the disk is failing", _FRESH)


def _listed_names(folder: Path, plan: dict[str, Any]) -> tuple[list[str], StoreError | None]:
    path = folder / "files"
    try:
        raw = read_bytes(path)
    except FileNotFoundError:
        return [], Damaged(str(path), "is missing, the plan names it", _FRESH)
    except OSError as error:
        raise resource_error(error, str(path)) from error
    if hashlib.sha256(raw).hexdigest() != plan["files"].get("sha256"):
        return [], Damaged(str(path), "digest differs, the file was changed or the disk is failing", _FRESH)
    return [name_text(name) for name in raw.split(b"\0")], None

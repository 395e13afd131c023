"""How far a store that is embedded or a run that is trained is; nothing is changed."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from labelkit.commands.common.results import Cell, SimpleResult, Table
from labelkit.commands.store_files.options import StatusConfig
from labelkit.errors import LabelkitError, NotAStore, StoreError
from labelkit.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.patches import PatchSet, open_patches, patches_folder
from labelkit.store.results import list_results
from labelkit.store.run_status import RunStatus, embedding_status, patches_status
from labelkit.training.run_status import CheckpointStatus, TrainingStatus, training_status

_SHOWN_SKIPPED = 20
_SHOWN_METRICS = 12


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

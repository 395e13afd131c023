"""Report the progress of an embedding or training run without changing anything."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from labelkit.commands.common.embeddings import count_images
from labelkit.commands.common.results import Cell, CommandResult, Table
from labelkit.commands.store_files.options import StatusConfig
from labelkit.errors import Damaged, LabelkitError, NotAStore, StoreError
from labelkit.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.parts import read_plan
from labelkit.store.patches import PatchSet, open_patches, patches_folder
from labelkit.store.plans import embedding_run_folder, patches_run_folder, read_stored_plan
from labelkit.store.results import list_results
from labelkit.store.schema import decode_name
from labelkit.store.writing import EmbeddingRun
from labelkit.training.run_status import inspect_run

_SHOWN_SKIPPED = 20
_SHOWN_METRICS = 12


def report_status(config: StatusConfig) -> CommandResult:
    """Report the progress of a store or a training run.

    Raises:
        NotAStore: there is neither a finished nor an unfinished store.
        StoreError: the plan of an unfinished run cannot be read.
        CheckpointError: ``--run`` is not a run folder.
        ResourceError: files cannot be read for lack of permissions.
    """
    if config.run is not None:
        return _inspect_training(config.run)
    assert config.index is not None
    out = config.index
    with current_progress().task("parts") as task:
        run, damaged = read_embedding_status(out, task.advance)
    patches_pending = patches_run_folder(out).exists()
    store: EmbeddingStore | None = None
    patches: PatchSet | None = None
    fault: StoreError | None = None
    try:
        store = open_store(out) if out.exists() else None
        patches = open_patches(store) if store is not None and patches_folder(out).is_dir() else None
    except StoreError as error:
        fault = error
    if store is None and fault is None and run is None and not patches_pending:
        problem = "there is neither a store nor an unfinished run with this name"
        raise NotAStore(str(out), problem, "Check the name, or create the store with `labelkit embed`.")
    records: dict[str, dict[str, Any] | None] = {
        "store": None
        if store is None
        else {
            "rows": store.n,
            "dim": store.dim,
            "shards": store.num_shards,
            "content_digest": store.content_digest,
            "created_by": store.created_by,
            "model": store.model.name,
            "results": list_results(store),
            "skipped": [{"image": name, "reason": reason} for name, reason in store.skipped],
        },
        "patches": None
        if patches is None
        else {"patches": patches.num_patches, "dim": patches.dim, "dtype": patches.dtype, "layer": patches.layer},
        "run": run,
    }
    is_done = run is None and not patches_pending
    state = "finished" if store and is_done else "unfinished" if store or not fault else "damaged"
    there = "finished" if store else "unusable" if fault else "not finished"
    counts: list[list[Cell]] = [] if store is None else [["images", count_images(store)]]
    tables = [Table(str(out), ["what", "found"], [["store", there], *_list_record_rows(records["store"]), *counts])]
    for title in ("patches", "run"):
        if records[title]:
            tables.append(Table(title, ["what", "found"], _list_record_rows(records[title])))
    if damaged:
        tables.append(_fault_table(damaged))
    skipped = (run or records["store"] or {}).get("skipped")
    if skipped:
        rows = [[*image.values()] for image in skipped]
        tables.append(_first_rows("skipped", ["image", "reason"], rows, _SHOWN_SKIPPED))
    faults = [] if fault is None else [fault.to_json()]
    values: dict[str, object] = {"index": out, "state": state, **records, "faults": faults}
    return CommandResult(values, (), tuple(tables), fault=fault)


def _list_record_rows(record: dict[str, Any] | None) -> list[list[Cell]]:
    """Return a record as table rows; for lists of objects, show their length."""
    rows: list[list[Cell]] = []
    for name, value in (record or {}).items():
        if isinstance(value, dict):
            value = f"{value['done']:,} of {value['planned']:,}"
        elif isinstance(value, list):
            value = len(value) if value and isinstance(value[0], dict) else ", ".join(value) or "none"
        rows.append([name.replace("_", " "), value])
    return rows


def read_embedding_status(
    out: Path, on_part: Callable[[int], None] = lambda count: None
) -> tuple[dict[str, Any] | None, list[StoreError]]:
    """Read the progress of an unfinished embedding run, and verify its finished parts.

    Args:
        out: path of the future store, ``NAME.h5``.
        on_part: called with 1 for each intact part.

    Returns:
        The progress as JSON, in which ``done`` counts intact parts and their images, without skipped images (``None``
        if there is no run); and the faults of damaged parts, which the resumed run recreates.

    Raises:
        Damaged: the plan of the run cannot be read.
        ResourceError: files cannot be read for lack of permissions.
    """
    folder = embedding_run_folder(out)
    if read_plan(folder) is None:
        return None, []
    plan = read_stored_plan(folder)
    if plan is None:
        remedy = "Delete the run folder, or repeat the command with --overwrite."
        problem = "is not a valid plan: the file was changed, or the disk is failing"
        raise Damaged(str(folder / "plan.json"), problem, remedy)
    run = EmbeddingRun(out, plan)
    done: dict[Path, int] = {}  # number of images in each intact part
    skipped: list[dict[str, str]] = []
    damaged: dict[Path, StoreError] = {}
    for number in range(plan.num_parts):
        path = run.part_path(number)
        if not path.exists():
            continue
        try:
            part = run.load_part(number)
        except StoreError as error:
            damaged[path] = error
            continue
        done[path] = len(part["embeddings"])
        for row, reason in zip(part["skipped/rows"].tolist(), part["skipped/reasons"].tolist(), strict=True):
            skipped.append({"image": plan.sample_ids[row], "reason": decode_name(reason)})
        on_part(1)
    record = {
        "folder": folder,
        "parts": {"done": len(done), "planned": plan.num_parts},
        "images": {"done": sum(done.values()), "planned": len(plan.sample_ids)},
        "bytes": sum(path.stat().st_size for path in done),
        "skipped": skipped,
        "damaged": [{"part": path.name, **error.to_json()} for path, error in damaged.items()],
    }
    return record, list(damaged.values())


def _inspect_training(run: Path) -> CommandResult:
    with current_progress().task("checkpoints") as task:
        status = inspect_run(run, task.advance)
    state = "running" if status.is_running else "finished" if status.is_finished else "unfinished"
    newest = next((found for found in reversed(status.checkpoints) if not found.faults), None)
    values: dict[str, object] = {
        "run": run,
        "method": status.method,
        "state": state,
        "running": status.is_running,
        "finished": status.is_finished,
        "step": None if newest is None else newest.state["step"],
        "epoch": None if newest is None else newest.state["epoch"],
        "epochs": status.options.get("epochs"),
        "checkpoints": [
            {
                "name": found.folder.name,
                "step": found.state.get("step"),
                "epoch": found.state.get("epoch"),
                "bytes": found.num_bytes,
                "verifies": not found.faults,
                "faults": [error.to_json() for error in found.faults],
            }
            for found in status.checkpoints
        ],
        "last": status.last,
        "last_metrics": status.last_record,
        "faults": [error.to_json() for error in status.faults],
    }
    shown = {name: values[name] for name in ("method", "state", "step", "epoch", "epochs")}
    shown["last checkpoint"] = status.last
    tables = [Table(str(run), ["what", "found"], _list_record_rows(shown))]
    if status.checkpoints:
        rows: list[list[Cell]] = [
            [found.folder.name, found.state.get("epoch"), round(found.num_bytes / 1e6, 2), not found.faults]
            for found in status.checkpoints
        ]
        tables.append(Table("checkpoints", ["checkpoint", "epochs done", "MB", "intact"], rows))
    if status.last_record is not None:
        metrics: list[list[Cell]] = [
            [name, value]
            for name, value in status.last_record.items()
            if value is None or isinstance(value, str | int | float)
        ]
        tables.append(_first_rows("last line of metrics.jsonl", ["name", "value"], metrics, _SHOWN_METRICS))
    faults: list[LabelkitError] = list(status.faults)
    faults += [fault for found in status.checkpoints for fault in found.faults]
    if faults:
        tables.append(_fault_table(faults))
    return CommandResult(values, (), tuple(tables))


def _fault_table(faults: Sequence[LabelkitError]) -> Table:
    return Table("faults", ["where", "problem", "what to do"], [[f.where, f.problem, f.remedy] for f in faults])


def _first_rows(title: str, columns: list[str], rows: list[list[Cell]], shown: int) -> Table:
    if len(rows) > shown:
        title += f": the first {shown} of {len(rows)} (--json lists all)"
    return Table(title, columns, rows[:shown])

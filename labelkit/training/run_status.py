"""Status of a training run and integrity of its checkpoints; nothing is written."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labelkit.errors import CheckpointDamaged, CheckpointError, convert_os_error
from labelkit.files import NotRegularFileError, open_regular_file, parse_json, read_json, sha256_file
from labelkit.store.commit import is_locked
from labelkit.training.checkpoint import STATE, find_file_errors, read_last_pointer, read_state
from labelkit.training.run_dir import CONFIG, LOCK, METRICS, SPLIT, SUMMARY, read_run_config, read_split

_TAIL_BYTES = 1 << 16
_RESTORE = "Restore the file from a copy."


@dataclass
class CheckpointStatus:
    """State of one checkpoint, and the faults found in it."""

    folder: Path  # the folder of the checkpoint
    state: dict[str, Any]  # content of its ``state.json``; empty if it cannot be read
    faults: list[CheckpointError]  # all faults found; empty if the checkpoint is intact

    @property
    def num_bytes(self) -> int:
        """Return the total size in bytes of the files listed in the state."""
        return sum(recorded["size"] for recorded in self.state.get("files", {}).values())


@dataclass
class TrainingStatus:
    """Progress and checkpoints of a run, and the faults found in its folder."""

    folder: Path  # the run folder
    method: str | None = None  # name of the method; ``None`` if the options cannot be read
    options: dict[str, Any] = field(default_factory=dict)  # options of the run
    is_running: bool = False  # whether a process is training in the folder
    is_finished: bool = False  # whether the summary, which is written at the end, exists
    checkpoints: list[CheckpointStatus] = field(default_factory=list)  # all checkpoints, oldest first
    last: str | None = None  # name of the checkpoint in ``last.json``, if any
    last_record: dict[str, Any] | None = None  # last complete line of ``metrics.jsonl``
    metrics_bytes: int = 0  # length of that file
    faults: list[CheckpointError] = field(default_factory=list)  # faults outside the checkpoints


def inspect_checkpoint(folder: Path) -> CheckpointStatus:
    """Verify every file of a checkpoint, and return its state and faults."""
    try:
        state = read_state(folder)
    except CheckpointError as error:
        return CheckpointStatus(folder, {}, [error])
    return CheckpointStatus(folder, state, list(find_file_errors(folder, state)))


def inspect_run(run: Path, report: Callable[[int], None] = lambda count: None) -> TrainingStatus:
    """Inspect a run folder and verify its checkpoints; ``report(1)`` is called after each checkpoint.

    Raises:
        CheckpointError: it is not a run folder.
        ResourceError: it cannot be read.
    """
    status = TrainingStatus(run)
    try:
        status.method, status.options = read_run_config(run)
    except CheckpointError as error:
        if not (run / CONFIG).is_file():
            raise
        status.faults.append(error)
    try:
        status.is_running = is_locked(run / LOCK)
        status.is_finished = (run / SUMMARY).is_file()
        _check_json(run, status)
        _read_metrics(run / METRICS, status)
    except NotRegularFileError:
        status.faults.append(CheckpointDamaged(str(run / METRICS), "is not a regular file", _RESTORE))
    except OSError as error:
        raise convert_os_error(error, str(run)) from error
    add_checkpoints(run / "checkpoints", status, report)
    longest = max((found.state.get("metrics_bytes", 0) for found in status.checkpoints if not found.faults), default=0)
    if status.metrics_bytes < longest:
        problem = f"has {status.metrics_bytes} bytes, but had {longest} when the last checkpoint was written"
        status.faults.append(CheckpointDamaged(str(run / METRICS), problem, _RESTORE))
    return status


def add_checkpoints(folder: Path, status: TrainingStatus, report: Callable[[int], None] = lambda count: None) -> None:
    """Add the status of every checkpoint in a folder, and the content of ``last.json``, to ``status``."""
    for path in sorted(folder.glob("step-*")):
        if path.is_dir():
            found = inspect_checkpoint(path)
            # a run in progress may have removed it in the meantime
            if path.is_dir():
                status.checkpoints.append(found)
            report(1)
    present = {checkpoint.folder.name: checkpoint for checkpoint in status.checkpoints}
    place, pointer = folder / "last.json", read_last_pointer(folder)
    if pointer is None:
        if place.exists():
            status.faults.append(CheckpointDamaged(str(place), "does not name a checkpoint", _RESTORE))
        return
    status.last = name = pointer["checkpoint"]
    named = present.get(name)
    if named is None and not any(folder.glob(f".trash-{name}-*")):
        status.faults.append(CheckpointDamaged(str(place), f"names {name}, which does not exist", _RESTORE))
    elif named is not None and named.state and sha256_file(named.folder / STATE) != pointer["state_sha256"]:
        problem = f"does not match the checkpoint {name}: the digest of its state differs"
        status.faults.append(CheckpointDamaged(str(place), problem, _RESTORE))


def _check_json(run: Path, status: TrainingStatus) -> None:
    if (run / SPLIT).exists():
        try:
            read_split(run)
        except CheckpointDamaged as error:
            status.faults.append(error)
    if (run / SUMMARY).exists():
        try:
            read_json(run / SUMMARY)
        except (OSError, ValueError):
            status.faults.append(CheckpointDamaged(str(run / SUMMARY), "is not JSON", _RESTORE))


def _read_metrics(path: Path, status: TrainingStatus) -> None:
    """Read the last complete line; a killed run may leave an incomplete one, which is dropped when resuming."""
    if not path.exists():
        return
    with open_regular_file(path) as file:
        status.metrics_bytes = file.seek(0, 2)
        file.seek(max(0, status.metrics_bytes - _TAIL_BYTES))
        lines = file.read().split(b"\n")[:-1]
    if not lines:
        return
    try:
        record = parse_json(lines[-1])
    except ValueError:
        record = None
    if isinstance(record, dict):
        status.last_record = record
    else:
        status.faults.append(CheckpointDamaged(str(path), "the last line is not a JSON object", _RESTORE))

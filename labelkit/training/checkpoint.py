"""Checkpoints: safetensors and canonical JSON, committed atomically and verified before use.

    checkpoints/step-00012000/model.safetensors      parameters and buffers, under their names
                              training.safetensors   optimizer state by parameter name
                              rank-00003.safetensors generator states of one process
                              state.json             counters, digests of these files and of itself; written last
    checkpoints/last.json                            {"checkpoint": "step-00012000", "state_sha256": "..."}

A folder gets its final name only after every byte in it is synced, and ``last.json`` is updated only after that,
so the previous checkpoint stays valid if the process is killed at any moment.
"""

import errno
import hashlib
import math
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import Tensor, nn

from labelkit.errors import CheckpointDamaged, CheckpointError, CheckpointMismatch, convert_os_error
from labelkit.files import MAX_RECORD_BYTES, read_bytes, read_json_object, sha256_file
from labelkit.store.commit import canonical_json, commit_bytes, commit_folder, commit_json, fsync_folder

FORMAT = "labelkit.checkpoint"
FORMAT_VERSION = "1.0"
_STEP = re.compile(r"step-\d+")
_POINTER_KEYS = {"checkpoint": str, "state_sha256": str}
MODEL, TRAINING, STATE = "model.safetensors", "training.safetensors", "state.json"


def rank_file_name(rank: int) -> str:
    """Return the name of the checkpoint file that contains the state of one process."""
    return f"rank-{rank:05d}.safetensors"


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A checkpoint whose files have been verified."""

    folder: Path  # the folder of the checkpoint
    state: dict[str, Any]  # content of ``state.json``, with infinities restored
    warnings: tuple[str, ...] = ()  # newer checkpoints that were skipped, with reasons

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Read the tensors in one of the files, whose digest was verified when the checkpoint was opened."""
        try:
            return load_safetensors(read_bytes(self.folder / name))
        except (OSError, SafetensorError) as error:
            raise CheckpointDamaged(str(self.folder / name), f"cannot be read: {error}", "Restore the file.") from error


@dataclass
class CheckpointWriter:
    """Writes the checkpoints of a run; used by every process."""

    folder: Path  # ``checkpoints`` in the run folder
    rank: int = 0  # index of this process
    barrier: Callable[[], None] = lambda: None  # waits for all processes
    # step of the last checkpoint written before any sign of failure; never pruned, as later ones may be bad
    kept_step: int | None = None

    def save(
        self,
        step: int,
        *,
        model: Mapping[str, Tensor],
        training: Mapping[str, Tensor],
        per_rank: Mapping[str, Tensor],
        state: Mapping[str, Any],
        metadata: Mapping[str, str],
    ) -> Path:
        """Write a checkpoint, update ``last.json``, and delete old checkpoints.

        Raises:
            ResourceError: it cannot be written.
        """
        final = self.folder / f"step-{step:08d}"
        try:
            self._write(final, model, training, per_rank, {**state, "step": step}, metadata)
        except OSError as error:
            raise convert_os_error(error, str(final)) from error
        if self.rank == 0:
            pointer = {"checkpoint": final.name, "state_sha256": _sha256(read_bytes(final / STATE))}
            commit_json(self.folder / "last.json", pointer)
            self.prune()
        self.barrier()
        return final

    def _write(
        self,
        final: Path,
        model: Mapping[str, Tensor],
        training: Mapping[str, Tensor],
        per_rank: Mapping[str, Tensor],
        state: dict[str, Any],
        metadata: Mapping[str, str],
    ) -> None:
        temporary = self.folder / f".tmp-{state['step']}"
        try:
            if self.rank == 0:
                shutil.rmtree(temporary, ignore_errors=True)  # of a killed process
                temporary.mkdir(parents=True)
            self.barrier()
            commit_bytes(temporary / rank_file_name(self.rank), _serialize(per_rank, {}))
            if self.rank == 0:
                commit_bytes(temporary / MODEL, _serialize(model, metadata))
                commit_bytes(temporary / TRAINING, _serialize(training, {}))
            self.barrier()
            if self.rank == 0:
                files = {}
                for path in sorted(temporary.iterdir()):
                    data = read_bytes(path)
                    files[path.name] = {"sha256": _sha256(data), "size": len(data)}
                header = {"format": FORMAT, "format_version": FORMAT_VERSION, "files": files}
                content = _to_json({**state, **header})
                # includes a digest of its own content, since no other file verifies this one
                sealed = {**content, "sha256": _sha256(canonical_json(content).encode())}
                commit_bytes(temporary / STATE, canonical_json(sealed).encode())
                if final.exists():
                    # The same step is saved again, for example right after resuming. The old checkpoint stays in the
                    # trash until last.json is written: if this process dies first, load_checkpoint finds it there.
                    final.replace(_make_trash_path(final))
                commit_folder(temporary, final)
        except BaseException:
            if self.rank == 0 and temporary.exists():
                shutil.rmtree(temporary, ignore_errors=True)
            raise

    def prune(self) -> None:
        """Delete old checkpoints, and incomplete checkpoints left behind by a killed run."""
        last = read_last_pointer(self.folder)
        keep = set() if last is None else {last["checkpoint"]}
        meant = None if last is None else _find_checkpoint_folder(self.folder, last)
        steps = sorted(path.name for path in self.folder.glob("step-*") if path.name[5:].isdigit())
        # newer ones belong to a continuation that was abandoned by resuming from an older one
        keep.update([name for name in steps if last is None or name <= last["checkpoint"]][-2:])
        for name in steps:
            number = int(name.removeprefix("step-"))
            if name not in keep and number != self.kept_step:
                _remove(self.folder / name)
        for left_over in [*self.folder.glob(".tmp-*"), *self.folder.glob(".trash-*")]:
            if left_over == meant:
                continue
            if left_over.is_dir():
                shutil.rmtree(left_over, ignore_errors=True)
            else:
                left_over.unlink(missing_ok=True)


def read_last_pointer(folder: Path) -> dict[str, str] | None:
    """Return the content of ``last.json``, or ``None`` if the file is absent or damaged."""
    try:
        pointer = read_json_object(folder / "last.json", _POINTER_KEYS, MAX_RECORD_BYTES)
    except (OSError, ValueError):
        return None
    return pointer if _STEP.fullmatch(pointer["checkpoint"]) else None


def verify_checkpoint(folder: Path) -> dict[str, Any]:
    """Check the size and SHA-256 of every file in a checkpoint, and return its state.

    Raises:
        CheckpointDamaged: a file is missing or differs.
    """
    state = read_state(folder)
    faults = find_file_errors(folder, state)
    if faults:
        raise faults[0]
    return state


def read_state(folder: Path) -> dict[str, Any]:
    """Read and verify ``state.json`` of a checkpoint, with infinities restored.

    Raises:
        CheckpointDamaged: it is missing or corrupt.
        CheckpointError: its format is not supported.
    """
    try:
        state = read_json_object(folder / STATE, {"files": dict, "format_version": (str, int, float)})
        files = {name: (recorded["size"], recorded["sha256"]) for name, recorded in state["files"].items()}
        version = str(state["format_version"])
        sealed = state.pop("sha256")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointDamaged(str(folder / STATE), f"cannot be read: {error}", "Restore the file.") from error
    if sealed != _sha256(canonical_json(state).encode()):
        raise CheckpointDamaged(str(folder / STATE), "was changed or is corrupt", "Restore the file from a copy.")
    if state.get("format") != FORMAT or version.partition(".")[0] != FORMAT_VERSION.partition(".")[0]:
        raise CheckpointError(
            str(folder / STATE), f"format {version} is not supported by this version of labelkit", "Upgrade labelkit."
        )
    if not files:
        raise CheckpointDamaged(str(folder / STATE), "lists no files", "Restore the file from a copy.")
    restored = _from_json(state)
    assert isinstance(restored, dict)
    return restored


def find_file_errors(folder: Path, state: Mapping[str, Any]) -> list[CheckpointDamaged]:
    """Verify the size and SHA-256 of a checkpoint's files against its state, and return an error for each mismatch."""
    faults = []
    for name, recorded in state["files"].items():
        path = folder / Path(name).name
        try:
            if not path.is_file():
                raise FileNotFoundError(errno.ENOENT, "no such file")
            same = path.stat().st_size == recorded["size"] and sha256_file(path) == recorded["sha256"]
        except OSError as error:
            faults.append(CheckpointDamaged(str(path), f"cannot be read: {error.strerror}", "Restore the file."))
            continue
        if not same:
            faults.append(CheckpointDamaged(str(path), "was changed or is corrupt", "Restore the file from a copy."))
    return faults


def load_checkpoint(run: Path, show_message: Callable[[str], None] = lambda text: None) -> LoadedCheckpoint | None:
    """Verify and open the last checkpoint of a run, or the latest intact one if the last is damaged.

    ``run`` is a run folder, its ``checkpoints`` folder, or one checkpoint; ``show_message`` reports
    skipped checkpoints. Returns ``None`` if the run has no checkpoint yet.

    Raises:
        CheckpointDamaged: no checkpoint is intact, or the requested one is damaged.
    """
    if (run / STATE).is_file():
        return LoadedCheckpoint(run, verify_checkpoint(run))
    folder = run / "checkpoints" if (run / "checkpoints").is_dir() else run
    steps = sorted((path for path in folder.glob("step-*") if path.is_dir()), reverse=True)
    pointer = read_last_pointer(folder)
    warnings: list[str] = []
    announced = None if pointer is None else _find_checkpoint_folder(folder, pointer)
    if pointer is None or announced is None:
        if (folder / "last.json").exists():
            warnings.append(f"{folder / 'last.json'}: does not name a checkpoint in this folder")
    elif _is_whole(announced) and not _matches_pointer(announced, pointer):
        warnings.append(f"{folder / 'last.json'}: names {announced.name}, but was written for another checkpoint")
    else:
        # folders newer than last.json were committed but never recorded there, so they are tried last
        older = [path for path in steps if path.name < pointer["checkpoint"]]
        steps = [announced, *older, *(path for path in steps if path.name > pointer["checkpoint"])]
    if not steps:
        return None
    for candidate in steps:
        try:
            loaded = LoadedCheckpoint(candidate, verify_checkpoint(candidate), tuple(warnings))
        except CheckpointDamaged as error:
            warnings.append(f"{error}")
        else:
            if warnings:
                show_message(f"{'; '.join(warnings)}. {candidate.name} is used instead")
            return loaded
    problem = "no checkpoint is intact: " + "; ".join(warnings)
    raise CheckpointDamaged(str(folder), problem, "Restore the folder, or train again with --overwrite.")


def _find_checkpoint_folder(folder: Path, pointer: Mapping[str, str]) -> Path:
    named = folder / pointer["checkpoint"]
    # the process may have died while saving the same step again
    places = [named, *sorted(folder.glob(f".trash-{named.name}-*"))]
    meant = [place for place in places if _matches_pointer(place, pointer)]
    return next(iter([*meant, *(place for place in places if place.is_dir())]), named)


def _matches_pointer(checkpoint: Path, pointer: Mapping[str, str]) -> bool:
    """Return whether a pointer was written for the checkpoint in this folder."""
    try:
        return _sha256(read_bytes(checkpoint / STATE)) == pointer["state_sha256"]
    except OSError:
        return False


def _is_whole(checkpoint: Path) -> bool:
    try:
        verify_checkpoint(checkpoint)
    except CheckpointError:
        return False
    return True


def _serialize(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    # clones: safetensors refuses tensors that share memory
    copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return save_safetensors(copies, metadata=dict(metadata) or None)


def _make_trash_path(folder: Path) -> Path:
    return folder.with_name(f".trash-{folder.name}-{secrets.token_hex(4)}")


def _remove(folder: Path) -> None:
    trash = _make_trash_path(folder)
    try:
        folder.replace(trash)
        fsync_folder(folder.parent)
    except OSError as error:
        raise convert_os_error(error, str(folder)) from error
    shutil.rmtree(trash, ignore_errors=True)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _to_json(value: Any) -> Any:
    """Convert infinities and NaN to strings, since JSON cannot represent them."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, Mapping):
        return {str(key): _to_json(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_json(entry) for entry in value]
    return value


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"float"}:
            return float(value["float"])
        return {key: _from_json(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_from_json(entry) for entry in value]
    return value


def load_model_state(method: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Load parameters and buffers after checking that all of them are present and have the expected shapes.

    A method's ``retired_tensors`` names tensors of earlier versions that held no information; they are ignored.

    Raises:
        CheckpointMismatch: tensors differ; the message names the first few.
    """
    wanted = method.state_dict()
    retired: frozenset[str] = getattr(method, "retired_tensors", frozenset())
    tensors = {name: value for name, value in tensors.items() if name not in retired}
    faults = [f"{name} is missing" for name in wanted if name not in tensors]
    faults += [f"{name} is not in the network" for name in tensors if name not in wanted]
    faults += [
        f"{name} has shape {tuple(tensors[name].shape)}, expected {tuple(value.shape)}"
        for name, value in wanted.items()
        if name in tensors and tensors[name].shape != value.shape
    ]
    if faults:
        more = f" and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise CheckpointMismatch(
            where, "does not match this network: " + "; ".join(faults[:5]) + more, "Use the options of its training."
        )
    method.load_state_dict(tensors)

"""Run folder: the files of a training run, and the lock for writing them.

runs/flipclass-digits/config.yaml       resolved options; can be passed to `--config`
environment.json  versions, devices, threads
split.json        usable labels, by sample id
skipped.json      images that could not be read
metrics.jsonl     one line per logged step and per epoch
summary.json      written when the run is complete
checkpoints/      see checkpoint.py
.lock             held by the run that writes here
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import yaml

from labelkit.errors import (
    BusyError,
    CheckpointDamaged,
    CheckpointError,
    CheckpointMismatch,
    ConfigError,
    convert_os_error,
    output_exists_error,
)
from labelkit.files import check_keys, open_regular_file, read_bytes, read_json_object
from labelkit.formatting import join_first_few
from labelkit.store.commit import commit_bytes, commit_json, try_lock

CONFIG, SPLIT, METRICS, SUMMARY, LOCK = "config.yaml", "split.json", "metrics.jsonl", "summary.json", ".lock"
_COMMAND = "# labelkit train "
_OWN = re.compile(
    r"(config\.yaml|(environment|split|skipped|summary|kept)\.json|metrics\.jsonl|\.lock|discovered\.csv|neighbors\.h5)"
    r"|\.tmp-[^/]+|tensorboard(/events\.out\.tfevents\.[^/]+)?|checkpoints(/(last|best)\.json|/\.tmp-[^/]+)?"
    r"|checkpoints/(step-\d+|\.(tmp|trash)-[^/]+)(/((model|training|rank-\d+)\.safetensors|state\.json|\.tmp-[^/]+))?"
)
_MAX_CONFIG_BYTES = 1 << 20
_MAX_SAMPLES = 1 << 32


class RunDir:
    """A run folder, locked by this process while it is open.

    Args:
        path: the folder.
        writes: whether this process writes files (the main one of several).
    """

    def __init__(self, path: Path, *, writes: bool = True) -> None:
        self.path = path
        self.writes = writes
        self._lock: IO[bytes] | None = None
        self._metrics: IO[bytes] | None = None
        self.checkpoints = path / "checkpoints"
        #: whether a new run has begun, so that it can be resumed
        self.begun = False

    def open(self, *, resume: bool, overwrite: bool) -> None:
        """Create or reuse the run folder, and lock it; its contents do not change before ``begin``.

        Raises:
            OutputExistsError: the folder has contents and neither flag is set.
            ConfigError: ``--resume`` finds no run.
            BusyError: another process is writing here.
            ResourceError: the folder cannot be created.
        """
        try:
            if self.path.exists() and not self.path.is_dir():
                raise ConfigError(
                    str(self.path), "is a file, so no run folder can be created there", "Pass a different --out."
                )
            entries = {entry.name for entry in self.path.iterdir()} if self.path.is_dir() else set()
            # a process that died early leaves its lock and perhaps a temporary file
            present = any(name != LOCK and not name.startswith(".tmp-") for name in entries)
            if resume and not present:
                raise ConfigError(str(self.path), "contains no run to resume", "Remove --resume to start a new run.")
            if present and not (resume or overwrite):
                raise output_exists_error(self.path, instead="--resume to continue that run")
            if present and not _is_run(self.path):
                raise ConfigError(
                    str(self.path), "is not a run folder and will not be overwritten", "Pass a different --out."
                )
            if present and overwrite and (foreign := _find_foreign_files(self.path)):
                problem = f"contains files that are not from training: {join_first_few(foreign)}"
                raise ConfigError(str(self.path), problem, "Move these files, or pass a different --out.")
            if self.writes:
                self.path.mkdir(parents=True, exist_ok=True)
                self._take_lock()
        except OSError as error:
            raise convert_os_error(error, str(self.path)) from error

    def begin(self, method: str, options: Mapping[str, Any]) -> None:
        """Start a new run: remove the files of an overwritten run and write the options."""
        if self.writes:
            try:
                self._clear()
            except OSError as error:
                raise convert_os_error(error, str(self.path)) from error
            self.begun = True
            self.update_options(method, options)

    def update_options(self, method: str, options: Mapping[str, Any]) -> None:
        """Write the options of a resumed run, which may differ from the old ones, for example in ``epochs``."""
        if self.writes:
            text = yaml.safe_dump(dict(options), sort_keys=False, allow_unicode=True)
            self.write_text(CONFIG, f"{_COMMAND}{method} --config config.yaml\n{text}")

    def remove_if_untrained(self) -> None:
        """Unless training has begun, remove the files written by this process, and the folder if it is then empty."""
        if self._lock is None or (self.begun and (self.checkpoints.exists() or (self.path / METRICS).exists())):
            return
        if self.begun:
            self._clear()
        if {entry.name for entry in self.path.iterdir()} == {LOCK}:
            (self.path / LOCK).unlink()
            self.path.rmdir()

    def close(self) -> None:
        """Release the lock and close the log; files on disk are kept."""
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _take_lock(self) -> None:
        self._lock = (self.path / LOCK).open("ab")
        if not try_lock(self._lock.fileno()):
            self._lock.close()
            self._lock = None
            problem = "is in use by another training run"
            raise BusyError(str(self.path), problem, "Wait until it ends, or pass a different --out.")

    def _clear(self) -> None:
        """Remove all files of a run, the options last, so that a partly cleared folder is still recognized as a run."""
        options = self.path / CONFIG
        for folder, folders, files in os.walk(self.path, topdown=False):
            for name in [*folders, *files]:
                path = Path(folder, name)
                if path in (options, self.path / LOCK) or not _is_own(path, self.path):
                    continue
                if path.is_dir():
                    path.rmdir()
                else:
                    path.unlink()
        options.unlink(missing_ok=True)

    def write_text(self, name: str, text: str) -> None:
        """Write a small text file atomically into the run folder."""
        if self.writes:
            commit_bytes(self.path / name, text.encode())

    def write_json(self, name: str, value: Any) -> None:
        """Write a small JSON file atomically into the run folder."""
        if self.writes:
            commit_json(self.path / name, value)

    def log(self, record: Mapping[str, Any]) -> None:
        """Append a record to ``metrics.jsonl``."""
        if not self.writes:
            return
        try:
            if self._metrics is None:
                self._metrics = (self.path / METRICS).open("ab")
            self._metrics.write(json.dumps(_plain(record), separators=(",", ":")).encode() + b"\n")
            self._metrics.flush()
        except OSError as error:
            raise convert_os_error(error, str(self.path / METRICS)) from error

    def metrics_length(self) -> int:
        """Sync ``metrics.jsonl`` to disk and return its length in bytes."""
        if self._metrics is not None:
            self._metrics.flush()
            os.fsync(self._metrics.fileno())
        path = self.path / METRICS
        return path.stat().st_size if path.exists() else 0

    def truncate_metrics(self, length: int) -> None:
        """Truncate ``metrics.jsonl`` to the length that a checkpoint recorded."""
        path = self.path / METRICS
        if self.writes and path.exists() and path.stat().st_size > length:
            with path.open("rb+") as file:
                file.truncate(length)


def _is_own(path: Path, run: Path) -> bool:
    return not path.is_symlink() and _OWN.fullmatch(path.relative_to(run).as_posix()) is not None


def _find_foreign_files(run: Path) -> list[str]:
    """Return the sorted paths in a run folder that training does not write, including all links."""
    found = [Path(folder, name) for folder, folders, files in os.walk(run) for name in (*folders, *files)]
    return sorted(path.relative_to(run).as_posix() for path in found if not _is_own(path, run))


def is_run_file(path: Path) -> bool:
    """Return whether a file was written by a training run, so that other commands must not replace it."""
    return any(_is_own(path, run) and _is_run(run) for run in list(path.parents)[:3])


def _is_run(folder: Path) -> bool:
    # other folders may also have a config.yaml
    try:
        with open_regular_file(folder / CONFIG) as file:
            return file.readline().startswith(_COMMAND.encode())
    except (FileNotFoundError, NotADirectoryError):
        return False


def _plain(value: Any) -> Any:
    """Replace NaN and infinities, which JSON cannot represent, by null."""
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    return value


def read_run_config(run: Path) -> tuple[str, dict[str, Any]]:
    """Read the method and the options of a run folder.

    Raises:
        CheckpointError: it is not a run folder.
    """
    path = run / CONFIG
    if not path.is_file():
        problem = f"is not a run folder: it has no {CONFIG}" if run.exists() else "does not exist"
        raise CheckpointError(str(run), problem, "Pass the --out folder of a `labelkit train` run.")
    try:
        text = read_bytes(path, _MAX_CONFIG_BYTES).decode()
        # the first line is the command: "# labelkit train METHOD --config config.yaml"
        method = text.partition("\n")[0].split()[3]
        return method, dict(yaml.safe_load(text))
    except (OSError, yaml.YAMLError, IndexError, ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(str(path), f"cannot be read: {error}", "Restore the file.") from error


# key in split.json: digest of the image files of all training images
IMAGES_SHA256 = "images_sha256"
_SPLIT_KEYS = {"dataset": str, "dataset_digest": str, "class_names": list, "split": dict, "info": dict}
_SPLIT_LISTS = ("labeled", "old_classes")
_INFO_KEYS = {"num_samples": int, "num_old_classes": int, "class_names": list, "class_order": list}


def read_split(run: Path) -> dict[str, Any]:
    """Read the ``split.json`` of a run folder: its training images and usable labels.

    Raises:
        CheckpointDamaged: it is missing, or differs from what training writes.
    """
    path = run / SPLIT
    try:
        found = read_json_object(path, _SPLIT_KEYS)
        check_keys(found["split"], dict.fromkeys(_SPLIT_LISTS, list))
        check_keys(found["info"], _INFO_KEYS)
        if not 0 <= len(found["split"]["labeled"]) <= found["info"]["num_samples"] <= _MAX_SAMPLES:
            raise ValueError("num_samples is less than the number of labeled images, or too large")
        if not set(found["split"]["old_classes"]) <= set(range(len(found["class_names"]))):
            raise ValueError("old_classes contains unknown classes")
        labels = found.get("labels", found["split"]["labeled"])  # an earlier version stored no labels
        if len(labels) != len(found["split"]["labeled"]) or not set(found.get("labels", ())) <= set(
            range(len(found["class_names"]))
        ):
            raise ValueError("labels do not match the labeled images")
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointDamaged(str(path), f"cannot be read: {error}", "Restore the file.") from error
    return found


def check_same_options(
    run: Path,
    method: str,
    options: Mapping[str, Any],
    *,
    allowed: frozenset[str],
    before: Mapping[str, object] | None = None,
) -> str | None:
    """Check that a run is resumed with the options it was started with, except those ``allowed`` to differ.

    ``before`` contains equivalent values for options that runs of earlier versions lack.

    Returns:
        A message if the run is extended, otherwise ``None``.

    Raises:
        CheckpointMismatch: options differ; the message names all of them.
    """
    saved_method, written = read_run_config(run)
    saved = {**(before or {}), **written}
    if saved_method != method:
        raise CheckpointMismatch(
            str(run), f"is a run of {saved_method}, not of {method}", f"Use `labelkit train {saved_method} --resume`."
        )
    differing = []
    for key in sorted(saved.keys() | options.keys()):
        if key in allowed or saved.get(key) == options.get(key):
            continue
        if key == "epochs" and options.get(key, 0) > saved.get(key, 0):
            continue
        if key == "label_split" and "auto" in (saved.get(key), options.get(key)):
            continue  # its meaning depends on version and data; the resulting split is compared instead
        differing.append(f"{key} is {options.get(key)!r}, was {saved.get(key)!r}")
    if differing:
        # the run's file lacks newer options
        younger = [f"--{key.replace('_', '-')} {value}" for key, value in (before or {}).items() if key not in written]
        remedy = f"To use the options of the run, pass `{' '.join([f'--config {run / CONFIG}', *younger])}`."
        raise CheckpointMismatch(str(run / CONFIG), "options differ from the run: " + "; ".join(differing), remedy)
    if saved.get("epochs") == options.get("epochs"):
        return None
    return (
        f"{run} is extended from {saved['epochs']} to {options['epochs']} epochs: schedules are stretched from here "
        f"on, so results differ from those of a run started with {options['epochs']} epochs"
    )

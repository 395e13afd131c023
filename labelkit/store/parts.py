"""Run folders, in which a plan is executed part by part and can be resumed after the process was killed.

``RunFolder`` starts or resumes a run, commits and verifies its parts, and protects the step that combines them.
There are three kinds: parts of a store (``labelkit.store.writing``), patch files (``labelkit.store.patch_writing``) and
cached views (``labelkit.store.kept_views``).

A part is an HDF5 file followed by its SHA-256, so that damage is detected before HDF5 reads it. The same plan and
values produce the same bytes. The run folder is described in ``docs/inside/file_format.txt``.
"""

import contextlib
import hashlib
import io
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from labelkit.errors import BusyError, Damaged, Mismatch, ResourceError, StoreError
from labelkit.files import NotRegularFileError, read_bytes, read_json
from labelkit.store import schema
from labelkit.store.commit import commit_bytes, commit_json, fsync_folder, json_digest, translate_os_errors, try_lock
from labelkit.store.embeddings import find_differing_keys
from labelkit.store.reader import RESTORE, CheckedFile
from labelkit.store.writer import FileContents

PartContent = TypeVar("PartContent")
"""Content of a part, as read from disk."""


class RunFolder(ABC, Generic[PartContent]):
    """Run folder in which the parts of a plan are written and verified.

    Args:
        folder: the run folder.
        plan: content of ``plan.json``.
        names: file name of each part.
        overwrite: replace existing output, and discard an unfinished run of another plan.

    Attributes:
        folder: the run folder.
        digest: digest of the plan.
        already_done: whether the output of the same plan already exists.
        warnings: messages for the user, such as damaged parts that will be recreated.
    """

    def __init__(self, folder: Path, plan: Mapping[str, Any], names: Sequence[str], *, overwrite: bool = False) -> None:
        self.folder = folder
        self.digest = json_digest(plan)
        self.already_done = False
        self.warnings: list[str] = []
        self._stored_plan = dict(plan)
        self._names = names
        self._overwrite = overwrite

    @abstractmethod
    def _read(self, number: int, file: CheckedFile) -> PartContent:
        """Check and return the content of a part."""

    @abstractmethod
    def _check_space(self) -> None:
        """Raise an error if the run cannot succeed, before anything is written."""

    def _opened(self, path: Path) -> CheckedFile:
        return open_verified_part(path)

    def _is_finished(self) -> bool:
        return False

    def _published_plan(self) -> object:
        """Return the plan digest of the existing output, or ``None``."""
        return None

    def begin(self, files: Mapping[str, bytes] | None = None) -> None:
        """Start or resume the run. If the output is already complete, remove the rest of the run folder.

        ``files`` are additional files of the run folder, by name, which are committed before the plan. Raises
        ``OutputExistsError`` if other output exists, ``Mismatch`` if an unfinished run has another plan (naming the
        keys), ``BusyError`` if another process is publishing.
        """
        while True:
            self.already_done = self._is_finished()
            if self.already_done:
                self._remove_leftover()
                return
            self._check_space()
            with translate_os_errors(self.folder):
                (self.folder / "parts").mkdir(parents=True, exist_ok=True)
            with hold_lock(self.folder) as still_there:
                if still_there:
                    self._commit_plan(files or {})
                    return
            # Another process published and removed the run folder while we were waiting for the lock.

    def _remove_leftover(self) -> None:
        if self.folder.exists() and read_plan(self.folder) in (None, self._stored_plan):
            self._clear()

    def _commit_plan(self, files: Mapping[str, bytes]) -> None:
        loaded = read_plan(self.folder)
        if loaded is not None and loaded != self._stored_plan and self._overwrite:
            with translate_os_errors(self.folder):
                shutil.rmtree(self.folder / "parts")
                (self.folder / "plan.json").unlink()
                (self.folder / "parts").mkdir()
            loaded = None
        if loaded not in (None, self._stored_plan):
            keys = ", ".join(find_differing_keys(loaded or {}, self._stored_plan))
            remedy = "Repeat the first command to resume that run, or pass --overwrite to discard it and start over."
            raise Mismatch(str(self.folder), f"contains an unfinished run with other options: {keys} differ", remedy)
        for name, data in files.items():
            path = self.folder / name
            with translate_os_errors(path):
                current = read_bytes(path) if path.exists() else None
            if current != data:
                commit_bytes(path, data)
        if loaded is None:
            commit_json(self.folder / "plan.json", self._stored_plan)

    def part_path(self, number: int) -> Path:
        """Return the path of a part's file."""
        return self.folder / "parts" / self._names[number]

    def _commit(self, number: int, datasets: Mapping[str, NDArray[Any]]) -> None:
        contents = FileContents.create(schema.FORMAT_PART, datasets, plan_digest=self.digest, part=number)
        data = contents.sealed(1 << 62).to_bytes()
        commit_bytes(self.part_path(number), [data, hashlib.sha256(data).digest()])

    def pending_parts(self) -> list[int]:
        """Return the numbers of the parts that are not yet written, in order.

        Existing parts are verified; a damaged part is renamed to ``.bad``, reported in ``warnings``, and included.
        """
        pending = []
        for number in () if self.already_done else range(len(self._names)):
            path = self.part_path(number)
            with translate_os_errors(path):
                try:
                    if path.exists():
                        self.load_part(number)
                        continue
                except StoreError as error:
                    path.replace(path.with_name(path.name + ".bad"))
                    self.warnings.append(f"{error.where}: {error.problem}; renamed to {path.name}.bad and recreated")
            pending.append(number)
        return pending

    def load_part(self, number: int) -> PartContent:
        """Read and verify a part; ``StoreError`` if it is damaged or belongs to another plan."""
        try:
            with translate_os_errors(self.part_path(number)), self._opened(self.part_path(number)) as file:
                root = file.attributes[""]
                if root.get("plan_digest") != self.digest or root.get("part", number) != number:
                    raise Mismatch(file.where, "belongs to another plan", RESTORE)
                return self._read(number, file)
        except StoreError as error:
            remedy = "Run the same command again to recreate missing parts."
            raise type(error)(error.where, error.problem, remedy) from error

    @contextlib.contextmanager
    def _publishing(self) -> Iterator[bool]:
        """Lock the run folder while publishing, and yield whether there is anything to do; all parts must exist."""
        if self.already_done or (not self.folder.exists() and self._published_plan() == self.digest):
            yield False
            return
        with hold_lock(self.folder) as still_there:
            if (not self._overwrite or not still_there) and self._published_plan() == self.digest:
                self._remove_leftover()
                yield False
                return
            missing = [number for number in range(len(self._names)) if not self.part_path(number).exists()]
            if missing:
                problem = f"{len(missing)} of {len(self._names)} parts are missing, first: {missing[0]}"
                raise StoreError(str(self.folder), problem, "Run the same command again to create them.")
            yield True

    def _clear(self) -> None:
        with translate_os_errors(self.folder):
            shutil.rmtree(self.folder)
        fsync_folder(self.folder.parent)


def part_names(count: int) -> list[str]:
    """Return the file names of the parts, in order."""
    return [f"{part:06d}.h5" for part in range(count)]


def open_verified_part(path: Path) -> CheckedFile:
    """Open a part of a run, and verify its digest."""
    raw = read_bytes(path)
    data, digest = raw[: -schema.PART_DIGEST_BYTES], raw[-schema.PART_DIGEST_BYTES :]
    if hashlib.sha256(data).digest() != digest:
        raise Damaged(str(path), "digest differs: the file was changed, or the disk is failing", RESTORE)
    return CheckedFile(io.BytesIO(data), str(path), schema.FORMAT_PART)


def cast_finite(
    values: NDArray[Any], dtype: np.dtype[Any], where: Callable[[int], str], name: str, option: str
) -> NDArray[Any]:
    """Cast rows (m, d) to the floating-point dtype in which they are stored, and check that all values are finite.

    For messages, ``where`` returns the location of a row, ``name`` describes the values, and ``option`` is the option
    that selects the dtype.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        stored = values.astype(dtype)
    finite = np.isfinite(stored).all(axis=1)
    if not finite.all():
        row = int(np.argmin(finite))
        overflow = bool(np.isfinite(values[row]).all())
        problem = f"{name} is too large for {dtype}" if overflow else f"{name} is not finite"
        remedy = f"Pass {option} float32." if overflow else "Check the network and its weights."
        raise StoreError(where(row), problem, remedy)
    return stored


LOCK_SECONDS = 2.0


def read_plan(folder: Path) -> dict[str, Any] | None:
    """Read ``plan.json`` of a run folder, or return ``None`` if there is none."""
    path = folder / "plan.json"
    with translate_os_errors(path):
        try:
            loaded = read_json(path)
        except FileNotFoundError:
            return None
        except (NotRegularFileError, ValueError):
            loaded = None
    if not isinstance(loaded, dict):
        problem = "is not a plan: the file was changed, or the disk is failing"
        raise Damaged(str(path), problem, "Delete the run folder.")
    return loaded


def check_disk_space(folder: Path, needed: int, out: Path, description: str) -> None:
    """Check that there is disk space for ``needed`` bytes of parts and output, minus those of existing parts."""
    with translate_os_errors(folder):
        free = shutil.disk_usage(next(place for place in (folder, *folder.resolve().parents) if place.exists())).free
        there = sum(path.stat().st_size for path in (folder / "parts").glob("*.h5"))
    needed -= there
    if free < needed:
        problem = f"only {free / 1e6:.1f} MB are free, but this run needs {needed / 1e6:.1f} MB ({description})"
        raise ResourceError(str(out.parent), problem, "Free some space or pass a different --out.")


@contextlib.contextmanager
def hold_lock(folder: Path) -> Iterator[bool]:
    """Hold the lock of a run folder; the system releases it when the process ends, even if it is killed.

    Yields whether the folder still exists, since the previous holder of the lock may have removed it. ``BusyError`` if
    another process holds the lock for more than a moment.
    """
    path, deadline = folder / "lock", time.monotonic() + LOCK_SECONDS
    with translate_os_errors(folder):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        with translate_os_errors(folder):
            while not try_lock(descriptor):
                if time.monotonic() > deadline:
                    problem = "another process is working on this output"
                    raise BusyError(str(folder), problem, "Wait until it finishes, or choose another output.")
                time.sleep(0.02)
        yield path.exists() and os.path.samestat(os.fstat(descriptor), path.stat())
    finally:
        os.close(descriptor)

"""Stores and other files at URLs (``s3://bucket/store.h5``): a command works on a copy in the cache folder.

Before the command, files that changed at the URL are fetched, with the store's shards, results and patches. After it,
new and changed files are uploaded, the store itself last, with those that a failed command left. Files that others have
changed are not overwritten; only a change between the check and the upload of a file is not seen.
"""

import filecmp
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from labelkit.cache import cache_folder
from labelkit.data.remote import open_file_system, translate_errors
from labelkit.errors import BusyError, ConfigError, LabelkitError, Mismatch, NotAStore, ResourceError
from labelkit.files import read_record
from labelkit.formatting import addresses_of_copies, to_one_line
from labelkit.options.base import BaseConfig, command_line_name, read_field_extra
from labelkit.progress import current_progress
from labelkit.store.commit import commit_file, commit_json, temporary_name, translate_os_errors
from labelkit.store.parts import hold_lock

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.+)")  # a Path has one slash where the URL has two
# The first of these properties that a file system has identifies the content of a file; otherwise, all its properties.
_VERSION_KEYS = ("ETag", "etag", "generation", "blob_id", "mtime", "last_modified", "created")
_RECORD = "versions.json"


@contextmanager
def mirror_urls(config: BaseConfig) -> Iterator[tuple[BaseConfig, Callable[[], LabelkitError | None]]]:
    """Replace URLs in path options with local copies; yield the options and a function that uploads changed files.

    The function returns the error if this fails, so that the result of the command can still be shown.

    Raises:
        ConfigError: a URL is not that of a file, or other machines or processes would have to see the copy.
        DatasetError, NotAStore: a URL cannot be used, or an input does not exist.
        Mismatch: a file has changed at its URL, and its copy has changes that were not uploaded.
        BusyError: another command is using the same URL.
    """
    mirrors: dict[object, _Mirror] = {}
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        for path in value if isinstance(value, tuple) else (value,):
            if isinstance(path, Path) and (found := _ADDRESS.fullmatch(path.as_posix())):
                root = "/" if found[1] in ("file", "local") else ""
                option, address = command_line_name(name, field), f"{found[1]}://{root}{found[2]}"
                if not path.suffix or read_field_extra(field, "makes") == "folder":
                    remedy = "Pass a file, such as s3://bucket/store.h5, or a folder on this machine."
                    raise ConfigError(option, f"{address} is not the URL of a file", remedy)
                if getattr(config, "ray_address", None) or int(os.environ.get("WORLD_SIZE") or "1") > 1:
                    problem = f"{address} is copied to this machine, but the command also runs in other processes"
                    raise ConfigError(option, problem, "Copy the file to a folder that all nodes see, and pass it.")
                mirrors.setdefault(path, _Mirror(address, read_field_extra(field, "makes") is not None))

    def local(value: object) -> object:
        if isinstance(value, tuple):
            return tuple(map(local, value))
        return mirrors[value].path if isinstance(value, Path) and value in mirrors else value

    with ExitStack() as stack:
        for mirror in mirrors.values():
            with translate_os_errors(mirror.copies):
                mirror.copies.mkdir(parents=True, exist_ok=True)
            try:
                stack.enter_context(hold_lock(mirror.folder))
            except BusyError as error:
                problem = "is used by another command on this machine"
                raise BusyError(mirror.address, problem, "Wait until it finishes.") from error
            mirror.fetch()
        values = {name: getattr(config, name) for name in type(config).model_fields if mirrors}
        update = {name: new for name, value in values.items() if (new := local(value)) != value}
        yield config.model_copy(update=update), lambda: next(filter(None, [m.upload() for m in mirrors.values()]), None)


class _Mirror:
    """Local copy of a file at a URL and of the folders beside it; an output need not exist."""

    def __init__(self, address: str, is_output: bool) -> None:
        with translate_errors(address):
            self.system, path = open_file_system(address)
        self.address, self.is_output = address, is_output
        self.root, _, self.main = path.rpartition("/")
        self.folder = cache_folder() / "remote" / sha256(address.encode()).hexdigest()[:16]
        self.copies = self.folder / "files"
        self.path = self.copies / self.main

    def fetch(self) -> None:
        """Update the local copies to match the files at the URL, keeping changes that are not yet uploaded."""
        try:  # for each file, its version at the URL and the state of its copy when they were last equal
            self.record: dict[str, Any] = read_record(self.folder, _RECORD, {}) or {}
        except ValueError as error:
            raise ResourceError(self.address, str(error), f"Move {self.folder} to another place.") from error
        with translate_errors(self.address):
            there = self._find(*self._names())
            if self.is_output and self.main not in there:  # fail before the work
                probe = f"{self.root}/{temporary_name()}"
                self.system.pipe_file(probe, b"labelkit")
                self.system.rm_file(probe)
            pending = self._changed()  # left by an upload that failed
            self._check_unchanged(there, pending)
            for name in sorted({*there, *self._list()} - pending):
                if there.get(name) != (self._version(name) if (self.copies / name).is_file() else None):
                    self._fetch(name, there.get(name))
        if not self.is_output and not self.path.exists():
            raise NotAStore(self.address, "does not exist", "Check the URL.")
        self.before = self._list()
        for text in (str(self.copies), json.dumps(str(self.copies))[1:-1]):
            addresses_of_copies[text] = self.address.rpartition("/")[0]

    def _fetch(self, name: str, version: str | None) -> None:
        """Fetch a file, or delete its copy. If this is killed at any point, the file is fetched again."""
        temporary, path = self.folder / "download", self.copies / name
        if version is not None:
            current_progress().message(f"fetching {self.address.removesuffix(self.main)}{name}")
            self.system.get_file(f"{self.root}/{name}", str(temporary))
        path.unlink(missing_ok=True)
        self._save(name, version, temporary)
        if version is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.replace(path)

    def upload(self) -> LabelkitError | None:
        """Upload files that have changed since ``fetch``, unless also changed at the URL; return the error, if any."""
        try:
            for name in self.before - self._list():  # recorded, so that a failed upload does not restore them
                self._save(name, self._version(name), self.copies / name)
            if self._changed():
                self._check_unchanged(self._find(*self._names()), self._changed())
            changed = {name: (self.copies / name).exists() for name in self._changed()}
            for name in sorted(changed, key=lambda name: (not changed[name], name == self.main, name)):
                if not changed[name]:
                    self.system.rm_file(f"{self.root}/{name}")
                    self._save(name, None, self.copies / name)
                    continue
                current_progress().message(f"uploading {self.address.removesuffix(self.main)}{name}")
                if "/" in name:
                    self.system.makedirs(f"{self.root}/{name}".rpartition("/")[0], exist_ok=True)
                if self.address.startswith(("file:", "local:")):  # put_file is not atomic there
                    beside = Path(self.root, temporary_name())
                    with (self.copies / name).open("rb") as copy:
                        commit_file(f"{self.root}/{name}", partial(shutil.copyfileobj, copy), temporary=beside)
                else:
                    self.system.put_file(str(self.copies / name), f"{self.root}/{name}")
                self._save(name, self._find(name)[name], self.copies / name)
        except Exception as error:  # errors of the backends have no common base class
            addresses_of_copies.clear()  # messages name the copies
            problem = f"cannot be uploaded: {to_one_line(error)}; the complete output is in {self.path}"
            remedy = f"Nothing must be computed again: `labelkit status --index {self.address}` uploads it."
            if self.path.suffix != ".h5":
                remedy = "Upload this file yourself, or repeat the command with --overwrite."
            return error if isinstance(error, Mismatch) else ResourceError(self.address, problem, remedy)
        return None

    def _find(self, *names: str) -> dict[str, str]:
        """Return the versions of the given files, and of the files in the given folders, that exist at the URL."""
        self.system.invalidate_cache()
        found = [entry for name in names for entry in self.system.find(f"{self.root}/{name}", detail=True).items()]
        return {
            path.removeprefix(f"{self.root}/"): str(next(filter(None, map(entry.get, _VERSION_KEYS)), entry))
            for path, entry in found
            if entry["type"] == "file" and path.startswith(f"{self.root}/") and ".." not in path.split("/")
        }

    def _names(self) -> set[str]:
        names = {self.main + end for end in ("", ".shards", ".results", ".patches")}
        if self.main.endswith(".h5"):  # tables that commands write beside a store
            table = re.compile(rf"{re.escape(self.path.stem)}(\.[^.]+\.csv|-matches\.h5)")
            files = (path.rpartition("/")[2] for path in self.system.find(self.root, maxdepth=1))
            names |= set(filter(table.fullmatch, files))
        return names | {name for name in self._list() if "/" not in name}

    def _version(self, name: str) -> Any:
        return self.record.get(name, (None, None))[0]

    def _changed(self) -> set[str]:
        """Return the names of the copies that differ from the files at the URL as last seen, or were deleted."""
        names = self._list()
        deleted = {name for name, (_, state) in self.record.items() if state is None and name not in names}
        return deleted | {name for name in names if _state(self.copies / name) != self.record.get(name, (0, 0))[1]}

    def _check_unchanged(self, there: dict[str, str], changed: set[str]) -> None:
        """Check that the main file and those whose copies have changed are still those at the URL."""
        for name in sorted({*changed, self.main} if changed else ()):
            if there.get(name) != self._version(name) and not self._is_equal(name, there.get(name)):
                where = f"{self.address.removesuffix(self.main)}{name}"
                problem = f"was changed elsewhere, and {self.copies} has changes that are not uploaded, such as {name}"
                remedy = f"Move {self.folder} to another place to keep these changes, and run the command again."
                raise Mismatch(where, problem, remedy)

    def _is_equal(self, name: str, version: str | None) -> bool:
        """Return whether a file at the URL and its copy are equal or do not exist, as after the kill of an upload."""
        temporary, path = self.folder / "download", self.copies / name
        if version is not None and path.is_file():
            self.system.get_file(f"{self.root}/{name}", str(temporary))
            if not filecmp.cmp(temporary, path, shallow=False):
                return False
        elif version is not None or path.is_file():
            return False
        self._save(name, version, path)
        return True

    def _list(self) -> set[str]:
        names = (file.relative_to(self.copies) for file in self.copies.rglob("*") if file.is_file())
        return {
            name.as_posix()
            for name in names
            if name.as_posix() == self.main or not any(part.endswith(".run") or part[0] == "." for part in name.parts)
        }

    def _save(self, name: str, version: str | None, path: Path) -> None:
        self.record.pop(name, None)
        self.record |= {name: [version, _state(path)]} if version is not None else {}
        commit_json(self.folder / _RECORD, self.record)


def _state(path: Path) -> list[int] | None:
    return [path.stat().st_size, path.stat().st_mtime_ns] if path.is_file() else None

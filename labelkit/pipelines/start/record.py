"""Record of the work of ``start`` in its output folder, read before each step and written after it.

A step is finished if its command and the digests of its inputs match the record, and its output files exist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from labelkit.commands.find.label_errors import COLUMNS
from labelkit.data.path_rule import escape_path
from labelkit.errors import StoreError
from labelkit.files import read_json_object
from labelkit.progress import current_progress
from labelkit.store.commit import commit_bytes, commit_json, json_digest
from labelkit.store.csv_table import csv_bytes
from labelkit.store.results import list_result_files

RECORD = "start.json"
#: names of steps that several modules use
BROWSER_STEP, CHECK_STEP, NOVEL_STEP = "labels of the browser", "labels to check", "novel photos"


class StartRecord(BaseModel):
    """Contents of ``start.json``, which records the rounds and finished steps of ``start`` in one folder.

    Attributes:
        path: path of the file.
        rounds: for each round, its ``inputs`` (digest of photos, labels, options), ``photos`` (digest of the listing),
            ``backbone``, ``new_classes``, ``store``, the names of its results, ``groups`` and ``answer``, and
            ``suggestions``, the number of new classes estimated from the labels of suggested photos.
        suggested: paths of the photos suggested so far, the latest last.
        superseded_labels: by path, labels that a table of the user may still contain although the photo has moved or
            the label was corrected; the key in the file is ``left``.
        tables: by name, SHA-256 of each table as it was written.
        confirmed: by path and by SHA-256 in hex, labels that were corrected in ``labels.csv`` or listed in an edited
            ``check.csv``.
        call: options of the last run except labels and output, and ``photos_at``, the absolute path of the photos.
        steps: finished steps by name: ``command``, ``inputs`` (digest), ``files``, and the reported ``values``.
    """

    path: Path = Field(exclude=True)
    version: Literal[1] = 1
    rounds: list[dict[str, Any]] = []
    suggested: list[str] = []
    steps: dict[str, dict[str, Any]] = {}
    superseded_labels: dict[str, list[str]] = Field({}, alias="left")
    tables: dict[str, str] = {}
    confirmed: dict[str, str] = {}
    call: dict[str, Any] = {}

    @classmethod
    def read(cls, folder: Path) -> StartRecord:
        """Read ``start.json`` from a folder; return an empty record if the file does not exist.

        Raises:
            StoreError: the file is damaged, or was written by a later version.
        """
        path = folder / RECORD
        try:
            data = read_json_object(path, {"version": int, "rounds": list, "steps": dict})
            return cls(**{**data, "path": path})
        except FileNotFoundError:
            return cls(path=path)
        except ValidationError as error:
            problem = "was not written by this version of labelkit"
            raise StoreError(str(path), problem, "Pass a different --out.") from error
        except (OSError, ValueError) as error:
            problem = f"cannot be read: {error}"
            raise StoreError(str(path), problem, "Restore the file, or pass a different --out.") from error

    def read_finished_values(self, name: str, command: str, inputs: Mapping[str, object]) -> dict[str, Any] | None:
        """Read the recorded values of a step that finished with this command and inputs; ``None`` if it must run."""
        step = self.steps.get(name)
        if step is None or step["command"] != command or step["inputs"] != json_digest(inputs):
            return None
        if not all((self.path.parent / file).exists() for file in step["files"]):
            return None
        return dict(step["values"])

    def record_step(
        self, name: str, command: str, inputs: Mapping[str, object], files: Sequence[Path], values: Mapping[str, Any]
    ) -> None:
        """Record a finished step (its command line, inputs, outputs and reported values), and save the record."""
        made = [file.relative_to(self.path.parent).as_posix() for file in files]
        self.steps[name] = {"command": command, "inputs": json_digest(inputs), "files": made, "values": dict(values)}
        self.write()

    def record_suggested_photos(self, values: Mapping[str, Any]) -> None:
        """Add photos suggested by ``suggest`` to the end of ``suggested``, or move them there."""
        new = [escape_path(image["path"]) for image in values.get("images", [])]
        self.suggested = [*(path for path in self.suggested if path not in set(new)), *new]

    def update_confirmed_labels(self, labels: Mapping[str, str], files: Mapping[str, str]) -> dict[str, str]:
        """Record the current paths and file digests of confirmed labels, and return these labels by path.

        ``files`` contains the SHA-256 of each of these photos, in hex; empty if the photo cannot be read.
        """
        found = {}
        for path, text in labels.items():
            if text in (self.confirmed.get(path), self.confirmed.get(files[path])):
                found[path] = text
                self.confirmed |= dict.fromkeys(filter(None, (path, files[path])), text)
        return found

    def write(self) -> None:
        """Write the record of finished steps to ``start.json``."""
        commit_json(self.path, self.model_dump(by_alias=True))


def remove_confirmed_labels(table: Path, values: dict[str, Any], confirmed: Mapping[str, str]) -> None:
    """Remove labels that the user has confirmed (by path) from ``check.csv`` and from the reported values."""
    kept = [one for one in values["doubtful"] if confirmed.get(one["path"]) != one["label"]]
    if len(kept) < len(values["doubtful"]):
        lines = ([f"{one[name]:.4f}" if name == "doubt" else one[name] for name in COLUMNS] for one in kept)
        commit_bytes(table, csv_bytes(COLUMNS, lines))
        left = len(values["doubtful"]) - len(kept)
        current_progress().message(
            f"{left} labels not listed for checking, because you corrected them in labels.csv or kept them in check.csv"
        )
        values |= {"doubtful": kept, "doubtful_labels": len(kept)}


def find_last_finished_round(rounds: Sequence[dict[str, Any]], folder: Path, *results: str) -> dict[str, Any] | None:
    """Find the last round of ``start`` whose result exists; ``None`` if there is none.

    ``results`` is the kind of result: ``groups``, or ``answer`` and ``groups``, of which the round's first is required.
    """
    entry: dict[str, Any]
    for entry in reversed(rounds):
        store = folder / str(entry["store"])
        name = next(entry[result] for result in results if entry[result])
        if store.is_file() and name in list_result_files(store):
            return entry
    return None

"""How far an unfinished store or set of patches is; nothing is written.

The run folders are described in ``labelkit.store.schema``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from labelkit.errors import Damaged, Mismatch, ResourceError, StoreError, resource_error
from labelkit.files import read_bytes
from labelkit.store import schema
from labelkit.store.commit import is_locked
from labelkit.store.digests import RESTORE
from labelkit.store.parts import Parts
from labelkit.store.plans import (
    embedding_run_folder,
    patch_row_bytes,
    patches_run_folder,
    piece_ranges,
)
from labelkit.store.reader import CheckedFile
from labelkit.store.run_folder import count_workers, read_plan, translated
from labelkit.store.schema import name_text

_FRESH = "Delete the run folder, or repeat the command with --overwrite."
_RECENT_PARTS = 50
_PAUSE_SECONDS, _PAUSE_RATIO = 60, 100
_MOST_PARTS = 10_000_000


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

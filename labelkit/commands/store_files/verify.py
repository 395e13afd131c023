"""Check every block of what labelkit wrote, and the images of a store on request."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labelkit.commands.common.results import Cell, Table
from labelkit.commands.store_files.options import VerifyConfig
from labelkit.errors import ConfigError, DatasetError, InputError, LabelkitError, NotAStore, StoreError
from labelkit.progress import current_progress
from labelkit.store.array_files import read_matches
from labelkit.store.embeddings import open_store
from labelkit.store.patches import SET_NAME
from labelkit.store.run_status import RunStatus, embedding_status, patches_status
from labelkit.store.verification import (
    Verified,
    VerifiedImages,
    images_were_files,
    verify_file,
    verify_images,
    verify_patches,
    verify_results,
)
from labelkit.training.checkpoint import STATE
from labelkit.training.run_dir import CONFIG
from labelkit.training.run_status import (
    CheckpointStatus,
    TrainingStatus,
    checkpoint_status,
    look_at_checkpoints,
    training_status,
)

_SHOWN_IMAGES = 50
_NAMED_IMAGES = 5


@dataclass(frozen=True)
class VerifyResult:
    """What was checked.

    Attributes:
        path: what was asked for.
        checked: each thing that was looked at.
        images: what became of the images; ``None``: not asked for.
    """

    path: Path
    checked: tuple[Verified, ...]
    images: VerifiedImages | None

    @property
    def faults(self) -> list[LabelkitError]:
        """All that is wrong, that of the images in one."""
        found = [fault for one in self.checked for fault in one.faults]
        images = _images_fault(self.images)
        return found if images is None else [*found, images]

    @property
    def fault(self) -> LabelkitError | None:
        """What to end with: the only fault, all of them in one, or ``None``."""
        faults = self.faults
        if len(faults) < 2:
            return faults[0] if faults else None
        remedies = {fault.remedy for fault in faults}
        if len(remedies) == 1:  # it is said once
            listed = "".join(f"\n{fault.where}: {fault.problem}" for fault in faults)
            return InputError(str(self.path), f"{len(faults)} faults:{listed}\n{remedies.pop()}")
        listed = "".join(f"\n{fault}" for fault in faults)
        return InputError(str(self.path), f"{len(faults)} faults:{listed}")

    def to_json(self) -> dict[str, object]:
        """Return everything that was looked at, and every fault."""
        return {
            "path": self.path,
            "ok": not self.faults,
            "checked": [_record(one) for one in self.checked],
            "images": None if self.images is None else _images_record(self.images),
        }

    def made(self) -> list[Path]:
        """Return nothing: nothing is made."""
        return []

    def tables(self) -> list[Table]:
        """Return what was checked, and what became of the images; what is wrong is in :attr:`fault`."""
        rows: list[list[Cell]] = [[one.kind, one.where, one.blocks, one.num_bytes, _state(one)] for one in self.checked]
        tables = [Table("", ["kind", "where", "blocks", "bytes", "state"], rows)]
        return tables if self.images is None else [*tables, *_image_tables(self.images)]


def verify_path(config: VerifyConfig) -> VerifyResult:
    """Check a file or folder; all faults are gathered, none is raised.

    Raises:
        NotAStore: there is nothing of this name, or a folder that labelkit did not write.
        ConfigError: images were asked for, and it names none.
        ResourceError: the system does not let us read it.
    """
    path = config.index
    if not path.exists():
        raise NotAStore(str(path), "there is no such file or folder", "Check the name.")
    if path.name in (SET_NAME, STATE) and path.is_file():
        path = path.parent
    with current_progress().task("bytes compared") as task:
        checked = _verify_folder(path, task.advance) if path.is_dir() else verify_file(path, task.advance)
    images = None if config.images is None else _images(config.images, path, checked)
    return VerifyResult(config.index, tuple(checked), images)


def _verify_folder(path: Path, report: Callable[[int], None]) -> list[Verified]:
    if (path / SET_NAME).exists() or any(path.glob("SET-*.h5")) or path.name.endswith(".patches"):
        return verify_patches(path, report)
    if (path / STATE).exists():
        return [_of_checkpoint(checkpoint_status(path))]
    if (path / CONFIG).exists():
        return _of_training(training_status(path))
    if (path / "plan.json").exists():
        return _of_embedding(path)
    if any(path.glob("step-*")) or (path / "last.json").exists():
        status = TrainingStatus(path)
        look_at_checkpoints(path, status)
        return _of_training(status)
    checked = verify_results(path, report) if path.name.endswith(".results") else []
    if checked:
        return checked
    problem = "holds nothing that can be checked"
    raise NotAStore(str(path), problem, "Give a store, its .results or .patches, a run folder or a checkpoint.")


def _of_checkpoint(status: CheckpointStatus) -> Verified:
    return Verified("checkpoint", str(status.folder), status.num_files, status.num_bytes, list(status.faults))


def _of_training(status: TrainingStatus) -> list[Verified]:
    run = Verified("run", str(status.folder), 0, status.metrics_bytes, list(status.faults))
    return [run, *(_of_checkpoint(checkpoint) for checkpoint in status.checkpoints)]


def _of_run(kind: str, status: RunStatus) -> Verified:
    return Verified(kind, str(status.folder), status.done_parts, status.num_bytes, list(status.all_faults))


def _of_embedding(folder: Path) -> list[Verified]:
    """Check the parts of a store or of patches that are being made."""
    name = folder.name.removesuffix(".run").removesuffix(".patches")
    look = patches_status if folder.name.endswith(".patches.run") else embedding_status
    try:
        status: RunStatus | None = look(folder.with_name(name))
    except StoreError as error:
        return [Verified("unfinished run", str(folder), faults=[error])]
    if status is None or status.folder != folder:
        raise NotAStore(str(folder), "is not where a run folder is", "Give NAME.h5.run, or the store.")
    return [_of_run("unfinished run", status)]


def _images(root: Path, path: Path, checked: list[Verified]) -> VerifiedImages | None:
    kind = checked[0].kind
    if path.is_dir() or kind not in ("store", "matches", "file"):
        raise ConfigError("--images", f"{path} does not name images", "Give a store or matches as --index.")
    sizes = None
    with suppress(StoreError):
        if kind == "matches":
            found = read_matches(path)
            names, sha256 = list(found.sample_ids), found.sha256
        else:
            store = open_store(path, verify=False)
            names, sha256, sizes = store.sample_ids, store.sha256, store.file_sizes
            if not images_were_files(sizes, store.image_sizes):
                text = (
                    "the images of this store were never files (a bundled or generated data set), so none is compared"
                )
                current_progress().message(text)
                return VerifiedImages(root, store.n, are_files=False)
        with current_progress().task("images", total=len(names)) as task:
            return verify_images(root, names, np.asarray(sha256), sizes, task.advance)
    # why it cannot be opened is among the faults
    return None


def _images_fault(images: VerifiedImages | None) -> DatasetError | None:
    if images is None:
        return None
    parts = []
    listed = [f"{name} is missing" for name in images.missing]
    listed += [f"{name}: {what}" for name, what in (*images.changed, *images.unreadable)]
    for count, word in ((len(images.missing), "missing"), (len(images.changed), "changed")):
        parts += [f"{count} {word}"] if count else []
    parts += [f"{len(images.unreadable)} unreadable"] if images.unreadable else []
    if not parts:
        return None
    more = f"; and {len(listed) - _NAMED_IMAGES} more (--json names all)" if len(listed) > _NAMED_IMAGES else ""
    problem = f"of {images.total} images, {', '.join(parts)}: {'; '.join(listed[:_NAMED_IMAGES])}{more}"
    remedy = "Restore them, or embed again."
    if len(images.missing) == images.total:
        remedy = "Give the folder that the names are relative to, as it was given to embed."
    return DatasetError(str(images.root), problem, remedy)


def _state(one: Verified) -> str:
    if not one.faults:
        return "ok"
    return "1 fault" if len(one.faults) == 1 else f"{len(one.faults)} faults"


def _record(one: Verified) -> dict[str, object]:
    faults = [fault.to_json() for fault in one.faults]
    return {"kind": one.kind, "where": one.where, "blocks": one.blocks, "bytes": one.num_bytes, "faults": faults}


def _images_record(images: VerifiedImages) -> dict[str, object]:
    return {
        "root": images.root,
        "total": images.total,
        "are_files": images.are_files,
        "same": images.same,
        "missing": images.missing,
        "changed": [{"image": name, "problem": what} for name, what in images.changed],
        "unreadable": [{"image": name, "problem": what} for name, what in images.unreadable],
    }


def _image_tables(images: VerifiedImages) -> list[Table]:
    if not images.are_files:
        return [Table("images", ["images", "files"], [[images.total, "none: the images were never files"]])]
    counts: list[Cell] = [len(images.missing), len(images.changed), len(images.unreadable)]
    tables = [
        Table(
            f"images below {images.root}",
            ["images", "same", "missing", "changed", "unreadable"],
            [[images.total, images.same, *counts]],
        )
    ]
    rows: list[list[Cell]] = [[name, "missing"] for name in images.missing]
    rows += [[name, what] for name, what in (*images.changed, *images.unreadable)]
    if rows:
        title = "" if len(rows) <= _SHOWN_IMAGES else f"the first {_SHOWN_IMAGES} of {len(rows)}; --json names all"
        tables.append(Table(title, ["image", "state"], rows[:_SHOWN_IMAGES]))
    return tables

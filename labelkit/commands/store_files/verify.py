"""Verify the files that labelkit wrote, block by block, and optionally the images of a store; report all faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.results import Cell, CommandResult, Table
from labelkit.commands.store_files.options import VerifyConfig
from labelkit.errors import ConfigError, Damaged, DatasetError, InputError, LabelkitError, NotAStore, StoreError
from labelkit.files import NotRegularFileError, sha256_file
from labelkit.progress import current_progress
from labelkit.store import schema
from labelkit.store.array_files import read_matches, read_neighbors, read_prototypes
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.parts import open_verified_part
from labelkit.store.patches import SET_NAME, PatchFile, check_patch_owner, patches_folder, read_patch_index
from labelkit.store.reader import CheckedFile, is_in_results, open_checked_file
from labelkit.store.results import check_result_owner, list_result_files, parse_result, results_folder
from labelkit.training.checkpoint import STATE
from labelkit.training.run_dir import CONFIG
from labelkit.training.run_status import (
    CheckpointStatus,
    TrainingStatus,
    add_checkpoints,
    inspect_checkpoint,
    inspect_run,
)

_NAMED_IMAGES = 5
MISSING = "is missing"
Report = Callable[[int], None]
_READERS: dict[str, Callable[[Path], object]] = {
    schema.FORMAT_MATCHES: read_matches,
    schema.FORMAT_PROTOTYPES: read_prototypes,
    schema.FORMAT_NEIGHBORS: read_neighbors,
    schema.FORMAT_PART: lambda path: open_verified_part(path).close(),
}


def verify_path(config: VerifyConfig) -> CommandResult:
    """Verify a file or folder that labelkit wrote; faults are collected, not raised.

    Raises:
        NotAStore: the path does not exist, or is a folder that labelkit did not write.
        ConfigError: ``--images`` is passed, but the file does not list images.
        ResourceError: the path cannot be read for lack of permissions.
    """
    path = config.index
    if not path.exists():
        raise NotAStore(str(path), "does not exist", "Check the name.")
    if path.name in (SET_NAME, STATE) and path.is_file():
        path = path.parent
    with current_progress().task("bytes compared") as task:
        checked = _verify_folder(path, task.advance) if path.is_dir() else verify_file(path, task.advance)
    faults = [fault for one in checked for fault in one.faults]
    images: dict[str, Any] | None = None
    if config.images is not None:
        images = _verify_image_files(config.images, path, checked, faults)
    values: dict[str, object] = {
        "path": config.index,
        "ok": not faults,
        "checked": [
            {
                "kind": one.kind,
                "where": one.where,
                "blocks": one.blocks,
                "bytes": one.num_bytes,
                "faults": [fault.to_json() for fault in one.faults],
            }
            for one in checked
        ],
        "images": images,
    }
    rows: list[list[Cell]] = [
        [one.kind, one.where, one.blocks, one.num_bytes, f"{len(one.faults)} faults" if one.faults else "ok"]
        for one in checked
    ]
    tables = [Table("", ["kind", "where", "blocks", "bytes", "state"], rows)]
    if images is not None:
        total, wrong = images["total"], len(images["faults"])
        row = {"images": total, "unchanged": total - wrong, "changed or missing": wrong}
        tables.append(Table.from_row(f"images below {images['root']}", row))
    return CommandResult(values, (), tuple(tables), fault=_combine_faults(config.index, faults))


def _combine_faults(path: Path, faults: list[LabelkitError]) -> LabelkitError | None:
    """Return the error to report: the only fault, a summary of several faults, or ``None``."""
    if len(faults) < 2:
        return faults[0] if faults else None
    is_shared = len({fault.remedy for fault in faults}) == 1  # show it only once
    listed = [f"{fault.where}: {fault.problem}" if is_shared else str(fault) for fault in faults]
    listed += [faults[0].remedy] if is_shared else []
    return InputError(str(path), "\n".join([f"{len(faults)} faults:", *listed]))


def _verify_folder(path: Path, report: Callable[[int], None]) -> list[FileCheck]:
    if (path / SET_NAME).exists() or any(path.glob("SET-*.h5")) or path.name.endswith(".patches"):
        return verify_patches(path, report)
    if (path / STATE).exists():
        return [_report_checkpoint(inspect_checkpoint(path))]
    if (path / CONFIG).exists():
        return _report_training(inspect_run(path))
    if (path / "plan.json").exists():  # an unfinished store or set of patches
        return [found for part in sorted((path / "parts").glob("*.h5")) for found in verify_file(part, report)]
    if any(path.glob("step-*")) or (path / "last.json").exists():
        status = TrainingStatus(path)
        add_checkpoints(path, status)
        return _report_training(status)
    if path.name.endswith(".results") and (checked := verify_results(path, report)):
        return checked
    problem = "contains nothing that can be verified"
    raise NotAStore(str(path), problem, "Pass a store, its .results or .patches, a run folder or a checkpoint.")


def _report_checkpoint(status: CheckpointStatus) -> FileCheck:
    num_files = len(status.state["files"]) + 1 if status.state else 0
    return FileCheck("checkpoint", str(status.folder), num_files, status.num_bytes, list(status.faults))


def _report_training(status: TrainingStatus) -> list[FileCheck]:
    run = FileCheck("run", str(status.folder), 0, status.metrics_bytes, list(status.faults))
    return [run, *(_report_checkpoint(checkpoint) for checkpoint in status.checkpoints)]


def _verify_image_files(
    root: Path, path: Path, checked: list[FileCheck], faults: list[LabelkitError]
) -> dict[str, Any] | None:
    """Verify images and add any fault; ``None`` if the file cannot be opened, which has already been reported."""
    kind = checked[0].kind
    if path.is_dir() or kind not in ("store", "matches", "file"):
        problem = f"{path} (--index) does not list images"
        raise ConfigError("--images", problem, "Pass a store or a file of matches as --index.")
    with suppress(StoreError):
        found = read_matches(path) if kind == "matches" else open_store(path)
        # images that were never files have no header, so their size is the number of pixels times 1 or 3 channels
        if isinstance(found, EmbeddingStore) and (found.file_sizes / found.image_sizes.prod(axis=1) % 2 == 1).all():
            problem = f"the images of {path} come from a bundled or generated dataset without image files"
            raise ConfigError("--images", problem, "Remove --images.")
        total = len(found.sample_ids)
        with current_progress().task("images", total=total) as task:
            bad = verify_images(root, found.sample_ids, found.sha256, task.advance)
        if bad:
            listed = "; ".join(f"{name}: {what}" for name, what in bad[:_NAMED_IMAGES])
            more = f"; and {len(bad) - _NAMED_IMAGES} more (--json lists all)" if len(bad) > _NAMED_IMAGES else ""
            remedy = "Restore these images, or run `labelkit embed` again."
            if sum(what == MISSING for _, what in bad) == total:
                remedy = "Pass the folder to which the image names are relative, as in `labelkit embed`."
            problem = f"{len(bad)} of {total} images have changed or are missing: {listed}{more}"
            faults.append(DatasetError(str(root), problem, remedy))
        return {"root": root, "total": total, "faults": [{"image": name, "problem": what} for name, what in bad]}
    return None


@dataclass
class FileCheck:
    """Outcome of verifying a file or folder.

    Attributes:
        kind: ``store``, ``result``, ``patches``, ``matches``, ``checkpoint``, ...
        where: name in messages.
        blocks: number of verified blocks, or of files of a checkpoint.
        num_bytes: size of these in bytes.
        faults: all faults found.
    """

    kind: str
    where: str
    blocks: int = 0
    num_bytes: int = 0
    faults: list[LabelkitError] = field(default_factory=list)

    @contextmanager
    def collect_faults(self) -> Iterator[None]:
        """Context manager that catches a ``LabelkitError`` and adds it to the faults."""
        try:
            yield
        except LabelkitError as error:
            self.faults.append(error)


def verify_file(path: Path, report: Report = lambda count: None) -> list[FileCheck]:
    """Verify a file that labelkit wrote; for a store, also its results (inside or next to it) and its patches.

    Args:
        path: a store, a result, a file of patches, matches, prototypes or neighbors, or a part of an unfinished store.
        report: called with the number of bytes of each verified block.

    Raises:
        ResourceError: the file cannot be read for lack of permissions.
    """
    try:
        with open_checked_file(path, None) as file:
            if file.format == schema.FORMAT_STORE:
                return _verify_store(file, path, report)
            found = FileCheck(file.format.removeprefix("labelkit."), str(path))
            _compare_blocks(file, found, report)
            if file.format == schema.FORMAT_RESULT:
                _check_result(file, path, path.stem, _open_adjacent_store(path.resolve().parent), found)
                return [found]
            reader = _READERS.get(file.format)
    except StoreError as error:
        return [FileCheck("file", str(path), faults=[error])]
    if reader is not None and not found.faults:
        with found.collect_faults():
            reader(path)
    return [found]


def verify_results(folder: Path, report: Report = lambda count: None) -> list[FileCheck]:
    """Verify all results in ``NAME.h5.results``, against the store if it exists.

    Raises:
        ResourceError: the store cannot be read.
    """
    path, store = folder.with_suffix(""), _open_adjacent_store(folder)
    return [_verify_result(path, name, store, report) for name in list_result_files(path)]


def verify_patches(folder: Path, report: Report = lambda count: None) -> list[FileCheck]:
    """Verify a set of patch files: ``SET.json``, the files listed in it, and that they belong to the adjacent store.

    Raises:
        ResourceError: the store cannot be read.
    """
    listing = FileCheck("patches", str(folder / SET_NAME))
    try:
        listed = read_patch_index(folder)
    except StoreError as error:
        listing.faults.append(error)
        return [listing, *(found for path in sorted(folder.glob("SET-*.h5")) for found in verify_file(path, report))]
    store = _open_adjacent_store(folder)
    if store is not None:
        with listing.collect_faults():
            check_patch_owner(folder, listed, store)
    checked = [listing]
    for entry in listed["files"]:
        found = FileCheck("patches", str(folder / entry["name"]))
        checked.append(found)
        with found.collect_faults(), open_checked_file(folder / entry["name"], schema.FORMAT_STORE) as file:
            _compare_blocks(file, found, report)
            PatchFile(file, entry, listed)
    return checked


def _verify_store(file: CheckedFile, path: Path, report: Report) -> list[FileCheck]:
    kind = file.attributes[""].get("kind")
    found = FileCheck("patches" if kind == "patches" else "store", str(path))
    _compare_blocks(file, found, report)
    if kind == "patches":
        return [found]
    store: EmbeddingStore | None = None
    # in damaged files, further faults are not reported, since they may be consequences of the damage
    with suppress(StoreError) if any(isinstance(one, Damaged) for one in found.faults) else found.collect_faults():
        store = EmbeddingStore(file, path)
    checked = [found]
    digests: dict[str, str] = {}
    for name in store.packed_results if store is not None else ():
        packed = FileCheck("result", f"{path}:/results/{name}")
        checked.append(packed)
        with packed.collect_faults():
            inner = file.open_group(f"results/{name}", schema.FORMAT_RESULT)
            digests[name] = inner.content_digest
            _compare_blocks(inner, packed, report)
            _check_result(inner, path, name, store, packed)
    checked += [_verify_result(path, name, store, report, digests.get(name)) for name in list_result_files(path)]
    if patches_folder(path).is_dir():
        checked += verify_patches(patches_folder(path), report)
    return checked


def _verify_result(
    path: Path, name: str, store: EmbeddingStore | None, report: Report, packed: str | None = None
) -> FileCheck:
    place = results_folder(path) / f"{name}.h5"
    found = FileCheck("result", str(place))
    with found.collect_faults(), open_checked_file(place, schema.FORMAT_RESULT) as file:
        if packed not in (None, file.content_digest):
            problem = f"differs from the result with the same name inside the store, {path}:/results/{name}"
            found.faults.append(StoreError(str(place), problem, "Rename or delete the file next to the store."))
        _compare_blocks(file, found, report)
        _check_result(file, place, name, store, found)
    return found


def _check_result(file: CheckedFile, path: Path, name: str, store: EmbeddingStore | None, found: FileCheck) -> None:
    with found.collect_faults():
        if store is not None:
            check_result_owner(file, store)
        parse_result(file, path, name)


def _open_adjacent_store(folder: Path) -> EmbeddingStore | None:
    """Open the store of ``NAME.h5.results`` or ``NAME.h5.patches``, if it exists."""
    path = folder.with_suffix("")
    if folder.suffix not in (".results", ".patches") or not path.is_file():
        return None
    try:
        return open_store(path)
    except StoreError:
        return None  # reported when the store itself is verified


def _compare_blocks(file: CheckedFile, found: FileCheck, report: Report) -> None:
    """Verify all datasets, except packed results (verified separately) and damaged shards (recorded as faults)."""
    damaged_shards = [] if file.shards is None else list(file.shards.find_faults())
    found.faults += damaged_shards
    for path in file.datasets:
        if is_in_results(path) or (damaged_shards and file.is_sharded(path)):
            continue
        with found.collect_faults():
            for block in file.iterate_verified_blocks(path):
                found.blocks += 1
                found.num_bytes += block.nbytes
                report(block.nbytes)


def verify_images(
    root: Path, sample_ids: Sequence[str], sha256: NDArray[np.uint8], report: Report = lambda count: None
) -> list[tuple[str, str]]:
    """Compare the SHA-256 digests of image files with those recorded in a store.

    Args:
        root: folder to which the names are relative.
        sample_ids: names of the n images.
        sha256: (n, 32) uint8.
        report: called with 1 for each image.

    Returns:
        Names and problems of the images that are missing, cannot be read, or have changed.

    Raises:
        NotAStore: ``root`` is not a folder.
    """
    if not root.is_dir():
        raise NotAStore(str(root), "is not a folder", "Pass the folder to which the image names are relative.")
    faults: list[tuple[str, str]] = []
    for name, digest in zip(sample_ids, sha256, strict=True):
        try:
            fault = "" if bytes.fromhex(sha256_file(root / name)) == digest.tobytes() else "SHA-256 differs"
        except NotRegularFileError:
            fault = "not a regular file"
        except (FileNotFoundError, NotADirectoryError):
            fault = MISSING
        except OSError as error:
            fault = error.strerror or str(error)
        faults += [(name, fault)] if fault else []
        report(1)
    return faults

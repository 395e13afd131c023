"""Check every block of what labelkit wrote, and say all that is wrong instead of stopping at the first fault."""

from __future__ import annotations

import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelkit.errors import Damaged, LabelkitError, Mismatch, NotAStore, Refused, StoreError
from labelkit.files import sha256_file
from labelkit.store import schema
from labelkit.store.array_files import read_matches, read_neighbors, read_prototypes
from labelkit.store.digests import RESTORE
from labelkit.store.embeddings import EmbeddingStore, ModelIdentity, open_store
from labelkit.store.parts import open_part
from labelkit.store.patches import SET_NAME, check_set_file, patches_folder, read_set_json
from labelkit.store.reader import CheckedFile, in_results, open_file
from labelkit.store.results import parse_result, results_beside, results_folder

Report = Callable[[int], None]
_READERS: dict[str, Callable[[Path], object]] = {
    schema.FORMAT_MATCHES: read_matches,
    schema.FORMAT_PROTOTYPES: read_prototypes,
    schema.FORMAT_NEIGHBORS: read_neighbors,
    schema.FORMAT_PART: lambda path: open_part(path).close(),
}


@dataclass
class Verified:
    """One thing that was looked at.

    Attributes:
        kind: what it is: ``store``, ``result``, ``patches``, ``matches``, ``checkpoint``, ...
        where: how messages call it.
        blocks: blocks of rows that were compared with a digest, or files of a checkpoint.
        num_bytes: bytes of them.
        faults: all that is wrong.
    """

    kind: str
    where: str
    blocks: int = 0
    num_bytes: int = 0
    faults: list[LabelkitError] = field(default_factory=list)


def verify_file(path: Path, report: Report = lambda count: None) -> list[Verified]:
    """Check a file; with a store also the results in it, those beside it and its patches.

    Args:
        path: a store, a result, a file of patches, matches, prototypes or neighbors, or a part of a run folder.
        report: gets the bytes of each block that was compared.

    Raises:
        ResourceError: the system does not let us read it.
    """
    try:
        with open_file(path, None) as file:
            if file.format == schema.FORMAT_STORE:
                return _verify_store(file, path, report)
            found = Verified(file.format.removeprefix("labelkit."), str(path))
            _compare_blocks(file, found, report)
            if file.format == schema.FORMAT_RESULT:
                _check_result(file, path, path.stem, _owner(path), found)
                return [found]
            reader = _READERS.get(file.format)
    except StoreError as error:
        return [Verified("file", str(path), faults=[error])]
    if reader is not None and not found.faults:
        _collect(found, lambda: reader(path))
    return [found]


def verify_results(folder: Path, report: Report = lambda count: None) -> list[Verified]:
    """Check all results in ``NAME.h5.results``, against the store if it is there.

    Raises:
        ResourceError: the store cannot be read.
    """
    path = folder.with_name(folder.name.removesuffix(".results"))
    store = _open_if_there(path)
    return [_verify_result(path, name, store, report) for name in results_beside(path)]


def verify_patches(folder: Path, report: Report = lambda count: None) -> list[Verified]:
    """Check a set of patches: ``SET.json``, its files, and whether they belong to the store beside it.

    Raises:
        ResourceError: the store cannot be read.
    """
    listing = Verified("patches", str(folder / SET_NAME))
    try:
        listed = read_set_json(folder)
    except StoreError as error:
        listing.faults.append(error)
        return [listing, *(found for path in sorted(folder.glob("SET-*.h5")) for found in verify_file(path, report))]
    store = _open_if_there(folder.with_name(folder.name.removesuffix(".patches")))
    if store is not None and (listed["store_digest"], listed["rows"]) != (store.content_digest, store.n):
        problem = f"the patches belong to other content than {store.path} has now"
        listing.faults.append(Mismatch(str(folder), problem, "Make them again: `labelkit embed ... --dense`."))
    checked = [listing]
    for entry in listed["files"]:
        path = folder / entry["name"]
        found = Verified("patches", str(path))
        checked.append(found)
        try:
            with open_file(path, schema.FORMAT_STORE) as file:
                _compare_blocks(file, found, report)
                model = check_set_file(file, entry, listed)
        except LabelkitError as error:
            found.faults.append(error)
            continue
        _compare_models(found, model, store)
    return checked


# ---- stores and results


def _verify_store(file: CheckedFile, path: Path, report: Report) -> list[Verified]:
    kind = file.attributes[""].get("kind")
    found = Verified("patches" if kind == "patches" else "store", str(path))
    _compare_blocks(file, found, report)
    if kind == "patches":
        return [found]
    store: EmbeddingStore | None = None
    try:
        store = EmbeddingStore(file, path, verify=False)
    except StoreError as error:
        if not any(isinstance(fault, Damaged) for fault in found.faults):  # what is damaged holds any values
            found.faults.append(error)
    checked = [found]
    names = store.packed_results if store is not None else ()
    digests: dict[str, str] = {}
    for name in names:
        packed = Verified("result", f"{path}:/results/{name}")
        checked.append(packed)
        try:
            inner = file.inside(f"results/{name}", schema.FORMAT_RESULT)
        except StoreError as error:
            packed.faults.append(error)
            continue
        digests[name] = inner.content_digest
        _compare_blocks(inner, packed, report)
        _check_result(inner, path, name, store, packed)
    checked += [_verify_result(path, name, store, report, digests.get(name)) for name in results_beside(path)]
    if patches_folder(path).is_dir():
        checked += verify_patches(patches_folder(path), report)
    return checked


def _verify_result(
    path: Path, name: str, store: EmbeddingStore | None, report: Report, packed: str | None = None
) -> Verified:
    place = results_folder(path) / f"{name}.h5"
    found = Verified("result", str(place))
    try:
        with open_file(place, schema.FORMAT_RESULT) as file:
            if packed not in (None, file.content_digest):
                problem = f"exists twice: {path}:/results/{name} has other content"
                found.faults.append(StoreError(str(place), problem, "Give it another name, or delete it."))
            _compare_blocks(file, found, report)
            _check_result(file, place, name, store, found)
    except LabelkitError as error:
        found.faults.append(error)
    return found


def _check_result(file: CheckedFile, path: Path, name: str, store: EmbeddingStore | None, found: Verified) -> None:
    stale = store is not None and file.attributes[""].get("store_digest") != store.content_digest
    if stale and store is not None:
        problem = f"made from other content than {store.path} has now"
        found.faults.append(Mismatch(file.place(""), problem, "Make it again or delete it."))
    rows = None if stale or store is None else store.n
    if not found.faults or stale:
        _collect(found, lambda: parse_result(file, path, name, rows, stale=stale))


def _owner(path: Path) -> EmbeddingStore | None:
    """Open the store that a result lies beside, if there is one."""
    folder = path.resolve().parent
    return (
        _open_if_there(folder.with_name(folder.name.removesuffix(".results"))) if folder.suffix == ".results" else None
    )


def _open_if_there(path: Path) -> EmbeddingStore | None:
    if not path.is_file():
        return None
    try:
        return open_store(path, verify=False)
    except StoreError:
        return None  # it is looked at when it is asked for itself


def _compare_models(found: Verified, model: ModelIdentity, store: EmbeddingStore | None) -> None:
    keys = [] if store is None else [key for key in model.differences(store.model) if key not in ("layer", "pooling")]
    if keys:
        problem = f"made by another model than the store: {', '.join(keys)} differ"
        found.faults.append(Mismatch(found.where, problem, "Make them again: `labelkit embed ... --dense`."))


def _collect(found: Verified, check: Callable[[], object]) -> None:
    try:
        check()
    except LabelkitError as error:
        found.faults.append(error)


def _compare_blocks(file: CheckedFile, found: Verified, report: Report) -> None:
    """Read all datasets but those of packed results, which are files of their own; name the shards that are damaged."""
    damaged_shards = [] if file.shards is None else list(file.shards.faults())
    found.faults += damaged_shards
    for path in file.datasets:
        if in_results(path) or (damaged_shards and file.is_sharded(path)):
            continue
        wants_finite, start = _wants_finite(file, path), 0
        try:
            for block in file.verified_blocks(path):
                found.blocks += 1
                found.num_bytes += block.nbytes
                report(block.nbytes)
                finite = np.isfinite(block).all(axis=tuple(range(1, block.ndim))) if wants_finite else np.ones(1, bool)
                if not finite.all():
                    where = f"{file.place(path)} row {start + int(np.argmin(finite))}"
                    raise Refused(where, "holds a number that is not finite", RESTORE)
                start += len(block) if block.ndim else 0
        except StoreError as error:
            found.faults.append(error)


def _wants_finite(file: CheckedFile, path: str) -> bool:
    info = file.datasets[path]
    if file.format != schema.FORMAT_STORE or info.dtype.kind != "f" or "/" in path or len(info.shape) < 2:
        return False
    return path in ("embeddings", "patches") or info.shape[0] == file.datasets.get("sample_ids", info).shape[0]


# ---- images


@dataclass
class VerifiedImages:
    """What became of the image files of a store.

    Attributes:
        root: folder that names are relative to.
        total: images of the store.
        are_files: whether they ever were files; images of a bundled data set are not.
        same: how many have their size and SHA-256.
        missing: names of those that are not there.
        changed: name and difference of those whose size or content differs.
        unreadable: name and reason of those that cannot be read.
    """

    root: Path
    total: int
    are_files: bool = True
    same: int = 0
    missing: list[str] = field(default_factory=list)
    changed: list[tuple[str, str]] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)


def verify_images(
    root: Path,
    sample_ids: Sequence[str],
    sha256: NDArray[np.uint8],
    file_sizes: NDArray[np.uint64] | None,
    report: Report = lambda count: None,
) -> VerifiedImages:
    """Compare size and SHA-256 of image files with what was noted when they were read.

    Args:
        root: folder that names are relative to.
        sample_ids: n names.
        sha256: (n, 32) uint8.
        file_sizes: (n,) bytes; ``None``: not known.
        report: gets 1 for each image.

    Raises:
        NotAStore: ``root`` is no folder.
    """
    if not root.is_dir():
        raise NotAStore(str(root), "is no folder", "Give the folder that the names of the images are relative to.")
    found = VerifiedImages(root, len(sample_ids))
    for row, name in enumerate(sample_ids):
        size = None if file_sizes is None else int(file_sizes[row])
        _compare_image(found, name, size, sha256[row].tobytes())
        report(1)
    return found


def _compare_image(found: VerifiedImages, name: str, size: int | None, digest: bytes) -> None:
    path = found.root / name
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            found.unreadable.append((name, "not a regular file"))
            return
        if size is not None and status.st_size != size:
            found.changed.append((name, f"{status.st_size} bytes, was {size}"))
            return
        same = bytes.fromhex(sha256_file(path)) == digest
    except (FileNotFoundError, NotADirectoryError):
        found.missing.append(name)
    except OSError as error:
        found.unreadable.append((name, error.strerror or str(error)))
    else:
        if same:
            found.same += 1
        else:
            found.changed.append((name, "SHA-256 differs"))


def images_were_files(file_sizes: NDArray[np.uint64], image_sizes: NDArray[np.uint32]) -> bool:
    """Say whether the images of a store were files.

    Images of a bundled data set have no files: their sizes are those of the pixels, one byte per value. A file
    has a header, so all images of a store having that size means that none was one.

    Args:
        file_sizes: (n,) bytes.
        image_sizes: (n, 2) height and width.
    """
    pixels = image_sizes.astype(np.uint64).prod(axis=1)
    return not any(bool((file_sizes == pixels * np.uint64(channels)).all()) for channels in (1, 3))

"""Create a store from embeddings written by another program."""

import hashlib
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.embeddings import count_images
from labelkit.commands.common.images.read import map_in_threads
from labelkit.commands.common.locations import record_image_location
from labelkit.commands.common.results import CommandResult, Table
from labelkit.commands.exchange.options import TORCH_SUFFIXES, ImportConfig
from labelkit.data.datasets import find_positions, natural_sort_key
from labelkit.data.decode import BadImageError, EncodedImage, read_image_file
from labelkit.data.tables import YES_OR_NO, is_file, to_class_name, to_class_names
from labelkit.errors import CheckpointRefused, DatasetError, Mismatch, Refused, output_exists_error
from labelkit.files import sha256_file
from labelkit.formatting import join_first_few
from labelkit.progress import current_progress
from labelkit.store.commit import translate_os_errors
from labelkit.store.embeddings import ModelIdentity, open_store
from labelkit.store.foreign import Column, ImportedRows, read_arrays, read_csv, read_hdf5, read_names
from labelkit.store.plans import EmbeddingPlan
from labelkit.store.schema import encode_name, find_name_fault
from labelkit.store.writing import check_storable, write_imported_store

_FIRST_SPLITS = ("train", "val", "test")
_SHOWN_FAULTS = 5
_SHOWN_NAMES = 12


def import_store(config: ImportConfig) -> CommandResult:
    """Create a new store from embeddings written by another program, atomically.

    Raises:
        StoreError: the source cannot be used (the message specifies the row or line), or the output exists.
        ConfigError: a specified array or column does not exist.
        DatasetError: images are missing or cannot be read.
        ResourceError: writing failed, for example because the disk is full.
    """
    started = time.monotonic()
    if config.out.exists() and not config.overwrite:
        raise output_exists_error(config.out)
    with translate_os_errors(config.out.parent):
        config.out.parent.mkdir(parents=True, exist_ok=True)
    rows, name_where = _read(config)
    digests = {role: sha256_file(path) for role in ("source", "ids") if (path := getattr(config, role)) is not None}
    _write(config, rows, name_where, digests)
    store = open_store(config.out)
    if config.images is not None:
        record_image_location(store.content_digest, str(config.images), config.images)
    _report_ignored_arrays(config.source, rows)
    current_progress().message(f"{config.out}: {count_images(store)}")
    values: dict[str, object] = {
        "index": config.out,
        "rows": store.n,
        "dim": store.dim,
        "shards": store.num_shards,
        "dtype": str(store.embeddings.dtype),
        "labels": 0 if store.labels is None else int((store.labels >= 0).sum()),
        "classes": len(store.class_names),
        "splits": list(store.split_names),
        "has_images": store.has_images,
        "metric": store.metric,
        "model": store.model.name,
        "found": rows.found,
        "left_out": rows.left_out,
        "content_digest": store.content_digest,
        "seconds": round(time.monotonic() - started, 2),
    }
    row: dict[str, Any] = {name: values[name] for name in ("rows", "dim", "dtype", "labels", "classes")}
    known = "known" if store.has_images else "unknown"
    tables = [Table.from_row("", {"store": config.out, **row, "images": known, "model": store.model.name})]
    if rows.found:
        tables.append(Table("imported from", ["what", "array or column"], [[*pair] for pair in rows.found.items()]))
    return CommandResult(values, (config.out,), tuple(tables))


def _report_ignored_arrays(path: Path, rows: ImportedRows, *, has_keys: bool = True) -> None:
    if rows.left_out:
        more = ", ..." if len(rows.left_out) > _SHOWN_NAMES else ""
        free = [role for role in ("labels", "splits") if has_keys and role not in rows.columns]
        keys = " or ".join(f"--{role}-key" for role in free)
        hint = f"; to read one as {' or '.join(free)}, pass {keys}" if free else ""
        current_progress().message(f"{path}: ignoring {', '.join(rows.left_out[:_SHOWN_NAMES])}{more}{hint}")


def _read(config: ImportConfig) -> tuple[ImportedRows, Callable[[int], str]]:
    """Return the data read, and a function that maps a row to the location of its name, for messages."""
    # the mask of usable labels is found only by its usual name
    wanted = {role: getattr(config, f"{role}_key") for role in ("embeddings", "ids", "labels", "splits")}
    kind = config.source.suffix.lower()
    if kind in (".npy", ".npz", *TORCH_SUFFIXES):
        rows = read_arrays(config.source, wanted, _read_tensors(config.source) if kind in TORCH_SUFFIXES else None)
    elif kind in (".csv", ".tsv"):
        rows = read_csv(config.source, wanted)
    else:
        rows = read_hdf5(config.source, wanted)
    ids = config.ids
    if ids is None and "ids" not in rows.columns:
        inside = [name for name in rows.left_out if name.split("/")[0] == "obs"]
        if inside:
            problem = f"no image names were found; the file also contains {', '.join(inside[:_SHOWN_NAMES])}"
            remedy = "Pass --ids-key GROUP/NAME and --labels-key GROUP/NAME, or --ids FILE."
            raise Refused(str(config.source), problem, remedy)
        current_progress().message(f"{config.source}: row numbers are used as ids (to use names, pass --ids)")
    if ids is None:
        _check_lengths(rows.columns, config.source, config.source, len(rows.embeddings))
        return rows, rows.where
    keys = wanted if kind == ".npy" else {}
    named = read_names(ids, keys) if ids.suffix.lower() == ".txt" else read_csv(ids, keys, with_rows=False)
    _report_ignored_arrays(ids, named, has_keys=kind == ".npy")
    if "labels" in named.columns and not named.found:
        current_progress().message(f"{ids}: the value after each name is read as its label")
    name_where = _match_names(config, rows, named)
    others = {role: column for role, column in rows.columns.items() if role not in named.columns}
    for columns, path in ((others, config.source), (named.columns, ids)):
        _check_lengths(columns, path, config.source, len(rows.embeddings))
    rows.columns |= named.columns
    rows.found = {role: name for role, name in rows.found.items() if role not in named.columns}
    rows.found |= {role: f"{ids.name}: {name}" for role, name in named.found.items()}
    return rows, name_where


def _check_lengths(columns: Mapping[str, Column], path: Path, source: Path, n: int) -> None:
    """Check that columns from a file ``path`` have an entry for each of the n embeddings of the source."""
    for role, column in columns.items():
        if role not in ("class_names", "split_names") and len(column) != n:
            problem = f"contains {len(column)} {role}, but {source} has {n} embeddings"
            raise Mismatch(str(path), problem, f"Pass exactly {n} {role}.")


def _match_names(config: ImportConfig, rows: ImportedRows, named: ImportedRows) -> Callable[[int], str]:
    """Reorder the columns of ``--ids`` to match the names in the source, if any; return the location of each row.

    Numbers in the source that are not names in ``--ids`` are row numbers, so the order is the same.
    """
    own, given = rows.columns.get("ids"), named.columns["ids"]
    if own is None or list(own) == list(given):
        return named.where
    place = {str(name): row for row, name in enumerate(given)}
    names = [str(name) for name in own]
    other = next((name for name in names if name not in place), None)
    if other is not None and not isinstance(own, list):
        return named.where
    if other is not None or len(place) < len(given):
        row = next((row for row, (a, b) in enumerate(zip(names, given, strict=False)) if a != b), 0)
        what = f"the name {other!r} is missing" if other is not None else "a name occurs twice"
        what += f"; first difference: {given[row]!r}, not {names[row]!r}"
        remedy = "Use the names of the source in any order, or save the embeddings without names as a .npy file."
        raise Mismatch(str(config.ids), f"does not match the names in {config.source}: {what}", remedy)
    order, where = np.array([place[name] for name in names]), named.where
    named.columns = {
        role: [column[row] for row in order] if isinstance(column, list) else column[order]
        for role, column in named.columns.items()
    }
    current_progress().message(f"{config.ids}: rows are matched to {config.source} by name")
    return lambda row: where(int(order[row]))


def _read_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """Return the tensors, and the lists of strings or integers, in a safetensors or PyTorch file, by name."""
    import torch

    from labelkit.models.weights.files import load_weights_file

    lists: dict[str, list[str] | list[int]] = {}
    try:
        tensors = load_weights_file(path, lists)
    except CheckpointRefused as error:
        remedy = "If you trust the file, convert it: numpy.savez('x.npz', **torch.load(FILE, weights_only=False))."
        raise Refused(str(path), error.problem, remedy) from error
    arrays = {name: np.array(values) for name, values in lists.items()}
    for name, tensor in tensors.items():
        is_wide = tensor.is_floating_point() and tensor.dtype != torch.float16  # NumPy has no bfloat16
        arrays[name or "embeddings"] = (tensor.float() if is_wide else tensor).numpy(force=True)
    return arrays


def _write(
    config: ImportConfig, rows: ImportedRows, name_where: Callable[[int], str], digests: Mapping[str, str]
) -> None:
    n = len(rows.embeddings)
    dtype = config.dtype
    if dtype == "auto":
        dtype = "float16" if rows.embeddings.dtype == np.float16 else "float32"
    check_storable(rows.embeddings, dtype, rows.where)
    names = _build_names(rows.columns.get("ids"), n, name_where, config.images)
    order = np.array(sorted(range(n), key=[encode_name(name) for name in names].__getitem__), dtype=np.int64)
    for first, second in itertools.pairwise(order.tolist()):
        if names[first] == names[second]:
            problem = f"the name {names[second]!r} is also used in {name_where(first)}"
            raise Refused(name_where(second), problem, "Give every embedding a unique name.")
    sample_ids = [names[row] for row in order]
    if not np.array_equal(order, np.arange(n)):
        current_progress().message("the embeddings are stored in the order of their names, not in that of the source")
    columns = _build_columns(rows.columns, order, name_where)
    word = f"sha256:{digests['source']}" if config.model is None else config.model
    plan = EmbeddingPlan(
        sample_ids=sample_ids,
        model=ModelIdentity(config.model or "imported", source=config.source.name, preprocess={"imported": word}),
        dim=rows.embeddings.shape[1],
        batch_size=1,
        metric=config.metric,
        dtype=dtype,
        **columns,
    )
    write_imported_store(
        config.out,
        plan,
        embeddings=rows.embeddings,
        order=order,
        images=None if config.images is None else _read_images(config.images, sample_ids),
        recipe={"imported": dict(digests), "found": rows.found, "images": config.images is not None},
        shards=config.shards,
        overwrite=config.overwrite,
    )


def _build_names(column: Column | None, n: int, where: Callable[[int], str], images: Path | None) -> list[str]:
    """Return the names of the rows, or their zero-padded numbers if there are no names."""
    if column is None:
        return [f"{row:0{len(str(n - 1))}d}" for row in range(n)]
    names = column if isinstance(column, list) else [str(number) for number in column.tolist()]
    names = _strip_common_folder([name.removeprefix("./") for name in names], images)
    for row, name in enumerate(names):
        fault = find_name_fault(name) or _find_text_fault(name)
        if fault:
            remedy = "Use paths relative to one folder, such as cat/0.png, or prefix all paths with the same folder."
            raise Refused(where(row), f"the name {name!r} {fault}", remedy)
    return names


def _strip_common_folder(names: list[str], images: Path | None) -> list[str]:
    """Remove the common folder of all names if all are absolute paths or URLs, or start with ``..``.

    This is the deepest common folder, or the one that leaves a path to an existing file in ``images``.
    """
    if not all(name.startswith(("/", "../")) or "://" in name or name[1:3] == ":/" for name in names):
        return names
    parts = [name.split("/") for name in names]
    columns = zip(*(folders[:-1] for folders in parts), strict=False)
    common = len(list(itertools.takewhile(lambda column: len(set(column)) == 1, columns)))
    if not common:
        return names
    below = (at for at in range(common, 0, -1) if images is not None and is_file(images.joinpath(*parts[0][at:])))
    at = next(below, common)
    current_progress().message(f"the common folder {'/'.join(parts[0][:at])}/ is removed from all names")
    return ["/".join(folders[at:]) for folders in parts]


def _find_text_fault(text: str) -> str | None:
    try:
        encode_name(text)
    except UnicodeEncodeError:
        return "contains an incomplete character"
    return "contains a NUL byte" if "\0" in text else None


def _build_columns(
    columns: Mapping[str, Column], order: NDArray[np.int64], where: Callable[[int], str]
) -> dict[str, Any]:
    """Return the labels and splits in the form of an ``EmbeddingPlan``."""
    labels, class_names = _number_values("label", columns.get("labels"), columns.get("class_names"), where)
    splits, split_names = _number_values("split", columns.get("splits"), columns.get("split_names"), where)
    first = [name for name in _FIRST_SPLITS if name in split_names]
    if splits is not None and columns.get("split_names") is None:
        ordered = [*first, *(name for name in split_names if name not in first)]
        place = np.array([*(ordered.index(name) for name in split_names), -1], dtype=np.int64)
        splits, split_names = place[splits], ordered
    labeled: NDArray[np.bool_] | None = None
    flags = columns.get("labeled")
    if flags is not None:
        values = flags if isinstance(flags, list) else [str(flag) for flag in flags.tolist()]
        marks = [YES_OR_NO.get(value.strip().lower()) for value in values]
        for row, mark in enumerate(marks):
            if mark is None or (mark and (labels is None or labels[row] < 0)):
                problem = f"labeled must be 0, or 1 for images with a label, got {values[row]!r}"
                raise Refused(where(row), problem, "Correct this value, or rename the column.")
        labeled = np.array(marks, dtype=bool)[order]
    elif labels is not None and (labels < 0).any():  # the others are known, so they may be used, as in a dataset
        labeled = (labels >= 0)[order]
    found: dict[str, Any] = {}
    if labels is not None:
        found = {"labels": labels[order], "class_names": class_names}
        if labeled is not None:
            used = labels[order][labeled]
            found |= {"labeled": labeled, "old_classes": np.isin(np.arange(len(class_names)), used)}
    if splits is not None:
        found |= {"splits": splits[order], "split_names": split_names}
    return found


def _number_values(
    what: str, column: Column | None, names: Column | None, where: Callable[[int], str]
) -> tuple[NDArray[np.int64] | None, list[str]]:
    """Return class or split numbers (n,), -1 = none, and their names, in natural order or in the order of ``names``."""
    if column is None:
        return None, []
    texts: Sequence[object] = column if isinstance(column, list) else column.tolist()
    raw = None if names is None else [str(name) for name in names]
    if raw is not None and len(set(raw)) < len(raw):
        raise Refused(where(0), f"{what} names contain duplicates: {', '.join(raw)[:200]}", "Make them unique.")
    if not isinstance(column, list):
        limit = np.iinfo(np.int64).max if raw is None else len(raw) - 1
        bad = (column < -1) | (column > limit)
        if bad.any():
            row = int(np.argmax(bad))
            expected = "-1 for none, or more" if raw is None else f"-1 to {limit}"
            raise Refused(where(row), f"expected a {what} of {expected}, got {column[row]}", "Correct this entry.")
        if raw is not None:
            texts = [raw[number] if number >= 0 else None for number in column.tolist()]
    named, notes = to_class_names(texts)
    for note in notes:
        current_progress().message(f"{what}s: {note}")
    known = None if raw is None else [to_class_name(name) or name for name in raw]
    found = list(dict.fromkeys(known or sorted({name for name in named if name is not None}, key=natural_sort_key)))
    known_names = {None, *found}
    for row, name in enumerate(named):
        fault = (name and _find_text_fault(name)) or (None if name in known_names else "is not among the names")
        if fault:
            raise Refused(where(row), f"the {what} {name!r} {fault}", "Correct this entry.")
    return find_positions(named, found), found


def _read_images(folder: Path, sample_ids: Sequence[str]) -> dict[str, NDArray[Any]]:
    if not folder.is_dir():
        raise DatasetError(str(folder), "is not a folder", "Pass the folder to which the image names are relative.")
    n = len(sample_ids)
    sha256, file_sizes, image_sizes = np.zeros((n, 32), np.uint8), np.zeros(n, np.uint64), np.zeros((n, 2), np.uint32)

    def read(row: int) -> str | None:
        try:
            content = read_image_file(folder / sample_ids[row])
            height, width, _ = EncodedImage(content).decode(3).shape
        except BadImageError as error:
            return f"{sample_ids[row]}: {error.reason}"
        sha256[row] = np.frombuffer(hashlib.sha256(content).digest(), dtype=np.uint8)
        file_sizes[row], image_sizes[row] = len(content), (height, width)
        return None

    bad = [fault for fault in map_in_threads(read, range(n), "images") if fault is not None]
    if bad:
        problem = f"{len(bad)} of {n} images cannot be used: {join_first_few(bad, _SHOWN_FAULTS, '; ')}"
        raise DatasetError(str(folder), problem, "Check --images, or remove --images to import without images.")
    return {"sha256": sha256, "file_sizes": file_sizes, "image_sizes": image_sizes}

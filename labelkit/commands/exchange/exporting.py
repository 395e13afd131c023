"""Export embeddings, labels, a result or the network of a store for other programs."""

import csv
import io
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.results import CommandResult, Table
from labelkit.commands.exchange.options import ExportConfig
from labelkit.errors import CheckpointError, ConfigError, StoreError
from labelkit.store.commit import canonical_json, commit_bytes, commit_file
from labelkit.store.csv_table import ESCAPED_COLUMN, escape_name, needs_escape
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.results import Result, read_result
from labelkit.store.schema import BLOCK_BYTES, IMAGE_COLUMNS, RESULT_COLUMNS
from labelkit.store.writer import encode_strings

Values = Sequence[str | None] | NDArray[Any]


@dataclass
class _ExportedData:
    """Data to export.

    Attributes:
        columns: columns of a table by heading, each with n strings (or ``None``) or numbers.
        embeddings: (n, d), or ``None``.
        arrays: arrays for ``.npz`` by name, in addition to the embeddings.
    """

    columns: dict[str, Values]
    embeddings: NDArray[Any] | None = None
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)


def export_store(config: ExportConfig) -> CommandResult:
    """Export embeddings, labels, a result or the model of a store to a file for other programs.

    The file is written atomically.

    Raises:
        StoreError: the store or result cannot be used, or lacks the requested data.
        ConfigError: the file exists, the result cannot be written in this format, or packages are missing.
        CheckpointError: the network is not on this machine, or cannot be exported to ONNX with the same embeddings.
        ResourceError: writing failed, for example because the disk is full.
    """
    started = time.monotonic()
    kind, out = config.suffix, config.out
    store = open_store(config.index)
    if config.what == "model":
        return _export_model(config, store)
    export = _collect_result(store, config, kind) if config.result is not None else _collect_store(store, config)
    if kind == ".csv":
        commit_bytes(out, _generate_csv(export), replace=config.overwrite)
    else:
        arrays: dict[str, Any] = {} if export.embeddings is None else {"embeddings": export.embeddings}
        arrays |= export.arrays
        commit_file(out, lambda file: np.savez(file, **arrays), replace=config.overwrite)
    values: dict[str, object] = {
        "path": out,
        "index": config.index,
        "what": config.what if config.result is None else f"result {config.result}",
        "rows": store.n,
        "dim": None if export.embeddings is None else store.dim,
        "columns": list(export.arrays) if kind == ".npz" else list(export.columns),
        "names_escaped": kind == ".csv" and ESCAPED_COLUMN in export.columns,
        "bytes": out.stat().st_size,
        "seconds": round(time.monotonic() - started, 2),
    }
    row = {name: values[name] for name in ("what", "rows", "dim", "bytes", "path")}
    return CommandResult(values, (out,), (Table.from_row("", row),))  # type: ignore[arg-type]  # texts, numbers and a path


def _export_model(config: ExportConfig, store: EmbeddingStore) -> CommandResult:
    """Export the network of a store as an ONNX model that maps images (b, c, h, w) to embeddings (b, d).

    The metadata ``preprocess`` is JSON from the store: resize the shorter side to ``size * resize_ratio``, center-crop,
    divide by 255, subtract ``mean``, and divide by ``std``.
    """
    # imports PyTorch
    from labelkit.commands.common.networks import load_recorded_network
    from labelkit.commands.common.onnx_export import OnnxExportError, export_onnx_bytes, find_missing_packages

    started, out = time.monotonic(), config.out
    missing = find_missing_packages()
    if missing:
        problem = f"ONNX export requires packages that are not installed ({', '.join(missing)})"
        raise ConfigError("--what model", problem, "Run `pip install onnx onnxruntime onnxscript`.")
    model = store.model
    network = load_recorded_network(model, config.checkpoint).network
    notes = {name: getattr(model, name) for name in ("name", "source", "weights_fingerprint")}
    notes["preprocess"] = canonical_json(model.preprocess)
    try:
        content = export_onnx_bytes(network, notes)
    except OnnxExportError as error:
        problem = f"cannot be exported to ONNX: {error}"
        raise CheckpointError(model.name, problem, "Use this model only in labelkit.") from error
    commit_bytes(out, content, replace=config.overwrite)
    values: dict[str, object] = {
        "path": out,
        "index": config.index,
        "what": "model",
        "model": model.name,
        "dim": store.dim,
        "bytes": len(content),
        "seconds": round(time.monotonic() - started, 2),
    }
    row = {name: values[name] for name in ("what", "model", "dim", "bytes", "path")}
    return CommandResult(values, (out,), (Table.from_row("", row),))  # type: ignore[arg-type]  # texts, numbers and a path


def _collect_store(store: EmbeddingStore, config: ExportConfig) -> _ExportedData:
    columns = _build_name_column(store)
    arrays: dict[str, NDArray[Any]] = {"sample_ids": encode_strings(store.sample_ids)}
    with_rows = config.what == "embeddings"
    if store.labels is not None:
        columns["label"] = _decode_names(store.labels, store.class_names)
        arrays["labels"] = store.labels
        if store.class_names:
            arrays["class_names"] = encode_strings(store.class_names)
    elif not with_rows:
        raise StoreError(str(store.path), "has no labels to export", "Choose --what embeddings, or another store.")
    if store.splits is not None:
        columns["split"] = _decode_names(store.splits, store.split_names)
        arrays.update(splits=store.splits, split_names=encode_strings(store.split_names))
    if store.labeled is not None:
        columns["labeled"] = arrays["labeled"] = store.labeled.astype(np.uint8)
    if store.old_classes is not None:
        arrays["old_classes"] = store.old_classes.astype(np.uint8)
    if with_rows and store.has_images:
        arrays.update({name: np.asarray(getattr(store, name)) for name in IMAGE_COLUMNS})
    if with_rows:
        arrays.update(store.extras)
    return _ExportedData(columns, store.embeddings if with_rows else None, arrays)


def _collect_result(store: EmbeddingStore, config: ExportConfig, kind: str) -> _ExportedData:
    assert config.result is not None
    result = read_result(store, config.result)
    arrays = {"sample_ids": encode_strings(store.sample_ids)}
    for name, value in result.arrays.items():
        texts = [value] if isinstance(value, str) else value
        arrays[name] = encode_strings(texts).reshape(np.shape(value)) if isinstance(texts, list) else value
    arrays["params"] = encode_strings([canonical_json(result.params)]).reshape(())
    if kind == ".npz":
        return _ExportedData({}, None, arrays)
    columns = _list_image_columns(store, result)
    if not columns:
        held = ", ".join(sorted(result.arrays))
        problem = f"{result.path} contains no arrays that can be written as .csv (only {held})"
        raise ConfigError("--out", problem, "Choose a .npz file, which can contain all arrays.")
    return _ExportedData(columns, None, arrays)


def _list_image_columns(store: EmbeddingStore, result: Result) -> dict[str, Values]:
    """Return the columns of a table with one row per image, with all values that the result has for each image."""
    found: dict[str, Values] = {}
    for name, value in result.arrays.items():
        per_row = name not in RESULT_COLUMNS or RESULT_COLUMNS[name].axes == ("n",)
        if per_row and isinstance(value, np.ndarray) and value.shape == (store.n,):
            found[name] = value.astype(np.uint8) if value.dtype == np.bool_ else value
    names = result.arrays.get("names")
    if names is not None and "pseudo_labels" in found:
        found["name"] = _decode_names(np.asarray(found["pseudo_labels"]), names)
    return {**_build_name_column(store), **found} if found else {}


def _build_name_column(store: EmbeddingStore) -> dict[str, Values]:
    r"""Return a column of image names; if some are not valid text, all are escaped, as the heading indicates."""
    names = store.sample_ids
    if not any(needs_escape(name) or "\\" in name for name in names):  # `import` reads a backslash as a slash
        return {"path": names}
    return {ESCAPED_COLUMN: [escape_name(name) for name in names]}


def _decode_names(numbers: NDArray[Any], names: Any) -> list[str | None]:
    """Return the class or split name of each row; bytes that are not valid text become backslash escapes."""
    known = [escape_name(name) if needs_escape(name) else name for name in names]
    return [None if number < 0 else known[number] if known else str(number) for number in numbers.tolist()]


def _generate_csv(export: _ExportedData) -> Iterator[bytes]:
    """Yield a CSV in chunks; nine significant digits represent every float32 exactly."""
    columns = [values.tolist() if isinstance(values, np.ndarray) else values for values in export.columns.values()]
    width = 0 if export.embeddings is None else export.embeddings.shape[1]
    head: Any = [*export.columns, *(f"e{number}" for number in range(width))]
    numbers_and_end = ",%.9g" * width + "\n"  # twice as fast as a writer with one cell per number
    step = max(1, BLOCK_BYTES // (4 * max(1, width)))
    for start in range(0, max(1, len(columns[0])), step):
        buffer = io.StringIO(newline="")
        writer = csv.writer(buffer, lineterminator="\n")
        if start == 0:
            writer.writerow(head)
        part = slice(start, start + step)
        numbers = [[]] * len(columns[0][part]) if export.embeddings is None else export.embeddings[part].tolist()
        for cells, row in zip(zip(*(values[part] for values in columns), strict=True), numbers, strict=True):
            writer.writerow(map(_format_cell, cells))
            buffer.seek(buffer.tell() - 1)  # the numbers replace the line feed
            buffer.write(numbers_and_end % tuple(row))
        yield buffer.getvalue().encode()


def _format_cell(value: object) -> object:
    return f"{value:.9g}" if isinstance(value, float) else "" if value is None else value

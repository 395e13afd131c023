"""Write the network of a store as ONNX, with what other programs need to prepare images for it."""

from __future__ import annotations

import time

from labelkit.commands.common.networks import recorded_network
from labelkit.commands.common.onnx_export import NotExported, missing_packages, onnx_bytes
from labelkit.commands.common.results import SimpleResult, Table
from labelkit.commands.exchange.options import ExportConfig
from labelkit.errors import CheckpointError, ConfigError, output_exists
from labelkit.store.commit import canonical_json, commit_bytes
from labelkit.store.embeddings import EmbeddingStore


def export_model(config: ExportConfig, store: EmbeddingStore) -> SimpleResult:
    """Export the network of a store as an ONNX model from images (b, c, h, w) to embeddings (b, d).

    The metadata ``preprocess`` is the JSON of the store: resize the shorter side to ``size * resize_ratio``, crop the
    center, divide by 255, subtract ``mean``, divide by ``std``.

    Raises:
        ConfigError: packages are missing, or the file is there.
        CheckpointError: the network is not here, or it has no ONNX form that gives the same embeddings.
    """
    started, out = time.monotonic(), config.file
    missing = missing_packages()
    if missing:
        problem = f"writing ONNX needs {', '.join(missing)}, which is not installed"
        raise ConfigError("--what model", problem, "Run `pip install onnx onnxruntime onnxscript`.")
    model = store.model
    network = recorded_network(model, config.checkpoint).network
    notes = {
        "name": model.name,
        "source": model.source,
        "weights_fingerprint": model.weights_fingerprint,
        "preprocess": canonical_json(model.preprocess),
    }
    try:
        content = onnx_bytes(network, notes)
    except NotExported as error:
        raise CheckpointError(model.name, f"cannot be written as ONNX: {error}", "Use it in labelkit only.") from error
    try:
        commit_bytes(out, content, replace=config.overwrite)
    except FileExistsError as error:
        raise output_exists(out) from error
    values: dict[str, object] = {
        "path": out,
        "index": config.index,
        "what": "model",
        "model": model.name,
        "dim": store.dim,
        "bytes": len(content),
        "seconds": round(time.monotonic() - started, 2),
    }
    table = Table("", ["what", "model", "dim", "bytes", "path"], [["model", model.name, store.dim, len(content), out]])
    return SimpleResult(values, (out,), (table,))

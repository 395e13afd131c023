"""Small plans, rows and stores for the store's tests; a row depends on its sample alone."""

import hashlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from labelkit.store.embeddings import EmbeddingStore, ModelIdentity, open_store
from labelkit.store.plans import EmbeddingPlan
from labelkit.store.results import write_result
from labelkit.store.schema import decode_name, encode_name
from labelkit.store.writer import FileContents
from labelkit.store.writing import EmbeddingRun

DIM = 3
NOT_UTF8 = "b/\udcff.png"
NFC, NFD = "b/\u00e9.png", "b/e\u0301.png"
SAMPLE_IDS = sorted(["a/0.png", "a/1.png", "a/10.png", "a/2 b.png", NFD, "b/x.png", NFC, NOT_UTF8], key=encode_name)
MODEL = ModelIdentity(
    name="tiny",
    weights_fingerprint="f" * 64,
    weights_file_sha256="a" * 64,
    source="tiny.safetensors",
    layer="features",
    pooling="mean",
    preprocess={"mean": [0.5], "std": [0.25], "resize": 8},
    numerics={"compute": "float32", "batch_size": 2, "threads": 1},
)


def make_plan(**changes: Any) -> EmbeddingPlan:
    values: dict[str, Any] = {
        "sample_ids": SAMPLE_IDS,
        "model": MODEL,
        "dim": DIM,
        "batch_size": 2,
        "part_rows": 4,
        "metric": "cosine",
        "created_by": "labelkit 0.1.0",
        "extras": {"logits": 2},
        "labels": np.array([0, 0, 1, 1, 2, 2, -1, 2]),
        "labeled": np.array([1, 0, 1, 0, 0, 0, 0, 0], dtype=bool),
        "class_names": ("cat", "dog", "eel"),
        "old_classes": np.array([1, 1, 0], dtype=bool),
        "splits": np.array([0, 1, 0, 1, 0, 1, -1, 0]),
        "split_names": ("train", "test"),
    }
    return EmbeddingPlan(**{**values, **changes})


def rows_of(plan: EmbeddingPlan, positions: list[int]) -> dict[str, Any]:
    digests = [hashlib.sha256(encode_name(plan.sample_ids[row])).digest() for row in positions]
    raw = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)
    return {
        "embeddings": np.resize(raw, (len(positions), plan.dim)).astype(np.float32) / 7
        if positions
        else np.zeros((0, plan.dim), np.float32),
        "sha256": raw,
        "file_sizes": np.array([100 + row for row in positions]),
        "image_sizes": np.array([[8, 9 + row] for row in positions]).reshape(-1, 2),
        **{name: np.full((len(positions), width), 0.5, np.float32) for name, width in plan.extras.items()},
    }


def write_part(run: EmbeddingRun, part: int, bad: dict[int, str] | None = None) -> None:
    start, stop = run.part_range(part)
    skipped = [(row, reason) for row, reason in (bad or {}).items() if start <= row < stop]
    kept = [row for row in range(start, stop) if row not in dict(skipped)]
    values = rows_of(run.plan, kept)
    # One row at a time, so that a row is the same in any part.
    rows = [rows_of(run.plan, [row])["embeddings"] for row in kept]
    values["embeddings"] = np.concatenate(rows) if rows else values["embeddings"]
    run.write_part(part, skipped=skipped, **values)


def make_store(
    out: Path,
    plan: EmbeddingPlan | None = None,
    *,
    bad: dict[int, str] | None = None,
    overwrite: bool = False,
    shards: int | None = None,
) -> EmbeddingStore:
    run = EmbeddingRun.open(out, plan or make_plan(), overwrite)
    for part in run.pending_parts():
        write_part(run, part, bad)
    run.publish(0.5, shards)
    return open_store(out)


def write_clusters(store: EmbeddingStore, name: str = "first", **changes: Any) -> Path:
    arrays = {"cluster_ids": np.array([0, 1, 0, 1, -1, 0, 0, 1])}
    values: dict[str, Any] = {"kind": "clusters", "arrays": arrays, "params": {"seed": 3}, "stage": "cluster k-means"}
    return write_result(store, name, **{**values, **changes})


def contents_of(path: Path) -> FileContents:
    """All that a file holds but its digests, for writing a changed copy."""
    contents = FileContents()
    with h5py.File(path) as file:

        def visit(name: str, item: Any) -> None:
            if not name.startswith("digests"):
                contents.set_attributes(name, **{key: plain(value) for key, value in item.attrs.items()})
                if isinstance(item, h5py.Dataset):
                    contents.datasets[name] = item[()] if item.dtype.kind != "S" else item[()].astype(item.dtype.str)

        contents.set_attributes(
            "", **{key: plain(value) for key, value in file.attrs.items() if key != "content_digest"}
        )
        file.visititems(visit)
    contents.attributes = {name: values for name, values in contents.attributes.items() if values or name == ""}
    return contents


def plain(value: Any) -> Any:
    return decode_name(bytes(value)) if isinstance(value, bytes) else int(value)

"""Find the images of a store that look most like a query."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from labelkit.algorithms.neighbors import knn
from labelkit.config.stages import RetrieveConfig
from labelkit.data.datasets import ImageDataset, load_dataset
from labelkit.data.decode import Channels
from labelkit.data.loading import EvalLoader
from labelkit.data.transforms import Normalize
from labelkit.engine.devices import Runtime
from labelkit.errors import ConfigError, DatasetError
from labelkit.stages.contact_sheet import Picture, write_contact_sheet
from labelkit.stages.indexes import check_features, zero_rows
from labelkit.stages.networks import EmbeddingNetwork, recorded_network
from labelkit.stages.pictures import image_pixels, indexed_images, one_image
from labelkit.stages.progress import current_progress
from labelkit.stages.result import Cell, SimpleResult, Table
from labelkit.store.embeddings import EmbeddingStore, open_store


def retrieve_images(config: RetrieveConfig) -> SimpleResult:
    """Embed the query with the store's own model and list its nearest rows, exactly.

    Raises:
        StoreError: the store cannot be used.
        DatasetError: the query is no image.
        CheckpointError: the model of the store is not here, or another one was given.
        ConfigError: more hits asked for than the store has rows.
    """
    queries = query_dataset(config.query)
    store = open_store(config.index)
    if config.k > store.n:
        raise ConfigError("-k", f"{config.k} hits from a store of {store.n} rows", "Ask for fewer.")
    runtime = Runtime(device=config.device)
    model = recorded_network(store.model, config.checkpoint)
    embedded, rows, bad = embed_queries(queries, model, runtime)
    if store.metric == "cosine":
        zero = zero_rows(embedded)
        bad += [(int(row), "its embedding is all zero, so that nothing is near it") for row in rows[zero]]
        embedded, rows = embedded[~zero], rows[~zero]
    if len(rows) == 0:
        reasons = "; ".join(f"{queries.sample_ids[row]}: {reason}" for row, reason in bad[:5])
        raise DatasetError(str(config.query), f"gives no image to look up ({reasons})", "Give a JPEG or PNG file.")
    for row, reason in bad:
        current_progress().warning(f"{queries.sample_ids[row]}: {reason}; left out")
    metric: Literal["cosine", "l2", "dot"] = store.metric  # type: ignore[assignment] # checked when opened
    gallery, gallery_rows = _gallery(store)
    if config.k > len(gallery):
        raise ConfigError("-k", f"{config.k} hits from {len(gallery)} rows that are not zero", "Ask for fewer.")
    scores, found = knn(embedded, gallery, config.k, metric=metric)
    neighbors = gallery_rows[found]

    hits: list[dict[str, object]] = []
    cells: list[list[Cell]] = []
    for q, row in enumerate(rows):
        own = queries.source.read(int(row)).sha256
        listed: list[dict[str, object]] = []
        for rank, (neighbor, score) in enumerate(zip(neighbors[q], scores[q], strict=True), start=1):
            hit = {
                "rank": rank,
                "sample_id": store.sample_ids[neighbor],
                "row": int(neighbor),
                "score": float(score),
                "label": _label(store, int(neighbor)),
                "same_file": bytes(store.sha256[neighbor]) == own,
            }
            listed.append(hit)
            name = queries.sample_ids[row]
            mark = "same file" if hit["same_file"] else ""
            cells.append([name, rank, store.sample_ids[neighbor], _label(store, int(neighbor)), float(score), mark])
        hits.append({"query": queries.sample_ids[row], "hits": listed})
    values: dict[str, object] = {
        "index": config.index,
        "metric": store.metric,
        "k": config.k,
        "model": store.model.name,
        "queries": hits,
        "skipped": [{"query": queries.sample_ids[row], "reason": reason} for row, reason in bad],
    }
    made: list[Path] = []
    if config.sheet is not None:
        images = indexed_images(store, config.dataset, config.data_root)
        made.append(_draw(config.sheet, queries, rows, store, images, neighbors, scores))
        values["sheet"] = config.sheet
    score_name = {"cosine": "cosine", "l2": "distance", "dot": "product"}[store.metric]
    shown = [Table("", ["query", "rank", "image", "label", score_name, ""], cells)]
    if made:
        shown.append(Table("", ["made", "path"], [["sheet", made[0]]]))
    return SimpleResult(values, tuple(made), tuple(shown))


def _gallery(store: EmbeddingStore) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Rows that can be found, and where they stand in the store; a zero row has no direction."""
    rows = np.arange(store.n, dtype=np.int64)
    features = check_features(store, rows)
    if store.metric != "cosine":
        return features, rows
    kept = np.flatnonzero(~zero_rows(features))
    if len(kept) == len(rows):
        return features, rows
    current_progress().warning(f"{len(rows) - len(kept)} rows of {store.path} are all zero and are never found")
    return features[kept], kept


def query_dataset(query: Path) -> ImageDataset:
    """List the query images: one file, or all images of a folder.

    Raises:
        DatasetError: it does not exist, is no image, or the folder holds none.
    """
    if query.is_dir():
        return load_dataset(str(query), data_root=query)
    if not query.exists():
        raise DatasetError(str(query), "does not exist", "Give an image file or a folder of images.")
    return one_image(query)


def embed_queries(
    queries: ImageDataset, model: EmbeddingNetwork, runtime: Runtime
) -> tuple[NDArray[np.float32], NDArray[np.int64], list[tuple[int, str]]]:
    """Return (embeddings (q, d), their rows in ``queries``, unreadable rows with reasons)."""
    spec = model.network.input_spec
    network = model.network.to(runtime.device)
    loader = EvalLoader(
        queries,
        model.view,
        batch_size=32,
        normalize=Normalize(spec.mean, spec.std),
        channels=_channels(spec.channels),
        device=runtime.device,
    )
    embedded: list[NDArray[np.float32]] = []
    kept: list[int] = []
    bad: list[tuple[int, str]] = []
    with torch.inference_mode():
        for batch in loader:
            broken = {row for row, _ in batch.bad}
            bad.extend(batch.bad)
            features = network.embed(batch.images).float().cpu().numpy()
            keep = [i for i, row in enumerate(batch.rows) if int(row) not in broken]
            embedded.append(features[keep])
            kept.extend(int(batch.rows[i]) for i in keep)
    return np.concatenate(embedded), np.asarray(kept, dtype=np.int64), bad


def _channels(number: int) -> Channels:
    return 1 if number == 1 else 3


def _label(store: EmbeddingStore, row: int) -> str | None:
    if store.labels is None or store.labels[row] < 0:
        return None
    return store.class_names[int(store.labels[row])]


def _draw(
    path: Path,
    queries: ImageDataset,
    rows: NDArray[np.int64],
    store: EmbeddingStore,
    images: ImageDataset,
    neighbors: NDArray[np.int64],
    scores: NDArray[np.float32],
) -> Path:
    position = {sample_id: row for row, sample_id in enumerate(images.sample_ids)}
    drawn: list[list[Picture]] = []
    for q, row in enumerate(rows):
        line = [Picture(image_pixels(queries, int(row)), (queries.sample_ids[row], "query"), marked=True)]
        for neighbor, score in zip(neighbors[q], scores[q], strict=True):
            sample_id = store.sample_ids[neighbor]
            found = position.get(sample_id)
            label = _label(store, int(neighbor)) or ""
            line.append(
                Picture(
                    None if found is None else image_pixels(images, found), (sample_id, f"{label} {score:.3f}".strip())
                )
            )
        drawn.append(line)
    return write_contact_sheet(path, drawn)

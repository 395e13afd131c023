"""Find the patches in a store that are most similar to a patch of a query image."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.neighbors import Metric, knn
from labelkit.commands.common.embeddings import check_rows
from labelkit.commands.common.images.read import make_pixel_reader, open_source_dataset, read_image_pixels
from labelkit.commands.common.labels import override_store_labels
from labelkit.commands.common.results import Cell, CommandResult, Table
from labelkit.commands.common.search_queries import find_class_name, is_store, list_query_images, parse_patch_position
from labelkit.commands.retrieve.options import RetrieveConfig
from labelkit.commands.retrieve.search import build_no_rows_error, select_rows
from labelkit.data.datasets import ImageDataset
from labelkit.errors import ConfigError, Mismatch
from labelkit.progress import current_progress
from labelkit.store.commit import commit_bytes
from labelkit.store.csv_table import csv_bytes
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.patches import ImagePatches, PatchSet, open_patches


@dataclass(frozen=True)
class _PatchQuery:
    """Patch of a query image, with its feature.

    Attributes:
        patches: all patches of the query image.
        number: position of the patch among these.
        feature: (d,) float32.
        own_rows: rows of the store with the same image.
        label: class of the image, if known.
        images: dataset with the image, if it is an image file.
    """

    name: str
    patches: ImagePatches
    number: int
    feature: NDArray[np.float32]
    own_rows: NDArray[np.int64]
    label: str | None
    images: ImageDataset | None


class _PatchHit(NamedTuple):
    """Search result: row of the store, row and column in the patch grid, box in pixels, and score."""

    row: int
    cell: list[int]
    box: list[float]
    score: float


def _cell_and_box(image: ImagePatches, number: int) -> tuple[list[int], list[float]]:
    """Return a patch's row and column, and its box (left, top, right, bottom) in pixels of the original image."""
    return image.cells[number].tolist(), [round(edge, 2) for edge in image.boxes()[number].tolist()]


def retrieve_patches(config: RetrieveConfig) -> CommandResult:
    """Find the patches in a store that are most similar to a patch of an image file or of a stored image.

    Patches of the query image itself are excluded unless requested.

    Raises:
        StoreError: the store has no patches, or they cannot be used.
        DatasetError: the query is not an image.
        CheckpointError: the model of the store is not on this machine, or another model was passed.
        ConfigError: the position is outside the image, no patch passes the filters, or an output file exists.
    """
    store = override_store_labels(open_store(config.index), config.labels, config.label_column)
    patches = open_patches(store)
    query = _load_query_patch(config, store, patches)
    chosen = select_rows(store, config)
    if not chosen.any():
        raise build_no_rows_error(store, config)
    if not config.own_image:
        chosen[query.own_rows] = False
    counts = np.diff(patches.offsets())
    available = int(counts[chosen].sum())
    if available == 0:
        raise ConfigError(
            "--own-image", "only patches of the query image pass the filters", "Pass --own-image, or relax the filters."
        )
    if available < config.k:
        current_progress().warning(f"only {available} patches pass the filters")
    started = time.perf_counter()
    metric: Metric = store.metric  # type: ignore[assignment] # checked when opened
    parts = ((block.features, block.start, chosen[block.image_rows]) for block in patches.iterate_blocks())
    scores, found = find_nearest_in_blocks(query.feature, parts, config.k, metric)
    offsets = patches.offsets()
    hits = []
    for score, number in zip(scores.tolist(), found.tolist(), strict=True):
        row = int(np.searchsorted(offsets, number, side="right")) - 1
        hits.append(_PatchHit(row, *_cell_and_box(patches.get_image(row), number - int(offsets[row])), score))
    return _build_result(config, store, patches, query, hits, time.perf_counter() - started)


def find_nearest_in_blocks(
    query: NDArray[np.float32],
    parts: Iterable[tuple[NDArray[np.floating], int, NDArray[np.bool_]]],
    k: int,
    metric: Metric = "cosine",
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Find the rows nearest to a query (d,) in a sequence of blocks, with only one block in memory at a time.

    Args:
        query: query vector; finite, and nonzero for ``cosine``.
        parts: blocks of rows (m, d), each with the number of its first row and a mask (m,) of the candidates. With
            ``cosine``, zero rows are never found.
        k: maximum number of rows.
        metric: as for :func:`knn`.

    Returns:
        Scores (j,) and numbers (j,) of the rows, j <= k; of equal scores, the smaller number comes first.
    """
    scores, numbers = np.empty(0, dtype=np.float32), np.empty(0, dtype=np.int64)
    for rows, start, wanted in parts:
        candidates = np.flatnonzero(wanted & rows.any(axis=1) if metric == "cosine" else wanted)
        if len(candidates):
            near, places = knn(query[None], rows[candidates], min(k, len(candidates)), metric=metric)
            scores, numbers = np.append(scores, near[0]), np.append(numbers, start + candidates[places[0]])
            order = np.lexsort((numbers, scores if metric == "l2" else -scores))[:k]
            scores, numbers = scores[order], numbers[order]
    return scores, numbers


def _load_query_patch(config: RetrieveConfig, store: EmbeddingStore, patches: PatchSet) -> _PatchQuery:
    images: ImageDataset | None = None
    if config.query_rows is not None:
        (row,) = check_rows(store, config.query_rows, "--query-rows")
        name, image, digest = store.sample_ids[row], patches.get_image(row), store.sha256[row]
        label = find_class_name(store, row)
    else:
        assert config.query is not None
        if is_store(config.query) or config.query.is_dir():
            problem = f"{config.query} is not an image file, but a patch must belong to a single image"
            raise ConfigError("--query", problem, "Pass an image file, or --query-rows ROW.")
        from labelkit.commands.common.networks import compute_query_patches, load_recorded_network  # imports PyTorch

        images = list_query_images(config.query, **config.listing_kwargs())
        model = load_recorded_network(store.model, config.checkpoint)
        layer = model.network.patch_identity["layer"]
        if layer != patches.layer:
            problem = f"its patch features come from layer {layer}, but those of the store from layer {patches.layer}"
            raise Mismatch(model.source, problem, "Recreate the store with `labelkit embed --dense`.")
        image = compute_query_patches(images, model, config.device)
        digest = np.frombuffer(images.source.read(0).sha256, dtype=np.uint8)
        name, label = images.sample_ids[0], None
    cell = _parse_query_cell(config, image, name)
    place = np.flatnonzero((image.cells == np.array(cell)).all(axis=1))
    if not len(place):
        problem = f"patch {cell[0]},{cell[1]} of {name} is not one of its {len(image.cells)} stored patches"
        kept = " ".join(f"{row},{column}" for row, column in image.cells.tolist()[:10])
        raise ConfigError("--patch", problem, f"Choose one of {kept}, or pass the image file as --query.")
    number = int(place[0])
    feature = np.asarray(image.features[number], dtype=np.float32)
    if store.metric == "cosine" and not feature.any():
        problem = f"the feature of patch {cell[0]},{cell[1]} of {name} is all zeros"
        raise ConfigError("--patch", problem, "Choose another patch.")
    own_rows = np.flatnonzero((store.sha256 == digest).all(axis=1))
    return _PatchQuery(name, image, number, feature, own_rows, label, images)


def _parse_query_cell(config: RetrieveConfig, image: ImagePatches, name: str) -> tuple[int, int]:
    rows, columns = image.grid
    if config.patch is not None:
        return parse_patch_position(config.patch, image.grid, name)
    assert config.pixel is not None
    x, y = config.pixel
    left, top, right, bottom = image.region
    if not (left <= x < right and top <= y < bottom):
        problem = f"pixel {x:g},{y:g} is outside the region of {name} that the network sees"
        remedy = f"Choose x from {left:g} to {right:g} and y from {top:g} to {bottom:g}."
        raise ConfigError("--pixel", problem, remedy)
    row, column = int((y - top) / (bottom - top) * rows), int((x - left) / (right - left) * columns)
    return min(row, rows - 1), min(column, columns - 1)


def _build_result(
    config: RetrieveConfig,
    store: EmbeddingStore,
    patches: PatchSet,
    query: _PatchQuery,
    hits: list[_PatchHit],
    seconds: float,
) -> CommandResult:
    cell, box = _cell_and_box(query.patches, query.number)
    listed: list[dict[str, object]] = []
    cells: list[list[Cell]] = []
    lines: list[list[object]] = []
    for rank, hit in enumerate(hits, start=1):
        label, name = find_class_name(store, hit.row), store.sample_ids[hit.row]
        entry = {"rank": rank, "sample_id": name, "row": hit.row, "patch": hit.cell, "box": hit.box}
        listed.append({**entry, "score": hit.score, "label": label})
        place = f"{hit.cell[0]},{hit.cell[1]}"
        cells.append([rank, name, place, " ".join(f"{edge:g}" for edge in hit.box), label, hit.score])
        lines.append([query.name, *cell, rank, name, hit.row, *hit.cell, *hit.box, label or "", f"{hit.score:.9g}"])
    values: dict[str, object] = {
        "index": config.index,
        "metric": store.metric,
        "k": config.k,
        "patches": patches.num_patches,
        "search_seconds": round(seconds, 6),
        "query": {"image": query.name, "patch": cell, "box": box, "label": query.label},
        "hits": listed,
    }
    made: list[Path] = []
    if config.csv is not None:
        columns = (
            "query", "query_row", "query_column", "rank", "path", "row", "patch_row", "patch_column",
            "left", "top", "right", "bottom", "label", "score",
        )  # fmt: skip
        commit_bytes(config.csv, csv_bytes(columns, lines))
        values["csv"] = config.csv
        made.append(config.csv)
    if config.sheet is not None:
        _write_sheet(config.sheet, config, store, query, hits)
        values["sheet"] = config.sheet
        made.append(config.sheet)
    score_name = {"cosine": "cosine", "l2": "distance", "dot": "product"}[store.metric]
    title = f"patch {cell[0]},{cell[1]} of {query.name}"
    shown = [Table(title, ["rank", "image", "patch", "box", "label", score_name], cells)]
    return CommandResult(values, tuple(made), tuple(shown))


def _write_sheet(
    path: Path, config: RetrieveConfig, store: EmbeddingStore, query: _PatchQuery, hits: list[_PatchHit]
) -> None:
    """Write a contact sheet of the query and the hits, each with a box around its patch."""
    from labelkit.commands.common.images.contact_sheet import SheetCell, draw_box, write_contact_sheet

    pixels_of = make_pixel_reader(open_source_dataset(store, config.dataset, config.data_root))

    def boxed(pixels: NDArray[np.uint8] | None, box: list[float]) -> NDArray[np.uint8] | None:
        return None if pixels is None else draw_box(pixels, box)

    cell, box = _cell_and_box(query.patches, query.number)
    query_image = boxed(pixels_of(query.name) if query.images is None else read_image_pixels(query.images, 0), box)
    line = [SheetCell(query_image, (query.name, f"query, patch {cell[0]},{cell[1]}"), frame="query")]
    for rank, hit in enumerate(hits, start=1):
        name = store.sample_ids[hit.row]
        text = f"{rank}. patch {hit.cell[0]},{hit.cell[1]} {hit.score:.3f}"
        line.append(SheetCell(boxed(pixels_of(name), hit.box), (name, text)))
    per_row = 6
    write_contact_sheet(path, [line[start : start + per_row] for start in range(0, len(line), per_row)])

"""Write one page about a store: what is in it, groups, map, neighbors, what `find` found, scores, curves.

Every part is computed here and is in the file. Neighbors are precomputed exactly: an index and a score of two bytes
each, so that 12 of them are smaller than a row of 48 numbers of one byte, from which a page could only guess them.
"""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.images.read import indexed_images
from labelkit.commands.common.labels import labels_to_use, with_labels
from labelkit.commands.common.results import Cell, SimpleResult, Table
from labelkit.data.datasets import ImageDataset
from labelkit.errors import ConfigError, DatasetError
from labelkit.progress import current_progress
from labelkit.store.commit import commit_bytes
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.studio.report.curves import read_curves
from labelkit.studio.report.findings import Finding, find_neighbors, read_findings, read_suggested
from labelkit.studio.report.groups import Grouping, choose_result, describe_groups, find_results
from labelkit.studio.report.images import ShownImages, choose_images, place_images, shown_text
from labelkit.studio.report.options import ReportConfig
from labelkit.studio.report.overview import Scores, describe_store, score_groupings
from labelkit.studio.report.page import PageContents, render_page
from labelkit.studio.report.thumbnails import (
    LOSSLESS,
    TILES,
    Thumbnails,
    image_numbers,
    make_thumbnails,
    read_thumbnails,
)
from labelkit.studio.report.work import likely_groups, start_work, suggested_images

# of each group before any other image: those that stand beside its name
_STRIP = 8
# of the page around a sheet, and of words that differ with and without thumbnails
_BYTES_PER_SHEET, _WORDS = 64, 4096


def write_report(config: ReportConfig) -> SimpleResult:
    """Write the HTML report page of a store.

    Raises:
        StoreError: the store, or the result that was asked for, cannot be used.
        CheckpointError: ``run`` is no run.
        DatasetError: the images in ``dataset`` cannot be listed, or a table in ``tables`` cannot be used.
        ConfigError: the page exists, its folder does not, or it cannot be as small as asked for.
    """
    started = time.monotonic()
    store = with_labels(open_store(config.index), config.labels, config.label_column)
    candidates = find_results(store)
    chosen = choose_result(store, config.result, candidates)
    curves = read_curves(store.model, config.run)
    source, note = _source(config, store)
    images = choose_images(store, config.max_images, config.seed)
    grouping = None if chosen is None else describe_groups(store, images, *chosen, config.examples)
    with current_progress().task(f"neighbors of {len(images):,} images", total=None):
        neighbors = find_neighbors(images, config.neighbors, store.metric)
    findings = read_findings(config.tables, store, images)
    scores: Scores | str | None = None
    if grouping is not None and store.labels is not None and (np.asarray(store.labels) >= 0).any():
        scores = score_groupings(store, candidates, grouping.result, config.seed)
    every = np.arange(len(images))
    ids = np.full(len(images), -1, dtype=np.int64) if grouping is None else grouping.ids
    choices = likely_groups(images.features, ids, 0 if grouping is None else len(grouping.groups))
    suggested = None if config.tables is None else read_suggested(config.tables, store, images)
    if suggested is None:
        suggested = suggested_images(store, images, grouping, labels_to_use(None, store, images.rows), config.seed)
    page = PageContents(
        title=shown_text(store.path.name),
        images=images,
        store_rows=store.n,
        class_names=store.class_names,
        split_names=store.split_names,
        splits=np.full(len(every), -1, dtype=np.int16) if store.splits is None else store.splits[images.rows],
        usable=np.zeros(len(every), dtype=bool) if store.labeled is None else store.labeled[images.rows],
        overview=describe_store(store),
        candidates=candidates,
        grouping=grouping,
        neighbors=neighbors,
        findings=findings,
        places=place_images(images.features, config.projection, config.seed),
        scores=scores,
        curves=curves,
        thumbnails=_no_thumbnails(len(images)),
        images_note=note,
        max_size=config.max_size,
        numbers=image_numbers(_file_digests(store, images.rows)),
        start=start_work(store, images, grouping, choices, suggested),
    )
    order = _order(images, grouping, findings)
    page = replace(page, thumbnails=_thumbnails(config, store, images, source, order, len(render_page(page))))
    content = render_page(page)
    if len(content) > config.max_bytes:
        raise ConfigError("--max-size", f"the page needs {len(content):,} bytes", "Raise --max-size slightly.")
    commit_bytes(config.out, content)
    return _summary(config, page, len(content), time.monotonic() - started)


def _source(config: ReportConfig, store: EmbeddingStore) -> tuple[ImageDataset | None, str]:
    """Return the images, or nothing and the reason; images that were named have to be there."""
    if not store.has_images:
        if config.dataset is not None:
            raise DatasetError(
                str(store.path),
                "was imported without images, so none can be compared with it",
                "Leave out --dataset, or import the embeddings again with --images.",
            )
        return None, "the rows were imported without their images"
    try:
        return indexed_images(store, config.dataset, config.data_root), ""
    except DatasetError as error:
        if config.dataset is not None:
            raise
        current_progress().warning(f"{error}; the page shows no images")
        return None, shown_text(error.problem)


def _thumbnails(
    config: ReportConfig,
    store: EmbeddingStore,
    images: ShownImages,
    source: ImageDataset | None,
    order: list[int],
    page_bytes: int,
) -> Thumbnails:
    room = config.max_bytes - page_bytes - _WORDS - _BYTES_PER_SHEET * (len(images) // TILES + 1)
    if room < 0:
        raise ConfigError(
            "--max-size",
            f"the page needs {config.max_bytes - room:,} bytes even without images, more than {config.max_size}",
            "Raise --max-size, or lower --max-images or --neighbors.",
        )
    place = {} if source is None else {name: row for row, name in enumerate(source.sample_ids)}
    rows = np.array([place.get(store.sample_ids[int(row)], -1) for row in images.rows], dtype=np.int64)
    known = np.asarray(store.image_sizes)[images.rows] if store.has_images else np.zeros((len(rows), 2), np.uint32)
    earlier = read_thumbnails(config.out, config.max_size) if store.has_images else None
    made = make_thumbnails(source, rows, _file_digests(store, images.rows), known, order, room, earlier)
    if made.missing and source is not None:
        reasons = ", ".join(f"{count} {reason}" for reason, count in made.missing.items())
        current_progress().warning(f"{sum(made.missing.values())} images are shown as placeholders: {reasons}")
    if made.left_out:
        current_progress().warning(f"{made.left_out} images have no thumbnail: the page would exceed {config.max_size}")
    return made


def _file_digests(store: EmbeddingStore, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return (m, 32) digests of image files; where none are known, each row has one of its own."""
    if store.has_images:
        return np.asarray(store.sha256)[rows]
    own = np.zeros((len(rows), 4), dtype="<u8")
    own[:, 0] = np.arange(len(rows))
    return own.view(np.uint8)


def _no_thumbnails(count: int) -> Thumbnails:
    return Thumbnails(0, 1, (), np.full(count, -1, np.int32), np.zeros((count, 2), np.uint8), {}, 0)


def _order(images: ShownImages, grouping: Grouping | None, findings: tuple[Finding, ...]) -> list[int]:
    """All images, the most important first: strips of the groups, what stands in lists, then group by group."""
    groups = () if grouping is None else grouping.groups
    listed = chain(
        (image for group in groups for image in group.typical[:_STRIP]),
        (image for found in findings for card in found.cards for image in card.images if image >= 0),
        (image for group in groups for image in (*group.typical, *group.doubtful)),
    )
    ids: NDArray[np.int64] = np.zeros(len(images), np.int64) if grouping is None else grouping.ids
    return list(dict.fromkeys(chain(listed, np.argsort(ids, kind="stable").tolist())))


def _summary(config: ReportConfig, page: PageContents, size: int, seconds: float) -> SimpleResult:
    thumbnails, grouping = page.thumbnails, page.grouping
    values: dict[str, object] = {
        "path": config.out,
        "bytes": size,
        "images": page.store_rows,
        "shown": len(page.images),
        "thumbnails": {
            "side": thumbnails.side,
            "quality": "lossless" if thumbnails.quality == LOSSLESS else thumbnails.quality,
            "count": thumbnails.count,
            "placeholders": dict(thumbnails.missing),
            "left_out": thumbnails.left_out,
        },
        "result": None if grouping is None else grouping.result.name,
        "groups": 0 if grouping is None else len(grouping.groups),
        "findings": {found.table: found.count for found in page.findings},
        "projection": config.projection,
        "run": None if page.curves is None else page.curves.run,
        "seconds": round(seconds, 2),
    }
    made = f"{thumbnails.side} px" if thumbnails.count else None
    cells: list[Cell] = [
        page.store_rows,
        thumbnails.count,
        made,
        "-" if grouping is None else grouping.result.name,
        0 if grouping is None else len(grouping.groups),
        round(size / 1e6, 2),
        round(seconds, 1),
    ]
    columns = ["images", "thumbnails", "side", "result", "groups", "MB", "seconds"]
    return SimpleResult(values, (config.out,), (Table("", columns, [cells]),))

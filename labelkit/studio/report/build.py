"""Write a report page about a store: its contents, groups, map, neighbors, findings of `find`, and scores.

Everything is computed here and stored in the file. Neighbors are precomputed exactly: with two bytes each for index and
score, 12 neighbors take no more space than 48 one-byte features, from which a page could only approximate them.
"""

import time
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.labels import choose_usable_labels, override_store_labels
from labelkit.commands.common.results import Cell, CommandResult, Table
from labelkit.errors import ConfigError
from labelkit.progress import current_progress
from labelkit.store.commit import commit_bytes
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.studio.report.findings import FindingsSection, find_neighbors, read_findings, read_suggested
from labelkit.studio.report.groups import Grouping, choose_result, describe_groups, read_all_results
from labelkit.studio.report.images import ShownImages, choose_images, compute_map_positions, escape_for_page
from labelkit.studio.report.options import ReportConfig
from labelkit.studio.report.overview import describe_store, score_groupings
from labelkit.studio.report.page import build_groups_data, build_neighbors_data, build_page_data, render_page
from labelkit.studio.report.thumbnails import (
    LOSSLESS,
    TILES,
    PageImages,
    Thumbnails,
    compute_image_ids,
    make_thumbnails,
    open_page_images,
    read_thumbnails,
)
from labelkit.studio.report.work import build_labeling_data, find_likely_groups, list_suggested_images

# Maximum number of typical images, and of doubtful images, of a group.
_EXAMPLES = 18
# Number of typical images shown next to the name of a group; they get thumbnails before all other images.
_STRIP = 8
# Bytes of HTML around each sheet of thumbnails, and a limit for text that differs with and without thumbnails.
_BYTES_PER_SHEET, _WORDS = 64, 4096


def write_report(config: ReportConfig) -> CommandResult:
    """Write the HTML report page of a store.

    Raises:
        StoreError: the store or the requested result cannot be used.
        DatasetError: the images in ``dataset`` cannot be listed, or a table in ``tables`` cannot be used.
        ConfigError: the page already exists, its folder does not, or the page exceeds the maximum size.
    """
    started = time.monotonic()
    store = override_store_labels(open_store(config.index), config.labels, config.label_column)
    results = read_all_results(store)
    chosen = choose_result(store, config.result, results)
    images = choose_images(store, config.max_images, config.seed)
    pictures, note = open_page_images(config, store, images.rows)
    grouping = None if chosen is None else describe_groups(store, images, *chosen, _EXAMPLES)
    with current_progress().task(f"neighbors of {len(images):,} images", total=None):
        near, near_scores = find_neighbors(images, config.neighbors, store.metric)
    findings = read_findings(config.tables, store, images)
    scores: dict[str, Any] | str | None = None
    if grouping is not None and store.labels is not None and (np.asarray(store.labels) >= 0).any():
        scores = score_groupings(store, results, grouping.result, config)
    nobody = np.full(len(images), -1, dtype=np.int64)
    ids, groups = (nobody, ()) if grouping is None else (grouping.ids, grouping.groups)
    choices = find_likely_groups(images.features, ids, len(groups))
    suggested = None if config.tables is None else read_suggested(config.tables, store, images)
    if suggested is None:
        given = choose_usable_labels(None, store, images.rows)
        suggested = list_suggested_images(store, images, grouping, given, config.seed)
    points, words = compute_map_positions(images.features, config.projection, config.seed)
    score_range, neighbor_columns = build_neighbors_data(near, near_scores)
    usable = np.zeros(store.n, dtype=bool) if store.labeled is None else store.labeled
    page: dict[str, Any] = {
        "title": escape_for_page(Path(config.dataset).name if config.tables and config.dataset else store.path.name),
        "index": escape_for_page(store.path.name),
        "num_images": store.n,
        "num_shown": len(images),
        "overview": describe_store(store),
        "results": results,
        "grouping": grouping,
        "neighbors": config.neighbors,
        "findings": findings,
        "map": words,
        "scores": scores,
        "images_note": note,
        "max_size": config.max_size,
        "suggested": suggested,
    }
    columns = {
        "label": images.labels,
        "usable": usable[images.rows],
        "split": nobody if store.splits is None else store.splits[images.rows],
        "point": points,
        "image": compute_image_ids(pictures.sha256),
        "choice": choices,
        **neighbor_columns,
    }
    work = build_labeling_data(store, images, grouping, choices, suggested)

    def rendered(thumbnails: Thumbnails) -> bytes:
        data = build_page_data(
            images,
            grouping,
            store.metric,
            {**columns, "tile": thumbnails.tiles, "tileSize": thumbnails.sizes},
            classes=[escape_for_page(name) for name in store.class_names],
            splits=[escape_for_page(name) for name in store.split_names],
            groups=[] if grouping is None else build_groups_data(grouping),
            neighbors=config.neighbors,
            scoreRange=score_range,
            side=thumbnails.side,
            quality=thumbnails.quality,
            maxSize=config.max_size,
            tilesPerSheet=TILES,
            work=work,
        )
        return render_page({**page, "thumbnails": thumbnails}, data)

    order = _order(images, grouping, findings)
    nothing = Thumbnails(0, 1, (), nobody.astype(np.int32), np.zeros((len(images), 2), np.uint8), {}, 0)
    thumbnails = _thumbnails(config, store, images, pictures, order, len(rendered(nothing)))
    content = rendered(thumbnails)
    if len(content) > config.max_bytes:
        problem = f"the page takes {len(content):,} bytes"
        raise ConfigError("--max-size", problem, f"Set --max-size to at least {len(content) // 1000 + 1}kB.")
    commit_bytes(config.out, content)
    return _summary(config, {**page, "thumbnails": thumbnails}, len(content), time.monotonic() - started)


def _thumbnails(
    config: ReportConfig,
    store: EmbeddingStore,
    images: ShownImages,
    pictures: PageImages,
    order: list[int],
    page_bytes: int,
) -> Thumbnails:
    room = config.max_bytes - page_bytes - _WORDS - _BYTES_PER_SHEET * (len(images) // TILES + 1)
    if room < 0:
        problem = f"even without images, the page takes {config.max_bytes - room:,} bytes, more than {config.max_size}"
        raise ConfigError("--max-size", problem, "Increase --max-size, or reduce --max-images or --neighbors.")
    known = np.asarray(store.image_sizes)[images.rows] if store.has_images else np.zeros((len(images), 2), np.uint32)
    earlier = read_thumbnails(config.out, config.max_size) if store.has_images else None
    made = make_thumbnails(pictures, known, order, room, earlier)
    if made.missing and pictures.source is not None:
        reasons = ", ".join(f"{count} {reason}" for reason, count in made.missing.items())
        current_progress().warning(f"{sum(made.missing.values())} images are shown as placeholders: {reasons}")
    if made.left_out:
        current_progress().warning(f"{made.left_out} images have no thumbnail: the page would exceed {config.max_size}")
    return made


def _order(images: ShownImages, grouping: Grouping | None, findings: tuple[FindingsSection, ...]) -> list[int]:
    """Return all images, most important first: the most typical of each group, those in lists, then the others."""
    groups = () if grouping is None else grouping.groups
    listed = chain(
        (image for group in groups for image in group.typical[:_STRIP]),
        (image for found in findings for card in found.cards for image in card["images"] if image >= 0),
        (image for group in groups for image in (*group.typical, *group.doubtful)),
    )
    ids: NDArray[np.int64] = np.zeros(len(images), np.int64) if grouping is None else grouping.ids
    return list(dict.fromkeys(chain(listed, np.argsort(ids, kind="stable").tolist())))


def _summary(config: ReportConfig, page: Mapping[str, Any], size: int, seconds: float) -> CommandResult:
    thumbnails, grouping = page["thumbnails"], page["grouping"]
    groups = 0 if grouping is None else len(grouping.groups)
    values: dict[str, object] = {
        "path": config.out,
        "bytes": size,
        "images": page["num_images"],
        "shown": page["num_shown"],
        "thumbnails": {
            "side": thumbnails.side,
            "quality": "lossless" if thumbnails.quality == LOSSLESS else thumbnails.quality,
            "count": thumbnails.count,
            "placeholders": dict(thumbnails.missing),
            "left_out": thumbnails.left_out,
        },
        "result": None if grouping is None else grouping.result.name,
        "groups": groups,
        "findings": {found.table: found.count for found in page["findings"]},
        "projection": config.projection,
        "seconds": round(seconds, 2),
    }
    cells: list[Cell] = [
        page["num_images"],
        thumbnails.count,
        f"{thumbnails.side} px" if thumbnails.count else None,
        "-" if grouping is None else grouping.result.name,
        groups,
        round(size / 1e6, 2),
        round(seconds, 1),
    ]
    table = Table("", ["images", "thumbnails", "side", "result", "groups", "MB", "seconds"], [cells])
    return CommandResult(values, (config.out,), (table,))

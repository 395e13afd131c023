"""Find outliers in a store: images unlike all others, or blank, dark, bright, blurred, tiny or oddly shaped ones."""

import math
from collections import Counter

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labelkit.algorithms.outliers import MIN_IMAGES, REASONS, compute_neighbor_z_scores, measure_quality, outlier_scores
from labelkit.commands.common.embeddings import find_split_rows, load_rows
from labelkit.commands.common.results import Cell, CommandResult, Table
from labelkit.commands.find.nearest import find_nearest_other_embeddings
from labelkit.commands.find.options import FindOddConfig
from labelkit.commands.find.stored_images import StoredImages, write_findings
from labelkit.data.path_rule import escape_path
from labelkit.progress import current_progress
from labelkit.store.embeddings import open_store

COLUMNS = ("path", "reasons", "times_limit", "unlike", "brightness", "contrast", "sharpness", "width", "height")

# maximum shorter side in pixels to which images are downscaled for measuring sharpness
_SIDE = 256
_SHOWN = 20


def find_outliers(config: FindOddConfig) -> CommandResult:
    """Find outliers among the images of a store, and write them to a CSV with reasons, most unusual first.

    In stores imported without images, only the embeddings are checked.

    Raises:
        StoreError: the store cannot be used.
        DatasetError: the images are missing.
        ConfigError: files would be overwritten.
    """
    store = open_store(config.index)
    rows = find_split_rows(store, config.split)
    images = StoredImages(store, rows, config) if store.has_images or config.sheet is not None else None
    if images is None:
        current_progress().warning(f"{store.path} has no image files, so only embeddings are checked")
    if len(rows) < MIN_IMAGES:
        current_progress().warning(
            f"{len(rows)} images are too few to find outliers by comparison, so images are not compared with each other"
        )
    tones = sizes = usual = None
    if images is not None:
        tones, sizes = _measure_all_tones(images), np.asarray(store.image_sizes, dtype=np.int64)[rows]
        # dark or blurred images are near outliers in the embedding space, and would make them look normal
        usual = (outlier_scores(tones=tones, sizes=sizes) == 0).all(axis=1)
        if int(usual.sum()) < MIN_IMAGES:
            usual = None
    cosines, _ = find_nearest_other_embeddings(load_rows(store, rows), config.neighbors, "nearest embeddings", usual)
    distances = 1 - cosines[:, -1].astype(np.float64)
    scores = outlier_scores(distances, tones, sizes)
    highest = scores.max(axis=1)
    odd = np.flatnonzero(highest > 0)
    odd = odd[np.lexsort((odd, -highest[odd]))]
    names = [store.sample_ids[int(row)] for row in rows[odd]]
    reasons = [[REASONS[i] for i in np.argsort(-scores[place], kind="stable") if scores[place, i] > 0] for place in odd]
    unlike = compute_neighbor_z_scores(distances)
    lines: list[list[object]] = []
    for place, name, why in zip(odd.tolist(), names, reasons, strict=True):
        numbers = [unlike[place], *(() if tones is None else tones[place])]
        shape: list[object] = ["", ""] if sizes is None else [int(sizes[place, 1]), int(sizes[place, 0])]
        written = ["" if math.isnan(number) else f"{number:.4g}" for number in numbers] + [""] * (4 - len(numbers))
        lines.append([escape_path(name), "; ".join(why), f"{highest[place]:.4g}", *written, *shape])
    write_findings(config, COLUMNS, lines)
    if images is not None:
        images.write_grouped_sheet(
            config,
            [[(place, (images.path(place), ", ".join(why)))] for place, why in zip(odd.tolist(), reasons, strict=True)],
        )
    tally = Counter(reason for why in reasons for reason in why)
    sheet = config.sheet if names else None
    values: dict[str, object] = {
        "index": config.index,
        "csv": config.out,
        "sheet": sheet,
        "images": len(rows),
        "left_out": [] if images is None else images.describe_skipped_images(),
        "odd_images": len(names),
        "reasons": [{"reason": reason, "images": tally[reason]} for reason in REASONS],
        "odd": [
            {"path": name, "reasons": why, "times_limit": float(score)}
            for name, why, score in zip(names, reasons, highest[odd], strict=True)
        ],
    }
    counts: list[list[Cell]] = [[reason, tally[reason]] for reason in REASONS if tally[reason]]
    tables = [Table(f"{len(names)} of {len(rows)} images are outliers", ["reason", "images"], counts)]
    shown: list[list[Cell]] = [
        [name, ", ".join(why), round(float(score), 2)]
        for name, why, score in zip(names[:_SHOWN], reasons, highest[odd], strict=False)
    ]
    if shown:
        more = f", the {_SHOWN} most unusual" if len(names) > _SHOWN else ""
        tables.append(Table(f"outliers{more}", ["path", "reasons", "times the limit"], shown))
    made = (config.out,) if sheet is None else (config.out, sheet)
    return CommandResult(values, made, tuple(tables))


def _measure_all_tones(images: StoredImages) -> NDArray[np.float64]:
    """Return the brightness, contrast and sharpness (n, 3) of all images; NaN for unreadable images."""

    def measured(pixels: NDArray[np.uint8]) -> tuple[float, float, float]:
        gray = Image.fromarray(pixels[:, :, 0])
        scale = _SIDE / min(gray.size)
        if scale < 1:
            gray = gray.resize(
                (math.ceil(scale * gray.width), math.ceil(scale * gray.height)), Image.Resampling.LANCZOS
            )
        return measure_quality(np.asarray(gray, dtype=np.uint8))

    tones = np.full((len(images.rows), 3), np.nan)
    for place, found in images.apply_to_images(measured, _SIDE, "reading images"):
        tones[place] = found
    return tones

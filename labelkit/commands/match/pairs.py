"""Find pairs of images of a store that show the same thing, and write them for training.

Source: TAC-CCL, Sec. 4.3.4; thresholds are ours.
    1. candidates: the nearest images by embedding, of the same cluster where there are clusters
    2. affine SIFT keypoints of every image
    3. keypoints that match, and the homography that explains them; pairs with too few inliers are no match
    4. for every image, the partners with most inliers
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from labelkit.algorithms.affine_sift import opencv_version, require_opencv, use_one_thread
from labelkit.algorithms.clustering import kmeans
from labelkit.algorithms.neighbors import knn
from labelkit.commands.common.embeddings import check_features, split_rows, unit_rows
from labelkit.commands.common.images.contact_sheet import write_png
from labelkit.commands.common.images.read import indexed_images
from labelkit.commands.common.outputs import check_output
from labelkit.commands.common.results import SimpleResult, Table
from labelkit.commands.match.keypoints import KeypointReader, match_pairs
from labelkit.commands.match.options import MatchConfig
from labelkit.data.datasets import ImageDataset
from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import ConfigError, DatasetError
from labelkit.progress import current_progress
from labelkit.store.array_files import Matches, MatchFile, join_matches, write_matches
from labelkit.store.embeddings import EmbeddingStore, open_store

# Nearest images that each image is compared with, and partners that are kept of it, those with most inliers.
_CANDIDATES, _PARTNERS = 20, 2
_SIDE, _GAP, _TEXT, _MOST = 192, 8, 16, 12


def match_images_of_store(config: MatchConfig) -> SimpleResult:
    """Find images of a store that show the same thing, and write the matches; a stopped run continues from the cache.

    Raises:
        StoreError: the store cannot be used.
        OutputExistsError: the output is there and holds something else.
        ConfigError: fewer images than clusters, nowhere to draw, or no OpenCV.
        DatasetError: the images are not there, or other ones than were embedded.
    """
    require_opencv()
    out = config.out or config.index.with_name(f"{config.index.stem}-matches.h5")
    check_output(config, out, "matches")
    store = open_store(config.index)
    rows = split_rows(store, config.split)
    if len(rows) < 2:
        raise ConfigError(
            "--index", f"{config.index} has only {len(rows)} image to compare", "Use a store with more images."
        )
    images = indexed_images(store, config.dataset, config.data_root)
    dataset_rows = _rows_of_images(store, rows, images)
    sha256 = np.asarray(store.sha256)[rows]
    pairs, keypoints, found, times, cached_pairs = _compare(config, store, rows, images, dataset_rows)
    counts = keypoints.num_keypoints
    kept = best_partners(found, _PARTNERS)
    recipe = {
        "opencv": opencv_version(),
        "store": store.content_digest,
        "split": config.split,
        "num_clusters": config.num_clusters,
        "candidates": _CANDIDATES,
        "partners": _PARTNERS,
        "seed": config.seed,
    }
    ids = tuple(store.sample_ids[row] for row in rows)
    written = MatchFile(kept, ids, sha256, np.asarray(store.image_sizes)[rows], counts, recipe, "")
    values: dict[str, object] = {
        "path": out,
        "content_digest": write_matches(out, written, overwrite=config.overwrite),
        "index": config.index,
        "images": len(rows),
        "without_keypoints": int((counts == 0).sum()),
        "unreadable": int((counts < 0).sum()),
        "mean_keypoints": round(float(np.maximum(counts, 0).mean()), 1),
        "compared": len(pairs),
        "matched": len(found),
        "kept": len(kept),
        "covered": len(np.unique(kept.pairs[:, 0])),
        "same_class": _same_class(store, rows, found.pairs),
        "same_class_compared": _same_class(store, rows, pairs),
        "keypoints_from_cache": keypoints.from_cache,
        "pairs_from_cache": cached_pairs,
        "keypoint_seconds": round(times[0], 2),
        "seconds": round(times[1], 2),
    }
    if keypoints.from_cache or cached_pairs:
        current_progress().message(
            f"taken from the cache: keypoints of {keypoints.from_cache} of {len(rows)} images, "
            f"{cached_pairs} of {len(pairs)} compared pairs"
        )
    if values["without_keypoints"]:
        first = ids[int(np.flatnonzero(counts == 0)[0])]
        current_progress().message(
            f"{values['without_keypoints']} images have no keypoints and cannot be matched (first: {first})"
        )
    paths: tuple[Path, ...] = (out,)
    if config.sheet is not None:
        if len(found):
            write_match_sheet(config.sheet, found, images, dataset_rows)
            paths, values["sheet"] = (out, config.sheet), config.sheet
        else:
            current_progress().warning("there is no match to draw")
    return SimpleResult(values, paths, (_table(values),))


def _compare(
    config: MatchConfig,
    store: EmbeddingStore,
    rows: NDArray[np.int64],
    images: ImageDataset,
    dataset_rows: NDArray[np.int64],
) -> tuple[NDArray[np.int64], KeypointReader, Matches, tuple[float, float], int]:
    """Find candidates, keypoints and matches; threads work on both, and a stop leaves what is in the cache.

    Returns the pairs (p, 2) that were compared, keypoints, matches, seconds until the keypoints were there and in all,
    and the pairs that had been compared before.
    """
    sha256 = np.asarray(store.sha256)[rows]
    progress = current_progress()
    started = time.monotonic()
    pairs = candidate_pairs(config, unit_rows(check_features(store, rows)))
    use_one_thread()
    keypoints = KeypointReader(images, dataset_rows, sha256)
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        with progress.task("keypoints", total=len(rows)) as task:
            keypoints.find_all_keypoints(pool, task)
        keypoint_seconds = time.monotonic() - started
        with progress.task("matching", total=len(pairs)) as task:
            found, cached_pairs = match_pairs(keypoints, pairs, sha256, pool, task)
    finally:
        pool.shutdown(cancel_futures=True)
    return pairs, keypoints, found, (keypoint_seconds, time.monotonic() - started), cached_pairs


def _rows_of_images(store: EmbeddingStore, rows: NDArray[np.int64], images: ImageDataset) -> NDArray[np.int64]:
    position = {sample_id: row for row, sample_id in enumerate(images.sample_ids)}
    missing = [store.sample_ids[row] for row in rows if store.sample_ids[row] not in position]
    if missing:
        raise DatasetError(
            images.name,
            f"{len(missing)} of {len(rows)} images of {store.path} are missing (first: {missing[0]})",
            "Restore these images, or pass --dataset (and --data-root).",
        )
    return np.array([position[store.sample_ids[row]] for row in rows], dtype=np.int64)


def candidate_pairs(config: MatchConfig, features: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the row pairs (p, 2) to compare, first below second, sorted: nearest neighbors, within clusters if any."""
    if config.num_clusters is None:
        groups = [np.arange(len(features))]
    else:
        if config.num_clusters > len(features):
            raise ConfigError(
                "--num-clusters", f"{config.num_clusters} clusters for {len(features)} images", "Choose fewer clusters."
            )
        found = kmeans(
            features, config.num_clusters, generator=keyed_generator(config.seed, "match clusters"), num_inits=3
        )
        groups = [np.flatnonzero(found.cluster_ids == i) for i in range(config.num_clusters)]
    listed = [np.zeros((0, 2), dtype=np.int64)]
    for members in groups:
        number = min(_CANDIDATES, len(members) - 1)
        if number < 1:
            continue
        # l2: the embedding of an image may be zero, which has no direction
        _, nearest = knn(features[members], features[members], number, metric="l2", exclude_self=True)
        listed.append(np.stack((np.repeat(members, number), members[nearest.reshape(-1)]), axis=1))
    pairs = np.sort(np.concatenate(listed), axis=1)
    return np.unique(pairs, axis=0)


def best_partners(found: Matches, partners: int) -> Matches:
    """Keep the partners with the most inliers for each image, with every match in both directions."""
    both = join_matches([found, found.reversed()])
    order = np.lexsort((both.pairs[:, 1], -both.inliers, both.pairs[:, 0]))
    first = both.pairs[order, 0]
    starts = np.flatnonzero(np.diff(first, prepend=-1))
    place = np.arange(len(first)) - np.repeat(starts, np.diff(np.append(starts, len(first))))
    kept = order[place < partners]
    return both.take(kept[np.lexsort((both.pairs[kept, 1], both.pairs[kept, 0]))])


def _same_class(store: EmbeddingStore, rows: NDArray[np.int64], pairs: NDArray[np.int64]) -> float | None:
    """Share of the pairs whose images have the same label; for reading only, nothing is chosen by it."""
    if store.labels is None:
        return None
    labels = np.asarray(store.labels)[rows][pairs]
    known = (labels >= 0).all(axis=1)
    return round(float((labels[known, 0] == labels[known, 1]).mean()), 4) if known.any() else None


def _table(values: dict[str, object]) -> Table:
    names = ("images", "without_keypoints", "compared", "matched", "covered", "same_class", "seconds")
    cells = [cell if isinstance(cell := values[name], int | float | str) else None for name in names]
    title = "matched: pairs of images; covered: images with a partner; same class: of the matched pairs, where known"
    return Table(title, [name.replace("_", " ") for name in names], [cells])


def write_match_sheet(path: Path, matches: Matches, images: ImageDataset, dataset_rows: NDArray[np.int64]) -> Path:
    """Draw up to 12 matches on a contact sheet, from the most inliers to the fewest.

    Raises:
        ResourceError: it cannot be written.
    """
    order = np.argsort(-matches.inliers, kind="stable")
    shown = order[np.unique(np.linspace(0, len(order) - 1, min(_MOST, len(order))).round().astype(np.int64))]
    font = ImageFont.load_default(size=11)
    sheet = Image.new("RGB", (3 * _GAP + 2 * _SIDE, _GAP + len(shown) * (_SIDE + _TEXT + _GAP)), "white")
    draw = ImageDraw.Draw(sheet)
    for i, number in enumerate(shown.tolist()):
        top = _GAP + i * (_SIDE + _TEXT + _GAP)
        places = []
        for side, row in enumerate(matches.pairs[number].tolist()):
            left = _GAP + side * (_SIDE + _GAP)
            pixels = images.source.read(int(dataset_rows[row])).decode(images.in_channels)
            picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).convert("RGB")
            sheet.paste(picture.resize((_SIDE, _SIDE)), (left, top))
            points = matches.keypoints[number, : matches.keypoint_counts[number], side]
            places.append((points + 1) / 2 * _SIDE + (left, top))
        for (x0, y0), (x1, y1) in zip(*places, strict=True):
            draw.line((x0, y0, x1, y1), fill="#2ca02c")
        draw.text((_GAP, top + _SIDE + 1), f"{int(matches.inliers[number])} inliers", fill="black", font=font)
    write_png(path, sheet)
    return path

"""Find near-duplicates in a store: identical files, edited or rotated copies, and photos of the same scene.

Candidate pairs are nearest neighbors by embedding or by pixels (16 x 16 gray values); they are aligned and compared
pixel by pixel. See :mod:`labelkit.algorithms.near_duplicates`. Images are read in threads; with ``--cache``, a later
run reads and compares only new images.
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labelkit.algorithms.near_duplicates import (
    SIDE,
    AlignedPairCorrelations,
    compare_image_pairs,
    compute_thumbnail_vectors,
)
from labelkit.algorithms.neighbors import ExactSearch
from labelkit.commands.common.embeddings import find_split_rows, load_rows
from labelkit.commands.common.results import Cell, CommandResult, Table
from labelkit.commands.find.nearest import find_nearest_other_embeddings
from labelkit.commands.find.options import FindDuplicatesConfig
from labelkit.commands.find.stored_images import StoredImages, write_findings
from labelkit.data.path_rule import escape_path
from labelkit.progress import current_progress
from labelkit.store.commit import commit_file
from labelkit.store.embeddings import EmbeddingStore, open_store

COLUMNS = ("image_a", "image_b", "kind", "similarity", "cluster")
KINDS = ("same file", "edited copy", "turned copy", "same scene")
_SCENE_KIND = KINDS.index("same scene")
_CACHE_VERSION = 1
"""Version of the cache file; it changes if thumbnails or correlations are computed differently."""

# Minimum correlations by the resolution at which a pair is compared. Edited copy: of details, and of the second-worst
# region; same scene: of details. Chosen on synthetic copies and by visual inspection, see docs/guides/find.md.
_SAME_DETAIL = {64: 0.92, 32: 0.88, 16: 0.85}
_SAME_REGION = {64: 0.80, 32: 0.70, 16: 0.65}
_BURST = {64: 0.50, 32: 0.70, 16: 0.80}
_SHOWN = 10
#: Minimum correlation of gray values at 16 x 16 pixels between a mirrored or rotated image and its copy.
_TURNED = 0.8
_TURNED_AT_ONCE = 4096
_COARSE = 16


def find_duplicates(config: FindDuplicatesConfig) -> CommandResult:
    """Find pairs of images that are identical files, copies, or views of the same scene, and write them to a CSV.

    Raises:
        StoreError: the store cannot be used, or was imported without images.
        DatasetError: the images are missing.
        ConfigError: files would be overwritten.
    """
    store = open_store(config.index)
    rows = find_split_rows(store, config.split)
    images = StoredImages(store, rows, config)
    _, first, ids = np.unique(np.asarray(store.sha256)[rows], axis=0, return_index=True, return_inverse=True)
    firsts = first[ids.reshape(-1)]
    again = np.flatnonzero(firsts != np.arange(len(rows)))
    same_file = np.stack([firsts[again], again], axis=1).astype(np.int64)
    kept = _read_cache(config.cache)
    place_of = {digest.tobytes(): place for place, digest in enumerate(kept["sha256"])}
    known = np.array([place_of.get(digest.tobytes(), -1) for digest in np.asarray(store.sha256)[rows]], dtype=np.int64)
    places, pictures = _load_thumbnails(images, np.setdiff1d(np.arange(len(rows)), again), known, kept["pictures"])
    _, near = find_nearest_other_embeddings(load_rows(store, rows[places]), config.neighbors, "nearest embeddings")
    coarse = compute_thumbnail_vectors(pictures)
    _, near_pixels = find_nearest_other_embeddings(coarse, config.neighbors, "nearest pixels")
    pairs = _merge_neighbor_pairs(near, near_pixels)
    sides = np.asarray(store.image_sizes)[rows[places]].min(axis=1)
    agreement = _compare_thumbnails(pictures, sides, pairs, known[places][pairs], kept)
    if config.cache is not None:
        digests = np.asarray(store.sha256)[rows[places]]
        cached: dict[str, Any] = {"version": _CACHE_VERSION, "sha256": digests, "pictures": pictures, "pairs": pairs}
        commit_file(config.cache, lambda file: np.savez(file, **cached, **vars(agreement)))
    turned = _find_rotated_copies(pictures, coarse, sides)
    found, kinds, scores, numbers = _classify_pairs(
        store, rows, same_file, places[pairs], agreement, (places[turned[0]], turned[1]), bursts=config.bursts
    )
    lines: list[list[object]] = []
    members: dict[int, tuple[str, dict[int, None]]] = {}  # by cluster: its kind, and its positions in order
    for (a, b), kind, score, cluster in zip(found.tolist(), kinds.tolist(), scores, numbers.tolist(), strict=True):
        lines.append([escape_path(images.path(a)), escape_path(images.path(b)), KINDS[kind], f"{score:.4f}", cluster])
        _, of_cluster = members.setdefault(cluster, ("same scene" if kind == _SCENE_KIND else "copies", {}))
        of_cluster |= {a: None, b: None}
    write_findings(config, COLUMNS, lines)
    clusters = [(cluster, kind, list(of_cluster)) for cluster, (kind, of_cluster) in sorted(members.items())]
    lines_drawn = [[(at, (images.path(at), f"{number} {kind}")) for at in them] for number, kind, them in clusters]
    images.write_sheet(config, lines_drawn)
    spare = sum(len(them) - 1 for _, kind, them in clusters if kind == "copies")
    counts: list[list[Cell]] = [
        [kind, int((kinds == number).sum()), len(np.unique(found[kinds == number]))]
        for number, kind in enumerate(KINDS)
    ]
    values: dict[str, object] = {
        "index": config.index,
        "csv": config.out,
        "sheet": config.sheet if clusters else None,
        "images": len(images.rows),
        "left_out": images.describe_skipped_images(),
        "compared_pairs": len(pairs),
        "pairs": {str(kind).replace(" ", "_"): number for kind, number, _ in counts},
        "spare_images": spare,
        "clusters": [
            {"cluster": number, "kind": kind, "images": [images.path(place) for place in places]}
            for number, kind, places in clusters
        ],
    }
    title = f"{len(images.rows)} images, {spare} of which are redundant copies"
    tables = [Table(title, ["kind", "pairs", "images"], counts)]
    shown: list[list[Cell]] = [
        [number, kind, len(places), ", ".join(images.path(place) for place in places[:3])]
        for number, kind, places in clusters[:_SHOWN]
    ]
    if shown:
        more = f", the first {_SHOWN} of {len(clusters)}" if len(clusters) > _SHOWN else ""
        tables.append(Table(f"clusters{more}", ["cluster", "kind", "images", "such as"], shown))
    made = (config.out,) if config.sheet is None or not clusters else (config.out, config.sheet)
    return CommandResult(values, made, tuple(tables))


def _read_cache(path: Path | None) -> dict[str, NDArray[Any]]:
    """Read the cache of an earlier run: digests (m, 32), thumbnails (m, 64, 64), pairs (p, 2) and correlations (p,).

    The arrays are empty if the file does not exist, is damaged, or has another version.
    """
    found: dict[str, NDArray[Any]] = {
        "version": np.array(_CACHE_VERSION),
        "sha256": np.empty((0, 32), dtype=np.uint8),
        "pictures": np.empty((0, SIDE, SIDE), dtype=np.uint8),
        "pairs": np.empty((0, 2), dtype=np.int64),
        "levels": np.empty(0, dtype=np.int64),
        **{name: np.empty(0, dtype=np.float32) for name in ("gray", "detail", "weakest")},
    }
    if path is None or not path.exists():
        return found
    try:
        with path.open("rb") as opened, np.load(opened) as file:
            kept = {name: file[name] for name in found}
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
        current_progress().message(f"{path} cannot be read ({error}), so all images are compared")
        return found
    return kept if kept["version"] == _CACHE_VERSION else found


def _compare_thumbnails(
    pictures: NDArray[np.uint8],
    sides: NDArray[np.integer],
    pairs: NDArray[np.int64],
    known: NDArray[np.int64],
    kept: Mapping[str, NDArray[Any]],
) -> AlignedPairCorrelations:
    """Compare the thumbnails (m, 64, 64) of pairs (p, 2), except those already in the cache.

    ``sides`` (m,) are the shorter sides of the original images in pixels, and ``known`` (p, 2) the positions of the
    pairs' images in the cache ``kept``, or -1.
    """
    place_of = {tuple(pair): place for place, pair in enumerate(kept["pairs"].tolist())}
    before = np.array([place_of.get(tuple(pair), -1) for pair in known.tolist()], dtype=np.int64)
    fresh, old = np.flatnonzero(before < 0), np.flatnonzero(before >= 0)
    with current_progress().task("comparing pairs", total=len(fresh)) as task:
        compared = vars(compare_image_pairs(pictures, sides, pairs[fresh], task.advance))
    joined = {name: np.empty(len(pairs), dtype=values.dtype) for name, values in compared.items()}
    for name, values in compared.items():
        joined[name][fresh], joined[name][old] = values, kept[name][before[old]]
    return AlignedPairCorrelations(**joined)


def _load_thumbnails(
    images: StoredImages, wanted: NDArray[np.int64], known: NDArray[np.int64], kept: NDArray[np.uint8]
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Read the images at positions ``wanted`` (w,), except cached ones, as gray thumbnails (m, 64, 64).

    ``known`` is the position of each image in the cache, or -1. Also returns the positions (m,) of readable images.
    """

    def square(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        resized = Image.fromarray(pixels[:, :, 0]).resize((SIDE, SIDE), Image.Resampling.LANCZOS)
        return np.asarray(resized, dtype=np.uint8)

    pictures = np.empty((len(wanted), SIDE, SIDE), dtype=np.uint8)
    old = known[wanted] >= 0
    pictures[old] = kept[known[wanted[old]]]
    is_there = old.copy()
    fresh = np.flatnonzero(~old)
    for place, picture in images.apply_to_images(square, 2 * SIDE, "reading images", wanted[fresh], int(old.sum())):
        at = np.searchsorted(wanted, place)
        pictures[at], is_there[at] = picture, True
    return wanted[is_there], pictures[is_there]


def _find_rotated_copies(
    pictures: NDArray[np.uint8], coarse: NDArray[np.float32], sides: NDArray[np.integer]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Find mirrored copies and copies rotated by 90 or 180 degrees; return pairs (p, 2) and scores (p,).

    Each transformed thumbnail is compared only with its nearest neighbor.
    """
    pairs, scores = [np.empty((0, 2), dtype=np.int64)], [np.empty(0, dtype=np.float32)]
    gallery = np.flatnonzero(coarse.any(axis=1))  # the others have a single color
    if len(gallery) < 2:
        return pairs[0], scores[0]
    search = ExactSearch(coarse[gallery], metric="cosine")
    pictures, sides = pictures[gallery], sides[gallery]
    turns = (pictures[:, :, ::-1], pictures[:, ::-1, ::-1], np.rot90(pictures, axes=(1, 2)))
    with current_progress().task("mirrored and rotated copies", total=len(turns) * len(pictures)) as task:
        for turn in turns:
            for start in range(0, len(pictures), _TURNED_AT_ONCE):
                these = np.arange(start, min(start + _TURNED_AT_ONCE, len(pictures)))
                seconds = turn[these]
                cosines, found = search.search(compute_thumbnail_vectors(seconds), 2)
                # a symmetric image is its own nearest neighbor
                column = (found[:, 0] == these).astype(np.int64)
                near, alike = found[np.arange(len(these)), column], cosines[np.arange(len(these)), column] >= _TURNED
                here = np.flatnonzero(alike)
                agreement = compare_image_pairs(
                    np.concatenate([pictures[near[here]], seconds[here]]),
                    np.concatenate([sides[near[here]], sides[these[here]]]),
                    np.stack([np.arange(len(here)), len(here) + np.arange(len(here))], axis=1),
                )
                same = _is_same(agreement) & (agreement.levels > _COARSE)  # small drawings can look alike when rotated
                pairs.append(np.sort(np.stack([near[here], these[here]], axis=1)[same], axis=1))
                scores.append(agreement.detail[same])
                task.advance(len(these))
    every, detail = np.concatenate(pairs), np.concatenate(scores)
    _, first = np.unique(every, axis=0, return_index=True)
    return gallery[every[first]], detail[first]


def _is_same(agreement: AlignedPairCorrelations) -> NDArray[np.bool_]:
    """Return a mask (p,) of the pairs that show the same picture."""
    is_alike = agreement.detail >= _select_limits(agreement, _SAME_DETAIL)
    return is_alike & (agreement.weakest >= _select_limits(agreement, _SAME_REGION))


def _select_limits(agreement: AlignedPairCorrelations, limits: dict[int, float]) -> NDArray[np.float64]:
    """Return the limit (p,) for the resolution at which each pair is compared."""
    return np.select([agreement.levels == level for level in limits], list(limits.values()), np.inf)


def _merge_neighbor_pairs(*neighbors: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sorted, unique pairs (p, 2) of each position and its neighbors (n, k), the smaller position first."""
    keys = []
    for near in neighbors:
        place, column = np.nonzero(near >= 0)
        other = near[place, column]
        keys.append(np.unique(np.minimum(place, other) * len(near) + np.maximum(place, other)))
    joined = np.unique(np.concatenate(keys))
    return np.stack(np.divmod(joined, max(1, len(neighbors[0]))), axis=1)


def _classify_pairs(
    store: EmbeddingStore,
    rows: NDArray[np.int64],
    same_file: NDArray[np.int64],
    pairs: NDArray[np.int64],
    agreement: AlignedPairCorrelations,
    turned: tuple[NDArray[np.int64], NDArray[np.float32]],
    *,
    bursts: bool,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """Classify pairs as copies or as photos of the same scene, and number the clusters of connected pairs.

    Returns:
        pairs: (p, 2) positions; the first image has more pixels, or else a larger file, or else the earlier name.
        kinds: (p,) index into ``KINDS``.
        scores: (p,) in [0, 1]: 1 for identical files, otherwise the correlation of details.
        clusters: (p,) cluster numbers from 1, clusters of copies first.
    """
    same = _is_same(agreement)
    copies = np.concatenate([same_file, pairs[same]])
    ids = _find_components(len(rows), copies)
    fresh = ids[turned[0][:, 0]] != ids[turned[0][:, 1]]
    copies = np.concatenate([copies, turned[0][fresh]])
    copy_ids = _find_components(len(rows), copies)
    scene = (
        ~same
        & (agreement.detail >= _select_limits(agreement, _BURST))
        & (copy_ids[pairs[:, 0]] != copy_ids[pairs[:, 1]])
    )
    # keep only the best pair of the same scene between any two clusters of copies
    scenes = np.flatnonzero(scene & bursts)
    scenes = scenes[np.argsort(-agreement.detail[scenes], kind="stable")]
    _, first = np.unique(np.sort(copy_ids[pairs[scenes]], axis=1), axis=0, return_index=True)
    burst = np.sort(scenes[first])
    every = np.concatenate([copies, pairs[burst]])
    kinds = np.repeat(np.arange(len(KINDS)), [len(same_file), int(same.sum()), int(fresh.sum()), len(burst)])
    details = (agreement.detail[same], turned[1][fresh], agreement.detail[burst])
    scores = np.concatenate([np.ones(len(same_file)), *details]).clip(0, 1)
    scene_ids = len(rows) + _find_components(len(rows), every)
    ids = np.where(kinds < _SCENE_KIND, copy_ids[every[:, 0]], scene_ids[every[:, 0]])
    # the better image of each pair comes first
    pixels = np.asarray(store.image_sizes, dtype=np.int64)[rows].prod(axis=1)
    rank = np.empty(len(rows), dtype=np.int64)
    by_quality = np.lexsort((rows, -np.asarray(store.file_sizes, dtype=np.int64)[rows], -pixels))
    rank[by_quality] = np.arange(len(rows))
    every = np.where((rank[every[:, 0]] > rank[every[:, 1]])[:, None], every[:, ::-1], every)
    order = np.lexsort((every[:, 1], every[:, 0], -scores, kinds, ids))
    # number clusters from 1 by their first image, copies before scenes
    _, clusters = np.unique(ids, return_inverse=True)
    return every[order], kinds[order], scores[order], clusters.reshape(-1)[order] + 1


def _find_components(count: int, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, for each position (count,), the smallest position connected to it."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ones = np.ones(len(pairs), dtype=np.int8)
    _, ids = connected_components(coo_array((ones, (pairs[:, 0], pairs[:, 1])), shape=(count, count)), directed=False)
    _, first = np.unique(ids, return_index=True)
    return np.asarray(first[ids], dtype=np.int64)

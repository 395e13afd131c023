"""Find pairs of images in a store that show the same object, and write them for training.

Source: TAC-CCL, Sec. 4.3.4; the thresholds were chosen for labelkit.
    1. Select candidate pairs: nearest neighbors by embedding, within the same cluster if clusters are used.
    2. Detect the affine SIFT keypoints of each image, which takes most of the time, and cache them immediately.
    3. Match keypoints, and fit a homography to them; pairs with too few inliers are discarded.
    4. For each image, keep the partners with the most inliers.
"""

import hashlib
import os
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from labelkit.algorithms.affine_sift import Keypoints, configure_opencv, find_keypoints, match_images
from labelkit.algorithms.clustering import kmeans
from labelkit.algorithms.neighbors import knn
from labelkit.cache import cache_folder
from labelkit.commands.common.embeddings import find_split_rows, load_finite_embeddings, normalize_embeddings
from labelkit.commands.common.images.contact_sheet import write_png
from labelkit.commands.common.images.read import open_source_dataset
from labelkit.commands.common.outputs import check_output
from labelkit.commands.common.results import CommandResult, Table
from labelkit.commands.match.options import MatchConfig
from labelkit.data.datasets import ImageDataset
from labelkit.data.decode import BadImageError
from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import ConfigError, DatasetError
from labelkit.progress import current_progress
from labelkit.store.array_files import Matches, MatchFile, build_match, join_matches, write_matches
from labelkit.store.commit import canonical_json, commit_file
from labelkit.store.embeddings import EmbeddingStore, open_store

# Number of nearest images compared with each image, and of partners (with the most inliers) kept for it.
_CANDIDATES, _PARTNERS = 20, 2
# Maximum number of images whose keypoints are kept in memory, about 300 KB each.
_HELD_IMAGES = 2048
# Version of keypoint detection; changing it invalidates the cache.
_VERSION = 2
_SIDE, _GAP, _TEXT, _MAX_SHOWN = 192, 8, 16, 12


def match_store_images(config: MatchConfig) -> CommandResult:
    """Find images of a store that show the same object, and write the matches; keypoints are cached.

    Raises:
        StoreError: the store cannot be used.
        OutputExistsError: the output exists and has different content.
        ConfigError: there are fewer images than clusters, the sheet cannot be written, or OpenCV is not installed.
        DatasetError: images are missing, or have changed since they were embedded.
    """
    opencv = configure_opencv()
    out = config.out or config.index.with_name(f"{config.index.stem}-matches.h5")
    check_output(config, out, "matches")
    store = open_store(config.index)
    rows = find_split_rows(store, config.split)
    if len(rows) < 2:
        problem = f"{config.index} has fewer than two images to compare"
        raise ConfigError("--index", problem, "Use a store with more images.")
    images = KeypointImages(store, rows, open_source_dataset(store, config.dataset, config.data_root), opencv)
    progress, started = current_progress(), time.monotonic()
    pairs = choose_candidate_pairs(config, normalize_embeddings(load_finite_embeddings(store, rows)))
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        counts = np.zeros(len(rows), dtype=np.int64)
        with progress.task("keypoints", total=len(rows)) as task:
            for row, number in enumerate(pool.map(images.count_keypoints, range(len(rows)))):
                if isinstance(number, str):
                    progress.warning(f"skipped {images.path_of(row)}: {number}")
                counts[row] = -1 if isinstance(number, str) else number
                task.advance(1, cached=len(images.from_cache))
        from_cache = len(images.from_cache)
        listed: list[Matches] = []
        can_match = pairs[(counts[pairs] > 0).all(axis=1)]
        with progress.task("matching", total=len(can_match)) as task:
            for one in pool.map(images.match_pair, can_match):
                listed += [] if one is None else [one]
                task.advance(1, matched=len(listed))
    finally:
        pool.shutdown(cancel_futures=True)
    found = join_matches(listed)
    kept = keep_best_partners(found, _PARTNERS)
    options = {"split": config.split, "num_clusters": config.num_clusters, "seed": config.seed}
    recipe = {
        "opencv": opencv,
        "store": store.content_digest,
        "candidates": _CANDIDATES,
        "partners": _PARTNERS,
        **options,
    }
    ids = tuple(store.sample_ids[row] for row in rows)
    written = MatchFile(kept, ids, images.sha256, np.asarray(store.image_sizes)[rows], counts, recipe, "")
    values: dict[str, Any] = {
        "path": out,
        "content_digest": write_matches(out, written, overwrite=config.overwrite),
        "index": config.index,
        "images": len(rows),
        "without_keypoints": int((counts == 0).sum()),
        "unreadable": int((counts < 0).sum()),
        "compared": len(pairs),
        "matched": len(found),
        "kept": len(kept),
        "covered": len(np.unique(kept.pairs[:, 0])),
        "keypoints_from_cache": from_cache,
        "seconds": round(time.monotonic() - started, 2),
    }
    if from_cache:
        progress.message(f"the keypoints of {from_cache} of {len(rows)} images were read from the cache")
    paths = [out]
    if config.sheet is not None and len(found):
        write_match_sheet(config.sheet, found, images)
        values["sheet"] = config.sheet
        paths.append(config.sheet)
    elif config.sheet is not None:
        progress.warning(f"there are no matches, so {config.sheet} is not written")
    return CommandResult(values, tuple(paths), (_build_table(values),))


class KeypointImages:
    """Image files of a store and their keypoints, indexed by position among the n compared rows.

    Attributes:
        sha256: (n, 32) digests of the files when they were embedded.
        from_cache: positions of the images whose keypoints were read from the cache.

    Raises:
        DatasetError: images are missing.
    """

    def __init__(self, store: EmbeddingStore, rows: NDArray[np.int64], dataset: ImageDataset, opencv: str) -> None:
        position = {sample_id: row for row, sample_id in enumerate(dataset.sample_ids)}
        names = [store.sample_ids[row] for row in rows]
        missing = [name for name in names if name not in position]
        if missing:
            problem = f"{len(missing)} of {len(rows)} images of {store.path} are missing (first: {missing[0]})"
            raise DatasetError(dataset.name, problem, "Restore these images, or pass --dataset (and --data-root).")
        self._dataset, self._rows, self._opencv = dataset, [position[name] for name in names], opencv
        self.sha256: NDArray[np.uint8] = np.asarray(store.sha256)[rows]
        self.from_cache: set[int] = set()
        self.keypoints = lru_cache(_HELD_IMAGES)(self._load_keypoints)

    def path_of(self, position: int) -> str:
        """Return the path of the image at a position, relative to the data root."""
        return self._dataset.sample_ids[self._rows[position]]

    def read_pixels(self, position: int) -> NDArray[np.uint8]:
        """Read an image as (h, w, c) uint8.

        Raises:
            BadImageError: the image cannot be read.
            DatasetError: the image has changed since it was embedded.
        """
        encoded = self._dataset.source.read(self._rows[position])
        if encoded.sha256 != self.sha256[position].tobytes():
            problem = "has changed since it was embedded"
            raise DatasetError(self.path_of(position), problem, "Restore the image, or run `labelkit embed` again.")
        return encoded.decode(self._dataset.in_channels)

    def count_keypoints(self, position: int) -> int | str:
        """Return the number of keypoints of an image, cached or newly detected, or the reason why it is unreadable."""
        try:
            return len(self.keypoints(position).points)
        except BadImageError as error:
            return error.reason

    def _load_keypoints(self, place: int) -> Keypoints:
        recipe = {"version": _VERSION, "opencv": self._opencv, "image": self.sha256[place].tobytes().hex()}
        recipe["channels"] = self._dataset.in_channels
        name = hashlib.sha256(canonical_json(recipe).encode()).hexdigest()[:32]
        path = cache_folder() / "matches" / "keypoints" / f"{name}.npz"
        try:
            with np.load(path, allow_pickle=False) as file:
                height, width = file["size"].tolist()
                kept = Keypoints(file["points"], file["descriptors"], (height, width))
        except (OSError, ValueError, zipfile.BadZipFile):  # missing or damaged, so it is rewritten
            found = find_keypoints(self.read_pixels(place))
            path.parent.mkdir(parents=True, exist_ok=True)
            arrays = {"points": found.points, "descriptors": found.descriptors, "size": np.array(found.size)}
            commit_file(path, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]
            return found
        self.from_cache.add(place)
        return kept

    def match_pair(self, pair: NDArray[np.int64]) -> Matches | None:
        """Match the images at two positions by their keypoints; return ``None`` if they do not match."""
        first, second = pair.tolist()
        found = match_images(self.keypoints(first), self.keypoints(second))
        return None if found is None else build_match(first, second, *found)


def choose_candidate_pairs(config: MatchConfig, features: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the sorted pairs (p, 2) of rows i < j to compare: nearest neighbors, within clusters if requested."""
    groups = [np.arange(len(features))]
    if config.num_clusters is not None:
        if config.num_clusters > len(features):
            problem = f"{config.num_clusters} exceeds the number of images ({len(features)})"
            raise ConfigError("--num-clusters", problem, "Lower --num-clusters.")
        generator = keyed_generator(config.seed, "match clusters")
        found = kmeans(features, config.num_clusters, generator=generator, num_inits=3)
        groups = [np.flatnonzero(found.cluster_ids == i) for i in range(config.num_clusters)]
    listed = [np.zeros((0, 2), dtype=np.int64)]
    for members in groups:
        number = min(_CANDIDATES, len(members) - 1)
        if number < 1:
            continue
        # l2, since embeddings may be zero and thus have no direction
        _, nearest = knn(features[members], features[members], number, metric="l2", exclude_self=True)
        listed.append(np.stack((np.repeat(members, number), members[nearest.reshape(-1)]), axis=1))
    return np.unique(np.sort(np.concatenate(listed), axis=1), axis=0)


def keep_best_partners(matches: Matches, partners: int) -> Matches:
    """For each image, keep the partners with the most inliers; each match counts for both of its images."""
    both = join_matches([matches, matches.reversed()])
    order = np.lexsort((both.pairs[:, 1], -both.inliers, both.pairs[:, 0]))
    _, starts, groups = np.unique(both.pairs[order, 0], return_index=True, return_inverse=True)
    kept = order[np.arange(len(order)) - starts[groups] < partners]
    return both.select(kept[np.lexsort((both.pairs[kept, 1], both.pairs[kept, 0]))])


def _build_table(values: dict[str, Any]) -> Table:
    names = ("images", "without_keypoints", "compared", "matched", "covered", "seconds")
    title = "matched: number of pairs; covered: images with a partner"
    return Table.from_row(title, {name.replace("_", " "): values[name] for name in names})


def write_match_sheet(path: Path, matches: Matches, images: KeypointImages) -> None:
    """Draw a contact sheet of up to 12 matches, evenly spaced from the most to the fewest inliers.

    Raises:
        ResourceError: the file cannot be written.
    """
    order = np.argsort(-matches.inliers, kind="stable")
    shown = order[np.unique(np.linspace(0, len(order) - 1, min(_MAX_SHOWN, len(order))).round().astype(np.int64))]
    font = ImageFont.load_default(size=11)
    sheet = Image.new("RGB", (3 * _GAP + 2 * _SIDE, _GAP + len(shown) * (_SIDE + _TEXT + _GAP)), "white")
    draw = ImageDraw.Draw(sheet)
    for i, number in enumerate(shown.tolist()):
        top = _GAP + i * (_SIDE + _TEXT + _GAP)
        corners = [(_GAP, top), (2 * _GAP + _SIDE, top)]
        for corner, place in zip(corners, matches.pairs[number].tolist(), strict=True):
            pixels = images.read_pixels(place)
            picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).convert("RGB")
            sheet.paste(picture.resize((_SIDE, _SIDE)), corner)
        points = matches.keypoints[number, : matches.keypoint_counts[number]]
        for line in (points + 1) / 2 * _SIDE + corners:
            draw.line(line.reshape(-1).tolist(), fill="#2ca02c")
        draw.text((_GAP, top + _SIDE + 1), f"{int(matches.inliers[number])} inliers", fill="black", font=font)
    write_png(path, sheet)

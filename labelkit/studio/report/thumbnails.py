"""Thumbnails for all images of a page, in WebP sheets, at the largest size and best quality that fit.

A sheet has 64 tiles in 8 rows, each tile at the top left of a square of ``side`` pixels. Size and quality are chosen on
a sample, starting with the best, and are the same for all images. Images that are missing, unreadable or changed since
they were embedded have no tile. When a page is rewritten, it reuses the sheets whose images it still shows.
"""

import base64
import io
import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labelkit.commands.common.images.read import open_source_dataset, read_store_image
from labelkit.data.datasets import ImageDataset
from labelkit.errors import DatasetError
from labelkit.files import read_bytes
from labelkit.options.shared import StoredImagesOptions
from labelkit.progress import Task, current_progress
from labelkit.store.embeddings import EmbeddingStore
from labelkit.studio.report.images import escape_for_page

COLUMNS = 8
TILES = COLUMNS * COLUMNS
LOSSLESS = 100

# Pairs of side in pixels and WebP quality, best first.
_SIZES = (
    *((192, 82), (160, 82), (128, 82), (128, 72), (112, 76), (96, 80), (96, 68), (80, 76), (64, 80), (64, 66)),
    *((48, 76), (48, 58), (32, 76), (32, 54), (24, 54), (16, 54)),
)
# Largest side of images that are stored losslessly, if they fit.
_TINY = 48
_SAMPLE = 128
# A JPEG decoder may shrink an image to this multiple of the tile's side; Lanczos resampling does the rest.
_SHARPNESS = 2
# Safety factor, because sampled images may be slightly smaller than the others.
_MARGIN = 1.08
# Minimum fraction of images with a thumbnail on the earlier page for reusing its sheets; below, another size may fit.
_MIN_HELD = 0.8


@dataclass(frozen=True)
class Thumbnails:
    """Thumbnails of m images, packed into sheets.

    Attributes:
        side: maximum length of a tile's longer side in pixels; 0 if there are no tiles.
        quality: WebP quality, 1 to 99; 100: lossless.
        sheets: WebP files.
        tiles: (m,) int32, tile of each image, 64 per sheet; -1 = none.
        sizes: (m, 2) uint8, height and width of the tile.
        missing: number of images without a thumbnail, by reason.
        left_out: number of images whose thumbnails do not fit.
    """

    side: int
    quality: int
    sheets: tuple[bytes, ...]
    tiles: NDArray[np.int32]
    sizes: NDArray[np.uint8]
    missing: dict[str, int]
    left_out: int

    @property
    def count(self) -> int:
        """Number of images that have a thumbnail."""
        return int((self.tiles >= 0).sum())


@dataclass(frozen=True)
class PageImages:
    """Image files shown on a page: the dataset row (-1 = missing) and expected digest of each image."""

    source: ImageDataset | None
    rows: NDArray[np.int64]
    sha256: NDArray[np.uint8]

    def read(self, image: int, max_side: int) -> Image.Image | str:
        """Read an image, reduced to at most ``max_side`` pixels per side, or return the reason it cannot be shown."""
        if self.source is None:
            return "not in the dataset"
        row = int(self.rows[image]) if self.rows[image] >= 0 else None
        digest, channels = self.sha256[image], self.source.in_channels
        pixels = read_store_image(self.source, row, digest, channels, min_side=_SHARPNESS * max_side)
        if isinstance(pixels, str):
            return pixels
        picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).convert("RGB")
        picture.thumbnail((max_side, max_side), Image.Resampling.LANCZOS)
        return picture


def open_page_images(
    config: StoredImagesOptions, store: EmbeddingStore, rows: NDArray[np.int64]
) -> tuple[PageImages, str]:
    """Find the image files of a store's rows (m,) by name; if there are none, also return the reason.

    Raises:
        DatasetError: the dataset specified by the user cannot be used.
    """
    if not store.has_images:
        if config.dataset is not None:
            problem = "was imported without images, so images cannot be compared with it"
            remedy = "Remove --dataset, or import the embeddings again with --images."
            raise DatasetError(str(store.path), problem, remedy)
        numbers = np.zeros((len(rows), 4), dtype="<u8")  # instead of digests
        numbers[:, 0] = np.arange(len(rows))
        nowhere = np.full(len(rows), -1, dtype=np.int64)
        return PageImages(None, nowhere, numbers.view(np.uint8)), "the embeddings were imported without images"
    source, note = None, ""
    try:
        source = open_source_dataset(store, config.dataset, config.data_root)
    except DatasetError as error:
        if config.dataset is not None:
            raise
        current_progress().warning(f"{error}; the page shows no images")
        note = escape_for_page(error.problem)
    place = {} if source is None else {name: row for row, name in enumerate(source.sample_ids)}
    there = np.array([place.get(store.sample_ids[int(row)], -1) for row in rows], dtype=np.int64)
    return PageImages(source, there, np.asarray(store.sha256)[rows]), note


def make_thumbnails(
    images: PageImages,
    image_sizes: NDArray[np.uint32],
    order: Sequence[int],
    max_bytes: int,
    earlier: tuple[Thumbnails, NDArray[np.uint64]] | None = None,
) -> Thumbnails:
    """Create the thumbnails of a page, at the best size and quality that fit into ``max_bytes``.

    Args:
        images: images to show.
        image_sizes: (m, 2) height and width of the images.
        order: all images, most important first, with images that are shown together next to each other.
        max_bytes: maximum total size of all sheets in base64.
        earlier: thumbnails of an earlier page, see :func:`read_thumbnails`; only if the digests are those of files.
    """
    room = max_bytes * 3 // 4
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        extended = None if earlier is None else _extended(*earlier, images, order, pool)
        if extended is not None and sum(map(len, extended.sheets)) <= room:
            return extended
        largest = int(image_sizes.max(initial=1))
        sizes = [(largest, LOSSLESS)] if largest <= _TINY else []
        sizes = list(dict.fromkeys([*sizes, *((min(side, largest), quality) for side, quality in _SIZES)]))
        sample = _sample(images, order, max(side for side, _ in sizes), pool)
        while True:
            (side, quality), number, sizes = _choose(sizes, sample, len(order), room)
            with current_progress().task(f"thumbnails of {side} pixels", total=number) as task:
                made = _make(images, order[:number], side, quality, pool, task)
            if sum(map(len, made.sheets)) <= room:
                return replace(made, left_out=len(order) - number)
            if not sizes:
                # the sample was far too optimistic: create fewer of the smallest thumbnails
                order = order[: number // 2]
                sizes = [(side, quality)]


def compute_image_ids(sha256: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Convert the first eight bytes of each digest (m, 32) to a uint64 that identifies the image across pages."""
    return np.ascontiguousarray(sha256[:, :8]).view("<u8").ravel()


def read_thumbnails(page: Path, max_size: str) -> tuple[Thumbnails, NDArray[np.uint64]] | None:
    """Read the thumbnails from an earlier version of the page, and the image ids (k,) from ``compute_image_ids``.

    Returns ``None`` if there is no such page, its maximum size differs, or some of its images have no thumbnail.
    """
    try:
        text = read_bytes(page).decode()
        found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
        data: dict[str, Any] = json.loads(found[1]) if found else {}
        if data["maxSize"] != max_size:
            return None
        read = {name: base64.b64decode(data["columns"][name]) for name in ("tile", "tileSize", "image")}
        tiles = np.frombuffer(read["tile"], "<i4")
        sizes = np.frombuffer(read["tileSize"], np.uint8).reshape(-1, 2)
        images = np.frombuffer(read["image"], "<u8")
        sheets = [base64.b64decode(one) for one in re.findall(r'id="sheet-[0-9]+">([A-Za-z0-9+/=]*)<', text)]
        made = Thumbnails(int(data["side"]), int(data["quality"]), tuple(sheets), tiles, sizes, {}, 0)
    except (OSError, ValueError, LookupError, TypeError):
        return None  # there is no page, or it was changed by another program
    is_whole = len(tiles) == len(sizes) == len(images) > 0 and 0 <= tiles.min() <= tiles.max() < TILES * len(sheets)
    return (made, images) if is_whole else None


def _extended(
    old: Thumbnails, earlier: NDArray[np.uint64], pictures: PageImages, order: Sequence[int], pool: ThreadPoolExecutor
) -> Thumbnails | None:
    """Reuse sheets whose images are all shown, and create the others at the same size; ``None`` if too few fit."""
    images, sheet_of = compute_image_ids(pictures.sha256), old.tiles // TILES
    dropped = np.unique(sheet_of[~np.isin(earlier, images)])  # the page must not contain images that it does not show
    kept = np.setdiff1d(np.arange(len(old.sheets)), dropped)
    usable = np.flatnonzero(np.isin(sheet_of, kept))
    numbers, first = np.unique(earlier[usable], return_index=True)
    there = np.isin(images, numbers)
    if there.mean() < _MIN_HELD:
        return None
    rest = [image for image in order if not there[image]]
    with current_progress().task(f"thumbnails of {old.side} pixels", total=len(rest)) as task:
        made = _make(pictures, rest, old.side, old.quality, pool, task)
    tiles, sizes = np.where(made.tiles < 0, -1, made.tiles + TILES * len(kept)), made.sizes.copy()
    before = usable[first[np.searchsorted(numbers, images[there])]]
    tiles[there] = TILES * np.searchsorted(kept, sheet_of[before]) + old.tiles[before] % TILES
    sizes[there] = old.sizes[before]
    sheets = (*(old.sheets[sheet] for sheet in kept), *made.sheets)
    return replace(made, sheets=sheets, tiles=tiles.astype(np.int32), sizes=sizes)


def _sample(pictures: PageImages, order: Sequence[int], side: int, pool: ThreadPoolExecutor) -> list[Image.Image]:
    places = np.unique(np.linspace(0, len(order) - 1, min(_SAMPLE, len(order))).astype(np.int64))
    read = pool.map(lambda place: pictures.read(order[place], side), places.tolist())
    return [picture for picture in read if not isinstance(picture, str)]


def _choose(
    sizes: list[tuple[int, int]], sample: list[Image.Image], count: int, room: int
) -> tuple[tuple[int, int], int, list[tuple[int, int]]]:
    """Return the best (side, quality) at which all images fit, or the worst; how many fit; and all worse sizes."""
    if not sample:
        return sizes[0], count, sizes[1:]
    each = 0.0
    for place, (side, quality) in enumerate(sizes):
        tiles = [picture.copy() for picture in sample]
        for tile in tiles:
            tile.thumbnail((side, side), Image.Resampling.LANCZOS)
        sheets = [_encode(tiles[start : start + TILES], side, quality) for start in range(0, len(tiles), TILES)]
        each = _MARGIN * sum(map(len, sheets)) / len(tiles)
        if each * count <= room:
            return (side, quality), count, sizes[place + 1 :]
    return sizes[-1], min(count, int(room / each)), []


def _make(
    pictures: PageImages, order: Sequence[int], side: int, quality: int, pool: ThreadPoolExecutor, task: Task
) -> Thumbnails:
    count = len(pictures.rows)
    tiles, sizes = np.full(count, -1, dtype=np.int32), np.zeros((count, 2), dtype=np.uint8)
    missing: Counter[str] = Counter()
    sheets: list[bytes] = []

    def read(part: Sequence[int]) -> tuple[list[int], bytes | None, list[tuple[int, int]], list[str]]:
        found = [pictures.read(image, side) for image in part]
        kept = [(image, one) for image, one in zip(part, found, strict=True) if not isinstance(one, str)]
        reasons = [one for one in found if isinstance(one, str)]
        shapes = [(one.height, one.width) for _, one in kept]
        sheet = _encode([one for _, one in kept], side, quality) if kept else None
        return [image for image, _ in kept], sheet, shapes, reasons

    parts = [order[start : start + TILES] for start in range(0, len(order), TILES)]
    for part, (kept, sheet, shapes, reasons) in zip(parts, pool.map(read, parts), strict=True):
        missing.update(reasons)
        if sheet is not None:
            tiles[kept] = len(sheets) * TILES + np.arange(len(kept))
            sizes[kept] = shapes
            sheets.append(sheet)
        task.advance(len(part))
    return Thumbnails(side, quality, tuple(sheets), tiles, sizes, dict(sorted(missing.items())), 0)


def _encode(tiles: Sequence[Image.Image], side: int, quality: int) -> bytes:
    rows = -(-len(tiles) // COLUMNS)
    sheet = Image.new("RGB", (side * min(COLUMNS, len(tiles)), side * rows), "white")
    for place, tile in enumerate(tiles):
        sheet.paste(tile, (side * (place % COLUMNS), side * (place // COLUMNS)))
    buffer = io.BytesIO()
    is_lossless = quality == LOSSLESS
    # In lossless mode, quality means effort: more effort takes five times as long and saves 1% of the bytes.
    # Pillow's default method, 4, takes twice as long (lossless: four times) and saves 2% of the bytes.
    sheet.save(buffer, format="WEBP", quality=60 if is_lossless else quality, lossless=is_lossless, method=2)
    return buffer.getvalue()

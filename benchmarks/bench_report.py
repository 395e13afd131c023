"""Time the map and the thumbnails of ``labelkit report`` against scikit-learn's t-SNE and Pillow's thumbnails.

Our map must be as trustworthy as scikit-learn's, and nearest neighbors on it must be of the same class equally often: a
faster but worse map does not count.
"""

import hashlib
import io
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from labelkit.algorithms.projection import embed_by_tsne, project_to_principal_plane
from labelkit.data.registry import load_dataset
from labelkit.studio.report.thumbnails import PageImages
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.manifold import TSNE, trustworthiness
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import threadpool_limits

from benchmarks.measure import Row, Wanted, compare, seconds, with_check

SEEDS = [0]
NEIGHBORS, TOLERANCE = 12, 0.01
PHOTOS, PHOTO_SIZE, SIDE = 12, (2400, 1800), 192


def rows() -> Iterator[Row]:
    """Compare on one thread: a map of the digits, and thumbnails of large photos."""
    with threadpool_limits(1):
        yield map_row()
    yield tile_row()


quick_rows = rows


def map_row() -> Row:
    """Compare the maps, both initialized with the same two principal components."""
    digits = load_digits()
    pixels = digits.data.astype(np.float32)
    start = project_to_principal_plane(pixels)[0]
    start = (start / start[:, 0].std() * 1e-4).astype(np.float32)
    maps: dict[str, NDArray[np.float64]] = {}

    def ours() -> None:
        maps["ours"] = embed_by_tsne(pixels, seed=0)

    def peer() -> None:
        maps["peer"] = TSNE(init=start, random_state=0).fit_transform(pixels)

    row = compare(
        f"map of {len(pixels):,} rows / scikit-learn's t-SNE as it is",
        seconds(ours),
        seconds(peer),
        wanted=Wanted(">=", 2),
        repetitions=2,
        warmups=0,
    )
    good = {name: _quality(pixels, points, digits.target) for name, points in maps.items()}
    as_good = all(mine > theirs - TOLERANCE for mine, theirs in zip(good["ours"], good["peer"], strict=True))
    words = ", ".join(f"{mine:.3f} / {theirs:.3f}" for mine, theirs in zip(good["ours"], good["peer"], strict=True))
    return with_check(row, f"trust and class of neighbors within {TOLERANCE}: {words}", as_good)


def _quality(
    pixels: NDArray[np.float32], points: NDArray[np.float64], labels: NDArray[np.int64]
) -> tuple[float, float]:
    """Return the trustworthiness, and the fraction of neighbors on the map that are of the same class."""
    near = NearestNeighbors(n_neighbors=NEIGHBORS).fit(points).kneighbors(return_distance=False)
    return trustworthiness(pixels, points, n_neighbors=NEIGHBORS), float((labels[near] == labels[:, None]).mean())


def tile_row() -> Row:
    """Compare the thumbnails. Pillow also decodes at reduced size. Both read and hash the file to verify it."""
    with tempfile.TemporaryDirectory() as folder:
        generator = np.random.default_rng(SEEDS[0])
        for number in range(PHOTOS):
            small = Image.fromarray(generator.integers(0, 256, (75, 100, 3), dtype=np.uint8))
            small.resize(PHOTO_SIZE).save(Path(folder) / f"{number:02d}.jpg", quality=90)
        paths = sorted(Path(folder).glob("*.jpg"))
        digests = np.array([list(hashlib.sha256(path.read_bytes()).digest()) for path in paths], dtype=np.uint8)
        pictures = PageImages(load_dataset(folder, data_root=Path(folder)), np.arange(PHOTOS), digests)

        def pillow(path: Path) -> None:
            content = path.read_bytes()
            hashlib.sha256(content).digest()
            with Image.open(io.BytesIO(content)) as image:
                image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)

        def every(work: Callable[[int], object]) -> Callable[[], float]:
            return seconds(lambda: [work(number) for number in range(PHOTOS)])

        return compare(
            f"tiles of {PHOTOS} JPEG photos of {PHOTO_SIZE[0]} x {PHOTO_SIZE[1]} / Pillow's thumbnail, and SHA-256",
            every(lambda number: pictures.read(number, SIDE)),
            every(lambda number: pillow(paths[number])),
            wanted=Wanted(">=", 0.8),
            repetitions=7,
        )

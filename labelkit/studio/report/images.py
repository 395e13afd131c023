"""Choose the images of a store that a page shows, with their displayed names and their positions on the map."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.projection import embed_by_tsne, principal_directions, project_to_principal_plane
from labelkit.commands.common.embeddings import find_zero_embeddings, load_finite_embeddings, normalize_embeddings
from labelkit.data.keyed_random import keyed_generator
from labelkit.formatting import is_displayable, percent
from labelkit.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore

_STEPS = 65_535
# Maximum number of principal components for t-SNE, a common choice: the others are mostly noise and take time.
_TSNE_DIRECTIONS = 50


def compute_map_positions(
    features: NDArray[np.float32], projection: Literal["pca", "tsne"], seed: int
) -> tuple[NDArray[np.uint16], str]:
    """Compute the map positions of images by projecting their features (m, d) to two dimensions.

    Returns:
        (m, 2) uint16, x right and y down, with the same scale; and a description of the projection.
    """
    if projection == "tsne" and len(features) >= 2:
        with current_progress().task(f"t-SNE of {len(features):,} images", total=None):
            rows = features.astype(np.float64)
            words = "t-SNE: nearby images are similar; distances between distant groups are not meaningful"
            if rows.shape[1] > _TSNE_DIRECTIONS:
                directions, shares = principal_directions(rows, _TSNE_DIRECTIONS)
                rows = (rows - rows.mean(axis=0)) @ directions
                words += f". Of {_TSNE_DIRECTIONS} principal components ({percent(shares.sum())}% of the variance)"
            return _quantized(embed_by_tsne(rows, seed=seed)), words
    points, shares_of_two = project_to_principal_plane(features)
    first, second = (f"{percent(share)}%" for share in shares_of_two)
    words = f"PCA: the first two principal components of the embeddings ({first} and {second} of the variance)"
    return _quantized(points), words


def _quantized(points: NDArray[np.float64]) -> NDArray[np.uint16]:
    low, high = points.min(axis=0), points.max(axis=0)
    scale = float((high - low).max())
    centered = (points - (low + high) / 2) / (scale if scale > 0 else 1.0)
    centered[:, 1] *= -1  # on a page, y points downward
    return np.asarray(np.rint((centered + 0.5) * _STEPS).clip(0, _STEPS), dtype=np.uint16)


@dataclass(frozen=True)
class ShownImages:
    """Images of a store that are shown on a page, with their features and labels.

    Attributes:
        rows: (m,) int64, increasing; image i of the page is row ``rows[i]`` of the store.
        names: m displayed names, see :func:`escape_for_page`.
        features: (m, d) float32, normalized if the metric is cosine.
        directed: (m,) bool, False for all-zero embeddings if the metric is cosine, since they have no neighbors.
        labels: (m,) int64, class of each image, -1 = unknown.
    """

    rows: NDArray[np.int64]
    names: list[str]
    features: NDArray[np.float32]
    directed: NDArray[np.bool_]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)


def choose_images(store: EmbeddingStore, max_images: int, seed: int) -> ShownImages:
    """Choose the images to show on a page: all images of a store, or a random sample of ``max_images``.

    Raises:
        StoreError: embeddings are damaged or not finite.
    """
    rows = np.arange(store.n, dtype=np.int64)
    if store.n > max_images:
        rows = np.sort(keyed_generator(seed, "report images").permutation(store.n)[:max_images]).astype(np.int64)
    features = load_finite_embeddings(store, rows)
    directed = np.ones(len(rows), dtype=np.bool_)
    if store.metric == "cosine":
        directed = ~find_zero_embeddings(features)
        features = normalize_embeddings(features)
    labels = np.full(len(rows), -1, dtype=np.int64)
    if store.labels is not None:
        labels = np.asarray(store.labels, dtype=np.int64)[rows]
    return ShownImages(rows, [escape_for_page(store.sample_ids[int(row)]) for row in rows], features, directed, labels)


def escape_for_page(text: str) -> str:
    r"""Escape the characters of a text that a page cannot display.

    Bytes that are not UTF-8 become escapes such as ``\xff``; control characters and characters that change the text
    direction become Python escapes; all others remain unchanged.
    """
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    if "\udc80" <= character <= "\udcff":
        return f"\\x{ord(character) - 0xDC00:02x}"
    # is_displayable is False for line ends, control and direction characters, and lone surrogates
    return character if is_displayable(character) else character.encode("unicode_escape").decode("ascii")

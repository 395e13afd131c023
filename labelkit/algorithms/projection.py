"""Project high-dimensional samples to a plane, or to a few principal components."""

import contextlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.one_thread import one_blas_thread
from labelkit.algorithms.row_blocks import Rows, iterate_blocks
from labelkit.cache import call_cached

# Perplexity commonly used for t-SNE; it requires three times as many rows.
_PERPLEXITY = 30.0
# Steps, early exaggeration, and coarseness for distant points; scikit-learn's defaults are 1,000, 12 and 0.5. The
# exaggeration limits the step size: with a third of it, all later steps are longer, and half as many suffice.
_STEPS, _EXAGGERATION, _ANGLE = 500, 4.0, 0.8
# From this matrix size, the Lanczos method finds a few eigenvectors in a third of the time.
_LANCZOS_SIZE = 512


def project_to_principal_plane(x: ArrayLike) -> tuple[NDArray[np.float64], tuple[float, float]]:
    """Project samples onto their first two principal components.

    Args:
        x: (n, d) numbers, n >= 1.

    Returns:
        ((n, 2) float64 centered at 0, fractions of the variance). The largest entry of each direction is positive, so
        that the result is reproducible.

    Raises:
        ValueError: wrong shape of x.
    """
    rows = np.asarray(x, dtype=np.float64)
    if rows.ndim != 2 or 0 in rows.shape:
        raise ValueError(f"x must have shape (n, d) with n, d >= 1, got {rows.shape}")
    num_directions = min(2, rows.shape[1])
    directions, found = principal_directions(rows, num_directions)
    places, shares = np.zeros((len(rows), 2)), np.zeros(2)
    places[:, :num_directions], shares[:num_directions] = (rows - rows.mean(axis=0)) @ directions, found
    return places, (float(shares[0]), float(shares[1]))


def principal_directions(x: ArrayLike, count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute the leading principal directions of samples and their fractions of the variance.

    Args:
        x: (n, d) numbers, n >= 1.
        count: number of directions, in [1, d].

    Returns:
        ((d, count) orthonormal columns, (count,) fractions of the variance), both float64. The largest entry of each
        direction is positive.

    Raises:
        ValueError: wrong shape of x, or the count is out of range.
    """
    rows = np.asarray(x, dtype=np.float64)
    if rows.ndim != 2 or not len(rows) or not 1 <= count <= rows.shape[1]:
        raise ValueError(f"1 to {rows.shape[-1]} directions are possible for shape {rows.shape}, got {count}")
    return call_cached(_principal_directions, rows, count)


def _principal_directions(rows: NDArray[np.float64], count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    rows = rows - rows.mean(axis=0)
    total = float(np.square(rows).sum())
    variances, directions = _largest_eigenvectors(rows @ rows.T if len(rows) < rows.shape[1] else rows.T @ rows, count)
    if len(rows) < rows.shape[1]:
        # with few rows, compute the same directions from a smaller problem
        varying = variances > 1e-9 * total
        variances = np.append(variances[varying], np.zeros(count - varying.sum()))
        directions = _complete_basis(rows.T @ (directions[:, varying] / np.sqrt(variances[: varying.sum()])), count)
    tops = np.abs(directions).argmax(axis=0)
    directions = directions * np.where(directions[tops, np.arange(count)] < 0, -1, 1)
    return directions, variances / total if total > 0 else np.zeros(count)


def _complete_basis(directions: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Append arbitrary but reproducible orthonormal columns up to ``count``."""
    width, found = directions.shape
    drawn = np.random.default_rng(0).normal(size=(width, count - found))
    with one_blas_thread:
        rest = np.linalg.qr(np.hstack([directions, drawn]))[0][:, found:]
    return np.hstack([directions, rest])


def fit_principal_components(rows: Rows, count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute the mean and leading principal directions of rows in two passes, reading block by block.

    Args:
        rows: (n, d) numbers, in memory or read in blocks; n >= 1.
        count: number of directions, in [1, d].

    Returns:
        ((d,) mean, (d, count) orthonormal columns), float64.

    Raises:
        ValueError: there are no rows, or the count is out of range.
    """
    number, width = rows.shape
    if not number or not 1 <= count <= width:
        raise ValueError(f"1 to {rows.shape[-1]} directions are possible for shape {rows.shape}, got {count}")
    mean, products = np.zeros(width), np.zeros((width, width))
    for _, part in iterate_blocks(rows):
        mean += part.sum(axis=0, dtype=np.float64)
    mean /= number
    for _, part in iterate_blocks(rows):
        centered = part.astype(np.float64) - mean
        products += centered.T @ centered
    return mean, _largest_eigenvectors(products, count)[1]


def project_rows(rows: Rows, mean: NDArray[np.float64], directions: NDArray[np.float64]) -> NDArray[np.float32]:
    """Subtract the mean from rows and project them onto the given directions; return (n, count) float32."""
    places = np.empty((rows.shape[0], directions.shape[1]), dtype=np.float32)
    for where, part in iterate_blocks(rows):
        places[where] = (part.astype(np.float64) - mean) @ directions
    return places


def _largest_eigenvectors(matrix: NDArray[np.float64], count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the largest eigenvalues of a symmetric matrix, decreasing, with their eigenvectors as columns."""
    from scipy.linalg import eigh
    from scipy.sparse.linalg import ArpackError, eigsh

    size = len(matrix)
    with one_blas_thread:
        if size >= _LANCZOS_SIZE and count <= size // 8:
            with contextlib.suppress(ArpackError):
                values, vectors = eigsh(matrix, count, v0=np.random.default_rng(0).normal(size=size), tol=1e-9)
                return values[::-1], vectors[:, ::-1]
        values, vectors = eigh(matrix, subset_by_index=(size - min(count, size), size - 1))
    return values[::-1], vectors[:, ::-1]


def embed_by_tsne(x: ArrayLike, *, seed: int = 0) -> NDArray[np.float64]:
    """Embed samples in a plane by t-SNE, which preserves neighborhoods but not distances between groups.

    Source: L. van der Maaten, "Accelerating t-SNE using Tree-Based Algorithms". Departure: fewer and longer steps.
    ``python -m benchmarks --only report`` compares speed and quality with scikit-learn's defaults.

    Args:
        x: (n, d) numbers, n >= 2.
        seed: seed of the optimization.

    Returns:
        (n, 2) float64.

    Raises:
        ValueError: there are fewer than two rows.
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    rows = np.asarray(x, dtype=np.float32)
    if rows.ndim != 2 or len(rows) < 2:
        raise ValueError(f"x must have shape (n, d) with n >= 2, got {rows.shape}")
    perplexity = min(_PERPLEXITY, (len(rows) - 1) / 3)
    # initialize by PCA here: sklearn's own PCA initialization divides by a spread that may be 0
    start, _ = project_to_principal_plane(rows)
    spread = float(start[:, 0].std())
    start = (start / spread if spread > 0 else start) * 1e-4
    layout = TSNE(
        perplexity=perplexity,
        init=start.astype(np.float32),
        random_state=seed,
        max_iter=_STEPS,
        early_exaggeration=_EXAGGERATION,
        angle=_ANGLE,
    )
    # several threads would wait for each other after each of many short steps, for minutes on a busy machine
    with threadpool_limits(1):
        return np.asarray(layout.fit_transform(rows), dtype=np.float64)

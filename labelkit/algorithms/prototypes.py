r"""Spread unit vectors over the sphere as evenly as possible, and bound how well they can be spread.

Source: "Hyperspherical Classification with Dynamic Label-to-Prototype Assignment" (CVPR 2024), Eq. 5: the loss of c
unit vectors is :math:`\log \text{mean}_{i<j} \exp(-2t (1 - w_i \cdot w_j))`, t = 2.

    c <= d + 1          simplex: every cosine is -1/(c - 1); the minimum loss
    c <= 2d             opposite pairs and a simplex, all orthogonal: the largest cosine is 0, the minimum possible
                        (Rankin)
    d = 2               regular polygon: the minimum loss and the minimum largest cosine
    otherwise           minimize the loss, then the loss with increasing t, whose limit is the largest cosine

Departures: pairs i < j are averaged (Eq. 5 prints another factor and the pairs i = i; its code averages pairs). Plain
gradient descent with the published step does not converge; we use L-BFGS from a uniform start. The increasing t is our
addition; ``sharpest_t=None`` disables it. Prototypes are rows here, but columns in the paper's code.

The bounds limit how well any unit vectors can be spread.

Sources: R. A. Rankin, "The closest packing of spherical caps in n dimensions" (1955); L. R. Welch, "Lower bounds on the
maximum cross correlation of signals" (1974); V. I. Levenshtein, "Universal bounds for codes and designs" (1998).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from torch import Tensor


PrototypeMethod = Literal["auto", "optimize"]

DEFAULT_T = 2.0
SHARPEST_T = 32768.0
ITERATIONS = 200

# Factor from one t to the next; smaller factors take longer without improving results.
_SHARPENING = 4.0
# For more prototypes, use float32: half the memory and time, and an error of 1e-7 in a cosine no longer matters.
_DOUBLE_UP_TO = 2048
# Number of vector pairs that L-BFGS stores; fewer if a vector has millions of values.
_MEMORY_PAIRS, _FEW_MEMORY_PAIRS, _MANY_VALUES = 10, 5, 1_000_000
_NORM_TOLERANCE = 1e-3
# Rows of the c x c cosine matrix in memory at a time.
_CHUNK = 1024


@dataclass(frozen=True, slots=True)
class Spread:
    """Statistics of the pairwise cosines of unit vectors, which measure how evenly the vectors are spread.

    Attributes:
        max_cosine: cosine of the closest pair.
        min_cosine: cosine of the most distant pair.
        mean_cosine: mean over all pairs; at least -1/(c - 1), reached if the vectors sum to zero.
        rms_cosine: root mean square over all pairs.
        mean_nearest_cosine: cosine of each vector with its nearest other vector, averaged over vectors.
        closest_angle: angle of the closest pair in degrees.
        mean_angle: mean over all pairs, in degrees.
        uniformity: the paper's loss at t = 2; at least -4 c/(c - 1).
    """

    max_cosine: float
    min_cosine: float
    mean_cosine: float
    rms_cosine: float
    mean_nearest_cosine: float
    closest_angle: float
    mean_angle: float
    uniformity: float


def spread_prototypes(
    num_prototypes: int,
    dim: int,
    generator: np.random.Generator,
    *,
    method: PrototypeMethod = "auto",
    sharpest_t: float | None = SHARPEST_T,
    iterations: int = ITERATIONS,
    device: str = "cpu",
    report: Callable[[float, float], None] | None = None,
) -> NDArray[np.float32]:
    """Compute prototypes spread evenly over the unit sphere, reproducibly for the same generator state.

    Args:
        num_prototypes: c, >= 2.
        dim: d, >= 2.
        generator: rotates and permutes a closed form, or draws the initial vectors.
        method: ``auto`` uses a closed form if there is one; ``optimize`` never does.
        sharpest_t: t is repeatedly multiplied by four, from 2 up to this value, so that the largest cosine dominates
            in the end; ``None``: only the paper's loss.
        iterations: maximum number of L-BFGS iterations for each t.
        device: torch device for the computation.
        report: called after each t with t and the largest cosine.

    Returns:
        (c, d) float32, unit rows.

    Raises:
        ValueError: a number is out of range.
    """
    if num_prototypes < 2:
        raise ValueError(f"num_prototypes must be >= 2, got {num_prototypes} (a single class needs no prototype)")
    if dim < 2:
        raise ValueError(f"dim must be >= 2, got {dim} (on a line, there are only two directions)")
    if sharpest_t is not None and not (math.isfinite(sharpest_t) and sharpest_t > 0):
        raise ValueError(f"sharpest_t must be positive, got {sharpest_t}")
    if iterations < 1:
        raise ValueError(f"iterations must be >= 1, got {iterations}")
    if method not in ("auto", "optimize"):
        raise ValueError(f"method must be 'auto' or 'optimize', got {method!r}")
    form = None if method == "optimize" else closed_form(num_prototypes, dim)
    if form is not None:
        return _to_float32(generator.permutation(_rotate_randomly(form, dim, generator), axis=0))
    levels = build_t_schedule(sharpest_t)
    return _to_float32(_optimize(num_prototypes, dim, generator, levels, iterations, device, report))


def closed_form(num_prototypes: int, dim: int) -> NDArray[np.float64] | None:
    """Return optimally spread unit vectors if a closed form is known, otherwise ``None``.

    Returns:
        (c, m) unit rows with m <= d, to be rotated into d dimensions: simplex (c <= d + 1), opposite pairs and a
        simplex in orthogonal subspaces (c <= 2d), or regular polygon (d = 2); ``None`` otherwise.
    """
    if num_prototypes <= 2 * dim:
        return _simplices(num_prototypes, min(dim, num_prototypes - 1))
    if dim == 2:
        angles = 2 * np.pi * np.arange(num_prototypes) / num_prototypes
        return np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return None


def is_closed_form_optimal(num_prototypes: int, dim: int) -> bool:
    """Return whether the closed form minimizes the loss of Eq. 5 for every t; see :func:`closed_form`.

    This holds for the simplex (c <= d + 1), d opposite pairs (c = 2d) and the regular polygon, which are universally
    optimal (Cohn and Kumar, "Universally optimal distribution of points on spheres"), but not for pairs and a simplex.
    """
    return num_prototypes <= dim + 1 or num_prototypes == 2 * dim or dim == 2


def build_t_schedule(sharpest_t: float | None) -> list[float]:
    """Return the increasing values of t that :func:`spread_prototypes` uses one after the other."""
    levels = [DEFAULT_T]
    while sharpest_t is not None and levels[-1] < sharpest_t:
        levels.append(min(_SHARPENING * levels[-1], sharpest_t))
    return levels


def uniformity_loss(prototypes: ArrayLike, t: float = DEFAULT_T) -> float:
    r"""Compute the uniformity loss :math:`\log \text{mean}_{i<j} \exp(-2t (1 - w_i \cdot w_j))` of unit rows.

    This is Eq. 5 with pairs averaged. At least -2tc/(c - 1), reached by the simplex; 0 if all vectors are equal.

    Args:
        prototypes: (c, d), c >= 2, unit rows (to within 1e-3; normalized here).
        t: sharpness, > 0.

    Raises:
        ValueError: wrong shape, norm of a row, or t.
    """
    import torch

    if not (math.isfinite(t) and t > 0):
        raise ValueError(f"t must be positive, got {t}")
    points = torch.from_numpy(_unit_rows(prototypes))
    count = len(points)
    return 2 * t * (_smooth_max(points, t)[0] - 1) - math.log(count * (count - 1))


def measure_spread(prototypes: ArrayLike) -> Spread:
    """Measure how evenly unit vectors (c, d), c >= 2, are spread over the sphere.

    Raises:
        ValueError: wrong shape, or the norm of a row differs from 1 by more than 1e-3 (rows are normalized here).
    """
    rows = _unit_rows(prototypes)
    count = len(rows)
    largest, smallest, squares, nearest, angles = -math.inf, math.inf, 0.0, 0.0, 0.0
    for start in range(0, count, _CHUNK):
        cosines = rows[start : start + _CHUNK] @ rows.T
        own = np.arange(len(cosines))
        cosines[own, own + start] = 1.0
        angles += float(np.arccos(np.clip(cosines, -1, 1)).sum())
        smallest = min(smallest, float(cosines.min()))
        squares += float(np.square(cosines).sum()) - len(cosines)
        cosines[own, own + start] = -math.inf
        closest = cosines.max(axis=1)
        largest = max(largest, float(closest.max()))
        nearest += float(closest.sum())
    pairs = count * (count - 1)
    return Spread(
        max_cosine=largest,
        min_cosine=smallest,
        mean_cosine=float((np.square(rows.sum(axis=0)).sum() - count) / pairs),
        rms_cosine=math.sqrt(max(squares, 0.0) / pairs),
        mean_nearest_cosine=nearest / count,
        closest_angle=math.degrees(math.acos(min(1.0, max(-1.0, largest)))),
        mean_angle=math.degrees(angles / pairs),
        uniformity=uniformity_loss(rows),
    )


def _optimize(
    num_prototypes: int,
    dim: int,
    generator: np.random.Generator,
    levels: list[float],
    iterations: int,
    device: str,
    report: Callable[[float, float], None] | None,
) -> NDArray[np.float64]:
    import torch
    from scipy.optimize import minimize

    dtype = torch.float64 if num_prototypes <= _DOUBLE_UP_TO else torch.float32
    pairs = _MEMORY_PAIRS if num_prototypes * dim <= _MANY_VALUES else _FEW_MEMORY_PAIRS
    rows = generator.standard_normal((num_prototypes, dim))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    for t in levels:

        def value_and_gradient(flat: NDArray[np.float64], t: float = t) -> tuple[float, NDArray[np.float64]]:
            # L-BFGS is unconstrained: vectors may have any length, and only their direction counts
            free = torch.from_numpy(flat.reshape(num_prototypes, dim)).to(device, dtype)
            lengths = free.norm(dim=1, keepdim=True)
            smooth_max, gradient = _smooth_max(free / lengths, t)
            return smooth_max, (gradient / lengths).double().cpu().numpy().ravel()

        best = minimize(
            value_and_gradient,
            rows.ravel(),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": iterations, "maxcor": pairs, "ftol": 1e-14, "gtol": 1e-10},
        )
        rows = best.x.reshape(num_prototypes, dim)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        if report is not None:
            report(t, _largest_cosine(torch.from_numpy(rows).to(device, dtype)))
    return rows


def _smooth_max(points: Tensor, t: float) -> tuple[float, Tensor]:
    r"""Return :math:`\frac{1}{2t} \log \sum_{i \ne j} \exp(2t\, w_i \cdot w_j)` and its gradient along the sphere.

    This is the loss up to a factor and a constant; it lies between the largest cosine m and m + log(c (c - 1))/(2t),
    so its scale does not change with t. ``points`` are (c, d) unit rows.
    """
    import torch

    count = len(points)
    largest, total = -math.inf, 0.0
    pulls = torch.zeros_like(points)
    for start in range(0, count, _CHUNK):
        cosines = points[start : start + _CHUNK] @ points.T
        cosines.diagonal(start).fill_(-math.inf)
        now = float(cosines.max())
        # prevent exp from overflowing, and from being zero everywhere
        if now > largest:
            scale = math.exp(2 * t * (largest - now))
            pulls[:start] *= scale
            total *= scale
            largest = now
        weights = cosines.sub_(largest).mul_(2 * t).exp_()
        total += float(weights.sum(dtype=torch.float64))
        pulls[start : start + _CHUNK] = weights @ points
    gradient = pulls.mul_(2 / total)
    gradient -= points * (gradient * points).sum(dim=1, keepdim=True)
    return largest + math.log(total) / (2 * t), gradient


def _largest_cosine(points: Tensor) -> float:
    largest = -math.inf
    for start in range(0, len(points), _CHUNK):
        cosines = points[start : start + _CHUNK] @ points.T
        cosines.diagonal(start).fill_(-math.inf)
        largest = max(largest, float(cosines.max()))
    return largest


def _simplices(count: int, dim: int) -> NDArray[np.float64]:
    """Return one simplex if count = dim + 1, else opposite pairs and a simplex, all in orthogonal subspaces.

    Any ``count - dim`` simplices in orthogonal subspaces have 0 as their largest cosine. Of all ways to divide the
    dimensions, this one has the minimum loss at t = 2: a simplex of m points reduces the sum over pairs by
    m (m - 1)/2 (1 - exp(-2t/(m - 1))), which is convex in m, so unequal sizes are best.
    """
    pairs = count - dim - 1
    rows = np.zeros((count, dim))
    for pair in range(pairs):
        rows[2 * pair : 2 * pair + 2, pair] = 1, -1
    rows[2 * pairs :, pairs:] = _simplex(count - 2 * pairs)
    return rows


def _simplex(size: int) -> NDArray[np.float64]:
    """Return (size, size - 1) unit rows with all cosines -1/(size - 1): scaled Helmert contrasts."""
    k = np.arange(1, size)
    contrasts = np.triu(np.ones((size, size - 1)))
    contrasts[k, k - 1] = -k
    return contrasts / np.sqrt(k * (k + 1.0)) * math.sqrt(size / (size - 1))


def _rotate_randomly(rows: NDArray[np.float64], dim: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """Rotate rows of m <= dim coordinates into ``dim`` dimensions by random orthonormal axes."""
    axes, triangle = np.linalg.qr(generator.standard_normal((dim, rows.shape[1])))
    # without the signs of the diagonal, the axes would not be uniformly distributed
    return rows @ (axes * np.sign(np.diag(triangle))).T


def _to_float32(rows: NDArray[np.float64]) -> NDArray[np.float32]:
    unit: NDArray[np.float64] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit.astype(np.float32)


def _unit_rows(prototypes: ArrayLike) -> NDArray[np.float64]:
    rows = np.array(prototypes, dtype=np.float64)
    if rows.ndim != 2 or len(rows) < 2:
        raise ValueError(f"prototypes must have shape (c, d) with c >= 2, got {rows.shape}")
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not np.all(np.abs(lengths - 1) <= _NORM_TOLERANCE):
        raise ValueError(f"rows of prototypes must have unit norm, got norms from {lengths.min()} to {lengths.max()}")
    rows /= lengths
    return rows


# Only far more points than 2**64 would require higher degrees.
_MAX_DEGREE = 400


def max_cosine_bound(count: int, dim: int) -> float:
    r"""Return a lower bound on the largest pairwise cosine of ``count`` unit vectors.

    ``count <= dim + 1``: :math:`-1/(c-1)`, reached by the simplex. ``count <= 2 dim``: 0, reached by simplices in
    orthogonal subspaces (Rankin). ``dim`` 2: :math:`\cos(2\pi/c)`, reached by the regular polygon. Otherwise
    Levenshtein's bound, reached by the icosahedron, the E8 root system and few others.

    Args:
        count: number of vectors, >= 2.
        dim: their dimension, >= 2.

    Raises:
        ValueError: either is below 2.
    """
    if count < 2 or dim < 2:
        raise ValueError(f"count and dim must be >= 2, got {count} and {dim}")
    if count <= dim + 1:
        return -1 / (count - 1)
    if count <= 2 * dim:
        return 0.0
    if dim == 2:
        return math.cos(2 * math.pi / count)
    return _levenshtein(count, dim)


def rms_cosine_bound(count: int, dim: int) -> float:
    r"""Return a lower bound on the root mean square of the pairwise cosines of unit vectors.

    ``count > dim``: Welch's :math:`\sqrt{(c-d)/(d(c-1))}`, reached by every tight frame; otherwise 0, reached by
    orthogonal vectors.

    Raises:
        ValueError: as in :func:`max_cosine_bound`.
    """
    if count < 2 or dim < 2:
        raise ValueError(f"count and dim must be >= 2, got {count} and {dim}")
    return math.sqrt((count - dim) / (dim * (count - 1))) if count > dim else 0.0


@lru_cache(maxsize=256)
def _levenshtein(count: int, dim: int) -> float:
    """Solve L(s) = count for s, where L is Levenshtein's bound on the number of points with cosines <= s."""
    from scipy.optimize import brentq

    for degree in range(3, _MAX_DEGREE):
        low, high = _interval(degree, dim)
        if _max_points(high, degree, dim) >= count:
            if _max_points(low, degree, dim) >= count:
                return low
            return float(brentq(lambda s, m=degree: _max_points(s, m, dim) - count, low, high, xtol=1e-14))
    raise ValueError(f"no bound is known for {count} points in {dim} dimensions")


def _interval(degree: int, dim: int) -> tuple[float, float]:
    """Return the interval of cosines for which the bound of this degree is the tightest of its family."""
    half, is_odd = divmod(degree, 2)
    if is_odd:  # degree 2k - 1
        return _largest_zero(half, 1, 1, dim), _largest_zero(half + 1, 1, 0, dim)
    return _largest_zero(half, 1, 0, dim), _largest_zero(half, 1, 1, dim)


def _largest_zero(degree: int, a: int, b: int, dim: int) -> float:
    """Return the largest zero of the Jacobi polynomial of the sphere with exponents raised by a and b."""
    from scipy.special import roots_jacobi

    if degree == 0:
        return -1.0
    exponent = (dim - 3) / 2
    return float(roots_jacobi(degree, exponent + a, exponent + b)[0].max())


def _max_points(cosine: float, degree: int, dim: int) -> float:
    from scipy.special import binom

    half, is_odd = divmod(degree, 2)
    if is_odd:
        k = half + 1
        one, two = _zonal(k - 1, dim, cosine), _zonal(k, dim, cosine)
        return float(binom(k + dim - 3, k - 1)) * ((2 * k + dim - 3) / (dim - 1) - (one - two) / ((1 - cosine) * two))
    one, two = _zonal(half, dim, cosine), _zonal(half + 1, dim, cosine)
    ratio = (1 + cosine) * (one - two) / ((1 - cosine) * (one + two))
    return float(binom(half + dim - 2, half)) * ((2 * half + dim - 1) / (dim - 1) - ratio)


def _zonal(degree: int, dim: int, cosine: float) -> float:
    """Evaluate the Gegenbauer polynomial of the sphere in ``dim`` dimensions, normalized to 1 at 1, by recurrence."""
    before, now = 1.0, cosine
    if degree == 0:
        return before
    for k in range(1, degree):
        before, now = now, ((2 * k + dim - 2) * cosine * now - k * before) / (k + dim - 2)
    return now

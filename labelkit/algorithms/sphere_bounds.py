"""How well unit vectors can be spread at best: bounds that no set of points can beat.

Sources: R. A. Rankin, "The closest packing of spherical caps in n dimensions" (1955); L. R. Welch, "Lower bounds on the
maximum cross correlation of signals" (1974); V. I. Levenshtein, "Universal bounds for codes and designs" (1998).
"""

from __future__ import annotations

import math
from functools import lru_cache

# Beyond this many polynomials nothing is gained; only far more points than 2**64 would need them.
_MAX_DEGREE = 400


def max_cosine_bound(count: int, dim: int) -> float:
    r"""Return a number that the largest pairwise cosine of ``count`` unit vectors cannot be below.

    ``count <= dim + 1``: :math:`-1/(c-1)`, reached by the simplex. ``count <= 2 dim``: 0, reached by simplices in
    orthogonal subspaces (Rankin). ``dim`` 2: :math:`\cos(2\pi/c)`, reached by the regular polygon. Otherwise
    Levenshtein's bound, reached by the icosahedron, the roots of E8 and few others.

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
    r"""Return a number that the root mean square of pairwise cosines cannot be below.

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
        if _most_points(high, degree, dim) >= count:
            if _most_points(low, degree, dim) >= count:
                return low
            return float(brentq(lambda s, m=degree: _most_points(s, m, dim) - count, low, high, xtol=1e-14))
    raise ValueError(f"no bound for {count} points in {dim} dimensions")


def _interval(degree: int, dim: int) -> tuple[float, float]:
    """Cosines for which the bound of this degree is the best of its family."""
    half, is_odd = divmod(degree, 2)
    if is_odd:  # degree 2k - 1
        return _largest_zero(half, 1, 1, dim), _largest_zero(half + 1, 1, 0, dim)
    return _largest_zero(half, 1, 0, dim), _largest_zero(half, 1, 1, dim)


def _largest_zero(degree: int, a: int, b: int, dim: int) -> float:
    """Largest zero of the Jacobi polynomial of the sphere with both exponents raised by a and b."""
    from scipy.special import roots_jacobi

    if degree == 0:
        return -1.0
    exponent = (dim - 3) / 2
    return float(roots_jacobi(degree, exponent + a, exponent + b)[0].max())


def _most_points(cosine: float, degree: int, dim: int) -> float:
    half, is_odd = divmod(degree, 2)
    if is_odd:
        k = half + 1
        one, two = _zonal(k - 1, dim, cosine), _zonal(k, dim, cosine)
        return _binomial(k + dim - 3, k - 1) * ((2 * k + dim - 3) / (dim - 1) - (one - two) / ((1 - cosine) * two))
    one, two = _zonal(half, dim, cosine), _zonal(half + 1, dim, cosine)
    ratio = (1 + cosine) * (one - two) / ((1 - cosine) * (one + two))
    return _binomial(half + dim - 2, half) * ((2 * half + dim - 1) / (dim - 1) - ratio)


def _zonal(degree: int, dim: int, cosine: float) -> float:
    """Gegenbauer polynomial of the sphere in ``dim`` dimensions, 1 at 1; by its three-term recurrence."""
    before, now = 1.0, cosine
    if degree == 0:
        return before
    for k in range(1, degree):
        before, now = now, ((2 * k + dim - 2) * cosine * now - k * before) / (k + dim - 2)
    return now


def _binomial(n: int, k: int) -> float:
    return math.exp(math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1))

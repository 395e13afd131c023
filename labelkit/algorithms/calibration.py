"""Turn similarities into calibrated probabilities, and measure their calibration.

Sources: C. Guo et al., "On Calibration of Modern Neural Networks" (temperature scaling, expected calibration
error); J. Platt, "Probabilistic Outputs for Support Vector Machines", Sec. 2.2 (targets that a small sample cannot
push to 0 or 1); Y. Geifman et al., "Bias-Reduced Uncertainty Estimation for Deep Neural Classifiers" (risk-coverage
curve). Everything is computed in float64.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.matching import validate_ids

# Range of temperatures tried, as multiples of the spread of the scores, and grid size before the search is refined.
_SPREADS = (1e-3, 1e3)
_GRID = 61


@dataclass(frozen=True, slots=True)
class ColumnProbability:
    """Softmax probability of one chosen column per sample, the margin over the other columns, and the runner-up.

    Attributes:
        confidence: (n,) float64 in [0, 1], probability of the chosen column.
        margin: (n,) float64 in [-1, 1], the confidence minus the largest other probability; negative if another
            column scores higher; 1 if there is only one column.
        runner_up: (n,) int64, column of the largest other probability, the first if tied; -1 if there is none.
    """

    confidence: NDArray[np.float64]
    margin: NDArray[np.float64]
    runner_up: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ReliabilityCurve:
    """Mean confidence and accuracy in b confidence bins of equal width.

    Attributes:
        edges: (b + 1,) float64, from 0 to 1; a bin includes its lower edge, and the last bin also includes 1.
        count: (b,) int64, samples per bin.
        weight: (b,) float64, fraction of the total weight per bin; sums to 1.
        confidence: (b,) float64, mean confidence; NaN for an empty bin.
        accuracy: (b,) float64, mean correctness; NaN for an empty bin.
        ece: expected calibration error, the weighted mean of ``|accuracy - confidence|`` over bins, in [0, 1].
    """

    edges: NDArray[np.float64]
    count: NDArray[np.int64]
    weight: NDArray[np.float64]
    confidence: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    ece: float

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain numbers and lists for JSON, with ``None`` for an empty bin."""
        return {
            "ece": self.ece,
            "bins": [
                {
                    "from": float(self.edges[i]),
                    "to": float(self.edges[i + 1]),
                    "count": int(self.count[i]),
                    "weight": float(self.weight[i]),
                    "confidence": float(self.confidence[i]) if self.count[i] else None,
                    "accuracy": float(self.accuracy[i]) if self.count[i] else None,
                }
                for i in range(len(self.count))
            ],
        }


@dataclass(frozen=True, slots=True)
class RiskCoverageCurve:
    """Error rates on the 1, 2, ..., n most confident samples.

    Attributes:
        coverage: (n,) float64, fraction of samples kept: 1/n, 2/n, ..., 1.
        risk: (n,) float64, error rate among the samples kept, in [0, 1].
        aurc: area under the curve, the mean of ``risk``; lower is better.
    """

    coverage: NDArray[np.float64]
    risk: NDArray[np.float64]
    aurc: float

    def accuracy_at_coverage(self, coverage: float) -> float:
        """Return the accuracy on the ``ceil(coverage * n)`` most confident samples.

        Raises:
            ValueError: coverage is not in (0, 1].
        """
        if not 0 < coverage <= 1:
            raise ValueError(f"coverage must be in (0, 1], got {coverage}")
        # Without the small number, rounding could raise 0.8 * 5 above 4.
        kept = max(1, math.ceil(coverage * len(self.risk) - 1e-9))
        return float(1 - self.risk[kept - 1])


def group_means(features: ArrayLike, group_ids: ArrayLike, num_groups: int) -> NDArray[np.float64]:
    """Compute the mean feature vectors (k, d) float64 of the groups; NaN for an empty group.

    Args:
        features: (n, d) rows.
        group_ids: (n,) integers in ``[0, k)``.
        num_groups: k.

    Raises:
        ValueError: shapes do not match, or an id is out of range.
    """
    rows, groups = np.asarray(features), validate_ids(group_ids, "group_ids")
    if rows.ndim != 2 or len(rows) != len(groups):
        raise ValueError(f"features must have shape ({len(groups)}, d), got {rows.shape}")
    if groups.max() >= num_groups:
        raise ValueError(f"group_ids must be below num_groups={num_groups}, got {groups.max()}")
    means = np.full((num_groups, rows.shape[1]), np.nan)
    for group in np.unique(groups):
        means[group] = rows[groups == group].mean(axis=0, dtype=np.float64)
    return means


def softmax(scores: ArrayLike, temperature: float) -> NDArray[np.float64]:
    """Compute the softmax of scores at a temperature, ``exp(s / T)`` divided by its row sums.

    Args:
        scores: (n, k) numbers, k >= 1; ``-inf`` excludes a column, but every row needs a finite score.
        temperature: T > 0; smaller values sharpen.

    Returns:
        (n, k) float64, rows sum to 1.

    Raises:
        ValueError: wrong shape, NaN or +infinity, a row without a finite score, or T <= 0.
    """
    values = _as_scores(scores)
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(f"temperature must be positive and finite, got {temperature}")
    shifted = (values - values.max(axis=1, keepdims=True)) / temperature
    powers = np.exp(shifted)
    return powers / powers.sum(axis=1, keepdims=True)


def column_probability(scores: ArrayLike, chosen: ArrayLike, temperature: float) -> ColumnProbability:
    """Compute the softmax probability of one chosen column per sample, with its margin and the runner-up column.

    Args:
        scores: (n, k), see :func:`softmax`.
        chosen: (n,) columns in ``[0, k)``, not necessarily those with the largest score.
        temperature: T > 0.

    Raises:
        ValueError: as in :func:`softmax`, or ``chosen`` does not match the scores.
    """
    values = _as_scores(scores)
    columns = _as_columns(chosen, values.shape)
    probabilities = softmax(values, temperature)
    every = np.arange(len(columns))
    confidence = probabilities[every, columns]
    if values.shape[1] == 1:
        return ColumnProbability(confidence, confidence.copy(), np.full(len(columns), -1, dtype=np.int64))
    # Compare scores, not probabilities: low-scoring columns all have probability 0 in floating point.
    others = values.copy()
    others[every, columns] = -np.inf
    runner_up = others.argmax(axis=1).astype(np.int64)
    runner_up[runner_up == columns] = np.where(columns[runner_up == columns] == 0, 1, 0)
    return ColumnProbability(confidence, confidence - probabilities[every, runner_up], runner_up)


def fit_temperature(
    scores: ArrayLike,
    chosen: ArrayLike,
    correct: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    caution: float = 0.0,
) -> float:
    r"""Fit the temperature that best calibrates the predicted probabilities.

    Minimizes the binary negative log-likelihood of "the chosen column is correct" by a grid search over the logarithm
    of T and Brent's bounded search around the best grid point:

    .. math:: -\sum_i w_i [ t_i \log c_i(T) + (1 - t_i) \log(1 - c_i(T)) ]

    with c the softmax probability of the chosen column. The targets are Platt's, ``t = (N_+ + 1) / (N_+ + 2)`` for
    correct and ``1 / (N_- + 2)`` for wrong samples, with N the total weight of each, so that a small sample without
    errors does not lead to certainty. The likelihood depends only on whether the chosen column is correct, so samples
    whose true column is unknown or does not exist can be included.

    Args:
        scores: (n, k), n >= 1, see :func:`softmax`.
        chosen: (n,) integers in ``[0, k)``.
        correct: (n,) bool, or fractions in [0, 1].
        weights: (n,) numbers >= 0 that sum to the number of independent observations; by default all 1.
        caution: z; return the largest T whose loss is at most :math:`z^2 / 2` above the minimum, the upper end of a
            one-sided interval. With few observations, confidences are then too low rather than too high. If
            negative, return the smallest such T.

    Returns:
        T, between a thousandth and a thousand times the spread of the scores; 1 if all scores within each row are
        equal, so that the temperature has no effect.

    Raises:
        ValueError: shapes do not match, values are out of range, or all weights are 0.
    """
    return fit_temperatures(scores, chosen, correct, weights=weights, cautions=(caution,))[0]


def fit_temperatures(
    scores: ArrayLike,
    chosen: ArrayLike,
    correct: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    cautions: Sequence[float],
) -> list[float]:
    """Fit one temperature per caution value, with a single grid search; see :func:`fit_temperature`."""
    values = _as_scores(scores)
    columns = _as_columns(chosen, values.shape)
    right = _as_shares(correct, len(columns), "correct")
    amounts = _as_weights(weights, len(columns))
    finite = np.isfinite(values)
    largest = values.max(axis=1)
    means = np.where(finite, values, 0).sum(axis=1) / finite.sum(axis=1)
    spread = float(np.average(largest - means, weights=amounts))
    if spread <= 0:
        return [1.0] * len(cautions)
    num_right, num_wrong = float((amounts * right).sum()), float((amounts * (1 - right)).sum())
    targets = right * (num_right + 1) / (num_right + 2) + (1 - right) / (num_wrong + 2)
    shifted, every = values - largest[:, None], np.arange(len(columns))

    def loss(log_temperature: float) -> float:
        powers = np.exp(shifted / math.exp(log_temperature))
        confidence = powers[every, columns] / powers.sum(axis=1)
        # Clip probabilities that round to 0 or 1, so that their logarithms are finite.
        confidence = np.clip(confidence, 1e-300, 1 - 1e-16)
        return float(-(amounts * (targets * np.log(confidence) + (1 - targets) * np.log1p(-confidence))).sum())

    from scipy.optimize import minimize_scalar

    grid = np.log(spread) + np.linspace(math.log(_SPREADS[0]), math.log(_SPREADS[1]), _GRID)
    losses = [loss(point) for point in grid]
    best = int(np.argmin(losses))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, _GRID - 1)]
    found = minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-7})
    likeliest, smallest = (float(found.x), float(found.fun))
    if smallest > losses[best]:
        likeliest, smallest = float(grid[best]), losses[best]
    temperatures = []
    for caution in cautions:
        end = float(grid[-1] if caution > 0 else grid[0])
        limit = smallest + caution**2 / 2
        temperatures.append(math.exp(_bisect_last_below(loss, likeliest, end, limit) if caution else likeliest))
    return temperatures


def _bisect_last_below(loss: Callable[[float], float], near: float, far: float, limit: float) -> float:
    """Find by bisection the point farthest from ``near``, at most ``far``, up to which the loss is within the limit."""
    if loss(far) <= limit:
        return far
    for _ in range(40):
        middle = (near + far) / 2
        near, far = (middle, far) if loss(middle) <= limit else (near, middle)
    return near


def reliability_curve(
    confidence: ArrayLike, correct: ArrayLike, *, num_bins: int = 10, weights: ArrayLike | None = None
) -> ReliabilityCurve:
    """Compute the mean confidence and the accuracy in confidence bins of equal width.

    Args:
        confidence: (n,) in [0, 1], n >= 1.
        correct: (n,) bool, or fractions in [0, 1].
        num_bins: b >= 1.
        weights: (n,) numbers >= 0; by default all 1.

    Raises:
        ValueError: shapes do not match, values are out of range, or all weights are 0.
    """
    stated = _as_shares(confidence, None, "confidence")
    right = _as_shares(correct, len(stated), "correct")
    amounts = _as_weights(weights, len(stated))
    if num_bins < 1:
        raise ValueError(f"num_bins must be at least 1, got {num_bins}")
    edges = np.linspace(0, 1, num_bins + 1)
    bins = np.clip(np.searchsorted(edges, stated, side="right") - 1, 0, num_bins - 1)
    count = np.bincount(bins, minlength=num_bins).astype(np.int64)
    weight = np.bincount(bins, amounts, num_bins)
    mean_confidence, accuracy = np.full(num_bins, np.nan), np.full(num_bins, np.nan)
    np.divide(np.bincount(bins, amounts * stated, num_bins), weight, out=mean_confidence, where=weight > 0)
    np.divide(np.bincount(bins, amounts * right, num_bins), weight, out=accuracy, where=weight > 0)
    share = weight / weight.sum()
    gaps = np.where(weight > 0, np.abs(np.nan_to_num(accuracy) - np.nan_to_num(mean_confidence)), 0)
    return ReliabilityCurve(edges, count, share, mean_confidence, accuracy, float((share * gaps).sum()))


def risk_coverage_curve(confidence: ArrayLike, correct: ArrayLike) -> RiskCoverageCurve:
    """Compute the error rate on the most confident samples at every level of coverage.

    Samples of equal confidence count as randomly ordered: each gets their mean error.

    Args:
        confidence: (n,) in [0, 1], n >= 1; only its order matters.
        correct: (n,) bool, or fractions in [0, 1].

    Raises:
        ValueError: shapes do not match, or values are out of range.
    """
    stated = _as_shares(confidence, None, "confidence")
    right = _as_shares(correct, len(stated), "correct")
    _, tied, sizes = np.unique(-stated, return_inverse=True, return_counts=True)
    wrong = np.repeat(np.bincount(tied, 1 - right) / sizes, sizes)
    kept = np.arange(1, len(stated) + 1)
    risk = np.clip(np.cumsum(wrong) / kept, 0, 1)
    return RiskCoverageCurve(kept / len(stated), risk, float(risk.mean()))


def leave_one_out_agreement(group_ids: ArrayLike, labels: ArrayLike) -> NDArray[np.float64]:
    """Compute for each sample whether its group and class would still match if the sample were left out.

    Among the other samples, no class may be more frequent in the group than the sample's class, and in no other group
    may this class be more frequent. The sample thus does not vote for itself, as it would in one-to-one matching.

    Args:
        group_ids: (n,) integers >= -1; -1 = in none of the groups considered, which counts as disagreement.
        labels: (n,) integers >= 0.

    Returns:
        (n,) float64: 1 = agrees, 0 = disagrees, NaN = unknown, because its group contains no other sample and no
        group contains another sample of its class.

    Raises:
        ValueError: shapes do not match.
    """
    groups, classes = np.asarray(group_ids), validate_ids(labels, "labels")
    if groups.shape != classes.shape or not np.issubdtype(groups.dtype, np.integer) or groups.min() < -1:
        raise ValueError(
            f"group_ids must be integers >= -1 of shape {classes.shape}, got {groups.dtype} {groups.shape}"
        )
    agreement = np.zeros(len(groups))
    inside = np.flatnonzero(groups >= 0)
    rows = np.unique(groups[inside], return_inverse=True)[1]
    columns = np.unique(classes[inside], return_inverse=True)[1]
    if not len(inside):
        return agreement
    counts = np.zeros((rows.max() + 1, columns.max() + 1), dtype=np.int64)
    np.add.at(counts, (rows, columns), 1)
    for place, row, column in zip(inside, rows, columns, strict=True):
        counts[row, column] -= 1
        own, of_group, of_class = counts[row, column], counts[row].max(), counts[:, column].max()
        agreement[place] = np.nan if of_group == of_class == 0 else float(own == of_group and own == of_class)
        counts[row, column] += 1
    return agreement


def _as_scores(scores: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] == 0:
        raise ValueError(f"scores must have shape (n, k) with k >= 1, got {values.shape}")
    bad = np.isnan(values).any(axis=1) | (values == np.inf).any(axis=1) | ~np.isfinite(values).any(axis=1)
    if bad.any():
        raise ValueError(f"{int(bad.sum())} of {len(values)} rows of scores contain NaN, infinity or no finite value")
    return values


def _as_columns(chosen: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.int64]:
    columns = validate_ids(chosen, "chosen")
    if len(columns) != shape[0]:
        raise ValueError(f"chosen must have shape ({shape[0]},), got {columns.shape}")
    if columns.max() >= shape[1]:
        raise ValueError(f"chosen must be below the number of columns ({shape[1]}), got {columns.max()}")
    return columns


def _as_shares(values: ArrayLike, length: int | None, name: str) -> NDArray[np.float64]:
    shares = np.asarray(values, dtype=np.float64)
    if shares.ndim != 1 or not shares.size or (length is not None and len(shares) != length):
        raise ValueError(f"{name} must have shape ({'n' if length is None else length},), got {shares.shape}")
    if not ((shares >= 0) & (shares <= 1)).all():
        raise ValueError(f"{name} must be in [0, 1], got values from {shares.min()} to {shares.max()}")
    return shares


def _as_weights(weights: ArrayLike | None, length: int) -> NDArray[np.float64]:
    if weights is None:
        return np.ones(length)
    amounts = np.asarray(weights, dtype=np.float64)
    if amounts.shape != (length,):
        raise ValueError(f"weights must have shape ({length},), got {amounts.shape}")
    if not (np.isfinite(amounts) & (amounts >= 0)).all() or not amounts.any():
        raise ValueError("weights must be finite, not negative, and not all 0")
    return amounts

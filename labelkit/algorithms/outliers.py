"""Score outliers in an image collection by properties of single images and their deviation from the median."""

import numpy as np
from numpy.typing import NDArray

# In a smaller collection, it is unclear what is typical.
MIN_IMAGES = 10
# Robust z-scores at which an image is an outlier: of the distance to its neighbors, and of its blur.
_UNLIKE, _BLURRED = 4.0, 4.5
# Minimum spreads, so that rounding does not create outliers among very similar images: of distances, as a fraction of
# their median and as an absolute value; and of the logarithm of sharpness, which amounts to a factor of 2.
_MIN_SHARE, _MIN_DISTANCE, _MIN_LOG = 0.1, 1e-4, 0.15
# Gray values: minimum contrast of an image with content; mean of an image that is neither dark nor bright.
_MIN_CONTRAST, _DARKEST, _BRIGHTEST = 24.0, 30.0, 230.0
# An image must also be below this fraction of the collection's median.
_CONTRAST_PART, _BRIGHTNESS_PART, _SIDE_PART, _PIXELS_PART = 1 / 2, 1 / 3, 1 / 2, 1 / 16
_MIN_SIDE = 64
_LONGEST = 2.0
_MAX_TIMES = 100.0
# Variance of the Laplacian (4, -1, -1, -1, -1) of rounding errors with variance 1 / 12.
_ROUNDING = 20 / 12
# Added to sharpness before taking its logarithm.
_NO_SHARPNESS = 1e-2

REASONS = ("unlike all others", "blank", "dark", "bright", "blurred", "tiny", "odd shape")


def measure_quality(gray: NDArray[np.uint8]) -> tuple[float, float, float]:
    """Measure the brightness, contrast and sharpness of a grayscale image (h, w).

    Brightness is the mean gray value, and contrast the range of gray values without 1% at each end, both 0 to 255.
    Sharpness is the standard deviation of the Laplacian, corrected for rounding to whole gray values, divided by 1 plus
    the standard deviation of the gray values; NaN if a side is shorter than 3 pixels.
    """
    values = gray.astype(np.float32)
    low, high = np.quantile(gray, (0.01, 0.99))
    middle = 4 * values[1:-1, 1:-1]
    laplacian = middle - values[:-2, 1:-1] - values[2:, 1:-1] - values[1:-1, :-2] - values[1:-1, 2:]
    sharpness = float("nan")
    if laplacian.size:
        sharpness = max(0.0, float(laplacian.var()) - _ROUNDING) ** 0.5 / (float(values.std()) + 1)
    return float(values.mean()), float(high - low), sharpness


def robust_z_scores(
    values: NDArray[np.float64], min_relative_spread: float = 0.0, min_spread: float = 0.0
) -> NDArray[np.float64]:
    """Compute robust z-scores: deviations from the median, in units of the scaled median absolute deviation.

    Args:
        values: (n,); NaN is ignored and stays NaN.
        min_relative_spread: minimum spread, as a fraction of the median.
        min_spread: minimum spread.
    """
    known = values[~np.isnan(values)]
    if not len(known):
        return values
    median = float(np.median(known))
    spread = 1.4826 * float(np.median(np.abs(known - median)))  # of a normal distribution
    return (values - median) / max(spread, min_relative_spread * abs(median), min_spread, np.finfo(np.float64).tiny)


def compute_neighbor_z_scores(distances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute robust z-scores (n,) of the distances to a near neighbor; 4 is the outlier threshold, NaN is unknown."""
    return robust_z_scores(distances, _MIN_SHARE, _MIN_DISTANCE)


def outlier_scores(
    distances: NDArray[np.float64] | None = None,
    tones: NDArray[np.float64] | None = None,
    sizes: NDArray[np.int64] | None = None,
) -> NDArray[np.float64]:
    """Compute each image's outlier score for every criterion in ``REASONS``.

    Args:
        distances: (n,) to a near neighbor, NaN = unknown; ``None``, here and below: not scored.
        tones: (n, 3) brightness, contrast and sharpness, NaN = unknown.
        sizes: (n, 2) height and width.

    Returns:
        (n, 7) float64: the factor by which the threshold is exceeded, from 1 to 100, if the reason applies; else 0.
    """
    count = next(len(given) for given in (distances, tones, sizes) if given is not None)
    scores = np.zeros((count, len(REASONS)))
    comparable = count >= MIN_IMAGES
    if comparable and distances is not None:
        scores[:, 0] = _beyond(compute_neighbor_z_scores(distances) / _UNLIKE)
    if tones is not None:
        brightness, contrast, sharpness = tones.T
        usual_brightness, usual_contrast = (_median(values) for values in (brightness, contrast))
        scores[:, 1] = _below(contrast, min(_MIN_CONTRAST, _CONTRAST_PART * usual_contrast))
        scores[:, 2] = _below(brightness, min(_DARKEST, _BRIGHTNESS_PART * usual_brightness))
        scores[:, 3] = _below(255 - brightness, min(255 - _BRIGHTEST, _BRIGHTNESS_PART * (255 - usual_brightness)))
        if comparable:
            sharp = np.where(scores[:, 1] > 0, np.nan, sharpness)  # nothing on a blank image is sharp
            scores[:, 4] = _beyond(-robust_z_scores(np.log(sharp + _NO_SHARPNESS), min_spread=_MIN_LOG) / _BLURRED)
    if sizes is not None and comparable:
        sides = sizes.astype(np.float64)
        shorter, pixels = sides.min(axis=1), sides.prod(axis=1)
        elongation = sides.max(axis=1) / shorter
        scores[:, 5] = np.maximum(
            _below(shorter, min(_MIN_SIDE, _SIDE_PART * _median(shorter))),
            _below(pixels, _PIXELS_PART * _median(pixels)),
        )
        scores[:, 6] = _beyond(elongation / (_LONGEST * _median(elongation)))
    return scores


def _median(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else 0.0


def _below(values: NDArray[np.float64], limit: float) -> NDArray[np.float64]:
    if limit <= 0:
        return np.zeros(len(values))
    return np.where(values < limit, limit / np.maximum(values, limit / _MAX_TIMES), 0.0)


def _beyond(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(shares >= 1, np.minimum(shares, _MAX_TIMES), 0.0)

"""Match points of two images, and find the homography that maps one image to the other (affine SIFT).

Source: J.-M. Morel and G. Yu, "ASIFT" (2009), as implemented in OpenCV; R. Arandjelovic and A. Zisserman, "RootSIFT"
(2012). The same physical point is found in several simulated tilts, so both tests of a match consider positions:
    - ratio test: the second-best match must lie more than a few pixels from the best match
    - mutual test: the reverse match may end within a few pixels of the start
Otherwise, repeated detections of a point would cause good matches to be rejected. Only this module imports
OpenCV, which is optional.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from labelkit.algorithms.homographies import normalize_homography, normalize_points
from labelkit.errors import ConfigError

# Shorter side to which images are resized, in pixels; largest simulated tilt, as a power of the square root of 2
# (OpenCV's default is 5; each takes time); maximum number of keypoints, strongest first.
_SHORTER_SIDE, _MAX_TILT, _MAX_KEYPOINTS = 256, 3, 2000
# Maximum ratio of the best to the second-best distance; minimum number and fraction of matches that one homography
# must explain.
_RATIO, _MIN_INLIERS, _MIN_INLIER_RATIO = 0.75, 15, 0.5
_NEAR_PX = 6.0
_CELL_PX = 4.0
_RANSAC_PX, _RANSAC_ITERATIONS, _RANSAC_CONFIDENCE = 4.0, 2000, 0.995
_SCALE = (0.25, 4.0)
_STRETCH = 5.0


@dataclass(frozen=True, slots=True)
class Keypoints:
    """Keypoints of one image with their SIFT descriptors."""

    # (k, 2) float32 x and y in pixels of the resized image, integers at the centers of pixels
    points: NDArray[np.float32]
    descriptors: NDArray[np.uint8]  # (k, 128) uint8
    size: tuple[int, int]  # height and width of the resized image


def configure_opencv() -> str:
    """Limit OpenCV to one thread, for callers that manage their own threads, and return its version.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import cv2
    except ImportError as error:
        problem = "detecting keypoints requires OpenCV"
        raise ConfigError("match", problem, "Run `pip install opencv-python-headless`.") from error
    cv2.setNumThreads(1)
    return str(cv2.__version__)


def find_keypoints(image: NDArray[np.uint8]) -> Keypoints:
    """Detect affine SIFT keypoints in an image, strongest first.

    Args:
        image: (h, w, c) uint8, c = 1 or 3 (RGB).

    Returns:
        The keypoints; none for a blank image.
    """
    import cv2

    gray = image[:, :, 0] if image.shape[2] == 1 else cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    height, width = gray.shape
    scale = _SHORTER_SIDE / min(height, width)
    size = (max(_SHORTER_SIDE, round(height * scale)), max(_SHORTER_SIDE, round(width * scale)))
    gray = cv2.resize(
        np.ascontiguousarray(gray), size[::-1], interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    )
    found, descriptors = cv2.AffineFeature.create(cv2.SIFT.create(), maxTilt=_MAX_TILT).detectAndCompute(gray, None)
    if not found:
        descriptors = np.zeros((0, 128))
    points = np.array([point.pt for point in found], dtype=np.float32).reshape(-1, 2)
    order = np.argsort([-point.response for point in found], kind="stable")[:_MAX_KEYPOINTS].astype(np.int64)
    return Keypoints(points[order], descriptors[order].astype(np.uint8), size)


def match_images(first: Keypoints, second: Keypoints) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Decide whether two images show the same object, based on their keypoints.

    Args:
        first: keypoints of the first image.
        second: keypoints of the second image.

    Returns:
        The (3, 3) homography from the first to the second image, and the inliers (k, 2, 2), closest descriptors first:
        x and y in the first and in the second image; float64, in normalized coordinates. ``None`` if there are too few
        matches or inliers, or if the homography is implausible for two views of a plane.
    """
    import cv2

    pairs = match_keypoints(first, second)
    if len(pairs) < _MIN_INLIERS:
        return None
    start, end = first.points[pairs[:, 0]], second.points[pairs[:, 1]]
    found, inside = cv2.findHomography(
        start, end, cv2.RANSAC, _RANSAC_PX, maxIters=_RANSAC_ITERATIONS, confidence=_RANSAC_CONFIDENCE
    )
    if found is None:
        return None
    inliers = inside.reshape(-1).astype(bool)
    if inliers.sum() < _MIN_INLIERS or inliers.mean() < _MIN_INLIER_RATIO:
        return None
    moved = normalize_homography(found, first.size, second.size)
    places = [normalize_points(start[inliers], first.size), normalize_points(end[inliers], second.size)]
    aspect = (first.size[1] / first.size[0], second.size[1] / second.size[0])
    if not is_plausible_homography(moved, places[0], aspect):
        return None
    return moved / moved[2, 2], np.stack(places, axis=1)


def match_keypoints(first: Keypoints, second: Keypoints) -> NDArray[np.int64]:
    """Match the keypoints of two images and return index pairs (m, 2), best first, at most one per 4 x 4 pixel cell.

    Cells are in pixels of the first image.

    Args:
        first: keypoints of the first image.
        second: keypoints of the second image.
    """
    if len(first.points) == 0 or len(second.points) < 2:
        return np.zeros((0, 2), dtype=np.int64)
    similarity = _root(first.descriptors) @ _root(second.descriptors).T
    best, back = similarity.argmax(axis=1), similarity.argmax(axis=0)
    returns = np.linalg.norm(first.points[back[best]] - first.points, axis=1) <= _NEAR_PX
    rows = np.flatnonzero(returns)
    others, best = similarity[rows], best[rows]
    # squared distance between unit vectors
    closest = 2 - 2 * others[np.arange(len(rows)), best]
    others[cdist(second.points[best], second.points) <= _NEAR_PX] = -np.inf
    kept = np.flatnonzero(closest < _RATIO**2 * (2 - 2 * others.max(axis=1)))
    kept = kept[np.argsort(closest[kept], kind="stable")]
    cells = np.floor(first.points[rows[kept]] / _CELL_PX)
    _, one_each = np.unique(cells, axis=0, return_index=True)
    kept = kept[np.sort(one_each)]
    return np.stack((rows[kept], best[kept]), axis=1)


def _root(descriptors: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return unit rows whose inner product is the Hellinger kernel of the descriptors."""
    values = descriptors.astype(np.float32)
    return np.asarray(np.sqrt(values / np.maximum(values.sum(axis=1, keepdims=True), 1.0)))


def is_plausible_homography(
    homography: NDArray[np.float64], points: NDArray[np.float64], aspect: tuple[float, float] = (1.0, 1.0)
) -> bool:
    """Return whether a homography can plausibly relate two photos of the same plane.

    The bounding box of the points must stay in front of the camera, which keeps it convex, and must not be mirrored. At
    the mean of the points, lengths may change by a factor of 1/4 to 4, and at most 5 times as much in one direction.

    Args:
        homography: (3, 3) in normalized coordinates.
        points: (k, 2) matched points in the first image.
        aspect: width over height of both images.
    """
    if not np.isfinite(homography).all():
        return False
    (left, top), (right, bottom), (x, y) = points.min(axis=0), points.max(axis=0), points.mean(axis=0)
    # the sign of a homography is arbitrary
    matrix = homography * np.sign(homography[2] @ (x, y, 1))
    corners = np.array([[left, top, 1], [right, top, 1], [right, bottom, 1], [left, bottom, 1]])
    if (corners @ matrix[2]).min() <= 1e-6:
        return False
    middle = matrix @ (x, y, 1)
    jacobian = (matrix[:2, :2] - np.outer(middle[:2] / middle[2], matrix[2, :2])) / middle[2]
    # in units of the image heights, so that a circle in one image is compared with a circle in the other
    jacobian = np.diag([aspect[1], 1.0]) @ jacobian @ np.diag([1 / aspect[0], 1.0])
    determinant = float(np.linalg.det(jacobian))
    large, small = np.linalg.svd(jacobian, compute_uv=False)
    return bool(determinant > 0 and _SCALE[0] <= np.sqrt(determinant) <= _SCALE[1] and large <= _STRETCH * small)

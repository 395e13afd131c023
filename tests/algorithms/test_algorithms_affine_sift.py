"""Affine SIFT on a photograph that was warped by a known homography."""

import numpy as np
import pytest
from labelkit.algorithms.affine_sift import (
    Keypoints,
    find_keypoints,
    is_plausible_homography,
    match_images,
    match_keypoints,
)
from sklearn.datasets import load_sample_image

cv2 = pytest.importorskip("cv2", reason="OpenCV is an extra")

HEIGHT, WIDTH = 256, 384
BOX = np.array([[-0.5, -0.5], [0.5, -0.5], [0.5, 0.5], [-0.5, 0.5], [0.0, 0.0]])


def photograph(name: str) -> np.ndarray:
    image = load_sample_image(name)
    gray = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    return cv2.resize(gray, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA)[:, :, None]


@pytest.fixture(scope="module")
def china() -> tuple[np.ndarray, Keypoints]:
    image = photograph("china.jpg")
    return image, find_keypoints(image)


def keypoints_at(points: list[tuple[float, float]], descriptors: list[int]) -> Keypoints:
    """Keypoints whose descriptors have one bin each: equal bins match exactly, others not at all."""
    found = np.zeros((len(points), 128), dtype=np.uint8)
    for row, number in enumerate(descriptors):
        found[row, number] = 255
    return Keypoints(np.array(points, dtype=np.float32), found, (100, 100))


def test_a_photograph_that_is_strongly_tilted_is_found_again(china: tuple[np.ndarray, Keypoints]) -> None:
    corners = [(115.2, 20), (238.08, 60), (230.4, 196), (107.52, 246)]
    image, keypoints = china
    start = np.array([(0, 0), (WIDTH - 1, 0), (WIDTH - 1, HEIGHT - 1), (0, HEIGHT - 1)], dtype=np.float32)
    true = cv2.getPerspectiveTransform(start, np.array(corners, dtype=np.float32))
    warped = cv2.warpPerspective(image[:, :, 0], true, (WIDTH, HEIGHT))[:, :, None]
    match = match_images(keypoints, find_keypoints(warped))

    homography, points = match
    assert len(points) >= 60
    grid = np.stack(np.meshgrid(np.linspace(0, WIDTH - 1, 5), np.linspace(0, HEIGHT - 1, 5)), axis=-1).reshape(-1, 2)
    expected = cv2.perspectiveTransform(grid[None], true)[0]
    normalized = (2 * grid + 1) / (WIDTH, HEIGHT) - 1
    arrived = cv2.perspectiveTransform(normalized[None], homography)[0]
    pixels = ((arrived + 1) * (WIDTH, HEIGHT) - 1) / 2
    assert np.linalg.norm(pixels - expected, axis=1).max() < 4.0


def test_two_photographs_of_different_things_do_not_match(china: tuple[np.ndarray, Keypoints]) -> None:
    flower = find_keypoints(photograph("flower.jpg"))
    assert len(match_keypoints(china[1], flower)) < 15
    assert match_images(china[1], flower) is None


def test_a_blank_image_has_no_keypoints_and_matches_nothing(china: tuple[np.ndarray, Keypoints]) -> None:
    blank = find_keypoints(np.zeros((40, 30, 3), dtype=np.uint8))
    assert blank.points.shape == (0, 2)
    assert blank.size == (341, 256)
    assert len(china[1].points) == 2000
    assert match_images(blank, china[1]) is None
    assert match_images(china[1], blank) is None


def test_a_match_that_does_not_return_is_rejected() -> None:
    first = keypoints_at([(10, 10), (90, 90)], [0, 0])
    second = keypoints_at([(20, 20), (60, 60)], [0, 1])
    # both of the first image choose (20, 20), which returns to the first of them
    assert match_keypoints(first, second).tolist() == [[0, 0]]


def test_one_match_is_kept_for_each_cell_of_the_first_image() -> None:
    first = keypoints_at([(8, 8), (9, 9), (30, 30)], [0, 1, 2])
    second = keypoints_at([(50, 50), (70, 70), (90, 90)], [0, 1, 2])
    assert match_keypoints(first, second).tolist() == [[0, 0], [2, 2]]


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        (np.eye(3), True),
        (-np.eye(3), True),
        (np.diag([-1.0, 1, 1]), False),
        (np.diag([5.0, 5, 1]), False),
        (np.diag([0.2, 0.2, 1]), False),
        (np.diag([2.0, 0.35, 1]), False),
        (np.array([[1.0, 0, 0], [0, 1, 0], [0, 3, 1]]), False),
        (np.full((3, 3), np.nan), False),
    ],
    ids=["same", "negative", "mirrored", "enlarged", "reduced", "stretched", "behind the camera", "not finite"],
)
def test_homographies_of_photographs(matrix: np.ndarray, expected: bool) -> None:
    assert is_plausible_homography(matrix, BOX) is expected

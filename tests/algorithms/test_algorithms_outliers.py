"""What makes an image odd: numbers of single images, and limits that depend on what is usual."""

import numpy as np
import pytest
from labelkit.algorithms.outliers import REASONS, measure_quality, outlier_scores, robust_z_scores
from numpy.typing import NDArray

USUAL = 40


def collection(**changed: float) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Forty usual images and a last one that differs by the given numbers."""
    generator = np.random.default_rng(0)
    distances = np.append(0.2 + 0.02 * generator.normal(size=USUAL), changed.get("distance", 0.2))
    tones = np.stack(
        [
            np.append(110 + 10 * generator.normal(size=USUAL), changed.get("brightness", 110)),
            np.append(200 + 10 * generator.normal(size=USUAL), changed.get("contrast", 200)),
            np.append(np.exp(0.2 * generator.normal(size=USUAL)), changed.get("sharpness", 1)),
        ],
        axis=1,
    )
    sizes = np.full((USUAL + 1, 2), 200)
    sizes[-1] = changed.get("height", 200), changed.get("width", 200)
    return distances, tones, sizes


def reasons(scores: NDArray[np.float64]) -> list[str]:
    return [reason for reason, score in zip(REASONS, scores, strict=True) if score > 0]


def test_tones_of_halves_have_known_numbers() -> None:
    brightness, contrast, sharpness = measure_quality(
        np.repeat(np.array([[10, 210]], np.uint8), [50, 50], axis=1).repeat(100, axis=0)
    )
    assert (brightness, contrast) == (110, 200)
    # one edge of 200 between columns 49 and 50: -200 and 200 in two of 98 columns
    assert sharpness == pytest.approx(np.sqrt(2 / 98 * 200**2 - 20 / 12) / 101)


def test_rounding_alone_is_no_sharpness() -> None:
    bowl = np.round(np.add.outer(0.0031 * np.arange(200.0) ** 2, 0.0027 * np.arange(200.0) ** 2)).astype(np.uint8)
    assert measure_quality(bowl)[2] < 0.01


def test_deviations_of_a_normal_sample_are_standard_ones() -> None:
    sample = np.random.default_rng(0).normal(5, 2, 100_000)
    assert robust_z_scores(sample) == pytest.approx((sample - 5) / 2, abs=0.1)


def test_what_is_not_known_stays_so_and_moves_nothing() -> None:
    values = np.array([1.0, 2.0, 3.0])
    assert robust_z_scores(np.append(values, np.nan))[:3].tolist() == robust_z_scores(values).tolist()
    assert np.isnan(robust_z_scores(np.append(values, np.nan))[3])


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"distance": 0.4}, "unlike all others"),
        ({"contrast": 5}, "blank"),
        ({"brightness": 12}, "dark"),
        ({"brightness": 245}, "bright"),
        ({"sharpness": 0.2}, "blurred"),
        ({"height": 40, "width": 40}, "tiny"),
        ({"height": 500, "width": 100}, "odd shape"),
    ],
)
def test_each_reason_is_found_alone(changed: dict[str, float], reason: str) -> None:
    scores = outlier_scores(*collection(**changed))
    assert reasons(scores[-1]) == [reason]
    assert scores[-1].max() >= 1
    assert not scores[:-1].any()


def test_score_says_how_many_times_the_limit_is_passed() -> None:
    assert outlier_scores(*collection(contrast=6))[-1, REASONS.index("blank")] == pytest.approx(24 / 6)
    assert outlier_scores(*collection(contrast=0))[-1, REASONS.index("blank")] == 100
    assert outlier_scores(*collection(height=800, width=200))[-1, REASONS.index("odd shape")] == pytest.approx(4 / 2)


def test_drawings_on_white_paper_are_not_bright_among_themselves() -> None:
    distances, tones, sizes = collection()
    tones[:, 0] = np.linspace(232, 246, len(tones))
    assert not outlier_scores(distances, tones, sizes)[:, REASONS.index("bright")].any()


def test_small_images_are_not_tiny_among_themselves() -> None:
    distances, tones, sizes = collection()
    assert not outlier_scores(distances, tones, np.full_like(sizes, 32)).any()

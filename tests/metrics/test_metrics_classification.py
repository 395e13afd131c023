import numpy as np
import pytest
from labelkit.metrics.classification import per_class_accuracy, top_k_accuracy

LOGITS = np.array([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2], [0.2, 0.3, 0.5], [0.6, 0.3, 0.1]], dtype=np.float32)
LABELS = [1, 1, 2, 2]


@pytest.mark.parametrize(("k", "accuracy"), [(1, 0.5), (2, 0.75), (3, 1.0)])
def test_top_k_counts_the_k_largest_logits(k: int, accuracy: float) -> None:
    assert top_k_accuracy(LOGITS, LABELS, k) == accuracy


@pytest.mark.parametrize("k", [1, 2, 4])
def test_equal_logits_score_what_chance_gives(k: int) -> None:
    assert top_k_accuracy(np.zeros((6, 4)), [0, 0, 0, 0, 0, 3], k) == pytest.approx(k / 4)


def test_tie_for_the_last_place_counts_by_half() -> None:
    assert top_k_accuracy([[3.0, 1, 1, 0]], [1], 2) == 0.5
    assert top_k_accuracy([[3.0, 1, 1, 0]], [1], 1) == 0
    assert top_k_accuracy([[3.0, 1, 1, 0]], [1], 3) == 1


def test_per_class_accuracy_is_nan_for_an_absent_class() -> None:
    np.testing.assert_array_equal(per_class_accuracy(LOGITS, LABELS, 3), [np.nan, 0.5, 0.5])

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_digits


@pytest.fixture(scope="package")
def labeled_digits() -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Pixels, the first five labels of each class, and the truth."""
    bundle = load_digits()
    labels = np.full(len(bundle.target), -1)
    for c in range(10):
        labels[np.flatnonzero(bundle.target == c)[:5]] = c
    return bundle.data / 16, labels, bundle.target

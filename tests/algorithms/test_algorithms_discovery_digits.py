"""What a classifier gains by discovered labels: digits, pixels, the protocol of the specification's check."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from labelkit.methods.few_labels.critical_samples import discover_critical
from labelkit.methods.few_labels.snowball_search import discover_confident
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

Array = NDArray[Any]
SEEDS = range(6)


def split() -> tuple[Array, Array, Array, Array]:
    bundle = load_digits()
    order = np.random.RandomState(0).permutation(1797)
    pixels, truth = bundle.data / 16, bundle.target
    return pixels[order[500:]], truth[order[500:]], pixels[order[:500]], truth[order[:500]]


def drawn(truth: Array, num_labels: int, seed: int) -> Array:
    generator, labels = np.random.RandomState(seed), np.full(len(truth), -1)
    for c in range(10):
        labels[generator.permutation(np.flatnonzero(truth == c))[: num_labels // 10]] = c
    return labels


def mean_error_and_noise(num_labels: int, grow: Any) -> tuple[float, float]:
    """Mean test error and share of wrong labels in %, over the seeds."""
    train, truth, test, answers = split()
    errors, noise = [], []
    for seed in SEEDS:
        given = drawn(truth, num_labels, seed)
        labels = grow(train, given, seed)
        held = labels >= 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = LogisticRegression(C=1, max_iter=300).fit(train[held], labels[held])
        errors.append((model.predict(test) != answers).mean())
        noise.append((labels[held] != truth[held]).mean())
    return 100 * float(np.mean(errors)), 100 * float(np.mean(noise))


def nothing(features: Array, labels: Array, seed: int) -> Array:
    return labels


def snowball(**options: Any) -> Any:
    def grow(features: Array, labels: Array, seed: int) -> Array:
        return discover_confident(features, labels, "double", 3, seed=seed, **options).grown(labels)

    return grow


def lmcs(**options: Any) -> Any:
    def grow(features: Array, labels: Array, seed: int) -> Array:
        return discover_critical(features, labels, "double", 3, **options).grown(labels)

    return grow


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_labels", "grow", "error", "noise"),
    [
        (20, nothing, 25.8, 0),
        (20, snowball(), 21.7, 1.2),
        (20, snowball(balance="global"), 33.2, 0.1),
        (20, snowball(select="far"), 19.9, 9.5),
        (20, snowball(select="random"), 23.0, 18.8),
        (20, lmcs(), 21.3, 3.75),
        (20, lmcs(criterion="min_entropy"), 20.2, 1.9),
        (20, lmcs(confine=False), 26.6, 35.2),
        (50, nothing, 14.9, 0),
        (50, snowball(), 12.9, 1.2),
        (50, snowball(balance="global"), 16.2, 0.3),
        (50, snowball(select="far"), 13.2, 5.5),
        (50, snowball(select="random"), 15.0, 12.9),
        (50, lmcs(), 13.6, 1.6),
        (50, lmcs(criterion="min_entropy"), 13.3, 1.0),
        (50, lmcs(confine=False), 15.3, 19.8),
        (100, nothing, 10.6, 0),
        (100, snowball(), 10.4, 3.2),
        (100, lmcs(), 10.0, 2.2),
        (100, lmcs(confine=False), 11.9, 12.2),
    ],
)
def test_errors_are_those_of_the_specification(num_labels: int, grow: Any, error: float, noise: float) -> None:
    found, wrong = mean_error_and_noise(num_labels, grow)
    # 0.4: another solver's last digits move a digit or two of 500
    assert found == pytest.approx(error, abs=0.4)
    assert wrong == pytest.approx(noise, abs=0.06)


@pytest.mark.slow
@pytest.mark.parametrize("num_labels", [20, 50])
def test_balanced_discovery_helps_and_global_or_unconfined_discovery_harms(num_labels: int) -> None:
    none, _ = mean_error_and_noise(num_labels, nothing)
    balanced, _ = mean_error_and_noise(num_labels, snowball())
    together, _ = mean_error_and_noise(num_labels, snowball(balance="global"))
    confined, _ = mean_error_and_noise(num_labels, lmcs())
    anywhere, _ = mean_error_and_noise(num_labels, lmcs(confine=False))

    assert balanced < none < together
    assert confined < none < anywhere

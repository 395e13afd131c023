"""Time the main computations of ``labelkit discover answer`` against plain calls of scikit-learn and scipy.

CPU time, with as many threads as the machine has: time that threads spend waiting for each other counts.
"""

import warnings
from collections.abc import Iterator

import numpy as np
from labelkit.algorithms.calibration import fit_temperatures, softmax
from labelkit.algorithms.few_label_classifier import RefittableClassifier
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar
from sklearn.linear_model import LogisticRegression

from benchmarks.measure import Row, Wanted, compare, processor_seconds, with_check

SEEDS = [0]
ROWS, DIM, CLASSES, PER_CLASS, FOLDS = 3068, 1280, 81, 5, 5
SCORED, GROUPS, CAUTIONS = 4000, 90, (1.28, 2.0, -2.0)


def rows() -> Iterator[Row]:
    """Compare classifiers for five folds of labels, and the temperatures for one kind of predictions."""
    yield regression_row()
    yield temperature_row()


quick_rows = rows


def regression_row() -> Row:
    """Predict probabilities for all rows, each time without a fifth of the labels."""
    generator = np.random.default_rng(SEEDS[0])
    truth = np.arange(ROWS) % CLASSES
    centers = generator.standard_normal((CLASSES, DIM))
    features = (centers[truth] + 3 * generator.standard_normal((ROWS, DIM))).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    labels = np.where(np.arange(ROWS) < CLASSES * PER_CLASS, truth, -1)
    judge = RefittableClassifier(features, labels)
    classes = np.arange(CLASSES)
    parts = [np.where(np.arange(ROWS) // CLASSES == fold, -1, labels) for fold in range(FOLDS)]
    moved = features - features.mean(axis=0)
    moved *= 10 / np.sqrt(np.square(moved).sum(axis=1).mean())
    named: dict[str, list[NDArray[np.int64]]] = {}

    def ours() -> None:
        named["ours"] = [judge.regression_probabilities(kept, classes).argmax(axis=1) for kept in parts]

    def peer() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fits = [LogisticRegression(C=10, max_iter=200).fit(moved[kept >= 0], kept[kept >= 0]) for kept in parts]
            named["peer"] = [fit.predict_proba(moved).argmax(axis=1) for fit in fits]

    name = f"classifiers of {FOLDS} folds, {ROWS:,} x {DIM:,}, {CLASSES} classes / scikit-learn's, processor time"
    row = compare(name, processor_seconds(ours), processor_seconds(peer), wanted=Wanted(">=", 2), repetitions=3)
    agree = np.mean([(a == b).mean() for a, b in zip(named["ours"], named["peer"], strict=True)])
    return with_check(row, "names for 99.9% of rows", bool(agree >= 0.999))


def temperature_row() -> Row:
    """Find the most likely temperature and those at three distances from it; the peer is scipy's search."""
    generator = np.random.default_rng(SEEDS[0])
    scores = np.log(generator.dirichlet(np.full(GROUPS, 0.1), SCORED) + 1e-12)
    named = scores.argmax(axis=1)
    correct = generator.uniform(size=SCORED) < softmax(scores, 1.7)[np.arange(SCORED), named]
    targets = np.where(correct, (correct.sum() + 1) / (correct.sum() + 2), 1 / ((~correct).sum() + 2))
    found: dict[str, list[float]] = {}

    def loss(log_temperature: float) -> float:
        confidence = softmax(scores, np.exp(log_temperature))[np.arange(SCORED), named].clip(1e-300, 1 - 1e-16)
        return -float((targets * np.log(confidence) + (1 - targets) * np.log1p(-confidence)).sum())

    def ours() -> None:
        found["ours"] = fit_temperatures(scores, named, correct, cautions=CAUTIONS)

    def peer() -> None:
        best = minimize_scalar(loss, bracket=(-1, 1))
        found["peer"] = [
            float(np.exp(brentq(lambda t, c=c: loss(t) - best.fun - c**2 / 2, best.x, best.x + 2 * np.sign(c))))
            for c in CAUTIONS
        ]

    name = f"temperatures of {SCORED:,} answers among {GROUPS} groups / scipy's searches, processor time"
    row = compare(name, processor_seconds(ours), processor_seconds(peer), wanted=Wanted(""), repetitions=3)
    return with_check(row, "temperatures", bool(np.allclose(found["ours"], found["peer"], rtol=1e-3)))

"""``evaluate linear``: features as they are, and a gallery of fewer rows."""

from collections.abc import Callable
from typing import Any

import numpy as np

# Both splits have two rows of each class; the classes differ in the first number alone, far away from zero.
ROWS = np.array([[11, 1], [13, 1], [11, -1], [13, -1]] * 2, dtype=np.float32)
SPLITS = {"labels": [0, 1, 0, 1] * 2, "splits": [0] * 4 + [1] * 4, "split_names": ["train", "test"]}
ONE_STEP = ("--solver", "sgd", "--epochs", "1", "--batch-size", "4", "--lr", "0.1", "--json")


def test_features_as_they_are_keep_their_mean(make_store: Any, labelkit: Callable[..., Any]) -> None:
    store = make_store(ROWS, **SPLITS)

    moved = labelkit("evaluate", "linear", "--index", store.path, *ONE_STEP)
    kept = labelkit("evaluate", "linear", "--index", store.path, "--no-rescale", *ONE_STEP)

    assert moved.json["accuracy"]["mean"] == 1.0
    # one step from zero pulls by the mean of each class alone, and that of class 1 is longer: it wins everywhere
    assert kept.json["accuracy"]["mean"] == 0.5
    assert (moved.json["protocol"]["rescale"], kept.json["protocol"]["rescale"]) == (True, False)


def test_the_gallery_has_no_more_rows_than_asked_for(make_store: Any, labelkit: Callable[..., Any]) -> None:
    store = make_store(ROWS, **SPLITS)

    answers = [
        labelkit("evaluate", "linear", "--index", store.path, "--max-gallery", most, *ONE_STEP).json
        for most in ("1", "4", "9")
    ]

    assert [answer["gallery"]["rows"] for answer in answers] == [1, 4, 4]
    # a row of one class names everything after it
    assert [answer["accuracy"]["mean"] for answer in answers] == [0.5, 1.0, 1.0]
    # a split is no test of itself under another name
    answer = labelkit("evaluate", "linear", "--index", store.path, "--gallery", "train", "--queries", "Training")
    assert (answer.code, "is also the gallery" in answer.err) == (2, True)

"""What ``train --dry-run`` says of the features before training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.running import Labelkit, MakeStore

HEAD = ("--batch-size", 4, "--epochs", 1, "--device", "cpu", "--threads", 1, "--dry-run", "--json")


def separated(make_store: MakeStore, *, noise: float, labeled: list[int] | None = None) -> Path:
    """A store of four classes of twelve rows around axes."""
    chance = np.random.default_rng(0)
    classes = np.repeat(np.arange(4), 12)
    rows = np.eye(8)[classes] + noise * chance.standard_normal((48, 8))
    store = make_store(rows.astype(np.float32), labels=classes.tolist(), labeled=labeled or [1] * 48)
    return Path(store.path)


def plan(labelkit: Labelkit, index: Path, *words: object) -> Any:
    answer = labelkit("train", "softmax", "--index", index, *HEAD, *words)
    assert answer.code == 0, answer.err
    return answer.json


def test_rows_that_tell_classes_apart_need_no_training(labelkit: Labelkit, make_store: MakeStore) -> None:
    found = plan(labelkit, separated(make_store, noise=0.05))["before_training"]
    assert found["count"] == 48
    assert found["right"] == 1.0
    assert (found["low"], found["high"]) == (pytest.approx(0.926, abs=1e-3), 1.0)
    assert "logistic regression" in found["classifier"]
    # labels that training may not use are not looked at
    some = [int(row % 12 < 3) for row in range(48)]
    found = plan(labelkit, separated(make_store, noise=0.05, labeled=some))["before_training"]
    assert found["count"] == 12


def test_a_score_needs_two_classes_with_two_labels(labelkit: Labelkit, make_store: MakeStore) -> None:
    one_each = [int(row % 12 == 0) for row in range(48)]
    index = separated(make_store, noise=0.05, labeled=one_each)
    assert "before_training" not in plan(labelkit, index, "--row-mix", 0)

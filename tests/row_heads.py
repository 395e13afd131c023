"""Short trainings of every method that takes the rows of a store, and what their heads make of these."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.store.embeddings import open_store

BATCHES = ("--batch-size", 8, "--threads", 1, "--device", "cpu")
SHORT = ("--epochs", 3, *BATCHES)
STEPS = ("--num-labels", 12, "--steps", 6, "--eval-every-steps", 3, *BATCHES, "--labeled-batch-size", 4)
HEADS = {
    "softmax": SHORT,
    "dl2pa": SHORT,
    "supervised": STEPS[:-2],
    "snowball": (*STEPS, "--later-steps", 3, "--cap", 2),
    "lmcs": (*STEPS, "--first-blocks", 1, "--generation-blocks", 1, "--master-steps", 2),
    "freematch": STEPS,
    "mean-teacher": STEPS,
    "mixmatch": STEPS,
    "simgcd": (*SHORT, "--label-split", "gcd", "--projector-hidden-dim", 16, "--projection-dim", 8),
    "gcd": (*SHORT, "--label-split", "gcd", "--projector-hidden-dim", 16, "--projection-dim", 8, "--head-dim", 16),
    "sela": (*SHORT, "--num-clusters", 6, "--num-optimizations", 3),
    "san": (*SHORT, "--images-per-class", 2),
}

EACH_HEAD = [
    pytest.param(name, marks=() if name in ("softmax", "simgcd", "mixmatch") else pytest.mark.slow) for name in HEADS
]


def rows_after(
    labelkit: Callable[..., Any], folder: Path, store: Path, *words: object, method: str = "softmax"
) -> np.ndarray:
    """What a head makes of the rows of a store after training with these options."""
    run, made = folder / "run", folder / "made.h5"
    answer = labelkit("train", method, "--index", store, *HEADS[method], *words, "--out", run, "--overwrite")
    assert answer.code == 0, answer.err
    answer = labelkit("embed", "--index", store, "--checkpoint", run, "--out", made, "--overwrite")
    assert answer.code == 0, answer.err
    return np.asarray(open_store(made).embeddings)

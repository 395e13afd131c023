"""What the network says before it is trained: if its features answer as they are, training has little to add.

A classifier is fitted to features of the network as it stands and asked for labels that it was not shown, as
``discover answer`` does. Of rows of a store these are the rows; of images, features of the start, which mean something
only where the start was trained before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.few_label_classifier import CLASSIFIER, RowJudge, hidden_labels_right
from labelkit.data.keyed_random import keyed_generator
from labelkit.formatting import percent
from labelkit.options.training import RunConfig
from labelkit.training.method import FullPass, Method
from labelkit.training.trainer import Trainer

_MOST_ROWS: Final = 20_000
_MOST_IMAGES: Final = 300
_LEAST_HIDDEN: Final = 5


@dataclass(frozen=True)
class FrozenScore:
    """Labels that were hidden in turn, and named from the others.

    Attributes:
        count: labels that were hidden.
        right: share that was named rightly.
        low, high: 95 % interval of it (Wilson).
        classifier: that named them.
    """

    count: int
    right: float
    low: float
    high: float
    classifier: str

    def describe(self) -> str:
        """Say it in words."""
        return (
            f"{percent(self.right)} % of {self.count} hidden labels named rightly ({percent(self.low)} to "
            f"{percent(self.high)}), by {self.classifier}"
        )


def frozen_score(trainer: Trainer, method: Method[Any], labels: NDArray[np.int64], seed: int) -> FrozenScore | None:
    """Hide labels from a classifier on the features of the network as it stands.

    Args:
        trainer: that has not begun.
        method: its method.
        labels: (n,) int64 training labels, -1 = none.
        seed: of the rows that are drawn where there are many, and of the folds.

    Returns:
        The score; ``None`` where fewer than two classes have two labels, or features are not finite.
    """
    rows = trainer.bank.rows
    generator = keyed_generator(seed, "frozen score")
    most = _MOST_ROWS if method.data.row_dim is not None else _MOST_IMAGES
    known, others = rows[labels[rows] >= 0], rows[labels[rows] < 0]
    _, counts = np.unique(labels[known], return_counts=True)
    if (counts > 1).sum() < 2:
        return None
    known = generator.permutation(known)[:most]
    others = generator.permutation(others)[: max(0, most - len(known))]
    chosen = np.sort(np.concatenate([known, others]))
    features = trainer.full_pass(method.network.embed, chosen, FullPass(by_network=True)).numpy()
    if not np.isfinite(features).all():
        return None  # training says what is wrong with the weights
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    unit = (features / np.maximum(lengths, np.finfo(np.float32).tiny)).astype(np.float32)
    right = hidden_labels_right(RowJudge(unit, labels[chosen]), labels[chosen], generator)
    if len(right) < _LEAST_HIDDEN:
        return None
    low, high = _wilson(float(right.mean()), len(right))
    return FrozenScore(len(right), float(right.mean()), low, high, CLASSIFIER)


def _wilson(share: float, count: int) -> tuple[float, float]:
    from scipy.stats import binomtest

    found = binomtest(round(share * count), count).proportion_ci(method="wilson")
    return float(found.low), float(found.high)


def starts_from_weights(config: RunConfig) -> bool:
    """Whether the features that training starts from mean something: rows of a store, or a network with weights."""
    return any(getattr(config, name, None) for name in ("index", "pretrained", "weights", "init_from"))

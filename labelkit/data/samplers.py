"""Which rows an epoch draws, in which order, for all processes together.

Every sampler is a pure function of seed and epoch: all processes compute the same sequence and
take their share of each batch.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import ConfigError, DatasetError


class Sampler(Protocol):
    """Draws rows of a data set."""

    def __len__(self) -> int:
        """Return the number of draws of an epoch, over all processes."""
        ...

    def indices(self, epoch: int) -> NDArray[np.int64]:
        """Return the rows drawn in an epoch, in order; equal on every process."""
        ...


def _rows(rows: ArrayLike, allowed: int | None = None) -> NDArray[np.int64]:
    index = np.asarray(rows, dtype=np.int64)
    if index.ndim != 1 or len(np.unique(index)) != len(index):
        raise ValueError("rows must be one list without repetitions")
    if len(index) and (index.min() < 0 or (allowed is not None and index.max() >= allowed)):
        raise ValueError(f"rows reach from {index.min()} to {index.max()}, there are {allowed} samples")
    return index


class UniformSampler:
    """Every row once, shuffled.

    Args:
        rows: (m,) rows to draw from; leave out what cannot be read.
        seed: seed of the run.
    """

    def __init__(self, rows: ArrayLike, *, seed: int) -> None:
        self._pool = _rows(rows)
        self._seed = seed

    def __len__(self) -> int:
        """Return m."""
        return len(self._pool)

    def indices(self, epoch: int) -> NDArray[np.int64]:
        """Return a permutation of the rows, int64."""
        return keyed_generator(self._seed, "sampler/uniform", epoch).permutation(self._pool)


class BalancedSampler:
    """Weighted draws with replacement, labeled and unlabeled images equally likely in sum.

    Weight 1 for each labeled and ``|D_L| / |D_U|`` for each unlabeled image, ``|D_L| + |D_U|`` draws.
    An epoch does not see every image. With one of both sides empty, the other is drawn uniformly.
    Source: ``CVMI-Lab/SimGCD:train.py`` (its ``WeightedRandomSampler``).

    Args:
        labeled_mask: (n,) bool.
        seed: seed of the run.
        rows: rows to draw from; all by default, leave out what cannot be read.
    """

    def __init__(self, labeled_mask: ArrayLike, *, seed: int, rows: ArrayLike | None = None) -> None:
        mask = np.asarray(labeled_mask, dtype=np.bool_)
        pool = np.arange(len(mask)) if rows is None else _rows(rows, len(mask))
        self._labeled, self._unlabeled = pool[mask[pool]], pool[~mask[pool]]
        self._seed = seed

    def __len__(self) -> int:
        """Return the number of draws."""
        return len(self._labeled) + len(self._unlabeled)

    def indices(self, epoch: int) -> NDArray[np.int64]:
        """Return the draws, int64, with repetitions."""
        generator = keyed_generator(self._seed, "sampler/balanced", epoch)
        sides = [side for side in (self._labeled, self._unlabeled) if len(side)]
        if not sides:
            return np.zeros(0, dtype=np.int64)
        # Equal total weights: choose the side by a fair coin, then a row of it uniformly.
        side = generator.random(len(self)) < 0.5 if len(sides) == 2 else np.ones(len(self), dtype=np.bool_)
        position = generator.random(len(self))
        first, second = sides[0], sides[-1]
        return np.where(
            side,
            first[(position * len(first)).astype(np.int64)],
            second[(position * len(second)).astype(np.int64)],
        ).astype(np.int64)


class ClassBalancedSampler:
    """Batches of ``per_class`` images of each of ``batch_size / per_class`` different classes.

    Rows of a class are drawn without replacement if it has enough of them.

    Args:
        labels: (n,) int64, -1 = never drawn.
        per_class: images of one class in a batch.
        batch_size: images of a batch over all processes.
        seed: seed of the run.
        rows: rows to draw from; all by default, leave out what cannot be read.

    Raises:
        ConfigError: the batch size is not a multiple of ``per_class``.
        DatasetError: fewer classes than a batch needs.
    """

    def __init__(
        self, labels: ArrayLike, per_class: int, *, batch_size: int, seed: int, rows: ArrayLike | None = None
    ) -> None:
        classes = np.asarray(labels, dtype=np.int64)
        pool = np.arange(len(classes)) if rows is None else _rows(rows, len(classes))
        pool = pool[classes[pool] >= 0]
        if per_class < 1 or batch_size % per_class:
            raise ConfigError(
                "--batch-size", f"{batch_size} is not a multiple of {per_class} images per class", "Change one of both."
            )
        self._members = [pool[classes[pool] == label] for label in np.unique(classes[pool])]
        self._classes_per_batch = batch_size // per_class
        if len(self._members) < self._classes_per_batch:
            raise DatasetError(
                "labels",
                f"{len(self._members)} classes with labels, a batch needs {self._classes_per_batch}",
                "Use a smaller batch or more images per class.",
            )
        self._per_class = per_class
        self._batches = len(pool) // batch_size
        self._seed = seed

    def __len__(self) -> int:
        """Return the number of draws, a multiple of the batch size."""
        return self._batches * self._classes_per_batch * self._per_class

    def indices(self, epoch: int) -> NDArray[np.int64]:
        """Return the draws, int64; each run of ``per_class`` rows has one class."""
        generator = keyed_generator(self._seed, "sampler/class-balanced", epoch)
        drawn = []
        for _ in range(self._batches):
            for i in generator.choice(len(self._members), self._classes_per_batch, replace=False):
                members = self._members[i]
                drawn.append(generator.choice(members, self._per_class, replace=len(members) < self._per_class))
        return np.concatenate(drawn).astype(np.int64) if drawn else np.zeros(0, dtype=np.int64)

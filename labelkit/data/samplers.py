"""Samplers, which choose the rows of an epoch, in order, for all processes together.

Every sampler is a pure function of seed and epoch: all processes compute the same sequence, and each
loads its share of each batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import ConfigError, DatasetError


class Sampler(Protocol):
    """Protocol for samplers, which draw the images for each epoch."""

    def __len__(self) -> int:
        """Return the number of draws per epoch, over all processes."""
        ...

    def indices(self, epoch: int) -> NDArray[np.int64]:
        """Return the row indices drawn in an epoch of the phase, from 0, in the same order on every process."""
        ...


class UniformSampler:
    """Sampler that draws every image once per epoch, in random order.

    ``rows`` (m,) are the row indices to draw from, without unreadable images.
    """

    def __init__(self, rows: ArrayLike, *, seed: int) -> None:
        self._pool = np.asarray(rows, dtype=np.int64)
        self._seed = seed

    def __len__(self) -> int:
        return len(self._pool)

    def indices(self, epoch: int) -> NDArray[np.int64]:
        """Return a random int64 permutation of the row indices."""
        return keyed_generator(self._seed, "sampler/uniform", epoch).permutation(self._pool)


@dataclass(frozen=True, eq=False)
class ImageStream:
    """Endless stream of images in random order, which uses every image once before repeating any.

    Attributes:
        name: name of the stream; two streams with the same name and equal rows would draw the same images.
        rows: (m,) rows to draw from.
        per_batch: number of draws per batch; m may be smaller.
    """

    name: str
    rows: NDArray[np.int64]
    per_batch: int


class StreamSampler:
    """Sampler of batches with a fixed number of images from each stream, in the order of the streams.

    An epoch is a fixed number of batches. A stream continues where the previous epoch stopped, so that neither the
    length of an epoch nor a resume changes the draws. A new phase restarts all streams.

    Args:
        streams: at least one stream; streams with ``per_batch`` 0 are ignored.
        steps: number of batches per epoch.
        seed: seed of the run.
        phase: number of the phase.
    """

    def __init__(self, streams: Sequence[ImageStream], *, steps: int, seed: int, phase: int = 0) -> None:
        self.streams = tuple(stream for stream in streams if stream.per_batch != 0)
        self.batch_size = sum(stream.per_batch for stream in self.streams)
        self._steps, self._seed, self._phase = steps, seed, phase

    def __len__(self) -> int:
        """Return the number of draws per epoch, a multiple of the batch size."""
        return self._steps * self.batch_size

    def indices(self, epoch: int) -> NDArray[np.int64]:
        """Return the int64 row indices drawn in an epoch of the phase, one batch after another."""
        return np.concatenate([self._draws(stream, epoch) for stream in self.streams], axis=1).reshape(-1)

    def _draws(self, stream: ImageStream, epoch: int) -> NDArray[np.int64]:
        """Return the rows of a stream in an epoch, (steps, per_batch)."""
        count, rows = self._steps * stream.per_batch, np.asarray(stream.rows, dtype=np.int64)
        first, skipped = divmod(epoch * count, len(rows))
        purpose = f"sampler/stream {stream.name} {self._phase}"
        cycles = -(-(skipped + count) // len(rows))
        drawn = [keyed_generator(self._seed, purpose, first + i).permutation(rows) for i in range(cycles)]
        return np.concatenate(drawn)[skipped : skipped + count].reshape(self._steps, stream.per_batch)


class BalancedSampler:
    """Sampler with replacement that draws labeled and unlabeled images with equal total probability.

    Each labeled image has weight 1, each unlabeled one ``|D_L| / |D_U|``, and there are ``|D_L| + |D_U|`` draws.
    An epoch does not contain every image. If one side is empty, the other is drawn uniformly.
    Source: ``CVMI-Lab/SimGCD:train.py`` (its ``WeightedRandomSampler``).

    Args:
        labeled_mask: (n,) bool, whether an image is labeled.
        seed: seed of the run.
        rows: rows to draw from, without unreadable images; default: all.
    """

    def __init__(self, labeled_mask: ArrayLike, *, seed: int, rows: ArrayLike | None = None) -> None:
        mask = np.asarray(labeled_mask, dtype=np.bool_)
        pool = np.arange(len(mask)) if rows is None else np.asarray(rows, dtype=np.int64)
        self._labeled, self._unlabeled = pool[mask[pool]], pool[~mask[pool]]
        self._seed = seed

    def __len__(self) -> int:
        return len(self._labeled) + len(self._unlabeled)

    def indices(self, epoch: int) -> NDArray[np.int64]:
        """Return the int64 row indices drawn in an epoch, which may repeat."""
        generator = keyed_generator(self._seed, "sampler/balanced", epoch)
        sides = [side for side in (self._labeled, self._unlabeled) if len(side)]
        if not sides:
            return np.zeros(0, dtype=np.int64)
        # Equal total weights: choose the side by a fair coin, then one of its rows uniformly.
        side = generator.random(len(self)) < 0.5 if len(sides) == 2 else np.ones(len(self), dtype=np.bool_)
        position = generator.random(len(self))
        first, second = sides[0], sides[-1]
        drawn = [rows[(position * len(rows)).astype(np.int64)] for rows in (first, second)]
        return np.where(side, *drawn).astype(np.int64)


class ClassBalancedSampler:
    """Sampler of batches with ``per_class`` images from each of ``batch_size / per_class`` classes or pseudo-classes.

    Each epoch, the shuffled images of every class are divided into groups of ``per_class``, the last one filled up with
    repeated images of the class. A batch draws distinct classes with probabilities proportional to their remaining
    groups; when too few classes have groups left, all classes are divided again. Apart from the repeated images, every
    image is thus equally likely in the long run, whereas drawing classes uniformly would favor images of small classes.
    Source: ``MalongTech/research-xbm`` (its sampler); there the groups carry over between epochs, here each epoch
    starts afresh, so that it depends only on its number.

    Args:
        labels: (n,) int64, -1 = never drawn; ``None`` if `relabel` provides them before the first epoch.
        per_class: number of images per class in a batch.
        batch_size: number of images per batch, over all processes.
        seed: seed of the run.
        rows: rows to draw from, without unreadable images; default: all labeled ones.

    Raises:
        ConfigError: the batch size is not a multiple of ``per_class``, or a batch needs more classes than exist.
    """

    def __init__(
        self, labels: ArrayLike | None, per_class: int, *, batch_size: int, seed: int, rows: ArrayLike | None = None
    ) -> None:
        if per_class < 1 or batch_size % per_class:
            problem = f"{batch_size} is not a multiple of --images-per-class ({per_class})"
            raise ConfigError("--batch-size", problem, "Change --batch-size or --images-per-class.")
        self._classes_per_batch = batch_size // per_class
        self._per_class = per_class
        self._seed = seed
        self._members: list[NDArray[np.int64]] = []
        if labels is None:
            self._pool = np.asarray(rows, dtype=np.int64)
        else:
            classes = np.asarray(labels, dtype=np.int64)
            pool = np.arange(len(classes)) if rows is None else np.asarray(rows, dtype=np.int64)
            self._pool = pool[classes[pool] >= 0]
            self.relabel(classes)
        self._batches = -(-len(self._pool) // batch_size)  # rounded up

    def relabel(self, labels: ArrayLike) -> None:
        """Replace the labels (n,) int64 used for sampling from the next epoch on; -1 = not drawn until relabeled.

        Rows and epoch length stay the same.

        Raises:
            ConfigError: there are fewer classes than a batch needs.
            DatasetError: there are no labels at all.
        """
        classes = np.asarray(labels, dtype=np.int64)[self._pool]
        order = np.argsort(classes, kind="stable")
        order = order[classes[order] >= 0]
        starts = np.flatnonzero(np.diff(classes[order], prepend=-1))
        if not len(order):
            problem = "no image has a label that training may use"
            raise DatasetError("labels", problem, "Use a dataset with labels, or train without labels.")
        members = np.split(self._pool[order], starts[1:])
        if len(members) < self._classes_per_batch:
            problem = f"a batch contains {self._classes_per_batch} classes, but only {len(members)} classes have labels"
            raise ConfigError("--batch-size", problem, "Lower --batch-size, or raise --images-per-class.")
        self._members = members

    def __len__(self) -> int:
        """Return the number of draws: the number of rows, rounded up to a multiple of the batch size."""
        return self._batches * self._classes_per_batch * self._per_class

    def indices(self, epoch: int) -> NDArray[np.int64]:
        """Return the int64 row indices drawn in an epoch, in runs of ``per_class`` images from one class.

        Raises:
            ValueError: there are no labels yet.
        """
        if not self._members:
            raise ValueError("there are no labels to sample by: call relabel first")
        generator = keyed_generator(self._seed, "sampler/class-balanced", epoch)
        drawn: list[NDArray[np.int64]] = []
        groups: list[NDArray[np.int64]] = []
        left = np.zeros(len(self._members), dtype=np.int64)
        for _ in range(self._batches):
            if (left > 0).sum() < self._classes_per_batch:
                groups = [self._divide(members, generator) for members in self._members]
                left = np.array([len(table) for table in groups])
            # the largest values of log(weight) + Gumbel noise are weighted draws without replacement
            with np.errstate(divide="ignore"):
                keys = np.log(left) + generator.gumbel(size=len(left))
            for i in np.argsort(-keys)[: self._classes_per_batch]:
                left[i] -= 1
                drawn.append(groups[i][left[i]])
        return np.concatenate(drawn) if drawn else np.zeros(0, dtype=np.int64)

    def _divide(self, members: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
        """Divide the shuffled rows of one class into groups, (groups, per_class)."""
        filling = generator.choice(members, -len(members) % self._per_class)
        return np.concatenate([generator.permutation(members), filling]).reshape(-1, self._per_class)

"""Passes over images outside of training: each row exactly once, shared out among the processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelkit.data.image_bank import CachedViewBank, ImageBank
from labelkit.data.keyed_random import keyed_generator
from labelkit.data.loaders import EvalLoader
from labelkit.data.views.spec import Normalize
from labelkit.models.batch_norm import batch_statistics
from labelkit.options.training import RunConfig
from labelkit.training.devices import Runtime
from labelkit.training.method import FullPass, Method


@dataclass(frozen=True, slots=True)
class Passes:
    """Runner of inference passes over images with the networks of a method, on all processes.

    Attributes:
        method: its modules are put into the mode of the pass, and back.
        bank: the training images.
        config: sizes of batches, worker processes, seed.
        runtime: device and processes.
        step: updates finished, by which new numbers are drawn.
        kept: what the frozen part of the network made of the training images, if that is at hand.
    """

    method: Method[Any]
    bank: ImageBank
    config: RunConfig
    runtime: Runtime
    step: int
    kept: CachedViewBank | None = None

    def full(
        self,
        network: Callable[[Tensor], Tensor],
        rows: NDArray[np.int64] | None = None,
        how: FullPass | None = None,
    ) -> Tensor:
        """Run a network over images and gather the results on every process, as ``TrainState.embed`` says."""
        bank = how.bank if how is not None and how.bank is not None else self.bank
        rows = bank.rows if rows is None else rows
        values, visited = self.local(network, rows, how)
        where = {int(row): position for position, row in enumerate(rows)}
        positions = torch.tensor([where[int(row)] for row in visited], dtype=torch.int64)
        return self.runtime.gather_rows(values, positions, len(rows))

    def local(
        self,
        network: Callable[[Tensor], Tensor],
        rows: NDArray[np.int64] | None = None,
        how: FullPass | None = None,
    ) -> tuple[Tensor, NDArray[np.int64]]:
        """Run a network over this process's share of the images, as ``TrainState.visit`` says."""
        how = how or FullPass()
        if how.mode == "eval":
            self.runtime.share_statistics(self.method)
        was_training = self.method.training
        self.method.train(how.mode == "train")
        statistics = batch_statistics(self.method) if how.mode == "batch-statistics" else nullcontext()
        values: list[Tensor] = []
        visited: list[NDArray[np.int64]] = []
        with torch.no_grad(), statistics:
            for images, some in self._batches(rows, how):
                # around the network alone: views in half precision do not fit into the float32 images they change
                with self.runtime.autocast():
                    seen = network(images)
                values.append(seen.float().cpu())
                visited.append(some)
        self.method.train(was_training)
        if not values:
            return torch.zeros((0, 0)), np.zeros(0, dtype=np.int64)
        return torch.cat(values), np.concatenate(visited)

    def _batches(self, rows: NDArray[np.int64] | None, how: FullPass) -> Iterator[tuple[Tensor, NDArray[np.int64]]]:
        """Yield this process's share of the batches: images, or what is kept of them, and their rows."""
        plain = how.mode == "eval" and how.view is None and how.bank is None  # in no order, since none changes a row
        if self.kept is None or not (how.by_network and plain):
            yield from ((batch.images, batch.rows) for batch in self._loader(rows, how))
            return
        rows = self.bank.rows if rows is None else rows
        size = how.batch_size or self._batch_size
        for start in range(self.runtime.rank * size, len(rows), self.runtime.world_size * size):
            some = rows[start : start + size]
            yield self.kept.unaugmented(some), some

    @property
    def _batch_size(self) -> int:
        return max(1, min(512, 2 * self.config.batch_size))

    def _loader(self, rows: NDArray[np.int64] | None, how: FullPass) -> EvalLoader:
        """Return this process's share of the batches."""
        bank = how.bank if how.bank is not None else self.bank
        rows = bank.rows if rows is None else rows
        if how.order != "rows":
            step = self.step if how.order == "new" else 0
            rows = keyed_generator(self.config.seed, "full-pass", step).permutation(rows)
        # apart from the numbers of training, or an image would be seen in the very view that it is trained in
        seed = int(keyed_generator(self.config.seed, "full-pass view", self.step).integers(2**31))
        spec = self.method.network.input_spec
        return EvalLoader(
            bank,
            how.view or self.method.eval_view(),
            rows=rows,
            batch_size=how.batch_size or self._batch_size,
            normalize=Normalize(spec.mean, spec.std),
            num_workers=self.config.num_workers or 0,
            rank=self.runtime.rank,
            world_size=self.runtime.world_size,
            seed=None if how.view is None else seed,
            epoch=how.draw,
            join_single=how.mode != "eval",
        )

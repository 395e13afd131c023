"""Passes over images outside of training: each row exactly once, shared out among the processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelkit.data.keyed_random import keyed_generator
from labelkit.data.loaders import EvalLoader
from labelkit.data.views.spec import Normalize
from labelkit.models.batch_norm import batch_statistics
from labelkit.training.method import FullPass

if TYPE_CHECKING:
    from labelkit.training.trainer import Trainer


class Passes:
    """Runner of inference passes over images with the networks of a method, on all processes.

    Args:
        trainer: whose images, processes and step they are; its method's modules are put into the mode of a pass, and
            back.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def full(
        self,
        network: Callable[[Tensor], Tensor],
        rows: NDArray[np.int64] | None = None,
        how: FullPass | None = None,
    ) -> Tensor:
        """Run a network over images and gather the results on every process, as ``TrainState.embed`` says."""
        bank = how.bank if how is not None and how.bank is not None else self._trainer.bank
        rows = bank.rows if rows is None else rows
        values, visited = self.local(network, rows, how)
        where = {int(row): position for position, row in enumerate(rows)}
        positions = torch.tensor([where[int(row)] for row in visited], dtype=torch.int64)
        return self._trainer.runtime.gather_rows(values, positions, len(rows))

    def local(
        self,
        network: Callable[[Tensor], Tensor],
        rows: NDArray[np.int64] | None = None,
        how: FullPass | None = None,
    ) -> tuple[Tensor, NDArray[np.int64]]:
        """Run a network over this process's share of the images, as ``TrainState.visit`` says."""
        how = how or FullPass()
        if how.mode == "eval":
            self._trainer.runtime.share_statistics(self._trainer.method)
        was_training = self._trainer.method.training
        self._trainer.method.train(how.mode == "train")
        statistics = batch_statistics(self._trainer.method) if how.mode == "batch-statistics" else nullcontext()
        values: list[Tensor] = []
        visited: list[NDArray[np.int64]] = []
        with torch.no_grad(), statistics:
            for images, some in self._batches(rows, how):
                # around the network alone: views in half precision do not fit into the float32 images they change
                with self._trainer.runtime.autocast():
                    seen = network(images)
                values.append(seen.float().cpu())
                visited.append(some)
        self._trainer.method.train(was_training)
        if not values:
            return torch.zeros((0, 0)), np.zeros(0, dtype=np.int64)
        return torch.cat(values), np.concatenate(visited)

    def _batches(self, rows: NDArray[np.int64] | None, how: FullPass) -> Iterator[tuple[Tensor, NDArray[np.int64]]]:
        """Yield this process's share of the batches: images, or what is kept of them, and their rows."""
        plain = how.mode == "eval" and how.view is None and how.bank is None  # in no order, since none changes a row
        if self._trainer.kept is None or not (how.by_network and plain):
            yield from ((batch.images, batch.rows) for batch in self._loader(rows, how))
            return
        rows = self._trainer.bank.rows if rows is None else rows
        size = how.batch_size or self._batch_size
        for start in range(self._trainer.runtime.rank * size, len(rows), self._trainer.runtime.world_size * size):
            some = rows[start : start + size]
            yield self._trainer.kept.unaugmented(some), some

    @property
    def _batch_size(self) -> int:
        return max(1, min(512, 2 * self._trainer.config.batch_size))

    def _loader(self, rows: NDArray[np.int64] | None, how: FullPass) -> EvalLoader:
        """Return this process's share of the batches."""
        trainer = self._trainer
        bank = how.bank if how.bank is not None else trainer.bank
        rows = bank.rows if rows is None else rows
        if how.order != "rows":
            step = trainer.clock.step if how.order == "new" else 0
            rows = keyed_generator(trainer.config.seed, "full-pass", step).permutation(rows)
        # apart from the numbers of training, or an image would be seen in the very view that it is trained in
        seed = int(keyed_generator(trainer.config.seed, "full-pass view", trainer.clock.step).integers(2**31))
        spec = trainer.method.network.input_spec
        return EvalLoader(
            bank,
            how.view or trainer.method.eval_view(),
            rows=rows,
            batch_size=how.batch_size or self._batch_size,
            normalize=Normalize(spec.mean, spec.std),
            num_workers=trainer.config.num_workers or 0,
            rank=trainer.runtime.rank,
            world_size=trainer.runtime.world_size,
            seed=None if how.view is None else seed,
            epoch=how.draw,
            join_single=how.mode != "eval",
        )

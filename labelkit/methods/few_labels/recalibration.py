"""New running statistics for averaged weights: their old ones belong to other weights.

Source: snowball, specification 3.2; the official MixMatch re-estimates them on 16,384 images too.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.data.keyed_random import keyed_generator
from labelkit.engine.method import FullPass, TrainState
from labelkit.models.batch_norm import StatisticsSum, batch_statistics
from labelkit.models.inference import InferenceNetwork

MAX_IMAGES: Final = 16_384


def recalibrate_bn(
    network: InferenceNetwork,
    state: TrainState,
    rows: NDArray[np.int64],
    *,
    part: nn.Module | None = None,
) -> None:
    """Give batch normalization the statistics of un-augmented training images, everything else as in evaluation.

    Any number of processes gives the same, to the last bits of a sum in float64. Nothing else of the run changes: in
    training mode statistics are those of the batch.

    Args:
        network: one of the method's networks.
        state: of the event.
        rows: (m,) training images that can be read; at most ``MAX_IMAGES`` are used, always the same.
        part: of the network; the statistics of everything else stay and are used. Default: all of it.
    """
    statistics = StatisticsSum(network if part is None else part)
    if not statistics:
        return
    chosen = rows
    if len(rows) > MAX_IMAGES:
        chosen = np.sort(keyed_generator(0, "recalibrate").permutation(rows)[:MAX_IMAGES])

    def look(images: Tensor) -> Tensor:
        with nullcontext() if part is None else batch_statistics(part):
            network.embed(images)
        return torch.zeros(len(images), 1)

    with statistics.collect():
        # files sorted by class must not stay together in a batch
        state.visit(look, chosen, FullPass("eval" if part is not None else "batch-statistics", order="fixed"))
    statistics.apply(lambda value: state.combine(value, "sum"))

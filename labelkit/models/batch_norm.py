"""Statistics of batch normalization for a network that is not trained at the moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def batch_statistics(module: nn.Module) -> Iterator[None]:
    """Let batch normalization use the statistics of each batch and leave its running ones as they are.

    Running statistics of a network that was never trained say nothing; those of a batch do. Everything else (dropout)
    keeps its mode.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]
    before = [(layer.training, layer.track_running_stats) for layer in layers]
    for layer in layers:
        layer.training, layer.track_running_stats = True, False
    try:
        yield
    finally:
        for layer, (training, tracking) in zip(layers, before, strict=True):
            layer.training, layer.track_running_stats = training, tracking


class StatisticsSum:
    """Collects what batch normalization sees in a pass over images, to give it running statistics of them.

    A mean over batches, each weighted by its images, of the mean and the variance of the batch: the cumulative average
    of torch (``momentum=None``), but for a last, smaller batch, and summed in float64 so that it can be shared out.

    Args:
        network: whose layers to look at, in ``batch_statistics``.
    """

    def __init__(self, network: nn.Module) -> None:
        found = (layer for layer in network.modules() if isinstance(layer, _BatchNorm))
        self._layers = [layer for layer in found if layer.running_mean is not None]
        # float64 on the CPU: some devices have none
        self._sums = [torch.zeros(3, layer.num_features, dtype=torch.float64) for layer in self._layers]

    def __bool__(self) -> bool:
        """Return whether there is anything to collect."""
        return bool(self._layers)

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Look at every batch that passes through the layers."""
        handles = [layer.register_forward_pre_hook(self._hook(number)) for number, layer in enumerate(self._layers)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, number: int) -> Callable[[nn.Module, Any], None]:
        @torch.no_grad()
        def look(layer: nn.Module, inputs: tuple[Tensor]) -> None:
            values = inputs[0].float()
            variance, mean = torch.var_mean(values, [i for i in range(values.ndim) if i != 1])
            rows = torch.stack([mean, variance, torch.ones_like(mean)]).cpu().double()
            self._sums[number] += len(values) * rows

        return look

    @torch.no_grad()
    def apply(self, combine: Callable[[Tensor], Tensor] = lambda value: value) -> None:
        """Write the averages into the layers' running statistics.

        Args:
            combine: sum over processes.
        """
        if not self._layers:
            return
        total = combine(torch.cat(self._sums, dim=1))
        parts = torch.split(total, [layer.num_features for layer in self._layers], dim=1)
        for layer, (mean, variance, images) in zip(self._layers, parts, strict=True):
            if float(images[0]) == 0:
                raise ValueError("no image passed through the network")
            assert layer.running_mean is not None
            assert layer.running_var is not None
            layer.running_mean.copy_(mean / images)
            layer.running_var.copy_(variance / images)

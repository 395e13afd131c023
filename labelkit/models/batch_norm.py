"""Batch statistics for a network that is not trained at the moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
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

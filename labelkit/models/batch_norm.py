"""Batch normalization with statistics of the current batch, of all processes, or averaged over a pass."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def use_batch_statistics(module: nn.Module) -> Iterator[None]:
    """Context manager in which layers use the statistics of each batch, and running statistics do not change.

    Running statistics of an untrained network are meaningless, unlike those of a batch. Other layers (dropout) keep
    their mode, as do frozen layers, marked by ``keeps_statistics``.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]
    layers = [layer for layer in layers if not getattr(layer, "keeps_statistics", False)]
    before = [(layer.training, layer.track_running_stats) for layer in layers]
    for layer in layers:
        layer.training, layer.track_running_stats = True, False
    try:
        yield
    finally:
        for layer, (training, tracking) in zip(layers, before, strict=True):
            layer.training, layer.track_running_stats = training, tracking


class _SumOverProcesses(torch.autograd.Function):
    """Differentiable sum over processes; torch's own function for this is deprecated."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        total = value.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _SumOverProcesses.forward(ctx, gradient)


def _sum_over_processes(value: Tensor) -> Tensor:
    return _SumOverProcesses.apply(value)


class SharedBatchNorm2d(nn.BatchNorm2d):
    """Batch normalization whose statistics cover the images of all processes, on any device.

    A step on several processes thus equals a step on one, up to rounding in float32. Torch's own ``SyncBatchNorm``
    does not support CPUs. In ``use_batch_statistics``, and in a single process, this layer acts as a ``BatchNorm2d``.
    """

    def forward(self, images: Tensor) -> Tensor:
        """Normalize maps (b, c, h, w)."""
        shared = self.training and self.track_running_stats and dist.is_initialized() and dist.get_world_size() > 1
        if not shared:
            return super().forward(images)
        values, momentum = images.float(), self.momentum
        if momentum is None or self.running_mean is None or self.running_var is None:
            raise ValueError("shared statistics require running statistics with a momentum")
        count = values.new_tensor(values.numel() / values.shape[1])
        dist.all_reduce(count)
        mean = _sum_over_processes(values.sum((0, 2, 3))) / count
        # from differences, because the mean of squares minus the squared mean would lose digits
        variance = _sum_over_processes((values - mean[:, None, None]).square().sum((0, 2, 3))) / count
        with torch.no_grad():
            self.running_mean.lerp_(mean, momentum)
            self.running_var.lerp_(variance * count / (count - 1), momentum)
            if self.num_batches_tracked is not None:
                self.num_batches_tracked += 1
        # not F.batch_norm, which would treat the statistics as constants without gradients
        normalized = (values - mean[:, None, None]) * torch.rsqrt(variance + self.eps)[:, None, None]
        if self.affine:
            normalized = normalized * self.weight[:, None, None] + self.bias[:, None, None]
        return normalized.to(images.dtype)


def share_statistics(module: nn.Module) -> None:
    """Replace every ``BatchNorm2d`` in a module, in place, with a layer that shares statistics across processes."""
    for name, child in module.named_children():
        if type(child) is nn.BatchNorm2d:
            shared = SharedBatchNorm2d(child.num_features, child.eps, child.momentum, child.affine)
            shared.load_state_dict(child.state_dict())
            shared.train(child.training)
            setattr(module, name, shared)
        else:
            share_statistics(child)


class BatchStatisticsSum:
    """Sums of batch statistics over a pass, from which running statistics of batch normalization are set.

    The mean and variance of each batch are averaged, weighted by its number of images. This is torch's cumulative
    average (``momentum=None``) except for a smaller last batch; sums are in float64 so that processes can share them.

    Args:
        network: network whose layers are observed, in ``use_batch_statistics``.
    """

    def __init__(self, network: nn.Module) -> None:
        found = (layer for layer in network.modules() if isinstance(layer, _BatchNorm))
        self._layers = [layer for layer in found if layer.running_mean is not None]
        # moved to the device of the batches by the first batch
        self._sums = [torch.zeros(3, layer.num_features, dtype=torch.float64) for layer in self._layers]

    def __bool__(self) -> bool:
        """Return whether there is anything to collect."""
        return bool(self._layers)

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Context manager that adds the statistics of every batch passing through the layers."""
        handles = [layer.register_forward_pre_hook(self._hook(number)) for number, layer in enumerate(self._layers)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, number: int) -> Callable[[nn.Module, Any], None]:
        @torch.no_grad()
        def add_batch(layer: nn.Module, inputs: tuple[Tensor]) -> None:
            values = inputs[0].float()
            variance, mean = torch.var_mean(values, [i for i in range(values.ndim) if i != 1])
            rows = torch.stack([mean, variance, torch.ones_like(mean)])
            rows = rows.cpu().double() if rows.device.type == "mps" else rows.double()  # Metal has no float64
            self._sums[number] = self._sums[number].to(rows.device) + len(values) * rows

        return add_batch

    @torch.no_grad()
    def apply(self, combine: Callable[[Tensor], Tensor] = lambda value: value) -> None:
        """Set the running statistics of the layers to the collected averages.

        Args:
            combine: function that sums a tensor over processes.
        """
        total = combine(torch.cat([sums.cpu() for sums in self._sums], dim=1))
        parts = torch.split(total, [layer.num_features for layer in self._layers], dim=1)
        for layer, (mean, variance, images) in zip(self._layers, parts, strict=True):
            assert layer.running_mean is not None
            assert layer.running_var is not None
            layer.running_mean.copy_(mean / images)
            layer.running_var.copy_(variance / images)

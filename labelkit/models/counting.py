"""What a network costs: its parameters, and the multiply-adds of one image, counted by torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True, slots=True)
class NetworkCounts:
    """Size and work of a network.

    Attributes:
        parameters: numbers that training can change, frozen ones included; no running statistics.
        multiply_adds: of one image: convolutions and matrix products, those of attention included. Biases,
            normalization, activations and pooling are left out, as in most publications.
        output: shape of what one image becomes.
    """

    parameters: int
    multiply_adds: int
    output: tuple[int, ...]


def count_network(network: nn.Module, shape: tuple[int, int, int]) -> NetworkCounts:
    """Count while one image of zeros passes through, in evaluation mode; on the device ``meta`` nothing is computed.

    Args:
        network: whose parameters all lie on one device; its mode is left as it was.
        shape: channels, height and width of the image.
    """
    device = next(network.parameters()).device
    was_training = network.training
    # torch's counter looks for the graph of gradients behind parameters that are inputs of a layer
    trained = [one for one in network.parameters() if one.requires_grad]
    network.eval().requires_grad_(False)
    try:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            output = network(torch.zeros(1, *shape, device=device))
    finally:
        network.train(was_training)
        for one in trained:
            one.requires_grad_(True)
    # torch counts the multiplication and the addition
    multiply_adds = counter.get_total_flops() // 2
    return NetworkCounts(sum(one.numel() for one in network.parameters()), multiply_adds, tuple(output.shape[1:]))

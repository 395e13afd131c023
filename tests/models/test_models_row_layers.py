"""The head on rows of a store: what it is before training, and what it refuses."""

import pytest
import torch
import torch.nn.functional as F
from labelkit.models.row_layers import EmbeddingMLP, EmbeddingMLPConfig


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_before_training_it_centers_rows_of_length_1(layers: int) -> None:
    rows, center = torch.randn(5, 9), torch.randn(9)
    network = EmbeddingMLP(EmbeddingMLPConfig(9, layers, 4 if layers > 1 else None, center))
    assert torch.allclose(network(rows), 3 * (F.normalize(rows, dim=1) - center), atol=1e-6)


def test_every_layer_gets_a_gradient_once_the_last_one_has_moved() -> None:
    network = EmbeddingMLP(EmbeddingMLPConfig(6, 3, 8))
    torch.nn.init.normal_(network.layers[2].weight)
    network(torch.randn(4, 6)).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in network.parameters())

from collections import OrderedDict
from typing import Any

import pytest
import torch
from labelkit.errors import CheckpointMismatch
from labelkit.training.optim import build_optimizer, load_named_optimizer_state, named_optimizer_state, set_lr
from torch import nn


def _layers(*names: str) -> nn.Sequential:
    """Layers of one shape under these names, in this order; values depend on the name only."""
    net = nn.Sequential(OrderedDict((name, nn.Linear(3, 3)) for name in names))
    for name in names:
        generator = torch.Generator().manual_seed(ord(name[0]))
        for parameter in net.get_submodule(name).parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)
    return net


def _optimizer(net: nn.Module, name: str) -> torch.optim.Optimizer:
    return build_optimizer([{"params": list(net.parameters())}], name=name, lr=0.1)


def _step(net: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    # Layer by layer, so that the order in the container does not matter to the loss.
    inputs = torch.linspace(-1, 1, 12).reshape(4, 3)
    optimizer.zero_grad()
    sum((layer(inputs) ** 2).sum() * (ord(name[0]) - 96) for name, layer in net.named_children()).backward()
    optimizer.step()


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_moments_follow_their_layer_when_two_of_one_shape_swap_places(name: str) -> None:
    first = _layers("alpha", "beta")
    optimizer = _optimizer(first, name)
    _step(first, optimizer)
    tensors, scalars = named_optimizer_state(optimizer, first)

    swapped = _layers("beta", "alpha")
    swapped.load_state_dict(first.state_dict())
    restored = _optimizer(swapped, name)
    load_named_optimizer_state(restored, swapped, tensors, scalars, where="x")
    _step(first, optimizer)
    _step(swapped, restored)

    for key, value in first.state_dict().items():
        assert torch.equal(value, swapped.state_dict()[key]), key


def test_states_are_named_by_parameter() -> None:
    net = _layers("alpha")
    optimizer = _optimizer(net, "adamw")
    _step(net, optimizer)
    tensors, scalars = named_optimizer_state(optimizer, net)
    keys = {f"optimizer.0/alpha.{p}/{key}" for p in ("weight", "bias") for key in ("step", "exp_avg", "exp_avg_sq")}
    assert set(tensors) == keys
    assert scalars == {}


def test_states_of_another_optimizer_are_left_alone() -> None:
    net = _layers("alpha")
    optimizer = _optimizer(net, "sgd")
    load_named_optimizer_state(
        optimizer, net, {"optimizer.1/alpha.weight/momentum_buffer": torch.ones(3, 3)}, {}, where="x"
    )
    assert not optimizer.state


def test_state_of_an_unknown_parameter_is_refused_by_name() -> None:
    net = _layers("alpha")
    tensors = {"optimizer.0/gamma.weight/momentum_buffer": torch.zeros(3, 3)}
    with pytest.raises(CheckpointMismatch, match=r"run: .*'gamma\.weight'.*not trained"):
        load_named_optimizer_state(_optimizer(net, "sgd"), net, tensors, {}, where="run")


def test_learning_rate_respects_the_scale_of_a_group() -> None:
    net = _layers("alpha", "beta")
    groups: list[dict[str, Any]] = [
        {"params": [net.get_parameter("alpha.weight")]},
        {"params": [net.get_parameter("beta.weight")], "lr_scale": 0.1},
    ]
    optimizer = build_optimizer(groups, name="sgd", lr=1.0)
    set_lr(optimizer, 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, pytest.approx(0.05)]

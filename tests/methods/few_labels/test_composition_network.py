"""The composed master: its sizes, what it is at the start, and which parts of which network it is made of."""

import pytest
import torch
from labelkit.methods.few_labels.composition import ComposedNetwork
from labelkit.models.headed import ClassifierNetwork
from labelkit.models.heads import LinearHeads
from torch import nn

Student = ClassifierNetwork[LinearHeads]


def student(backbone: str = "wrn10_1", seed: int = 0, size: int = 16) -> Student:
    return ClassifierNetwork(
        backbone, lambda dim: LinearHeads(dim, 10), 10, embed_dim=None, embedding_bn=False, image_size=size, seed=seed
    )


def count(*modules: nn.Module) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backbone", "at", "converters", "decision"),
    [
        ("wrn28_2", "last-stage", 12_480, 1_117_578),
        ("convnet13", "last-stage", 197_376, 1_347_466),
        ("wrn10_1", "last-stage", 816, 14_826),
        ("wrn28_2", "pool", 49_536, 1_290),
    ],
)
def test_converters_and_decision_have_the_published_sizes(
    backbone: str, at: str, converters: int, decision: int
) -> None:
    composition = ComposedNetwork(student(backbone), at).composition  # type: ignore[arg-type] # a Literal
    assert count(composition.converters) == converters
    assert count(composition.decision, composition.head) == decision


@pytest.mark.slow
@pytest.mark.parametrize("at", ["last-stage", "pool"])
@pytest.mark.parametrize("backbone", ["wrn10_1", "convnet13_w16", "resnet26_shake_w32"])
def test_three_equal_networks_say_what_one_says(backbone: str, at: str) -> None:
    network = student(backbone)
    master = ComposedNetwork(network, at)  # type: ignore[arg-type] # a Literal
    images = torch.randn(4, 3, 16, 16)
    network.eval()
    expected = network.classify(network.embed(images))
    torch.testing.assert_close(master.classify(master.embed(images)), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        master.averaged_logits(master.composition_inputs(images)), expected, atol=1e-5, rtol=1e-5
    )


def test_converters_begin_as_a_third_each() -> None:
    master = ComposedNetwork(student(), "pool")
    master.composition.converters = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
    master.composition.initialize_composition(master.averaged)
    inputs = [torch.tensor([row]) for row in ([1.0, 2.0], [3.0, 0.0], [2.0, -1.0])]
    torch.testing.assert_close(master.composition(inputs), torch.tensor([[2.0, 1 / 3]]))


def test_one_converter_alone_is_its_network_before_and_the_average_behind() -> None:
    first, other = student(seed=0), student(seed=1)
    master = ComposedNetwork(first, "last-stage")
    master.averaged.load_state_dict(other.state_dict())
    master.composition.initialize_composition(master.averaged)
    with torch.no_grad():
        for number, converter in enumerate(master.composition.converters):
            converter.weight.mul_(3.0 if number == 0 else 0.0)  # type: ignore[operator] # a convolution's
    images = torch.randn(3, 3, 16, 16)
    first.eval()
    other.eval()
    maps = first.backbone.net.run_early_stages(images)  # type: ignore[operator] # a staged network
    features = other.backbone.net.run_last_stage(maps)  # type: ignore[operator] # a staged network
    torch.testing.assert_close(master.embed(images), features)
    torch.testing.assert_close(master.classify(master.embed(images)), other.classify(features))


def test_frozen_networks_stay_in_evaluation_and_get_no_gradient() -> None:
    master = ComposedNetwork(student(), "last-stage")
    master.train()
    assert not any(module.training for module in master.modules())
    assert not any(parameter.requires_grad for parameter in master.parameters())
    master.composition.requires_grad_(True)
    master.composition.train()
    before = {name: value.clone() for name, value in master.state_dict().items()}
    master.classify(master.embed(torch.randn(4, 3, 16, 16))).sum().backward()
    for name, parameter in master.named_parameters():
        assert (parameter.grad is not None) == name.startswith("composition."), name
    moved = {name for name, value in master.state_dict().items() if not torch.equal(before[name], value)}
    assert moved
    assert all(name.startswith("composition.decision") for name in moved)  # running statistics

"""A master made of three frozen versions of one network, joined at a layer by learned converters (LMCS).

Source: the dissertation "Deep Learning with Very Few and No Labels", Sec. 3.3.2. It names neither the layer nor the
form of the converters: here a linear map over channels that all positions share, before the last stage or at the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

import torch
from torch import Tensor, nn

from labelkit.errors import ConfigError
from labelkit.models.backbones.staged_network import StagedNetwork
from labelkit.models.classifier_network import ClassifierNetwork
from labelkit.models.ema import slow_copy
from labelkit.models.heads import LinearHeads
from labelkit.models.inference import InferenceNetwork, InputSpec

ComposeAt = Literal["last-stage", "pool"]
Student = ClassifierNetwork[LinearHeads]


class Composition(nn.Module):
    """The trained part of a master: one converter for each network, their sum, and the layers of a decision.

    Args:
        student: whose last stage and head the decision starts as.
        at: where the networks are joined.

    Attributes:
        converters: three linear maps over channels; together the mean of the three inputs, at first.
        decision: from the joined maps to features; nothing at the pool.
        head: from features to logits.
    """

    def __init__(self, student: Student, at: ComposeAt) -> None:
        super().__init__()
        self.at = at
        self.head = slow_copy(student.head)
        if at == "pool":
            self.decision: nn.Module = nn.Identity()
            width = student.embed_dim
            self.converters = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        else:
            self.decision = slow_copy(_staged(student).last_stage)
            width = _joined_width(student)
            self.converters = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(3))
        self.requires_grad_(False)
        self.start_from(student)

    @torch.no_grad()
    def start_from(self, network: Student) -> None:
        """Begin as the mean of the three inputs, decided on by the layers of ``network``."""
        for converter in self.converters:
            assert isinstance(converter, nn.Linear | nn.Conv2d)
            identity = torch.eye(converter.weight.shape[0]) / 3
            converter.weight.copy_(identity.reshape(converter.weight.shape))
            assert converter.bias is not None
            converter.bias.zero_()
        self.head.load_state_dict(network.head.state_dict())
        if self.at == "last-stage":
            self.decision.load_state_dict(_staged(network).last_stage.state_dict())

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        """Three inputs at the layer to features (b, d)."""
        joined = torch.stack([convert(maps) for convert, maps in zip(self.converters, inputs, strict=True)]).sum(0)
        features: Tensor = self.decision(joined)
        return features.mean(dim=(2, 3)) if self.at == "last-stage" else features


class ComposedNetwork(InferenceNetwork):
    """Current, previous and averaged student, joined; never in training mode but for what trains it.

    Args:
        student: the network that the three are versions of; copied.
        at: where they are joined.

    Attributes:
        current, previous, averaged: frozen networks in evaluation mode.
        composition: what is trained.

    Raises:
        ConfigError: the backbone cannot be cut before its last stage.
    """

    def __init__(self, student: Student, at: ComposeAt) -> None:
        super().__init__()
        if at == "last-stage" and not isinstance(student.backbone.net, StagedNetwork):
            raise ConfigError(
                "--compose-at",
                f"{student.backbone.info.name} cannot be cut before its last stage",
                "Use --compose-at pool, or one of convnet13, resnet26_shake, wrn28_2, wrn16_2, wrn10_1.",
            )
        self.at = at
        self.current, self.previous, self.averaged = (slow_copy(student) for _ in range(3))
        self.composition = Composition(student, at)
        self.train(False)

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode; whoever trains the composition says so to it alone."""
        del mode
        return super().train(False)

    @property
    def input_spec(self) -> InputSpec:
        """As the student's."""
        return self.current.input_spec

    @property
    def embed_dim(self) -> int:
        """As the student's."""
        return self.current.embed_dim

    @property
    def identity(self) -> dict[str, str]:
        """As the student's, but for the layer."""
        return {**self.current.identity, "layer": "composition"}

    @property
    def num_outputs(self) -> int:
        """Classes."""
        return self.current.num_outputs

    @torch.no_grad()
    def inputs(self, images: Tensor) -> tuple[Tensor, ...]:
        """What the three networks give at the layer where they are joined."""
        networks = (self.current, self.previous, self.averaged)
        if self.at == "pool":
            return tuple(network.embed(images) for network in networks)
        return tuple(_staged(network).pre(images) for network in networks)

    @torch.no_grad()
    def averaged_logits(self, inputs: Sequence[Tensor]) -> Tensor:
        """What the averaged network alone says of images, from its input at the layer."""
        features = inputs[2] if self.at == "pool" else _staged(self.averaged).post(inputs[2])
        logits: Tensor = self.averaged.classify(features)
        return logits

    def embed(self, images: Tensor) -> Tensor:
        """Master features (b, d); gradients reach the composition."""
        features: Tensor = self.composition(self.inputs(images))
        return features

    def classify(self, embeddings: Tensor) -> Tensor:
        """Logits (b, c)."""
        logits: Tensor = self.composition.head(embeddings)
        return logits


def _staged(network: Student) -> StagedNetwork:
    net = network.backbone.net
    assert isinstance(net, StagedNetwork)
    return net


def _joined_width(student: Student) -> int:
    """Channels at the composition layer, seen on an image of zeros."""
    spec, network = student.input_spec, _staged(student)
    was_training = network.training
    network.eval()
    with torch.no_grad():
        maps = network.pre(next(network.parameters()).new_zeros(1, spec.channels, spec.size, spec.size))
    network.train(was_training)
    return int(maps.shape[1])

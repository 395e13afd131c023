"""Presets of the dissertation's tables use the networks and pixels of these tables (specification of snowball, 5)."""

import pytest
from labelkit.methods.registry import METHODS
from labelkit.options.presets import resolve_config

# tables 2.1 (SVHN), 2.3 (CIFAR-100), 2.4 and 2.8 (CIFAR-10, MixMatch), 2.2 and 2.6 (CIFAR-10)
NETWORKS = [
    ("snowball", "svhn", "convnet13"),
    ("mean-teacher", "svhn", "convnet13"),
    ("snowball", "cifar100", "resnet26_shake"),
    ("mean-teacher", "cifar100", "resnet26_shake"),
    ("snowball", "cifar10_mixmatch", "convnet13"),
    ("snowball", "cifar10", "convnet13"),
    ("snowball", "cifar10_resnet26", "resnet26_shake"),
]


@pytest.mark.parametrize(("method", "preset", "network"), NETWORKS)
def test_a_preset_of_a_table_uses_its_network(method: str, preset: str, network: str) -> None:
    assert resolve_config(METHODS[method].config, preset=preset).config.backbone == network


@pytest.mark.parametrize("method", ["snowball", "mean-teacher"])
def test_resnet26_learns_cifar100_for_300_epochs(method: str) -> None:
    config = resolve_config(METHODS[method].config, preset="cifar100").config
    # an epoch is a pass over the 40,000 unlabeled images, 97 in a batch
    epoch = 40_000 // (config.batch_size - config.labeled_batch_size)
    assert config.steps == 300 * epoch
    assert config.lr_horizon == pytest.approx(350 / 300, abs=1e-4)
    assert config.consistency_ramp == pytest.approx(5 / 300, abs=1e-4)

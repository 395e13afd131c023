"""What metric learning starts from: weights, statistics, the first clustering; over all methods and presets."""

import numpy as np
import pytest
import torch
from labelkit.methods.metric.options import TACCCLConfig
from labelkit.methods.metric.recipe import flatten_to_unit_rows
from labelkit.methods.registry import METHODS
from labelkit.options.presets import list_presets, resolve_config

FREEZING = [name for name, spec in METHODS.items() if "freeze_bn" in spec.config.model_fields]
METRIC = [(METHODS[name].config, preset) for name in FREEZING for preset in list_presets(METHODS[name].config)]


@pytest.mark.parametrize("name", FREEZING)
def test_frozen_statistics_of_random_weights_are_refused(name: str) -> None:
    config_class = METHODS[name].config
    with pytest.raises(ValueError, match="random running statistics"):
        config_class(dataset="digits", freeze_bn=True)
    for source in ({"pretrained": True}, {"weights": "w.pth"}, {"init_from": "runs/a"}):
        assert config_class(dataset="digits", freeze_bn=True, **source).freeze_bn


def test_a_random_network_is_not_clustered_first() -> None:
    for config_class, preset in METRIC:
        config = resolve_config(config_class, preset=preset).config
        clusters = config_class is TACCCLConfig or getattr(config, "mode", "") == "unsupervised"
        assert not clusters or config.pretrained or config.first_clustering == "pixels", preset


def test_pixels_of_small_images_are_clustered_as_they_are() -> None:
    images = torch.randn(3, 1, 32, 20)
    flat = images.flatten(1)
    assert torch.equal(flatten_to_unit_rows(images), flat / flat.norm(dim=1, keepdim=True))


def test_large_images_are_shrunk_to_means_before_pixels_are_clustered() -> None:
    images = torch.randn(2, 3, 64, 96, dtype=torch.float64)
    means = images.numpy().reshape(2, 3, 32, 2, 32, 3).mean(axis=(3, 5)).reshape(2, -1)
    expected = means / np.linalg.norm(means, axis=1, keepdims=True)
    np.testing.assert_allclose(flatten_to_unit_rows(images).numpy(), expected, rtol=1e-12, atol=1e-15)
